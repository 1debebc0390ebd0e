"""The result of one run of a workload, and the ratio of two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfkit.base.display import Shown
from perfkit.base.errors import (
    MeasurementError,
    WorkloadEmptyError,
    WorkloadError,
    WorkloadFailedError,
    WorkloadHungError,
    WorkloadKilledError,
    WorkloadMemoryError,
)
from perfkit.experiment.process.phase_means import PhaseMeans

if TYPE_CHECKING:
    from perfkit.base.machine import Provenance
    from perfkit.experiment.process._fingerprint import Fingerprint
    from perfkit.experiment.process.events import State
    from perfkit.measure.summary import Summary

#: The caveat of every ratio of two separate runs.
ONE_AFTER_THE_OTHER = "unconfirmed: one run after the other, so drift is not cancelled"

#: Explains the column "speed" in a table of runs.
SPEED = "speed: mean time per step in quiet windows (per sample where batches differ)"

#: The message of a run that ended without a step.
NO_STEP = "the workload yielded no step: put one `yield` at the end of each training step"

# Resamples for the 95 % interval: with 2,000, 50 values are beyond each end.
_RESAMPLES = 2000
_CONFIDENCE = 0.95
# Steps of so many times the samples are other work; the last batch of an epoch makes less of it.
_OTHER_WORK = 1.2


def _no_floats() -> NDArray[np.float64]:
    return np.empty(0, np.float64)


def _no_ints() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, eq=False)
class RunResult(Shown):
    """The result of one run of a workload with one value for each setting.

    Attributes:
        run_id: 1 for the session's first run, counting up.
        values: the value of every setting.
        state: how it ended: ``"done"``, ``"stopped"``, ``"failed"``, ``"out of memory"``,
            ``"hung"`` or ``"killed"``.
        message: what went wrong, in one line; empty if nothing did.
        step: summary of the durations of the counted steps, in ms; None if no step was measured.
        wait_share: share of the counted steps' time spent waiting for the DataLoader (host time).
        samples_per_s: over the counted steps; None if the number of samples is unknown.
        peak_bytes: peak memory; None if it was not read.
        peak_kind: what ``peak_bytes`` is, in words.
        memory_kind: what ``memory_bytes`` is, in words.
        workers_bytes: peak unique set size of all DataLoader workers together, read between live
            windows; None without workers.
        n_steps: measured steps, including warm-up.
        n_quiet: steps in quiet windows after the warm-up.
        n_counted: steps behind ``step``, ``wait_share`` and ``samples_per_s``: the quiet ones; or
            all after the warm-up if the quiet ones are too few (with a warning), or if nothing is
            drawn.
        index: index of each step, from 0.
        step_ms: duration of each step, in ms.
        wait_ms: data wait in each step, in ms.
        memory_bytes: memory at the end of each step.
        quiet: whether nothing was sent or drawn during the step.
        counted: whether the step is one of the counted ones.
        loss: the loss that the workload yielded, NaN for none.
        page_faults: pages that the training process was given in each step (minor faults of all its
            threads), -1 where the system does not count them.
        gradients: fingerprint of the gradients of the warm-up steps; None if no optimizer stepped
            in them.
        phases: where the time of a step goes, by the host's clock; of steps in live windows, which
            count in no other figure.
        setup_s: seconds from the workload's start to its first step (building model, data, loader).
        first_point_s: seconds from the call of ``start`` until the first step was measured.
        prepared_s: how many of them the run waited for the prepared process: seconds where that was
            still loading, else next to nothing; 0 for a process of its own.
        running_s: seconds from the end of the first step to the end of the last, without pauses.
        output: the end of what the workload printed.
        traceback_text: its traceback, if it raised.
        warnings: reasons to doubt the figures.
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
    page_faults: NDArray[np.int64] = field(default_factory=_no_ints, repr=False)
    gradients: Fingerprint | None = field(default=None, repr=False)
    phases: PhaseMeans = field(default_factory=PhaseMeans, repr=False)
    setup_s: float | None = None
    first_point_s: float | None = None
    prepared_s: float = 0.0
    running_s: float = 0.0
    output: str = field(default="", repr=False)
    traceback_text: str = field(default="", repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it finished or was stopped, with measured steps."""
        return self.state in ("done", "stopped") and self.step is not None

    def counted_ms(self) -> NDArray[np.float64]:
        """Durations of the counted steps, in ms."""
        counted: NDArray[np.float64] = self.step_ms[self.counted]
        return counted

    @property
    def mean_ms(self) -> float | None:
        """Mean time per counted step in ms, the inverse of throughput.

        It differs from the median if only some steps wait.
        """
        counted = self.counted_ms()
        return float(counted.mean()) if len(counted) else None

    @property
    def faults_per_step(self) -> float | None:
        """Median number of page faults of a counted step; None where they are not counted.

        In each the kernel clears a page, which takes it a microsecond or so, in a virtual machine
        more: many of them mean that memory is returned to the system and taken again.
        """
        if len(self.page_faults) != len(self.counted):
            return None  # saved by an older perfkit
        found = self.page_faults[self.counted]
        return float(np.median(found)) if len(found) and (found >= 0).all() else None

    @property
    def samples_per_step(self) -> float | None:
        """Mean number of samples per counted step; None if unknown."""
        if not self.samples_per_s or self.mean_ms is None:
            return None
        return self.samples_per_s * self.mean_ms / 1e3

    def raise_if_failed(self) -> RunResult:
        """Return the result itself if the run did not fail.

        Raises:
            WorkloadError: the run failed; the subclass says how, with the child's traceback.
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
            "faults_per_step": self.faults_per_step,
            "workers_bytes": self.workers_bytes,
            "phases": asdict(self.phases),
            "n_steps": self.n_steps,
            "n_quiet": self.n_quiet,
            "n_counted": self.n_counted,
            "setup_s": self.setup_s,
            "first_point_s": self.first_point_s,
            "prepared_s": self.prepared_s,
            "running_s": self.running_s,
            "curve": {
                "index": self.index.tolist(),
                "step_ms": self.step_ms.tolist(),
                "wait_ms": self.wait_ms.tolist(),
                "memory_bytes": self.memory_bytes.tolist(),
                "memory_kind": self.memory_kind,
                "quiet": self.quiet.tolist(),
                "counted": self.counted.tolist(),
                "page_faults": self.page_faults.tolist(),
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

    The time is the mean over the counted steps, per step, or per sample if the two runs have
    batches of different sizes (``per`` says which). ``low`` and ``high`` bound the ratio with 95 %
    confidence with respect to noise. They do not include drift between the two runs
    (:data:`ONE_AFTER_THE_OTHER`), except in a ratio from ``perfkit.ab``.
    """

    ratio: float
    low: float
    high: float
    per: Literal["step", "sample"] = "step"

    @property
    def different(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1.0 <= self.high


def is_other_work(*samples_per_step: float) -> bool:
    """Whether the largest of these is a fifth above the smallest: then times are per sample."""
    return max(samples_per_step) > _OTHER_WORK * min(samples_per_step)


def device_of(runs: Iterable[RunResult]) -> str:
    """The GPU that runs were made on, by its name, or ``"cpu"``."""
    places = (run.provenance.device for run in runs)
    return next((place for place in places if place != "cpu"), "cpu")


def ratio(first: RunResult, other: RunResult, *, seed: int = 0) -> Ratio:
    """How many times faster ``other`` is than ``first``: the ratio of their times per step.

    A run's time per step is the mean over its counted steps, the inverse of its throughput. The
    median would be wrong: if workers run ahead, most steps are short and a few wait long, and the
    median sees only the short ones. Batches of different sizes are compared by time per sample.

    The interval is a bootstrap over blocks of neighbouring steps, because neighbouring steps are
    correlated and resampling single steps would make it too narrow (moving-block bootstrap, Künsch
    1989). It does not include drift between the runs; ``perfkit.ab`` cancels that.

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
    samples = first.samples_per_step, other.samples_per_step
    if samples[0] and samples[1] and is_other_work(samples[0], samples[1]):
        work, per = samples[1] / samples[0], "sample"
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
    # in slices, so that it takes a few MB for any n
    for begin in range(0, _RESAMPLES, 200):
        starts = rng.integers(0, n, size=(200, len(lengths)))
        means[begin : begin + 200] = (until[starts + lengths] - until[starts]).sum(axis=1) / n
    return means


def table(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """One row of plain values per run; ratios are relative to the first measured run.

    Keys: ``run``, each setting's name, ``state``, ``step_ms`` (the median), ``step_low_ms``,
    ``step_high_ms``, ``step_mean_ms``, ``wait_share``, ``samples_per_s``, ``peak_bytes``,
    ``peak_kind``, ``faults_per_step``, ``ratio`` (of times per step, see :func:`ratio`),
    ``ratio_low``, ``ratio_high``, ``ratio_per`` (``"step"`` or ``"sample"``), ``n_counted``,
    ``message``. None means not measured.
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
                "faults_per_step": run.faults_per_step,
                "ratio": compared.ratio if compared else None,
                "ratio_low": compared.low if compared else None,
                "ratio_high": compared.high if compared else None,
                "ratio_per": compared.per if compared else None,
                "n_counted": run.n_counted,
                "message": run.message,
            }
        )
    return rows
