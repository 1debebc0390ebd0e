"""The optimizer: updating parameter by parameter, or stepping too often."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_share, plural
from perfkit.trace.read.events import backward_rows
from perfkit.trace.read.intervals import overlap

_LEAST_SHARE = 0.1
# The for-loop form issues several ops per parameter tensor; fused and foreach a few per step.
_LOOP_OPS = 40
# An update that takes a quarter of the step is out of proportion to forward and backward.
_LARGE_SHARE = 0.25
# Optimizers that torch 2.8 can fuse, on the CPU too, and those that accept foreach: the table in
# docs.pytorch.org/docs/stable/optim.html#algorithms. LBFGS, SparseAdam and third-party classes
# would raise a TypeError.
_FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_FOREACH = _FUSED | {"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"}


@rule
def update(case: Case) -> Iterator[Finding]:
    """The update loops over the parameters in Python, or takes much of the step without."""
    took = case.lost_to("optimizer")
    steps = case.labels("Optimizer.step#")
    # hooks step each weight as its gradient comes, or the optimizer calls a closure: the first
    # saves memory that one optimizer for all would take, and neither could accumulate
    if len(overlap(steps, case.span(backward_rows(case.trace)))):
        return
    ops = case.ops_inside(steps, once=True)
    per_step = sum(ops.values()) / case.n_steps
    share = took
    if case.on_device:  # its kernels become fewer, too
        share = min(share + case.device_share(case.launched_by(case.within(steps))), 1.0)
    told = f"Optimizer.step and zero_grad take {fmt_share(case.shares['optimizer'])} of each step"
    is_joint = any("_foreach_" in op or "_fused_" in op for op in ops)
    if share >= _LEAST_SHARE and per_step >= _LOOP_OPS and not is_joint:
        names = [o.name for o in case.facts.optimizers] or [_name(case)]
        name = next((n for n in names if n in _FOREACH), None)
        if name is None:
            return
        option = "fused=True" if name in _FUSED else "foreach=True"
        n = sum(o.n_tensors for o in case.facts.optimizers if o.name in _FOREACH)
        yield found(
            "optimizer-loop",
            "The optimizer updates one parameter tensor after the other",
            [
                f"{plural(per_step, 'operation')} per step inside Optimizer.step"
                + f" for {n} parameter tensors" * bool(n),
                told,
            ],
            f"optimizer = torch.optim.{name}(model.parameters(), ..., {option})",
            cures=("launch", "compute"),
            share=share,
        )
    elif took >= _LARGE_SHARE:
        yield found(
            "optimizer-share",
            "The update takes much of the step: batches are small for this model",
            [told],
            "for i, (x, y) in enumerate(loader):\n"
            "    (loss_fn(model(x), y) / 4).backward()\n"
            "    if i % 4 == 3:  # one update for four batches\n"
            "        optimizer.step()\n"
            "        optimizer.zero_grad()",
            cures=("compute",),
            share=took,
            speedup=4,
            changes="an update sees four batches, so the learning rate may have to change",
        )


def _name(case: Case) -> str:
    for name in case.trace.names:
        if name.startswith("Optimizer.step#"):
            return name.removeprefix("Optimizer.step#").removesuffix(".step")
    return "AdamW"
