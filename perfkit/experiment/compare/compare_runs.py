"""Compare two stores of runs: what became slower by more than a margin?

For continuous integration: store the same sweep or comparison before and after a change, and each
configuration in both is compared. A regression is reported only if the whole interval is beyond the
margin, so that noise alone rarely fails a build.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.plain import fields
from perfkit.base.printable import printable
from perfkit.base.words import fmt_chosen_share, fmt_interval, fmt_ratio
from perfkit.experiment.compare import store
from perfkit.experiment.process.result import RunResult, is_other_work, ratio
from perfkit.experiment.settings._declared import words
from perfkit.measure.paired import t_quantile

#: Share by which a configuration may be slower without counting as a regression.
MARGIN = 0.05
_CONFIDENCE = 0.95
_LONGEST = 120

Verdict = Literal["slower", "faster", "unclear", "within the margin", "fails now", "runs again"]


@dataclass(frozen=True)
class Matched:
    """One configuration that is in both stores.

    Attributes:
        values: values of its settings.
        before_ms, after_ms: mean time per step or sample (see ``per``); None if it did not run.
        ratio: time before ÷ time after: above 1 it became faster, 0.5 is twice the time. None if
            one did not run.
        low, high: its interval.
        n_before, n_after: measured runs.
        per: ``"step"``, or ``"sample"`` if batches differ.
        verdict: ``"slower"`` or ``"faster"`` if the whole interval is beyond the margin, ``"within
            the margin"`` if the whole interval is within it, else ``"unclear"``; ``"fails now"`` if
            it ran before, ``"runs again"`` if it did not.
        message: what went wrong; empty if nothing did.
    """

    values: Mapping[str, Any]
    before_ms: float | None
    after_ms: float | None
    ratio: float | None
    low: float | None
    high: float | None
    n_before: int
    n_after: int
    per: Literal["step", "sample"]
    verdict: Verdict
    message: str = ""

    @property
    def is_regression(self) -> bool:
        """Whether it is slower beyond the margin, or no longer runs."""
        return self.verdict in ("slower", "fails now")


@dataclass(frozen=True)
class RunsComparison(Shown):
    """The result of :func:`compare_runs`.

    Attributes:
        names: names of the two files.
        margin: share by which a configuration may be slower.
        matched: configurations in both files: regressions first, then slowest first.
        only_before, only_after: configurations in only one of them.
        confidence: of all intervals together (Bonferroni).
        warnings: reasons to doubt the comparison.
        provenance: where the runs of each were made.
    """

    names: tuple[str, str]
    margin: float
    matched: tuple[Matched, ...]
    only_before: tuple[Mapping[str, Any], ...]
    only_after: tuple[Mapping[str, Any], ...]
    confidence: float
    warnings: tuple[str, ...]
    provenance: tuple[str, str]

    @property
    def regressions(self) -> tuple[Matched, ...]:
        """The configurations that are slower beyond the margin or fail now."""
        return tuple(one for one in self.matched if one.is_regression)

    @property
    def sentence(self) -> str:
        """The answer in words."""
        n, bad = len(self.matched), self.regressions
        counted = f"{n} configuration{'s' * (n != 1)}"
        margin = fmt_chosen_share(self.margin)
        if not bad:
            unclear = sum(one.verdict == "unclear" for one in self.matched)
            if unclear and unclear == n:
                return f"Too noisy to tell whether {counted} got slower beyond {margin}."
            rest = f" ({unclear} of them unclear: too noisy to tell)" if unclear else ""
            return f"No regression beyond {margin} in {counted}{rest}."
        worst = bad[0]
        named = printable(words(worst.values), _LONGEST)
        if worst.ratio is None:
            return f"{len(bad)} of {counted} got worse: {named} fails now: {worst.message}."
        return (
            f"{len(bad)} of {counted} slower beyond {margin}: {named} is {fmt_ratio(worst.ratio)} "
            f"as fast as before {fmt_interval(worst.low, worst.high)}."
        )

    def to_dict(self) -> dict[str, Any]:
        """What ``perfkit compare-runs --json`` prints."""
        schema = "perfkit.compare-runs/2"
        return fields(self, "sentence", schema=schema, regression=bool(self.regressions))


def compare_runs(
    before: str | os.PathLike[str], after: str | os.PathLike[str], *, margin: float = MARGIN
) -> RunsComparison:
    """Compare the runs in two stores, configuration by configuration.

    With several runs of a configuration, each in a fresh process, the interval comes from their
    spread (Welch 1947, on logarithms). If one side has a single run, it comes from the run's steps
    and leaves out differences between processes; a warning says so. All intervals together have 95
    % confidence (Bonferroni).

    Args:
        before, after: files written by ``perfkit.sweep`` or ``perfkit.ab`` with ``store=``.
        margin: share by which a configuration may be slower.

    Raises:
        StoreError: a file cannot be read or is not a store.
        UsageError: they have nothing to compare, or the margin is invalid.
    """
    try:
        share = math.nan if isinstance(margin, bool | str) else float(margin)
    except (TypeError, ValueError, OverflowError):
        share = math.nan
    if not 0 <= share < 10:
        raise UsageError(f"margin={margin!r:.60} is not valid: it is a share, e.g. 0.05 for 5 %")
    sides = [_Side(path) for path in (before, after)]
    common = [key for key in sides[0].groups if key in sides[1].groups]
    if not common:
        raise UsageError(
            f"{sides[0].name} and {sides[1].name} have no configuration in common: record both "
            f"with the same settings"
        )
    single: list[str] = []
    confidence = 1 - (1 - _CONFIDENCE) / len(common)
    matched = [
        _matched(sides[0].groups[key], sides[1].groups[key], share, confidence, single)
        for key in common
    ]
    matched.sort(key=lambda one: (not one.is_regression, one.ratio or 0.0))
    lonely = [
        tuple(side.groups[key][0].values for key in side.groups if key not in other.groups)
        for side, other in (sides, sides[::-1])
    ]
    warnings = [*sides[0].notes, *sides[1].notes, *_differences(*sides)]
    if single:
        warnings.append(
            f"a single run of {', '.join(single[:3])}{', …' if len(single) > 3 else ''}: what "
            f"differs from process to process is not in the interval; make several"
        )
    return RunsComparison(
        names=(sides[0].name, sides[1].name),
        margin=share,
        matched=tuple(matched),
        only_before=lonely[0],
        only_after=lonely[1],
        confidence=_CONFIDENCE,
        warnings=tuple(warnings),
        provenance=(sides[0].where, sides[1].where),
    )


class _Side:
    """One file: its runs by configuration."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        lines, notes = store.read(path)
        self.name = printable(str(path), _LONGEST)
        if not lines:
            why = f" ({notes[0]})" if notes else ""
            raise UsageError(f"{self.name} holds no run{why}: there is nothing to compare")
        self.notes = [f"{self.name}: {note}" for note in notes]
        self.groups: dict[str, list[RunResult]] = {}
        for line in lines:
            key = json.dumps(dict(line.run.values), sort_keys=True, default=repr)
            self.groups.setdefault(key, []).append(line.run)
        self.workloads = sorted({str(line.identity.get("workload", "")) for line in lines})
        self.last = lines[-1].run.provenance
        self.where = self.last.sentence()


