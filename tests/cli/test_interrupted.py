"""Ctrl-C and SIGTERM end a command with one line, wherever they come."""

from __future__ import annotations

import runpy
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfkit.cli import main
from perfkit.course.kit import tutorial as copying


@pytest.fixture(autouse=True)
def signals_as_in_a_shell() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "perfkit: interrupted\n"),
        (signal.SIGTERM, 143, "perfkit: ended by SIGTERM\n"),
    ],
)
def test_a_command_says_that_it_was_ended(
    number: signal.Signals,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ended without a word; SIGTERM left the half of its copy behind."""

    def copied(*args: Any, **kwargs: Any) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(copying, "_digest", copied)
    assert main(["tutorial", str(tmp_path / "course")]) == code
    assert capsys.readouterr().err == said


def test_sigterm_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "claims.html"
    page.write_text("old")

    def replaced(self: Path, target: Path) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Path, "replace", replaced)
    assert main(["claims", "--records", str(tmp_path), "--html", str(page)]) == 143
    assert [one.name for one in tmp_path.iterdir()] == ["claims.html"]
    assert page.read_text() == "old"


def test_a_program_that_ignores_sigterm_still_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["tutorial", str(tmp_path / "course")]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_ctrl_c_while_the_command_is_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loading(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "perfkit.cli", Loading("perfkit.cli"))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("perfkit", run_name="__main__")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "perfkit: interrupted\n"


def test_ctrl_c_while_torchrun_is_loaded_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    from perfkit.script.ranks import torchrun

    monkeypatch.setitem(sys.modules, "torch.distributed.run", Loading("torch.distributed.run"))
    with pytest.raises(SystemExit, match="interrupted before the ranks were started"):
        torchrun.main()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (signal.default_int_handler, signal.SIG_DFL),
        (signal.SIG_IGN, signal.SIG_IGN),  # under nohup, and in the background of a script
    ],
)
def test_ctrl_c_as_the_process_ends_shows_nothing_of_its_inside(
    before: Any, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGINT, before)
    monkeypatch.setattr(sys, "argv", ["perfkit", "doctor", "--again"])
    with pytest.raises(SystemExit):
        runpy.run_module("perfkit", run_name="__main__")
    assert signal.getsignal(signal.SIGINT) is after
