"""Kernels: the longest, by family, on tensor cores or not, too small or not, occupancy.

Families and tensor-core use are read off the kernel's name: no trace records them. The names
are those of cuBLAS (``nvjet_…``, ``cublasLt…``), CUTLASS and xmma (``sm80_xmma_gemm_…``), cuDNN,
FlashAttention, Triton, ATen, and of ROCm's Tensile (``Cijk_…``) and MIOpen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import device_rows, is_communication, sum_by, together
from perfkit.trace.read.steps import Steps, find_steps

# The first that matches. Attention stands before matmul (flash kernels are built of MMAs), the
# optimizer before elementwise (multi_tensor_apply), and elementwise names that contain "conv"
# ("convert") are kept out of the convolutions.
_FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "attention",
        re.compile(r"flash|fmha|attention|attn|softmax_fprop|mha_|ck_tile.*fmha", re.IGNORECASE),
    ),
    (
        "optimizer",
        re.compile(
            r"adam|multi_tensor_apply|lamb(?!da)|fused_?sgd|_sgd|adagrad|rmsprop", re.IGNORECASE
        ),
    ),
    (
        "normalization",
        re.compile(
            r"batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm|bn_(fw|bw)|"
            r"RowwiseMoments|GammaBeta|cuComputeGradInput|native_norm|miopen.*norm",
            re.IGNORECASE,
        ),
    ),
    (
        "convolution",
        re.compile(
            r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_gemm|nchwToNhwc|nhwcToNchw|"
            r"computeOffsets|cask_|igemm_(?:fwd|bwd|wrw)|[hsi]cudnn|im2col|col2im|miopenSp3|naive_conv|gridwise_.*conv",
            re.IGNORECASE,
        ),
    ),
    (
        "matmul",
        re.compile(
            r"(?<!fb)gemm|gemv|nvjet|cutlass|cublas|splitKreduce|Cijk_|_mm_|matmul|\bdot_kernel|"
            r"s\d{3,5}(?:cudnn|gemm)|wgmma",
            re.IGNORECASE,
        ),
    ),
    ("embedding", re.compile(r"embedding|indexSelect|index_select", re.IGNORECASE)),
    (
        "reduction",
        re.compile(
            r"reduce|softmax|argmax|_sum|cub::Device|scan|sort|nll_loss|norm", re.IGNORECASE
        ),
    ),
    ("pooling", re.compile(r"pool", re.IGNORECASE)),
    (
        "memory",
        re.compile(
            r"copy|CatArray|fill|memset|memcpy|transpose|gather|scatter|index|permute|contiguous|"
            r"Subtensor",
            re.IGNORECASE,
        ),
    ),
    (
        "elementwise",
        re.compile(r"elementwise|pointwise|dropout|_poi_|activation|bias|relu|gelu", re.IGNORECASE),
    ),
    ("triton, other", re.compile(r"^triton_")),
)

# Which names run on tensor cores (NVIDIA) or matrix cores (AMD):
# s884/s1688/s16816 and h884… are MMA shapes of Volta to Ampere, gmma/wgmma and nvjet are
# Hopper's and Blackwell's, hmma/imma/xmma name the instruction, tensorop is CUTLASS's word,
# MT…MFMA/_MI… is Tensile's.
_TENSOR_CORES = re.compile(
    r"nvjet|wgmma|gmma|tcgen05|umma|hmma|imma|bmma|qmma|dmma|tensorop|tensor_op|"
    r"[shidfb]\d*_?(?:884|1688|16816|16832|161616|8816)(?=\D|$)|(?:884|1688|16816|16832)(?:gemm|cudnn)|"
    r"sm\d+_xmma(?!.*_simt_)(?!.*f32f32_f32f32_f32_)|flash_fwd|flash_bwd|flash::|fmha|"
    r"cudnn_.*flash|MFMA|_MI\d+x\d+x\d+|bf16bf16|f16f16|e4m3|e5m2|ck_tile|tf32",
    re.IGNORECASE,
)
_NO_TENSOR_CORES = re.compile(
    r"simt|ffma|sgemm(?!.*(?:tf32|884|1688))|dgemm_\d|gemv|depthwise|splitK_?reduce|reduceSplitK|"
    r"compute\w*Offsets|nchwToNhwc|nhwcToNchw|scalePackedTensor|init_device_workspace",
    re.IGNORECASE,
)
# Where no word of tensor cores is: plain products of cuBLAS, cuDNN and Tensile, or float as a
# template's argument (among parameters it may be a scale or a sum).
_PLAIN = re.compile(
    r"f32f32_f32f32_f32_|scudnn|fp32|Cijk_|<(?:[^()]*[ ,])?float\b(?=[^()]*>)", re.IGNORECASE
)
_TF32 = re.compile(
    r"tf32|[_:]s1688|nvjet_(?:sm\d+_)?sss|cutlass[FB]_f32|AttentionKernel<float", re.IGNORECASE
)
# In names of cuBLAS since 12.8 three letters are the types of input, sum and output: h and t are
# float16 and bfloat16, q is float8, s is float32.
_BELOW_32_BITS = re.compile(
    r"bf16|bfloat16|half|[hs]?16816|f16f16|fp16|_f16|\bh884|fp8|float8|e4m3|e5m2|int8|i8i8|"
    r"nvjet_(?:sm\d+_)?[a-z]*[htq]s[a-z]_",
    re.IGNORECASE,
)
_FLOAT64 = re.compile(r"<double|dgemm|_f64|d884gemm|double,")

#: Families of which a tensor core could do the work.
TENSOR_FAMILIES = ("attention", "convolution", "matmul")

#: A kernel shorter than this is small. PyTorch spends some 5 to 10 µs of host time on an op with
#: its launch: shorter kernels cannot hide the launching of the next one.
SMALL_KERNEL_US = 10.0


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel in the steps.

    Attributes:
        name: as recorded.
        family: see :func:`family`.
        tensor_cores: whether it uses them; None where its name does not tell.
        count: launches, all steps together.
        total_us: time on the device in µs, all steps together.
        share: of the time of all kernels.
        occupancy: estimated achieved occupancy, 0 … 1, weighted by time; None if not recorded.
        blocks_per_sm: thread blocks over multiprocessors, likewise; below 1 parts of the device
            have nothing to do.
    """

    name: str
    family: str
    tensor_cores: bool | None
    count: int
    total_us: float
    share: float
    occupancy: float | None
    blocks_per_sm: float | None

    @property
    def mean_us(self) -> float:
        """Mean time of one launch in µs."""
        return self.total_us / max(self.count, 1)


