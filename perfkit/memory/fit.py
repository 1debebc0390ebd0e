"""Will it fit? The peak of a training step, predicted without a GPU and without its memory."""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from perfkit.base.arguments import check_instance, check_whole, shown
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.plain import fields
from perfkit.base.progress import Progress
from perfkit.memory.categories import by_name
from perfkit.memory.places import LineMemory, ModuleMemory, by_line, by_module
from perfkit.memory.scaling import scaled_peak

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from perfkit.memory.fake_step import FakeTraining, Run
    from perfkit.memory.ledger import Totals

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
_RUNS = 3
_MOST_EVALUATIONS = 12


@dataclass(frozen=True)
class GpuFit:
    """One size of GPU.

    Attributes:
        gb: its size as sold, in 10^9 bytes.
        fits: the batch that was asked for fits, with the margin.
        largest_batch: the largest that does, 0 where not even one sample fits; None where
            ``make_batch`` takes no size, other sizes cannot be predicted, or no batch is too
            large.
        largest_peak_bytes: the peak at that batch, without the margin.
        exact: one more sample is predicted not to fit; otherwise a few more might.
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
        n_evaluations: how many batch sizes the step was run with on fake tensors.
        seconds: how long that took, in seconds.
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
        margin = {
            "bytes": self.margin_bytes,
            "share": self.margin_share,
            "reason": self.margin_reason,
        }
        parts = ("margin_bytes", "margin_share", "margin_reason")
        return fields(self, "with_margin_bytes", without=parts, type="fit", margin=margin)


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

    The step runs twice on fake CPU tensors, which have shapes but no memory: it needs no GPU, does
    not touch the model, and allocates nothing. A margin covers the operators' workspaces. Other
    batch sizes follow from the allocations at two sizes; one more run at the largest checks that.

    Args:
        model: the model, or a function that creates it (for a model too large for this machine).
        make_batch: ``make_batch(n)`` returns a batch of ``n`` samples: a tensor, a tuple ``(input,
            target, …)`` or a dict of keyword arguments. It is called for ``batch`` and half of it,
            and not for larger ones if those two scale evenly. Without a parameter, it returns a
            batch of size ``batch``.
        batch: the batch size to predict in detail.
        optimizer: a class of ``torch.optim`` or its name, a function from parameters to an
            optimizer, an existing optimizer as a template, or None. Not LBFGS, whose number of
            model runs per step depends on the loss.
        loss: ``loss(output, target, …)``; by default the output's ``.loss``, the output itself
            if it is one number, or its sum.
        precision: ``float32``; ``amp`` (bfloat16 autocast); ``bfloat16`` (model and batch).
        checkpointing: modules that recompute their forward pass: True (the blocks of ModuleLists
            and Sequentials), paths such as ``"encoder.3"``, or classes.
        gpus_gb: GPU memory sizes, in 10^9 bytes.

    Returns:
        A :class:`Fit`: ``peak_bytes``, ``margin_bytes``, and per GPU size whether the batch fits
        and the largest batch. Print it for the tables.

    Raises:
        UsageError: an argument is invalid, or the step depends on the values of tensors. What the
            model or ``make_batch`` raises propagates.

    Example::

        >>> def make_batch(n):
        ...     return torch.rand(n, 512), torch.rand(n, 512)
        >>> model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512))
        >>> loss = torch.nn.functional.mse_loss
        >>> print(perfkit.will_it_fit(model, make_batch, batch=64, loss=loss))
    """
    from perfkit.memory.fake_step import FakeTraining

    if precision not in _PRECISIONS:
        raise UsageError(f"precision is {precision!r}; choose one of {', '.join(_PRECISIONS)}")
    _check(model, make_batch, optimizer, loss, gpus_gb)
    check_whole("batch", batch, 1, 2**31)
    began_s = time.perf_counter()
    sized = _takes_a_size(make_batch)
    training = FakeTraining(
        model,
        _optimizer(optimizer),
        loss,
        precision,
        checkpointing,
        make_batch,
        batch,
        takes_size=sized,
    )
    with Progress("will_it_fit") as progress:
        sizes = _Sizes(training, batch, progress)
        main = sizes.run(batch).totals
        per_sample = None
        if training.batches.may_grow:
            other = max(batch // 2, 1) if batch > 1 else 2
            per_sample = (main.peak_bytes - sizes.run(other).totals.peak_bytes) / (batch - other)
        if gpus_gb:
            sizes.draw_line(int(max(gpus_gb) * 1e9))
        gpus = tuple(_on(gb, main, sizes) for gb in gpus_gb)
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
        n_evaluations=len(sizes.peaks),
        seconds=time.perf_counter() - began_s,
        warnings=(*_doubts(precision, training), *sizes.warnings),
        provenance=stamp("predicted", device="fake tensors"),
    )


