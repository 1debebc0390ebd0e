"""What a step's own work tells: number formats, threads, the update, and what need not be in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules import rule
from perfkit.base.source import call_with, lines_with, only_line_with, shown_line
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_share, plural
from perfkit.trace.ask.breakdown import after_updates
from perfkit.trace.ask.passes import LAYERS, run_again
from perfkit.trace.read.columns import Category
from perfkit.trace.read.events import backward_rows
from perfkit.trace.read.intervals import EMPTY, Intervals, overlap, span, union, without
from perfkit.trace.record.facts import OptimizerFacts

_LEAST_WORK = 0.15
# Shorter ops are not worth a second thread.
_LONG_OP_US = 100.0
_FLOAT64 = r"(?<![=!]= )\b(torch|np|numpy)\.(float64|double)\b|dtype=.float64\b|\.double\(\)"


@rule
def float64(case: Case) -> Iterator[Finding]:
    """The model computes in double precision."""
    if case.on_device:
        from perfkit.trace.ask.kernels import computes_in_float64

        wide = case.activities(Category.KERNEL, named=computes_in_float64)
        share = case.device_share(wide)
    elif _are_mostly(case.facts.optimizers, "float64"):
        share = sum(case.shares[one] for one in ("forward", "backward", "optimizer"))
    else:
        return
    if share < _LEAST_WORK:
        return
    asked = [] if case.is_file else [shown_line(*at) for at in lines_with(_FLOAT64)]
    places = "".join(f"# {one}\n" for one in asked[:8])
    if asked:  # one that is left makes the next product fail
        places = f"# float32 here too, all at once ({plural(len(asked), 'line')}):\n{places}"
    # On a CPU float32 has half the bytes and twice the vector lanes; data-centre GPUs also gain a
    # factor of 2. Other GPUs are 32 to 64 times slower in float64, so there the bound assumes that
    # the time vanishes.
    yield found(
        "float64",
        "The model computes in float64",
        [f"{'kernels' if case.on_device else 'operators'} on it take {fmt_share(share)} of a step"],
        f"{places}model = model.float()\n"
        "x = torch.as_tensor(array, dtype=torch.float32)  # NumPy arrays are float64 by default",
        cures=("compute",),
        share=share,
        speedup=None if case.on_device else 2,
        line=next(iter(asked), None),
    )


def _are_mostly(optimizers: Sequence[OptimizerFacts], dtype: str) -> bool:
    """Whether at least half of the parameters are of this type: a single scalar is no model."""
    of = Counter[str]()
    for one in optimizers:
        of.update(dict(zip(one.dtypes, one.elements or (1,) * len(one.dtypes), strict=True)))
    return of[dtype] > 0 and 2 * of[dtype] >= of.total()


@rule
def threads(case: Case) -> Iterator[Finding]:
    """Torch uses one thread although cores are free, or more threads than there are cores.

    Every operation ends when the last of its threads does, and that one has to wait for a core. A
    container's CPU quota is the usual reason: torch counts the machine's cores.
    """
    n, cores = case.facts.n_threads, case.facts.n_cores
    if case.on_device or not n or not cores or not (n == 1 < cores or n > cores):
        return
    long = [o for o in case.operators if o.self_us / o.count >= _LONG_OP_US]
    share = min(sum(o.self_us for o in long) / case.wall_us, 1.0)
    if share < (0.5 if n == 1 else _LEAST_WORK):
        return
    yield found(
        "one-thread" if n == 1 else "too-many-threads",
        f"torch computes with {'one thread' if n == 1 else f'{n} threads'} on "
        f"{plural(cores, 'core')}",
        [f"operators of at least {_LONG_OP_US:g} µs take {fmt_share(share)} of each step"],
        f"torch.set_num_threads({cores})  # or start with OMP_NUM_THREADS={cores}",
        cures=("compute",),
        share=share,
        speedup=cores if n == 1 else None,
    )


_LEAST_SHARE = 0.1
# The for-loop form issues several ops per parameter tensor; fused and foreach a few per step.
_LOOP_OPS = 40
# An update that takes a quarter of the step is out of proportion to forward and backward.
_LARGE_SHARE = 0.25
# Optimizers that torch 2.8 can fuse, on the CPU too, and those that accept foreach: the table in
# docs.pytorch.org/docs/stable/optim.html#algorithms. LBFGS, SparseAdam and third-party classes
# would raise a TypeError.
_FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_ADAM = ("Adam", "AdamW")
_FOREACH = _FUSED | {"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"}

ELSEWHERE = "without what the profiler may have added elsewhere, "


def update_loop(case: Case) -> tuple[Intervals, str]:
    """The updates that loop over the parameters; which optimizer's, where torch has an answer."""
    steps = _updates(case)
    # hooks step each weight as its gradient comes, or the optimizer calls a closure: the first
    # saves memory that one optimizer for all would take, and neither could accumulate
    if len(overlap(steps, span(case.trace, backward_rows(case.trace)))):
        return steps, ""
    ops = case.ops_inside(steps)
    is_joint = any("_foreach_" in op or "_fused_" in op for op in ops)
    if is_joint or ops.total() < _LOOP_OPS * case.n_steps:
        return EMPTY, ""
    if any("sparse" in op or "coalesce" in op for op in ops):
        return steps, ""  # no form but the loop takes sparse gradients
    return steps, _named(case, _FOREACH)


