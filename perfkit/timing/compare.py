"""Is one version faster than the other, by how much, and how sure is that?

Both run in turn in ABBA blocks, so that what changes slowly (temperature, other load) meets both
alike. The figure is the ratio of the medians; its interval comes from resampling whole blocks.
"""

from __future__ import annotations

import functools
import gc
import inspect
import math
import numbers
import reprlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from perfkit._display import Shown, _report
from perfkit._printable import printable
from perfkit.errors import MeasurementError, UsageError
from perfkit.machine import Provenance, facts, stamp
from perfkit.timing._student import t_quantile
from perfkit.timing.clock import Clock, clock_in_use
from perfkit.timing.drift import Conditions, conditions, drift
from perfkit.timing.power import detectable, power
from perfkit.timing.summary import Summary, summarize

__all__ = ["Comparison", "Interval", "compare", "ratio_interval"]

_CONFIDENCE = 0.95
# The outer quantiles used with 6 blocks are about 0.3 %: of 1000 resamples three lie beyond.
_RESAMPLES = 1000
# From this many blocks on the expanded percentile interval covers by itself; see ratio_interval.
_PERCENTILE_FROM = 8
# Beyond this the bootstrap needs no help, and n² / 2 averages get many.
_SIGNED_RANK_UP_TO = 200
# One letter of ABBA lasts at least this long: long against a timer interrupt and the loop's own
# cost (about 30 ns a call), short against what changes on the machine.
_LETTER_NS = 5_000_000
# … and at least this many steps of the clock, so that its rounding stays below 0.1 %.
_LETTER_TICKS = 1000
_MOST_REPEATS = 10_000_000
_LONGEST_NAME = 60
# A trial that seems long enough may only have been interrupted. Trials of a tenth of a letter fit
# between interruptions, and the shortest of this many counts: fewer where calls are long, one
# where a call is so long that no interruption explains it.
_MOST_TRIALS = 8
_TRIALS = 3
_SURELY_LONG = 20
# Arms whose calls take about as long get the same number of calls in a letter: what interrupts
# them (a timer, the scheduler, a collection) then meets both alike.
_ALIKE = 2.0
# Measuring stops early when the interval is this narrow: 2 % of the ratio, or a tenth of the
# gain (in logarithms) where the gain is large. It looks at few, geometrically spaced moments and
# only at the width, because stopping when a difference is seen would see too many.
_TIGHT = 0.02
_TIGHT_OF_GAIN = 0.1
_LOOK_GROWTH = 1.5

