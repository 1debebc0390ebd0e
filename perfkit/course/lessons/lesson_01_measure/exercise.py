"""The exercise of lesson 01: a timing loop that you can trust.

The answer is judged on a made-up device with a made-up clock, so that nothing depends on real time:
its first calls are slow, its work finishes later than it is launched, and one call in the middle is
interrupted.
"""

from __future__ import annotations

import math
import numbers
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message

Answer = Callable[..., Any]

_LAUNCH = 1.0  # made-up seconds that the host needs to launch one step
_WARM_UP = 200.0  # what the device needs for each of the first calls
# What it needs later, with one call interrupted. Mean, median and extremes all differ.
_FIRST_RUN = (20.0, 22.0, 21.0, 90.0, 23.0, 20.0, 24.0)
_SECOND_RUN = (30.0, 95.0, 33.0, 31.0, 34.0)


class _Rig:
    """A step on an asynchronous device, and a record of everything done with it."""

    def __init__(self, warmup: int, work: Sequence[float]) -> None:
        self._work = [_WARM_UP] * warmup + list(work)
        self._host = self._device = 0.0
        self.events: list[str] = []
        self.n_steps = 0
        self.readings: list[tuple[int, bool]] = []  # (steps so far, whether work was pending)

    def step(self) -> None:
        self.events.append("step")
        work = self._work[min(self.n_steps, len(self._work) - 1)]
        self.n_steps += 1
        self._host += _LAUNCH
        self._device = max(self._host, self._device) + work

    def synchronize(self) -> None:
        self.events.append("synchronize")
        self._host = max(self._host, self._device)

    def now(self) -> float:
        self.events.append("now")
        self.readings.append((self.n_steps, self._device > self._host))
        return self._host


def _ran(answer: Answer, warmup: int, work: Sequence[float]) -> tuple[Any, _Rig]:
    rig = _Rig(warmup, work)
    result = answer(rig.step, len(work), warmup, rig.synchronize, rig.now)
    if result is None:
        raise NotYet("your function returns nothing yet: return the median time of a step")
    return result, rig


def _show(answer: Answer) -> Message:
    result, rig = _ran(answer, 2, (20.0, 60.0, 21.0))
    events = " → ".join(rig.events) or "nothing"
    return Message(
        "With n=3, warmup=2 on a made-up device your function did, in this order:",
        (events,),
        (
            f"it returned {_brief(result)}",
            f"the device took {_WARM_UP:g} s for each warm-up step, then 20, 60 and 21 s; asking "
            f"for a step takes the host {_LAUNCH:g} s (all in made-up seconds)",
        ),
    )


def _check(answer: Answer) -> list[str]:
    for warmup, work in ((3, _FIRST_RUN), (1, _SECOND_RUN)):
        result, rig = _ran(answer, warmup, work)
        _judge(result, rig, warmup, work)
    n, warmup = len(_FIRST_RUN), 3
    return [
        f"{warmup + n} calls of step for warmup={warmup}, n={n}; the first {warmup} are not timed",
        f"{n} times, and the device had nothing left to do at any reading of the clock",
        "the median: one interrupted call of four times the length did not move it",
    ]


def _judge(result: Any, rig: _Rig, warmup: int, work: Sequence[float]) -> None:
    n = len(work)
    if isinstance(result, bool) or not isinstance(result, numbers.Real):
        raise NotYet(f"return one number, the median time of a step, got {type(result).__name__}")
    if rig.n_steps != warmup + n:
        raise NotYet(
            f"step was called {rig.n_steps} times; with warmup={warmup} and n={n} it must be "
            f"{warmup + n}: {warmup} that are not timed, then {n} that are"
        )
    if not rig.readings:
        raise NotYet("the clock was never read: call now(), not a clock of your own")
    _judge_readings(rig, warmup, n)
    _judge_value(float(result), warmup, work)


def _judge_readings(rig: _Rig, warmup: int, n: int) -> None:
    if "synchronize" not in rig.events:
        raise NotYet(
            "the clock was read while the device was still at work, and your function never waits "
            "for it: what you timed is how long it takes to ask"
        )
    first_at, first_pending = rig.readings[0]
    if first_at < warmup:
        raise NotYet(
            f"the clock was first read after {first_at} of {warmup} warm-up calls: begin to time "
            "when all of them are done"
        )
    if first_pending:
        raise NotYet(
            "the device was still busy with the warm-up when the clock was first read: its rest "
            "is counted as time of your first step. Wait before that reading, too"
        )
    if any(pending for _, pending in rig.readings):
        raise NotYet(
            "the clock was read while the device was still at work: wait for it after step() and "
            "before now(), each time"
        )
    missing = set(range(warmup, warmup + n + 1)) - {steps for steps, _ in rig.readings}
    if missing:
        raise NotYet(
            f"the clock was not read before and after each of the {n} timed calls: one time for "
            "many calls is a mean, in which one interruption hides"
        )


def _judge_value(result: float, warmup: int, work: Sequence[float]) -> None:
    times = [_LAUNCH + one for one in work]
    with_warm_up = [_LAUNCH + _WARM_UP] * warmup + times
    right = statistics.median(times)
    if math.isclose(result, right, rel_tol=1e-6):
        return
    known = (
        (statistics.mean(times), "the mean of the times: one interrupted call moved it"),
        (min(times), "the fastest time: what happens once is not what usually happens"),
        (max(times), "the slowest time"),
        (sum(times), "the sum of the times"),
        (statistics.median(with_warm_up), "the median with the warm-up counted"),
        (statistics.mean(with_warm_up), "the mean with the warm-up counted"),
    )
    said = next((words for value, words in known if math.isclose(result, value)), "")
    said = f", {said}" if said else ""
    raise NotYet(
        f"you returned {result:g}{said}; the times were {', '.join(f'{t:g}' for t in times)}, and "
        f"their median is {right:g}"
    )


def _brief(result: Any) -> str:
    text = repr(round(result, 3) if isinstance(result, float) else result)
    return text if len(text) <= 60 else f"{text[:60]}…"


time_one_step = Exercise(
    "a timing loop that you can trust",
    spec=(
        "time_step(step, n, warmup, synchronize, now) calls step() warmup times without timing it.",
        "Then it times n calls one by one, and returns the median time of one, in now()'s unit.",
        "Work that the device does after step() has returned counts, but only for its own call.",
    ),
    hints=(
        "Two loops: one that only calls step(), warmup times; one that times n calls and keeps "
        "each time in a list.",
        "Before each reading of the clock the device must have nothing left to do: "
        "synchronize() stands before start = now(), and again between step() and the second now().",
        "times.append(now() - start) ends the body of the second loop; "
        "statistics.median(times) is what to return.",
    ),
    show=_show,
    check=_check,
)
