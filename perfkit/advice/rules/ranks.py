"""Several devices: DataParallel, a slow backend, time spent between ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import MAY_WAIT, Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Category, Int64
from perfkit.trace.read.events import host_collective_rows, is_communication
from perfkit.trace.read.events import host_collectives as host_collectives_of
from perfkit.trace.read.intervals import paint, union

# TensorBoard's plugin warns if communication is a tenth of the step or more.
_LEAST_SHARE = 0.1
# NCCL has no all-to-all kernel: it sends to and receives from each rank.
_ALL_TO_ALL = re.compile(r"SendRecv|all_?to_?all", re.IGNORECASE)
# torch's and TorchRec's names around the exchange of embeddings and of their indices.
_EMBEDDINGS = re.compile(
    r"KJT\w*Awaitable|EmbeddingsAwaitable|fbgemm::\w*embedding|split_embedding|EmbeddingBagCollection"
)
_PIPELINED = re.compile(r"sdd_preprocess|sparse_data_dist|start_sparse_data_dist|wait_sparse_data")
_ALL_REDUCE = re.compile(r"all_?reduce", re.IGNORECASE)
_GRADIENT = re.compile(r"^(torch::autograd::)?AccumulateGrad$")
# Buckets are few; from so many gradients on, as many collectives are no coincidence.
_FEW_GRADIENTS, _AS_MANY = 20, 1.1
_WAIT_LABEL = re.compile(r"^## (\w+) wait\(\) ##$")

# One rank's recording cannot say for which rank it waits; the report on all of them does.
_WHO_IS_LATE = (
    "# which rank comes late? the report on all of them says it\n"
    "# perfkit run --nproc-per-node=N script.py    or, of recorded traces:\n"
    "# perfkit trace rank*.json.gz\n"
    "# if none does, the network is busy:\n"
)
_EXCHANGE_LESS = (
    "# fewer exchanges: gradients of several batches at once\n"
    "with model.no_sync():\n"
    "    (loss_fn(model(x), y) / n).backward()  # all but the last of n batches\n"
    "# smaller ones: 16 bits on the wire\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
)
_BUCKETS = (
    "# many gradients in one exchange: DistributedDataParallel joins them into buckets of 25 MB\n"
    "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])\n"
    "# or by hand:\n"
    "flat = torch.cat([p.grad.flatten() for p in model.parameters()])\n"
    "torch.distributed.all_reduce(flat)"
)
_EXCHANGE_LESS_OF_ANY = (
    "# fewer exchanges: join small ones into one\n"
    "# smaller ones: 16 bits on the wire\n"
    "x = x.to(torch.bfloat16)\n"
    "# in inference: as few ranks for each layer as the model fits on, and more replicas of it"
)
_PIPELINE = (
    "# the next batch's indices and embeddings travel while this one computes\n"
    "from torchrec.distributed.train_pipeline import TrainPipelineSparseDist\n"
    "pipeline = TrainPipelineSparseDist(model, optimizer, device)\n"
    "loss = pipeline.progress(batches)  # batches = iter(loader)\n"
)
_EMBED_LESS = (
    "# half the bytes: 16 bits on the wire, given to the embeddings' sharder\n"
    "from torchrec.distributed.fbgemm_qcomm_codec import (\n"
    "    CommType, QCommsConfig, get_qcomm_codecs_registry)\n"
    "registry = get_qcomm_codecs_registry(QCommsConfig(\n"
    "    forward_precision=CommType.FP16{}))\n"
    "# even shares: a plan that knows the tables' sizes and how often they are read\n"
    "plan = EmbeddingShardingPlanner(topology=topology).collective_plan(model, sharders)"
)
_SEND_LESS = (
    "# compute what needs no answer before waiting for one\n"
    "work = torch.distributed.all_to_all_single(received, sent, async_op=True)\n"
    "own = local_part(x)\n"
    "work.wait()\n"
    "# half the bytes: sent.to(torch.bfloat16)"
)
# A collective takes at least what the quickest one of its kind takes. Where more than half of the
# time is beyond that, most of it is a wait …
_MOSTLY_WAIT = 0.5
# … and the quickest one is known if there are so many of a kind.
_LEAST_OF_A_KIND = 3
# Smaller waits of the host for them are not worth mentioning.
_LEAST_WAITING = 0.05
_PARTS_OF_DATA_PARALLEL = ("Broadcast", "Gather", "Scatter")


@rule
def data_parallel(case: Case) -> Iterator[Finding]:
    """``nn.DataParallel``: one process drives all devices and gathers on the first."""
    marks = case.rows(
        Category.ANNOTATION, Category.OP, named=lambda n: n.startswith("DataParallel.forward")
    )
    helpers = case.rows(Category.OP, named=lambda n: n in _PARTS_OF_DATA_PARALLEL)
    if not (marks.any() or helpers.any()):
        return
    busy = _busy_by_device(case)
    if len(busy) < 2:
        return
    idle = 1.0 - float(np.mean(busy))
    gain, formula = amdahl(idle)
    yield Finding(
        rule="data-parallel",
        cures=("communication",),
        title="DataParallel drives all devices from one process: "
        + ("use DistributedDataParallel" if case.trains else "give each a process of its own"),
        evidence=(
            f"{len(busy)} devices in one process, busy for "
            f"{', '.join(fmt_share(b) for b in busy)} of each step",
        ),
        what_to_do=(
            "# torchrun --nproc-per-node=N train.py\n"
            'torch.distributed.init_process_group("nccl")\n'
            "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])\n"
            "loader = DataLoader(\n"
            "    dataset, ..., sampler=torch.utils.data.DistributedSampler(dataset)\n"
            ")"
            if case.trains
            else "# torchrun --nproc-per-node=N script.py\n"
            "model = model.to(local_rank)  # each process has a replica\n"
            "y = model(x.chunk(world_size)[rank].to(local_rank))  # and a part of the inputs"
        ),
        gain_at_most=gain,
        formula=f"all {len(busy)} devices together idle for {fmt_share(idle)}: {formula}",
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


@rule
def slow_backend(case: Case) -> Iterator[Finding]:
    """Gloo or MPI between GPUs: tensors go through host memory."""
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
        cures=("communication",),
        title="GPUs talk through gloo, that is through the host's memory",
        evidence=(
            f"gloo's collectives{f' (backend {backend})' if backend else ''} take "
            f"{fmt_share(parts.total_ns / 1e3 / case.wall_us)} of each step; the device idles "
            f"meanwhile for {fmt_share(lost)} of it",
        ),
        what_to_do='torch.distributed.init_process_group("nccl")',
        gain_at_most=gain,
        formula=formula,
    )


@rule
def host_collectives(case: Case) -> Iterator[Finding]:
    """Gloo or MPI between CPUs, while the step's thread has nothing else to do."""
    lost = case.lost_to("communication")
    if case.on_device or lost < _LEAST_SHARE:
        return
    trace = case.trace
    parts = host_collectives_of(trace, case.steps)
    n = int((case.steps.containing(parts.start) >= 0).sum())
    gain, formula = amdahl(lost)
    rows = host_collective_rows(trace, case.steps)
    waits = _waits(case, rows[case.steps.containing(trace.start_ns[rows]) >= 0])
    yield Finding(
        rule="host-collectives",
        cures=("communication",),
        title=_WAITING if waits else "Ranks exchange data on the host while nothing else runs",
        evidence=(
            f"{fmt_share(lost)} of each step goes to exchanges on the host that no operator "
            f"hides; {plural(n / case.n_steps, 'collective')} per step",
            waits or f"some of it {MAY_WAIT}: compare the traces of the ranks",
        ),
        what_to_do=f"{_WHO_IS_LATE if waits else ''}{_less(case)}",
        gain_at_most=gain,
        formula=formula,
    )


