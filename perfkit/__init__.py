"""perfkit: find out why PyTorch training is slow, change it, and see that it helped.

``%load_ext perfkit`` brings ``%torchprof`` and ``%gpumem``; the functions below serve
scripts and notebooks alike. Importing this package is cheap: torch, matplotlib and IPython
are loaded by the first call that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfkit import _display
from perfkit._version import __version__
from perfkit.errors import PerfkitError

if TYPE_CHECKING:
    from perfkit.advice.synclint.find import find_syncs
    from perfkit.advice.synclint.guard import no_syncs
    from perfkit.experiment.ab import ab
    from perfkit.experiment.same import same_result
    from perfkit.experiment.settings import setting
    from perfkit.experiment.sweep import sweep
    from perfkit.experiment.tune import tune
    from perfkit.machine import doctor
    from perfkit.memory.account import account
    from perfkit.memory.crossings import crossings
    from perfkit.memory.fit import will_it_fit
    from perfkit.memory.leaks import find_leaks
    from perfkit.timing.compare import compare
    from perfkit.widgets.lab import Lab
    from perfkit.widgets.timeline import Timeline
    from perfkit.widgets.watch import watch

__all__ = [
    "Lab",
    "PerfkitError",
    "Timeline",
    "__version__",
    "ab",
    "account",
    "compare",
    "crossings",
    "doctor",
    "find_leaks",
    "find_syncs",
    "load_ipython_extension",
    "no_syncs",
    "same_result",
    "setting",
    "sweep",
    "tune",
    "unload_ipython_extension",
    "watch",
    "will_it_fit",
]

# name -> module that defines it; resolved on first use so that the import stays light
_HOMES = {
    "Lab": "perfkit.widgets.lab",
    "Timeline": "perfkit.widgets.timeline",
    "ab": "perfkit.experiment.ab",
    "account": "perfkit.memory.account",
    "compare": "perfkit.timing.compare",
    "crossings": "perfkit.memory.crossings",
    "doctor": "perfkit.machine",
    "find_leaks": "perfkit.memory.leaks",
    "find_syncs": "perfkit.advice.synclint.find",
    "no_syncs": "perfkit.advice.synclint.guard",
    "same_result": "perfkit.experiment.same",
    "setting": "perfkit.experiment.settings",
    "sweep": "perfkit.experiment.sweep",
    "tune": "perfkit.experiment.tune",
    "watch": "perfkit.widgets.watch",
    "will_it_fit": "perfkit.memory.fit",
}


# results are below what shows them: only the package, which is above all, knows both
_display.shower = "perfkit.show"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perfkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext perfkit``: register the magics."""
    from perfkit.magics import register

    register(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext perfkit``: take the magics away again."""
    from perfkit.magics import unregister

    unregister(ipython)
