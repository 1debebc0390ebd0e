"""A step is as long everywhere as it is without the profiler: verdict, bar, findings, waterfall."""

from __future__ import annotations

import re
import statistics
from dataclasses import fields
from pathlib import Path

import pytest

from perfkit.advice.profile import Profile, explain
from perfkit.trace import load
from perfkit.trace.record.facts import Facts
from perfkit.trace.record.lines import NO_LINES, Line, LineSamples
from perfkit.trace.record.recording import Cost, Recording
from perfkit.trace.record.step_log import Coverage

TRACES = Path(__file__).parents[1] / "golden" / "traces"
# Their own steps on an H200, in ms.
OWN_MS = {"gpt_launch": 13.5, "metrics_cpu": 1.75, "scaler_clip": 4.72, "workers_pageable": 40.1}


def _beside(program: str, *, line: str = "", n: int = 0, during: str = "") -> Profile:
    """Recorded steps, and later ones without the profiler, as one run has them.

    With n samples of a line, taken while an operator of that name ran.
    """
    trace, own_ms = load(TRACES / f"h200_{program}.json.gz"), OWN_MS[program]
    at_ns = trace.start_ns[trace.named(lambda name: during in name)][:n].tolist()
    sampled = Line("train.py", 7, "train.py:7", "step", line, n, 1.0, False, "torch")
    covered = Coverage(**{field.name: 0 for field in fields(Coverage)})
    recording = Recording(
        trace,
        n_steps_seen=40,
        n_steps_profiled=8,
        cost=Cost(1.5 * own_ms, own_ms, 6, 30, 0.1, 0.1, len(trace)),
        lines=LineSamples((sampled,), n, tuple((at, 0) for at in at_ns)) if n else NO_LINES,
        worker_lines=NO_LINES,
        process_lines=NO_LINES,
        facts=Facts(),
        raw=b"",
        coverage=covered,
        warnings=(),
        unprofiled_ms=(own_ms,) * 30,
    )
    return explain(recording)


@pytest.mark.parametrize("program", OWN_MS)
def test_the_step_is_as_long_everywhere(program: str) -> None:
    profile, own_ms = _beside(program), OWN_MS[program]
    assert profile.waterfall is not None
    assert profile.waterfall.step_ms == pytest.approx(own_ms, rel=0.01)
    assert profile.diagnosis.step_ms == pytest.approx(own_ms, rel=0.01)
    # a device works as long with the profiler as without
    steps = [step for step in profile.breakdown.steps if not step.is_empty]
    works_ms = sum(step.device_us["compute"] for step in steps) / len(steps) / 1e3
    assert profile.device_shares["compute"] * own_ms == pytest.approx(works_ms, rel=0.01)
    said = re.search(r"compute +([\d.]+) (ms|µs)", profile.to_text())
    assert said is not None
    shown_ms = float(said[1]) * (1e-3 if said[2] == "µs" else 1)
    assert shown_ms == pytest.approx(works_ms, rel=0.01)


def test_uneven_steps_of_a_file_are_as_long_everywhere() -> None:
    """What is paid: the mean, of which the shares are."""
    profile = explain(load(TRACES / "h200_workers_pageable.json.gz"))
    mean_ms = statistics.fmean(profile.breakdown.wall_ms)
    assert mean_ms > 1.05 * profile.step.median
    assert profile.diagnosis.step_ms == pytest.approx(mean_ms)
    assert profile.waterfall is not None
    assert profile.waterfall.step_ms == pytest.approx(mean_ms)
    assert f"{mean_ms:.1f} ms a step" in str(profile)
    assert f"Host ({mean_ms:.1f} ms" in profile.to_text()


def test_the_device_does_not_idle_for_longer_than_what_it_idles_for_takes() -> None:
    """On the host of a recorded step the profiler's own time counts, too."""
    profile = _beside("workers_pageable")
    host = next(f for f in profile.diagnosis.findings if f.rule == "host-python")
    said = re.search(r"idle for ([\d.]+) % of each step", " ".join(host.evidence))
    assert said is not None
    assert float(said[1]) <= 100 * profile.breakdown.shares()["other"]


@pytest.mark.parametrize(("n", "line"), [(9, "train.py:7: loss.backward()"), (3, None)])
def test_the_line_that_launches_is_the_samples_line(n: int, line: str | None) -> None:
    """Most launches of this model come from the backward pass; three samples show no line."""
    told = _beside("gpt_launch", line="loss.backward()", n=n, during="evaluate_function: Addmm")
    found = next(f for f in told.diagnosis.findings if f.rule == "launch-bound")
    assert found.line == line
    assert "come from the backward pass" in found.title