# Five blocks cannot give 95 %: all of five lie on one side by chance in 6 % of the cases.
_FEWEST = 6
_OVERRUN = 1.2
_WIDE_INTERVAL = 0.10
_WIDE_SPREAD = 0.25
_FEW_BLOCKS = 8

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A ratio with its interval at ``confidence``."""

    ratio: float
    low: float
    high: float
    confidence: float

    @property
    def different(self) -> bool:
        """Whether 1 lies outside."""
        return not self.low <= 1 <= self.high

    @property
    def tight(self) -> bool:
        """Narrow enough to stop: 2 % wide, or a tenth of the gain."""
        width = math.log(self.high / self.low) if self.low > 0 else math.inf
        return width <= max(_TIGHT, _TIGHT_OF_GAIN * abs(math.log(self.ratio)))


@dataclass(frozen=True)
class Comparison(Shown):
    """Two callables, measured in turn.

    Attributes:
        names: of the first (expected to be slow) and the second.
        slow, fast: time per call of each, one value for each letter of the blocks.
        ratio: ``slow.median / fast.median``; 2 means that the second takes half the time.
        low, high: interval of the ratio at ``confidence``.
        confidence: of that interval.
        n_blocks: ABBA blocks measured.
        different: whether 1 lies outside the interval.
        sentence: the answer in words.
        warnings: what makes it doubtful.
        provenance: where and when it was measured.
        repeats: calls of each in one letter (more than 1 for very short callables).
        stopped: why it ended: ``"interval tight"``, ``"time budget"``, ``"most blocks"``, or
            ``"fewest blocks"`` where these took longer than the budget.
        duration_s: how long it all took, warm-up included.
        detectable: the smallest difference that such a comparison finds with 80 % probability,
            as a share (0.03 is a ratio of 1.03), predicted from the spread of the blocks: see
            :mod:`perfkit.timing.power`. None where it cannot be told.
    """

    names: tuple[str, str]
    slow: Summary
    fast: Summary
    ratio: float
    low: float
    high: float
    confidence: float
    n_blocks: int
    different: bool
    sentence: str
    warnings: tuple[str, ...]
    provenance: Provenance
    repeats: tuple[int, int] = (1, 1)
    stopped: str = "time budget"
    duration_s: float = 0.0
    detectable: float | None = None

    def power(self, effect: float = 0.03) -> float | None:
        """The probability with which such a comparison finds a difference of this share.

        Predicted, see :mod:`perfkit.timing.power`; None where it cannot be told.
        """
        interval = Interval(self.ratio, self.low, self.high, self.confidence)
        return power(interval, self.n_blocks, effect)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "names": list(self.names),
            "slow": self.slow.to_dict(),
            "fast": self.fast.to_dict(),
            "ratio": self.ratio,
            "low": self.low,
            # an infinite end (one block) has no JSON form
            "high": self.high if math.isfinite(self.high) else None,
            "confidence": self.confidence,
            "n_blocks": self.n_blocks,
            "different": self.different,
            "sentence": self.sentence,
            "warnings": list(self.warnings),
            "provenance": self.provenance.to_dict(),
            "repeats": list(self.repeats),
            "stopped": self.stopped,
            "duration_s": self.duration_s,
            "detectable": self.detectable,
            "power_for_3_percent": self.power(),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(_report().mime_bundle(self, "comparison"))


def compare(
    slow: Callable[[], object],
    fast: Callable[[], object],
    *,
    names: tuple[str, str] | None = None,
    budget_s: float = 20.0,
    min_blocks: int = _FEWEST,
    max_blocks: int = 200,
    warmup: int = 2,
    seed: int = 0,
    clock: Clock | None = None,
) -> Comparison:
    """Measure two callables in turn and tell the ratio of their times with its interval.

    Blocks of slow-fast-fast-slow and fast-slow-slow-fast follow one another in random order,
    until the interval is tight, the time budget is spent, or ``max_blocks`` are done. On a CUDA
    device each letter ends with a synchronisation, so the device's work is counted with the
    call that asked for it. Exceptions of the callables and interrupts come through unchanged.

    Args:
        slow: what is expected to take longer; called without arguments, its result is dropped.
        fast: the other one.
        names: what the two are called in the report. By default their own names where both are
            named functions, else ``"first"`` and ``"second"``.
        budget_s: seconds to spend; at least ``min_blocks`` blocks are measured even if that
            takes longer, and a warning tells by how much.
        min_blocks: fewest blocks, at least 2. Below 6 the interval gets very wide.
        max_blocks: most blocks.
        warmup: calls of each before measuring; one call is made in any case.
        seed: of the block order and of the resampling.
        clock: by default CUDA's where the callables have initialised CUDA, else the host's.

    Raises:
        UsageError: something cannot be called without arguments, or returns a generator or
            coroutine (a call would then measure nothing), or a number or name makes no sense.
        MeasurementError: the clock did not advance during the calls.
    """
    names = _own_names(slow, fast) if names is None else _checked_names(names)
    _check_numbers(budget_s, min_blocks, max_blocks, warmup, seed)
    for name, function in zip(names, (slow, fast), strict=True):
        _check_callable(name, function)
    wall = time.monotonic_ns if clock is None else clock.now
    before = conditions()
    began = wall()
    for name, function in zip(names, (slow, fast), strict=True):
        _warm_up(name, function, warmup)
    clock = clock_in_use() if clock is None else clock
    repeats = _repeats(slow, fast, clock)
    # what building and warming up left behind is not collected inside a letter
    gc.collect()

    def letter(which: int) -> float:
        count = repeats[which]
        return _time(slow if which == 0 else fast, count, clock) / count

    order = np.random.default_rng(seed)
    first_block = wall()
    arms: tuple[list[list[float]], list[list[float]]] = ([], [])
    next_look = min_blocks
    while True:
        outer = int(order.integers(2))
        pair: tuple[list[float], list[float]] = ([], [])
        for which in (outer, 1 - outer, 1 - outer, outer):
            pair[which].append(letter(which))
        for arm, times in zip(arms, pair, strict=True):
            arm.append(times)
        done = len(arms[0])
        if done < min_blocks:
            continue
        stopped = ""
        if done >= max_blocks:
            stopped = "most blocks"
        elif (now := wall()) - began + (now - first_block) / done > budget_s * 1e9:
            # the next block would not fit; did the fewest that had to be?
            over = done == min_blocks and now - began > budget_s * 1e9
            stopped = "fewest blocks" if over else "time budget"
        if stopped or done >= next_look:
            next_look = math.ceil(done * _LOOK_GROWTH)
            interval = ratio_interval(arms[0], arms[1], seed=seed)
            if interval.tight:
                stopped = "interval tight"
        if stopped:
            return _comparison(
                names,
                np.array(arms[0]),
                np.array(arms[1]),
                interval,
                clock=clock,
                repeats=repeats,
                stopped=stopped,
                duration_s=(wall() - began) / 1e9,
                budget_s=budget_s,
                seed=seed,
                before=before,
            )


def ratio_interval(
    slow: Sequence[Sequence[float]] | _Array,
    fast: Sequence[Sequence[float]] | _Array,
    *,
    confidence: float = _CONFIDENCE,
    seed: int = 0,
) -> Interval:
    """Ratio of the medians of two arms, with an interval from resampling whole blocks.

    A plain percentile bootstrap is too narrow for few blocks: in simulated A/A comparisons
    (lognormal jitter, spikes, drift, correlated load, bursts) it saw a difference that was not
    there in 10–20 % of the cases with 4 blocks, 6–14 % with 6 and 3–9 % with 8. Two remedies:

    * The quantiles are moved outwards as Student's t is wider than the normal distribution and
      as a resample's variance is smaller by (n - 1) / n: the *expanded percentile interval*
      (Hesterberg 2015, What Teachers Should Know About the Bootstrap, section 5.3). It gave
      0–4 % from 8 blocks on.
    * With fewer blocks no quantile can lie outside what a resample can give, so the interval is
      the wider, on either side, of that and the bootstrap's standard error times t.

    Both still fail where a letter is as short as the scheduler's time slice and a busy machine
    makes times of two kinds: with 6 blocks, 4 to 8 of 60 real A/A comparisons under load. So the
    interval also spans the signed-rank interval of the blocks' own ratios (Hodges and Lehmann
    1963). The order within a block is drawn by chance, so without a difference each block's ratio
    is as likely turned round, whatever the machine does, and from 6 blocks on this interval
    misses 1 in at most 5 % of the cases.

    Args:
        slow, fast: blocks × letters, positive times in the same unit and the same block order.
        confidence: of the interval.
        seed: of the resampling.

    Raises:
        UsageError: the arms differ in shape or are empty.
        MeasurementError: a median is not positive.
    """
    a, b = np.asarray(slow, dtype=np.float64), np.asarray(fast, dtype=np.float64)
    if a.ndim != 2 or a.shape != b.shape or a.size == 0:
        raise UsageError(f"both arms need the same blocks × letters, got {a.shape} and {b.shape}")
    centre_a, centre_b = float(np.median(a)), float(np.median(b))
    if centre_a <= 0 or centre_b <= 0:
        raise MeasurementError(
            "the clock did not advance during the calls: there is no time to compare"
        )
    ratio = centre_a / centre_b
    n = len(a)
    if n < 2:
        return Interval(ratio, 0.0, math.inf, confidence)
    picks = np.random.default_rng(seed).integers(0, n, (_RESAMPLES, n))
    medians_a = np.median(a[picks].reshape(_RESAMPLES, -1), axis=1)
    medians_b = np.median(b[picks].reshape(_RESAMPLES, -1), axis=1)
    usable = (medians_a > 0) & (medians_b > 0)
    resampled = np.log(medians_a[usable] / medians_b[usable])
    quantile = t_quantile(confidence, n - 1)
    tail = NormalDist().cdf(-quantile * math.sqrt(n / (n - 1)))
    low, high = (float(q) for q in np.quantile(resampled, [tail, 1 - tail]))
    if n < _PERCENTILE_FROM:
        error = float(np.std(resampled)) * math.sqrt(n / (n - 1))
        low = min(low, math.log(ratio) - quantile * error)
        high = max(high, math.log(ratio) + quantile * error)
    own = _signed_rank_interval(a, b, confidence)
    if own is not None:
        low, high = min(low, own[0]), max(high, own[1])
    return Interval(ratio, math.exp(low), math.exp(high), confidence)


def _signed_rank_interval(a: _Array, b: _Array, confidence: float) -> tuple[float, float] | None:
    """Interval of the centre of the blocks' log ratios; None where there are too few or many."""
    usable = (a > 0).all(axis=1) & (b > 0).all(axis=1)
    own = np.log(a[usable]).mean(axis=1) - np.log(b[usable]).mean(axis=1)
    n = len(own)
    if not 2 <= n <= _SIGNED_RANK_UP_TO:
        return None
    rows, columns = np.triu_indices(n)
    walsh = np.sort((own[rows] + own[columns]) / 2)
    rank = _signed_rank(n, confidence)
    return float(walsh[rank]), float(walsh[-1 - rank])


