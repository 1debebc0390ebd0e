"""Messages are safe to print, whatever the input."""

from __future__ import annotations

import inspect
import pickle
import traceback
from pathlib import Path

import pytest

from perfkit import cli
from perfkit.base import errors

EVIL = "a\x1b[2Jb\nperfkit: all is well\u202e.json"
KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, errors.PerfkitError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_error_prints_what_a_terminal_would_obey(kind: type[errors.PerfkitError]) -> None:
    error = kind(f"cannot read {EVIL}")
    for said in (str(error), "".join(traceback.format_exception_only(error))):
        assert "\x1b" not in said
        assert "\u202e" not in said
    if kind is not errors.SyncFoundError:  # it has a line for each place
        assert "\n" not in str(error)
    assert error.args == (f"cannot read {EVIL}",)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "command",
    [
        ["trace", EVIL],
        ["compare-runs", EVIL, "b.jsonl"],
        ["synclint", EVIL],
        ["lab", EVIL],
        ["tour", EVIL],
        ["record", "--from", EVIL],
        [EVIL],
        ["doctor", EVIL],
    ],
)
def test_no_command_prints_a_name_raw(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(command)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code != 0
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said
    assert "\u202e" not in said
