"""A lesson's notebook is run headless, and what its cells settle is recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.ledger import lesson_recorder, recorder
from perfkit.course.ledger.criteria import Criterion
from perfkit.course.ledger.lesson_recorder import Lesson, record_lessons
from perfkit.course.ledger.notebook import code_hash, read_notebook
from perfkit.course.ledger.records import read_record, read_records

pytest.importorskip("nbclient")

# Settles claims in the kernel without the lessons' own criteria.
SETUP = """\
import os, subprocess, sys
from perfkit.base.errors import MissingError
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.criteria import Criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.ledger.settle import LessonClaim

def judge(holds, n=1):
    if isinstance(holds, Exception):
        raise holds
    return Outcome(holds, {"n": Figure(n, "1", kind="exact")}, "n", "In /home/alice/data.")

def claim(name):
    one = Criterion(name, claims()[name].lessons[0], "made", "it is so", judge)
    return LessonClaim(claims()[name], one, ())
"""
CELLS = [
    SETUP,
    "raise SystemError('not-recorded')",  # tagged below
    'claim("A1").settle(True, int(float(os.environ["PERFKIT_BUDGET_SCALE"])))',
    'display(claim("A5").settle(None))',
    'claim("A8").settle(MissingError("needs two GPUs"))',
    'claim("A10").settle(ValueError("no good"))',
    'import no_such_package\nclaim("A9").settle(True)',
    '1 / 0\nclaim("A3").settle(True)',
    "open('left-behind', 'w').write(os.getcwd())\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],\n"
    "                         start_new_session=True)\n"
    "open(os.environ['TEST_PIDS'], 'w').write(f'{child.pid} {os.getcwd()}')\n"
    'claim("C2").settle(False, int(os.environ["CUDA_VISIBLE_DEVICES"] == ""))',
    'os.kill(os.getpid(), 9)\nclaim("C7").settle(True)',
    'claim("D2").settle(True)',
]
CLAIMS = {"A1": "00", "A5": "00", "A8": "04", "A10": "04", "A9": "06", "A3": "03", "C2": "00",
          "C7": "06", "D2": "01", "E1": "07"}  # fmt: skip


def lesson(folder: Path, *cells: str) -> Path:
    path = folder / "00-made.ipynb"
    content = {
        "cells": [
            {
                "cell_type": "code", "id": f"c{number}", "execution_count": None, "outputs": [],
                "metadata": {"tags": ["not-recorded"]} if "not-recorded" in source else {},
                "source": source.splitlines(keepends=True),
            }
            for number, source in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def wanted(*claims: str) -> tuple[Criterion, ...]:
    return tuple(Criterion(one, CLAIMS[one], "made", "it is so", lambda: None) for one in claims)


@pytest.mark.slow
def test_what_cells_settle_is_recorded_and_one_that_fails_costs_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(lesson_recorder, "doubts", lambda busy: ())
    path = lesson(tmp_path, *CELLS)
    before = path.read_bytes()
    done = record_lessons([Lesson(path, wanted(*CLAIMS))], tmp_path / "out", scale=3, device="cpu")
    assert path.read_bytes() == before
    found = {one.criterion.claim: one for one in done}
    assert {claim: one.state for claim, one in found.items()} == {
        "A1": "recorded", "A5": "not decided", "A8": "skipped", "A10": "failed", "A9": "skipped",
        "A3": "failed", "C2": "recorded", "C7": "failed", "D2": "failed", "E1": "failed",
    }, [one.reason for one in done]  # fmt: skip
    assert found["A8"].reason == "needs two GPUs"
    assert "ValueError: no good" in found["A10"].reason
    assert "no_such_package" in found["A9"].reason
    assert found["A3"].reason == "ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in found["A3"].details
    said = found["A1"].record.outcome.sentence
    assert said == "In /home/[user]/data.", "a record is made to be shared"
    assert found["C7"].reason.startswith("cell 10: its process was killed")
    assert found["E1"].reason == "no cell of 00-made.ipynb settles it"
    assert len(read_records([tmp_path / "out"]).records) == 2
    assert found["A1"].path is not None
    record = read_record(found["A1"].path)
    assert record.outcome.figures["n"].value == 3  # the scale reached the kernel
    assert record.budget_scale == 3
    assert record.notebook == "00-made.ipynb"
    assert record.notebook_hash == code_hash(read_notebook(path))
    assert record.provenance.kind == "recorded"
    assert record.provenance.command == "perfkit record --claim A1 --scale 3"
    assert record.warnings == ()
    other = found["C2"].record
    assert other is not None
    assert other.outcome.figures["n"].value == 1  # GPUs are hidden
    assert other.warnings == ("cell 7 of the lesson raised before this was settled",)
    pid, folder = (tmp_path / "pids").read_text().split()
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie"
    assert not Path(folder).exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["00-made.ipynb", "out", "pids"]


@pytest.mark.slow
def test_a_cell_that_hangs_costs_only_its_own_claim(tmp_path: Path) -> None:
    path = lesson(
        tmp_path,
        SETUP,
        'import time; time.sleep(600)\nclaim("C2").settle(True)',
        'claim("A1").settle(True)',
    )
    hung, other = record_lessons(
        [Lesson(path, wanted("C2", "A1"))], tmp_path / "out", device="cpu", cell_limit_s=6
    )
    assert hung.state == "failed"
    assert hung.reason == "TimeoutError: no end after 6 s"
    assert other.state == "recorded"


@pytest.mark.slow
def test_a_busy_machine_keeps_the_record_of_a_quiet_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lesson(tmp_path, SETUP, 'claim("A1").settle(True)')
    states: list[Any] = []
    for busy in (0.9, 0.0, 0.8):
        monkeypatch.setattr(lesson_recorder.psutil, "cpu_percent", lambda b=busy, **_: 100 * b)
        (done,) = record_lessons([Lesson(path, wanted("A1"))], tmp_path / "out", device="cpu")
        states.append(done.state)
    assert states == ["recorded", "recorded", "kept"]
    assert "the machine was busy: 80 %" in done.reason
    assert "of a quiet machine, stays" in done.reason
    (kept,) = read_records([tmp_path / "out"]).records
    assert not kept.was_busy


def test_without_nbclient_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "nbclient", None)
    path = lesson(tmp_path, SETUP, 'claim("A1").settle(True)')
    with pytest.raises(MissingError, match=re.escape("pip install '.[lab]'")):
        record_lessons([Lesson(path, wanted("A1"))], tmp_path / "out", device="cpu")


def test_a_kernel_that_cannot_start_fails_what_it_would_have_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson_recorder.psutil, "cpu_percent", lambda **_: 0.0)
    monkeypatch.setattr(
        "nbclient.NotebookClient.execute", lambda *_, **__: (_ for _ in ()).throw(KeyError("none"))
    )
    path = lesson(tmp_path, SETUP, 'claim("A1").settle(True)')
    (done,) = record_lessons([Lesson(path, wanted("A1"))], tmp_path / "out", device="cpu")
    assert (done.state, done.reason) == ("failed", "no Python kernel could be started ('none')")


@pytest.mark.parametrize("scale", [0, -1, float("inf"), float("nan")])
def test_a_scale_that_cannot_be(tmp_path: Path, scale: float) -> None:
    with pytest.raises(UsageError, match="the scale must be a positive number"):
        record_lessons([], tmp_path, scale=scale)


def test_doubts_name_a_busy_machine() -> None:
    assert recorder.doubts(0.1) == ()
    assert recorder.doubts(0.5)[0].startswith("the machine was busy: 50 %")
