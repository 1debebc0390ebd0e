"""Progress on standard error: one line, not too often, and what may be shown of it."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from perfkit.base import progress
from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import Progress, left


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "nearly done"),
        (0.9, "nearly done"),
        (1, "about 1 s left"),
        (99, "about 99 s left"),
        (100, "about 2 min left"),
        (3600, "about 60 min left"),
    ],
)
def test_what_is_left(seconds: float, said: str) -> None:
    assert left(seconds) == said


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_file_gets_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.0, 10.9, 11.0, 11.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("sys.stderr", out := io.StringIO())
    shown = Progress()
    for text in ("one", "two", "three"):
        shown.line(text)
    shown.close()
    assert out.getvalue() == "one\nthree\n"


def test_a_terminals_line_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", out := _Terminal())
    shown = Progress()
    shown.line("x" * 120)
    shown.line("two\n")
    shown.close()
    shown.close()
    assert out.getvalue() == f"\r{'x' * 100}\r{'two�':<100}\n"


def test_who_gets_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", out := io.StringIO())
    said: list[str] = []
    Progress(said.append).line("one")
    Progress(False).line("two")
    assert said == ["one"]
    assert out.getvalue() == ""
    with pytest.raises(UsageError, match="say is True; give a function"):
        Progress(True)


def test_what_controls_a_terminal_is_not_printable() -> None:
    assert printable("a\x1b[1m\n\u202e") == "a�[1m��"
    assert printable("a\n\tb\r", lines=True) == "a\n\tb�"
    assert [printable("abcd", n) for n in (3, 4, None)] == ["ab…", "abcd", "abcd"]
