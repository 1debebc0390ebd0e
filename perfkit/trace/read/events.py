"""What an event means: data wait, sync, copy, communication … in traces of any year and vendor; and
what belongs to it: its launch, its step, what is around it.

The names of all devices that perfkit knows are handled alike
(:mod:`perfkit.base.device`). A host wait is proven by a runtime call, never by an
op: ``aten::item`` on a CPU tensor waits for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfkit.base.device import pattern
from perfkit.trace.read.columns import Bool, Category, Int32, Int64, Trace, asked_once
from perfkit.trace.read.intervals import Intervals, joined, nest, span, union
from perfkit.trace.read.steps import Steps, is_backward

_LAUNCH = re.compile(r"Launch|Memset|Memcpy")
# A launch takes some µs; another call of the driver that takes longer than this is not launching.
_LONGEST_LAUNCH_NS = 100_000
# NCCL and its kin; and the collectives that torch (symmetric memory), vLLM, SGLang, TensorRT-LLM,
# AITER and DeepEP (also as ep::) bring along: multimem_all_reduce_kernel, oneShotAllReduceKernel …
# A reduction within a block or a warp exchanges nothing with other ranks.
_COMMUNICATION = re.compile(
    r"^(nccl|rccl|msccl|nvshmem)|cross_device_|quickreduce::|\b(deep_)?ep::"
    r"|(?<!block)(?<!block_)(?<!warp)(?<!warp_)(?<!thread)(?<!thread_)"
    r"(all_?(reduce|gather)|reduce_?scatter|all_?to_?all)(_?fusion)?_?kernel",
    re.IGNORECASE,
)
# Updates, and the Python that asks for them or for a backward pass.
_TRAINS = re.compile(
    r"^Optimizer\.|torch/(autograd/__init__|_tensor)\.py\(\d+\): backward$|"
    r"torch/optim/\w+\.py\(\d+\): step$"
)
# Kernels of a backward pass or an update. Those for the gradient of an input (dgrad) also compute
# transposed convolutions, also in inference.
_TRAINING_KERNEL = re.compile(r"wgrad|backward|_bwd|bwd_|adam", re.IGNORECASE)
# Dynamo's labels around everything that is compilation, forward and (lazily) backward.
_COMPILES = re.compile(r"^(entire_(frame|backward)_compile|_compile\.compile_inner)\b")
# Collectives that the host carries out, mostly in a thread of their own.
_HOST_COLLECTIVE = ("gloo:", "mpi:", "ucc:")
# A copy that takes this much longer than its bytes need has waited for the device first: from
# pageable memory a host copies 2 GB a second and more, and a call may take a while to get going.
_SLOWEST_BYTES_PER_NS = 2.0
_LONGEST_START_NS = 1_000_000


#: What the label of the wait for a DataLoader's next batch begins with.
FETCH = "enumerate(DataLoader)"


def is_communication(name: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    return _COMMUNICATION.search(name) is not None


def is_compiling(name: str) -> bool:
    """Whether a label of this name is ``torch.compile`` at work."""
    return _COMPILES.match(name) is not None


def host_collective_rows(trace: Trace, steps: Steps) -> Int64:
    """Rows of the collectives of the host, in any thread of the process of the steps."""
    pid = trace.threads[steps.thread].pid
    same = np.array([t.pid == pid for t in trace.threads], dtype=np.bool_)
    return np.flatnonzero(
        trace.is_a(Category.OP, Category.ANNOTATION)
        & same[trace.thread]
        & trace.begins(*_HOST_COLLECTIVE)
    )


def launch_calls(trace: Trace, steps: Steps) -> Int64:
    """Rows of the calls that launch kernels and graphs, also outside of operators."""
    return np.flatnonzero(
        trace.is_a(Category.RUNTIME) & host_rows(trace, steps) & trace.holds("Launch")
    )


def driver_calls(trace: Trace, steps: Steps) -> Int64:
    """Rows of long calls that neither launch, copy nor wait: they allocate, free, load code …"""
    waits, copies = pattern("waits"), pattern("copies")
    return np.flatnonzero(
        trace.is_a(Category.RUNTIME)
        & (trace.end_ns - trace.start_ns > _LONGEST_LAUNCH_NS)
        & host_rows(trace, steps)
        & ~trace.named(lambda n: waits.search(n) or copies.search(n) or _LAUNCH.search(n))
    )


@asked_once
def graph_captures(trace: Trace) -> Intervals:
    """When a thread captured a CUDA graph: what it launches then is recorded and runs nothing.

    With what belongs to it: torch.compile's garbage collection before, and making it executable.
    """
    begins = trace.is_a(Category.RUNTIME) & trace.holds("StreamBeginCapture")
    ends = trace.is_a(Category.RUNTIME) & trace.holds("StreamEndCapture")
    start: list[int] = []
    end: list[int] = []
    for thread in np.unique(trace.thread[begins]):
        here = trace.thread == thread
        first, last = trace.start_ns[begins & here], np.sort(trace.end_ns[ends & here])
        at = np.searchsorted(last, first)
        start += first[at < len(last)].tolist()
        end += last[at[at < len(last)]].tolist()
    around = trace.begins("CUDAGraphNode.record") & trace.is_a(Category.OP, Category.ANNOTATION)
    around |= trace.holds("GraphInstantiate") & trace.is_a(Category.RUNTIME)
    captured = union(np.array(start, dtype=np.int64), np.array(end, dtype=np.int64))
    return joined((captured, span(trace, around)))


def blocks_the_host(call: str) -> bool:
    """Whether a runtime call of this name returns only when the device is done, by its nature."""
    return bool(pattern("waits").search(call) or pattern("blocking_copies").search(call))


@dataclass(frozen=True, eq=False)
class RuntimeCalls:
    """Runtime calls that copy or wait, on the step's thread and the backward threads.

    Attributes:
        rows: their rows in the trace.
        device_row: row of the device activity joined by correlation, -1 where there is none.
        is_sync: the host waits for the device (a sync call, a blocking device-to-host copy, or
            a blocking copy that takes far longer than its bytes need).
        is_copy: a host-to-device transfer (the call, and the wait that belongs to it).
        blocks: the call returns only when the device is done: all syncs, and the copies that the
            host waits for. Not a copy that is only asked for (pinned memory).
        copying_ns: of a sync that ends with a copy to the device: how long that copy took at its
            end; 0 for others.
    """

    rows: Int64
    device_row: Int64
    is_sync: Bool
    is_copy: Bool
    blocks: Bool
    copying_ns: Int64

    def waiting(self, trace: Trace) -> Intervals:
        """When the host waits for the device."""
        rows = self.rows[self.is_sync]
        return union(trace.start_ns[rows], trace.end_ns[rows] - self.copying_ns[self.is_sync])

    def copying(self, trace: Trace) -> Intervals:
        """When the host copies to the device, or has it copy."""
        end = trace.end_ns[self.rows]
        start = np.where(self.is_copy, trace.start_ns[self.rows], end - self.copying_ns)
        return union(start, end)


@asked_once
def backward_rows(trace: Trace) -> Bool:
    """Rows of the backward pass: the engine's labels where they exist, else node names."""
    ops = trace.is_a(Category.OP, Category.ANNOTATION)
    engine = ops & trace.begins("autograd::engine::evaluate_function")
    return engine if engine.any() else ops & trace.named(is_backward)


