"""Is one version faster than the other, by how much, and how sure is that?

The two take turns in ABBA blocks, so that slow changes (temperature, other load) affect both alike.
The answer is the ratio of their times within blocks, with its interval: see
:mod:`perfkit.measure.paired`.
"""

from __future__ import annotations

import gc
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.base.arguments import check_function, check_seconds, check_whole, shown
from perfkit.base.budget import scaled
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.machine.cpu_contention import this_thread
from perfkit.base.plain import fields
from perfkit.base.printable import printable
from perfkit.base.progress import Progress
from perfkit.base.trend import drift_of
from perfkit.base.words import (
    fmt_chosen_share,
    fmt_interval,
    fmt_ratio,
    fmt_s,
    fmt_share,
    no_difference,
    plural,
)
from perfkit.measure.clock import Clock, clock_in_use
from perfkit.measure.paired import FEWEST, Array, Interval, Looks, ratio_interval
from perfkit.measure.summary import WIDE_SPREAD, Summary, summarize

# One letter of ABBA lasts at least this long: long compared with a timer interrupt and the loop's
# own cost (about 30 ns per call), short compared with changes of the machine.
_LETTER_MS = 5.0
_MOST_REPEATS = 10_000_000
_LONGEST_NAME = 60
# A trial that seems long enough may have been interrupted: the shortest of so many counts, each a
# tenth of a letter. A call too long for an interruption to explain gets one.
_TRIALS = 3
_SURELY_LONG = 20
# Arms whose calls take about equally long get the same number of calls per letter, so that
# interruptions (timer, scheduler, garbage collection) affect both alike.
_ALIKE = 2.0
# Warm-up and finding the repeats take at most these shares of the budget; the rest is for blocks.
# One call of each is always made.
_WARM_UP_SHARE = 0.25
_REPEATS_SHARE = 0.35
_OVERRUN = 1.2
_WIDE_INTERVAL = 0.10


@dataclass(frozen=True)
class Comparison(Shown):
    """The result of :func:`compare`: two callables, measured in turn.

    Attributes:
        a, b: time per call of each in milliseconds, one value per letter of the blocks.
        ratio: time of ``a`` ÷ time of ``b``, within blocks; 2 means that ``b`` takes half the time,
            0.5 that it takes twice the time. (Close to ``a.median / b.median``, which unlike this
            is affected by drift.)
        low, high: interval of the ratio at ``confidence``; 0 and infinity if only one or two blocks
            fitted into the budget.
        n_blocks: ABBA blocks measured. If not even one fits, one call of each counts as one.
        different: whether the interval excludes 1.
        repeats: calls of each per letter (more than 1 for very short callables).
        stopped: why measuring ended: ``"interval tight"``, ``"time budget"`` or ``"most blocks"``.
        duration_s: how long it took in all, including warm-up.
        detectable: the smallest difference that such a comparison detects with 80 % probability, as
            a share (0.03 is a ratio of 1.03), predicted from the spread of the blocks: see
            :attr:`perfkit.measure.paired.Interval.detectable`. None if there are too few blocks.
    """

    names: tuple[str, str]
    a: Summary
    b: Summary
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
    ratios: tuple[float, ...] = ()

    @property
    def faster(self) -> str:
        """The name of the faster one; empty if no difference was seen."""
        return self.names[self.ratio > 1] if self.different else ""

    def to_dict(self) -> dict[str, Any]:
        return fields(self, "faster")


