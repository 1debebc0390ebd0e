"""The lessons' experiments, one module per lesson; importing a module registers them.

A module may import torch, numpy and perfkit, and inside a function the packages that the experiment
``needs``. ``perfkit record`` runs them on bare servers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

__all__ = ["discover"]


def discover(*, problem: Callable[[str, Exception], None] | None = None) -> list[str]:
    """Import every module of this package, so that its experiments are registered.

    Args:
        problem: called with the name of a module whose import failed and the exception; the others
            are still imported. Without it, the exception propagates.

    Returns:
        The names of the imported modules.
    """
    imported = []
    for found in pkgutil.iter_modules(__path__, f"{__name__}."):
        name = found.name
        if name.rpartition(".")[2].startswith("_"):
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            if problem is None:
                raise
            problem(name, error)
        else:
            imported.append(name)
    return imported
