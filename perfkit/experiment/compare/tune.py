"""Find a faster combination of settings, then verify that it is faster.

::

    print(perfkit.tune(workload, ["num_workers", "channels_last", "compile"]))

A search picks the luckiest of many candidates, so its result is checked: the proposal runs against
the start once more (:func:`perfkit.ab`). It is recommended only if it is distinguishably faster
there and gives the same result within the tolerance of its precision.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base.budget import scaled
from perfkit.base.display import Shown
from perfkit.base.errors import SettingError, WorkloadError
from perfkit.base.machine import facts
from perfkit.base.progress import Progress, Say
from perfkit.base.words import fmt_interval, fmt_ratio
from perfkit.experiment.compare.ab import ABResult, ab
from perfkit.experiment.compare.sweep import Point, Sweep, sweep
from perfkit.experiment.process.session import positive
from perfkit.experiment.settings import Setting, Settings, check_mapping, check_values, resolve
from perfkit.experiment.settings._declared import words

if TYPE_CHECKING:
    from os import PathLike

# Up to this many, all combinations are swept together; above, one setting after the other.
_TOGETHER_UP_TO = 12
# Share of the budget for the search; the rest verifies its result.
_SEARCH_SHARE = 0.6


@dataclass(frozen=True)
class Tuning(Shown):
    """The result of :func:`tune`: what the search proposes, and what the verification says.

    Attributes:
        start: the values at the start.
        proposed: the fastest values found; the start if nothing was distinguishably faster.
        verified: start (``a``) against proposal (``b``); None if they are equal or one of them
            could not run.
        recommended: whether the proposal is distinguishably faster and no change of the result was
            seen.
        sweeps: the sweeps of the search.
        sentence: the answer in words.
        warnings: reasons to doubt it.
    """

    start: Mapping[str, Any]
    proposed: Mapping[str, Any]
    verified: ABResult | None
    recommended: bool
    sweeps: tuple[Sweep, ...]
    sentence: str
    warnings: tuple[str, ...]
    duration_s: float


def tune(
    workload: Callable[[Settings], Any],
    settings: Sequence[str | Setting],
    *,
    start: Mapping[str, Any] | None = None,
    budget_s: float = 240.0,
    store: str | PathLike[str] | None = None,
    seconds: float | None = None,
    step_timeout_s: float = 60.0,
    start_timeout_s: float = 300.0,
    warmup: int = 3,
    seed: int = 0,
    say: Say | bool | None = None,
) -> Tuning:
    """Search for the fastest combination of the settings' values and verify it against the start.

    Up to 12 combinations are swept together. With more, the settings are tried one after the other,
    and a new value is kept if it is distinguishably faster than the previous one.

    Args:
        workload: a generator function that takes the settings and yields once per step; see
            :class:`~perfkit.experiment.process.session.Session`.
        settings: the settings to vary, over the values that they offer; values that are not
            available here are skipped.
        start: values to start from, if not the defaults.
        budget_s: seconds for search (60 %) and verification.
        store: a JSONL file; a second call resumes where the first was cut off.
        seconds, step_timeout_s, start_timeout_s, warmup, seed, say: see
            :func:`perfkit.sweep`.

    Returns:
        A :class:`Tuning`: ``proposed``, ``verified``, ``recommended``, ``sentence``.

    Raises:
        SettingError: there is no setting, or a value is invalid or not available.
        StoreError: see :func:`perfkit.sweep`.

    Example, with the workload of :func:`perfkit.ab`::

        >>> sizes = perfkit.setting("batch_size", [32, 128, 512])
        >>> print(perfkit.tune(workload, [sizes], budget_s=60))
    """
    budget = positive("budget_s", budget_s)
    known = resolve(settings)
    if not known:
        raise SettingError("there is nothing to tune: name the settings to vary")
    if start is not None:
        check_mapping("start", start)
    begin = check_values(known, dict(start or {}), facts())
    began_s = time.monotonic()
    # the budget is scaled in each part
    progress = Progress("", say, total_s=scaled(budget))
    options: dict[str, Any] = {
        "store": store,
        "step_timeout_s": step_timeout_s,
        "start_timeout_s": start_timeout_s,
        "warmup": warmup,
        "seed": seed,
        "say": progress,
    }
    n = math.prod(len(one.values) for one in known)
    groups = [known] if n <= _TOGETHER_UP_TO else [(one,) for one in known]
    current, sweeps = dict(begin), []
    warnings: list[str] = []
    verified = None
    failed = ""
    with progress:
        for group in groups:
            found = sweep(
                workload,
                {one.name: _offered(one, begin[one.name]) for one in group},
                settings=[one for one in known if one not in group],
                base={k: v for k, v in current.items() if k not in {one.name for one in group}},
                budget_s=_SEARCH_SHARE * budget / len(groups),
                seconds=seconds,
                **options,
            )
            sweeps.append(found)
            warnings += found.warnings
            current |= _faster(found, current)
        if current != begin:
            progress.line(f"verifying: {_change(begin, current)}")
            try:
                verified = ab(
                    workload,
                    begin,
                    current,
                    settings=known,
                    budget_s=(1 - _SEARCH_SHARE) * budget,
                    names=("start", "proposal"),
                    **options,
                )
                warnings += verified.warnings
            except WorkloadError as error:
                failed = str(error)
    recommended, sentence = _judged(begin, current, verified, failed)
    if not any(found.best for found in sweeps):
        sentence = _nothing_ran(sweeps)
    return Tuning(
        start=begin,
        proposed=current,
        verified=verified,
        recommended=recommended,
        sweeps=tuple(sweeps),
        sentence=sentence,
        warnings=tuple(dict.fromkeys(warnings)),
        duration_s=time.monotonic() - began_s,
    )


def _offered(one: Setting, begin: Any) -> list[Any]:
    """The values that it offers and that are available here, plus that of the start."""
    machine = facts()
    here = [v for v in one.values if one.unavailable(v, machine) is None]
    if not any(v == begin and type(v) is type(begin) for v in here):
        here.insert(0, begin)
    return here


def _faster(found: Sweep, current: Mapping[str, Any]) -> dict[str, Any]:
    """The best point's values if it is distinguishably faster than the current one."""
    best = found.best
    if best is None:
        return {}
    now = _point(found, current)
    ratio = None if now is None else found.ratio(now)
    if ratio is None:
        # the current one failed, or was skipped as a duplicate, whose twin took part
        return dict(best.values) if now is not None and now.state != "measured" else {}
    return dict(best.values) if ratio.low > 1 else {}


