"""A user's script is type-checked: misspelt names and wrong types fail, and all else is known."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.advice.open_trace import OpenTrace
from perfkit.trace.ask import questions

ROOT = Path(__file__).parents[1]

SCRIPT = """\
from typing import assert_type

import perfkit
from perfkit.trace.ask.copies import Copies

batches: list[tuple[int, str]] = [(1, "a"), (2, "b")]

def step() -> None:
    perfkit.comparee(step, step)  # wrong

watched = perfkit.watch(batches)
for number, text in watched:
    assert_type((number, text), tuple[int, str])
    number.upper()  # wrong
sentence: str = watched.summary.sentence
watched.sumary  # wrong

profile = perfkit.profile(step)
print(profile.diagnosis, profile.diagnoses)  # wrong
with perfkit.profile() as region:
    step()
print(region.result.step.median, region.reslt)  # wrong

opened = perfkit.open_trace("trace.json")
assert_type(opened.copies(), Copies)
opened.copys()  # wrong
opened.critical_path(step=2).length  # wrong
opened.critical_path(stp=2)  # wrong
ratio: float = perfkit.compare(step, step).ratio
perfkit.compare(step, step, budget=3)  # wrong

try:
    perfkit.doctor().capability("bf16").availble  # wrong
except perfkit.PerfkitErorr:  # wrong
    pass
"""
WRONG = {n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


@pytest.mark.slow
def test_mypy_finds_what_is_wrong_and_no_more(script: Path) -> None:
    kept = f"--cache-dir={ROOT / '.mypy_cache' / 'user_script'}"  # without it: 20 s
    wanted = ["--strict", "--follow-imports=silent", kept, "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *wanted],
        capture_output=True,
        text=True,
        cwd=script.parent,
        env=os.environ | {"MYPYPATH": str(ROOT)},
    )
    found = re.findall(r"^script\.py:(\d+): error: ", done.stdout, re.M)
    assert {int(line) for line in found} == WRONG, done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_finds_what_is_wrong_and_no_more(script: Path) -> None:
    (script.parent / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]})
    )
    wanted = ["--outputjson", "--pythonpath", sys.executable, "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", *wanted],
        capture_output=True,
        text=True,
        cwd=script.parent,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {f["range"]["start"]["line"] + 1 for f in found if f["severity"] == "error"}
    assert lines == WRONG, done.stdout + done.stderr


def test_every_question_of_a_trace_has_its_type() -> None:
    """A new one needs its line in ``OpenTrace``."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = []
    for q in questions().values():
        called = inspect.signature(q.answer).replace(parameters=(own, *q.options))
        wanted.append(f"def {q.attribute}{called}: ...".replace("'", ""))
    assert re.findall(r"^ +(def .*: \.\.\.)$", inspect.getsource(OpenTrace), re.M) == wanted
