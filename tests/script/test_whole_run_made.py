"""What is said of a whole run: from both sides of each decision, of made spans of time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfkit.measure.tracker import StepTracker
from perfkit.script.options import Options
from perfkit.script.whole_run import (
    Times,
    _extras_missing,
    _nothing,
    _parts,
    _steps,
    whole_run,
)
from perfkit.trace.record.lines import NO_LINES


def seen(
    step_s: list[float] | None = None, *, first_s: float = 3.0, gap_s: float = 0.01, **known: Any
) -> Any:
    """Steps one after the other, the first one from second 2 on; ``gap_s`` between them."""
    spans, at = [], 2.0
    for seconds in [first_s, *(step_s or [])]:
        spans.append((at, at + seconds))
        at += seconds + gap_s
    usual: dict[str, Any] = {
        "meter": SimpleNamespace(n=len(spans), total_ns=1e9 * sum(b - a for a, b in spans)),
        "left_as_it_is": False, "account": None, "syncs": None,
    }  # fmt: skip
    recorder = SimpleNamespace(
        log=SimpleNamespace(times_s=spans, last_s=spans[-1][1]),
        sampled=SimpleNamespace(
            between=lambda begin, end: "train.py:7",
            of_steps=NO_LINES, of_workers=NO_LINES, of_processes=NO_LINES,
        ),
        n_foreign_steps=0, steps=4,
    )  # fmt: skip
    return SimpleNamespace(recorder=recorder, **(usual | known))


TIMES = Times(began_s=0.0, torch_s=1.0, ended_s=20.0)


def parts(found: Any, times: Times = TIMES, options: Options | None = None) -> dict[str, float]:
    made = _parts(times, options or Options(), found, None)
    return {one.what: one.seconds for one in made}


def test_the_parts_of_a_run_add_up_to_it() -> None:
    found = parts(seen([0.1] * 99))
    assert found == {
        "until torch was imported": 1.0,
        "set-up, until the first step began": pytest.approx(3.9),  # what is left is a step
        "100 steps (median 100 ms)": pytest.approx(10.0),
        "after the last step": pytest.approx(20 - 2 - 3 - 9.9 - 0.99),
        "perfkit itself, between steps": pytest.approx(0.99),
    }
    assert sum(found.values()) == pytest.approx(20.0)


@pytest.mark.parametrize(("torch_s", "is_told"), [(0.019, False), (0.021, True)])
def test_a_thousandth_of_the_run_is_worth_a_row(torch_s: float, is_told: bool) -> None:
    found = parts(seen([0.1] * 9), Times(0.0, torch_s, 20.0))
    assert ("until torch was imported" in found) is is_told


def test_a_run_without_torch_or_without_a_step() -> None:
    without = whole_run("train.py", "finished", Times(0.0, None, 20.0), Options(), None)
    assert [(one.what, one.seconds) for one in without.parts] == [
        ("the program, without torch", 20.0)
    ]
    none = seen()
    none.recorder.log.times_s = []
    assert parts(none) == {"until torch was imported": 1.0, "the program, without a step": 19.0}
    assert "1 step (median 3.00 s)" in parts(seen())


def test_steps_that_perfkit_slowed_have_a_row_of_their_own() -> None:
    options = Options(memory=True, memory_steps=2)
    found = parts(seen([0.5, 0.4] + [0.1] * 60), options=options)
    assert found["beyond that, in steps 2 to 3 (slower with --memory)"] == pytest.approx(0.7)
    assert not [what for what in found if "slow step" in what]


def nothing(n_steps: int = 0, ended: str = "finished", **known: Any) -> str:
    times = Times(0.0, 1.0, 20.0, known.pop("elsewhere", False))
    found: Any = seen(**known) if known.pop("torch", True) else None
    if found is not None:
        found.recorder.n_foreign_steps = known.get("n_foreign_steps", 0)
        found.meter.n = n_steps
    return _nothing("train.py", ended, times, Options(warmup=3), found, "a reason")


def test_why_no_step_was_recorded() -> None:
    assert "raised ValueError before its first step" in nothing(ended="raised ValueError")
    assert "did not import torch in this process" in nothing(torch=False)
    for known in ({"n_foreign_steps": 9}, {"torch": False, "elsewhere": True}):
        said = nothing(**known)  # type: ignore[arg-type]
        assert said.startswith("No step was seen in the main thread of train.py, the only one that")
        assert "put `with perfkit.profile() as prof:` around the loop there" in said
    assert "a loop without one (an evaluation)" in nothing()
    assert nothing(7, "was ended by Ctrl-C", left_as_it_is=True) == (
        "train.py was ended by Ctrl-C, in step 8: a reason."
    )
    assert nothing(3).startswith("train.py made 3 steps, and the first 3 were let pass")
    assert nothing(4) == "None of the 4 steps of train.py was recorded: a reason."


@pytest.mark.parametrize(
    ("options", "known", "n_steps", "ended", "said"),
    [
        ({}, {}, 9, "finished", []),
        ({"synclint": True}, {}, 1, "finished", ["--synclint found nothing to look at in 1 step:"]),
        ({"synclint": True}, {"syncs": ()}, 1, "finished", []),
        ({"memory": True}, {}, 9, "finished", ["--memory found nothing to look at in 9 steps: it"]),
        ({"memory": True}, {"left_as_it_is": True}, 9, "hung", ["--memory: only the thread that"]),
        (
            {"memory": True, "synclint": True}, {"left_as_it_is": True}, 9, "hung",
            ["--memory and --synclint: only the thread that hangs"],
        ),
        ({}, {"left_as_it_is": True}, 9, "hung", []),
        (
            {"memory": True}, {"account": SimpleNamespace(out_of_memory=False)}, 9,
            "ran out of memory", ["memory ran out in step 10, after those that were counted"],
        ),
        (
            {"memory": True}, {"account": SimpleNamespace(out_of_memory=True)}, 9,
            "ran out of memory", [],
        ),
    ],
)  # fmt: skip
def test_what_was_asked_for_and_is_missing(
    options: dict[str, Any], known: dict[str, Any], n_steps: int, ended: str, said: list[str]
) -> None:
    found = _extras_missing(Options(**options), seen(**known), n_steps, ended)
    assert [one[: len(told)] for one, told in zip(found, said, strict=True)] == said


def stepped(step_ms: Any, **known: Any) -> Any:
    """A run of these steps, as far as their figures need it."""
    run = StepTracker()
    for ms in step_ms:
        run.step_ended(0, round(1e6 * ms), (0, None))
    vars(run).update({"samples": None, "samples_at": None} | known)
    others_s = (step_ms[1:] / 1e3).tolist()
    return seen(others_s, meter=run.meter, run=run)


@pytest.mark.parametrize(("n_steps", "is_told"), [(79, False), (80, True)])
def test_a_drift_is_told_where_few_of_the_steps_were_recorded(n_steps: int, is_told: bool) -> None:
    """Four were, and take longer: of fewer than twenty times as many that looks like a drift."""
    found = stepped(np.linspace(10, 13, n_steps))
    steps = _steps("train.py", "finished", TIMES, Options(), found)
    assert steps.step is not None
    assert (steps.drift is not None) is is_told
    assert any(said.startswith("drift") for said in steps.step.warnings) is is_told


@pytest.mark.parametrize(
    ("n_steps", "known", "rates"),
    [
        (1, {"samples": 8, "samples_at": 8}, (None, None)),
        (2, {}, (10.0, None)),
        (9, {"samples": 72, "samples_at": 8}, (10.0, 80.0)),
        (9, {"samples": 72}, (10.0, None)),  # how many the first step had is not known
        (9, {"samples_at": 8}, (10.0, None)),  # a later batch had no size
        (9, {"samples": 8, "samples_at": 8}, (10.0, None)),
    ],
)
def test_the_rates_of_a_run_are_those_without_its_first_step(
    n_steps: int, known: dict[str, int], rates: tuple[float | None, float | None]
) -> None:
    """It takes 3 s, the others a tenth each."""
    found = stepped(np.array([3000.0, *[100.0] * (n_steps - 1)]), **known)
    steps = _steps("train.py", "finished", TIMES, Options(), found)
    assert steps.step is not None
    assert steps.step.median == (3000.0 if n_steps == 1 else 100.0)
    assert (steps.steps_per_s, steps.samples_per_s) == pytest.approx(rates)


def test_steps_that_take_no_time_have_no_rates() -> None:
    found = stepped(np.array([3000.0, 0.0, 0.0]), samples=24, samples_at=8)
    steps = _steps("train.py", "finished", TIMES, Options(), found)
    assert (steps.steps_per_s, steps.samples_per_s) == (None, None)


def test_rounding_makes_no_rate_of_the_only_step() -> None:
    found = stepped(np.array([3000.0]), samples=8, samples_at=8)
    found.meter.total_ns += 1
    steps = _steps("train.py", "finished", TIMES, Options(), found)
    assert (steps.steps_per_s, steps.samples_per_s) == (None, None)


@pytest.mark.parametrize(
    ("options", "row"),
    [
        (Options(synclint=True), "2 to 4 (slower with --synclint)"),
        (Options(memory=True, synclint=True), "2 to 5 (slower with --memory and --synclint)"),
    ],
)
def test_waits_are_looked_for_in_two_steps_and_the_look_ends_in_the_next(
    options: Options, row: str
) -> None:
    found = parts(seen([0.5] * 4 + [0.1] * 60), options=options)
    assert [what for what in found if what.startswith("beyond that, in steps")] == [
        f"beyond that, in steps {row}"
    ]


def test_of_a_run_that_did_not_import_torch_nothing_is_doubtful() -> None:
    options = Options(memory=True, synclint=True)
    run = whole_run("train.py", "finished", Times(0.0, None, 3.0), options, None)
    assert (run.n_steps, run.steps, run.uses_loader, run.warnings) == (0, None, False, ())
    assert run.sentence.startswith("train.py did not import torch in this process")


@pytest.mark.parametrize(
    ("n_steps", "doubt", "warnings"),
    [
        (0, "", ()),
        (9, "", ("--synclint: only the thread that hangs can end what looks there",)),
        (
            9, "a doubt",
            ("a doubt", "--synclint: only the thread that hangs can end what looks there"),
        ),
    ],
)  # fmt: skip
def test_what_is_doubtful_of_a_run_that_hangs(
    n_steps: int, doubt: str, warnings: tuple[str, ...]
) -> None:
    found = stepped(np.full(9, 100.0), uses_loader=False)
    found.meter.n = n_steps
    found.left_as_it_is, found.failures = True, ()
    found.recorder.failure = None
    found.state = SimpleNamespace(findings=(), live=SimpleNamespace(memory=[]))
    found.run.phases = SimpleNamespace(
        doubt=doubt, are_sure=not doubt, failure=None, told=lambda ns: ns
    )
    run = whole_run("train.py", "hung", TIMES, Options(synclint=True), found)
    assert run.warnings == warnings
    assert run.n_steps == n_steps