def _point(found: Sweep, values: Mapping[str, Any]) -> Point | None:
    return next(
        (p for p in found.points if all(values[name] == v for name, v in p.values.items())), None
    )


def _judged(
    begin: Mapping[str, Any], proposed: Mapping[str, Any], verified: ABResult | None, failed: str
) -> tuple[bool, str]:
    """Whether the proposal is recommended, and why."""
    if proposed == begin:
        return False, (
            f"Keep the start ({words(begin)}): nothing that was tried is distinguishably faster."
        )
    change = _change(begin, proposed)
    if verified is None:
        return False, f"Not recommended: {change}. It could not be verified: {failed}."
    ratio, same = verified.ratio, verified.same
    figures = f"{fmt_ratio(ratio)} {fmt_interval(verified.low, verified.high)} per {verified.per}"
    if not verified.different or ratio < 1:
        return False, (
            f"Not recommended: {change}. The search found it faster; the verification against the "
            f"start did not: {figures}."
        )
    if same is not None and same.same is False:
        return False, (
            f"Not recommended: {change}. It is {figures} as fast as the start, but does not "
            f"give the same result: {same.sentence}"
        )
    told = "" if same is None else f" {same.sentence}"
    if same is None or same.same is None:
        told = f" Whether it learns the same is unknown.{told}"
    return True, f"Recommended: {change}. Verified against the start: {figures} as fast.{told}"


def _nothing_ran(sweeps: Sequence[Sweep]) -> str:
    why = next((p.message for found in sweeps for p in found.points if p.message), "")
    return f"Nothing that was tried could be measured, the start included{': ' * bool(why)}{why}."


def _change(begin: Mapping[str, Any], proposed: Mapping[str, Any]) -> str:
    changed = {name: value for name, value in proposed.items() if begin[name] != value}
    return words(changed) if changed else "no change"