@functools.cache
def _signed_rank(n: int, confidence: float) -> int:
    """How many Walsh averages of n blocks lie outside on either side (exact distribution)."""
    share = np.zeros(n * (n + 1) // 2 + 1)
    share[0] = 1.0
    for rank in range(1, n + 1):  # each rank is in the sum or is not
        share[rank:] = (share[rank:] + share[:-rank]) / 2
        share[:rank] /= 2
    below = np.cumsum(share)
    # a sum of ranks of this much or less would be significant: one average fewer may be cut off
    return max(int(np.searchsorted(below, (1 - confidence) / 2, side="right")) - 1, 0)


def _time(function: Callable[[], object], count: int, clock: Clock) -> float:
    """Milliseconds of ``count`` calls, the device's work included."""
    clock.settle()
    start = clock.now()
    for _ in range(count):
        function()
    clock.settle()
    return max(clock.now() - start, 0) / 1e6


def _repeats(
    slow: Callable[[], object], fast: Callable[[], object], clock: Clock
) -> tuple[int, int]:
    """How many calls of each make one letter long against clock and interruptions."""
    wanted_ms = max(_LETTER_NS, _LETTER_TICKS * clock.resolution_ns) / 1e6
    calls_ms = _per_call_ms(slow, wanted_ms, clock), _per_call_ms(fast, wanted_ms, clock)
    if max(calls_ms) <= _ALIKE * min(calls_ms):
        calls_ms = (min(calls_ms),) * 2
    first, second = (
        min(max(math.ceil(wanted_ms / call_ms), 1), _MOST_REPEATS) if call_ms else _MOST_REPEATS
        for call_ms in calls_ms
    )
    return first, second


def _per_call_ms(function: Callable[[], object], wanted_ms: float, clock: Clock) -> float:
    """What one call takes when nothing interrupts it; 0 if the clock never shows it."""
    short_ms = wanted_ms / 10
    count = 1
    while True:
        took_ms = total_ms = _time(function, count, clock)
        trials = 1
        while took_ms >= short_ms and total_ms < _SURELY_LONG * wanted_ms:
            if trials == _MOST_TRIALS or (trials >= _TRIALS and total_ms > _TRIALS * wanted_ms):
                break
            again_ms = _time(function, count, clock)
            took_ms, total_ms, trials = min(took_ms, again_ms), total_ms + again_ms, trials + 1
        if took_ms >= short_ms or count >= _MOST_REPEATS:
            return took_ms / count
        # aim 20 % beyond the goal, but trust a too short measurement for a factor of 10 only
        growth = 1.2 * short_ms / took_ms if took_ms > 0 else 10.0
        count = min(math.ceil(count * min(max(growth, 1.2), 10.0)), _MOST_REPEATS)


def _warm_up(name: str, function: Callable[[], object], warmup: int) -> None:
    result = function()
    kind = (
        "coroutine"
        if inspect.iscoroutine(result)
        else "generator"
        if inspect.isgenerator(result) or inspect.isasyncgen(result)
        else "awaitable"
        if inspect.isawaitable(result)
        else ""
    )
    if kind:
        close = getattr(result, "close", None)
        if close is not None:
            close()  # else Python warns that the coroutine was never awaited
        raise UsageError(
            f"calling {name!r} only makes a {kind} and runs nothing: give compare() a function "
            f"that runs it to its end"
        )
    del result
    for _ in range(warmup - 1):
        function()


def _own_names(first: object, second: object) -> tuple[str, str]:
    """What the two are called where the user names neither."""
    own = tuple(inspect.unwrap(f).__name__ if inspect.isroutine(f) else "" for f in (first, second))
    if own[0] == own[1] or "" in own or "<lambda>" in own:
        return "first", "second"
    return _checked_names(own)


def _checked_names(names: object) -> tuple[str, str]:
    if (
        not isinstance(names, Sequence)
        or isinstance(names, str)
        or len(names) != 2
        or not all(isinstance(n, str) for n in names)
    ):
        raise UsageError(f"names must be two strings, got {_shown(names)}")
    first, second = (printable(name, _LONGEST_NAME) for name in names)
    if first == second:
        raise UsageError(f"names must differ, got {first!r} twice")
    return first, second


def _check_numbers(
    budget_s: object, min_blocks: object, max_blocks: object, warmup: object, seed: object
) -> None:
    if not _is_real(budget_s) or not (budget_s > 0 and math.isfinite(budget_s)):
        raise UsageError(f"budget_s must be a positive number of seconds, got {_shown(budget_s)}")
    if not _is_whole(min_blocks) or min_blocks < 2:
        raise UsageError(f"min_blocks must be a whole number ≥ 2, got {_shown(min_blocks)}")
    if not _is_whole(max_blocks) or max_blocks < min_blocks:
        raise UsageError(
            f"max_blocks must be a whole number not below min_blocks ({min_blocks}), got "
            f"{_shown(max_blocks)}"
        )
    for what, number in (("warmup", warmup), ("seed", seed)):
        if not _is_whole(number) or number < 0:
            raise UsageError(f"{what} must be a whole number ≥ 0, got {_shown(number)}")


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, (numbers.Real, np.floating)) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return printable(reprlib.repr(value), _LONGEST_NAME)


