"""Source lines as a person reads them, and where in the user's files one is.

A line is shown as its whole statement where it is only a part of one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import json
import linecache
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from perfkit.base.printable import printable
from perfkit.base.user_code import cell_names, is_user_code, where

_LONGEST = 160
# Of what belongs together, in one function.
_NEARBY = 30
# A bracket that is open for longer is not closed for our purposes.
_MOST_LINES = 60
# A word that stands before an open bracket and does not say what happens in it.
_ONLY_KEYWORDS = re.compile(
    r"^((if|elif|while|return|and|or|not|in|assert|yield|await|del)\b|\W)*$"
)
_OPEN, _CLOSED = "([{", ")]}"


def statement(file: str, line: int, *, longest: int = _LONGEST) -> str:
    """The statement that runs on this line, on one line; empty where there is no source.

    A line that says something by itself is shown as it stands. ``loss = compute(`` goes on to the
    end of its bracket; of a line without any word, such as ``if (`` or ``):``, all of the
    statement is shown.

    Args:
        file: the name under which Python knows the code.
        line: number in it, from 1.
        longest: cut to this many characters.
    """
    text = linecache.getline(file, line).strip()
    if not text:
        return ""
    lines = tuple(linecache.getlines(file))
    if _ONLY_KEYWORDS.match(text):
        first, last = _logical_lines(lines).get(line, (line, line))
        text = _joined(lines[first - 1 : last])
    elif _depth(text) > 0:
        text = _joined(_until_closed(lines[line - 1 : line - 1 + _MOST_LINES]))
    return printable(text, longest)


def whole_statement(file: str, line: int) -> str:
    """All of the statement that this line is in, on one line; empty where there is no source."""
    lines = tuple(linecache.getlines(file))
    first, last = _logical_lines(lines).get(line, (line, line))
    return _joined(lines[first - 1 : last])


def handed_over(file: str, line: int) -> str:
    """The call on a line with the values of its f-string as arguments; empty where it has none."""
    try:
        call: Any = ast.parse(whole_statement(file, line)).body[0]
        function, (message,) = call.value.func, call.value.args
        parts = [getattr(one, "value", None) for one in message.values]
        values = [one for one in message.values if isinstance(one, ast.FormattedValue)]
    except (SyntaxError, AttributeError, IndexError, ValueError):
        return ""
    if any(one.format_spec or one.conversion != -1 for one in values):
        return ""
    text = "".join(one.replace("%", "%%") if isinstance(one, str) else "%s" for one in parts)
    given = [json.dumps(text, ensure_ascii=False), *(ast.unparse(one.value) for one in values)]
    return f"{ast.unparse(function)}({', '.join(given)})"


def one_call(places: Iterable[tuple[str, int]]) -> str:
    """The statements there, and before them, once, the call that all of them make."""
    statements = [whole_statement(*place) for place in places]
    calls = [list(_calls(one)) for one in statements]
    same = [one for one in calls[0] if all(one in others for others in calls)]
    if not same:
        return "output = model(x)  # once; then use output wherever it is needed"
    lines = [one.replace(same[0], "output") for one in statements]
    return "\n".join((f"output = {same[0]}  # once, before its first use", *lines))


def kept_in_self(places: list[tuple[str, int]], name: str) -> str:
    """These statements of a method, which make such a variable, so that they run once."""
    made, value = whole_statement(*places[0]), name
    lines = "...  # the lines that make it, as they are"
    if len(places) == 1 and made.startswith(f"{name} = "):
        lines, value = "", made.removeprefix(f"{name} = ")
    lines = f"    {lines}\n" if lines else ""
    return (
        f'if getattr(self, "_{name}", None) is None:  # once\n'
        f"{lines}    self._{name} = {value}\n{name} = self._{name}\n"
        "# or in __init__, with register_buffer: then it moves with the model"
    )


def call_before_the_loop(place: tuple[str, int], function: str) -> str:
    """The statement there, and before the loop, once, its call of this function."""
    statement = whole_statement(*place)
    of_it = re.compile(rf"(\w+\.)*{function}\(")
    call = next((one for one in _calls(statement) if of_it.match(one)), "")
    said = f"result = {call or f'{function}(...)'}  # once, before the loop over the steps"
    return f"{said}\n{statement.replace(call, 'result')}  # in it" if call else said


def _calls(statement: str) -> Iterator[str]:
    """Calls in a statement as they are written, the outermost first."""
    with suppress(SyntaxError):
        for node in ast.walk(ast.parse(statement)):
            if isinstance(node, ast.Call):
                yield ast.get_source_segment(statement, node) or ""


def _until_closed(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines up to the one that closes what the first one has opened."""
    for n in range(1, len(lines) + 1):
        if _depth("".join(lines[:n])) <= 0:
            return lines[:n]
    return lines[:1]


def _joined(lines: tuple[str, ...]) -> str:
    text = ""
    for part in (_without_comment(line).strip().removesuffix("\\").rstrip() for line in lines):
        if part[:1] and part[0] in _CLOSED:
            text = text.removesuffix(",") + part
        elif text and part and text[-1] not in _OPEN:
            text += f" {part}"
        else:
            text += part
    while text and _depth(text) < 0 and text[-1] in _CLOSED + ",:":
        text = text[:-1]
    return text.removesuffix(",")


def _without_comment(line: str) -> str:
    return "".join(_pieces(line)).rstrip()


def _depth(text: str) -> int:
    """Brackets opened less brackets closed, outside of strings."""
    code = "".join(piece for piece in _pieces(text) if piece[0] not in "\"'")
    return sum((c in _OPEN) - (c in _CLOSED) for c in code)


_PIECE = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#[^\n]*|[^\"'#]+|.", re.DOTALL)


def _pieces(text: str) -> list[str]:
    """Strings and what is between them, without comments."""
    return [piece for piece in _PIECE.findall(text) if not piece.startswith("#")]


@functools.lru_cache(maxsize=16)
def _logical_lines(lines: tuple[str, ...]) -> dict[int, tuple[int, int]]:
    """Line → first and last line of its statement; empty where this is no Python."""
    found: dict[int, tuple[int, int]] = {}
    first = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                continue
            first = first or token.start[0]
            if token.type == tokenize.NEWLINE:
                found |= dict.fromkeys(range(first, token.end[0] + 1), (first, token.end[0]))
                first = 0
    except (tokenize.TokenError, SyntaxError):
        pass  # a cell with a magic in it: what came before it counts
    return found


_MOST_FILES, _MOST_LINES = 200, 20_000


def shown_line(file: str, line: int) -> str:
    """``train.py:12: img = Image.open(path)``."""
    place, source = where(file, line), statement(file, line)
    return f"{place}: {source}" if source else place


def line_of(function: Any) -> str | None:
    """Where a function, method or class of the user's is defined; None for anybody else's."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None or not is_user_code(code.co_filename):
        return None
    return shown_line(code.co_filename, code.co_firstlineno)


def names_of(file: str) -> dict[str, Any]:
    """The global names of the user's module in this file or cell, as they are now."""
    main = sys.modules.get("__main__")
    if file in cell_names():
        return vars(main) if main else {}
    modules = [main, *sys.modules.values()]
    return next((vars(one) for one in modules if getattr(one, "__file__", None) == file), {})


def only_line_with(pattern: str, *, within: str = "") -> str | None:
    """The one line of the user's files that matches; None if there are none or several.

    Args:
        within: the name of a function, whose lines alone count where several match.
    """
    found = list(lines_with(pattern))
    if len(found) > 1 and within:
        found = [one for one in found if _is_within(within, *one)]
    return shown_line(*found[0]) if len(found) == 1 else None


def first_line_with(pattern: str) -> str | None:
    """The first line that matches in the program's own file or cells, or in the one module that has
    such a line; None where several modules do: which of them runs is not known.
    """
    place = _first_place(pattern)
    return None if place is None else shown_line(*place)


def _first_place(pattern: str) -> tuple[str, int] | None:
    found = list(lines_with(pattern))
    if not found or (len({file for file, _ in found}) > 1 and found[0][0] not in _own_files()):
        return None
    return found[0]


def call_with(keyword: str, call: str, *, before: str = "") -> tuple[str | None, str]:
    """The first line that makes a call, as :func:`first_line_with` finds it, and its statement with
    another keyword argument; None without such a line, and no code where it cannot be written.

    Args:
        keyword: such as ``fused=True``.
        call: a pattern of the function's name.
        before: a pattern of what the line has before that.
    """
    place = _first_place(rf"{before}\b{call}\(")
    if place is None:
        return None, ""
    name, _, value = keyword.partition("=")
    with suppress(SyntaxError):
        tree = ast.parse(whole_statement(*place))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and re.search(rf"\b{call}$", ast.unparse(node.func)):
                node.keywords = [one for one in node.keywords if one.arg != name]
                node.keywords.append(ast.keyword(name, ast.parse(value, mode="eval").body))
                code = ast.unparse(tree)
                return shown_line(*place), code if len(code) <= _LONGEST else ""
    return shown_line(*place), ""


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
    """The loops that this line is in, other than those over modules or functions that it calls.

    The innermost one comes first.
    """
    found = _loops(tuple(linecache.getlines(file)))
    around = [(file, first, last) for first, last in found if first <= line <= last]
    return sorted(around, key=lambda loop: loop[2] - loop[1])


def rounds_differ(loop: Loop, code: str) -> bool:
    """Whether code in a loop is about what the round is: else it may need the round before."""
    file, first, last = loop
    lines = linecache.getlines(file)[first - 1 : last]
    target = re.search(r"\bfor\b(.+?)\bin\b", " ".join(lines))
    names = set(re.findall(r"\w+", target[1])) - {"_"} if target else set()
    for line in lines:
        made = re.match(r"\s*(\w+)[^=(]*=(?!=)", line)
        if made and names.intersection(re.findall(r"\w+", line)):
            names.add(made[1])
    return not names.isdisjoint(re.findall(r"\w+", code))


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
            # layer(x), layers[i](x) and layer.forward(x), not row.mean()
            called = _names(*(x for x in calls if getattr(x, "attr", "forward") == "forward"))
            if called.isdisjoint(_names(*(getattr(one, "target", ast.Pass()) for one in heads))):
                found.append((node.lineno, node.end_lineno or node.lineno))
    return found


def _names(*nodes: ast.AST) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def lines_with(pattern: str) -> Iterator[tuple[str, int]]:
    """File and number of each line of the user's files that matches."""
    looked_for = re.compile(pattern)
    for file in _user_files():
        for number, line in enumerate(linecache.getlines(file)[:_MOST_LINES], 1):
            if looked_for.search(line.partition("#")[0]):
                yield file, number


def lines_until(pattern: str, file: str, first: int) -> list[tuple[str, int]]:
    """The lines of a file from one on, to the next that matches; none without one nearby."""
    text = linecache.getlines(file)[first - 1 : first - 1 + _NEARBY]
    last = next((i for i, line in enumerate(text) if re.search(pattern, line)), -1)
    return [(file, first + i) for i in range(last + 1)]


def _own_files() -> list[str]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return [*([main] if main else []), *cell_names()]


def _user_files() -> list[str]:
    """The program's own file first, then cells, then modules."""
    files = _own_files()
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files += [file for file in modules if isinstance(file, str) and file.endswith(".py")]
    return [file for file in dict.fromkeys(files) if is_user_code(file)][:_MOST_FILES]


def name_of(thing: Any) -> str:
    """The class of an object, for a sentence."""
    return printable(type(thing).__qualname__, 60)


class Statement(NamedTuple):
    """A statement of a function, with those in it.

    Attributes:
        makes: variables that it sets, wholly or in part; ``return`` is the result.
        uses: variables whose values it may need, with their attributes: ``self.weight``.
        is_sure: whether it runs each time that what is around it does.
    """

    first: int
    last: int
    makes: frozenset[str]
    uses: frozenset[str]
    is_sure: bool


# What these tell of a tensor is not its values.
_NOT_VALUES = {"shape", "size", "device", "dtype", "dim", "ndim", "numel", "is_cuda", "layout"}


@functools.lru_cache(maxsize=64)
def statements_of(file: str, line: int) -> tuple[Statement, ...]:
    """All statements of the function that begins on this line; of the file where that is 0."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    functions = (one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS))
    begin = (one for one in functions if line in (one.lineno, *_decorators(one)))
    function = next(begin, None) if line else tree
    return () if function is None else tuple(_statements(function.body, is_sure=True))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    return [one.lineno for one in function.decorator_list]


def _statements(body: list[ast.stmt], *, is_sure: bool) -> Iterator[Statement]:
    for one in body:
        if isinstance(one, (*_FUNCTIONS, ast.ClassDef)):
            continue
        makes, uses = frozenset(_makes(one)), frozenset(_uses(one))
        yield Statement(one.lineno, one.end_lineno or one.lineno, makes, uses, is_sure)
        sure = is_sure and isinstance(one, ast.With | ast.For)
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(one, part, []), is_sure=sure)
        for handler in getattr(one, "handlers", []):
            yield from _statements(handler.body, is_sure=False)


def _makes(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        inner: Any = node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value if re.search(r"[a-z]_$", node.func.attr) else None
        elif not isinstance(getattr(node, "ctx", None), ast.Store):
            inner = None
        while isinstance(inner, ast.Subscript | ast.Attribute):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(node, ast.Return):
            yield "return"


def _uses(node: ast.AST) -> Iterator[str]:
    chain, inner = [], node
    while isinstance(inner, ast.Attribute):
        chain.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        if chain[-1:] == [] or chain[-1] not in _NOT_VALUES:
            yield ".".join((inner.id, *reversed(chain)))
        return
    for part in ast.iter_child_nodes(inner):
        if not (isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "len"):
            yield from _uses(part)
