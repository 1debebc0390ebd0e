"""How blocks of ``perfkit.ab`` are planned, with arms that are made: no child process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfkit.base.errors import MeasurementError, WorkloadKilledError
from perfkit.experiment.compare._arm import Arm, Limits
from perfkit.experiment.compare._blocks import Block, Blocks, _Cut
from perfkit.experiment.compare.ab import _Measuring
from perfkit.experiment.process.events import Event, Points, StateChanged
from perfkit.experiment.process.result import RunResult


def _workload(settings: Any) -> Iterator[None]:
    yield


def blocks(*, budget_s: float = 60.0, min_blocks: int = 6, **arm: float) -> Blocks:
    """With both arms alive."""
    made = Blocks(
        _workload, (), ({}, {}), Limits(),
        budget_s=budget_s, min_blocks=min_blocks, names=("old", "new"),
    )  # fmt: skip
    made._arms = {  # type: ignore[assignment]
        0: SimpleNamespace(step_s=arm.get("step_s", 0.001), start_s=arm.get("start_s", 0.1)),
        1: SimpleNamespace(step_s=0.001, start_s=0.1),
    }
    return made


@pytest.mark.parametrize(
    ("known", "letter_s"),
    [
        ({}, 0.25),
        ({"step_s": 0.1}, 0.6),  # six steps of the slower arm
        ({"start_s": 7.9}, 1.0),  # an eighth of both starts
        ({"step_s": 1.0}, 2.5),  # a quarter of a block's share of the budget
        ({"step_s": 1.0, "budget_s": 1.0}, 0.25),  # and no less than that
    ],
)
def test_a_letter_is_long_against_interruptions_and_steps(
    known: dict[str, float], letter_s: float
) -> None:
    assert blocks(**known)._letter_s() == pytest.approx(letter_s)


@pytest.mark.parametrize(("start_s", "stays"), [(14.8, False), (15.2, True)])
def test_processes_are_kept_where_their_start_takes_one_and_a_half_blocks(
    start_s: float, stays: bool
) -> None:
    made = blocks(start_s=start_s)  # of 10 s a block; the other one starts in 0.1 s
    assert made._must_stay() is stays
    assert bool(made.warnings) is stays


def _cut(state: str, *, together: bool = True) -> _Cut:
    run: Any = object.__new__(RunResult)
    for name, value in (("state", state), ("message", "a reason"), ("traceback_text", "")):
        object.__setattr__(run, name, value)
    return _Cut(1, run, together)


def test_without_memory_for_both_they_run_one_after_the_other() -> None:
    made = blocks()
    made._bear(_cut("out of memory"))
    assert made._apart
    assert "there was no memory for both arms at once" in made.warnings[0]
    for alone in (made, blocks()):
        with pytest.raises(Exception, match=r"new: a reason"):
            alone._bear(_cut("out of memory", together=alone is made))


def test_a_block_that_was_cut_off_is_measured_twice_more() -> None:
    made = blocks()
    for n in (1, 2):
        made._bear(_cut("killed"))
        assert len(made.warnings) == n
    assert made.warnings[0].startswith("a run of 'new' was cut off (a reason)")
    with pytest.raises(WorkloadKilledError, match="new: a reason"):
        made._bear(_cut("killed"))


@pytest.mark.parametrize(
    ("times", "means"), [({0: [1.0, 3.0], 1: [4.0]}, (2.0, 4.0)), ({0: [1.0], 1: []}, None)]
)
def test_a_block_needs_a_step_of_each(
    times: dict[int, list[float]], means: tuple[float, float] | None
) -> None:
    if means is None:
        with pytest.raises(MeasurementError, match="new: no step was measured in a block"):
            blocks()._block(times, "ABBA", True)
    else:
        found = blocks()._block(times, "ABBA", True)
        assert (found.a_ms, found.b_ms) == means


class _Session:
    """Makes the next steps, in ms, each time that it is parked."""

    def __init__(self, *_: Any, on_event: Callable[[Event], None], **__: Any) -> None:
        self.hears = on_event
        self.makes: Iterator[list[float]] = iter(())

    def start(self, **_: Any) -> None:
        self.park()
        self.resume()

    def resume(self) -> None:
        self.hears(StateChanged(1, "running"))

    def park(self) -> None:
        step_ms = np.array(next(self.makes))
        whole = np.zeros(len(step_ms), np.int64)
        self.hears(Points(1, whole, step_ms, step_ms, whole, whole == 0))
        self.hears(StateChanged(1, "paused"))


@pytest.mark.parametrize(
    ("makes", "counted"),
    [
        ([[9.0, 1.0], [9.0]], [9.0, 1.0, 9.0]),  # two steps are no letter: it works on
        ([[9.0, 1.0, 2.0]], [9.0, 1.0, 2.0]),
        ([[9.0, 1.0, 2.0, 3.0]], [9.0, 1.0, 2.0, 3.0]),
        ([[9.0, 1.0, 2.0, 3.0, 4.0]], [1.0, 2.0, 3.0, 4.0]),  # the first finds cold caches
    ],
)
def test_a_letter_has_three_steps_and_of_five_leaves_the_first_out(
    monkeypatch: pytest.MonkeyPatch, makes: list[list[float]], counted: list[float]
) -> None:
    monkeypatch.setattr("perfkit.experiment.compare._arm.Session", _Session)
    arm = Arm(_workload, (), {}, Limits())
    session: Any = arm._session
    session.makes = iter(makes)
    assert arm.letter(0.0).tolist() == counted
    assert next(session.makes, None) is None


def test_an_arm_works_until_a_step_beyond_its_warm_up_has_shown_how_long_steps_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perfkit.experiment.compare._arm.Session", _Session)
    monkeypatch.setattr("perfkit.experiment.compare._arm._WARM_UP_LOOK_S", 0.0)
    arm = Arm(_workload, (), {}, Limits(warmup=3))
    session: Any = arm._session
    session.makes = iter([[20.0], [9.0, 8.0], [4.0]])
    arm.begin()
    assert next(session.makes, None) is None
    assert arm.step_s == 0.004


class _Source:
    """Makes blocks that take 10 s each, by its own clock; every other one may be twice as slow."""

    def __init__(self, *, is_steady: bool) -> None:
        self.is_steady, self.n = is_steady, 0

    def monotonic(self) -> float:
        return 10.0 * self.n

    def next(self) -> tuple[Block, tuple[RunResult, ...]]:
        self.n += 1
        return Block(1.0 if self.is_steady else 1.0 + self.n % 2, 1.0, "ABBA"), ()

    def end(self) -> tuple[RunResult, ...]:
        return ()


@pytest.mark.parametrize(
    ("is_steady", "max_blocks", "budget_s", "stopped", "n_blocks"),
    [
        (True, 200, 1e4, "interval tight", 6),
        (False, 7, 1e4, "most blocks", 7),
        (False, 200, 70.0, "time budget", 7),
        (False, 200, 69.0, "time budget", 6),  # the seventh would overrun it
    ],
)
def test_when_blocks_end(
    monkeypatch: pytest.MonkeyPatch, is_steady: bool, max_blocks: int, budget_s: float,
    stopped: str, n_blocks: int,
) -> None:  # fmt: skip
    source: Any = _Source(is_steady=is_steady)
    monkeypatch.setattr("perfkit.experiment.compare.ab.time", source)
    quiet: Any = SimpleNamespace(line=lambda *_, **__: None)
    found = _Measuring(source, budget_s, None).until_clear(6, max_blocks, quiet)
    assert (found[0], source.n) == (stopped, n_blocks)
    assert found[1].n_blocks == n_blocks