def _check_callable(name: str, function: object) -> None:
    if not callable(function):
        raise UsageError(
            f"{name!r} is a {type(function).__name__}, not callable: pass the function itself, "
            f"not its result"
        )
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = type(inner).__call__
    for is_kind, kind in (
        (inspect.isgeneratorfunction, "generator"),
        (inspect.iscoroutinefunction, "coroutine"),
        (inspect.isasyncgenfunction, "async generator"),
    ):
        if is_kind(inner):
            raise UsageError(
                f"{name!r} is a {kind} function: calling it runs nothing; give compare() a "
                f"function that runs it to its end"
            )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have none; the call will tell
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"{name!r} cannot be called without arguments ({error}): wrap it in a lambda"
        ) from None


def _comparison(
    names: tuple[str, str],
    slow: _Array,
    fast: _Array,
    interval: Interval,
    *,
    clock: Clock,
    repeats: tuple[int, int],
    stopped: str,
    duration_s: float,
    budget_s: float,
    seed: int,
    before: Conditions,
) -> Comparison:
    unit, scale = _unit(float(np.median(slow)))
    return Comparison(
        names=names,
        slow=summarize(slow.ravel() * scale, unit=unit),
        fast=summarize(fast.ravel() * scale, unit=unit),
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        n_blocks=len(slow),
        different=interval.different,
        sentence=sentence(names, interval),
        warnings=(
            *_overrun(len(slow), duration_s, budget_s),
            *doubts(slow, fast, interval, before=before),
        ),
        provenance=stamp(
            "measured here",
            command=f"perfkit.compare({names[0]}, {names[1]})",
            seed=seed,
            device=None if clock.device != "cpu" else "cpu",
        ),
        repeats=repeats,
        stopped=stopped,
        duration_s=duration_s,
        detectable=detectable(interval, len(slow)),
    )


