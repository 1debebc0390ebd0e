"""Results as plain text, as HTML, and as the bundle that a notebook stores.

One small interface for all renderers: a module of this package that defines
``text(obj) -> str`` and ``html(obj) -> str`` for the results of one room. Which module that
is follows from where the result's class is defined, and it is imported when somebody asks to
see the result: plain text needs neither jinja2 nor matplotlib. Your own result types join
through ``perfkit.show.text.register`` and ``html.register`` (both are
:func:`functools.singledispatch` functions).
"""

from __future__ import annotations

import functools
import html as _stdlib_html
import importlib
from typing import Any

__all__ = ["RESULT_MIME", "brief", "html", "mime_bundle", "text", "whole_page"]

#: The type under which a notebook keeps the numbers of a result, as JSON, beside its picture.
#: ``perfkit tour`` reads findings and ratios from there.
RESULT_MIME = "application/vnd.perfkit.result+json"

# prefix of the class's module -> the module that renders it
_RENDERERS = {
    "perfkit.advice": "perfkit.show.profile",
    "perfkit.advice.synclint": "perfkit.show.synclint",
    "perfkit.advice.trace_report": "perfkit.show.trace_report",
    "perfkit.experiment": "perfkit.show.runs",
    "perfkit.experiment.ab": "perfkit.show.sweep",
    "perfkit.experiment.batch": "perfkit.show.sweep",
    "perfkit.experiment.compare_runs": "perfkit.show.compare_runs",
    "perfkit.experiment.same": "perfkit.show.same",
    "perfkit.experiment.sweep": "perfkit.show.sweep",
    "perfkit.experiment.tune": "perfkit.show.sweep",
    "perfkit.experiment.ledger": "perfkit.show.claims",
    "perfkit.machine": "perfkit.show.machine",
    "perfkit.memory": "perfkit.show.memory",
    "perfkit.memory.crossings": "perfkit.show.crossings",
    "perfkit.timing": "perfkit.show.timing",
    "perfkit.trace": "perfkit.show.profile",
    "perfkit.trace.communication": "perfkit.show.trace_answers",
    "perfkit.trace.copies": "perfkit.show.trace_answers",
    "perfkit.trace.critical_path": "perfkit.show.trace_answers",
    "perfkit.trace.diff": "perfkit.show.trace_answers",
    "perfkit.trace.flops": "perfkit.show.trace_answers",
    "perfkit.trace.idle": "perfkit.show.trace_answers",
    "perfkit.trace.kernels": "perfkit.show.trace_answers",
    "perfkit.trace.memory_curve": "perfkit.show.trace_answers",
    "perfkit.trace.modules": "perfkit.show.trace_answers",
    "perfkit.trace.queue": "perfkit.show.trace_answers",
    "perfkit.trace.ranks": "perfkit.show.trace_answers",
    "perfkit.trace.sequences": "perfkit.show.trace_answers",
}


def _renderer(obj: Any) -> Any:
    """The module that renders ``obj``, or None for a type that is not perfkit's."""
    for cls in type(obj).__mro__:
        parts = cls.__module__.split(".")
        for n in (3, 2):  # a part of a room may have a renderer of its own
            room = ".".join(parts[:n])
            if room in _RENDERERS:
                return importlib.import_module(_RENDERERS[room])
    return None


@functools.singledispatch
def text(obj: Any) -> str:
    """The plain-text form of a result, at most 100 columns wide; ``repr`` of anything else."""
    module = _renderer(obj)
    return repr(obj) if module is None else str(module.text(obj))


def brief(obj: Any) -> str:
    """The first screen of :func:`text`, for results whose renderer has one; else all of it."""
    shorter = getattr(_renderer(obj), "brief", None)
    return text(obj) if shorter is None else str(shorter(obj))


@functools.singledispatch
def html(obj: Any) -> str:
    """The self-contained HTML form of a result; anything else as its escaped ``repr``."""
    module = _renderer(obj)
    if module is None:
        return f"<pre>{_stdlib_html.escape(repr(obj))}</pre>"
    return str(module.html(obj))


def whole_page(obj: Any, *, title: str = "perfkit report", scrub: bool = True) -> str:
    """The HTML form as a page of its own, without what is private: see ``perfkit.show.page``."""
    from perfkit.show.page import page

    return page(obj, title=title, scrub=scrub)


def mime_bundle(obj: Any, kind: str, *, verbose: bool = False) -> dict[str, Any]:
    """What a notebook stores of a result: text, HTML and its numbers.

    Args:
        obj: a result with ``to_dict()``.
        kind: the ``"type"`` by which ``perfkit tour`` knows it, e.g. ``"profile"``.
        verbose: with all tables in the text; HTML has them folded.
    """
    return {
        "text/plain": text(obj) if verbose else brief(obj),
        "text/html": html(obj),
        RESULT_MIME: {**obj.to_dict(), "type": kind},
    }
