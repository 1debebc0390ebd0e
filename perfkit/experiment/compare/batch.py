"""Find the largest batch that fits: double it until it does not, then bisect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfkit.base.display import Shown
from perfkit.base.errors import MeasurementError, UsageError
from perfkit.base.progress import Progress, Say
from perfkit.base.words import fmt_bytes
from perfkit.experiment.process.events import State
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.process.session import Session, count
from perfkit.experiment.settings import Setting, Settings
from perfkit.experiment.settings._declared import check_names, declared

# Out of memory; an exit by the system's killer is called "killed", with a question mark.
_NO_MEMORY = ("out of memory",)


@dataclass(frozen=True)
class LargestBatch(Shown):
    """The result of :func:`largest_batch`.

    Attributes:
        batch: the largest size that fitted; None if not even the smallest one tried did.
        too_large: the smallest size that did not fit; None if all up to ``most`` did.
        runs: all runs, in order.
        limit_bytes: the simulated limit; None if memory itself was the limit.
    """

    batch: int | None
    too_large: int | None
    runs: tuple[RunResult, ...]
    limit_bytes: int | None
    setting: str = "batch_size"

    @property
    def sentence(self) -> str:
        """The answer in words."""
        limit = (
            ""
            if self.limit_bytes is None
            else f" below the simulated limit of {fmt_bytes(self.limit_bytes)}"
        )
        n = f"{len(self.runs)} runs"
        if self.batch is None:
            return f"No batch fits{limit}: {self.setting}={self.too_large} is already too large."
        if self.too_large is None:
            return f"{self.setting}={self.batch} fits{limit}, the largest that was tried ({n})."
        return (
            f"The largest batch that fits{limit} is {self.batch}; {self.too_large} does not ({n})."
        )

    def to_dict(self) -> dict[str, Any]:
        """This result as plain JSON types."""
        return {
            "batch": self.batch,
            "too_large": self.too_large,
            "limit_bytes": self.limit_bytes,
            "sentence": self.sentence,
            "tried": [
                {
                    "batch": run.values[self.setting],
                    "state": run.state,
                    "message": run.message,
                    "peak_bytes": run.peak_bytes,
                    "samples_per_s": run.samples_per_s,
                }
                for run in self.runs
            ],
        }


def largest_batch(
    workload: Callable[[Settings], Any],
    *,
    setting: str = "batch_size",
    settings: Sequence[str | Setting] = (),
    base: Mapping[str, Any] | None = None,
    start: int = 8,
    most: int = 65_536,
    within: float = 0.05,
    limit_bytes: int | None = None,
    seconds: float = 0.5,
    step_timeout_s: float = 60.0,
    start_timeout_s: float = 300.0,
    seed: int = 0,
    say: Say | bool | None = None,
) -> LargestBatch:
    """Find the largest batch with which the workload runs a few steps.

    Each size runs in its own process, so a size that did not fit leaves nothing behind. It shows
    only that a size fits for a few steps: memory may grow later.

    Args:
        workload: see :class:`~perfkit.experiment.process.session.Session`.
        setting: the name of the batch size.
        settings, base: further settings, and their values if not the defaults.
        start: the first size.
        most: the largest size to try.
        within: how close to the limit, as a share of the batch; 0 for the exact number.
        limit_bytes: treat a run whose peak is above this many bytes as one that does not fit: a
            simulated limit, for a target with less memory than this machine.
        seconds, step_timeout_s, start_timeout_s, seed: for each run, see ``Session``.

    Raises:
        UsageError: a number is invalid.
        WorkloadError: a run failed for another reason than lack of memory.
        MeasurementError: ``limit_bytes`` is given, and a run's memory could not be read.
    """
    for name, number in (("start", start), ("most", most)):
        count(name, number, least=1)
    if start > most:
        raise UsageError(f"start={start} is above most={most}")
    if not 0 <= within < 1:
        raise UsageError(f"within={within!r:.80} is not valid: it takes a share from 0 to below 1")
    fixed = dict(base or {})
    known = declared(settings, {setting: start, **fixed})
    check_names(workload, settings, {setting: start, **fixed})
    # for a user's setting only the first size was declared
    own = [replace(one, _accept=_any_size) for one in known if one.name == setting]
    known = tuple(own[0] if one.name == setting and _is_own(one) else one for one in known)
    progress = Progress("", say)
    runs: list[RunResult] = []
    with Session(
        workload,
        known,
        seconds=seconds,
        step_timeout_s=step_timeout_s,
        start_timeout_s=start_timeout_s,
        seed=seed,
    ) as session:

        def fits(size: int) -> bool:
            progress.line(f"{setting} {size}: {len(runs)} tried")
            run = session.run(**fixed, **{setting: size})
            if run.ok and limit_bytes is not None:
                run = _limited(run, limit_bytes)
            runs.append(run)
            if run.state not in _NO_MEMORY and "out of memory" not in run.message:
                run.raise_if_failed()
            return run.ok

        try:
            good, bad = _search(fits, start, most, within)
        finally:
            progress.close()
    return LargestBatch(good, bad, tuple(runs), limit_bytes, setting)


def _search(
    fits: Callable[[int], bool], start: int, most: int, within: float
) -> tuple[int | None, int | None]:
    """The largest that fits and the smallest that does not, as close together as requested."""
    good: int | None = None
    bad: int | None = None
    size = start
    while bad is None:
        if fits(size):
            good = size
            if size >= most:
                return good, None
            size = min(2 * size, most)
        else:
            bad = size
    if good is None:
        low = 0  # not even the first fits: search below it
        while bad - low > 1 and good is None:
            middle = (low + bad) // 2
            if fits(middle):
                good = middle
            else:
                bad = middle
        if good is None:
            return None, bad
    while bad - good > max(1, int(within * good)):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good, bad


def _limited(run: RunResult, limit_bytes: int) -> RunResult:
    if run.peak_bytes is None:
        raise MeasurementError("the run's memory could not be read, so a limit cannot be applied")
    if run.peak_bytes <= limit_bytes:
        return run
    state: State = "out of memory"
    return replace(
        run,
        state=state,
        message=(
            f"out of memory (simulated): peak {fmt_bytes(run.peak_bytes)}, limit "
            f"{fmt_bytes(limit_bytes)}"
        ),
    )


def _is_own(one: Setting) -> bool:
    return one._accept is None


def _any_size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number, 1 or more")
    return value
