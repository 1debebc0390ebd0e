"""Lesson 02: its simulated steps, the texts for the CPU counterpart, and the exercise."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from perfkit.base.display import Shown
from perfkit.base.words import fmt_ratio, fmt_share
from perfkit.course.kit.achievable import achievable_tflop_per_s
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.simulated_cases import BUSY, CASES
from perfkit.course.kit.simulated_gpu import (
    BOUNDS,
    SimulatedTraining,
    simulate,
    what_bounds,
    what_if,
)
from perfkit.measure.clock import clock_in_use
from perfkit.show import strip
from perfkit.show.document import Document, document_for
from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.steps import find_steps

__all__ = [
    "BUSY",
    "CASES",
    "Pace",
    "StepStrip",
    "achievable_tflop_per_s",
    "anonymous_steps",
    "documents",
    "name_the_bound",
    "operators_per_step",
    "pace",
    "step_strip",
    "tokens",
    "what_if_table",
]


# ---- to look at --------------------------------------------------------------------------


@dataclass(frozen=True)
class StepStrip(Shown):
    """One typical step: a picture if possible, else text."""

    strip: strip.Strip | None

    __repr__ = Shown.__str__


@document_for(StepStrip)
def _step_strip(shown: StepStrip) -> Document:
    if shown.strip is None:
        return Document("step", "No step was found in this trace.")
    picture = strip.StepStrip(shown.strip, folds=False, alone=True)
    return Document("step", shown.strip.title, pictures=(picture,))


def step_strip(trace: Trace) -> StepStrip:
    """The median step of a trace, host above device."""
    return StepStrip(strip.strip_of(trace))


def what_if_table(trainings: Mapping[str, SimulatedTraining]) -> str:
    """A table of how many times as fast each simulated step would be without each cause."""
    head = {"compute": "a GPU twice as fast"}
    titles = [head.get(cause, f"no {cause}") for cause in BOUNDS]
    lines = [f"{'':<9}" + "".join(f"{title:>{len(title) + 3}}" for title in titles)]
    for name, training in trainings.items():
        ratios = what_if(training)
        cells = (f"{ratios[c]:>{len(t) + 2}.2f}×" for c, t in zip(BOUNDS, titles, strict=True))
        lines.append(f"{name:<9}" + "".join(cells))
    return "\n".join(lines)


# ---- the twin, measured here -------------------------------------------------------------

_WORDS = 1000
_WORD = re.compile(r"w(\d+)")


def documents(n: int = 64, *, words: int = 12_000, seed: int = 0) -> list[str]:
    """Generated texts of ``words`` words each, the same on every machine: ``w17 w902 …``."""
    made = random.Random(seed)
    return [" ".join(f"w{made.randrange(_WORDS)}" for _ in range(words)) for _ in range(n)]


def tokens(text: str, length: int) -> list[int]:
    """The first ``length`` words of a text as numbers, after tokenising all of it."""
    found = [int(number) for number in _WORD.findall(text.lower())]
    return found[:length]


def operators_per_step(trace: Trace) -> float:
    """Operators per step of a recorded trace, including nested ones; the mean over its steps."""
    steps = find_steps(trace)
    inside = trace.is_a(Category.OP) & (steps.containing(trace.start_ns) >= 0)
    return float(inside.sum()) / max(len(steps), 1)


@dataclass(frozen=True)
class Pace:
    """How a piece of work runs, without a profiler.

    Attributes:
        busy: processor time of this process over wall time, as in ``top``: 1.0 is one core.
        seconds: wall time of a call.
    """

    busy: float
    seconds: float


def pace(work: Callable[[], object], *, calls: int = 5, rounds: int = 6) -> Pace:
    """Call ``work`` several times and measure how busy the processor is; includes device work.

    The fastest round counts, because others were disturbed by other programs.
    """
    clock = clock_in_use()
    work()
    found = []
    for _ in range(rounds):
        clock.settle()
        began, used = clock.now(), time.process_time()
        for _ in range(calls):
            work()
        clock.settle()
        wall = max(clock.now() - began, 1) / 1e9
        found.append(Pace((time.process_time() - used) / wall, wall / calls))
    return min(found, key=lambda one: one.seconds)


# ---- the exercise ------------------------------------------------------------------------

# What the reader sees, by letter. D and F are the tricky ones: a waiting host costs nothing while
# the device works.
_STEPS: Mapping[str, SimulatedTraining] = {
    "A": SimulatedTraining(batch=24, width=384),
    "B": SimulatedTraining(batch=1024, loader_us=8_000, item_at_end=True),
    "C": SimulatedTraining(batch=4096, items=8, python_us=900),
    "D": SimulatedTraining(batch=4096, item_at_end=True),
    "E": SimulatedTraining(batch=1024, pinned=False, input_bytes=77_000_000),
    "F": SimulatedTraining(batch=4096, loader_us=5_000),
}
_SEEDS = (1, 2)

Answer = Callable[[Trace], Any]


def anonymous_steps() -> dict[str, Trace]:
    """The exercise's simulated steps by letter, without names."""
    return {letter: _simulated(training) for letter, training in _STEPS.items()}


