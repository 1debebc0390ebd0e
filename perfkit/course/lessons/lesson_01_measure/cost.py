"""The cost of profiling a step, option by option, and the cost of a label."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.base.budget import budget_scale, scaled
from perfkit.base.device import Device, here
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.machine import stamp
from perfkit.base.scratch import scratch_folder
from perfkit.base.words import fmt_count, fmt_interval, fmt_ms, fmt_ratio, fmt_us, plural
from perfkit.measure.clock import clock_in_use
from perfkit.measure.paired import Interval, ratio_interval
from perfkit.measure.summary import Summary, summarize
from perfkit.show.document import Document, Table, document_for
from perfkit.trace.record.profiler import quiet_profiler

NO_PROFILER = "no profiler"
_FEWEST_BLOCKS = 6  # fewer cannot give a 95 % interval; see perfkit.measure.compare
_FEWEST_IF_SCALED_DOWN = 2  # with a small PERFKIT_BUDGET_SCALE, where nobody reads the interval
_MOST_BLOCKS = 40
# Events of these categories belong to the trace itself; the rest come from steps. "overhead" is
# CUDA tracing's own work, at times of its choosing.
_FRAME = {"Trace", "user_annotation", "gpu_user_annotation", "fwdbwd", "ac2g", "overhead"}
_LABELS = 300
_LABEL_ROUNDS = 20


@dataclass(frozen=True)
class OptionCost:
    """One way to profile.

    Attributes:
        name: the options that are on.
        step: milliseconds per step while recording.
        ratio: this over the time of a step without the profiler; None for that one.
        stop: milliseconds for stopping, per recorded step; None without the profiler.
        events: number of events that one step adds to the trace; 0 without the profiler.
    """

    name: str
    step: Summary
    ratio: Interval | None
    stop: Summary | None
    events: int


@dataclass(frozen=True, repr=False)
class ProfilerCost(Shown):
    """The profiler's cost, option by option, as a table.

    Attributes:
        options: starting with no profiler.
        n_blocks: passes through all options, forwards and backwards.
        steps: steps recorded at a time.
        source: where and when it was measured, in words.
    """

    options: tuple[OptionCost, ...]
    n_blocks: int
    steps: int
    source: str

    def __getitem__(self, name: str) -> OptionCost:
        for option in self.options:
            if option.name == name:
                return option
        names = ", ".join(option.name for option in self.options)
        raise UsageError(f"no option {name!r} was measured; there are: {names}")

    def _document(self) -> Document:
        rows = [
            (
                one.name,
                fmt_ms(one.step.median),
                "1" if one.ratio is None else _with_interval(one.ratio),
                "–" if one.stop is None else fmt_ms(one.stop.median),
                "–" if one.stop is None else fmt_count(one.events),
            )
            for one in self.options
        ]
        plain = self.options[0]
        ratios = {one: one.ratio for one in self.options if one.ratio is not None}
        costliest, ratio = max(ratios.items(), key=lambda item: item[1].ratio)
        named = {"… and all three": "all options together"}.get(costliest.name, costliest.name)
        return Document(
            name="what the profiler costs",
            headline=f"A step takes up to {fmt_ratio(ratio.ratio)} as long while it is recorded.",
            sentence=(
                f"The costliest choice, {named.removeprefix('… and ')}, makes a step "
                f"{_with_interval(ratio)} as long: "
                f"{fmt_ms(costliest.step.median)} instead of {fmt_ms(plain.step.median)}."
            ),
            tables=(
                Table(
                    ("recorded", "step", "times as long (95 %)", "stop, per step", "events"),
                    tuple(rows),
                    title="What the profiler costs",
                    note="events per step",
                    open=True,
                ),
            ),
            foot=(
                f"Medians of {2 * self.n_blocks} stretches of {plural(self.steps, 'step')} for "
                "each row, all in turn.",
                self.source,
            ),
        )

    __repr__ = Shown.__str__


@dataclass(frozen=True, repr=False)
class LabelCost(Shown):
    """The cost of one ``record_function`` block.

    Attributes:
        off: nanoseconds with no profiler running.
        on: nanoseconds while one runs.
        empty: nanoseconds of ``with contextlib.nullcontext()``, a block that does nothing.
        source: where and when it was measured, in words.
    """

    off: Summary
    on: Summary
    empty: Summary
    source: str

    def _document(self) -> Document:
        rows = [
            (name, *(fmt_us(value / 1e3) for value in (one.median, one.low, one.high)))
            for name, one in (
                ("label, no profiler runs", self.off),
                ("label, profiler runs", self.on),
                ("a block that does nothing", self.empty),
            )
        ]
        return Document(
            name="what a label costs",
            sentence=(
                f"A label takes {fmt_us(self.on.median / 1e3)} while a profiler runs, "
                f"{fmt_us(self.off.median / 1e3)} otherwise: medians."
            ),
            tables=(
                Table(
                    ("one block", "median", "95 % from", "to"),
                    tuple(rows),
                    title="What a label costs",
                    open=True,
                ),
            ),
            foot=(self.source,),
        )

    __repr__ = Shown.__str__


@document_for(ProfilerCost)
@document_for(LabelCost)
def _document(cost: ProfilerCost | LabelCost) -> Document:
    return cost._document()


def profiler_cost(
    step: Callable[[], object], *, steps: int = 4, budget_s: float = 12.0, seed: int = 0
) -> ProfilerCost:
    """Time a step without the profiler and with each of its options, in turn.

    Every block goes through all options in random order and back; each stretch of ``steps`` steps
    has its own profiler and one uncounted step before it. At least six blocks are measured, even
    if that takes longer than ``budget_s``; two, if ``PERFKIT_BUDGET_SCALE`` is below 1.

    Raises:
        UsageError: ``steps`` or ``budget_s`` is not positive.
    """
    if steps < 1 or not budget_s > 0:
        raise UsageError("steps and budget_s must be positive")
    budget_s = scaled(budget_s)
    fewest = _FEWEST_BLOCKS if budget_scale() >= 1 else _FEWEST_IF_SCALED_DOWN
    began = time.monotonic()
    options = _options(here())
    for _ in range(3):
        step()
    events = {name: _events_per_step(step, kwargs) for name, kwargs in options.items()}
    step_ms: dict[str, list[list[float]]] = {name: [] for name in options}
    stop_ms: dict[str, list[float]] = {name: [] for name in options}
    order = np.random.default_rng(seed)
    first_block = time.monotonic()
    n_blocks = 0
    while n_blocks < _MOST_BLOCKS:
        names = [list(options)[i] for i in order.permutation(len(options))]
        block: dict[str, list[float]] = {name: [] for name in options}
        gc.collect()  # collect the last profilers' garbage outside the timed steps
        for name in (*names, *reversed(names)):
            took, stopping = _stretch(step, options[name], steps)
            block[name].append(took)
            stop_ms[name].append(stopping)
        for name, times in block.items():
            step_ms[name].append(times)
        n_blocks += 1
        now = time.monotonic()
        spent, next_one = now - began, (now - first_block) / n_blocks
        if n_blocks >= fewest and spent + next_one > budget_s:
            break
    return ProfilerCost(
        options=tuple(
            OptionCost(
                name=name,
                step=summarize([t for pair in step_ms[name] for t in pair]),
                ratio=None
                if kwargs is None
                else ratio_interval(step_ms[name], step_ms[NO_PROFILER]),
                stop=None if kwargs is None else summarize(stop_ms[name]),
                events=events[name],
            )
            for name, kwargs in options.items()
        ),
        n_blocks=n_blocks,
        steps=steps,
        source=stamp().sentence(),
    )


def label_cost(*, rounds: int = _LABEL_ROUNDS) -> LabelCost:
    """Time empty ``record_function`` blocks, alternating between profiler on and off.

    The time of an empty loop is subtracted.

    Raises:
        UsageError: fewer than one round.
    """
    if rounds < 1:
        raise UsageError("label_cost needs at least one round")
    off: list[float] = []
    on: list[float] = []
    empty: list[float] = []
    with quiet_profiler():
        for i in range(rounds):
            for profiled in (False, True) if i % 2 else (True, False):
                (on if profiled else off).append(_label_ns(profiled))
            empty.append(_block_ns(contextlib.nullcontext))
    return LabelCost(
        off=summarize(off, unit="ns"),
        on=summarize(on, unit="ns"),
        empty=summarize(empty, unit="ns"),
        source=stamp().sentence(),
    )


def _label_ns(profiled: bool) -> float:
    from torch.profiler import ProfilerActivity, profile, record_function

    def label() -> Any:
        return record_function("label")

    if not profiled:
        return _block_ns(label)
    with profile(activities=[ProfilerActivity.CPU]):
        return _block_ns(label)


def _block_ns(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> float:
    """Nanoseconds of ``with make(): pass``, minus the bare loop around it."""

    def blocks() -> None:
        for _ in range(_LABELS):
            with make():
                pass

    def bare() -> None:
        for _ in range(_LABELS):
            pass

    def took(function: Callable[[], None]) -> int:
        start = time.perf_counter_ns()
        function()
        return time.perf_counter_ns() - start

    blocks()
    return max(took(blocks) - took(bare), 0) / _LABELS


def _options(device: Device) -> dict[str, dict[str, Any] | None]:
    """Name → arguments of ``torch.profiler.profile``; None runs without it."""
    from torch.profiler import ProfilerActivity

    cpu = [ProfilerActivity.CPU]
    names = device.profiler
    alone = [] if names is None else [getattr(ProfilerActivity, names.activity)]
    both = [*cpu, *alone]
    everything = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    found: dict[str, dict[str, Any] | None] = {NO_PROFILER: None}
    if alone:
        found[f"{device.label} activity alone"] = {"activities": alone}
    found["CPU activity"] = {"activities": cpu}
    if alone:
        found[f"CPU and {device.label} activity"] = {"activities": both}
    found |= {
        f"… and {name}": {"activities": both, name: value} for name, value in everything.items()
    }
    found["… and all three"] = {"activities": both, **everything}
    return found


def _stretch(
    step: Callable[[], object], options: Mapping[str, Any] | None, steps: int
) -> tuple[float, float]:
    """Milliseconds per step, and of stopping the profiler per recorded step."""
    from torch.profiler import profile

    clock = clock_in_use()
    profiler = None if options is None else profile(**options)
    with quiet_profiler():
        if profiler is not None:
            profiler.start()
        step()
        clock.settle()
        start = clock.now()
        for _ in range(steps):
            step()
        clock.settle()
        end = clock.now()
        if profiler is not None:
            profiler.stop()
    stopped = clock.now()
    return (end - start) / 1e6 / steps, (stopped - end) / 1e6 / (steps + 1)


def _events_per_step(step: Callable[[], object], options: Mapping[str, Any] | None) -> int:
    """Events that one more step adds to a trace: those of three steps minus those of two.

    The first step alone would be wrong: it frees earlier memory, which is not recorded.
    """
    if options is None:
        return 0
    two, three = (_n_events(step, options, n) for n in (2, 3))
    return three - two


def _n_events(step: Callable[[], object], options: Mapping[str, Any], steps: int) -> int:
    from torch.profiler import profile

    with scratch_folder() as folder, quiet_profiler():
        with profile(**options) as profiler:
            for _ in range(steps):
                step()
            clock_in_use().settle()
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_bytes())["traceEvents"]
    return sum(event.get("cat", "Trace") not in _FRAME for event in events)


def _with_interval(ratio: Interval) -> str:
    return f"{fmt_ratio(ratio.ratio)} {fmt_interval(ratio.low, ratio.high)}"
