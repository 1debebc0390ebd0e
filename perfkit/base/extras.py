"""Packages that perfkit installs only with an extra, and the extra that brings each.

A bare server records, explains, measures and compares without them. What needs one of them imports
it under :func:`needs`, which says in one line what to install.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from perfkit.base.errors import MissingError, MissingNameError

_NOTEBOOK, _LAB, _INTEGRATIONS = "notebook", "lab", "integrations"
# Not by perfkit's name: no index has it, so whoever registers it there would run code on readers'
# machines.
_INSTALL = "pip install '.[{0}]' in perfkit's folder, or its wheel with [{0}] after the name"
# as imported -> the extra; pyproject.toml lists them by their names for pip
_BROUGHT_BY = {
    **dict.fromkeys(
        (
            *("IPython", "anywidget", "ipykernel", "ipywidgets", "line_profiler", "matplotlib"),
            *("memory_profiler", "traitlets"),
        ),
        _NOTEBOOK,
    ),
    **dict.fromkeys(
        (
            *("PIL", "aiohttp", "cv2", "fsspec", "jupyterlab", "nbclient", "nbconvert", "nbformat"),
            *("pandas", "pyarrow", "simplejpeg"),
        ),
        _LAB,
    ),
    **dict.fromkeys(("accelerate", "lightning", "transformers"), _INTEGRATIONS),
}


def remedy(package: str) -> str:
    """What brings a package, named as it is imported: a command and where to run it."""
    return _INSTALL.format(_BROUGHT_BY[package])


def is_here(package: str) -> bool:
    """Whether a package is installed; it is not imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # it is imported, and was not found in the usual way: a stub
        return True
    except ImportError:  # a finder that hides it
        return False


@contextmanager
def needs(what: str, error_type: type[MissingError] = MissingError) -> Iterator[None]:
    """Imports of what an extra brings.

    Args:
        what: what needs them, the subject of the error's sentence: ``"a figure"``.
        error_type: what to raise.

    Raises:
        MissingError: a package of an extra is not installed; other errors pass.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _BROUGHT_BY:
            raise
        raise error_type(
            f"{what} needs {package}, which is not installed: {remedy(package)}"
        ) from None


def found_when_asked(package: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports its names on first use.

    Args:
        package: its globals.
        homes: name -> module that defines it.
    """
    called = package["__name__"]

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {called!r} has no attribute {name!r}")
        # `from perfkit import Lab` would take an AttributeError for a misspelt name, and say so
        from_import = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        with needs(f"{called}.{name}", MissingError if from_import else MissingNameError):
            package[name] = getattr(importlib.import_module(home), name)
        from perfkit.base.compiling import leave_uncompiled

        leave_uncompiled(home)
        return package[name]

    return find