def _matched(
    before: Sequence[RunResult],
    after: Sequence[RunResult],
    margin: float,
    confidence: float,
    single: list[str],
) -> Matched:
    good = [[run for run in runs if run.ok and run.mean_ms] for runs in (before, after)]
    values = before[0].values
    per: Literal["step", "sample"] = "step"
    work = [_median([run.samples_per_step for run in runs]) for runs in good]
    if work[0] and work[1] and is_other_work(work[0], work[1]):
        per = "sample"
    times = [
        [
            (run.mean_ms or 0.0) / ((run.samples_per_step or 1.0) if per == "sample" else 1.0)
            for run in runs
        ]
        for runs in good
    ]
    levels = [float(np.exp(np.mean(np.log(t)))) if t else None for t in times]
    # a single failed run among several counts as failing: it did not fail before
    failed = [next((run for run in runs if not run.ok), None) for runs in (before, after)]
    message = "" if failed[1] is None else f"{failed[1].state}: {failed[1].message}".rstrip(": ")
    counts = len(times[0]), len(times[1])
    if not times[0] or not times[1] or (failed[1] is not None and failed[0] is None):
        worse = failed[1] is not None and bool(times[0])
        verdict: Verdict = "fails now" if worse else "runs again" if times[1] else "unclear"
        return Matched(
            values, levels[0], levels[1], None, None, None, *counts, per, verdict, message
        )
    if min(counts) > 1:
        centre, low, high = _welch(times[0], times[1], confidence)
    else:
        single.append(printable(words(values), 60))
        centre, low, high = _of_steps(good[0], good[1], times, confidence)
    return Matched(
        values,
        levels[0],
        levels[1],
        centre,
        low,
        high,
        *counts,
        per,
        _verdict(low, high, margin),
        message,
    )