def _unit(median_ms: float) -> tuple[str, float]:
    if median_ms < 0.1:
        return "µs", 1e3
    return ("s", 1e-3) if median_ms >= 10_000 else ("ms", 1.0)


def sentence(names: tuple[str, str], interval: Interval) -> str:
    """The answer in words; ``names`` of the first (slow) and the second."""
    slow, fast = names
    percent = f"{100 * interval.confidence:.0f} %"
    ratio, low, high = interval.ratio, interval.low, interval.high
    if not interval.different:
        return (
            f"No difference seen between {slow!r} and {fast!r}: the ratio {_digits(ratio)} has "
            f"the {percent} interval [{_digits(low)}, {_digits(high)}], and 1 lies inside."
        )
    if ratio >= 1:
        return (
            f"{fast!r} is {_digits(ratio)}× as fast as {slow!r} "
            f"({percent} interval [{_digits(low)}, {_digits(high)}])."
        )
    return (
        f"{fast!r} is slower: it takes {_digits(1 / ratio)}× the time of {slow!r} "
        f"({percent} interval [{_digits(1 / high)}, {_digits(1 / low)}])."
    )


def _digits(x: float) -> str:
    """Three significant digits without an exponent; three decimals near 1, where they matter."""
    if not math.isfinite(x) or x <= 0:
        return "∞" if x > 0 else f"{x:.0f}"
    if 0.9 < x < 1.1:
        return f"{x:.3f}"
    return f"{x:.{min(max(2 - math.floor(math.log10(x)), 0), 6)}f}"


