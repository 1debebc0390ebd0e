"""What a terminal shows: in colour, where somebody looks at it and has not said no."""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

import pytest
from simulated_traces import gpu_training

from perfkit.cli import main
from perfkit.show.palette import LOOKS

_CODE = re.compile(r"\x1b\[([\d;]*)m")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_bytes(gpu_training(wait=600).json())
    return str(path)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "96")


def _shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *words: str) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        assert main(list(words)) == 0
    return stream.getvalue()


def test_a_terminal_has_the_verdict_in_bold_and_classes_in_their_colours(
    monkeypatch: pytest.MonkeyPatch, trace: str
) -> None:
    plain = _shown(monkeypatch, io.StringIO(), "trace", trace)
    seen = _shown(monkeypatch, _Terminal(), "trace", trace)
    assert "\x1b" not in plain
    assert _CODE.sub("", seen) == plain
    first, *rest = seen.splitlines()
    assert first.startswith("\x1b[1m")
    bar = next(line for line in rest if "|" in line)
    r, g, b = (int(LOOKS["data wait"].fill[i : i + 2], 16) for i in (1, 3, 5))
    (code, *_) = _CODE.findall(bar)
    index = int(code.removeprefix("38;5;")) - 16
    cube = (0, 95, 135, 175, 215, 255)
    near = [cube[index // 36], cube[index // 6 % 6], cube[index % 6]]
    assert all(abs(one - want) <= 26 for one, want in zip(near, (r, g, b), strict=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert _shown(monkeypatch, _Terminal(), "trace", trace) == plain


def test_lines_are_as_long_as_the_terminal_is_wide_and_in_a_pipe_as_ever(
    monkeypatch: pytest.MonkeyPatch, trace: str
) -> None:
    wide = _shown(monkeypatch, io.StringIO(), "trace", trace)
    monkeypatch.setenv("COLUMNS", "72")
    assert _shown(monkeypatch, io.StringIO(), "trace", trace) == wide
    narrow = _CODE.sub("", _shown(monkeypatch, _Terminal(), "trace", trace))
    text = [line for line in narrow.splitlines() if not line.startswith("       ")]  # no code
    assert max(map(len, text)) <= 72 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()


def test_a_command_names_no_result_that_nobody_has(
    monkeypatch: pytest.MonkeyPatch, trace: str
) -> None:
    said = _shown(monkeypatch, io.StringIO(), "trace", trace)
    assert "More with -v: why" in said
    assert "print(result" not in said


def _help(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *words: str) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--help"])
    return stream.getvalue()


@pytest.mark.parametrize("command", [(), ("trace",)])
def test_help_has_colour_where_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    plain = _help(monkeypatch, io.StringIO(), *command)
    seen = _help(monkeypatch, _Terminal(), *command)
    assert "\x1b" not in plain
    assert _CODE.sub("", seen) == plain
    assert seen.startswith("\x1b[1musage:\x1b[0m perfkit")
    assert "\n  \x1b[36m-h, --help\x1b[0m  " in seen
    monkeypatch.setenv("NO_COLOR", "1")
    assert _help(monkeypatch, _Terminal(), *command) == plain


def test_the_colours_of_a_newer_argparse_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    its_own = "\x1b[1musage:\x1b[0m perfkit\n"
    monkeypatch.setattr(argparse.ArgumentParser, "format_help", lambda self: its_own)
    assert _help(monkeypatch, _Terminal()) == its_own


def test_doctor_says_yes_in_green(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r"^  \x1b\[32myes\x1b\[0m", _shown(monkeypatch, _Terminal(), "doctor"), re.M)