@dataclass(frozen=True)
class Kernels(Shown):
    """The kernels of the steps.

    Attributes:
        kernels: the longest first, all steps together.
        family_us: family → time in µs, the longest first.
        tensor_core_share: of the time in matmul, convolution and attention, the share in kernels
            that use tensor cores, among those whose name tells; None where there are none.
        untold_share: of the same time, the share in kernels whose name does not tell.
        small_count_share: share of launches shorter than ``SMALL_KERNEL_US``.
        small_time_share: share of the kernels' time in them.
        occupancy: weighted by time, 0 … 1; None if not recorded.
    """

    kernels: tuple[Kernel, ...]
    family_us: Mapping[str, float]
    tensor_core_share: float | None
    untold_share: float
    small_count_share: float
    small_time_share: float
    occupancy: float | None
    n_steps: int
    warnings: tuple[str, ...] = ()

    @property
    def total_us(self) -> float:
        """Time of all kernels in µs, all steps together (overlapping ones count each)."""
        return sum(k.total_us for k in self.kernels)

    @property
    def per_step(self) -> float:
        """Launches per step."""
        return sum(k.count for k in self.kernels) / max(self.n_steps, 1)


def family(name: str) -> str:
    """What a kernel of this name does: matmul, convolution, attention, normalization,
    elementwise, reduction, optimizer, communication, memory, embedding, pooling, other.
    """
    if is_communication(name):
        return "communication"
    return next((kind for kind, pattern in _FAMILIES if pattern.search(name)), "other")


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel of this name computes on tensor (or matrix) cores; None where the name does
    not tell, such as that of a product written in Triton or with CUTLASS.
    """
    if _NO_TENSOR_CORES.search(name):
        return False
    if _TENSOR_CORES.search(name):
        return True
    return False if _PLAIN.search(name) and not computes_below_32_bits(name) else None


def computes_in_tf32(name: str) -> bool:
    """Whether the name of a kernel says that it multiplies float32 on tensor cores."""
    return _TF32.search(name) is not None and not computes_below_32_bits(name)


def computes_below_32_bits(name: str) -> bool:
    """Whether the name of a kernel says that its numbers have 16 bits or fewer."""
    return _BELOW_32_BITS.search(name) is not None


def computes_in_float64(name: str) -> bool:
    """Whether the name of a kernel says that it computes in double precision."""
    return _FLOAT64.search(name) is not None


@question("kernels", "Which kernels ran, of which kind, on tensor cores or not?")
def kernels(trace: Trace, steps: Steps | None = None) -> Kernels:
    """The kernels that the steps launched."""
    steps = find_steps(trace) if steps is None else steps
    rows, _ = device_rows(trace, steps, Category.KERNEL)
    dur = (trace.end_ns - trace.start_ns)[rows]
    ids, group = np.unique(trace.name_id[rows], return_inverse=True)
    n = len(ids)
    total, count = sum_by(group, dur, n), np.bincount(group, minlength=n)
    occupancy = _weighted(trace.occupancy[rows] / 100, dur, group, n)
    blocks = _weighted(trace.blocks_per_sm[rows], dur, group, n)
    all_ns = int(total.sum())
    found = []
    for i in range(n):
        name = trace.names[ids[i]]
        kind = family(name)
        found.append(
            Kernel(
                name=name,
                family=kind,
                tensor_cores=uses_tensor_cores(name) if kind in TENSOR_FAMILIES else False,
                count=int(count[i]),
                total_us=int(total[i]) / 1e3,
                share=int(total[i]) / all_ns if all_ns else 0.0,
                occupancy=_known(occupancy[i]),
                blocks_per_sm=_known(blocks[i]),
            )
        )
    found.sort(key=lambda k: (-k.total_us, k.name))
    by_family: dict[str, float] = {}
    for k in found:
        by_family[k.family] = by_family.get(k.family, 0.0) + k.total_us
    eligible = [k for k in found if k.family in TENSOR_FAMILIES]
    eligible_us = sum(k.total_us for k in eligible)
    told_us = sum(k.total_us for k in eligible if k.tensor_cores is not None)
    small = dur < SMALL_KERNEL_US * 1e3
    everything = _weighted(trace.occupancy[rows] / 100, dur, np.zeros(len(rows), np.int64), 1)
    return Kernels(
        kernels=tuple(found),
        family_us=dict(sorted(by_family.items(), key=lambda item: -item[1])),
        tensor_core_share=(
            sum(k.total_us for k in eligible if k.tensor_cores) / told_us if told_us else None
        ),
        untold_share=(eligible_us - told_us) / eligible_us if eligible_us else 0.0,
        small_count_share=float(small.mean()) if len(rows) else 0.0,
        small_time_share=int(dur[small].sum()) / all_ns if all_ns else 0.0,
        occupancy=_known(everything[0]),
        n_steps=len(steps),
        warnings=together(steps.warnings, () if len(rows) else ("no kernel was recorded",)),
    )


def _weighted(values: object, dur: object, group: object, n: int) -> list[float]:
    """Mean of the recorded values of each group, weighted by time; NaN where none was."""
    v, d, g = np.asarray(values, np.float64), np.asarray(dur, np.float64), np.asarray(group)
    there = np.isfinite(v) & (v >= 0)
    weight = np.bincount(g[there], weights=d[there], minlength=n)
    total = np.bincount(g[there], weights=(v * d)[there], minlength=n)
    with np.errstate(invalid="ignore", divide="ignore"):
        return [float(x) for x in np.where(weight > 0, total / weight, np.nan)]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
