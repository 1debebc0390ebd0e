"""What is wrong with how operators are called: shapes, useless biases, modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_count, fmt_ms, fmt_share, plural

_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_HALVES = ("c10::Half", "c10::BFloat16")
# NVIDIA's deep-learning performance guide: unless dimensions are multiples of 8 (16 bytes), 16-bit
# matrix products reach between a quarter and nearly all of the aligned speed.
_ALIGNED_SPEEDUP = 4
_LEAST_SEARCH = 0.1


def _sizes(dims: list[Any], index: int) -> list[int]:
    """The shape of one input; empty if it is not a tensor."""
    shape = dims[index] if index < len(dims) else []
    return shape if isinstance(shape, list) and all(isinstance(n, int) for n in shape) else []


@rule
def conv_bias(case: Case) -> Iterator[Finding]:
    """A convolution bias right before a batch norm, which subtracts it again."""
    if not case.trace.input_dims:
        return
    convolutions = np.flatnonzero(case.is_named(*_CONVOLUTIONS) & (case.next_op >= 0))
    # A batch norm that subtracts the batch's own mean counts its batches first, by adding to a
    # number: num_batches_tracked.add_(1). In inference, or frozen, it subtracts a stored mean, to
    # which the bias belongs; what is added to a whole tensor is no count, but a shortcut.
    between = case.next_op[convolutions]
    after = case.next_op[between]
    counts = case.is_named("aten::add_", "aten::add")[between] & (after >= 0)
    chosen = counts & case.is_named("aten::batch_norm")[after]
    found = []
    for at, count in zip(convolutions[chosen].tolist(), between[chosen].tolist(), strict=True):
        dims = case.dims(at)
        if _sizes(dims, 2) and not _sizes(case.dims(count), 0):
            found.append((at, dims))
    if not found:
        return
    share = _bias_share(case, found)
    gain, formula = amdahl(share)
    if gain < 1.005:
        gain, formula = 1.0, f"{fmt_share(share)} of the step: the bias is cheap here, but useless"
    yield Finding(
        rule="conv-bias-before-batch-norm",
        cures=("compute",),
        title="Convolutions have a bias that the batch norm after them subtracts again",
        evidence=(
            f"{plural(len(found) / case.n_steps, 'such convolution')} per step, the first with "
            "weights "
            f"of shape {_sizes(found[0][1], 1)}",
        ),
        what_to_do=(
            "torch.nn.Sequential(\n"
            "    torch.nn.Conv2d(c_in, c_out, 3, bias=False),\n"
            "    torch.nn.BatchNorm2d(c_out),\n"
            ")"
        ),
        gain_at_most=gain,
        formula=formula,
        always=True,
    )


@rule
def algorithm_search(case: Case) -> Iterator[Finding]:
    """Convolutions that search for their fastest algorithm in each step: ever new shapes."""
    searches = case.set_up.searching
    lost = case.lost_in(searches)
    if lost < _LEAST_SEARCH:
        return
    gain, formula = amdahl(lost)
    n = case.set_up.n_searches
    yield Finding(
        rule="algorithm-search",
        cures=("host", "launch", "sync"),
        title="Convolutions search for their fastest algorithm anew in each step",
        evidence=(
            f"{plural(n / case.n_steps, 'convolution')} per step try one algorithm after another "
            f"and wait for each; {fmt_share(case.share_of(searches))} of each step, "
            f"{fmt_ms(searches.total_ns / 1e6 / n)} each on average",
            "torch.backends.cudnn.benchmark does so once for each shape: these must be new",
        ),
        what_to_do=(
            "torch.backends.cudnn.benchmark = False\n"
            "# or only a few shapes: pad or crop the inputs to some fixed sizes"
        ),
        gain_at_most=gain,
        formula=formula,
    )


@rule
def train_mode(case: Case) -> Iterator[Finding]:
    """Batch norms that use their batch's statistics although nothing trains."""
    if case.trains:
        return
    norms = np.flatnonzero(case.is_named("aten::batch_norm"))
    at_work = [at for at in norms.tolist() if case.concrete(at)[5:6] == ["True"]]
    if not at_work:
        return
    yield Finding(
        rule="train-mode",
        title="The model is in training mode, and no training is recorded",
        evidence=(
            f"{plural(len(at_work) / case.n_steps, 'batch norm')} per step normalise by the "
            "statistics of their own batch (training=True): a result then depends on what else is "
            "in the batch; and no backward pass is recorded",
        ),
        what_to_do="model.eval()  # if this is inference",
        gain_at_most=1.0,
        formula="a matter of results, not of time",
        always=True,
    )


