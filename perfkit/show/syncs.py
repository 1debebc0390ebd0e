"""What host-device syncs say, alone and in a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfkit.base.words import fmt_count, fmt_ms, plural
from perfkit.show.document import Document, Table, document_for
from perfkit.show.plain_text import a_step, each_step, per_step
from perfkit.trace.ask.syncs import Sync, Syncs, times_waited

_MOST = 10


@document_for(Syncs)
def _syncs(of: Syncs) -> Document:
    if not of.syncs:
        return Document(
            "host-device syncs",
            "No wait of the host for the device is recorded.",
            warnings=of.warnings,
        )
    n = max(of.n_steps, 1)
    times = f"{plural(round(times_waited(of.syncs) / n, 1), 'time')}{each_step(n)}"
    took = fmt_ms(of.cost_us / 1e3 / n)
    of_copies = " or for a copy to it" if any(s.is_transfer for s in of.syncs) else ""
    return Document(
        "host-device syncs",
        f"The host waits {times}; for the device{of_copies}, {took} in all.",
        headline=f"The host waits {times}.",
        figure=f"{took} {a_step(n)}",
        warnings=of.warnings,
        tables=(replace(syncs_table(of.syncs), open=True, brief=True),),
    )


def syncs_table(syncs: Sequence[Sync]) -> Table:
    """What made the host wait for the device."""
    rows = tuple(
        (
            _made_by(sync),
            sync.call,
            sync.copy.removeprefix("Memcpy "),
            "copies" if sync.is_transfer else "waits",
            fmt_count(round(sync.per_step, 1)),
            fmt_ms(sync.cost_us / 1e3 / max(sync.n_steps, 1)),
        )
        for sync in syncs[:_MOST]
    )
    return Table(
        title="Host-device syncs",
        note=f"calls and host time {per_step(max((s.n_steps for s in syncs), default=0))}",
        header=("operator", "call", "copy", "the host", "calls", "host time"),
        rows=rows,
        align="<<<<>>",
        code="cc....",
        brief=False,
    )


def _made_by(sync: Sync) -> str:
    """The operator, and the label around it: one operator may sync in several places."""
    label = next((name.strip("# ") for name in reversed(sync.ops) if "::" not in name), "")
    if not sync.op:
        # Labels that are paths differ at their end.
        return f"…{label[-22:]}" if len(label) > 23 else label or "(no operator)"
    return f"{sync.op} in {label}" if label else sync.op
