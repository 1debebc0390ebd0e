"""What results say, in files that a reviewer reads: ``tests/golden``.

A sentence that changes is changed there, too, in the same commit::

    PERFKIT_GOLDEN=write pytest tests/test_golden.py

What is recorded is exact; of a result that is made by a run, every figure is a ``#``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from real_results import result, result_types
from real_traces import FILES, FOLDER
from simulated_traces import cpu_training, gpu_training, product_on_gpu

import perfkit
from perfkit.advice.trace_report import trace_report
from perfkit.course.kit.simulated_cases import BUSY, CASES
from perfkit.course.kit.simulated_gpu import simulate

GOLDEN = Path(__file__).parent / "golden"
# What is asked beside the report, which has the other answers' tables.
ASKED = (
    "communication", "copies", "critical-path", "idle", "kernels", "limit", "queue", "sequences",
    "syncs", "waterfall",
)  # fmt: skip
# Their sentences follow the clock, the machine's state or torch's version.
NOT_THE_SAME = {
    "ABResult", "Comparison", "CompileReport", "Energy", "Flops", "GraphBreak", "LargestBatch",
    "LaunchedRun", "LeakReport", "Machine", "MemoryAccount", "MemoryCurve", "MemoryNow", "Modules",
    "Peaks", "Profiling", "Provenance", "RankedRun", "Recompilation", "RunResult", "RunSummary",
    "RunsComparison", "SourceLines", "Summary", "Sweep", "Tuning", "WholeRun",
}  # fmt: skip
RUN_HERE = {
    "AllocatorHistory", "Crossing", "Crossings", "Fit", "FormatCount", "Replayed",
    "SameResult", "SyncLine", "SyncLines",
}  # fmt: skip


def _said(result: Any) -> str:
    """The first screen, and then all of it."""
    first, everything = str(result), result.to_text()
    return first if first == everything else f"{first}\n\n--- all of it\n{everything}"


def _of_trace(source: Any) -> str:
    opened = perfkit.open_trace(source)
    profile = opened.to_dict()
    found = [{k: one[k] for k in ("rule", "gain_at_most", "line")} for one in profile["findings"]]
    said = {"bound_by": profile["bound_by"], "findings": found}
    answers = (f"--- {name}\n{opened.ask(name).to_text()}" for name in ASKED)
    return "\n\n".join([_said(opened.profile), f"--- json\n{_json(said)}", *answers])


def _json(said: Any) -> str:
    short = json.loads(json.dumps(said), parse_float=lambda n: float(f"{float(n):.3g}"))
    return json.dumps(short, indent=1)


def _of_ranks() -> str:
    files = [GOLDEN / "traces" / f"tworanks_r{rank}.json.gz" for rank in (0, 1)]
    return _said(trace_report(files))


def _of_result(cls: type) -> str:
    said = _said(result(cls))
    if cls.__name__ in RUN_HERE:
        said = re.sub(r"\n(measured here|predicted|simulated): .* UTC", "", said)
        said = re.sub(r"< (?=\d)", "", said)  # < 0.1 %
        said = re.sub(r"[-+]?\d[\d,.]*( [KMGT]?i?B| [mµ]?s)?\b", "#", said)
        said = re.sub(r"  +|─+", " ", said)
    return said


def _cases() -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {}
    beside = [] if FOLDER is None else sorted((FOLDER.parent / "h200" / "traces").glob("*.json*"))
    ours = sorted((GOLDEN / "traces").glob("*.json*"))
    named = [(path.name, path) for path in ours]
    named += [(f"h200_{path.name}", path) for path in beside]
    named += [(f"real_{path.name}", path) for path in FILES]
    for name, path in named:
        found.setdefault(f"trace_{name.partition('.')[0]}", partial(_of_trace, path))
    made = {
        "cpu": lambda: cpu_training().json(),
        "gpu": lambda: gpu_training().json(),
        "gpu_waits": lambda: gpu_training(wait=300, item=True, python=200).json(),
        "product": product_on_gpu,
    }
    for name, make in made.items():
        found[f"made_{name}"] = lambda make=make: _of_trace(make())
    for name, training in {**CASES, "busy": BUSY}.items():
        found[f"made_lesson_{name}"] = lambda t=training: _of_trace(simulate(t))
    found["ranks"] = _of_ranks
    for cls in result_types():
        if cls.__name__ not in NOT_THE_SAME and ".course." not in cls.__module__:
            twice = [c.__name__ for c in result_types()].count(cls.__name__) > 1
            room = f"{cls.__module__.split('.')[1]}_" if twice else ""
            found[f"result_{room}{cls.__name__}"] = partial(_of_result, cls)
    return found


CASES_BY_NAME = _cases()


@pytest.mark.parametrize("name", CASES_BY_NAME)
def test_it_says_what_the_file_says(name: str) -> None:
    said = CASES_BY_NAME[name]().rstrip() + "\n"
    said = "\n".join(line.rstrip() for line in said.split("\n"))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PERFKIT_GOLDEN") == "write":
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")
