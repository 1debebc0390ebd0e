"""The lessons' experiments, one module a lesson; importing a module registers what is in it.

A module may import torch, numpy and perfkit, and inside a function whatever the experiment says
that it ``needs``. ``perfkit record`` runs them on bare servers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

__all__ = ["discover"]


def discover(*, problem: Callable[[str, Exception], None] | None = None) -> list[str]:
    """Import every module of this package, so that its experiments are registered.

    Args:
        problem: called with a module's name and what its import raised; the others are imported
            all the same. Without it the exception comes through.

    Returns:
        the names of the modules imported.
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
