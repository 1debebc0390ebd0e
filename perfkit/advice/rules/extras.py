"""What does not belong in every step: validation, logging, saving, garbage collection."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.columns import Category, Int64
from perfkit.trace.read.intervals import Intervals, union

# A teacher network or a metric may run without gradients in every step; above this share it is
# worth asking whether it must.
_LEAST_VALIDATION = 0.15
_LEAST_SAMPLES = 5
_HEAVY = (
    "aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm", "aten::conv1d",
    "aten::conv2d", "aten::conv3d", "aten::scaled_dot_product_attention", "aten::lstm",
    "aten::gru",
)  # fmt: skip
# Source lines that log, save or draw.
_LOGS = re.compile(
    r"\b(print|self\.log(?:_dict)?|logg(?:er|ing)\.\w+|"
    r"log\.(?:debug|info|warning|error)|tqdm\.write|set_postfix|add_scalars?|add_image|"
    r"add_histogram|wandb\.\w+|mlflow\.\w+|torch\.save|np\.save|json\.dump|pickle\.dump|savefig|"
    r"plt\.\w+|to_csv|writer\.\w+)\s*\("
)
_LOGGING_LIBRARIES = frozenset(
    {"logging", "tqdm", "matplotlib", "wandb", "mlflow", "tensorboard", "tensorboardX", "neptune"}
)
# The same as functions in a trace with stacks: ``path(line): function``.
_LOGGING_FRAME = re.compile(
    r"(^|/)(logging/__init__|tqdm/|matplotlib/|wandb/|mlflow/|tensorboard/|tensorboardX/|"
    r"torch/utils/tensorboard/)|torch/serialization\.py\(\d+\): save|"
    r"json/__init__\.py\(\d+\): dump|"
    r"<built-in function print>|built-in method (?:save|dump) "
)

_LOG_RARELY = (
    "total += loss.detach()\n"
    "if step % 50 == 0:\n"
    '    logger.info("loss %.3f", total.item() / 50)  # every fiftieth step'
)
_LOG_AT_ONCE = (
    "results.append(y)  # stays where it is\n"
    "if len(results) == 50:\n"
    '    logger.info("%s", torch.stack(results).tolist())  # one line for fifty\n'
    "    results.clear()"
)


@rule
def validation(case: Case) -> Iterator[Finding]:
    """A forward pass without gradients inside a training step."""
    trace, inside = case.trace, case.nesting
    # Autograd numbers what it records; without any number nothing is known.
    if not (trace.sequence >= 0).any() or not case.shares["backward"]:
        return
    if case.has_frozen:
        return  # a part of the step that does not train: a backbone, a teacher
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
    if not len(on_main):
        return
    in_steps = np.unique(case.steps.containing(trace.start_ns[on_main]))
    if 2 * len(in_steps[in_steps >= 0]) <= case.n_steps:
        return  # once in several steps, as the advice would be
    # From the first to the last of them, if nothing in between has gradients.
    parts = _stretches(case, np.sort(on_main), np.sort(trace.start_ns[graded]))
    share = case.share_of(parts)
    if share < _LEAST_VALIDATION:
        return
    gain, formula = amdahl(share)
    yield Finding(
        rule="validation-in-step",
        cures=("host", "launch", "compute"),
        title="A forward pass without gradients runs inside the training steps",
        evidence=(
            f"{plural(len(on_main) / case.n_steps, 'layer')} per step run without gradients "
            f"(validation, a metric, a second network?) and take {fmt_share(share)} of it",
        ),
        what_to_do=(
            "if step % 500 == 0:  # or once per epoch\n"
            "    model.eval()\n"
            "    with torch.inference_mode():\n"
            "        validate(model, validation_loader)\n"
            "    model.train()"
        ),
        gain_at_most=gain,
        formula=formula,
    )


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
    if nodes <= len(case.steps):
        return
    yield Finding(
        rule="kept-graph",
        title="The forward pass keeps its graph, but no backward pass was recorded",
        evidence=(
            f"{plural(nodes / case.n_steps, 'layer')} per step record what only backward() "
            "needs, in "
            f"{plural(case.n_steps, 'step')} without any backward pass or optimizer",
        ),
        what_to_do=(
            "with torch.inference_mode():  # where no gradients are wanted\n    y = model(x)"
        ),
        gain_at_most=1.0,
        formula="no gain in time that a trace can show: it frees the memory of the activations",
        always=True,
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
def logging(case: Case) -> Iterator[Finding]:
    """Printing, logging, saving or drawing in every step."""
    lines = [
        x
        for x in case.lines.lines
        if not x.in_data_wait and (x.library in _LOGGING_LIBRARIES or _LOGS.search(x.text))
    ]
    n_samples = sum(x.n_samples for x in lines)
    where = None
    if n_samples >= _LEAST_SAMPLES:
        share = min(sum(x.share for x in lines), case.lost_to("other") + case.lost_to("forward"))
        top = max(lines, key=lambda x: x.n_samples)
        where = f"{top.where}: {top.text}" if top.text else top.where
        evidence = f"{n_samples} of {case.lines.n_samples} line samples log, print, save or draw"
    else:
        calls = case.rows(Category.PYTHON, named=_LOGGING_FRAME.search)
        share = case.lost_in(case.span(calls))
        n_steps = len(set(case.steps.containing(case.trace.start_ns[calls]).tolist()))
        evidence = (
            f"in {n_steps} of {plural(case.n_steps, 'step')} something is logged, saved or drawn"
        )
    gain, formula = amdahl(share)
    yield Finding(
        rule="logging-in-step",
        cures=("host", "sync"),
        title=f"Logging, saving or drawing takes time in the {'training ' * case.trains}loop",
        evidence=(f"{evidence}: {fmt_share(share)} of the time",),
        what_to_do=_LOG_RARELY if case.trains else _LOG_AT_ONCE,
        gain_at_most=gain,
        formula=formula,
        line=where,
    )


@rule
def garbage_collection(case: Case) -> Iterator[Finding]:
    """Python's garbage collector stops the step (known only for recordings made here)."""
    pauses = case.facts.gc_pauses_ms
    if not pauses:
        return
    share = sum(pauses) * 1e3 / case.wall_us
    gain, formula = amdahl(share)
    yield Finding(
        rule="gc-pauses",
        cures=("host",),
        title=f"Python's garbage collector stops the {'training ' * case.trains}step",
        evidence=(
            f"{plural(len(pauses), 'collection')} in {plural(case.n_steps, 'step')} took "
            f"{fmt_ms(sum(pauses))} ({fmt_share(share)})"
            + (f", the longest {fmt_ms(max(pauses))}" if len(pauses) > 1 else ""),
        ),
        what_to_do=(
            "import gc\n"
            "gc.collect()\n"
            "gc.freeze()  # what exists by now lives as long as the program\n"
            "gc.disable()  # and collect by hand, say between "
            + ("epochs" if case.trains else "requests")
        ),
        gain_at_most=gain,
        formula=formula,
    )
