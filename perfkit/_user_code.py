"""Which code is the user's own, and how to name one of its lines to a person."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

__all__ = ["cell_names", "is_user_code", "where"]

_INSTALLED = tuple(
    {
        os.path.normcase(path) + os.sep
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(key))
    }
)
_PERFKIT = os.path.normcase(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120  # once per frame seen
# Code that has no file: IPython's cells and the prompt are the user's, the rest is generated.
_USERS_CELLS = re.compile(r"^<(ipython-input-|stdin>|cell )")

_is_user_file: dict[str, bool] = {}


def is_user_code(filename: str) -> bool:
    """Whether code of this file name is the user's own.

    It is not if it belongs to torch, an installed package, the standard library or perfkit.
    """
    known = _is_user_file.get(filename)
    if known is None:
        path = os.path.normcase(filename)
        if filename.startswith("<"):
            known = _USERS_CELLS.match(filename) is not None
        elif f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
            known = False
        else:
            known = not path.startswith((*_INSTALLED, _PERFKIT))
        _is_user_file[filename] = known
    return known


def cell_names() -> Mapping[str, Any]:
    """File names of notebook cells → their execution count, if IPython runs here."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return names if isinstance(names, dict) else {}


def where(file: str, line: int, cells: Mapping[str, Any]) -> str:
    """``cell [3], line 7`` or ``train.py:12``; ``cells`` is what :func:`cell_names` gave."""
    if file in cells:
        return f"cell [{cells[file]}], line {line}"
    old_style = re.match(r"<ipython-input-(\d+)-", file)
    if old_style:
        return f"cell [{old_style[1]}], line {line}"
    if "ipykernel_" in file:
        return f"cell, line {line}"
    return f"{os.path.basename(file)}:{line}"  # noqa: PTH119  # names such as <stdin> are no paths
