"""Will it fit? The peak of a training step, predicted without a GPU and without its memory."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from perfkit._display import Shown
from perfkit.errors import UsageError
from perfkit.machine import Provenance, stamp
from perfkit.memory.categories import by_name
from perfkit.memory.places import LineMemory, ModuleMemory, by_line, by_module

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from perfkit.memory.ledger import Totals

__all__ = ["Fit", "GpuFit", "will_it_fit"]

#: Sizes by which GPUs are sold, in GB. Counted as 10^9 bytes: most cards have some more, those
#: whose memory also holds its error correction up to 2 % less (a 24 GB card: 22.1 GiB, which is
#: 23.7 GB); that is in the margin.
GPUS_GB = (16, 24, 40, 48, 80, 141)

#: CUDA context, loaded kernels, and workspaces of cuBLAS and cuDNN. A context with torch's
#: kernels takes 0.3 to 0.6 GB, workspaces some 10 to 100 MB.
MARGIN_BYTES = 10**9
#: The caching allocator rounds to 512 B, splits blocks of 2 and 20 MiB, and fragments.
MARGIN_SHARE = 0.05
MARGIN_REASON = (
    "margin: 1 GB for the CUDA context, kernels and workspaces, and 5 % of the peak for "
    "rounding and fragmentation in the caching allocator; assumed, not measured"
)

_PRECISIONS = ("float32", "amp", "bfloat16")
_LARGEST = 2**20
# a straight line is found in three evaluations; what is not straight gets some more
_MOST_EVALUATIONS = 12


@dataclass(frozen=True)
class GpuFit:
    """One size of GPU.

    Attributes:
        gb: its size as sold, in 10^9 bytes.
        fits: the batch that was asked for fits, with the margin.
        largest_batch: the largest that does, 0 where not even one sample fits; None where
            ``make_batch`` takes no size or no batch is too large.
        largest_peak_bytes: the peak at that batch, without the margin.
        exact: one more sample was seen not to fit; otherwise a few more might.
    """

    gb: float
    fits: bool
    largest_batch: int | None
    largest_peak_bytes: int | None
    exact: bool


@dataclass(frozen=True)
class Fit(Shown):
    """A predicted peak and the GPUs that it fits on. Sizes in bytes.

    Attributes:
        batch: the batch size asked for; None where ``make_batch`` takes none.
        peak_bytes: tensors at the peak of the second step, without the margin.
        at_peak_bytes: the same by category.
        by_module, by_line: the same by module and by line of the model's code.
        gpus: one entry per size of GPU.
        per_sample_bytes: what one more sample adds near the batch asked for; None if unknown.
        margin_bytes, margin_share, margin_reason: what is added to a peak before it is said to
            fit: ``peak * (1 + margin_share) + margin_bytes``.
        precision: ``float32``, ``amp`` or ``bfloat16``.
        checkpointing: whether some modules recompute.
        n_evaluations: how many batch sizes were tried.
        seconds: how long that took, in seconds.
        warnings: what makes the figures doubtful.
        provenance: ``predicted``.
    """

    batch: int | None
    peak_bytes: int
    at_peak_bytes: Mapping[str, int]
    by_module: tuple[ModuleMemory, ...]
    by_line: tuple[LineMemory, ...]
    gpus: tuple[GpuFit, ...]
    per_sample_bytes: float | None
    margin_bytes: int
    margin_share: float
    margin_reason: str
    precision: str
    checkpointing: bool
    n_evaluations: int
    seconds: float
    warnings: tuple[str, ...]
    provenance: Provenance

    @property
    def with_margin_bytes(self) -> int:
        """What a GPU must have for the batch asked for."""
        return _with_margin(self.peak_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "type": "fit",
            "batch": self.batch,
            "peak_bytes": self.peak_bytes,
            "with_margin_bytes": self.with_margin_bytes,
            "at_peak_bytes": dict(self.at_peak_bytes),
            "by_module": [m.to_dict() for m in self.by_module],
            "by_line": [x.to_dict() for x in self.by_line],
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "per_sample_bytes": self.per_sample_bytes,
            "margin": {
                "bytes": self.margin_bytes,
                "share": self.margin_share,
                "reason": self.margin_reason,
            },
            "precision": self.precision,
            "checkpointing": self.checkpointing,
            "n_evaluations": self.n_evaluations,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "provenance": self.provenance.to_dict(),
        }


def _with_margin(peak_bytes: int) -> int:
    return int(peak_bytes * (1 + MARGIN_SHARE)) + MARGIN_BYTES


def will_it_fit(
    model: nn.Module | Callable[[], nn.Module],
    make_batch: Callable[..., Any],
    *,
    batch: int = 32,
    optimizer: Callable[[Any], Optimizer] | Optimizer | str | None = "AdamW",
    loss: Callable[..., Any] | None = None,
    precision: str = "float32",
    checkpointing: Any = False,
    gpus_gb: Sequence[float] = GPUS_GB,
) -> Fit:
    """Predict the peak of a training step, and the largest batch on each size of GPU.

    The step runs twice on fake CPU tensors, which have shapes and no memory: no GPU is needed,
    the model is not touched, and nothing is allocated. What an operator needs inside itself
    (workspaces), is in the margin.

    Args:
        model: the model, or a function that makes it (for one too large for this machine).
        make_batch: ``make_batch(n)`` gives a batch of ``n`` samples: a tensor, a tuple
            ``(input, target, …)`` or a dict of keyword arguments. Without a parameter it gives
            the one batch that is wanted.
        batch: the batch size to predict in detail.
        optimizer: a class of ``torch.optim`` or its name, a function from parameters to an
            optimizer, an optimizer whose class and settings to take, or None for none.
        loss: ``loss(output, target, …)``; by default the output's ``.loss``, the output itself
            if it is one number, or its sum.
        precision: ``float32``; ``amp`` (bfloat16 autocast); ``bfloat16`` (model and batch).
        checkpointing: modules that recompute their forward: True (the blocks of ModuleLists
            and Sequentials), paths such as ``"encoder.3"``, or classes.
        gpus_gb: sizes of GPUs, in 10^9 bytes.

    Raises:
        UsageError: an argument is not what it should be, or the step depends on the values of
            tensors. What the model or ``make_batch`` raises comes through.
    """
    from perfkit.memory.fake_step import FakeTraining

    if precision not in _PRECISIONS:
        raise UsageError(f"precision is {precision!r}; choose of {', '.join(_PRECISIONS)}")
    if not callable(make_batch):
        raise UsageError("make_batch must be a function of the batch size")
    if batch < 1:
        raise UsageError(f"batch is {batch}; it must be at least 1")
    began_s = time.perf_counter()
    sized = _takes_a_size(make_batch)
    training = FakeTraining(model, _optimizer(optimizer), loss, precision, checkpointing)
    main = training.totals((lambda: make_batch(batch)) if sized else make_batch)
    peaks = {batch: main.peak_bytes}

    def peak(n: int) -> int:
        if n not in peaks:
            peaks[n] = training.totals(lambda: make_batch(n)).peak_bytes
        return peaks[n]

    per_sample = None
    if sized:
        other = max(batch // 2, 1) if batch > 1 else 2
        per_sample = (peak(batch) - peak(other)) / (batch - other)
    gpus = tuple(_on(gb, main, batch, peaks, peak if sized else None) for gb in gpus_gb)
    return Fit(
        batch=batch if sized else None,
        peak_bytes=main.peak_bytes,
        at_peak_bytes=by_name(main.at_peak),
        by_module=by_module(main),
        by_line=by_line(main),
        gpus=gpus,
        per_sample_bytes=per_sample,
        margin_bytes=MARGIN_BYTES,
        margin_share=MARGIN_SHARE,
        margin_reason=MARGIN_REASON,
        precision=precision,
        checkpointing=bool(checkpointing),
        n_evaluations=len(peaks),
        seconds=time.perf_counter() - began_s,
        warnings=_doubts(precision, optimizer),
        provenance=stamp("predicted", device="fake tensors"),
    )


def _optimizer(wanted: Any) -> Any:
    if not isinstance(wanted, str):
        return wanted
    import torch

    found = getattr(torch.optim, wanted, None)
    if not isinstance(found, type):
        raise UsageError(f"optimizer: torch.optim has no {wanted!r}; for example 'AdamW' or 'SGD'")
    return found


def _takes_a_size(make_batch: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make_batch).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters
    )


def _on(
    gb: float,
    main: Totals,
    batch: int,
    peaks: Mapping[int, int],
    peak: Callable[[int], int] | None,
) -> GpuFit:
    limit = int(gb * 1e9)
    fits = _with_margin(main.peak_bytes) <= limit
    if peak is None:
        return GpuFit(gb, fits, None, None, exact=True)
    low, high = _largest(limit, peaks, peak)
    if low == 0:
        return GpuFit(gb, fits, 0, None, exact=True)
    if high is None:
        return GpuFit(gb, fits, None, None, exact=False)
    return GpuFit(gb, fits, low, peak(low), exact=high == low + 1)


def _largest(
    limit: int, peaks: Mapping[int, int], peak: Callable[[int], int]
) -> tuple[int, int | None]:
    """The largest batch seen to fit (0: none), and the smallest seen not to (None: none).

    The peak is nearly a straight line in the batch size: the line through the two nearest
    batches says where to look next, and every answer is an evaluation, not the line's.
    """
    for attempt in range(_MOST_EVALUATIONS):
        low = max((n for n, p in peaks.items() if _with_margin(p) <= limit), default=0)
        high = min((n for n, p in peaks.items() if _with_margin(p) > limit), default=None)
        if high is not None and high <= low + 1:
            return low, high
        if high is None and low >= _LARGEST:
            return low, None
        line_failed = attempt % 3 == 2 and high is not None
        peak((low + high) // 2 if line_failed and high else _next(limit, low, high, peaks))
    return low, high


def _next(limit: int, low: int, high: int | None, peaks: Mapping[int, int]) -> int:
    known = sorted(peaks, key=lambda n: abs(n - (low if high is None else (low + high) / 2)))
    if len(known) == 1:
        return 2 * known[0] if high is None else max(known[0] // 2, 1)
    a, b = sorted(known[:2])
    slope = (peaks[b] - peaks[a]) / (b - a)
    wanted = (limit - MARGIN_BYTES) / (1 + MARGIN_SHARE)
    guess = int(a + (wanted - peaks[a]) / slope) if slope > 0 else 2 * max(low, 1)
    if guess == low:  # the line says that this is the largest: see that the next does not fit
        guess = low + 1
    if high is None:
        return min(max(guess, low + 1), _LARGEST)
    # one below `high` at the most, and never outside of what is still open
    return min(max(guess, low + 1), high - 1)


def _doubts(precision: str, optimizer: Any) -> tuple[str, ...]:
    doubts = []
    if precision == "amp":
        doubts.append(
            "amp is predicted with the CPU's list of operators; CUDA's casts a few others, and "
            "the loss scaler of float16 is not in it"
        )
    groups = getattr(optimizer, "param_groups", ())
    if len(groups) > 1:
        doubts.append("the optimizer's parameter groups are predicted as one with its defaults")
    return tuple(doubts)