def _bias_share(case: Case, found: list[tuple[int, list[Any]]]) -> float:
    """Share of the step spent on adding the biases and summing their gradients."""
    if case.on_device:
        # cuDNN adds the bias in a separate kernel; the gradient's sum reads as much again.
        trace, inside = case.trace, case.nesting
        of_a_convolution = case.is_named("aten::_convolution")
        adds = case.is_named("aten::add_") & (inside.parent_op >= 0)
        adds &= of_a_convolution[np.maximum(inside.parent_op, 0)]
        rows = case.launched_by(adds)
        return 2 * float(trace.dur_us[rows].sum()) / case.wall_us if case.busy_share > 0.5 else 0.0
    # On a CPU it is part of the convolution: one addition per K products of each output.
    trace, inside = case.trace, case.nesting
    share = 0.0
    for at, dims in found:
        n_products = max(prod(_sizes(dims, 1)[1:]), 1)
        share += float(trace.dur_us[inside.rows[at]]) / (n_products + 1)
    return 2 * share / case.wall_us


@rule
def alignment(case: Case) -> Iterator[Finding]:
    """16-bit matrix products with dimensions that are not multiples of 8."""
    trace = case.trace
    if case.busy_share < 0.5:
        return
    half = [
        i
        for i, types in enumerate(trace.input_types)
        if any(t in _HALVES for t in types.split(","))
    ]
    # name → which inputs are matrices
    matrices = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)}
    rows = case.nesting.rows
    odd = np.zeros(len(rows), dtype=np.bool_)
    shapes: Counter[str] = Counter()
    for name, inputs in matrices.items():
        named = case.is_named(name) & np.isin(trace.types_id[rows], half)
        at = np.flatnonzero(named & (trace.dims_id[rows] >= 0))
        # There are many products but few shapes: examine each shape once.
        _, first, which, counts = np.unique(
            trace.dims_id[rows[at]], return_index=True, return_inverse=True, return_counts=True
        )
        is_odd = np.zeros(len(first), dtype=np.bool_)
        for i, position in enumerate(at[first].tolist()):
            dims = case.dims(position)
            sizes = [_sizes(dims, n)[-2:] for n in inputs]
            if any(n == 1 for pair in sizes for n in pair):
                continue  # with a vector: the memory's rate decides, and no padding helps
            if any(n % 8 for pair in sizes for n in pair):
                is_odd[i] = True
                shapes[" × ".join(str(s) for s in sizes)] += int(counts[i])
        odd[at] = is_odd[which]
    if not odd.any():
        return
    share = case.device_share(case.launched_by(odd))
    gain, formula = amdahl(share, speedup=_ALIGNED_SPEEDUP)
    shape, n = shapes.most_common(1)[0]
    yield Finding(
        rule="matmul-alignment",
        cures=("compute",),
        title="16-bit matrix products have dimensions that are not a multiple of 8",
        evidence=(
            f"{plural(odd.sum() / case.n_steps, 'product')} per step, {fmt_share(share)} of its "
            "time; "
            f"most often {shape} ({fmt_count(n / case.n_steps)} per step)",
        ),
        what_to_do=(
            "n_classes = -(-n_classes // 8) * 8  # pad vocabulary and classes to a multiple of 8\n"
            "x = torch.nn.functional.pad(x, (0, -x.shape[-1] % 8))"
        ),
        gain_at_most=gain,
        formula=formula,
    )
