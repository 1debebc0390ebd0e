"""Code that reads all rows of a batch at once, of a data set that treats each number alike."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

# What these do to a row they do to many; anything else may not.
_ALIKE = {
    "np", "numpy", "torch", "astype", "float", "double", "half", "long", "to", "from_numpy",
    "as_tensor", "asarray", "copy", "clone", "div", "mul", "sub", "add", "float32", "float16",
    "float64", "int64", "dtype",
}  # fmt: skip
_BY_VALUE = (ast.If, ast.IfExp, ast.For, ast.While, ast.Compare, ast.comprehension, ast.Slice)
_MOST_LINES = 8


_INDEXES = (
    "def __getitems__(self, rows):  # in the data set: all rows of a batch at once\n"
    "    return {}\n"
    "loader = DataLoader(dataset, ..., collate_fn=lambda batch: batch)  # num_workers=0"
)
_LOADER = (
    "loader = DataLoader(dataset, ..., collate_fn=default_convert)  # of torch.utils.data, "
    "without workers"
)


def by_rows(dataset: Any, names: list[str]) -> str:
    """The remedy: its ``__getitem__`` for many rows, or where that only indexes, an index of them.

    Args:
        names: what of the data set has a row for each item.
    """
    changed = changes_alike(dataset)
    picked = ", ".join(f"self.{name}[rows]" for name in names)
    return f"{changed}\n{_LOADER}" if changed else _INDEXES.format(picked)


def changes_alike(dataset: Any) -> str:
    """Its ``__getitem__`` as ``__getitems__``; empty where it only indexes, or does what may depend
    on the row.
    """
    method = type(dataset).__getitem__
    code = getattr(method, "__code__", None)
    called = set() if code is None else set(code.co_names) - set(getattr(dataset, "__dict__", {}))
    if code is None or code.co_argcount != 2 or not called or called - _ALIKE:
        return ""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, SyntaxError, ValueError):
        return ""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return ""
    if any(isinstance(one, _BY_VALUE) for one in ast.walk(function)):
        return ""
    argument = function.args.args[1]
    function.name, function.returns, argument.annotation = "__getitems__", None, None
    for one in ast.walk(function):
        if isinstance(one, ast.Name) and one.id == argument.arg:
            one.id = "rows"
    argument.arg = "rows"
    lines = ast.unparse(function).splitlines()
    return "\n".join(lines) if len(lines) <= _MOST_LINES else ""