def _updates(case: Case) -> Intervals:
    return without(case.labels("Optimizer.step#"), after_updates(case.trace, case.steps))


def _named(case: Case, known: Collection[str]) -> str:
    """The first of the optimizers that is known; empty where none is."""
    names = [o.name for o in case.facts.optimizers] or [
        name.removeprefix("Optimizer.step#").removesuffix(".step")
        for name in case.trace.names
        if name.startswith("Optimizer.step#")
    ]
    return next((name for name in names if name in known), "")


def _to_be_fused(case: Case) -> tuple[float, str]:
    """Of an update by lists of tensors on a device: the most of a step that is lost to it, and by
    whose. Each operator on a list goes through memory again, of Adam's states some ten times.
    """
    steps = _updates(case)
    ops = case.ops_inside(steps)
    joint = case.on_device and any("_foreach_" in op for op in ops)
    if not joint or any("_fused_" in op for op in ops) or not (name := _named(case, _ADAM)):
        return 0.0, ""
    share = case.lost_in(steps) + case.device_share(case.launched_by(case.within(steps)))
    return min(share, 1.0), name


def _made_with(case: Case, option: str, name: str) -> tuple[str | None, str]:
    """The line that makes the optimizer, if it is of this program, and the same with an option."""
    line, code = (None, "") if case.is_file else call_with(option, name)
    return line, code or f"optimizer = torch.optim.{name}(model.parameters(), ..., {option})"