@rule
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
    title, more, what_to_do = _what_is_exchanged(case, rows)
    n_gradients = int(case.rows(Category.OP, named=_GRADIENT.search).sum())
    n_reduced = int(case.trace.name_table(_ALL_REDUCE.search)[case.trace.name_id[rows]].sum())
    if _FEW_GRADIENTS * case.n_steps < n_gradients <= _AS_MANY * n_reduced:
        title, what_to_do = "Ranks exchange each gradient on its own", _BUCKETS
        each = plural(n_gradients / case.n_steps, "gradient")
        more = [f"that is as many as there are gradients: {each} per step"]
    waits = _waits(case, rows)
    if waits:  # if a rank comes late, to exchange less would not shorten them
        title, what_to_do = _WAITING, f"{_WHO_IS_LATE}{what_to_do}"
        more = [waits, *more]
    yield Finding(
        rule="communication",
        cures=("communication",),
        title=title,
        evidence=(
            f"{fmt_share(share)} of each step is communication that no computation hides; "
            f"{plural(len(rows) / case.n_steps, 'collective')} per step",
            f"part of it {MAY_WAIT}: "
            + (
                f"the longest collective took {fmt_ms(longest_ms)}, half of them less than "
                f"{fmt_ms(median_ms)}"
                if len(rows) > 1
                else f"it took {fmt_ms(longest_ms)}"
            ),
            *more,
        ),
        what_to_do=what_to_do,
        gain_at_most=gain,
        formula=formula,
    )


_WAITING = "Collectives take much longer than the quickest of their kind"


