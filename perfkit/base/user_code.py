"""Which code is the user's own, and how to name one of its lines to a person.

The one place that decides it. A file is the user's if it is neither an installed package's (torch
among them, wherever it is, and what `pip install --target` has put into a folder of `sys.path`) nor
the standard library's nor perfkit's, and not generated code.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

_INSTALLED = tuple(
    {
        os.path.normcase(path) + os.sep
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(key))
    }
)
_PERFKIT = os.path.normcase(str(Path(__file__).absolute().parents[1])) + os.sep
# Code without a file: cells, the prompt and what somebody compiled under a name are the user's.
# The rest is written by Python, attrs, dataclasses (<string>), torch.fx, NumPy, SymPy, beartype,
# networkx (which torch.compile uses).
_GENERATED = re.compile(
    r"^<(frozen |string>|eval_with_key>|__array_function__|lambdifygenerated|decorator-gen|@)"
    r"|^<\w+ generated |^<class .*> compilation "
)
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
# What torch.compile has written, in whatever folder its cache is.
_COMPILED = re.compile(r"[/\\](\w\w)[/\\]c\1[a-z2-7]{40,}\.py$")
# packages that pass on what they are asked for: the line that called them says more
_SILENT = frozenset(
    {
        "IPython", "ipykernel", "matplotlib", "numpy", "pandas", "perfkit", "pluggy", "_pytest",
        "pytest", "rich", "scipy", "torch", "tqdm", "triton",
    }
)  # fmt: skip


@functools.cache
def is_user_code(filename: str) -> bool:
    """Whether code with this file name is the user's own.

    It is not if it belongs to torch, an installed package, the standard library or perfkit, or
    if a library generated it. A program given with ``python -c`` is the user's.
    """
    if filename == "<string>":
        main = sys.modules.get("__main__")
        argv = getattr(sys, "argv", None) or []  # a program may do anything to it
        return argv[:1] == ["-c"] and getattr(main, "__file__", None) is None
    if filename.startswith("<"):
        return _GENERATED.match(filename) is None
    path = os.path.normcase(filename)
    if _PACKAGES.search(path) or _COMPILED.search(path) or _folder_of_packages(filename):
        return False
    return not path.startswith((*_INSTALLED, _PERFKIT, _torch_folder()))


def _torch_folder() -> str:
    """Where torch is, if it is imported: a build from source is in no folder of packages."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return os.path.normcase(os.path.dirname(file)) + os.sep if file else "\0"  # noqa: PTH120


def package_path(filename: str) -> str:
    """The path of an installed package's file from the package on: ``peft/a.py``; else ''."""
    if filename.startswith("<"):
        return ""
    inner = _PACKAGES.split(filename)
    if len(inner) > 1:
        return inner[-1].replace("\\", "/")
    folder = _folder_of_packages(filename)
    return filename[len(folder) :].lstrip("/\\").replace("\\", "/") if folder else ""


@functools.cache
def _folder_of_packages(filename: str) -> str:
    """The folder of ``sys.path`` into which ``pip install --target`` has put this file; else ''."""
    for folder in {str(one).rstrip("/\\") for one in sys.path if one}:
        if folder and filename.startswith((folder + "/", folder + os.sep)):
            inside = filename[len(folder) + 1 :].replace("\\", "/")
            if inside.partition("/")[0] in _installed_in(folder):
                return folder
    return ""


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    """What pip has put there, by the lists that it keeps beside it: files and folders."""
    found: set[str] = set()
    try:
        for record in Path(folder).glob("*.dist-info/RECORD"):
            with record.open(encoding="utf-8", errors="replace") as lines:
                found.update(line.partition(",")[0].partition("/")[0] for line in lines)
    except OSError:
        return frozenset()
    return frozenset(found)


@functools.cache
def tells_something(filename: str) -> bool:
    """Whether a line of this installed package says more than the user's line that called it.

    False for torch and for packages that only pass on what they are asked for.
    """
    package = package_path(filename).partition("/")[0].removesuffix(".py")
    return bool(package) and package not in _SILENT and not filename.startswith(_torch_folder())


def cell_names() -> Mapping[str, Any]:
    """File names of notebook cells → their execution count, if IPython runs here.

    Asked of a shell that already runs: where none does, nothing is imported.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return names if isinstance(names, dict) else {}


# execution count → the id that the front end has given the cell; 0 is the cell that runs
_cell_ids: dict[int, str] = {}


def forget_cells() -> None:
    """Another shell counts from 1."""
    _cell_ids.clear()


def cell_runs(info: Any) -> None:
    """For IPython's event ``pre_run_cell``; its number there depends on IPython's version."""
    _cell_ids[0] = info.cell_id or ""


def cell_ran(result: Any) -> None:
    """For IPython's event ``post_run_cell``."""
    if result.info.store_history:
        _cell_ids[result.execution_count] = result.info.cell_id or ""


def cell_link(number: int) -> str:
    """Where JupyterLab finds an executed cell, from a page in the notebook; empty if not known."""
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    cell = _cell_ids.get(number if number <= max(_cell_ids, default=0) else 0)
    if not cell or not notebook.endswith(".ipynb"):
        return ""
    return f"{quote(notebook)}#cell-id={quote(cell)}"


# Frames to look through.
_DEEPEST = 40


def user_place(frame: Any = None) -> tuple[str, int] | None:
    """Where the user's own code is that called the caller, or this frame; None if not near."""
    frame = frame or sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if is_user_code(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def where(file: str, line: int) -> str:
    """A line as a person names it: ``cell [3], line 7``, ``train.py:12``, ``peft/a.py:7``."""
    cells = cell_names()
    if file in cells:
        return f"cell [{cells[file]}], line {line}"
    old_style = re.match(r"<ipython-input-(\d+)-", file)
    if old_style:
        return f"cell [{old_style[1]}], line {line}"
    if "ipykernel_" in file:
        return f"cell, line {line}"
    if file.startswith("<"):
        return f"{file}, line {line}"
    package = package_path(file)
    if package and not package.startswith("torch/"):
        return f"{package}:{line}"
    return f"{os.path.basename(file)}:{line}"  # noqa: PTH119  # once per line shown
