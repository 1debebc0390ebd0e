"""An exception and those that it came from."""

from __future__ import annotations

from collections.abc import Iterator


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes and contexts, each once (a chain may lead back to itself)."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]