def shows_training(trace: Trace) -> bool:
    """Whether a trace shows training: backward work, an update, or a call of either.

    Of a trace without operators only the kernels' names can tell.
    """
    if backward_rows(trace).any() or any(map(_TRAINS.search, trace.names)):
        return True
    kernels = trace.is_a(Category.KERNEL) & trace.named(_TRAINING_KERNEL.search)
    return bool(kernels.any()) and not trace.is_a(Category.OP).any()


@asked_once
def host_rows(trace: Trace, steps: Steps) -> Bool:
    """Which rows are of the step's own thread, or of one that runs its backward."""
    chosen = np.zeros(len(trace.threads), dtype=np.bool_)
    chosen[steps.thread] = True
    pid = trace.threads[steps.thread].pid
    same = np.array([t.pid == pid for t in trace.threads], dtype=np.bool_)
    chosen[trace.thread[backward_rows(trace)]] = True
    if not trace.is_a(Category.OP).any():  # only runtime calls say which threads drive the device
        chosen[trace.thread[trace.is_a(Category.RUNTIME)]] = True
    return (chosen & same)[trace.thread]


def _of_the_same_correlation(trace: Trace, rows: Int64, others: Bool) -> Int64:
    """For each row: the one of the others with its correlation, -1 where none."""
    found = np.flatnonzero(others & (trace.correlation >= 0))
    result = np.full(len(rows), -1, dtype=np.int64)
    if not len(found) or not len(rows):
        return result
    order = np.argsort(trace.correlation[found], kind="stable")
    keys, found = trace.correlation[found][order], found[order]
    wanted = trace.correlation[rows]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = keys[at] == wanted
    result[hit] = found[at[hit]]
    return result


