"""``%torchprof``, ``%gpumem``, ``%synclint``: arguments → library call → display.

``%lprun``, ``%memit`` and ``%mprun`` of line_profiler and memory_profiler are registered too.

Registering imports only IPython's magic machinery; the first magic that runs imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from perfkit.base.user_code import cell_ran, cell_runs, forget_cells

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["register", "unregister"]

# magic -> its module and class
_MAGICS = {
    **dict.fromkeys(("lprun", "memit", "mprun"), ("perfkit.magics.host_tools", "HostToolsMagics")),
    "gpumem": ("perfkit.magics.gpumem", "GpumemMagics"),
    "synclint": ("perfkit.magics.synclint", "SynclintMagics"),
    "torchprof": ("perfkit.magics.torchprof", "TorchprofMagics"),
}
# so that a report's "cell [3], line 12" leads there
_NOTED = {"pre_run_cell": cell_runs, "post_run_cell": cell_ran}


def register(ip: InteractiveShell) -> None:
    """Add perfkit's magics to this shell."""
    registry: dict[str, dict[str, Any]] = ip.magics_manager.magics
    # keep the magics of another package if the user has loaded it
    theirs = [
        (kind, name, registry[kind][name])
        for kind in ("line", "cell")
        for name in ("lprun", "memit", "mprun")
        if name in registry[kind]
    ]
    for module, cls in dict.fromkeys(_MAGICS.values()):
        ip.register_magics(getattr(importlib.import_module(module), cls))
    for kind, name, function in theirs:
        registry[kind][name] = function
    forget_cells()
    for event, noted in _NOTED.items():
        ip.events.register(event, noted)


def unregister(ip: InteractiveShell) -> None:
    """Remove perfkit's magics; magics that someone else defined since then stay."""
    registry: dict[str, dict[str, Any]] = ip.magics_manager.magics
    for name, (module, _) in _MAGICS.items():
        for kind in ("line", "cell"):
            function = registry[kind].get(name)
            owner = getattr(function, "__self__", None)
            if type(owner).__module__ == module:
                del registry[kind][name]
    for event, noted in _NOTED.items():
        with contextlib.suppress(ValueError):  # not registered
            ip.events.unregister(event, noted)
