"""Which module makes a result's document: found by the room of the result's class."""

from __future__ import annotations

import importlib
from typing import Any

from perfkit.show.document import Document, registered

# prefix of the module of a result's class -> the module that makes its document
_HOMES = {
    "perfkit.advice": "perfkit.show.profile",
    "perfkit.advice.cost": "perfkit.show.cost",
    "perfkit.synclint": "perfkit.show.synclint",
    "perfkit.advice.open_trace": "perfkit.show.trace_report",
    "perfkit.advice.trace_report": "perfkit.show.trace_report",
    "perfkit.experiment": "perfkit.show.runs",
    "perfkit.experiment.compare.ab": "perfkit.show.sweep",
    "perfkit.experiment.compare.batch": "perfkit.show.sweep",
    "perfkit.experiment.compare.compare_runs": "perfkit.show.compare_runs",
    "perfkit.experiment.compare.same": "perfkit.show.same",
    "perfkit.experiment.compare.sweep": "perfkit.show.sweep",
    "perfkit.experiment.compare.tune": "perfkit.show.sweep",
    "perfkit.base.machine": "perfkit.show.machine",
    "perfkit.limit": "perfkit.show.peaks",
    "perfkit.memory": "perfkit.show.memory",
    "perfkit.memory.crossings": "perfkit.show.crossings",
    "perfkit.memory.replay": "perfkit.show.replay",
    "perfkit.measure": "perfkit.show.timing",
    "perfkit.measure.energy": "perfkit.show.energy",
    "perfkit.base.compiling": "perfkit.show.counted",
    "perfkit.script": "perfkit.show.whole_run",
    "perfkit.script.ranks": "perfkit.show.ranked_run",
    "perfkit.trace": "perfkit.show.trace_answers",
    "perfkit.trace.ask.breakdown": "perfkit.show.profile",
    "perfkit.trace.ask.limit": "perfkit.show.limit",
    "perfkit.trace.ask.operators": "perfkit.show.profile",
    "perfkit.trace.ask.syncs": "perfkit.show.syncs",
    "perfkit.trace.ask.waterfall": "perfkit.show.waterfall",
}


def document(obj: Any) -> Document | None:
    """The document of ``obj``; None for a type without one.

    The module that makes it is imported when the first document of its room is asked for.
    """
    # a list of results is a result of the room of what it holds
    one = obj[0] if type(obj) in (list, tuple) and obj else obj
    for cls in type(one).__mro__:
        parts = cls.__module__.split(".")
        homes = (_HOMES.get(".".join(parts[:n])) for n in range(len(parts), 1, -1))
        home = next(filter(None, homes), None)
        if home is not None:
            importlib.import_module(home)
            break
    return registered(obj)