def join_device(trace: Trace, rows: Int64) -> Int64:
    """For each runtime row: the row of its device activity (by correlation), -1 where none."""
    device = trace.is_a(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
    return _of_the_same_correlation(trace, rows, device)


@asked_once
def runtime_calls(trace: Trace, steps: Steps) -> RuntimeCalls:
    """The calls that copy or wait, distinguished by the device activity joined to them.

    A wait that follows a host-to-device copy inside the same op (pageable memory) is part of
    that copy. Device-to-device copies only launch, so they count as neither.
    """
    here = trace.is_a(Category.RUNTIME) & host_rows(trace, steps)
    waits = here & trace.named(pattern("waits").search)
    copies = here & trace.named(pattern("copies").search)
    rows = np.flatnonzero(waits | copies)
    device_row = join_device(trace, rows)
    kind_to_host = trace.name_table(lambda n: "DtoH" in n)
    kind_to_device = trace.name_table(lambda n: "HtoD" in n)
    kind_pageable = trace.name_table(lambda n: "Pageable" in n)
    device_name = trace.name_id[np.maximum(device_row, 0)]
    joined = device_row >= 0
    to_host = joined & kind_to_host[device_name]
    to_device = joined & kind_to_device[device_name]
    blocking = trace.name_table(pattern("blocking_copies").search)[trace.name_id[rows]]
    is_wait = waits[rows]

    ops_that_send = trace.external_id[rows][to_device]
    external = trace.external_id[rows]
    of_a_copy = is_wait & (external >= 0) & np.isin(external, ops_that_send)
    is_copy = to_device | of_a_copy | (~is_wait & blocking & ~to_host & ~joined)
    # A wait in the same op makes any copy to the host a blocking one (.item() through a pinned
    # buffer); without it, a copy to pinned memory does not block and its short call is a copy.
    waited_for = (external >= 0) & np.isin(external, external[is_wait])
    is_sync = (is_wait & ~of_a_copy) | (
        to_host & (kind_pageable[device_name] | blocking | waited_for)
    )
    is_copy |= to_host & ~is_sync
    took: Int64 = trace.end_ns[rows] - trace.start_ns[rows]
    # a wait that belongs to a copy, or a copy from memory that the driver must copy first
    blocks = is_sync | of_a_copy | (is_copy & (blocking | (joined & kind_pageable[device_name])))
    at = np.maximum(device_row, 0)
    busy: Int64 = trace.end_ns[at] - trace.start_ns[at]
    needed = np.maximum(busy, (trace.n_bytes[at] / _SLOWEST_BYTES_PER_NS).astype(np.int64))
    known = joined & (trace.n_bytes[at] >= 0)
    waited_first = is_copy & blocks & known & (took > needed + _LONGEST_START_NS)
    copying = np.where(waited_first, needed, 0).astype(np.int64)
    is_sync, is_copy = is_sync | waited_first, is_copy & ~waited_first
    return RuntimeCalls(rows, device_row, is_sync, is_copy, blocks, copying)


def launch_rows(trace: Trace, device_rows: Int64) -> Int64:
    """For each device activity: the row of the runtime call that launched it, -1 where unknown."""
    return _of_the_same_correlation(trace, device_rows, trace.is_a(Category.RUNTIME))


def device_rows(trace: Trace, steps: Steps, *categories: Category) -> tuple[Int64, Int64]:
    """Device activities of the steps, and the index of each one's step.

    An activity belongs to the step in which it was launched; where no launch was recorded, to
    the step in which it starts.
    """
    rows = np.flatnonzero(trace.is_a(*categories))
    launch = launch_rows(trace, rows)
    began = np.where(launch >= 0, trace.start_ns[np.maximum(launch, 0)], trace.start_ns[rows])
    step = steps.containing(began)
    return rows[step >= 0], step[step >= 0]


def enclosing(trace: Trace, candidates: Int64, rows: Int64) -> Int64:
    """For each of ``rows``: the innermost of ``candidates`` around it on its thread, else -1."""
    return enclosing_points(
        trace, candidates, trace.thread[rows], trace.start_ns[rows], trace.end_ns[rows]
    )


def enclosing_points(
    trace: Trace, candidates: Int64, thread: Int32, start: Int64, end: Int64
) -> Int64:
    """As :func:`enclosing`, for times on threads that need not be rows of the trace."""
    result = np.full(len(start), -1, dtype=np.int64)
    for index in np.unique(thread):
        around = candidates[trace.thread[candidates] == index]
        asked = np.flatnonzero(thread == index)
        if not len(around):
            continue
        begin = np.r_[trace.start_ns[around], start[asked]]
        until = np.r_[trace.end_ns[around], end[asked]]
        # Among equals a candidate stands first, so that it encloses what is asked about.
        order = np.lexsort((np.r_[np.zeros(len(around)), np.ones(len(asked))], -until, begin))
        _, above = nest(begin[order], until[order])
        is_asked = order >= len(around)
        while True:  # what is asked about encloses nothing: as many rounds as they are nested
            climb = (above >= 0) & is_asked[np.maximum(above, 0)]
            if not climb.any():
                break
            above[climb] = above[above[climb]]
        at = np.flatnonzero(is_asked)
        found = above[at] >= 0
        result[asked[order[at[found]] - len(around)]] = around[order[above[at[found]]]]
    return result


def sum_by(keys: Int64, values: Int64, n: int) -> Int64:
    """Exact integer sums of ``values`` by key 0 … n-1."""
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums


def together(*warnings: Iterable[str]) -> tuple[str, ...]:
    """Warnings of several sources, each once."""
    return tuple(dict.fromkeys(w for source in warnings for w in source))


def recorded_on(trace: Trace) -> str:
    """Name of the device of a trace; ``"cpu"`` without one."""
    name = trace.gpu.get("name")
    return name if isinstance(name, str) else "a device" if trace.has_device else "cpu"


def rows_around(trace: Trace, calls: Int64, around: Bool) -> dict[int, tuple[int, ...]]:
    """For each of these rows: the rows that enclose it, outermost first.

    Args:
        calls: rows of runtime calls.
        around: which rows may enclose them.
    """
    result: dict[int, tuple[int, ...]] = {}
    is_call = np.zeros(len(trace), dtype=np.bool_)
    is_call[calls] = True
    for thread in np.unique(trace.thread[calls]):
        rows = np.flatnonzero((around | is_call) & (trace.thread == thread))
        _, parent = nest(trace.start_ns[rows], trace.end_ns[rows])
        for position in np.flatnonzero(is_call[rows]):
            chain = []
            at = parent[position]
            while at >= 0:
                if not is_call[rows[at]]:
                    chain.append(int(rows[at]))
                at = parent[at]
            result[int(rows[position])] = tuple(reversed(chain))
    return result
