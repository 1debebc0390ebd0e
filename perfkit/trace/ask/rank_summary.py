"""What the comparison of ranks needs of one trace, as plain values."""

from __future__ import annotations

import os
from typing import Any

from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.communication import communication
from perfkit.trace.ask.idle import idle
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import is_communication
from perfkit.trace.read.load import load
from perfkit.trace.read.lookups import device_rows
from perfkit.trace.read.steps import find_steps


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
    rows, step = device_rows(trace, steps, Category.KERNEL)
    mine = trace.name_table(is_communication)[trace.name_id[rows]]
    rows, step = rows[mine], step[mine]
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
            "step": step.tolist(),
            "name": [_collective(trace, int(r)) for r in rows],
            "start_us": (trace.start_us[rows] + trace.origin_us).tolist(),
            "dur_us": trace.dur_us[rows].tolist(),
        },
        "warnings": [*trace.warnings, *split.warnings],
    }


def _collective(trace: Trace, row: int) -> str:
    at = int(trace.collective_id[row])
    if at < 0:  # without its types, which are long and the same on every rank
        return str(trace.names[trace.name_id[row]]).split("(")[0]
    c = trace.collectives[at]
    return f"{c.name} {c.dtype} {max(c.n_in, c.n_out)}"


def _rank(trace: Trace) -> int | None:
    info = trace.metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None