def compare(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    names: tuple[str, str] | None = None,
    budget_s: float = 20.0,
    min_blocks: int = FEWEST,
    max_blocks: int = 1000,
    warmup: int = 2,
    seed: int = 0,
    clock: Clock | None = None,
) -> Comparison:
    """Time two callables in turn and report the ratio of their times, with its interval.

    Blocks of a-b-b-a and b-a-a-b run in random order until the interval is tight, the time budget
    is spent, or ``max_blocks`` are done. On a CUDA device each turn ends with a synchronisation, so
    the device's work counts towards the call that launched it. Exceptions propagate unchanged.

    Args:
        a: a function, called without arguments; its result is discarded. Usually what you have now.
        b: the other one, usually your change. Which of the two is faster is what you find out.
        names: what to call the two in the report. By default their own names if both are named
            functions, else ``"first"`` and ``"second"``.
        budget_s: seconds to spend in all. Long calls give fewer blocks and a wider interval, or
            none. Only the first two calls of each may overrun it.
        min_blocks: fewest blocks before a tight interval may end the measurement; at least 2.
        max_blocks: most blocks.
        warmup: calls of each before measuring. One is always made; the others only within the first
            quarter of the budget.
        seed: seed of the random order within blocks.
        clock: the clock to use; by default CUDA's if the callables have initialised CUDA, else
            the host's.

    Returns:
        A :class:`Comparison`: ``ratio`` with ``low`` and ``high``, ``different``, ``sentence``,
        ``warnings``. Print it, or display it in a notebook.

    Raises:
        UsageError: an argument cannot be called without arguments or returns a generator or
            coroutine (a call would then measure nothing), or a number or name is invalid.
        MeasurementError: the clock did not advance during the calls.

    Example::

        >>> large, small = torch.rand(512, 512), torch.rand(64, 64)
        >>> print(perfkit.compare(lambda: large @ large, lambda: small @ small, budget_s=2))
    """
    check_function("a", a)
    check_function("b", b)
    if clock is not None and not callable(getattr(clock, "now", None)):
        raise UsageError(
            f"clock is {shown(clock)}; give a Clock of perfkit.measure, or leave it out"
        )
    names = _own_names(a, b) if names is None else _checked_names(names)
    check_seconds("budget_s", budget_s)
    check_whole("min_blocks", min_blocks, 2)
    check_whole("max_blocks", max_blocks, min_blocks)
    check_whole("warmup", warmup, 0)
    check_whole("seed", seed, 0)
    budget_s = scaled(budget_s)
    for name, function in zip(names, (a, b), strict=True):
        _check_callable(name, function)
    wall = time.monotonic_ns if clock is None else clock.now
    began = wall()
    budget_ns = budget_s * 1e9

    def spent(share: float = 1.0, needed_ns: float = 0.0) -> bool:
        return wall() - began + needed_ns > share * budget_ns

    with Progress(f"{names[0]} | {names[1]}", total_s=budget_s) as progress:
        for name, function in zip(names, (a, b), strict=True):
            _first_call(name, function)
        # The garbage of building, if there is time. The warm-up comes after it: meanwhile the queue
        # of a loader fills, and the next call finds more in it than any later one.
        if not spent(_WARM_UP_SHARE):
            gc.collect()
        clock = clock_in_use() if clock is None else clock
        calls_ms = 0.0, 0.0
        for _ in range(warmup - 1):
            if spent(_WARM_UP_SHARE):
                break
            calls_ms = _time(a, 1, clock), _time(b, 1, clock)

        repeats = 1, 1

        def letter(which: int) -> float:
            count = repeats[which]
            return _time(a if which == 0 else b, count, clock) / count

        mark = this_thread()
        order = np.random.default_rng(seed)
        arms: tuple[list[list[float]], list[list[float]]] = ([], [])
        stopped = ""
        if spent(_WARM_UP_SHARE):
            calls_ms = letter(0), letter(1)
            if spent(needed_ns=2e6 * sum(calls_ms)):  # no whole block fits: use the pair
                arms, stopped = ([[calls_ms[0]]], [[calls_ms[1]]]), "time budget"
        if not stopped:
            repeats = _repeats(a, b, clock, calls_ms, lambda: spent(_REPEATS_SHARE))
        first_block = wall()
        looks = Looks(min_blocks)
        while not stopped:
            outer = int(order.integers(2))
            block: tuple[list[float], list[float]] = ([], [])
            for which in (outer, 1 - outer, 1 - outer, outer):
                block[which].append(letter(which))
            for arm, times in zip(arms, block, strict=True):
                arm.append(times)
            done = len(arms[0])
            if progress.is_due:
                _tell(progress, arms)
            if done >= max_blocks:
                stopped = "most blocks"
            elif spent(needed_ns=(wall() - first_block) / done):
                stopped = "time budget"
            elif looks.is_due(done) and ratio_interval(*arms).tight:
                stopped = "interval tight"
    duration_s = (wall() - began) / 1e9
    over = f"two calls of each took {fmt_s(duration_s)}, more than the budget of {budget_s:g} s"
    a_ms, b_ms = map(np.array, arms)
    interval = ratio_interval(a_ms, b_ms)
    return Comparison(
        names=names,
        a=summarize(a_ms.ravel(), unit="ms"),
        b=summarize(b_ms.ravel(), unit="ms"),
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        n_blocks=len(a_ms),
        ratios=tuple((a_ms.mean(axis=1) / b_ms.mean(axis=1)).tolist()) if (b_ms > 0).all() else (),
        different=interval.different,
        sentence=sentence(names, interval),
        warnings=doubts(
            a_ms,
            b_ms,
            interval,
            busy=mark.until_now().sentence(),
            over=over * (duration_s > _OVERRUN * budget_s),
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
        detectable=interval.detectable,
    )


def _tell(progress: Progress, arms: tuple[list[list[float]], list[list[float]]]) -> None:
    """The blocks so far; what stops the measurement does not look at it."""
    done = plural(len(arms[0]), "block")
    found = ratio_interval(*arms)
    if not found.known:
        progress.line(done)
        return
    ratio = f"{fmt_ratio(found.ratio)} {fmt_interval(found.low, found.high)}"
    progress.line(f"{done}, ratio {ratio}", interval=(found.low, found.high))


def _time(function: Callable[[], object], count: int, clock: Clock) -> float:
    """Milliseconds for ``count`` calls, including the device's work."""
    clock.settle()
    start = clock.now()
    for _ in range(count):
        function()
    clock.settle()
    return max(clock.now() - start, 0) / 1e6


def _repeats(
    a: Callable[[], object],
    b: Callable[[], object],
    clock: Clock,
    calls_ms: tuple[float, float],  # of a warm one; 0 if there was none
    enough: Callable[[], bool],
) -> tuple[int, int]:
    """How many calls of each make a letter long compared with clock ticks and interruptions."""
    if min(calls_ms) >= _SURELY_LONG * _LETTER_MS:
        return 1, 1
    a_ms, b_ms = (_per_call_ms(one, clock, enough) for one in (a, b))
    if max(a_ms, b_ms) <= _ALIKE * min(a_ms, b_ms):
        a_ms = b_ms = min(a_ms, b_ms)
    first, second = (
        min(max(math.ceil(_LETTER_MS / call_ms), 1), _MOST_REPEATS) if call_ms else _MOST_REPEATS
        for call_ms in (a_ms, b_ms)
    )
    return first, second


def _per_call_ms(function: Callable[[], object], clock: Clock, enough: Callable[[], bool]) -> float:
    """How long one uninterrupted call takes; 0 if the clock cannot resolve it."""
    short_ms, count = _LETTER_MS / 10, 1
    while True:
        took_ms = _time(function, count, clock)
        for _ in range(_TRIALS - 1):
            if not short_ms <= took_ms < _SURELY_LONG * _LETTER_MS or enough():
                break
            took_ms = min(took_ms, _time(function, count, clock))
        if took_ms >= short_ms or count >= _MOST_REPEATS:
            return took_ms / count
        # aim 20 % beyond the goal, but extrapolate a short measurement by at most a factor of 10
        growth = 1.2 * short_ms / took_ms if took_ms > 0 else 10.0
        count = min(math.ceil(count * min(growth, 10.0)), _MOST_REPEATS)


def _first_call(name: str, function: Callable[[], object]) -> None:
    result = function()
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
        kind = type(result).__name__.removeprefix("async_")
        close = getattr(result, "close", None)
        if close is not None:
            close()  # otherwise Python warns that the coroutine was never awaited
        raise UsageError(
            f"calling {name!r} only makes a {kind} and runs nothing: pass compare() a function "
            f"that runs it to its end"
        )


def _own_names(first: object, second: object) -> tuple[str, str]:
    own = tuple(inspect.unwrap(f).__name__ if inspect.isroutine(f) else "" for f in (first, second))
    if own[0] == own[1] or "" in own or "<lambda>" in own:
        return "first", "second"
    return _checked_names(own)


def _checked_names(names: object) -> tuple[str, str]:
    match names:
        case [str(), str()]:
            first, second = (printable(name, _LONGEST_NAME) for name in names)
        case _:
            raise UsageError(f"names must be two strings, got {shown(names)}")
    if first == second:
        raise UsageError(f"names must differ, got {first!r} twice")
    return first, second


def _check_callable(name: str, function: Callable[..., object]) -> None:
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # some builtins have no signature; the call will show
    except TypeError as error:
        raise UsageError(
            f"{name!r} cannot be called without arguments ({error}): wrap it in a lambda"
        ) from None


def sentence(names: tuple[str, str], interval: Interval) -> str:
    """The answer in words; ``names`` are those of ``a`` and ``b``. It says which one is faster."""
    a, b = names
    ratio, low, high = interval.ratio, interval.low, interval.high
    if not interval.known:
        return (
            f"Too little was measured to compare {a!r} with {b!r}: "
            f"{plural(interval.n_blocks, 'block')} with a ratio of {fmt_ratio(ratio)}, and no "
            "interval."
        )
    if interval.different and ratio < 1:
        a, b, ratio, low, high = b, a, 1 / ratio, 1 / high, 1 / low
    ends = f"{fmt_chosen_share(interval.confidence)} interval {fmt_interval(low, high)}"
    if interval.different:
        return f"{b!r} is {fmt_ratio(ratio)} as fast as {a!r} ({ends})."
    said = f"Too unsteady to tell which of {a!r} and {b!r} is faster"
    if no_difference(low, high) == "no difference seen":
        said = f"No difference seen between {a!r} and {b!r}"
    said += f": the ratio is {fmt_ratio(ratio)} ({ends})."
    least = interval.detectable
    if least is not None and least < 1:
        said += f" A difference of {fmt_share(least)} would have been seen with 80 % probability."
    return said


def doubts(
    a: Array, b: Array, interval: Interval, *, busy: str = "", over: str = ""
) -> tuple[str, ...]:
    """Reasons to doubt the interval of two arms, in one sentence; empty if there are none."""
    found = [busy.rstrip(".")] if busy else []
    found += [over] if over else []
    both = np.sqrt(a * b).ravel()  # the machine affects both arms
    drift = drift_of(both) if (both > 0).all() else None
    if drift is not None:
        way = "slower" if drift.change > 0 else "faster"
        found.append(
            f"both got {fmt_share(abs(drift.relative))} {way} while measured, which cancels in the "
            "ratio"
        )
    spread = _spread(a, b)
    if spread > WIDE_SPREAD and not busy:
        found.append(
            f"unsteady: the ratio of the middle half of the blocks spans {fmt_share(spread)}"
        )
    remedy = "measure again on a quiet machine" if busy else "raise budget_s"
    half = math.sqrt(interval.high / interval.low) - 1 if interval.known else math.inf
    if half > _WIDE_INTERVAL:
        known = "has no interval" if half == math.inf else f"is known to ±{fmt_share(half)} only"
        found.append(f"after {plural(interval.n_blocks, 'block')} the ratio {known}: {remedy}")
    return ("; ".join(found),) if found else ()


def _spread(a: Array, b: Array) -> float:
    """Spread of the blocks' own ratios: what remains after slow changes have cancelled."""
    means = a.mean(axis=1), b.mean(axis=1)
    usable = (means[0] > 0) & (means[1] > 0)
    ratios = means[0][usable] / means[1][usable]  # some: else there would be no interval
    lower, middle, upper = np.quantile(ratios, [0.25, 0.5, 0.75])
    return float((upper - lower) / middle)
