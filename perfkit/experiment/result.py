"""What came of one run of a workload, and how two runs compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfkit._display import Shown
from perfkit.errors import (
    MeasurementError,
    WorkloadEmptyError,
    WorkloadError,
    WorkloadFailedError,
    WorkloadHungError,
    WorkloadKilledError,
    WorkloadMemoryError,
)

if TYPE_CHECKING:
    from perfkit.experiment._fingerprint import Fingerprint
    from perfkit.experiment.events import State
    from perfkit.machine import Provenance
    from perfkit.timing.summary import Summary

__all__ = ["NO_STEP", "ONE_AFTER_THE_OTHER", "SPEED", "Ratio", "RunResult", "ratio", "table"]

#: The doubt that every ratio of two runs carries.
ONE_AFTER_THE_OTHER = "unconfirmed: one run after the other, so drift is not cancelled"

#: What the column "speed" of a table of runs is.
SPEED = "speed: mean time per step in quiet windows (per sample where batches differ)"

#: The message of a run that ended without a step.
NO_STEP = "the workload yielded no step: put one `yield` at the end of each training step"

# The interval is a 95 % one from 2,000 resamples: its ends then rest on 50 values each.
_RESAMPLES = 2000
_CONFIDENCE = 0.95
# Batches differ by more than this: the last one of an epoch is smaller, other sizes are multiples.
_OTHER_WORK = 0.2


def _no_floats() -> NDArray[np.float64]:
    return np.empty(0, np.float64)


def _no_ints() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, eq=False)
class RunResult(Shown):
    """One run of a workload with one value of each setting.

    Attributes:
        run_id: 1 for the session's first run, then counting.
        values: the value of every setting.
        state: how it ended: ``"done"``, ``"stopped"``, ``"failed"``, ``"out of memory"``,
            ``"hung"`` or ``"killed"``.
        message: one line: what went wrong; empty where nothing did.
        step: of the durations of the counted steps, in ms; None where no step was measured.
        wait_share: share of the counted steps' time that waited for the DataLoader (host time).
        samples_per_s: over the counted steps; None where the samples are not known.
        peak_bytes: the most memory; None where it was not read.
        peak_kind: what ``peak_bytes`` is, in words.
        memory_kind: what ``memory_bytes`` is, in words.
        workers_bytes: the most memory that the DataLoader workers held for themselves (unique
            set size, all together, read between live windows); None where there were none.
        n_steps: steps measured, warm-up included.
        n_quiet: steps in quiet windows after the warm-up.
        n_counted: steps on which ``step``, ``wait_share`` and ``samples_per_s`` rest: the quiet
            ones, or all after the warm-up where those are too few (a warning says so) or where
            nobody listens to the session's events, so that nothing disturbs.
        index: number of each step, from 0.
        step_ms: duration of each step.
        wait_ms: data wait in each step.
        memory_bytes: memory at the end of each step.
        quiet: whether nothing was sent or drawn during the step.
        counted: whether the step is one of the counted ones.
        loss: what the workload yielded as ``loss``, NaN where it did not.
        gradients: fingerprint of the gradients of the steps that warm it up; None where no
            optimizer stepped in them.
        setup_s: from the workload's start to its first step: building model, data, loader.
        first_point_s: from the call of ``start`` until the first step was measured.
        running_s: from the first step's end to the last one's, without pauses.
        output: the end of what the workload printed.
        traceback_text: its traceback, where it raised.
        warnings: what makes the figures doubtful.
    """

    run_id: int
    values: Mapping[str, Any]
    state: State
    message: str
    step: Summary | None
    wait_share: float | None
    samples_per_s: float | None
    peak_bytes: int | None
    peak_kind: str
    n_steps: int
    n_quiet: int
    provenance: Provenance
    n_counted: int = 0
    memory_kind: str = ""
    workers_bytes: int | None = None
    index: NDArray[np.int64] = field(default_factory=_no_ints, repr=False)
    step_ms: NDArray[np.float64] = field(default_factory=_no_floats, repr=False)
    wait_ms: NDArray[np.float64] = field(default_factory=_no_floats, repr=False)
    memory_bytes: NDArray[np.int64] = field(default_factory=_no_ints, repr=False)
    quiet: NDArray[np.bool_] = field(default_factory=_no_flags, repr=False)
    counted: NDArray[np.bool_] = field(default_factory=_no_flags, repr=False)
    loss: NDArray[np.float64] = field(default_factory=_no_floats, repr=False)
    gradients: Fingerprint | None = field(default=None, repr=False)
    setup_s: float | None = None
    first_point_s: float | None = None
    running_s: float = 0.0
    output: str = field(default="", repr=False)
    traceback_text: str = field(default="", repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it ran to its end, or was stopped, with steps that were measured."""
        return self.state in ("done", "stopped") and self.step is not None

    def counted_ms(self) -> NDArray[np.float64]:
        """Durations of the steps that count, in ms."""
        counted: NDArray[np.float64] = self.step_ms[self.counted]
        return counted

    @property
    def mean_ms(self) -> float | None:
        """Time per counted step, in ms: their sum over their number, the inverse of throughput.

        It differs from the median step where some steps wait and others do not.
        """
        counted = self.counted_ms()
        return float(counted.mean()) if len(counted) else None

    @property
    def samples_per_step(self) -> float | None:
        """Samples in a counted step, on average; None where the samples are not known."""
        if not self.samples_per_s or self.mean_ms is None:
            return None
        return self.samples_per_s * self.mean_ms / 1e3

    def raise_if_failed(self) -> RunResult:
        """The result itself, where the run ended well.

        Raises:
            WorkloadError: the kind of it that says how the run failed, with the child's
                traceback.
        """
        kinds: dict[str, type[WorkloadError]] = {
            "failed": WorkloadFailedError,
            "out of memory": WorkloadMemoryError,
            "hung": WorkloadHungError,
            "killed": WorkloadKilledError,
        }
        kind = WorkloadEmptyError if self.message == NO_STEP else kinds.get(self.state)
        if kind is not None:
            raise kind(self.message, self.traceback_text)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Figures, curves and provenance as plain JSON types."""
        step = self.step
        return {
            "run_id": self.run_id,
            "values": dict(self.values),
            "state": self.state,
            "message": self.message,
            "step_ms": None
            if step is None
            else {
                "n": step.n,
                "median": step.median,
                "mean": self.mean_ms,
                "low": step.low,
                "high": step.high,
                "confidence": step.confidence,
            },
            "wait_share": self.wait_share,
            "samples_per_s": self.samples_per_s,
            "peak_bytes": self.peak_bytes,
            "peak_kind": self.peak_kind,
            "workers_bytes": self.workers_bytes,
            "n_steps": self.n_steps,
            "n_quiet": self.n_quiet,
            "n_counted": self.n_counted,
            "setup_s": self.setup_s,
            "first_point_s": self.first_point_s,
            "running_s": self.running_s,
            "curve": {
                "index": self.index.tolist(),
                "step_ms": self.step_ms.tolist(),
                "wait_ms": self.wait_ms.tolist(),
                "memory_bytes": self.memory_bytes.tolist(),
                "memory_kind": self.memory_kind,
                "quiet": self.quiet.tolist(),
                "counted": self.counted.tolist(),
                # JSON has no NaN
                "loss": [None if np.isnan(x) else x for x in self.loss.tolist()],
            },
            "gradients": None if self.gradients is None else self.gradients.to_dict(),
            "traceback": self.traceback_text,
            "warnings": list(self.warnings),
            "provenance": self.provenance.to_dict(),
        }


class Ratio(NamedTuple):
    """How many times faster the other run is than the first: the first's time ÷ the other's.

    The time is that of the counted steps as a whole, per step, or per sample where the two runs
    have batches of different sizes (``per`` says which). ``low`` and ``high`` bound the ratio
    with 95 % confidence as far as noise goes; drift between the two runs is not in them
    (:data:`ONE_AFTER_THE_OTHER`), unless it is a ratio of ``perfkit.ab``.
    """

    ratio: float
    low: float
    high: float
    per: Literal["step", "sample"] = "step"

    @property
    def different(self) -> bool:
        """Whether 1 lies outside the interval."""
        return not self.low <= 1.0 <= self.high


def ratio(first: RunResult, other: RunResult, *, seed: int = 0) -> Ratio:
    """How many times faster ``other`` is than ``first``: the ratio of their times per step.

    A run's time per step is the mean over its counted steps, which is its throughput upside
    down. The median would not do: where workers run ahead, most steps are short and a few wait
    for long, and the median sees the short ones only. Batches of different sizes are compared
    by the time per sample.

    The interval is a bootstrap over blocks of neighbouring steps, because neighbouring steps
    resemble each other and single steps would make it too narrow (moving-block bootstrap,
    Künsch 1989). It knows nothing of drift between the runs; ``perfkit.compare`` cancels that.

    Raises:
        MeasurementError: one of the two has no measured step.
    """
    for run in (first, other):
        if run.step is None or not run.counted.any():
            raise MeasurementError(f"run {run.run_id} has no measured step ({run.state})")
    a, b = first.counted_ms(), other.counted_ms()
    rng = np.random.default_rng(seed)
    work = 1.0
    per: Literal["step", "sample"] = "step"
    if first.samples_per_step and other.samples_per_step:
        factor = other.samples_per_step / first.samples_per_step
        if abs(factor - 1) >= _OTHER_WORK:
            work, per = factor, "sample"
    ratios = work * _means(a, rng) / _means(b, rng)
    tail = 100 * (1 - _CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    centre = work * float(a.mean() / b.mean())
    return Ratio(centre, min(float(low), centre), max(float(high), centre), per)


def _means(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of resamples made of blocks of sqrt(n) neighbours, wrapped around at the end."""
    n = len(values)
    length = max(1, round(n**0.5))
    lengths = np.full(-(-n // length), length)
    lengths[-1] = n - lengths[:-1].sum()  # each resample has n values
    until = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:length]]))])
    means = np.empty(_RESAMPLES)
    # in slices, so that it takes a few MB whatever n
    for begin in range(0, _RESAMPLES, 200):
        starts = rng.integers(0, n, size=(200, len(lengths)))
        means[begin : begin + 200] = (until[starts + lengths] - until[starts]).sum(axis=1) / n
    return means


