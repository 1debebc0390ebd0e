"""Where in the user's code something is: by its object, its text, or a recorded stack."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Iterator
from typing import Any

from perfkit.base.printable import printable
from perfkit.base.statement import statement
from perfkit.base.user_code import cell_names, is_user_code, where

_MOST_FILES, _MOST_LINES = 200, 20_000


def shown_line(file: str, line: int) -> str:
    """``train.py:12: img = Image.open(path)``."""
    place, source = where(file, line, cell_names()), statement(file, line)
    return f"{place}: {source}" if source else place


def line_of(function: Any) -> str | None:
    """Where a function, method or class of the user's is defined; None for anybody else's."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None or not is_user_code(code.co_filename):
        return None
    return shown_line(code.co_filename, code.co_firstlineno)


def only_line_with(pattern: str, *, within: str = "") -> str | None:
    """The one line of the user's files that matches; None if there are none or several.

    Args:
        pattern: searched for in each line.
        within: the name of a function, whose lines alone count where several match.
    """
    found = list(_lines_with(re.compile(pattern)))
    if len(found) > 1 and within:
        found = [one for one in found if _is_within(within, *one)]
    return shown_line(*found[0]) if len(found) == 1 else None


def first_line_with(pattern: str) -> str | None:
    """The first line of the user's files that matches."""
    found = next(_lines_with(re.compile(pattern)), None)
    return None if found is None else shown_line(*found)


def _is_within(function: str, file: str, line: int) -> bool:
    """Whether a line is of a function of that name, or of one within it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        node.name == function and node.lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    )


_LOOPS = (
    ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
#: File, first line and last line of a loop or comprehension.
Loop = tuple[str, int, int]


def loops_around(file: str, line: int) -> list[Loop]:
    """The loops that this line is in, other than those over modules or functions that it calls."""
    found = _loops(tuple(linecache.getlines(file)))
    return [(file, first, last) for first, last in found if first <= line <= last]


@functools.lru_cache(maxsize=16)
def _loops(lines: tuple[str, ...]) -> list[tuple[int, int]]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, _LOOPS):
            heads = getattr(node, "generators", [node])
            calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
            # layer(x) and layers[i](x), not row.mean()
            called = _names(*(one for one in calls if not isinstance(one, ast.Attribute)))
            if called.isdisjoint(_names(*(getattr(one, "target", ast.Pass()) for one in heads))):
                found.append((node.lineno, node.end_lineno or node.lineno))
    return found


def _names(*nodes: ast.AST) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def _lines_with(pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    for file in _user_files():
        for number, line in enumerate(linecache.getlines(file)[:_MOST_LINES], 1):
            if pattern.search(line.partition("#")[0]):
                yield file, number


def _user_files() -> list[str]:
    """The program's own file first, then cells, then modules."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    files = [main] if main else []
    files += cell_names()
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files += [file for file in modules if isinstance(file, str) and file.endswith(".py")]
    return [file for file in dict.fromkeys(files) if is_user_code(file)][:_MOST_FILES]


def name_of(thing: Any) -> str:
    """The class of an object, for a sentence."""
    return printable(type(thing).__qualname__, 60)
