"""``perfkit.cost``: what a run costs, when work on its speed pays, and what other devices ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfkit.advice.open_trace import OpenTrace, open_trace
from perfkit.advice.profile import Profile
from perfkit.advice.profiling import Profiling
from perfkit.base.arguments import check_text, check_whole, shown
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.words import plural
from perfkit.limit.datasheet import sheet_of
from perfkit.measure.summary import Summary
from perfkit.trace.ask.limit import Limit
from perfkit.trace.ask.step_elsewhere import StepElsewhere, predicted
from perfkit.trace.read.columns import Trace

# Far above any; what is larger than a float, or overflows in a product, is a slip of the pen.
_MOST_STEPS, _MOST_AMOUNT = 10**15, 10**15

_Step = float | Summary | Profile | Profiling | OpenTrace | Trace | str | os.PathLike[str]


@dataclass(frozen=True)
class BreakEven:
    """When hours of work on a faster step pay for themselves.

    Attributes:
        saved_per_run: what a run costs less since; negative where it costs more.
        runs: after so many runs the work is paid; None where nothing is saved.
    """

    saved_per_run: float
    saved_hours_per_run: float
    work_hours: float
    work_cost: float
    runs: float | None


@dataclass(frozen=True)
class DeviceCost:
    """The run on another device, predicted: its price at ``step.ms``, and at the band's ends."""

    step: StepElsewhere
    price_per_hour: float
    price: float
    price_low: float
    price_high: float


