"""The device is busy but slow, or pauses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules import rule
from perfkit.base.device import pattern
from perfkit.base.words import fmt_count, fmt_ms, fmt_share, plural
from perfkit.trace.ask.kernels import (
    TENSOR_FAMILIES,
    computes_below_32_bits,
    computes_in_float64,
    computes_in_tf32,
    family,
    uses_tensor_cores,
)
from perfkit.trace.read.columns import Category, Int64
from perfkit.trace.read.intervals import span

_LEAST_SHARE = 0.1
# Below a quarter of the step, what fusing can bring is small beside the time of compiling.
_LEAST_FUSED = 0.25
# If the device idles for more than half of the step, faster kernels would only make it idle longer.
_BUSY = 0.5
# From data sheets, dense, tensor cores over plain float32: V100 125 / 15.7 TFLOP/s in float16,
# A100 156 / 19.5 in TF32, H100 495 / 67. None gives more than eight times.
_TENSOR_SPEEDUP = 8
# Kernels that only prepare a convolution (offsets, layouts) and do no arithmetic; and products with
# a vector and convolutions of one channel each, in which tensor cores take no part.
_NOT_FOR_TENSOR_CORES = re.compile(
    r"compute\w*Offsets|nchwToNhwc|nhwcToNchw|scalePackedTensor|init_device_workspace|"
    r"ReduceSplitK|gemv|depthwise|splitKreduce",
    re.IGNORECASE,
)
# Kernels that move memory and compute little: a compiler merges neighbours into one pass over it.
# A lone one has no neighbour to merge with.
_MOVES = ("elementwise", "normalization", "reduction", "pooling")
_LEAST_KERNELS = 4

_TF32 = (
    'torch.set_float32_matmul_precision("high")  # TF32: 10 bits of mantissa\n'
    "torch.backends.cudnn.allow_tf32 = True  # for convolutions: the default"
)
_IN_16_BITS = 'with torch.autocast("cuda", dtype=torch.{}):  # the weights stay in float32\n'
_RUN = "    y = model(x)\n"
_SCALED = (
    "scaler.scale(loss).backward()  # scaler = torch.amp.GradScaler()\n"
    "scaler.step(optimizer)\n"
    "scaler.update()"
)


def _share(case: Case, of: Callable[[str], bool]) -> float:
    rows = case.kernels
    return case.device_share(rows[case.trace.name_table(of)[case.trace.name_id[rows]]])


@rule
def number_formats(case: Case) -> Iterator[Finding]:
    """Matrix products and convolutions in float32 or TF32, on a GPU made for 16 bits."""
    major = case.nvidia_major
    if major < 7 or case.busy_share < _BUSY:
        return
    rows = case.kernels
    plain = rows[case.trace.name_table(_could_use_tensor_cores)[case.trace.name_id[rows]]]
    share = case.device_share(plain)
    if share >= _LEAST_SHARE:
        tf32 = major >= 8
        in_16_bits = _IN_16_BITS.format("float16") + _RUN + _SCALED * case.trains
        yield found(
            "tf32-off" if tf32 else "tensor-cores-unused",
            "Matrix products run in full float32, not in TF32"
            if tf32
            else "The tensor cores are not used: matrix products run in float32",
            [
                f"products outside of tensor cores run for {fmt_share(share)} of each step, the "
                f"longest in {_longest(case, plain)}"
            ],
            _TF32 if tf32 else in_16_bits.rstrip(),
            cures=("compute",),
            share=share,
            speedup=_TENSOR_SPEEDUP,
            changes="products are rounded to 10 bits of mantissa, sums are not" * tf32,
        )
        return
    is_float32 = case.is_file or any("float32" in o.dtypes for o in case.facts.optimizers)
    dense = _share(case, _in_tf32)
    is_mixed = _share(case, computes_below_32_bits) >= _LEAST_SHARE
    if major < 8 or is_mixed or not is_float32 or dense < _LEAST_SHARE:
        return
    # half the bytes, or twice the rate: the ratio of dense rates is 2 on every such data sheet
    # (A100 156 and 312 TFLOP/s, H100 SXM 495 and 989)
    wide = _share(
        case,
        lambda name: _in_tf32(name) or (family(name) in _MOVES and not computes_in_float64(name)),
    )
    yield found(
        "32-bits",
        "Arithmetic is on 32 bits, and this GPU is made for 16",
        [
            f"products run in TF32, half the rate of bfloat16, for {fmt_share(dense)} of each step",
            f"with what lies between them, {fmt_share(wide)} of each step may move half the bytes",
        ],
        _IN_16_BITS.format("bfloat16") + _RUN + "# then perfkit.same_result: is it still the same?",
        cures=("compute",),
        share=wide,
        speedup=2,
        changes="products and activations have 8 bits of mantissa",
    )


def _in_tf32(name: str) -> bool:
    return (
        family(name) in TENSOR_FAMILIES
        and computes_in_tf32(name)
        and uses_tensor_cores(name) is not None
        and not computes_in_float64(name)
    )


def _could_use_tensor_cores(name: str) -> bool:
    return (
        family(name) in TENSOR_FAMILIES
        and uses_tensor_cores(name) is False
        and not computes_in_float64(name)
        and not computes_below_32_bits(name)
        and not _NOT_FOR_TENSOR_CORES.search(name)
    )


def _longest(case: Case, rows: Int64) -> str:
    times = np.bincount(case.trace.name_id[rows], weights=case.trace.dur_us[rows])
    name = case.trace.names[int(times.argmax())]
    return name.split("(")[0].split("<")[0][:60]


@rule
def small_grids(case: Case) -> Iterator[Finding]:
    """Kernels with fewer blocks than the GPU has multiprocessors: busy, but mostly empty."""
    if case.busy_share < _BUSY:
        return
    trace, rows = case.trace, case.kernels
    small = rows[np.nan_to_num(trace.blocks_per_sm[rows], nan=1.0) < 1.0]
    if not len(small):
        return
    # kernels of several streams fill the device together; one of unknown size fills it alone
    ran = case.activities(Category.KERNEL, named=bool)
    fills = np.minimum(np.nan_to_num(trace.blocks_per_sm[ran], nan=1.0), 1.0)
    used_us = float((trace.dur_us[ran] * fills).sum())
    busy_us = span(case.trace, rows).total_ns / 1e3
    share = case.device_share(rows) * max(1.0 - used_us / busy_us, 0.0)
    if share < _LEAST_SHARE:
        return
    yield found(
        "small-kernels",
        "Kernels are too small for this GPU: not all of its multiprocessors have work",
        [
            f"idle multiprocessors amount to {fmt_share(share)} of each step, most of it in "
            f"{_longest(case, small)}"
        ],
        "# larger batches: more work per kernel\n"
        "model = torch.compile(model)  # fewer, larger kernels",
        cures=("compute",),
        share=share,
    )


@rule
def unfused(case: Case) -> Iterator[Finding]:
    """Kernels that are bound by memory, one after another on the same tensors."""
    if case.busy_share < _BUSY:
        return
    trace, rows = case.trace, case.kernels
    moves = trace.name_table(lambda n: family(n) in _MOVES and not n.startswith("triton_"))
    update = case.launched_by(case.within(case.labels("Optimizer.step#")))
    moving = np.setdiff1d(rows[moves[trace.name_id[rows]]], update)
    share = case.device_share(moving)
    if share < _LEAST_FUSED or len(moving) < _LEAST_KERNELS * case.n_steps:
        return
    yield found(
        "unfused-kernels",
        f"Memory-bound kernels take {fmt_share(share)} of each step: fuse them",
        [
            f"{plural(len(moving) / case.n_steps, 'kernel')} a step read and write whole tensors, "
            f"the longest {_longest(case, moving)}"
        ],
        "model = torch.compile(model)  # one pass over memory for neighbours of this kind\n"
        "# convolutions, first: model.to(memory_format=torch.channels_last)",
        cures=("compute",),
        share=share,
    )


@rule
def kernel_gaps(case: Case) -> Iterator[Finding]:
    """The device pauses between kernels although the next one is queued."""
    lost = case.idle["kernels"]
    if lost < _LEAST_SHARE:
        return
    n = max(len(case.kernels) / case.n_steps, 1.0)
    yield found(
        "kernel-gaps",
        "The device pauses between kernels that are queued already",
        [
            f"these gaps take {fmt_share(lost)} of each step, "
            f"{fmt_ms(case.ms_per_step(lost) / n)} for each of its {plural(n, 'kernel')}"
        ],
        'model = torch.compile(model, mode="reduce-overhead")  # fused kernels in a CUDA graph',
        cures=("gaps",),
        share=lost,
    )


@rule
def held_device(case: Case) -> Iterator[Finding]:
    """Work is queued but the device idles for long: the trace does not show why."""
    lost = case.idle["queued"]
    if lost < _LEAST_SHARE:
        return
    yield found(
        "held-device",
        "The device is idle although work is queued: find out what holds it up",
        [
            f"for {fmt_ms(case.ms_per_step(lost))} of each step no recorded activity runs, though "
            "one is queued",
        ],
        f"# {'rocm' if case.is_amd else 'nvidia'}-smi: does another process use this GPU?\n"
        "torch.cuda.synchronize()  # before recording begins: nothing older is in the queue",
        cures=("gaps",),
        share=lost,
    )


_HALVES = ("c10::Half", "c10::BFloat16")
# NVIDIA's deep-learning performance guide: unless dimensions are multiples of 8 (16 bytes), 16-bit
# matrix products reach between a quarter and nearly all of the aligned speed.
_ALIGNED_SPEEDUP = 4
# name → which inputs are matrices
_PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)}


@rule
def alignment(case: Case) -> Iterator[Finding]:
    """16-bit matrix products with dimensions that are not multiples of 8."""
    trace, rows = case.trace, case.nesting.rows
    if case.busy_share < _BUSY or not trace.input_dims:
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
            dims = [*case.dims(int(same[0])), [], [], []]
            sizes = [dims[n][-2:] for n in inputs]
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
    calls = case.rows(Category.RUNTIME) & case.trace.named(allocates.search)
    calls &= ~case.trace.holds("Host")
    parts = span(case.trace, calls)
    n_calls = int(calls.sum()) / case.n_steps
    # the first steps fill the cache; else nothing waits for them
    if n_calls < 1 or case.set_up.longest:
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
            f"device is idle for {fmt_share(case.idle_in(parts))} of it"
        ],
        what_to_do,
        cures=("launch", "sync", "driver"),
        share=lost,
    )