def _verdict(low: float, high: float, margin: float) -> Verdict:
    if high < 1 / (1 + margin):
        return "slower"
    if low > 1 + margin:
        return "faster"
    inside = low >= 1 / (1 + margin) and high <= 1 + margin
    return "within the margin" if inside else "unclear"


def _welch(
    before: Sequence[float], after: Sequence[float], confidence: float
) -> tuple[float, float, float]:
    """Ratio of geometric means, before ÷ after, with Welch's interval."""
    a, b = np.log(before), np.log(after)
    parts = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    difference = float(a.mean() - b.mean())
    error = math.sqrt(sum(parts))
    if error == 0:
        return math.exp(difference), math.exp(difference), math.exp(difference)
    # Satterthwaite's degrees of freedom, rounded down: better too wide than too narrow
    weights = parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
    freedom = max(int(sum(parts) ** 2 / weights), 1)
    half = t_quantile(confidence, freedom) * error
    return math.exp(difference), math.exp(difference - half), math.exp(difference + half)


def _of_steps(
    before: Sequence[RunResult],
    after: Sequence[RunResult],
    times: Sequence[Sequence[float]],
    confidence: float,
) -> tuple[float, float, float]:
    """The same from the steps of one run each; if a side has several runs, the widest interval."""
    centre = float(np.log(np.mean(times[0]) / np.mean(times[1])))
    found = [ratio(b, a) for a in before for b in after]
    spread = max(math.log(r.high / r.low) / 2 for r in found)
    wider = NormalDist().inv_cdf((1 + confidence) / 2) / NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    half = spread * wider
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def _differences(before: _Side, after: _Side) -> list[str]:
    """Differences of machine and software, which mean that not only the code differs."""
    a, b = before.last, after.last
    found = []
    if (a.machine, a.device) != (b.machine, b.device):
        found.append(
            f"different machines: {printable(f'{a.device}, {a.machine}', 80)} before, "
            f"{printable(f'{b.device}, {b.machine}', 80)} after: the ratio is theirs as well"
        )
    changed = [
        f"{name} {a.versions.get(name, 'none')} → {b.versions.get(name, 'none')}"
        for name in sorted({*a.versions, *b.versions} - {"perfkit"})
        if a.versions.get(name) != b.versions.get(name)
    ]
    if changed:
        found.append(f"different versions: {printable(', '.join(changed), _LONGEST)}")
    if before.workloads != after.workloads:
        names = " and ".join(", ".join(side.workloads) for side in (before, after))
        found.append(f"different workloads: {printable(names, _LONGEST)}")
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(np.median(known)) if known and len(known) == len(values) else None
