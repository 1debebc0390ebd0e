"""What does not belong in every step: validation, a graph that nobody uses, garbage collection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.columns import Category, Int64
from perfkit.trace.read.intervals import Intervals, union

# A teacher network or a metric may run without gradients in every step; above this share it is
# worth asking whether it must.
_LEAST_VALIDATION = 0.15
_HEAVY = (
    "aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm", "aten::conv1d",
    "aten::conv2d", "aten::conv3d", "aten::scaled_dot_product_attention", "aten::lstm",
    "aten::gru",
)  # fmt: skip


@rule
def validation(case: Case) -> Iterator[Finding]:
    """A forward pass without gradients inside a training step."""
    trace, inside = case.trace, case.nesting
    # Autograd numbers what it records; without any number nothing is known. A network of which
    # nothing trains is a part of the step: a backbone, a teacher.
    if not (trace.sequence >= 0).any() or not case.shares["backward"] or case.has_frozen:
        return
    is_heavy = case.is_named(*_HEAVY)
    nested = (inside.parent_op >= 0) & is_heavy[np.maximum(inside.parent_op, 0)]
    heavy = inside.rows[is_heavy & ~nested & (trace.sequence[inside.rows] < 0)]
    on_main = heavy[(trace.thread[heavy] == case.steps.thread)]
    for label in ("enumerate(DataLoader)", "Optimizer.", "autograd::"):
        on_main = on_main[~case.labels(label).covers(trace.start_ns[on_main])]
    # Ops called by an op with gradients are part of that op.
    graded = inside.rows[(trace.sequence[inside.rows] >= 0)]
    graded = graded[trace.is_a(Category.OP)[graded] & (trace.thread[graded] == case.steps.thread)]
    around = union(trace.start_ns[graded], trace.end_ns[graded])
    on_main = on_main[~around.covers(trace.start_ns[on_main])]
    in_steps = np.unique(case.steps.containing(trace.start_ns[on_main]))
    if 2 * len(in_steps[in_steps >= 0]) <= case.n_steps:
        return  # once in several steps, as the advice would be
    # From the first to the last of them, if nothing in between has gradients.
    parts = _stretches(case, np.sort(on_main), np.sort(trace.start_ns[graded]))
    share = case.share_of(parts)
    if share >= _LEAST_VALIDATION:
        yield found(
            "validation-in-step",
            "A forward pass without gradients runs inside the training steps",
            [
                f"{plural(len(on_main) / case.n_steps, 'layer')} per step run without gradients "
                f"(validation, a metric, a second network?) and take {fmt_share(share)} of it"
            ],
            "if step % 500 == 0:  # or once per epoch\n"
            "    model.eval()\n"
            "    with torch.inference_mode():\n"
            "        validate(model, validation_loader)\n"
            "    model.train()",
            cures=("host", "launch", "compute"),
            share=share,
        )


def _stretches(case: Case, rows: Int64, graded: Int64) -> Intervals:
    """Stretches of ``rows`` in which no op with gradients starts."""
    trace = case.trace
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    step = case.steps.containing(start)
    before = np.searchsorted(graded, start)
    joined = (step[1:] == step[:-1]) & (before[1:] == before[:-1])
    first = np.r_[True, ~joined]
    last = np.r_[~joined, True]
    return union(start[first], np.maximum.accumulate(end)[last])


@rule
def kept_graph(case: Case) -> Iterator[Finding]:
    """Forward passes record a graph that no backward pass uses.

    Autograd's counter rises with every node: under ``no_grad`` ops have no number, and with
    parameters that need no gradient all have the same one.
    """
    trace, inside = case.trace, case.nesting
    if case.trains:
        return
    ops = inside.rows[case.is_named(*_HEAVY)]
    ops = ops[trace.sequence[ops] >= 0]
    step = case.steps.containing(trace.start_ns[ops])
    nodes = sum(len(np.unique(trace.sequence[ops[step == i]])) for i in range(len(case.steps)))
    # one number per step: the counter rests during steps and moves between them
    if nodes > len(case.steps):
        yield found(
            "kept-graph",
            "The forward pass keeps its graph, but no backward pass was recorded",
            [
                f"{plural(nodes / case.n_steps, 'layer')} per step record what only backward() "
                f"needs, and {plural(case.n_steps, 'step')} had none"
            ],
            "with torch.inference_mode():  # where no gradients are wanted\n    y = model(x)",
            cures=(),
            share=0.0,
            formula="no gain in time that a trace can show: it frees the memory of the activations",
            always=True,
        )


@rule
def garbage_collection(case: Case) -> Iterator[Finding]:
    """Python's garbage collector stops the step (known only for recordings made here)."""
    pauses = case.facts.gc_pauses_ms
    if not pauses:
        return
    share = sum(pauses) * 1e3 / case.wall_us
    yield found(
        "gc-pauses",
        f"Python's garbage collector stops the {'training ' * case.trains}step",
        [
            f"{plural(len(pauses), 'collection')} in {plural(case.n_steps, 'step')} took "
            f"{fmt_ms(sum(pauses))} ({fmt_share(share)})"
        ],
        "gc.collect()\n"
        "gc.freeze()  # what exists by now lives as long as the program\n"
        f"gc.disable()  # and collect by hand, between {'epochs' if case.trains else 'requests'}",
        cures=("host",),
        share=share,
    )