@lru_cache(maxsize=64)
def _simulated(training: SimulatedTraining) -> Trace:
    return simulate(training, steps=3)


def _varied(training: SimulatedTraining, seed: int) -> SimulatedTraining:
    """A similar training with other sizes."""
    made = random.Random(seed)

    def about(value: float) -> float:
        return value * made.uniform(0.9, 1.15)

    return replace(
        training,
        batch=round(about(training.batch)),
        loader_us=about(training.loader_us),
        python_us=about(training.python_us),
        input_bytes=round(about(training.input_bytes)),
    )


def _named(answer: Answer, training: SimulatedTraining) -> str:
    said = answer(_simulated(training))
    if said is None:
        raise NotYet("your function returns nothing yet: return one word")
    if not isinstance(said, str) or said not in BOUNDS:
        shown = repr(said)[:60]
        raise NotYet(f"return one of {', '.join(BOUNDS)}, not {shown}")
    return said


def _show(answer: Answer) -> Message:
    items = []
    for letter, training in _STEPS.items():
        said = _named(answer, training)
        split = breakdown(_simulated(training))
        host = split.shares()
        most = max(host, key=lambda name: host[name])
        busy = 1 - split.device_shares()["idle"]
        items.append(
            f"{letter}: {said} (host mostly: {most}, {fmt_share(host[most])}; "
            f"device busy {fmt_share(busy)})"
        )
    return Message("You say of the six simulated steps", items=tuple(items))


def _check(answer: Answer) -> list[str]:
    said = {letter: _named(answer, training) for letter, training in _STEPS.items()}
    for letter, training in _STEPS.items():
        _compare(f"step {letter}", said[letter], training)
    for seed in _SEEDS:
        for letter, training in _STEPS.items():
            other = _varied(training, seed)
            _compare(f"a step like {letter}, of another size", _named(answer, other), other)
    return [
        "all six steps: " + ", ".join(f"{letter} {word}" for letter, word in said.items()),
        f"and {len(_SEEDS) * len(_STEPS)} similar steps of other sizes",
        "in D and F the host mostly waits, which costs the device next to nothing",
    ]


_WITHOUT = {
    "data": "Without its wait for data",
    "launch": "With a host that launches at once",
    "sync": "Without its syncs",
    "copy": "Without its copies",
}


def _compare(which: str, said: str, training: SimulatedTraining) -> None:
    """Refute a wrong answer with the simulation: how little acting on it would help."""
    truth = what_bounds(training)
    if said == truth:
        return
    ratios = what_if(training)
    if said == "compute":
        raise NotYet(
            f"{which}: not compute. Without one of the other causes it would be "
            f"{fmt_ratio(ratios[truth])} as fast: what does the device wait for?"
        )
    little = f"{_WITHOUT[said]}, {which} would be {fmt_ratio(ratios[said])} as fast"
    if truth == "compute":
        raise NotYet(f"{little}: next to nothing. How much of this step is the device idle?")
    raise NotYet(f"{little}; without another cause {fmt_ratio(ratios[truth])}. Which one?")


name_the_bound = Exercise(
    "name what bounds a step",
    spec=(
        "name_bound(trace) returns one word: data, launch, sync, copy or compute.",
        "The word names what costs the device most time; compute, if no loss is worth removing.",
        "It must work for any trace with a device.",
    ),
    hints=(
        "What the host does says little: it may wait while the device works. Ask what the device "
        "loses, and to which cause.",
        "perfkit.trace.idle(trace).shares() gives cause → share of the step. A cause that takes "
        "less than a fifth (0.2) of the step does not bound it: then it is compute.",
        "A transfer keeps the device from computing as well, but it is no idle time: add "
        'perfkit.trace.breakdown(trace).device_shares()["copy"] to the share of "copy".',
        "lost = perfkit.trace.idle(trace).shares(); add the copies; "
        "worst = max(lost, key=lost.get); return worst if lost[worst] >= 0.2, else compute.",
    ),
    show=_show,
    check=_check,
)
