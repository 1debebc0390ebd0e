"""Modules and optimizers, as their objects show them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from perfkit.advice.findings import Finding, amdahl, fact
from perfkit.advice.state import alive, state
from perfkit.base.source import call_with, line_of, name_of, only_line_with, shown_line
from perfkit.base.words import fmt_count, plural
from perfkit.measure.live import Live

# Modules of one model that are looked at.
_MOST_MODULES = 20_000
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
        gain, formula = amdahl(share)
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
    yield fact(
        "unused-gradients",
        f"Backward makes gradients of {plural(n, 'tensor')} that no step uses",
        (
            f"they were there when another optimizer stepped, and were cleared before the step of "
            f"their own ({', '.join(map(name_of, of))})",
        ),
        "with torch.no_grad():  # what the other loss only takes as its input\n"
        "    fake = generator(noise)\n"
        "# and a network that a loss only goes through keeps its weights out of it:\n"
        "critic.requires_grad_(False)  # and True again for its own loss",
        acts_on=("forward", "backward"),
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


# A table in which a step touches so few of its rows, and of at least so many numbers.
_FEW_ROWS, _LARGE_TABLE, _MOST_NUMBERS = 0.05, 1_000_000, 50_000_000


@state
def dense_embedding(live: Live) -> Iterator[Finding]:
    """A large table of which a step uses few rows gets a gradient for all of them."""
    for _, model in alive(live.modules):
        for path, module in itertools.islice(model.named_modules(), _MOST_MODULES):
            if "Embedding" not in type(module).__name__ or getattr(module, "sparse", True):
                continue
            weight: Any = getattr(module, "weight", None)
            used = None if weight is None else _rows_used(weight)
            if used is None or used > _FEW_ROWS * len(weight):
                continue
            kind, size = name_of(module), f"{len(weight)}, {weight.shape[1]}"
            own = path.rpartition(".")[2]
            made = (call_with("sparse=True", kind, before=at) for at in (rf"\b{own}\b.*", ""))
            line, code = next((one for one in made if one[0]), (None, ""))
            table = f"model.{path}" if all(map(str.isidentifier, path.split("."))) else "table"
            yield fact(
                "dense-embedding",
                f"A step uses {fmt_count(used)} of {fmt_count(len(weight))} rows of an embedding, "
                "and updates all of them",
                (
                    f"the gradient of {kind}({size}) is dense: backward fills all rows with zeros "
                    "first, and the optimizer goes over each",
                ),
                f"{code or f'table = nn.{kind}({size}, sparse=True)'}\n"
                f"rare = torch.optim.SparseAdam({table}.parameters(), lr)\n"
                f"# the other optimizer gets all parameters but {table}.weight; both step",
                line=line,
                acts_on=("backward", "optimizer"),
                changes="SparseAdam has no weight decay, and updates only the rows that it sees",
            )
            return


def _rows_used(weight: Any) -> int | None:
    """Rows of a gradient with a number in them; None where that is not known, or dear to ask."""
    grad = weight.grad
    if grad is None or grad.is_sparse or grad.device.type != "cpu" or grad.ndim != 2:
        return None
    if not _LARGE_TABLE <= grad.numel() <= _MOST_NUMBERS or str(grad.dtype) == "torch.bfloat16":
        return None
    # numpy: no operator of torch's, which a recording would show
    return int(grad.detach().numpy().any(axis=1).sum())