@rule
def update(case: Case) -> Iterator[Finding]:
    """The update loops over the parameters in Python, or takes much of the step without."""
    took = case.lost_to("optimizer")
    steps, name = update_loop(case)
    is_known = case.whole is not None and not case.on_device  # of all steps, unrecorded
    share = took if is_known else max(took, case.lost_to_loop(steps))
    told = f"Optimizer.step and zero_grad take {fmt_share(case.shares['optimizer'])} of each step"
    if share >= _LEAST_SHARE and len(steps):
        n = sum(o.n_tensors for o in case.facts.optimizers if o.name in _FOREACH)
        n_calls = case.ops_inside(steps).total()
        if case.on_device:
            from perfkit.trace.ask.launches import launches_in

            told += f", with {launches_in(case.trace, case.steps, steps)}"
        if name:
            line, code = _made_with(case, f"{'fused' if name in _FUSED else 'foreach'}=True", name)
            yield found(
                "optimizer-loop",
                "The optimizer updates one parameter tensor after the other",
                [
                    f"{plural(n_calls / case.n_steps, 'operation')} per step inside Optimizer.step"
                    + f" for {n} parameter tensors" * bool(n),
                    told,
                ],
                code,
                cures=("launch", "compute"),
                share=share,
                of=ELSEWHERE * case.on_device,
                line=line,
            )
        return
    passes, name = _to_be_fused(case)
    if passes >= _LEAST_SHARE:
        line, code = _made_with(case, "fused=True", name)
        yield found(
            "optimizer-share",
            "The update takes much of the step: it is not fused",
            [told, f"with its kernels, {fmt_share(passes)} of a step may go with it"],
            f"{code}  # not with foreach=True",
            cures=("compute", "launch"),
            share=passes,
            line=line,
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


# So many times a step is more than a loss or a preconditioner needs.
_OFTEN = 8
# Work of the third power of a matrix's size, by the operator that is called.
_CUBIC = re.compile(
    r"(aten::)?_?(linalg_)?(cholesky|eigh?|householder|inv|lstsq|lu|matrix_exp|matrix_power|pinv|qr|"
    r"solve|svd)(_ex)?_*$"
)


@rule
def matrix_functions(case: Case) -> Iterator[Finding]:
    """The same matrix function or decomposition, again and again in one step."""
    often = [o for o in case.operators if _CUBIC.match(o.name) and o.count >= _OFTEN * case.n_steps]
    for one in sorted(often, key=lambda o: -o.total_us):
        share = case.lost_in(
            span(case.trace, case.rows(Category.OP) & case.trace.named(one.name.__eq__))
        )
        if share < _LEAST_SHARE:
            continue
        yield found(
            "matrix-functions",
            f"{one.name} runs {fmt_count(round(one.count / case.n_steps))} times a step",
            [f"with what it calls, it takes {fmt_share(share)} of each step"],
            "# of a weight (orthogonal, spectral_norm …): once a step, not at each use\n"
            "with torch.nn.utils.parametrize.cached():\n"
            "    loss = loss_fn(model(x), y)\n"
            "# of many matrices: one call for all\n"
            "result = torch.linalg.inv(torch.stack(matrices))",
            cures=("compute", "launch"),
            share=share,
        )
        return


_PRODUCTS, _SOFTMAX = ("aten::bmm", "aten::baddbmm"), ("aten::_softmax",)
# Before attention's softmax is none with weights, as a router has; that of the values may follow.
_OF_WEIGHTS = ("aten::mm", "aten::addmm", "aten::convolution")
_FALLBACK = "aten::_scaled_dot_product_attention_math"
_OF_ATTENTION = ("BmmBackward0", "BaddbmmBackward0", "SoftmaxBackward0")


@rule
def own_attention(case: Case) -> Iterator[Finding]:
    """Attention as a product, a softmax and a product: the whole matrix of weights is written."""
    trace, inside = case.trace, case.nesting
    at = np.flatnonzero(
        case.is_named(*_PRODUCTS, *_SOFTMAX, *_OF_WEIGHTS)
        & (trace.thread[inside.rows] == case.steps.thread)
    )
    at = at[~(case.is_named(*_OF_WEIGHTS)[at] & np.r_[False, case.is_named(*_SOFTMAX)[at[:-1]]])]
    is_softmax, is_product = case.is_named(*_SOFTMAX)[at], case.is_named(*_PRODUCTS)[at]
    same = inside.step[at[:-2]] == inside.step[at[2:]] if len(at) > 2 else np.zeros(0, bool)
    middle = 1 + np.flatnonzero(same & is_product[:-2] & is_softmax[1:-1] & is_product[2:])
    if not len(middle):
        return
    first, last = inside.rows[at[middle - 1]], inside.rows[at[middle + 1]]
    forward = union(trace.start_ns[first], trace.end_ns[last])
    backward = case.is_named(*_OF_ATTENTION)
    if case.on_device:
        share = case.device_share(case.launched_by(case.within(forward) | backward))
    else:
        share = case.share_of(forward) + case.share_of(span(case.trace, inside.rows[backward]))
    if share < _LEAST_WORK:
        return
    lines = case.lines_in(forward).by_line()
    unfused = span(case.trace, inside.rows[case.is_named(_FALLBACK)])
    falls_back = bool(unfused.covers(trace.start_ns[first]).all())
    if falls_back:
        what_to_do = (
            "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
            "# once: torch warns why no fused kernel takes it (on a CPU: dropout, a mask with "
            "gradients)\n"
            "with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):\n"
            "    loss = loss_fn(model(x), y)"
        )
    elif lines and "torch/nn" in lines[0].mostly:
        what_to_do = (
            "y, _ = attention(x, x, x, need_weights=False)  # fused where nobody needs the weights"
        )
    else:
        what_to_do = (
            "y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (batch, heads, n, d)\n"
            "# nn.MultiheadAttention: attention(x, x, x, need_weights=False); transformers:\n"
            '# from_pretrained(..., attn_implementation="sdpa")'
        )
    yield found(
        "attention-falls-back" if falls_back else "own-attention",
        f"Attention that is not fused takes {fmt_share(share)} of each step",
        [
            f"{plural(len(middle) / case.n_steps, 'softmax', 'softmaxes')} a step between two "
            "products: the weights of all pairs are written to memory, and kept for backward",
            *["scaled_dot_product_attention is called and takes its unfused path"] * falls_back,
        ],
        what_to_do,
        cures=("compute", "launch"),
        share=min(share, 1.0),
        line=lines[0].shown if lines else None,
    )


@rule
def checkpoints(case: Case) -> Iterator[Finding]:
    """Layers run again in the backward pass, to save memory of which there is plenty.

    A part that runs again has its activations in memory then, as it would without.
    """
    n_parts, part = run_again(case.trace, case.steps)
    peak, total = case.facts.memory or (0, 0)
    most = (n_parts + 1) * peak
    if not (n_parts and total) or most > total / 2:  # where others need the rest
        return
    yield found(
        "checkpoints",
        "The forward pass runs again in backward, to save memory that is there",
        [
            f"{plural(n_parts, 'part')} of the model, with {fmt_share(part)} of its layers; the "
            f"process has held up to {fmt_bytes(peak)}, and without checkpoints would hold less "
            f"than {fmt_bytes(most)} of {fmt_bytes(total)}"
        ],
        "x = block(x)  # not: checkpoint(block, x)\n"
        "# transformers: model.gradient_checkpointing_disable()",
        cures=("compute", "launch"),
        share=min(case.shares["forward"] * part, case.shares["backward"]),
        line=only_line_with(r"\bcheckpoint\(|\bgradient_checkpointing_enable\("),
    )


@rule
def validation(case: Case) -> Iterator[Finding]:
    """An evaluation inside the training steps, which a trace cannot tell from their forward."""
    often = 2 * np.count_nonzero(case.evaluated_ms) > case.n_steps  # the advice is: now and then
    if often and case.evaluated >= _LEAST_WORK:
        yield found(
            "validation-in-step",
            "The model is evaluated inside the training steps",
            [
                f"evaluation (or a policy that plays) takes {fmt_share(case.evaluated)} of them; "
                "it counts as forward, data wait or other"
            ],
            "if step % 500 == 0:  # or once per epoch\n"
            "    model.eval()\n"
            "    with torch.inference_mode():\n"
            "        validate(model, validation_loader)\n"
            "    model.train()",
            cures=("host", "launch", "compute"),
            share=case.evaluated,
            line=only_line_with(r"\.eval\(\)"),
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
    ops = inside.rows[case.is_named(*LAYERS, *_OF_WEIGHTS, *_PRODUCTS)]
    ops = ops[trace.sequence[ops] >= 0]
    step = case.steps.containing(trace.start_ns[ops])
    nodes = len({*zip(step.tolist(), trace.sequence[ops].tolist(), strict=True)})
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
        "Python's garbage collector stops the step",
        [
            f"{plural(len(pauses), 'collection')} in {plural(case.n_steps, 'step')} took "
            f"{fmt_ms(sum(pauses))} ({fmt_share(share)})"
        ],
        "gc.collect()\n"
        "gc.freeze()  # what exists by now lives as long as the program\n"
        "gc.disable()  # and collect by hand, now and then",
        cures=("host",),
        share=share,
    )


@rule
def train_mode(case: Case) -> Iterator[Finding]:
    """Batch norms that use their batch's statistics although nothing trains."""
    if case.trains or not case.trace.input_dims:
        return
    norms = np.flatnonzero(case.is_named("aten::batch_norm"))
    at_work = [at for at in norms.tolist() if case.concrete(at)[5:6] == ["True"]]
    if at_work:
        yield found(
            "train-mode",
            "The model is in training mode, and no training is recorded",
            [
                f"{plural(len(at_work) / case.n_steps, 'batch norm')} per step normalise by the "
                "statistics of their own batch: a result depends on what else is in it"
            ],
            "model.eval()  # if this is inference",
            cures=(),
            share=0.0,
            formula="a matter of results, not of time",
        )
