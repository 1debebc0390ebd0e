"""When the claims of lesson 01 hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfkit.advice.profile import Profile
from perfkit.course.ledger.criteria import criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_01_measure.cost import LabelCost, ProfilerCost
from perfkit.measure.summary import Summary, summarize

_LESSON = "01-measure"
# torch.profiler.schedule of the claim
_WAIT, _WARMUP, _ACTIVE = 1, 4, 3
_FEW_FOR_INTERVAL = 6
# "No effect": at most this many times the cost of an empty Python block.
_LIKE_NOTHING = 2.0
_CHOICES = {
    "cpu": "CPU activity",
    "shapes": "… and record_shapes",
    "memory": "… and profile_memory",
    "stack": "… and with_stack",
    "all": "… and all three",
}
_ON_A_GPU = {"cuda": "CUDA activity alone", "cpu_cuda": "CPU and CUDA activity"}


@criterion(
    "D1",
    lesson=_LESSON,
    title="what the profiler costs a step, option by option",
    holds_if="with shapes, memory and stacks a step leaves more events than with CPU activity "
    "alone, and stopping takes longer (their intervals do not overlap)",
)
def profiler_options(cost: ProfilerCost) -> Outcome:
    """Judge the cost of each of the profiler's options."""
    measured = {one.name for one in cost.options}
    figures: dict[str, Figure] = {}
    for short, name in (_CHOICES | _ON_A_GPU).items():
        if name not in measured:
            continue
        one = cost[name]
        assert one.ratio is not None
        assert one.stop is not None
        figures[f"{short}_ratio"] = Figure.of(one.ratio)
        figures[f"{short}_stop"] = _of(one.stop)
        figures[f"{short}_events"] = Figure.exact(one.events)
    cpu, everything = cost[_CHOICES["cpu"]], cost[_CHOICES["all"]]
    assert everything.ratio is not None
    assert everything.stop is not None
    assert cpu.stop is not None
    return Outcome(
        holds=everything.events > cpu.events and everything.stop.low > cpu.stop.high,
        figures=figures,
        headline="all_ratio",
        sentence=(
            f"With shapes, memory and stacks a recorded step takes {everything.ratio.ratio:.2f} "
            f"times as long as without the profiler, leaves {everything.events} events and "
            f"{everything.stop.median:.2g} ms of stopping; with CPU activity alone {cpu.events} "
            f"events and {cpu.stop.median:.2g} ms."
        ),
    )


@criterion(
    "D2",
    lesson=_LESSON,
    title="what a record_function label costs, profiler off and on",
    holds_if=f"a label costs at most {_LIKE_NOTHING:g} times as much as an empty block while no "
    "profiler runs",
)
def label(cost: LabelCost, step: Summary, *, labels: int) -> Outcome:
    """Judge the cost of a label; ``step`` is the time of a step (ms) that has so many of them."""
    share = 100 * labels * cost.off.median / (step.median * 1e6)
    return Outcome(
        holds=cost.off.low <= _LIKE_NOTHING * cost.empty.high,
        figures={
            "off": _of(cost.off),
            "on": _of(cost.on),
            "empty_block": _of(cost.empty),
            "step": _of(step),
            "share_of_step": Figure(share, "%"),
        },
        headline="off",
        sentence=(
            f"A label costs {cost.off.median / 1e3:.1f} µs while no profiler runs and "
            f"{cost.on.median / 1e3:.1f} µs while one does; {labels} labels are "
            f"{share:.2g} % of a step of {step.median:.2g} ms."
        ),
    )


@criterion(
    "E7",
    lesson=_LESSON,
    title="how a figure moves when the first steps are counted",
    holds_if=f"the mean of the first {_WAIT + _WARMUP + _ACTIVE} steps is larger than the median "
    f"of the last {_ACTIVE} of them, which the schedule records (over {_FEW_FOR_INTERVAL} or more "
    "fresh processes; the interval of the ratio is above 1)",
)
def first_steps_counted(times: Any) -> Outcome:
    """Judge the first steps' times (ms, processes × steps) of processes that start cold."""
    before = _WAIT + _WARMUP
    scheduled = np.median(times[:, before : before + _ACTIVE], axis=1)
    first = times[:, 0] / scheduled
    counted = times[:, : before + _ACTIVE].mean(axis=1) / scheduled
    figures = {
        "first_step_ratio": _over_processes(first),
        "counted_ratio": _over_processes(counted),
        "scheduled": _of(summarize(scheduled)),
        "steps_recorded": Figure.exact(_ACTIVE),
    }
    return Outcome(
        holds=faster(figures["counted_ratio"]),
        figures=figures,
        headline="counted_ratio",
        sentence=(
            f"In {len(times)} fresh processes the first step takes {np.median(first):.1f} times as "
            f"long as steps {before + 1} to {before + _ACTIVE}; the mean of the first "
            f"{before + _ACTIVE} steps is {np.median(counted):.2f} times the figure that the "
            "schedule gives."
        ),
    )


@criterion(
    "A16",
    lesson=_LESSON,
    title="profile a loss alone: operators and events of one call",
    holds_if="the profile shows at least one slice for each class that the loss loops over",
)
def loss_alone(profile: Profile, *, classes: int) -> Outcome:
    """Judge the profile of a loss that loops over so many classes."""
    calls = {one.name: one.count / profile.n_steps for one in profile.operators}
    n_calls = sum(calls.values())
    n_slices = calls.get("aten::select", 0.0)
    return Outcome(
        holds=n_slices >= classes,
        figures={
            "operator_calls": Figure.exact(n_calls),
            "kinds": Figure.exact(len(calls)),
            "slices": Figure.exact(n_slices),
        },
        headline="operator_calls",
        sentence=(
            f"Profiled alone, a dice loss that loops over {classes} classes shows "
            f"{n_calls:.0f} operator calls for one forward and backward, "
            f"{n_slices:.0f} of them slices of one class."
        ),
    )


def _of(found: Summary) -> Figure:
    return Figure(found.median, found.unit, found.low, found.high)


def _over_processes(ratios: Any) -> Figure:
    found = summarize(ratios, unit="×")
    if found.n < _FEW_FOR_INTERVAL:
        return Figure(found.median, "×")
    return Figure(found.median, "×", found.low, found.high)
