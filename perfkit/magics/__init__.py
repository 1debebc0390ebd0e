"""``%torchprof``, ``%gpumem``, ``%synclint``: arguments → library call → display.

``%lprun``, ``%memit`` and ``%mprun`` of line_profiler and memory_profiler come with them.

Registering them imports IPython's magic machinery and nothing else: torch comes with the
first magic that runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["register", "unregister"]

# magic -> the module and class that hold it
_MAGICS = {
    **dict.fromkeys(("lprun", "memit", "mprun"), ("perfkit.magics.host_tools", "HostToolsMagics")),
    "gpumem": ("perfkit.magics.gpumem", "GpumemMagics"),
    "synclint": ("perfkit.magics.synclint", "SynclintMagics"),
    "torchprof": ("perfkit.magics.torchprof", "TorchprofMagics"),
}


def register(ip: InteractiveShell) -> None:
    """Add perfkit's magics to this shell."""
    registry: dict[str, dict[str, Any]] = ip.magics_manager.magics
    # another package's own magics, if the user has loaded it, are left as they are
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


def unregister(ip: InteractiveShell) -> None:
    """Take perfkit's magics away again; those that somebody else defined since stay."""
    registry: dict[str, dict[str, Any]] = ip.magics_manager.magics
    for name, (module, _) in _MAGICS.items():
        for kind in ("line", "cell"):
            function = registry[kind].get(name)
            owner = getattr(function, "__self__", None)
            if type(owner).__module__ == module:
                del registry[kind][name]