def table(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """One row of plain values per run; ratios are to the first run that was measured.

    Keys: ``run``, each setting's name, ``state``, ``step_ms`` (the median), ``step_low_ms``,
    ``step_high_ms``, ``step_mean_ms``, ``wait_share``, ``samples_per_s``, ``peak_bytes``,
    ``peak_kind``, ``ratio`` (of times per step, see :func:`ratio`), ``ratio_low``,
    ``ratio_high``, ``ratio_per`` (``"step"`` or ``"sample"``), ``n_counted``, ``message``. What
    was not measured is None.
    """
    base = next((run for run in runs if run.step is not None), None)
    rows = []
    for run in runs:
        compared = None
        if base is not None and run.step is not None and run is not base:
            compared = ratio(base, run)
        step = run.step
        rows.append(
            {"run": run.run_id}
            | dict(run.values)
            | {
                "state": run.state,
                "step_ms": step.median if step else None,
                "step_low_ms": step.low if step else None,
                "step_high_ms": step.high if step else None,
                "step_mean_ms": run.mean_ms,
                "wait_share": run.wait_share,
                "samples_per_s": run.samples_per_s,
                "peak_bytes": run.peak_bytes,
                "peak_kind": run.peak_kind,
                "ratio": compared.ratio if compared else None,
                "ratio_low": compared.low if compared else None,
                "ratio_high": compared.high if compared else None,
                "ratio_per": compared.per if compared else None,
                "n_counted": run.n_counted,
                "message": run.message,
            }
        )
    return rows
