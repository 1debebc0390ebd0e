"""From the steps of a run to its figures: which steps count, and reasons to doubt them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.base.words import fmt_ms
from perfkit.measure.summary import Summary, summarize

# The fewest quiet steps for a 95 % interval of the median (1 - 2 * 0.5**6 = 97 %).
_FEW_QUIET = 6
# With fewer steps after the warm-up there is no useful median.
_KEEP_AT_LEAST = 2
# A mean this far from the median means that there are several kinds of steps.
_UNEVEN = 0.25
# After a pause, workers that ran a moment longer have batches ready.
_AFTER_PAUSE_S = 0.1

_COLUMNS: dict[str, type[np.generic]] = {
    "end_s": np.float64,
    "step_ms": np.float64,
    "wait_ms": np.float64,
    "memory_bytes": np.int64,
    "quiet": np.bool_,
    "samples": np.int64,
    "page_faults": np.int64,
    "loss": np.float64,
}


@dataclass
class Pauses:
    """When the run was paused, on ``time.perf_counter`` (one clock for all processes)."""

    spans_s: list[tuple[float, float]] = field(default_factory=list)
    since_s: float | None = None
    _within: list[tuple[float, float]] = field(default_factory=list)
    _between: bool = False

    def begin(self, now_s: float, *, between_steps: bool = False) -> None:
        """The run is paused from now on; with ``between_steps``, no step was in progress."""
        self.since_s = now_s
        self._between = between_steps

    def end(self, now_s: float) -> None:
        """The run continues."""
        if self.since_s is not None:
            span = (self.since_s, now_s)
            self.spans_s.append(span)
            if not self._between:
                self._within.append(span)
            self.since_s = None

    def total_s(self, now_s: float) -> float:
        """Seconds paused so far."""
        open_s = 0.0 if self.since_s is None else now_s - self.since_s
        return sum(end - begin for begin, end in self.spans_s) + open_s

    def touch(self, begin_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these intervals overlap a pause."""
        touched = np.zeros(len(begin_s), np.bool_)
        is_open = self.since_s is not None and not self._between
        open_span = [(self.since_s, np.inf)] if is_open and self.since_s is not None else []
        for since, until in [*self._within, *open_span]:
            touched |= (end_s >= since) & (begin_s <= until + _AFTER_PAUSE_S)
        return touched


class Curve:
    """The steps of one run as they arrive."""

    def __init__(self) -> None:
        self._parts: list[dict[str, NDArray[Any]]] = []
        self.n = 0
        self.last_bytes = 0

    def take(self, message: dict[str, Any], pauses: Pauses) -> dict[str, NDArray[Any]]:
        """Columns of a message, without the steps that overlap a pause."""
        part = {name: np.frombuffer(message[name], kind) for name, kind in _COLUMNS.items()}
        part["index"] = message["first"] + np.arange(len(part["end_s"]), dtype=np.int64)
        # the first step may have begun before the loader was asked; take at most its own length
        begin_s = part["end_s"] - part["step_ms"] / 1e3
        kept = ~pauses.touch(begin_s, part["end_s"])
        part = {name: values[kept] for name, values in part.items()}
        self._parts.append(part)
        self.n += int(kept.sum())
        self.last_bytes = max(self.last_bytes, int(message["peak_bytes"] or 0))
        return part

    def column(self, name: str) -> NDArray[Any]:
        """All values of one column."""
        kind = np.int64 if name == "index" else _COLUMNS[name]
        return np.concatenate([np.empty(0, kind), *(part[name] for part in self._parts)])


@dataclass(frozen=True)
class Figures:
    """Figures of a run's steps."""

    step: Summary | None
    wait_share: float | None
    samples_per_s: float | None
    n_quiet: int
    counted: NDArray[np.bool_]
    warnings: tuple[str, ...]


def figures(curve: Curve, warmup: int, *, watched: bool = True) -> Figures:
    """Summarise the quiet steps after the warm-up, or all after it if those are too few.

    In a run without a plot (``watched=False``) all steps after the warm-up count, because messages
    are sent between steps.
    """
    n = curve.n
    if n == 0:
        return Figures(None, None, None, 0, np.empty(0, np.bool_), ())
    warnings = []
    set_aside = min(warmup, max(n - _KEEP_AT_LEAST, 0))
    if set_aside < warmup:
        warnings.append(f"only {_steps(n)}: a warm-up of {warmup} could not be set aside")
    after = np.arange(n) >= set_aside
    quiet = after & curve.column("quiet")
    n_quiet = int(quiet.sum())
    counted = quiet if watched else after
    if watched and n_quiet < _FEW_QUIET:
        counted = after
        few = f"only {_steps(n_quiet)}" if n_quiet else "no step"
        warnings.append(
            f"{few} in quiet windows: all {int(after.sum())} after the warm-up "
            "count, also those while the plot was drawn; a longer run (seconds=…) has more"
        )
    step_ms = curve.column("step_ms")[counted]
    step = summarize(step_ms, unit="ms")
    total_ms = float(step_ms.sum())
    wait_ms = float(curve.column("wait_ms")[counted].sum())
    return Figures(
        step,
        wait_ms / total_ms if total_ms > 0 else None,
        _throughput(curve.column("samples")[counted], total_ms),
        n_quiet,
        counted,
        (*warnings, *_uneven(step, float(step_ms.mean())), *step.warnings),
    )


def _uneven(step: Summary, mean_ms: float) -> tuple[str, ...]:
    if abs(mean_ms - step.median) <= _UNEVEN * step.median:
        return ()
    return (f"steps are uneven: median {fmt_ms(step.median)}, mean {fmt_ms(mean_ms)}",)


def _throughput(samples: NDArray[np.int64], total_ms: float) -> float | None:
    if (samples < 0).any() or total_ms <= 0:
        return None
    return float(samples.sum()) / total_ms * 1e3


def _steps(n: int) -> str:
    return "1 step" if n == 1 else f"{n} steps"
