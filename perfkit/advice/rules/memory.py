"""The device's memory: nearly full, or freed and allocated again in every step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.device import pattern
from perfkit.base.words import fmt_bytes, fmt_share, plural
from perfkit.trace.read.columns import Category

# What PyTorch does not see (context, cuBLAS and cuDNN workspaces, NCCL) takes 0.5 to 2 GB: on a
# 40 GB card, a twentieth. TensorBoard's plugin warns above 0.8.
_NEARLY_FULL = 0.9
# Tensors never fill all that is reserved, because blocks are rounded up and split: from this share
# on there is little to take back from the cache.
_IN_USE = 0.8

_TRAIN_IN_LESS = (
    "y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # recompute\n"
    'with torch.autocast("{}", dtype=torch.bfloat16):  # half-size activations\n'
    "    loss = loss_fn(model(x), target)\n"
    "# or a smaller batch with accumulated gradients"
)
_RUN_IN_LESS = (
    "# an engine that serves takes its share at the start, on purpose: then this is no fault\n"
    "with torch.inference_mode():  # keeps nothing for a backward pass\n"
    "    y = model(x)\n"
    "model = model.to(torch.bfloat16)  # half the bytes of float32\n"
    "# or a smaller batch"
)


@rule
def nearly_full(case: Case) -> Iterator[Finding]:
    """The allocator has reserved nearly all device memory (needs recorded memory)."""
    total = case.gpu.get("totalGlobalMem")
    memory = case.trace.memory
    on_device = memory.on_device & (memory.reserved > 0)
    if not isinstance(total, int | float) or total <= 0 or not on_device.any():
        return
    reserved = int(memory.reserved[on_device].max())
    allocated = int(memory.allocated[on_device].max())
    if reserved < _NEARLY_FULL * total:
        return
    is_used = allocated >= _IN_USE * reserved
    yield Finding(
        rule="memory-nearly-full",
        title=(
            "The device's memory is nearly full: a larger batch may fail"
            if is_used
            else "Nearly all of the device's memory is reserved, though not all of it in use"
        ),
        evidence=(
            f"{fmt_bytes(reserved)} of {fmt_bytes(total)} reserved "
            f"({fmt_share(reserved / total)}), {fmt_bytes(allocated)} of it in use at the peak"
            + ("" if is_used else ": PyTorch frees its cache before an allocation fails"),
        ),
        what_to_do=_TRAIN_IN_LESS.format(case.device_type) if case.trains else _RUN_IN_LESS,
        gain_at_most=1.0,
        formula="no gain in time: it makes room in memory",
        always=True,
    )


# Less of the step in such calls is not worth a word.
_LEAST_LOST = 0.03
# With the cache on, the driver is asked now and then for a large piece, never every few kernels.
_KERNELS_PER_PIECE = 10
_GIVES_BACK = re.compile(r"Free|Release|Unmap")
_CACHE_LARGER = (
    "# before the first import of torch, for inputs of varying length{}:\n"
    'os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"\n'
)
_CACHE = (
    "# PYTORCH_NO_CUDA_MEMORY_CACHING must not be set: it turns the cache off\n"
    "# and no torch.cuda.empty_cache() inside the loop"
)


@rule
def allocations(case: Case) -> Iterator[Finding]:
    """Driver allocations inside the step; freeing memory waits for the device."""
    if not case.on_device:
        return
    allocates = pattern("allocations")
    calls = case.rows(Category.RUNTIME, named=lambda n: allocates.search(n) and "Host" not in n)
    if not calls.any():
        return
    parts = case.span(calls)
    if case.idle_in(parts) < _LEAST_LOST:
        return  # nothing waits for them
    lost = case.lost_in(parts)
    n_calls = int(calls.sum()) / case.n_steps
    rows = np.flatnonzero(calls)
    named = sorted({case.trace.names[i] for i in case.trace.name_id[rows].tolist()})
    gives_back = case.trace.named(_GIVES_BACK.search)[rows]
    n_pairs = min(int(gives_back.sum()), int((~gives_back).sum()))
    has_no_cache = n_pairs > len(case.kernels) / _KERNELS_PER_PIECE
    host = parts.total_ns / 1e3 / case.wall_us
    if n_calls < 1 or case.set_up.longest:
        return  # the first steps fill the cache
    gain, formula = amdahl(lost)
    is_known = case.facts.expandable_segments is not None
    larger = (
        ""
        if case.facts.expandable_segments
        else _CACHE_LARGER.format("" if is_known else " (if it is not set yet)")
    )
    yield Finding(
        rule="device-allocations",
        cures=("launch", "sync", "driver"),
        title="Memory is taken from and given back to the driver inside the step",
        evidence=(
            f"{plural(n_calls, 'call')} of {' and '.join(named)} per step, "
            f"{fmt_share(host)} of its time; PyTorch's cache should make them unnecessary after "
            "the first steps"
            + (", and as many as here look as if it were off" if has_no_cache else ""),
            f"meanwhile the device is idle for {fmt_share(lost)} of each step",
        ),
        what_to_do=_CACHE if has_no_cache else larger + _CACHE,
        gain_at_most=gain,
        formula=formula,
    )
