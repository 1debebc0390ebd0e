"""The verdict on a watched run: one sentence, and the figures behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfkit.base.device import in_use
from perfkit.base.display import Shown
from perfkit.base.machine import Provenance, stamp
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.machine.dataloader_stats import DataLoaderStats
from perfkit.base.plain import fields
from perfkit.base.trend import Trend, drift_of
from perfkit.base.words import fmt_bound, fmt_bytes, fmt_ms, fmt_share, plural, which_steps
from perfkit.measure import slow_steps
from perfkit.measure.loader_cause import LoaderCause, loader_cause
from perfkit.measure.memory_looks import Footprint, Rise, rise
from perfkit.measure.meter import Array, Steps, means_of_neighbours
from perfkit.measure.paired import t_quantile
from perfkit.measure.phases import PHASES
from perfkit.measure.summary import DATA_BOUND_FROM, PARTLY_FROM, Summary, summarize

# A larger gain is not a prediction: something else would bound the step first.
_MOST_GAIN = 100
# One or two steps bound nothing: the loader's start and a cold cache are most of their time.
_FEWEST_STEPS = 3
# Further steps left out after the first: caches, cuDNN's choice of algorithm, compilation.
_WARM_UP_STEPS = 2
_WARM_UP_AWAY_FROM = 10
# The sentence mentions the loader's start if it takes a tenth of the run.
_STARTS_FROM = 0.1
# Memory creeps if it clearly grows, by more than caches do over the run: an allocator's counter is
# exact; what malloc has handed out also has the caches of Python and torch. Measured over 400
# steps: 12 to 45 KiB, most of it early; `total = total + loss` keeps 6.4 KiB a step, 2.3 MiB.
_CREEP_FROM_BYTES = {"allocated": 256 * 1024, "resident": 2**20}
# Of so many parts of the run, the median of each: noise does not rise seven times in a row.
_CREEP_PARTS = 8
_GROWING = {"allocated": "allocated memory", "resident": "memory in use (malloc)"}
_SHARE_BINS = 20
_CURVE_POINTS = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class RunFacts:
    """What was counted; filled in by :class:`~perfkit.measure.tracker.StepTracker`."""

    name: str
    ended: str
    n_steps: int
    n_epochs: int
    steps: Steps
    total_ms: float
    starts: tuple[tuple[int, float, float], ...]
    samples: int | None
    memory: tuple[tuple[int, Footprint], ...]
    wall_s: float
    update_s: float
    problems: tuple[str, ...] = ()
    n_unfinished: int = 0
    batch_size: int | None = None
    one_shot: bool = False
    busy: CpuContention | None = None
    during: Callable[[set[int]], str] = lambda _steps: ""
    loading: DataLoaderStats | None = None
    waits_known: bool = True  # False where no DataLoader was seen, and data may come otherwise
    phase_ns: tuple[int, ...] = ()  # of each of PHASES, of the whole run


@dataclass(frozen=True)
class MemoryUse:
    """Memory over the run, read once or twice a second between steps.

    Attributes:
        kind: ``"allocated"`` (CUDA allocator) or ``"resident"`` (this process).
        first_bytes, last_bytes, highest_bytes: among the readings; the true peak within a step may
            be higher.
        creep: how it grows, where it does so in every part of the run; else None.
            On a CPU what counts is memory in use, not the resident size (see
            :class:`~perfkit.measure.memory_looks.Footprint`).
    """

    kind: str
    label: str
    first_bytes: int
    last_bytes: int
    highest_bytes: int
    creep: Rise | None

    def to_dict(self) -> dict[str, Any]:
        per_step = None if self.creep is None else self.creep.per_step
        return fields(self, without=("creep",), creep_bytes_per_step=per_step)


@dataclass(frozen=True)
class PhaseTime:
    """A phase of the whole run, by the training thread's time on the host; and its share."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, eq=False)
class RunCurve:
    """The run to draw, at most 2000 points; with more steps, means of neighbours.

    Attributes:
        numbers: step numbers from 1; the first step of each epoch is left out.
    """

    numbers: Array
    step_ms: Array
    wait_ms: Array
    memory_numbers: Array
    memory_bytes: Array


