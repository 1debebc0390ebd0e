"""From a recorded Python stack to one file and line of the user's code."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Kineto writes a frame as ``path(line): function``.
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
# Frames of Python, installed packages and perfkit are not the user's.
_NOT_THE_USERS = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python\d[\d.]*|torch|perfkit)[/\\]|^<"
)


@dataclass(frozen=True)
class Place:
    """A line of source code.

    Attributes:
        file: path as recorded.
        line: number of the line.
        function: the function it belongs to.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def user_place(stack: str) -> Place | None:
    """The innermost user frame; None if there is none.

    Args:
        stack: frames as ``path(line): function``, innermost first, joined by ``;``.
    """
    for frame in stack.split(";"):
        found = _FRAME.match(frame.strip())
        if found and not _NOT_THE_USERS.search(found["file"]):
            return Place(found["file"], int(found["line"]), found["function"])
    return None