class _Sizes:
    """The peaks at the batch sizes that were run, and what follows from them.

    Attributes:
        peaks: batch size → peak in bytes, of what was run.
        end: the smallest batch that ``make_batch`` could not give; None if it always could.
        warnings: what was found out on the way.
    """

    def __init__(self, training: FakeTraining, batch: int, progress: Progress) -> None:
        self._training = training
        self._batch = batch
        self._runs: dict[int, Run] = {}
        self._progress = progress
        self._n_told = self._n_told_in_first = 0
        self._line: Callable[[int], int] | None = None
        self.peaks: dict[int, int] = {}
        self.end: int | None = None
        why_not = training.batches.why_not
        self.warnings = [f"{why_not}: the largest batch is not predicted"] if why_not else []

    @property
    def may_grow(self) -> bool:
        """Whether other sizes than the one asked for can be predicted."""
        return self._training.batches.may_grow

    def run(self, n: int) -> Run:
        """Two steps on fake tensors, once for each size."""
        if n not in self._runs:
            self._runs[n] = self._training.run(n, lambda: self._tell(n))
            self._n_told_in_first = self._n_told_in_first or self._n_told
            self.peaks[n] = self._runs[n].totals.peak_bytes
        return self._runs[n]

    def _tell(self, n: int) -> None:
        self._n_told += 1
        if self._progress.is_due:
            share = self._n_told / (_RUNS * self._n_told_in_first or math.inf)
            self._progress.line(
                f"run {len(self._runs) + 1}, of batch size {n}",
                share=share if 0 < share < 1 else None,
            )

    def draw_line(self, limit: int) -> None:
        """Derive all sizes from two, and see that the largest within ``limit`` agrees."""
        if not self.may_grow or not self._training.batches.grows_evenly:
            return
        # not from a batch of one sample, in which torch copies less
        other = self._batch // 2 if self._batch >= 4 else 2 * self._batch
        here, there = self.run(self._batch), self.run(other)
        line = scaled_peak(
            (self._batch, here.changes), (other, there.changes), here.totals.start_bytes
        )
        if line is None:
            return
        low, _ = _crossing(limit, line)
        if low >= _LARGEST or self.run(max(low, 1)).totals.peak_bytes == line(max(low, 1)):
            self._line = line

    def largest(self, limit: int) -> tuple[int, int | None]:
        """The largest batch that fits (0: none), and the smallest that does not (None: none)."""
        if self._line is not None:
            return _crossing(limit, self._line)
        return _largest(limit, self.peaks, self._try)

    def peak(self, n: int) -> int:
        """The peak at this size."""
        if self._line is not None and n not in self.peaks:
            return self._line(n)
        return self.run(n).totals.peak_bytes

    def _try(self, n: int) -> int:
        """The peak of a batch that ``make_batch`` may not be able to give."""
        if n <= self._batch or self._training.batches.grows_evenly:
            return self.peak(n)
        try:
            return self.peak(n)
        except Exception as error:
            # the end of the data set, perhaps: from there on nothing fits
            self.peaks[n] = sys.maxsize
            if self.end is None or n < self.end:
                self.end = n
            note = f"no batch of {n} could be tried ({type(error).__name__}: {error!s:.80})"
            self.warnings = [*(w for w in self.warnings if not w.startswith("no batch")), note]
            return sys.maxsize


def _crossing(limit: int, peak: Callable[[int], int]) -> tuple[int, int | None]:
    """The largest batch that fits and the next one, of a peak that rises with the batch."""
    if _with_margin(peak(_LARGEST)) <= limit:
        return _LARGEST, None
    low, high = 0, _LARGEST
    while high > low + 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _with_margin(peak(middle)) <= limit else (low, middle)
    return low, high