@dataclass(frozen=True, eq=False)
class RunSummary(Shown):
    """The summary of a watched run.

    Attributes:
        ended: ``"finished"``, ``"ended after 80 of 100 batches"`` (by a break, a trainer's limit
            of steps, an exception), ``"interrupted"`` or what the loader raised.
        n_epochs: loops over the loader; a look at a single batch is none.
        step: duration of a step in ms, without warm-up and first steps of epochs; None if no step
            was completed.
        wait_share: data wait as a share of the time of these steps, between 0 and 1.
        wait_low, wait_high: its 95 % interval, over 20 stretches of the run; None for few steps.
        batch_size: samples in the largest batch; None if the size is unknown.
        samples_per_s, steps_per_s: over all steps, including the first ones.
        starts_ms: milliseconds until the first batch of each epoch arrived.
        drift: of the step time, if it is clear and at least 5 %.
        update_share: share of the run taken by live updates and looking at batches; not part of any
            step. The last update comes after the run, and counts as a part of it.
        n_unfinished: last steps of loops that never asked for another batch (the loop was left, or
            its driver counts batches). They are not timed and not counted elsewhere.
        busy: what else the machine was doing; None for very short runs.
        phases: where the time of the whole run went, all of it; empty where that was not watched.
        why_waiting: why the loader is slow; None if it is not, or if that is not known.
    """

    name: str
    sentence: str
    ended: str
    n_steps: int
    n_epochs: int
    wall_s: float
    step: Summary | None
    mean_step_ms: float | None
    wait_share: float | None
    wait_low: float | None
    wait_high: float | None
    batch_size: int | None
    samples_per_s: float | None
    steps_per_s: float | None
    starts_ms: tuple[float, ...]
    drift: Trend | None
    memory: MemoryUse | None
    update_share: float
    curve: RunCurve = field(repr=False)
    warnings: tuple[str, ...]
    provenance: Provenance
    n_unfinished: int = 0
    busy: CpuContention | None = None
    phases: tuple[PhaseTime, ...] = ()
    why_waiting: LoaderCause | None = None

    def to_dict(self) -> dict[str, Any]:
        """This summary as plain JSON types, without the curve."""
        phases_s = {one.name: one.seconds for one in self.phases}
        return fields(self, without=("phases",), phases_s=phases_s)


def summarize_run(facts: RunFacts) -> RunSummary:
    steps, notes = _steady(facts)
    step_ms = steps.step_ms
    step = summarize(step_ms, unit="ms") if len(step_ms) else None
    share, low, high = _wait_share(steps) if facts.waits_known else (None, None, None)
    per_s = 1e3 / facts.total_ms if facts.total_ms > 0 else None
    steps_per_s = facts.n_steps * per_s if per_s else None
    on_gpu = not in_use().is_cpu
    if step is not None:
        if on_gpu:
            notes.append(
                "times are the host's, between batches: the GPU runs behind, so single steps blur "
                "into one another while medians over many converge to the true step"
            )
        # the sentence mentions drift, with its own threshold
        notes += [w for w in step.warnings if not w.startswith("drift")]
    whole_s = max(facts.wall_s, facts.total_ms / 1e3 + facts.update_s)
    phases_ns = sum(facts.phase_ns)
    summary = RunSummary(
        name=facts.name,
        sentence="",
        ended=facts.ended,
        n_steps=facts.n_steps,
        n_epochs=facts.n_epochs,
        wall_s=facts.wall_s,
        step=step,
        mean_step_ms=float(step_ms.mean()) if len(step_ms) else None,
        wait_share=share,
        wait_low=low,
        wait_high=high,
        batch_size=facts.batch_size,
        samples_per_s=facts.samples * per_s if facts.samples and per_s else None,
        steps_per_s=steps_per_s,
        starts_ms=tuple(wait for _, _, wait in facts.starts),
        drift=drift_of(step_ms) if len(step_ms) else None,
        memory=_memory_use(facts.memory),
        update_share=facts.update_s / whole_s if whole_s > 0 else 0.0,
        curve=_curve(steps, facts.memory),
        warnings=(*notes, *facts.problems),
        provenance=stamp(
            "measured here",
            command=f"perfkit.watch({facts.name})",
            device=None if on_gpu else "cpu",
        ),
        n_unfinished=facts.n_unfinished,
        busy=facts.busy,
        phases=tuple(
            PhaseTime(name, ns / 1e9, ns / phases_ns)
            for name, ns in zip(PHASES, facts.phase_ns if phases_ns > 0 else (), strict=False)
        ),
        why_waiting=loader_cause(facts.loading, lost=share or 0.0),
    )
    return replace(summary, sentence=_sentence(facts, steps, summary))


def _steady(facts: RunFacts) -> tuple[Steps, list[str]]:
    """With the steps alone that represent the run: no first step of an epoch, no warm-up."""
    notes, numbers = [], facts.steps.numbers
    keep = ~np.isin(numbers, [number for number, _, _ in facts.starts])
    if facts.n_steps >= _WARM_UP_AWAY_FROM:
        keep &= numbers > _WARM_UP_STEPS
    if facts.n_steps and not keep.any():
        keep = np.ones_like(keep)
        notes.append("every step is the first of its epoch: starting the loader is part of each")
    return facts.steps.at(keep), notes


