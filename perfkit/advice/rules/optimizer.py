"""The optimizer: updating parameter by parameter, zeroing gradients, or stepping too often."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.events import backward_rows
from perfkit.trace.read.intervals import overlap

_LEAST_SHARE = 0.1
# On a device that waits less than this for launches, zeroing hides behind its work.
_LEAST_IDLE = 0.05
# The for-loop form issues several ops per parameter tensor; fused and foreach a few per step.
_LOOP_OPS = 40
# From here on they are told as many: GANs and actor-critics have two or three.
_MANY_OPTIMIZERS = 3
# An update that takes a quarter of the step is out of proportion to forward and backward.
_LARGE_SHARE = 0.25
# Optimizers that torch 2.8 can fuse, on the CPU too, and those that accept foreach: the table in
# docs.pytorch.org/docs/stable/optim.html#algorithms. LBFGS, SparseAdam and third-party classes
# would raise a TypeError.
_FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_FOREACH = _FUSED | {"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"}


@rule
def single_tensor(case: Case) -> Iterator[Finding]:
    """The update loops over the parameters in Python."""
    found = _loop(case)
    if found is None or _is_one_with_backward(case):
        return
    per_step, share = found
    names = [o.name for o in case.facts.optimizers] or [_name(case)]
    name = next((n for n in names if n in _FOREACH), None)
    if name is None:
        return
    option = "fused=True" if name in _FUSED else "foreach=True"
    known = [o for o in case.facts.optimizers if o.name in _FOREACH]
    tensors = sum(o.n_tensors for o in known)
    made = f"optimizer = torch.optim.{name}(model.parameters(), ..., {option})"
    # Pyro gives each parameter its own: fused or not, that is one tensor after the other
    each_its_own = len(known) > _MANY_OPTIMIZERS and tensors < 2 * len(known)
    gain, formula = amdahl(share)
    yield Finding(
        rule="optimizer-loop",
        cures=("launch", "compute"),
        title="Each parameter tensor has an optimizer of its own"
        if each_its_own
        else "The optimizer updates one parameter tensor after the other",
        evidence=(
            f"{plural(per_step, 'operation')} per step inside Optimizer.step"
            + (f" for {tensors} parameter tensors" if tensors else "")
            + (f" of {len(known)} optimizers" if each_its_own else "")
            + ", none of them fused or foreach",
            f"the update takes {fmt_ms(case.ms_per_step(case.shares['optimizer']))} "
            f"({fmt_share(case.shares['optimizer'])}) of each step",
        ),
        what_to_do=f"# one optimizer for all of them, in place of {len(known)}\n{made}"
        if each_its_own
        else made,
        gain_at_most=gain,
        formula=formula,
    )


def _loop(case: Case) -> tuple[float, float] | None:
    """Operations per step and share of a for-loop update; None if there is no such loop."""
    steps = case.labels("Optimizer.step#")
    ops = case.ops_inside(steps, once=True)
    share = case.lost_to("optimizer")
    if case.on_device:  # its kernels become fewer, too
        share = min(share + case.device_share(case.launched_by(case.within(steps))), 1.0)
    if any("_foreach_" in op or "_fused_" in op for op in ops) or share < _LEAST_SHARE:
        return None
    per_step = sum(ops.values()) / case.n_steps
    return (per_step, share) if per_step >= _LOOP_OPS else None


@rule
def zero_grad(case: Case) -> Iterator[Finding]:
    """Gradients are filled with zeros instead of dropped."""
    labels = case.labels("Optimizer.zero_grad#")
    zeroing = {
        op: n
        for op, n in case.ops_inside(labels, once=True).items()
        if op in ("aten::zero_", "aten::_foreach_zero_")
    }
    if not zeroing:
        return
    share = case.share_of(labels, typical=True)
    if case.on_device and case.idle["launch"] < _LEAST_IDLE:
        return
    gain, formula = amdahl(share)
    yield Finding(
        rule="zero-grad",
        cures=("compute",),
        title="Gradients are filled with zeros instead of dropped",
        evidence=(
            f"{plural(sum(zeroing.values()) / case.n_steps, 'zeroing operation')} per step; "
            "zero_grad "
            f"takes {fmt_ms(case.ms_per_step(share))} ({fmt_share(share)}) of it",
        ),
        what_to_do="optimizer.zero_grad(set_to_none=True)  # the default since torch 2.0",
        gain_at_most=gain,
        formula=formula,
    )


@rule
def large_update(case: Case) -> Iterator[Finding]:
    """The update takes much of the step although it uses the fast form."""
    share = case.lost_to("optimizer")
    if share < _LARGE_SHARE or _loop(case) is not None or _is_one_with_backward(case):
        return
    gain, formula = amdahl(share, speedup=4)
    yield Finding(
        rule="optimizer-share",
        cures=("compute",),
        title="The update takes much of the step: batches are small for this model",
        evidence=(
            f"Optimizer.step and zero_grad take {fmt_share(case.shares['optimizer'])} of each step",
        ),
        what_to_do=(
            "for i, (x, y) in enumerate(loader):\n"
            "    (loss_fn(model(x), y) / 4).backward()\n"
            "    if i % 4 == 3:  # one update for four batches\n"
            "        optimizer.step()\n"
            "        optimizer.zero_grad()"
        ),
        gain_at_most=gain,
        formula=formula,
        changes="an update sees four batches, so the learning rate may have to change",
    )


def _is_one_with_backward(case: Case) -> bool:
    """Whether hooks step each weight as its gradient comes, or the optimizer calls a closure.

    The first saves memory that one optimizer for all would take, and neither could accumulate.
    """
    update = case.labels("Optimizer.step#")
    return len(overlap(update, case.span(backward_rows(case.trace)))) > 0


def _name(case: Case) -> str:
    for name in case.trace.names:
        if name.startswith("Optimizer.step#"):
            return name.removeprefix("Optimizer.step#").removesuffix(".step")
    return "AdamW"
