"""What recorded shapes tell of how operators are called: modes, odd sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_count, fmt_share, plural

_HALVES = ("c10::Half", "c10::BFloat16")
# NVIDIA's deep-learning performance guide: unless dimensions are multiples of 8 (16 bytes), 16-bit
# matrix products reach between a quarter and nearly all of the aligned speed.
_ALIGNED_SPEEDUP = 4
# name → which inputs are matrices
_PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)}


def _sizes(dims: list[Any], index: int) -> list[int]:
    """The shape of one input; empty if it is not a tensor."""
    shape = dims[index] if index < len(dims) else []
    return shape if isinstance(shape, list) and all(isinstance(n, int) for n in shape) else []


@rule
def train_mode(case: Case) -> Iterator[Finding]:
    """Batch norms that use their batch's statistics although nothing trains."""
    if case.trains:
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
            always=True,
        )


@rule
def alignment(case: Case) -> Iterator[Finding]:
    """16-bit matrix products with dimensions that are not multiples of 8."""
    trace, rows = case.trace, case.nesting.rows
    if case.busy_share < 0.5:
        return
    half = [i for i, types in enumerate(trace.input_types) if any(h in types for h in _HALVES)]
    odd = np.zeros(len(rows), dtype=np.bool_)
    shapes: Counter[str] = Counter()
    known = np.isin(trace.types_id[rows], half) & (trace.dims_id[rows] >= 0)
    for name, inputs in _PRODUCTS.items():
        at = np.flatnonzero(case.is_named(name) & known)
        # There are many products but few shapes: examine each shape once.
        for dims_id in np.unique(trace.dims_id[rows[at]]):
            same = at[trace.dims_id[rows[at]] == dims_id]
            sizes = [_sizes(case.dims(int(same[0])), n)[-2:] for n in inputs]
            flat = [n for pair in sizes for n in pair]
            # with a vector the memory's rate decides, and no padding helps
            if 1 not in flat and any(n % 8 for n in flat):
                odd[same] = True
                shapes[" × ".join(map(str, sizes))] += len(same)
    if not odd.any():
        return
    share = case.device_share(case.launched_by(odd))
    shape, n = shapes.most_common(1)[0]
    yield found(
        "matmul-alignment",
        "16-bit matrix products have dimensions that are not a multiple of 8",
        [
            f"{plural(odd.sum() / case.n_steps, 'product')} per step, {fmt_share(share)} of its "
            f"time; most often {shape} ({fmt_count(n / case.n_steps)} per step)"
        ],
        "n_classes = -(-n_classes // 8) * 8  # pad vocabulary and classes to a multiple of 8\n"
        "x = torch.nn.functional.pad(x, (0, -x.shape[-1] % 8))",
        cures=("compute",),
        share=share,
        speedup=_ALIGNED_SPEEDUP,
    )