def _wait_share(run: Steps) -> tuple[float | None, float | None, float | None]:
    """Data wait over step time, with the interval of a ratio estimator over stretches of the run.

    Neighbouring steps are dependent (workers deliver in bursts); stretches hardly are. Cochran,
    Sampling Techniques, 6.4.
    """
    step_ms, wait_ms = run.step_ms, run.wait_ms
    total = float(step_ms.sum())
    if total <= 0:
        return None, None, None
    share = float(wait_ms.sum()) / total
    m = min(_SHARE_BINS, len(step_ms) // 2)
    if m < 3:
        return share, None, None
    edges = np.linspace(0, len(step_ms), m + 1).astype(int)[:-1]
    steps, waits = np.add.reduceat(step_ms, edges), np.add.reduceat(wait_ms, edges)
    residual = waits - share * steps
    error = math.sqrt(m / (m - 1) * float(residual @ residual)) / total
    half = t_quantile(_CONFIDENCE, m - 1) * error
    return share, max(share - half, 0.0), min(share + half, 1.0)


def _memory_use(readings: Sequence[tuple[int, Footprint]]) -> MemoryUse | None:
    if not readings:
        return None
    held = np.array([reading.n_bytes for _, reading in readings], dtype=np.float64)
    return MemoryUse(
        kind=readings[0][1].kind,
        label=readings[0][1].label,
        first_bytes=int(held[0]),
        last_bytes=int(held[-1]),
        highest_bytes=int(held.max()),
        creep=_creep(readings),
    )


def _creep(readings: Sequence[tuple[int, Footprint]]) -> Rise | None:
    """Memory in use that grows by more than its counter's grain, in every part of the run.

    A resident size is no witness: it rises when malloc takes pages that it hands out again later.
    """
    kind = readings[0][1].kind
    counted = [
        (step, n_bytes)
        for step, r in readings
        if (n_bytes := r.n_bytes if kind == "allocated" else r.in_use_bytes) is not None
    ]
    settled = counted[len(counted) // 10 :]  # in the first tenth, caches fill
    if len(settled) < _CREEP_PARTS or settled[-1][0] == settled[0][0]:
        return None
    steps, used = np.array(settled, dtype=np.float64).T
    part = ((steps - steps[0]) / np.ptp(steps) * (_CREEP_PARTS - 0.01)).astype(np.int64)
    some = [part == number for number in np.unique(part)]
    looks = [(int(np.median(steps[one])), int(np.median(used[one]))) for one in some]
    # from the middle of the first part to that of the last
    least = round(_CREEP_FROM_BYTES[kind] * (1 - 1 / _CREEP_PARTS))
    return rise(looks, intervals=_CREEP_PARTS - 1, least_bytes=least)


def _curve(steps: Steps, readings: Sequence[tuple[int, Footprint]]) -> RunCurve:
    rows = np.stack([steps.numbers + 1.0, steps.step_ms, steps.wait_ms], axis=1)
    drawn = means_of_neighbours(rows, _CURVE_POINTS).T
    return RunCurve(
        numbers=drawn[0],
        step_ms=drawn[1],
        wait_ms=drawn[2],
        memory_numbers=np.array([step for step, _ in readings], dtype=np.float64),
        memory_bytes=np.array([reading.n_bytes for _, reading in readings], dtype=np.float64),
    )


def _sentence(facts: RunFacts, steps: Steps, run: RunSummary) -> str:
    step, share, busy, why = run.step, run.wait_share, run.busy, run.why_waiting
    if step is None or (share is None and facts.waits_known):
        return _no_step(facts)
    first = ""
    if busy is not None:
        first = "".join(f"{one} " for one in busy.held_back_by())
        if busy.is_busy or busy.spoils:
            first = f"{busy.sentence()} {first}"
        if busy.spoils:
            return (
                f"{first}So these times say little about your loop: watch it again on a quiet "
                f"machine. (Median step {fmt_ms(step.median)}, from {fmt_ms(step.minimum)} to "
                f"{fmt_ms(step.maximum)}.)"
                f"{_growth(steps, None, run.memory)}"  # no load of others makes memory of ours grow
            )
    if step.n < _FEWEST_STEPS:
        return (
            f"{first}Only {plural(step.n, 'step')} could be timed, too few for a verdict."
            f"{_growth(steps, None, run.memory)}"
        )
    parts = [*_bound_by_data(run, step), *_uneven(steps, step.median, facts.during)]
    slower = slow_steps.first_epoch(steps, [number for number, _, _ in facts.starts])
    if slower:
        parts.append(slower)
    elif run.drift is not None and run.drift.change < 0:
        parts.append(f"steps got {fmt_share(-run.drift.relative)} faster over the run")
    starting_ms = sum(run.starts_ms)
    if run.wall_s > 0 and starting_ms >= _STARTS_FROM * 1e3 * run.wall_s:
        n = len(run.starts_ms)
        times = f"in each of {n} epochs" if n > 1 else "at the start"
        parts.append(
            f"the first batch took {fmt_ms(float(np.median(run.starts_ms)))} {times} "
            f"({fmt_share(starting_ms / 1e3 / run.wall_s)} of the run)"
        )
    because = "" if why is None else f" {why.title}: {why.evidence[0]}."
    return f"{first}{'; '.join(parts)}.{because}{_growth(steps, run.drift, run.memory)}"


def _bound_by_data(run: RunSummary, step: Summary) -> list[str]:
    """How long a step takes, and how much of it waits."""
    share, low, high = run.wait_share, run.wait_low, run.wait_high
    median = f"{fmt_ms(step.median)} [{fmt_ms(step.low)}, {fmt_ms(step.high)}], n={step.n}"
    if share is None:
        return [
            f"Median step {median}; no torch DataLoader was read, so how long the steps wait for "
            "data is not known"
        ]
    kind = "Data" if share >= DATA_BOUND_FROM else "Partly data"
    if share < PARTLY_FROM:
        kind = "Not data"
    between = "" if low is None or high is None else f" [{fmt_share(low)}, {fmt_share(high)}]"
    said = [
        f"{kind}-bound: {fmt_share(share)}{between} of each step waits for the loader (median step "
        f"{median})"
    ]
    if PARTLY_FROM <= share < 1:
        gain = 1 / (1 - share)
        most = f"at most {fmt_bound(gain)}" if gain <= _MOST_GAIN else f"more than {_MOST_GAIN}×"
        said.append(f"a loader without waits would make it {most} as fast")
    return said


def _growth(steps: Steps, drift: Trend | None, memory: MemoryUse | None) -> str:
    """What grew from step to step, by how much, how sure that is, and what to do next."""
    said = []
    if drift is not None and drift.change > 0:
        # of a long run not every step is kept, and the first of each epoch is left out
        apart = np.ptp(steps.numbers) / max(len(steps.numbers) - 1, 1) or 1.0
        each, low, high = (fmt_ms(x / apart) for x in (drift.slope, drift.low, drift.high))
        phase = slow_steps.growing_phase(steps)
        said.append(
            f"steps got {fmt_share(drift.relative)} slower over the run: {each} more with each "
            f"step [{low}, {high}]" + f" ({phase})" * bool(phase)
        )
    grows = growing(memory)
    words = " and ".join(filter(None, [*said, grows]))
    words = words[:1].upper() + words[1:]
    if grows:
        return f" {words}; perfkit.find_leaks(step) shows what grows and what holds it."
    if not said:
        return ""
    return (
        f" {words}; no memory grows as clearly. A hot processor, other programs or longer inputs "
        "do that, and so does work that each step adds to: perfkit.find_leaks(step) shows what "
        "grows."
    )


def growing(memory: MemoryUse | None) -> str:
    """That its memory grows, in words; empty where it does not."""
    if memory is None or memory.creep is None:
        return ""
    return f"{_GROWING[memory.kind]} grows by {fmt_bytes(memory.creep.per_step)} a step"


def _uneven(steps: Steps, median: float, during: Callable[[set[int]], str]) -> list[str]:
    """Which steps are slow, how slow, and what they are made of; nothing where none stands out."""
    step_ms = steps.step_ms
    slow = slow_steps.stands_out(step_ms, median)
    if not slow.any():
        return []
    took, numbers = step_ms[slow], steps.numbers[slow]
    times = " to ".join(dict.fromkeys(map(fmt_ms, (float(took.min()), float(took.max())))))
    together = "together " if len(took) > 1 else ""
    said = (
        f"steps are uneven: {times} {which_steps((numbers + 1).tolist(), len(step_ms))}, {together}"
        f"{fmt_share(float(took.sum() / step_ms.sum()))} of the time"
    )
    if float(steps.wait_ms[slow].sum()) > float(took.sum()) / 2:
        return [f"{said}; in these the loop waits for the loader"]
    why = slow_steps.cause(steps, slow)
    line = during(set(numbers.tolist()))
    return ["; ".join(filter(None, (said, why, line and f"in these it runs {line}")))]


def _no_step(facts: RunFacts) -> str:
    if facts.n_epochs == 0:
        return "Nothing watched yet: no loop has asked for a second batch."
    if facts.ended == "running":
        return "No step is over yet."
    if facts.ended != "finished":
        return f"No step was completed ({facts.ended})."
    hint = ": it is an iterator, which can be looped over only once" if facts.one_shot else ""
    return f"No step: the loader gave no batch{hint}."
