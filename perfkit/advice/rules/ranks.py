"""Several devices: DataParallel, and time spent between ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import MAY_WAIT, Finding, found
from perfkit.advice.rules import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Category
from perfkit.trace.read.events import host_collective_rows, is_communication
from perfkit.trace.read.intervals import span

# TensorBoard's plugin warns if communication is a tenth of the step or more.
_LEAST_SHARE = 0.1
# NCCL has no all-to-all kernel: it sends to and receives from each rank.
_ALL_TO_ALL = re.compile(r"SendRecv|all_?to_?all", re.IGNORECASE)
_OF_DATA_PARALLEL = re.compile(r"DataParallel\.forward|(Broadcast|Gather|Scatter)$")

# One rank's recording cannot say for which rank it waits.
_WHO_IS_LATE = "\n# does a rank come late?  perfkit trace rank*.json.gz"
_EXCHANGE_LESS = (
    "# fewer exchanges: DistributedDataParallel joins gradients; of several batches at once:\n"
    "with model.no_sync():\n"
    "    (loss_fn(model(x), y) / n).backward()  # all but the last of n batches\n"
    "# smaller ones: 16 bits on the wire\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
)
_EXCHANGE_LESS_OF_ANY = (
    "# fewer exchanges: join small ones into one\n"
    "# smaller ones: 16 bits on the wire\n"
    "x = x.to(torch.bfloat16)"
)
_SEND_LESS = (
    "# compute what needs no answer before waiting for one (of embeddings: TorchRec's\n"
    "# TrainPipelineSparseDist), and send half the bytes: sent.to(torch.bfloat16)\n"
    "work = torch.distributed.all_to_all_single(received, sent, async_op=True)\n"
    "own = local_part(x)\n"
    "work.wait()"
)


@rule
def data_parallel(case: Case) -> Iterator[Finding]:
    """``nn.DataParallel``: one process drives all devices and gathers on the first."""
    marks = case.rows(Category.ANNOTATION, Category.OP) & case.trace.named(_OF_DATA_PARALLEL.match)
    trace, work = case.trace, case.trace.is_a(*DEVICE_CATEGORIES)
    devices = np.unique(trace.device[work])
    if len(devices) < 2 or not marks.any():
        return
    busy = [case.share_of(span(case.trace, work & (trace.device == one))) for one in devices]
    idle = 1.0 - float(np.mean(busy))
    yield found(
        "data-parallel",
        "DataParallel drives all devices from one process: give each a process of its own",
        [
            f"{len(busy)} devices in one process, busy for "
            f"{', '.join(fmt_share(b) for b in busy)} of each step"
        ],
        "# torchrun --nproc-per-node=N script.py\n"
        "model = torch.nn.parallel.DistributedDataParallel(model.to(local_rank))\n"
        "sampler = torch.utils.data.DistributedSampler(dataset)  # a part of it for each process",
        cures=("communication",),
        share=idle,
        of=f"all {len(busy)} devices together idle for {fmt_share(idle)}: ",
    )


@rule
def host_collectives(case: Case) -> Iterator[Finding]:
    """Gloo or MPI between CPUs, while the step's thread has nothing else to do."""
    lost = case.lost_to("communication")
    if case.on_device or lost < _LEAST_SHARE:
        return
    rows = host_collective_rows(case.trace, case.steps)
    rows = rows[case.steps.containing(case.trace.start_ns[rows]) >= 0]
    yield found(
        "host-collectives",
        "Ranks exchange data on the host while nothing else runs",
        [
            f"{fmt_share(lost)} of each step goes to exchanges on the host that no operator "
            f"hides; {plural(len(rows) / case.n_steps, 'collective')} per step",
            f"some of it {MAY_WAIT}",
        ],
        _less(case) + _WHO_IS_LATE,
        cures=("communication",),
        share=lost,
    )


@rule
def communication(case: Case) -> Iterator[Finding]:
    """Communication that no computation hides."""
    trace = case.trace
    share = case.device_shares.get("communication", 0.0)
    rows = case.activities(Category.KERNEL, named=is_communication)
    if share < _LEAST_SHARE or not len(rows):
        return
    took_us = trace.dur_us[rows]
    is_all_to_all = trace.name_table(_ALL_TO_ALL.search)[trace.name_id[rows]]
    kinds = np.array([bool(_ALL_TO_ALL.search(c.name)) for c in trace.collectives] + [False])
    is_all_to_all |= kinds[trace.collective_id[rows]]
    part = float(took_us[is_all_to_all].sum() / took_us.sum())
    title, what_to_do = "Ranks exchange data while nothing else runs on the device", _less(case)
    more = []
    if part >= 0.5:
        title = "Ranks send each other data (all-to-all) while nothing else runs on the device"
        what_to_do = _SEND_LESS
        more = [
            f"{fmt_share(part)} of their time is all-to-all: all wait for who sends most, or last"
        ]
    yield found(
        "communication",
        title,
        [
            f"{plural(len(rows) / case.n_steps, 'collective')} per step; no computation hides "
            f"{fmt_share(share)} of it",
            f"part of it {MAY_WAIT}: longest {fmt_ms(float(took_us.max()) / 1e3)}, median "
            f"{fmt_ms(float(np.median(took_us)) / 1e3)}",
            *more,
        ],
        what_to_do + _WHO_IS_LATE,
        cures=("communication",),
        share=share,
    )


def _less(case: Case) -> str:
    """How ranks exchange less: in training gradients, else perhaps activations."""
    return _EXCHANGE_LESS if case.trains else _EXCHANGE_LESS_OF_ANY
