"""Lesson 01: the cost of the profiler, of a label and of first steps, and one loss alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perfkit.course.kit.threads import one_thread
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.measure.compare import Interval
from perfkit.measure.summary import Summary, summarize

__all__ = ["first_steps_counted", "label", "loss_alone", "profiler_options"]

_LESSON = "01-measure"
# torch.profiler.schedule of the claim
_WAIT, _WARMUP, _ACTIVE = 1, 4, 3
_CLASSES = 19
_FEW_FOR_INTERVAL = 6
# "No effect": at most this many times the cost of an empty Python block.
_LIKE_NOTHING = 2.0
# Labels per step if it labels its phases: load, forward, loss, backward, optimizer.
_LABELS_PER_STEP = 5


def training_step(device: str | None = None) -> Callable[[], Any]:
    """A step of a few milliseconds on a CPU core: eight small layers, forward to optimizer."""
    import torch
    from torch import nn

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    layers = [
        layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 128, device=device)
    labels = torch.randint(10, (64,), device=device)

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


@experiment("D1", lesson=_LESSON, title="what the profiler costs a step, option by option")
def profiler_options(context: Context) -> Outcome:
    from perfkit.course.lessons.lesson_01_measure.cost import profiler_cost

    with one_thread():
        cost = profiler_cost(
            training_step(context.device), budget_s=context.budget_s, seed=context.seed
        )
    cpu, everything = cost["CPU activity"], cost["… and all three"]
    names = {
        "cpu": "CPU activity",
        "shapes": "… and record_shapes",
        "memory": "… and profile_memory",
        "stack": "… and with_stack",
        "all": "… and all three",
    }
    if context.device == "cuda":
        names |= {"cuda": "CUDA activity alone", "cpu_cuda": "CPU and CUDA activity"}
    figures: dict[str, Figure] = {}
    for short, name in names.items():
        one = cost[name]
        assert one.ratio is not None
        assert one.stop is not None
        figures[f"{short}_ratio"] = _ratio(one.ratio)
        figures[f"{short}_stop"] = _of(one.stop)
        figures[f"{short}_events"] = Figure(one.events, "1", kind="exact")
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


@experiment("D2", lesson=_LESSON, title="what a record_function label costs, profiler off and on")
def label(context: Context) -> Outcome:
    from perfkit.course.lessons.lesson_01_measure.cost import label_cost
    from perfkit.measure.clock import clock_in_use

    cost = label_cost(rounds=20 if context.budget_s >= 1 else 6)
    times = []
    with one_thread():
        step = training_step(context.device)
        clock = clock_in_use()  # not earlier: the step initialises CUDA
        for _ in range(5):
            step()
        for _ in range(40):
            clock.settle()
            start = clock.now()
            step()
            clock.settle()
            times.append((clock.now() - start) / 1e6)
    whole = summarize(times)
    share = 100 * _LABELS_PER_STEP * cost.off.median / (whole.median * 1e6)
    return Outcome(
        holds=cost.off.low <= _LIKE_NOTHING * cost.empty.high,
        figures={
            "off": _of(cost.off),
            "on": _of(cost.on),
            "empty_block": _of(cost.empty),
            "step": _of(whole),
            "share_of_step": Figure(share, "%"),
        },
        headline="off",
        sentence=(
            f"A label costs {cost.off.median / 1e3:.1f} µs while no profiler runs and "
            f"{cost.on.median / 1e3:.1f} µs while one does; {_LABELS_PER_STEP} labels are "
            f"{share:.2g} % of a step of {whole.median:.2g} ms."
        ),
    )


@experiment("E7", lesson=_LESSON, title="how a figure moves when the first steps are counted")
def first_steps_counted(context: Context) -> Outcome:
    from perfkit.course.lessons.lesson_01_measure.first_steps import first_steps

    processes = 10 if context.budget_s >= 5 else 2
    with one_thread():
        times = first_steps(training_step, processes=processes, steps=30)
    before = _WAIT + _WARMUP
    scheduled = np.median(times[:, before : before + _ACTIVE], axis=1)
    first = times[:, 0] / scheduled
    counted = times[:, : before + _ACTIVE].mean(axis=1) / scheduled
    figures = {
        "first_step_ratio": _over_processes(first),
        "counted_ratio": _over_processes(counted),
        "scheduled": _of(summarize(scheduled)),
        "steps_recorded": Figure(_ACTIVE, "1", kind="exact"),
    }
    moved = float(np.median(counted))
    low = figures["counted_ratio"].low  # too few processes give no interval and no verdict
    return Outcome(
        holds=low is not None and low > 1,
        figures=figures,
        headline="counted_ratio",
        sentence=(
            f"In {processes} fresh processes the first step takes {np.median(first):.1f} times as "
            f"long as steps {before + 1} to {before + _ACTIVE}; the mean of the first "
            f"{before + _ACTIVE} steps is {moved:.2f} times the figure that the schedule gives."
        ),
    )


@experiment("A16", lesson=_LESSON, title="profile a loss alone: operators and events of one call")
def loss_alone(context: Context) -> Outcome:
    import torch

    from perfkit.advice.profile import explain
    from perfkit.trace.record.record import Recorder

    generator = torch.Generator().manual_seed(context.seed)
    scores = torch.randn(8, _CLASSES, 64, 64, generator=generator).to(context.device)
    scores.requires_grad_()
    target = torch.randint(_CLASSES, (8, 64, 64), generator=generator).to(context.device)
    with one_thread(), Recorder(steps=4, warmup=2, lines=False) as recorder:
        for _ in range(9):
            dice_loss(scores, target).backward()
            recorder.step()
    profile = explain(recorder.recording)
    calls = {one.name: one.count / 4 for one in profile.operators}
    n_calls = sum(calls.values())
    n_slices = calls.get("aten::select", 0.0)
    return Outcome(
        holds=n_slices >= _CLASSES,
        figures={
            "operator_calls": Figure(n_calls, "1", kind="exact"),
            "kinds": Figure(len(calls), "1", kind="exact"),
            "slices": Figure(n_slices, "1", kind="exact"),
        },
        headline="operator_calls",
        sentence=(
            f"Profiled alone, a dice loss that loops over {_CLASSES} classes shows "
            f"{n_calls:.0f} operator calls for one forward and backward, "
            f"{n_slices:.0f} of them slices of one class."
        ),
    )


def dice_loss(scores: Any, target: Any) -> Any:
    """One minus the mean overlap over classes, with a loop, as it is often written."""
    probabilities = scores.softmax(dim=1)
    loss = 0.0
    for c in range(scores.shape[1]):
        p, t = probabilities[:, c], (target == c).float()
        loss = loss + 1 - 2 * (p * t).sum() / (p.sum() + t.sum() + 1)
    return loss / scores.shape[1]


def _ratio(found: Interval) -> Figure:
    return Figure.of(found)


def _of(found: Summary) -> Figure:
    return Figure(found.median, found.unit, found.low, found.high)


def _over_processes(ratios: Any) -> Figure:
    found = summarize(ratios, unit="×")
    if found.n < _FEW_FOR_INTERVAL:
        return Figure(found.median, "×")
    return Figure(found.median, "×", found.low, found.high)
