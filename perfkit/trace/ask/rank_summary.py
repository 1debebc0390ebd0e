"""What the comparison of ranks needs of one trace, as plain values."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.communication import communication
from perfkit.trace.ask.idle import idle
from perfkit.trace.read.columns import Category, Int64, Trace
from perfkit.trace.read.events import (
    backward_rows,
    device_rows,
    host_collective_rows,
    is_communication,
)
from perfkit.trace.read.load import load
from perfkit.trace.read.steps import Steps, find_steps

#: What stands between the name of a collective and the ranks of its group, where they are known.
IN_GROUP = " among "


def summarize(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the comparison of ranks needs of one trace, as plain values.

    Raises:
        TraceError: the file cannot be read, or is no trace.
    """
    return summary_of(load(path), path)


def summary_of(trace: Trace, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The same of a trace that has been read from ``path``."""
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    talk = communication(trace, steps)
    why = idle(trace, steps)
    rows, step, dur_us, on_host = _collectives(trace, steps)
    names, name_id = _collective_names(trace, rows)
    return {
        "path": str(path),
        "rank": _rank(trace),
        "n_events": len(trace),
        "step_names": [s.name for s in split.steps],
        "wall_us": [s.wall_us for s in split.steps],
        "host_us": [s.host_us for s in split.steps],
        "device_us": [s.device_us for s in split.steps],
        "idle_us": why.total_us,
        "communication_us": talk.busy_us,
        "overlapped_us": talk.overlapped_us,
        "collectives": {
            "on_host": on_host,
            "names": names,
            "step": step.tolist(),
            "name": name_id,
            "dur_us": dur_us.tolist(),
            "asked": _asked(trace, steps, rows, step),
        },
        "warnings": [*trace.warnings, *split.warnings],
    }


def _collectives(
    trace: Trace, steps: Steps
) -> tuple[Int64, Int64, np.ndarray[Any, np.dtype[np.float64]], bool]:
    """Their rows in the order of time, the step and length of each, and whether on the host."""
    rows, step = device_rows(trace, steps, Category.KERNEL)
    mine = trace.name_table(is_communication)[trace.name_id[rows]]
    rows, step = rows[mine], step[mine]
    on_host = not len(rows)
    if on_host:
        rows = host_collective_rows(trace, steps)
        step = steps.containing(trace.start_ns[rows])
        rows, step = rows[step >= 0], step[step >= 0]
    order = np.argsort(trace.start_ns[rows], kind="stable")
    rows, step = rows[order], step[order]
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    if on_host and len(rows):
        # the host asks for the next one while one runs, and what asks is recorded from then on
        before = np.maximum.accumulate(end)[:-1]
        start = np.minimum(np.r_[start[:1], np.maximum(start[1:], before)], end)
    return rows, step, (end - start) / 1e3, on_host


def _asked(trace: Trace, steps: Steps, rows: Int64, step: Int64) -> dict[str, int]:
    """How many are asked for before, within and after the backward pass of their step.

    Where no operator that asks was recorded, when they begin: later than that, never earlier.
    """
    # a collective of the host runs in a thread of its own, maybe after the pass that asked for it
    ops = np.flatnonzero(trace.is_a(Category.OP) & trace.begins("c10d::"))
    in_step = steps.containing(trace.start_ns[ops])
    if (in_step >= 0).any():
        rows, step = ops[in_step >= 0], in_step[in_step >= 0]
    backward = np.flatnonzero(backward_rows(trace))
    of = steps.containing(trace.start_ns[backward])
    backward, of = backward[of >= 0], of[of >= 0]
    begin = np.full(len(steps), np.iinfo(np.int64).max)
    end = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(begin, of, trace.start_ns[backward])
    np.maximum.at(end, of, trace.end_ns[backward])
    at = trace.start_ns[rows]
    known = end[step] > begin[step]
    return {
        "before": int((known & (at < begin[step])).sum()),
        "within": int((known & (at >= begin[step]) & (at <= end[step])).sum()),
        "after": int((known & (at > end[step])).sum()),
    }


def _collective_names(trace: Trace, rows: Int64) -> tuple[list[str], list[int]]:
    """What each is, by which collectives of two ranks are the same, and the group's ranks."""
    known: dict[tuple[int, int], int] = {}
    names: dict[str, int] = {}
    found = []
    pairs = zip(trace.collective_id[rows].tolist(), trace.name_id[rows].tolist(), strict=True)
    for at, name_id in pairs:
        if (at, name_id) not in known:
            if at < 0:  # without its types, which are long and the same on every rank
                name = str(trace.names[name_id]).split("(")[0]
            else:
                c = trace.collectives[at]
                name = f"{c.name} {c.dtype} {max(c.n_in, c.n_out)}"
                if c.ranks:
                    name += f"{IN_GROUP}{c.ranks}"
            known[at, name_id] = names.setdefault(name, len(names))
        found.append(known[at, name_id])
    return list(names), found


def _rank(trace: Trace) -> int | None:
    info = trace.metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None
