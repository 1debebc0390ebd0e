"""What the names in the user's code stand for: ``th`` for torch, ``F`` for torch.nn.functional."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType

from perfkit.base.user_code import cell_names

# what everybody calls them, for code whose imports are elsewhere
_USUAL = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "np": "numpy"}


def names_in(tree: ast.Module, file: str) -> dict[str, str]:
    """What the code imports, by the names that it uses: ``th`` → ``torch``.

    In a notebook also what other cells have imported or defined.

    Args:
        tree: the code.
        file: the name under which Python knows it.
    """
    names = _of_the_session() if file in cell_names() else {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                names[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            for alias in node.names:
                names[alias.asname or alias.name] = f"{package}.{alias.name}"
    return names


def in_full(code: str, names: Mapping[str, str]) -> str:
    """``torch.stack`` for ``th.stack``; what does not begin with a known name is left as it is."""
    first, dot, rest = code.partition(".")
    return names.get(first, _USUAL.get(first, first)) + dot + rest


def name_of_torch(names: Mapping[str, str]) -> str:
    """What the code calls torch itself: ``th``."""
    own = [name for name, full in names.items() if full == "torch"]
    return "torch" if "torch" in own or not own else own[0]


def _of_the_session() -> dict[str, str]:
    """What the user's modules, functions and classes in the notebook's namespace are called."""
    names = {}
    for name, value in [*vars(sys.modules["__main__"]).items()]:
        if isinstance(value, ModuleType):
            names[name] = value.__name__
        elif isinstance(value, BuiltinFunctionType | FunctionType | type):
            names[name] = f"{value.__module__}.{value.__name__}"
    return names
