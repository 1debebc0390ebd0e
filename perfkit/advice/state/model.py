"""Modules and optimizers, as their objects show them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl, fact
from perfkit.advice.state import alive, state
from perfkit.base.backward_for import backward_for
from perfkit.base.source import (
    call_with,
    line_of,
    lines_with,
    name_of,
    only_line_with,
    shown_line,
)
from perfkit.base.words import fmt_count, fmt_share, plural
from perfkit.measure.live import Live
from perfkit.memory.parameters import (
    all_optimizers,
    is_plain_with_grad,
    largest_with,
    rows_used,
    stepped_by,
    takes_sparse,
)

# Modules of one model that are looked at.
_MOST_MODULES = 20_000
# A forward pass is at most so many times as fast where it makes no graph (1.5 of small layers).
_WITHOUT_GRAPH = 2.0
# So many hooks more, and at least one for every other step: they are added in the loop.
_MANY_HOOKS = 4
# Fewer groups than these make no update slow.
_MANY_GROUPS = 16
# An evaluation calls the model more than once.
_SEVERAL = 3
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@state
def hooks_multiply(live: Live) -> Iterator[Finding]:
    """Hooks are added in the loop and not removed."""
    for _, model in alive(live.modules):
        n, newest = _count_hooks(model)
        before, at = live.first_look(model, n)
        more, steps = n - before, live.n_steps - at
        if more < _MANY_HOOKS or not steps or more < steps / 2:
            continue
        yield fact(
            "hooks-multiply",
            f"Hooks multiply: {name_of(model)} had {fmt_count(before)}, and has {fmt_count(n)} "
            f"after {plural(steps, 'step')} more",
            ("each step adds hooks and removes none, and every forward pass calls all of them",),
            "handle = module.register_forward_hook(hook)  # once, before the loop\n"
            "# or in each step, and at its end:  handle.remove()",
            line=only_line_with(r"\bregister_(full_)?(forward|backward)\w*hook\(")
            or (None if newest is None else line_of(newest)),
            acts_on=("forward", "backward"),
        )


def _count_hooks(model: Any) -> tuple[int, Any]:
    """Hooks of all its modules, and the one that was added last."""
    modules = itertools.islice(model.modules(), _MOST_MODULES)
    found = [hooks for one in modules for name in _HOOKS if (hooks := getattr(one, name, None))]
    last = [(key, hooks[key]) for hooks in found if isinstance(key := next(reversed(hooks)), int)]
    newest = max(last, key=lambda one: one[0], default=(0, None))[1]
    return sum(map(len, found)), newest


@state
def evaluation_keeps_graphs(live: Live) -> Iterator[Finding]:
    """A model that trains is also called in evaluation mode with gradients on."""
    for use, model in alive(live.modules):
        if use.n_eval_with_grad < _SEVERAL or not use.n_trained:
            continue
        if not any(parameter.requires_grad for parameter in model.parameters()):
            continue
        share = live.with_graph_s / (live.ended_s - live.began_s)
        gain, formula = amdahl(share, speedup=_WITHOUT_GRAPH)
        # what a GPU does comes later than the call
        is_known = share <= 1 and all(x.device.type == "cpu" for x in model.parameters())
        yield fact(
            "evaluation-with-grad",
            f"The evaluation keeps graphs: {name_of(model)} runs in evaluation mode with gradients "
            "on",
            (
                f"{plural(use.n_eval_with_grad, 'forward pass', 'forward passes')} of "
                f"{use.n_calls} in evaluation mode without torch.no_grad(): model.eval() does not "
                "turn gradients off, so each keeps its activations until its result is dropped",
            ),
            "with torch.inference_mode():  # or decorate the function with it\n"
            "    output = model(x)",
            line=shown_line(*use.evaluated_at) if use.evaluated_at else None,
            gain=(gain, f"for the code as a whole, {formula}") if is_known else None,
        )


@state
def many_groups(live: Live) -> Iterator[Finding]:
    """Each parameter is a group of its own: the fast forms of the update work on one group."""
    for _, optimizer in alive(live.optimizers):
        groups = optimizer.param_groups
        n = sum(len(group["params"]) for group in groups)
        if len(groups) < _MANY_GROUPS or n > 2 * len(groups):
            continue
        yield fact(
            "optimizer-groups",
            f"The optimizer has {len(groups)} parameter groups for {plural(n, 'tensor')}: it "
            "updates them one by one",
            ("foreach and fused updates work within one group, and each of these has one tensor",),
            "groups = {}  # one group for all tensors with the same settings\n"
            "for p, lr, decay in settings:\n"
            "    group = groups.setdefault(\n"
            '        (lr, decay), {"params": [], "lr": lr, "weight_decay": decay}\n'
            "    )\n"
            '    group["params"].append(p)\n'
            f"optimizer = torch.optim.{name_of(optimizer)}(list(groups.values()))",
            line=only_line_with(rf"\b{name_of(optimizer)}\("),
            acts_on=("optimizer",),
        )


@state
def unused_gradients(live: Live) -> Iterator[Finding]:
    """One loss goes back through what only another loss trains, and its gradients are cleared."""
    thrown_away = [(use, one) for use, one in alive(live.optimizers) if use.n_thrown_away]
    if sum(use.n_thrown_away for use, _ in thrown_away) < 2:
        return
    of = [optimizer for _, optimizer in thrown_away]
    n = sum(len(group["params"]) for one in of for group in one.param_groups)
    line, code = backward_for(set().union(*(use.thrown_away_at for use, _ in thrown_away)))
    yield fact(
        "unused-gradients",
        f"Backward makes gradients of {plural(n, 'tensor')} that no step uses",
        (
            f"they were there when another optimizer stepped, and were cleared before the step of "
            f"their own ({', '.join(map(name_of, of))})",
        ),
        code
        or 'mine = [p for group in optimizer.param_groups for p in group["params"]]\n'
        "loss.backward(inputs=mine)  # of each loss, with the optimizer that steps after it",
        line=None if line is None else shown_line(*line),
        acts_on=("forward", "backward"),
    )


# Gradients of fewer, of all numbers that have one, cost little.
_LEAST_IDLE, _LEAST_STEPS, _MOST_PARTS = 0.1, 3, 4


@state
def gradients_of_no_optimizer(live: Live) -> Iterator[Finding]:
    """Backward makes gradients of weights that no optimizer has, and that nothing changes."""
    optimizers = [one for _, one in alive(live.optimizers)]
    models = [model for _, model in alive(live.modules)]
    some = {p for model in models for p in model.parameters() if is_plain_with_grad(p)}
    idle = some - stepped_by(optimizers)
    n, n_idle = (sum(p.numel() for p in these) for these in (some, idle))
    if not optimizers or n_idle < max(_LEAST_IDLE * n, 1):
        return
    # what is a copy of what an optimizer has changes with it, and so does what is updated by hand
    values = hash(frozenset((id(p), float(p.detach().flatten()[0])) for p in idle))
    before, at = live.first_look(optimizers[0], values)
    if before != values or live.n_steps - at < _LEAST_STEPS or idle & stepped_by(all_optimizers()):
        return
    freeze = [f"{one}.requires_grad_(False)" for one in largest_with(idle, models)]
    yield fact(
        "idle-gradients",
        f"Backward makes gradients of {fmt_share(n_idle / n)} of the weights for no optimizer",
        (
            f"no optimizer has {fmt_count(n_idle)} of {fmt_count(n)} numbers that get a gradient, "
            f"and nothing changed them in steps {at} to {live.n_steps}",
        ),
        "# before the loop (and before DistributedDataParallel):\n"
        + "\n".join(freeze[:_MOST_PARTS]),
        acts_on=("backward",),
        changes="clipping does not count them any more" * any(lines_with(r"\bclip_grad_norm_\(")),
    )


@state
def no_sync_too_late(live: Live) -> Iterator[Finding]:
    """``no_sync`` is entered after the forward pass, which has decided already."""
    for use, _ in alive(live.modules):
        if not use.n_unsynced:
            continue
        yield fact(
            "no-sync-too-late",
            "no_sync() is around backward only, so gradients are exchanged all the same",
            (
                "DistributedDataParallel decides in its forward pass whether the next backward "
                f"pass exchanges gradients; {plural(use.n_unsynced, 'pass', 'passes')} of "
                f"{use.n_calls} entered no_sync() after that",
            ),
            "with model.no_sync():  # forward and backward\n"
            "    loss = loss_fn(model(x), y) / accumulate\n"
            "    loss.backward()",
            line=only_line_with(r"\.no_sync\(\)"),
            acts_on=("communication", "backward"),
        )


# A table in which a step touches so few of its rows.
_FEW_ROWS = 0.05


@state
def dense_embedding(live: Live) -> Iterator[Finding]:
    """A large table of which a step uses few rows gets a gradient for all of them."""
    for _, model in alive(live.modules):
        for path, module in itertools.islice(model.named_modules(), _MOST_MODULES):
            if "Embedding" not in type(module).__name__ or getattr(module, "sparse", True):
                continue
            weight: Any = getattr(module, "weight", None)
            used = None if weight is None else rows_used(weight)
            if used is None or used > _FEW_ROWS * len(weight):
                continue
            kind, size = name_of(module), f"{len(weight)}, {weight.shape[1]}"
            own = path.rpartition(".")[2]
            made = (call_with("sparse=True", kind, before=at) for at in (rf"\b{own}\b.*", ""))
            line, code = next((one for one in made if one[0]), (None, ""))
            table = f"model.{path}" if all(map(str.isidentifier, path.split("."))) else "table"
            rest = f"the other optimizer gets all parameters but {table}.weight; both step"
            stepped = f"rare = torch.optim.SparseAdam({table}.parameters(), lr)\n# {rest}"
            if takes := takes_sparse([one for _, one in alive(live.optimizers)], weight):
                stepped = "# the optimizer stays: SGD takes such gradients"
            yield fact(
                "dense-embedding",
                f"A step uses {fmt_count(used)} of {fmt_count(len(weight))} rows of an embedding, "
                "and updates all of them",
                (
                    f"the gradient of {kind}({size}) is dense: backward fills all rows with zeros "
                    "first, and the optimizer goes over each",
                ),
                f"{code or f'table = nn.{kind}({size}, sparse=True)'}\n{stepped}",
                line=line,
                acts_on=("backward", "optimizer"),
                where=_of_tables,
                changes="SparseAdam has no weight decay, and updates only the rows that it sees"
                * (not takes),
            )
            return


def _of_tables(case: Case) -> tuple[float, None]:
    made = case.is_named("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
    return min(case.share_at(made) + case.lost_to("optimizer"), 1.0), None