def _check(model: Any, make_batch: Any, optimizer: Any, loss: Any, gpus_gb: Any) -> None:
    for name, value, is_needed, what in (
        ("model", model, True, "a torch Module, or a function that makes one"),
        ("make_batch", make_batch, True, "a function of the batch size"),
        ("loss", loss, False, "a function of the model's output and the targets"),
    ):
        if not callable(value) and (is_needed or value is not None):
            raise UsageError(f"{name} is {shown(value)}; give {what}")
    if not (optimizer is None or isinstance(optimizer, str) or callable(optimizer)):
        from torch.optim import Optimizer

        what = "a name such as 'AdamW', a function of the parameters, an optimizer, or None"
        check_instance("optimizer", optimizer, Optimizer, what)
    sizes = list(gpus_gb) if isinstance(gpus_gb, Iterable) else [gpus_gb]
    wrong = [gb for gb in sizes if not isinstance(gb, Real) or not 0 < float(gb) < float("inf")]
    if wrong or not isinstance(gpus_gb, Iterable):
        raise UsageError(
            f"gpus_gb is {shown(gpus_gb)}{f' with {shown(wrong[0])} in it' if wrong else ''}; give "
            "a list of memory sizes in GB, such as [24, 80]"
        )


def _optimizer(wanted: Any) -> Any:
    if not isinstance(wanted, str):
        return wanted
    import torch

    found = getattr(torch.optim, wanted, None)
    if not isinstance(found, type):
        raise UsageError(
            f"optimizer: torch.optim has no {shown(wanted)}; for example 'AdamW' or 'SGD'"
        )
    return found


def _takes_a_size(make_batch: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make_batch).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters
    )


def _on(gb: float, main: Totals, sizes: _Sizes) -> GpuFit:
    limit = int(gb * 1e9)
    fits = _with_margin(main.peak_bytes) <= limit
    if not sizes.may_grow:
        return GpuFit(gb, fits, None, None, exact=True)
    low, high = sizes.largest(limit)
    if low == 0:
        return GpuFit(gb, fits, 0, None, exact=high == 1)
    if high is None:
        return GpuFit(gb, fits, None, None, exact=False)
    exact = high == low + 1 and (sizes.end is None or high < sizes.end)
    return GpuFit(gb, fits, low, sizes.peak(low), exact=exact)


def _largest(
    limit: int, peaks: Mapping[int, int], peak: Callable[[int], int]
) -> tuple[int, int | None]:
    """The largest batch seen to fit (0: none), and the smallest seen not to (None: none).

    For steps whose allocations do not follow the batch evenly. The peak is still nearly a straight
    line: the one through the two nearest batches says where to look next, and each answer comes
    from a run.
    """
    n_runs = 0
    while True:
        low = max((n for n, p in peaks.items() if _with_margin(p) <= limit), default=0)
        high = min((n for n, p in peaks.items() if _with_margin(p) > limit), default=None)
        if high is not None and high <= low + 1:
            return low, high
        if (high is None and low >= _LARGEST) or n_runs == _MOST_EVALUATIONS:
            return low, high
        line_failed = n_runs % 3 == 2 and high is not None
        peak((low + high) // 2 if line_failed and high else _next(limit, low, high, peaks))
        n_runs += 1


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


def _doubts(precision: str, training: FakeTraining) -> tuple[str, ...]:
    doubts = []
    if precision == "amp":
        doubts.append(
            "amp is predicted with the CPU's list of operators; CUDA's casts a few others, and "
            "the loss scaler of float16 is not in it"
        )
    if training.groups_joined:
        doubts.append(
            "the optimizer is not one of this model's: its parameter groups are predicted as one, "
            "with the settings of the first"
        )
    if training.reads_values:
        doubts.append(
            "the optimizer's step reads values of tensors, which fake ones do not have: 1 was "
            "taken for each"
        )
    if training.sparse_gradients:
        doubts.append(
            "a gradient is sparse: its size depends on the values in the batch, and it is not in "
            "the prediction"
        )
    return tuple(doubts)
