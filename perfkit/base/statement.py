"""A source line as a person reads it: the whole statement where the line is only a part of it."""

from __future__ import annotations

import functools
import io
import linecache
import re
import tokenize

from perfkit.base.printable import printable

_LONGEST = 160
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
