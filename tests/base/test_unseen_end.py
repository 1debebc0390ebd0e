"""What leaves the process without Python's end is told first."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit.base.unseen_end import before_unseen_end


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What came of leaving, in order; nothing really leaves."""
    found: list[Any] = []
    monkeypatch.setattr(os, "_exit", lambda status: found.append(status))
    monkeypatch.setattr(os, "execv", lambda path, args: found.append(args))
    return found


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        (lambda: os._exit(3), ["ended with os._exit(3)", 3]),
        (lambda: os._exit(status=0), ["ended with os._exit(0)", 0]),
        (
            lambda: os.execv(sys.executable, ["python"]),
            ["was replaced by another program (os.exec)", ["python"]],
        ),
        (lambda: os.execv("/no/such", ["x"]), [["x"]]),
    ],
)
def test_it_is_told_before(calls: list[Any], leave: Any, told: list[Any]) -> None:
    left = os._exit
    with before_unseen_end(calls.append):
        leave()
    assert calls == told
    assert os._exit is left


def test_what_cannot_be_told_ends_all_the_same(calls: list[Any]) -> None:
    with before_unseen_end(lambda how: Path("/no/such").read_text()):
        os._exit(4)
    assert calls == [4]


def test_what_the_program_put_there_stays(calls: list[Any]) -> None:
    theirs = calls.append
    with before_unseen_end(calls.append):
        os._exit = theirs
    assert os._exit is theirs