def _waits(case: Case, rows: Int64) -> str:
    """That most of these collectives' time is a wait, in words; empty where it may be transfer."""
    took_us = case.trace.dur_us[rows]
    kinds = _kinds(case, rows)
    beyond_us = 0.0
    for kind in np.unique(kinds[kinds >= 0]):
        of_kind = took_us[kinds == kind]
        if len(of_kind) >= _LEAST_OF_A_KIND:
            beyond_us += float((of_kind - of_kind.min()).sum())
    total_us = float(took_us.sum())
    if beyond_us <= _MOSTLY_WAIT * total_us:
        return ""
    return (
        f"{fmt_share(beyond_us / total_us)} of the collectives' time is beyond what the quickest "
        "one of their kind takes: most of it is a wait, for a rank that comes later or for a busy "
        "network, and one rank's recording does not say for which"
    )


def _kinds(case: Case, rows: Int64) -> Int64:
    """A number for each: the same for what sends as much to the same ranks; -1 where unknown.

    Where the trace says nothing of sizes, it is the place among those of its name in the step, if
    all steps have as many: the third gradient bucket of a step is as big as that of the next.
    """
    trace = case.trace
    has_size = np.array([c.n_in >= 0 for c in trace.collectives] + [False])
    step = case.steps.containing(trace.start_ns[rows])
    keys: list[tuple[int, int, int]] = [(-1, -1, -1)] * len(rows)
    for name in np.unique(trace.name_id[rows]):
        of_name = np.flatnonzero(trace.name_id[rows] == name)
        of_name = of_name[np.argsort(trace.start_ns[rows[of_name]], kind="stable")]
        counts = np.unique(step[of_name], return_counts=True)[1]
        is_regular = len(set(counts.tolist())) == 1
        place: dict[int, int] = {}
        for i in of_name.tolist():
            collective, at = int(trace.collective_id[rows[i]]), int(step[i])
            number = place[at] = place.get(at, -1) + 1
            if has_size[collective]:
                keys[i] = int(name), collective, -1
            elif is_regular:
                keys[i] = int(name), -1, number
    known = {key: i for i, key in enumerate(sorted({key for key in keys if key[0] >= 0}))}
    return np.array([known.get(key, -1) for key in keys], dtype=np.int64)


def _what_is_exchanged(case: Case, rows: Int64) -> tuple[str, list[str], str]:
    """Title, further evidence and remedy, by kind: gradients, embeddings, other all-to-all."""
    trace = case.trace
    names = trace.name_table(_ALL_TO_ALL.search)[trace.name_id[rows]]
    kinds = np.array([bool(_ALL_TO_ALL.search(c.name)) for c in trace.collectives] + [False])
    is_all_to_all = names | kinds[trace.collective_id[rows]]
    took_us = trace.dur_us[rows]
    part = float(took_us[is_all_to_all].sum() / took_us.sum())
    if part < 0.5:
        title = "Ranks exchange data while nothing else runs on the device"
        return title, [], _less(case)
    evidence = [
        f"{fmt_share(part)} of the collectives' time is all-to-all: each rank sends to each, and "
        "all wait for the one that has the most to send or comes last"
    ]
    if not any(_EMBEDDINGS.search(name) for name in trace.names):
        title = "Ranks send each other data (all-to-all) while nothing else runs on the device"
        return title, evidence, _SEND_LESS
    waits = case.span(case.rows(Category.ANNOTATION, named=_WAIT_LABEL.match))
    if (waiting := case.share_of(waits)) >= _LEAST_WAITING:
        longest = _longest_wait(case)
        evidence.append(
            f"the host spends {fmt_share(waiting)} of each step in TorchRec's waits for "
            f"indices and embeddings, most of it in {longest}"
        )
    title = "Ranks exchange embeddings (all-to-all) while nothing else runs on the device"
    is_pipelined = any(_PIPELINED.search(name) for name in trace.names)
    both_ways = ", backward_precision=CommType.BF16" if case.trains else ""
    embed_less = _EMBED_LESS.format(both_ways)
    return (
        title,
        evidence,
        _PIPELINE + embed_less if case.trains and not is_pipelined else embed_less,
    )


def _less(case: Case) -> str:
    """How ranks exchange less: in training gradients, else perhaps activations."""
    return _EXCHANGE_LESS if case.trains else _EXCHANGE_LESS_OF_ANY


def _longest_wait(case: Case) -> str:
    """Name of the awaitable for which the host waits longest."""
    trace = case.trace
    rows = np.flatnonzero(case.rows(Category.ANNOTATION, named=_WAIT_LABEL.match))
    spent = np.bincount(trace.name_id[rows], weights=trace.dur_us[rows])
    found = _WAIT_LABEL.match(trace.names[int(spent.argmax())])
    return found[1] if found else ""
