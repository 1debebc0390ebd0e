"""The device's memory: nearly full, or freed and allocated again in every step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
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
    "    loss = loss_fn(model(x), target)"
)
_RUN_IN_LESS = (
    "# an engine that serves takes its share at the start, on purpose: then this is no fault\n"
    "with torch.inference_mode():  # keeps nothing for a backward pass\n"
    "    y = model(x)"
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
    yield found(
        "memory-nearly-full",
        "The device's memory is nearly full: a larger batch may fail"
        if allocated >= _IN_USE * reserved
        else "Nearly all of the device's memory is reserved, though not all of it in use",
        [
            f"{fmt_bytes(reserved)} of {fmt_bytes(total)} reserved "
            f"({fmt_share(reserved / total)}), {fmt_bytes(allocated)} of it in use at the peak"
        ],
        _TRAIN_IN_LESS.format(case.device_type) if case.trains else _RUN_IN_LESS,
        cures=(),
        share=0.0,
        formula="no gain in time: it makes room in memory",
        always=True,
    )


# Less of the step in such calls is not worth a word.
_LEAST_LOST = 0.03
# With the cache on, the driver is asked now and then for a large piece, never every few kernels.
_KERNELS_PER_PIECE = 10
_GIVES_BACK = re.compile(r"Free|Release|Unmap")
_CACHE = "# no torch.cuda.empty_cache() inside the loop"


@rule
def allocations(case: Case) -> Iterator[Finding]:
    """Driver allocations inside the step; freeing memory waits for the device."""
    allocates = pattern("allocations")
    calls = case.rows(Category.RUNTIME, named=lambda n: allocates.search(n) and "Host" not in n)
    parts = case.span(calls)
    n_calls = int(calls.sum()) / case.n_steps
    # the first steps fill the cache; else nothing waits for them
    if n_calls < 1 or not case.on_device or case.set_up.longest:
        return
    if case.idle_in(parts) < _LEAST_LOST:
        return
    lost = case.lost_in(parts)
    names = {case.trace.names[i] for i in case.trace.name_id[calls].tolist()}
    gives_back = case.trace.named(_GIVES_BACK.search)[calls]
    n_pairs = min(int(gives_back.sum()), int((~gives_back).sum()))
    if n_pairs > len(case.kernels) / _KERNELS_PER_PIECE:
        what_to_do = f"# PYTORCH_NO_CUDA_MEMORY_CACHING turns the cache off: unset it\n{_CACHE}"
    elif case.facts.expandable_segments:
        what_to_do = _CACHE
    else:
        what_to_do = f"# PYTORCH_ALLOC_CONF=expandable_segments:True python script.py\n{_CACHE}"
    yield found(
        "device-allocations",
        "Memory is taken from and given back to the driver inside the step",
        [
            f"{plural(n_calls, 'call')} of {' and '.join(sorted(names))} per step; meanwhile the "
            f"device is idle for {fmt_share(lost)} of it"
        ],
        what_to_do,
        cures=("launch", "sync", "driver"),
        share=lost,
    )
