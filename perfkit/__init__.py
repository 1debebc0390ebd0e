"""perfkit: find out why PyTorch training is slow, change it, and see that it helped.

``%load_ext perfkit`` brings ``%torchprof`` and ``%gpumem``; the functions below serve
scripts and notebooks alike. Importing this package is cheap: torch, matplotlib and IPython
are loaded by the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfkit._version import __version__
from perfkit.base import display as _display
from perfkit.base import extras as _extras
from perfkit.base.errors import PerfkitError

if TYPE_CHECKING:
    from perfkit.advice.cost import cost
    from perfkit.advice.open_trace import open_trace
    from perfkit.advice.profiling import profile
    from perfkit.advice.waterfall import waterfall
    from perfkit.base.machine import doctor
    from perfkit.experiment.compare.ab import ab
    from perfkit.experiment.compare.same import same_result
    from perfkit.experiment.compare.sweep import sweep
    from perfkit.experiment.compare.tune import tune
    from perfkit.experiment.settings import setting
    from perfkit.limit.kept import peaks
    from perfkit.measure.compare import compare
    from perfkit.measure.energy import energy
    from perfkit.memory.account import account
    from perfkit.memory.crossings import crossings
    from perfkit.memory.fit import will_it_fit
    from perfkit.memory.leaks import find_leaks
    from perfkit.synclint.find import find_syncs, no_syncs
    from perfkit.widgets.lab import Lab
    from perfkit.widgets.launch import launch
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
    "cost",
    "crossings",
    "doctor",
    "energy",
    "find_leaks",
    "find_syncs",
    "launch",
    "load_ipython_extension",
    "no_syncs",
    "open_trace",
    "peaks",
    "profile",
    "same_result",
    "setting",
    "sweep",
    "tune",
    "unload_ipython_extension",
    "watch",
    "waterfall",
    "will_it_fit",
]

# name -> module that defines it; resolved on first use so that the import stays light
_HOMES = {
    "Lab": "perfkit.widgets.lab",
    "Timeline": "perfkit.widgets.timeline",
    "ab": "perfkit.experiment.compare.ab",
    "account": "perfkit.memory.account",
    "compare": "perfkit.measure.compare",
    "cost": "perfkit.advice.cost",
    "crossings": "perfkit.memory.crossings",
    "doctor": "perfkit.base.machine",
    "energy": "perfkit.measure.energy",
    "find_leaks": "perfkit.memory.leaks",
    "find_syncs": "perfkit.synclint.find",
    "launch": "perfkit.widgets.launch",
    "no_syncs": "perfkit.synclint.find",
    "open_trace": "perfkit.advice.open_trace",
    "peaks": "perfkit.limit.kept",
    "profile": "perfkit.advice.profiling",
    "same_result": "perfkit.experiment.compare.same",
    "setting": "perfkit.experiment.settings",
    "sweep": "perfkit.experiment.compare.sweep",
    "tune": "perfkit.experiment.compare.tune",
    "watch": "perfkit.widgets.watch",
    "waterfall": "perfkit.advice.waterfall",
    "will_it_fit": "perfkit.memory.fit",
}
# these need the extra [notebook]
_WIDGETS = ("Lab", "Timeline")
_NEEDED_BY_WIDGETS = ("IPython", "anywidget", "ipywidgets", "traitlets")


# results are below what shows them: only the package, which is above all, knows both
_display.shower = "perfkit.show"


if not TYPE_CHECKING:  # there, a misspelt name is an error
    __getattr__ = _extras.found_when_asked(globals(), _HOMES)
    if not all(map(_extras.is_here, _NEEDED_BY_WIDGETS)):
        __all__ = [name for name in __all__ if name not in _WIDGETS]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # help() looks at every name here


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext perfkit``: register the magics."""
    from perfkit.magics import register

    register(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext perfkit``: take the magics away again."""
    from perfkit.magics import unregister

    unregister(ipython)
