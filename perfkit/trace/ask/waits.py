"""Under which of the caller's labels the host waited for the device, and for how long.

If you put a label of your own around each operator, this tells you which of them waited. One label
is one wait, however many runtime calls it took: ``.item()`` is a copy and a wait for its stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import blocks_the_host, rows_around, runtime_calls
from perfkit.trace.read.steps import Steps


@dataclass(frozen=True)
class Wait:
    """The host waited once.

    Attributes:
        label: the innermost of the caller's labels around it; empty where there was none.
        op: the innermost operator around it, e.g. ``aten::_local_scalar_dense``.
        calls: the runtime calls in order, e.g. ``cudaMemcpyAsync``, ``cudaStreamSynchronize``.
        copy: the copy that was waited for, e.g. ``Memcpy DtoH (Device -> Pageable)``; empty for a
            plain wait.
        start_ns: when it began, in ns after the trace's origin.
        cost_us: host time in these calls, in µs.
    """

    label: str
    op: str
    calls: tuple[str, ...]
    copy: str
    start_ns: int
    cost_us: float


def waits_under(trace: Trace, is_label: Callable[[str], bool]) -> tuple[Wait, ...]:
    """All waits of the thread with the first such label and of the backward threads, by time.

    A copy to the device counts where the host waited for it, with the time that it took to ask for
    it (which is long from pageable memory), and not where it was only asked for.

    Args:
        trace: with runtime calls, as the profiler records them of a GPU.
        is_label: whether a name is one of the caller's labels.
    """
    labels = trace.is_a(Category.OP, Category.ANNOTATION) & trace.named(is_label)
    if not labels.any():
        return ()
    # the first label's: most of them may be in a backward thread
    thread = int(trace.thread[labels][trace.start_ns[labels].argmin()])
    end = int(trace.end_ns.max())
    bounds = np.array([0], np.int64), np.array([end], np.int64)
    calls = runtime_calls(trace, Steps(("region",), *bounds, thread, "the caller's labels"))
    blocking = trace.name_table(blocks_the_host)[trace.name_id[calls.rows]]
    waits = dict(zip(calls.rows.tolist(), (calls.is_sync | blocking).tolist(), strict=True))
    device_row = dict(zip(calls.rows.tolist(), calls.device_row.tolist(), strict=True))

    asked = calls.rows[calls.is_sync | calls.is_copy]
    owners: dict[tuple[int, int], list[int]] = {}
    ops: dict[int, int] = {}
    for row, chain in rows_around(trace, asked, labels | trace.is_a(Category.OP)).items():
        label = next((i for i in reversed(chain) if labels[i]), -1)
        ops[row] = op = next((i for i in reversed(chain) if not labels[i]), -1)
        # outside of all labels the calls of one operator are one wait, and a lone call is one
        owner = label if label >= 0 else op if op >= 0 else row
        owners.setdefault((label, owner), []).append(row)

    def name(row: int) -> str:
        return trace.names[trace.name_id[row]] if row >= 0 else ""

    found = []
    for (label, _), mine in owners.items():
        if not any(waits[row] for row in mine):
            continue  # copies that were only asked for
        start = int(trace.start_ns[mine[0]])
        copies = (name(device_row[row]) for row in mine)
        found.append(
            Wait(
                label=name(label),
                op=name(ops[mine[-1]]),
                calls=tuple(name(row) for row in mine),
                copy=next((copy for copy in copies if "Memcpy" in copy), ""),
                start_ns=start,
                cost_us=float((trace.end_ns[mine] - trace.start_ns[mine]).sum()) / 1e3,
            )
        )
    return tuple(sorted(found, key=lambda wait: wait.start_ns))