@dataclass(frozen=True)
class RunCost(Shown):
    """What a run of so many steps costs.

    Attributes:
        low_ms, high_ms: its interval; None where only one length is known.
        price_low, price_high: at the ends of the interval; None where there is none.
        elsewhere: the same run on other devices, the cheapest first.
    """

    step_ms: float
    low_ms: float | None
    high_ms: float | None
    how: str
    steps: int
    price_per_hour: float
    currency: str
    hours: float
    price: float
    price_low: float | None
    price_high: float | None
    break_even: BreakEven | None = None
    elsewhere: tuple[DeviceCost, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def cost(
    step: _Step,
    *,
    price_per_hour: float,
    steps: int,
    before: _Step | None = None,
    work_hours: float = 0.0,
    wage_per_hour: float = 0.0,
    on: Mapping[str, float] | None = None,
    currency: str = "",
) -> RunCost:
    """What an epoch or a run costs, when work on its speed pays off, what another device costs.

    All prices are yours: perfkit knows none. (``perfkit.limit.prices.EXAMPLE_PRICES`` is a dated
    table with its sources, to look at.)

    Args:
        step: a step's length in ms, a ``Summary`` in ms, or what ``perfkit.profile`` or
            ``perfkit.open_trace`` returned, or a trace's file. A profile counts with its steps
            without the profiler, where it saw some.
        price_per_hour: what the machine costs per hour, all its devices together.
        steps: how many steps the epoch or run has, at least 1. For a price per epoch, give those of
            one epoch.
        before: the step before you made it faster: then you also learn after how many runs the
            work has paid off.
        work_hours: hours spent on it; 0 where only the saving matters.
        wage_per_hour: what such an hour costs, in the same currency.
        on: other devices, e.g. ``{"H200": 4.5, "L40S": 1.2}``: name of a data sheet → price of
            such a machine per hour. *Predicted* from the recorded operators; needs a profile or
            trace with shapes.
        currency: written after prices, e.g. ``"USD"``.

    Returns:
        A :class:`RunCost`: ``price``, ``hours``, ``break_even.runs``, ``elsewhere``. Print or
        display it.

    Raises:
        UsageError: an argument is invalid; ``on`` without recorded shapes, without known rates of
            the recorded device, or with a device that has no data sheet.
        TraceError: a file cannot be read or is not a trace.

    Example::

        >>> found = perfkit.cost(
        ...     80.0, before=120.0, price_per_hour=3.0, steps=500_000,
        ...     work_hours=6, wage_per_hour=90.0, currency="EUR",
        ... )
        >>> found.price, found.break_even.runs
    """
    _check_amount("price_per_hour", price_per_hour)
    _check_amount("work_hours", work_hours)
    _check_amount("wage_per_hour", wage_per_hour)
    check_whole("steps", steps, 1, _MOST_STEPS)
    check_text("currency", currency)
    step_ms, (low, high), how, doubts = _length("step", step)
    broken_even = None
    if before is not None:
        before_ms, _, _, more = _length("before", before)
        doubts += more
        hours, work_cost = _hours(before_ms - step_ms, steps), float(work_hours * wage_per_hour)
        saved = hours * price_per_hour
        runs = work_cost / saved if saved > 0 else None
        broken_even = BreakEven(saved, hours, float(work_hours), work_cost, runs)
    elif work_hours:
        raise UsageError(
            "work_hours pays by what it saves: give the step before the work, too (`before`)"
        )
    elsewhere = _elsewhere(step, on, steps)
    doubts += tuple(d for one in elsewhere for d in one.step.doubts)
    prices = [None if x is None else _hours(x, steps) * price_per_hour for x in (low, high)]
    return RunCost(
        step_ms=step_ms,
        low_ms=low,
        high_ms=high,
        how=how,
        steps=steps,
        price_per_hour=float(price_per_hour),
        currency=currency or "",
        hours=_hours(step_ms, steps),
        price=_hours(step_ms, steps) * price_per_hour,
        price_low=prices[0],
        price_high=prices[1],
        break_even=broken_even,
        elsewhere=elsewhere,
        warnings=tuple(dict.fromkeys(doubts)),
    )


def _length(
    name: str, step: object
) -> tuple[float, tuple[float | None, float | None], str, tuple[str, ...]]:
    """A step's length in ms, its interval, where it comes from, and doubts."""
    if isinstance(step, Summary):
        if step.unit != "ms":
            raise UsageError(f"{name} is a summary in {step.unit!r}; give one of times in ms")
        if not step.median > 0:
            raise UsageError(f"{name} has a median of 0 ms: give steps that take time")
        how = f"median of {plural(step.n, 'measured step')}"
        return step.median, (step.low, step.high), how, ()
    if (profile := _profile_of(step)) is not None:
        plain, profiled = profile.cost, profile.step
        if plain is not None and plain.plain_step_ms:
            how = f"median of {plural(plain.n_unprofiled, 'step')} without the profiler"
            return plain.plain_step_ms, (None, None), how, ()
        return (
            profiled.median,
            (profiled.low, profiled.high) if profiled.n > 1 else (None, None),
            f"median of {plural(profiled.n, 'recorded step')}",
            ("recording made the steps longer, by an unknown part",),
        )
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= _MOST_AMOUNT:
        raise UsageError(
            f"{name} is {shown(step)}; give a step's length in ms, a profile or a trace"
        )
    return float(step), (None, None), "as given", ()


def _profile_of(step: object) -> Profile | None:
    if isinstance(step, Profiling):
        return step.result
    if isinstance(step, OpenTrace | Trace | str | bytes | os.PathLike):
        return open_trace(step).profile
    return step if isinstance(step, Profile) else None


def _hours(step_ms: float, steps: int) -> float:
    return step_ms * steps / 3.6e6


def _elsewhere(step: object, on: Mapping[str, float] | None, steps: int) -> tuple[DeviceCost, ...]:
    if on is None:
        return ()
    if not isinstance(on, Mapping):
        raise UsageError(f"on is {shown(on)}; give a mapping of devices to prices per hour")
    for device, price in on.items():
        if not isinstance(device, str):
            raise UsageError(f"on has the device {shown(device)}; give the name of a data sheet")
        _check_amount(f"on[{device!r}]", price)
    profile = _profile_of(step)
    if profile is None:
        raise UsageError("on needs recorded operators: give a profile or a trace with shapes")
    opened = OpenTrace(profile.trace)
    plain_ms = None if profile.cost is None else profile.cost.plain_step_ms
    found = []
    for device, price in on.items():
        there = step_elsewhere(opened, device, step_ms=plain_ms)
        prices = (_hours(ms, steps) * price for ms in (there.ms, there.low_ms, there.high_ms))
        found.append(DeviceCost(there, float(price), *prices))
    return tuple(sorted(found, key=lambda one: one.price))


def _check_amount(name: str, value: Any) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= _MOST_AMOUNT:
        raise UsageError(f"{name} is {shown(value)}; give an amount from 0 to {_MOST_AMOUNT:,}")


def step_elsewhere(
    opened: OpenTrace, device: str, *, step_ms: float | None = None
) -> StepElsewhere:
    """Predict the step's length on another device.

    Args:
        device: name of a data sheet, e.g. ``"H200"``.
        step_ms: length of a step without the profiler, where that is known: on a GPU what is
            shorter then is the host's part.

    Raises:
        UsageError: no data sheet of ``device`` is known, no shapes were recorded, or no rates of
            the recorded device are known.
    """
    there, falls = opened.ask("limit", device=device), opened.ask("waterfall")
    return predicted(_here(opened), there, falls, device, step_ms)


def _here(opened: OpenTrace) -> Limit:
    """By the data sheet of the recorded device where there is one: like is divided by like."""
    found: Limit = opened.ask("limit")
    if found.on_device and found.kind != "predicted":
        sheet = sheet_of(found.recorded_on)
        if sheet is not None:
            found = opened.ask("limit", device=sheet.name)
    return found