def _overrun(n_blocks: int, duration_s: float, budget_s: float) -> list[str]:
    if duration_s <= _OVERRUN * budget_s:
        return []
    fewest = "the fewest that give an interval" if n_blocks <= _FEWEST else "the fewest asked for"
    return [
        f"{n_blocks} blocks and their warm-up took {duration_s:.3g} s, budget_s was "
        f"{budget_s:g}: {fewest}"
    ]


def doubts(
    slow: _Array, fast: _Array, interval: Interval, *, before: Conditions | None = None
) -> list[str]:
    """What makes the interval of two arms doubtful: few blocks, spread, and drift of both.

    ``before``: the machine's state when the measuring began, to name the cause of a drift.
    """
    found = []
    n = len(slow)
    if n < _FEW_BLOCKS and not interval.tight:
        found.append(f"only {n} blocks: the interval is wide by necessity; raise budget_s")
    half = math.sqrt(interval.high / interval.low) - 1 if interval.low > 0 else math.inf
    if n >= _FEW_BLOCKS and half > _WIDE_INTERVAL:
        found.append(
            f"the ratio is known to ±{100 * half:.0f} % only: raise budget_s, or measure on a "
            f"quieter machine"
        )
    # the block's own ratio: what is left after slow changes have cancelled
    means = slow.mean(axis=1), fast.mean(axis=1)
    usable = (means[0] > 0) & (means[1] > 0)
    ratios = means[0][usable] / means[1][usable]
    lower, upper = np.quantile(ratios, [0.25, 0.75])
    spread = float((upper - lower) / np.median(ratios))
    if spread > _WIDE_SPREAD:
        found.append(
            f"unsteady: the ratio of the middle half of the blocks spans {100 * spread:.0f} %"
        )
    after = conditions() if before is not None else None
    drifted = drift(slow, fast, before=before, after=after, cores=facts().cores)
    return [*found, drifted] if drifted else found
