"""Several devices: DataParallel, a slow backend, time spent between ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl, duration, percent
from perfkit.trace.columns import DEVICE_CATEGORIES, Category
from perfkit.trace.events import is_communication
from perfkit.trace.intervals import paint, union

# TensorBoard's plugin warns of communication from a tenth of the step on.
_LEAST_SHARE = 0.1
_DATA_PARALLEL = ("DataParallel.forward", "Broadcast", "Gather", "Scatter")


def data_parallel(case: Case) -> Iterator[Finding]:
    """``nn.DataParallel``: one process drives all devices and gathers on the first."""
    marks = case.rows(
        Category.ANNOTATION, Category.OP, named=lambda n: n.startswith("DataParallel.forward")
    )
    helpers = case.rows(Category.OP, named=lambda n: n in _DATA_PARALLEL)
    if not (marks.any() or helpers.any()):
        return
    busy = _busy_by_device(case)
    if len(busy) < 2:
        return
    mean = float(np.mean(busy))
    gain = min(1.0 / max(mean, 0.01), 100.0)
    yield Finding(
        rule="data-parallel",
        title="DataParallel drives all devices from one process: use DistributedDataParallel",
        evidence=(
            f"{len(busy)} devices in one process, busy for "
            f"{', '.join(percent(b) for b in busy)} of each step",
        ),
        what_to_do=(
            "# torchrun --nproc-per-node=N train.py\n"
            'torch.distributed.init_process_group("nccl")\n'
            "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])\n"
            "loader = DataLoader(\n"
            "    dataset, ..., sampler=torch.utils.data.DistributedSampler(dataset)\n"
            ")"
        ),
        gain_at_most=gain,
        formula=(
            f"at most 1 / {mean:.2f} = {gain:.1f}×, if all {len(busy)} devices were always busy"
        ),
        lesson="15-data-parallel",
    )


def _busy_by_device(case: Case) -> list[float]:
    trace = case.trace
    work = trace.is_a(*DEVICE_CATEGORIES)
    shares = []
    for device in np.unique(trace.device[work]):
        rows = work & (trace.device == device)
        parts = union(trace.start_ns[rows], trace.end_ns[rows])
        cells = paint(case.steps.start_ns, case.steps.end_ns, [parts])
        shares.append(float(cells[:, 0, 0].sum()) / 1e3 / case.wall_us)
    return shares


def slow_backend(case: Case) -> Iterator[Finding]:
    """Gloo or MPI between GPUs: tensors travel through the host."""
    if not case.on_device:
        return
    parts = case.labels("gloo:")
    info = case.trace.metadata.get("distributedInfo")
    backend = str(info.get("backend", "")) if isinstance(info, dict) else ""
    if not len(parts) or any(is_communication(n) for n in case.trace.names):
        return
    lost = case.lost_in(parts)
    gain, formula = amdahl(lost)
    yield Finding(
        rule="not-nccl",
        title="GPUs talk through gloo, that is through the host's memory",
        evidence=(
            f"gloo's collectives{f' (backend {backend})' if backend else ''} take "
            f"{percent(parts.total_ns / 1e3 / case.wall_us)} of each step; the device idles "
            f"meanwhile for {percent(lost)} of it",
        ),
        what_to_do='torch.distributed.init_process_group("nccl")',
        gain_at_most=gain,
        formula=formula,
        lesson="15-data-parallel",
    )


def communication(case: Case) -> Iterator[Finding]:
    """Communication that no computation hides."""
    if not case.on_device:
        return
    share = case.device_shares["communication"]
    if share < _LEAST_SHARE:
        return
    rows = np.flatnonzero(
        case.trace.is_a(Category.KERNEL)
        & case.trace.named(is_communication)
        & (case.steps.containing(case.trace.start_ns) >= 0)
    )
    if not len(rows):
        return
    took_ms = case.trace.dur_us[rows] / 1e3
    longest_ms, median_ms = float(took_ms.max()), float(np.median(took_ms))
    gain, formula = amdahl(share)
    yield Finding(
        rule="communication",
        title="Ranks exchange data while nothing else runs on the device",
        evidence=(
            f"{percent(share)} of each step is communication that no computation hides; "
            f"{len(rows) / case.n_steps:,.1f} collectives per step",
            "part of it may be waiting for a slower rank: the longest collective took "
            f"{duration(longest_ms)}, half of them less than {duration(median_ms)}",
        ),
        what_to_do=(
            "# fewer exchanges: gradients of several batches at once\n"
            "with model.no_sync():\n"
            "    (loss_fn(model(x), y) / n).backward()  # all but the last of n batches\n"
            "# smaller ones: 16 bits on the wire\n"
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
        ),
        gain_at_most=gain,
        formula=formula,
        lesson="15-data-parallel",
    )
