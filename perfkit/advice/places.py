"""Where in the user's code something is: by its object, its text, or a recorded stack."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from perfkit.base.printable import printable
from perfkit.base.statement import statement
from perfkit.base.user_code import cell_names, is_user_code, where

_MOST_FILES, _MOST_LINES = 200, 20_000
# Kineto writes a frame as ``path(line): function``.
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
# Frames of Python, installed packages and perfkit, on any machine.
_NOT_THE_USERS = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python\d[\d.]*|torch|perfkit)[/\\]|^<"
)


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


class Loop(NamedTuple):
    """A loop or comprehension: its first and last line."""

    file: str
    first: int
    last: int


def loops_around(file: str, line: int) -> Iterator[Loop]:
    """The loops that this line is in, other than those over modules or functions that it calls."""
    lines = tuple(linecache.getlines(file))
    return (Loop(file, *one) for one in _loops(lines) if one[0] <= line <= one[1])


@functools.lru_cache(maxsize=16)
def _loops(lines: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            targets = [node.target]
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            targets = [one.target for one in node.generators]
        elif isinstance(node, ast.While):
            targets = []
        else:
            continue
        own = {name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)}
        called = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
        named = (  # layer(x) and layers[i](x), not row.mean()
            name.id
            for one in called
            if isinstance(one, (ast.Name, ast.Subscript))
            for name in ast.walk(one)
            if isinstance(name, ast.Name)
        )
        if own.isdisjoint(named):
            found.append((node.lineno, node.end_lineno or node.lineno))
    return tuple(found)


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


def recorded_place(stack: str) -> tuple[str, int, str] | None:
    """File, line and function of the innermost user frame; None if there is none.

    Args:
        stack: frames as ``path(line): function``, innermost first, joined by ``;``.
    """
    for frame in stack.split(";"):
        found = _FRAME.match(frame.strip())
        if found and not _NOT_THE_USERS.search(found["file"]):
            return found["file"], int(found["line"]), found["function"]
    return None
