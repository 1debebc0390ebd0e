"""The device is busy but slow: no tensor cores, few blocks, gaps between kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.ask.breakdown import busiest_device
from perfkit.trace.ask.kernels import (
    TENSOR_FAMILIES,
    computes_below_32_bits,
    computes_in_float64,
    computes_in_tf32,
    family,
    uses_tensor_cores,
)
from perfkit.trace.read.columns import Category, Int64
from perfkit.trace.read.events import is_communication

_LEAST_SHARE = 0.1
# Below a quarter of the step, what fusing can bring is small beside the time of compiling.
_LEAST_FUSED = 0.25
# If the device idles for more than half of the step, faster kernels would only make it idle longer.
_BUSY = 0.5
# From data sheets, dense, tensor cores over plain float32: V100 125 / 15.7 TFLOP/s in float16,
# A100 156 / 19.5 in TF32, H100 495 / 67. None gives more than eight times.
_TENSOR_SPEEDUP = 8
# The host's waits of at least this length are relevant for a gap at the same time.
_LONG_WAIT_MS = 1.0
# A ResNet-50 on an H100, at 88 to 100 %, gained nothing from bfloat16 alone (43 to 45 ms a step
# against 40 to 43).
_HOST_IS_FULL = 0.7
# Kernels that only prepare a convolution (offsets, layouts) and do no arithmetic.
_PREPARES = re.compile(
    r"compute\w*Offsets|nchwToNhwc|nhwcToNchw|scalePackedTensor|init_device_workspace|ReduceSplitK",
    re.IGNORECASE,
)
# Tensor cores take no part in products with a vector, nor in convolutions of one channel each.
_NO_PRODUCT = re.compile(r"gemv|depthwise|splitKreduce", re.IGNORECASE)
# Kinds of kernels whose time autocast can halve: half the bytes, or twice the rate. The ratio of
# dense rates is 2 on every such data sheet (A100 156 and 312 TFLOP/s, H100 SXM 495 and 989).
_NARROWS = (*TENSOR_FAMILIES, "elementwise", "normalization", "pooling", "reduction")

_TRAIN_IN_FLOAT16 = (
    'scaler = torch.amp.GradScaler("cuda")\n'
    'with torch.autocast("cuda", dtype=torch.float16):\n'
    "    loss = loss_fn(model(x), y)\n"
    "scaler.scale(loss).backward()\n"
    "scaler.step(optimizer)\n"
    "scaler.update()"
)
_RUN_IN_FLOAT16 = (
    'with torch.autocast("cuda", dtype=torch.float16):\n'
    "    y = model(x)\n"
    "# or with the weights in 16 bits, too: model.half()(x.half())"
)
_TRAIN_IN_BFLOAT16 = (
    'with torch.autocast("cuda", dtype=torch.bfloat16):  # the weights stay in float32\n'
    "    loss = loss_fn(model(x), y)\n"
    "loss.backward()\n"
    "# then perfkit.same_result: is it still the same training?"
)
_LOAD_MORE = "loader = DataLoader(dataset, batch_size=2 * batch_size, ...)"
_JOIN_INPUTS = "x = torch.cat(inputs)"
_RUN_IN_BFLOAT16 = (
    'with torch.autocast("cuda", dtype=torch.bfloat16):  # the weights stay in float32\n'
    "    y = model(x)\n"
    "# then compare the outputs with those in float32"
)


@rule
def tensor_cores(case: Case) -> Iterator[Finding]:
    """Float32 matrix products and convolutions on a GPU with tensor cores."""
    major = case.nvidia_major
    if major < 7 or case.busy_share < _BUSY:
        return
    rows = case.kernels
    plain = rows[case.trace.name_table(_could_use_tensor_cores)[case.trace.name_id[rows]]]
    share = case.device_share(plain)
    if share < _LEAST_SHARE:
        return
    gain, formula = amdahl(share, speedup=_TENSOR_SPEEDUP)
    evidence = (
        f"matrix products and convolutions outside of tensor cores run for {fmt_share(share)} of "
        f"each step, most of it in {_longest(case, plain)}",
        f"{case.gpu.get('name', 'this GPU')} (compute capability {major}."
        f"{case.gpu.get('computeMinor', 'x')}) has tensor cores",
    )
    if major >= 8:
        yield Finding(
            rule="tf32-off",
            cures=("compute",),
            title="Matrix products run in full float32, not in TF32",
            evidence=evidence,
            what_to_do=(
                'torch.set_float32_matmul_precision("high")  # TF32: 10 bits of mantissa\n'
                "torch.backends.cudnn.allow_tf32 = True  # for convolutions: the default\n"
                '# or bfloat16: with torch.autocast("cuda", dtype=torch.bfloat16): ...'
            ),
            gain_at_most=gain,
            formula=formula,
            changes="products are rounded to 10 bits of mantissa, sums are not",
        )
    else:
        yield Finding(
            rule="tensor-cores-unused",
            cures=("compute",),
            title="The tensor cores are not used: matrix products run in float32",
            evidence=evidence,
            what_to_do=_TRAIN_IN_FLOAT16 if case.trains else _RUN_IN_FLOAT16,
            gain_at_most=gain,
            formula=formula,
        )


@rule
def sixteen_bits(case: Case) -> Iterator[Finding]:
    """Arithmetic is on 32 bits, on a GPU whose tensor cores are twice as fast on 16."""
    if case.nvidia_major < 8 or case.busy_share < _BUSY:
        return
    if not case.is_file and not any("float32" in o.dtypes for o in case.facts.optimizers):
        return
    rows, trace = case.kernels, case.trace

    def share(of: Callable[[str], bool]) -> float:
        return case.device_share(rows[trace.name_table(of)[trace.name_id[rows]]])

    dense = share(
        lambda name: (
            family(name) in TENSOR_FAMILIES
            and computes_in_tf32(name)
            and not computes_in_float64(name)
        )
    )
    if dense < _LEAST_SHARE or share(_could_use_tensor_cores) >= _LEAST_SHARE:
        return  # the first has little to gain, the second is another rule's
    if share(computes_below_32_bits) >= _LEAST_SHARE:
        return
    wide = share(
        lambda name: (
            family(name) in _NARROWS
            and not computes_in_float64(name)
            and (family(name) not in TENSOR_FAMILIES or uses_tensor_cores(name) is not None)
        )
    )
    gain, formula = amdahl(wide, speedup=2)
    yield Finding(
        rule="32-bits",
        cures=("compute",),
        title="Arithmetic is on 32 bits, and this GPU is made for 16",
        evidence=(
            f"matrix products and convolutions run on the tensor cores for {fmt_share(dense)} of "
            "each step, in TF32, which has half the rate of bfloat16",
            f"these and what lies between them, {fmt_share(wide)} of each step, may move half "
            "the bytes (autocast keeps some of it in float32)",
            *_host_is_next(case),
        ),
        what_to_do=(
            "# with convolutions, first on its own: model.to(memory_format=torch.channels_last)\n"
            + (_TRAIN_IN_BFLOAT16 if case.trains else _RUN_IN_BFLOAT16)
        ),
        gain_at_most=gain,
        formula=formula,
        changes="products and activations have 8 bits of mantissa",
    )


def _host_is_next(case: Case) -> Iterator[str]:
    """That shorter kernels alone may bring less, because the host has as much to do."""
    host = sum(case.shares[name] for name in ("forward", "backward", "optimizer", "other"))
    if host >= _HOST_IS_FULL:
        yield (
            f"the host works for {fmt_share(host)} of each profiled step: with shorter kernels the "
            "device may wait for it, so larger batches or CUDA graphs may have to come first"
        )


def _could_use_tensor_cores(name: str) -> bool:
    return (
        family(name) in TENSOR_FAMILIES
        and uses_tensor_cores(name) is False
        and not computes_in_float64(name)
        and not computes_below_32_bits(name)
        and not any(p.search(name) for p in (_PREPARES, _NO_PRODUCT))
    )


def _longest(case: Case, rows: Int64) -> str:
    times = np.bincount(case.trace.name_id[rows], weights=case.trace.dur_us[rows])
    name = case.trace.names[int(times.argmax())]
    return name.split("(")[0].split("<")[0][:60]


def _unused_ns(case: Case) -> float:
    """Time of the multiprocessors without a block of any kernel, while one computes.

    Kernels of several streams fill the device together; one of unknown size fills it alone.
    """
    trace = case.trace
    inside = case.steps.containing(trace.start_ns) >= 0
    rows = np.flatnonzero(
        trace.is_a(Category.KERNEL) & inside & (trace.device == busiest_device(trace))
    )
    filled = np.nan_to_num(trace.blocks_per_sm[rows], nan=1.0)
    at = np.concatenate([trace.start_ns[rows], trace.end_ns[rows]])
    order = np.argsort(at, kind="stable")
    computes = (~trace.named(is_communication)[rows]).astype(np.int64)
    runs = np.cumsum(np.concatenate([computes, -computes])[order])[:-1] > 0
    used = np.cumsum(np.concatenate([filled, -filled])[order])[:-1]
    return float((np.diff(at[order]) * runs * np.maximum(1.0 - used, 0.0)).sum())


@rule
def small_grids(case: Case) -> Iterator[Finding]:
    """Kernels with fewer blocks than the GPU has multiprocessors: busy, but mostly empty."""
    if case.busy_share < _BUSY:
        return
    trace, rows = case.trace, case.kernels
    blocks = trace.blocks_per_sm[rows]
    small = rows[np.nan_to_num(blocks, nan=1.0) < 1.0]
    unused = _unused_ns(case) / 1e3 / max(float(trace.dur_us[small].sum()), 1e-9)
    share = case.device_share(small) * min(unused, 1.0)
    if share < _LEAST_SHARE:
        return
    gain, formula = amdahl(share)
    yield Finding(
        rule="small-kernels",
        cures=("compute",),
        title="Kernels are too small for this GPU: not all of its multiprocessors have work",
        evidence=(
            f"kernels with fewer blocks than multiprocessors run for "
            f"{fmt_share(case.device_share(small))} of each step, the longest of them "
            f"{_longest(case, small)}",
            f"idle multiprocessors in them amount to {fmt_share(share)} of each step",
        ),
        what_to_do=(
            f"{_LOAD_MORE if case.trains else _JOIN_INPUTS}  # more work per kernel\n"
            "model = torch.compile(model)  # fewer, larger kernels"
        ),
        gain_at_most=gain,
        formula=formula,
    )


# Kernels that move memory and compute little: a compiler merges neighbours into one pass over it.
_MOVES = ("elementwise", "normalization", "reduction", "pooling")
# A lone kernel of that kind has no neighbour to merge with.
_LEAST_KERNELS = 4


@rule
def unfused(case: Case) -> Iterator[Finding]:
    """Kernels that are bound by memory, one after another on the same tensors."""
    if case.busy_share < _BUSY:
        return
    trace, rows = case.trace, case.kernels
    compiled = trace.name_table(lambda name: name.startswith("triton_"))[trace.name_id[rows]]
    moves = trace.name_table(lambda name: family(name) in _MOVES)[trace.name_id[rows]]
    update = case.launched_by(case.within(case.labels("Optimizer.step#")))
    moving = np.setdiff1d(rows[moves & ~compiled], update)
    share = case.device_share(moving)
    if share < _LEAST_FUSED or len(moving) < _LEAST_KERNELS * case.n_steps:
        return
    gain, formula = amdahl(share)
    yield Finding(
        rule="unfused-kernels",
        cures=("compute",),
        title=f"Memory-bound kernels take {fmt_share(share)} of each step: fuse them",
        evidence=(
            f"{plural(len(moving) / case.n_steps, 'kernel')} a step of normalisation, activation, "
            "addition and reduction each read and write whole tensors, the longest in all "
            f"{_longest(case, moving)}",
        ),
        what_to_do=(
            "model = torch.compile(model)  # one pass over memory for neighbours of this kind\n"
            "# convolutions, first: model.to(memory_format=torch.channels_last)"
        ),
        gain_at_most=gain,
        formula=formula,
    )


@rule
def kernel_gaps(case: Case) -> Iterator[Finding]:
    """The device pauses between kernels although the next one is queued."""
    lost = case.idle["kernels"]
    if lost < _LEAST_SHARE:
        return
    n = max(len(case.kernels) / case.n_steps, 1.0)
    gain, formula = amdahl(lost)
    yield Finding(
        rule="kernel-gaps",
        cures=("gaps",),
        title="The device pauses between kernels that are queued already",
        evidence=(
            f"these gaps take {fmt_share(lost)} of each step, "
            f"{fmt_ms(case.ms_per_step(lost) / n)} for each of its {plural(n, 'kernel')}",
        ),
        what_to_do=(
            "model = torch.compile(model)  # fused kernels: fewer gaps\n"
            'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs: shorter gaps'
        ),
        gain_at_most=gain,
        formula=formula,
    )


_ASK_AN_AMD_GPU = (
    "# rocm-smi: does another process use this GPU?\n"
    "torch.cuda.synchronize()  # before recording begins: nothing older is in the queue"
)
_ASK_AN_NVIDIA_GPU = (
    "# nvidia-smi: does another process use this GPU?\n"
    "torch.cuda.synchronize()  # before recording begins: nothing older is in the queue\n"
    "# record which streams wait for which:\n"
    "from torch.profiler import _ExperimentalConfig as Config, profile\n"
    "with profile(experimental_config=Config(enable_cuda_sync_events=True)) as recording:\n"
    "    step(batch)"
)


@rule
def held_device(case: Case) -> Iterator[Finding]:
    """Work is queued but the device idles for long: the trace does not show why."""
    lost = case.idle["queued"]
    if lost < _LEAST_SHARE:
        return
    evidence = [
        f"for {fmt_share(lost)} of each step ({fmt_ms(case.ms_per_step(lost))}) no recorded "
        "activity runs, though the host has launched the next one",
        "the trace does not show why: work that was launched before recording began, another "
        "process on this GPU, an event of a stream that was not recorded, or the profiler itself",
    ]
    sat = case.sitting("queued")
    if sat is not None and sat.host_ms >= _LONG_WAIT_MS * case.n_steps:
        evidence.append(
            f"meanwhile the host sat in {sat.words()}, with "
            f"{plural(sat.n_queued, 'activity', 'activities')} queued that it had launched "
            "before; the trace does not show whether that call held them up"
        )
    gain, formula = amdahl(lost)
    yield Finding(
        rule="held-device",
        cures=("gaps",),
        title="The device is idle although work is queued: find out what holds it up",
        evidence=tuple(evidence),
        what_to_do=_ASK_AN_AMD_GPU if case.is_amd else _ASK_AN_NVIDIA_GPU,
        gain_at_most=gain,
        formula=formula,
    )
