"""Waiting for the device, and copying to it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.advice.where import user_place
from perfkit.base.words import fmt_bytes, fmt_ms, fmt_share, fmt_us, plural
from perfkit.trace.ask.syncs import Sync, times_waited
from perfkit.trace.read.columns import Category

# op → what the user wrote and what to write instead
_INSTEAD = {
    "aten::item": (
        "a value is read on the host (.item(), float(), an `if` on a tensor, print)",
        "running += loss.detach()  # stays on the device\n"
        "if step % 50 == 0:\n"
        "    print(running.item() / 50)  # one sync in fifty steps",
    ),
    "aten::nonzero": (
        "the number of hits must be known on the host (nonzero, boolean index)",
        "loss = torch.where(mask, loss, 0.0).sum() / mask.sum()  # instead of loss[mask].mean()",
    ),
    "aten::_unique2": (
        "the number of distinct values must be known on the host",
        "ordered = values.sort().values\nn = 1 + (ordered[1:] != ordered[:-1]).sum()",
    ),
}
_INSTEAD["aten::_local_scalar_dense"] = _INSTEAD["aten::item"]
_INSTEAD["aten::is_nonzero"] = _INSTEAD["aten::item"]
_INSTEAD["aten::index"] = _INSTEAD["aten::nonzero"]
_INSTEAD["aten::masked_select"] = _INSTEAD["aten::nonzero"]
_INSTEAD["aten::unique_dim"] = _INSTEAD["aten::_unique2"]
_SENT = (
    "a blocking copy to the device waits for everything that was launched before it",
    "loader = DataLoader(dataset, ..., pin_memory=True)\n"
    "x = x.to(device, non_blocking=True)  # asks for the copy, and goes on",
)
_OTHERWISE = (
    "the host waits for a result (.cpu(), .tolist(), synchronize)",
    "result = result.detach()  # keep it on the device until it is needed, outside of the step",
)


_ASKS_TO_WAIT = re.compile(r"Synchronize")


def _asked(case: Case) -> tuple[str, str]:
    """For a wait that no operator made: what it is, and what to write instead."""
    call = f"torch.{case.device_type}.synchronize()"
    return (
        f"the code, or a library, asks to wait ({call}, a stream's or an event's)",
        f"# only a clock needs to wait, and not in every step:\nif step % 50 == 0:\n    {call}",
    )


@rule
def sync(case: Case) -> Iterator[Finding]:
    """The host waits for the device inside the step, which empties the queue."""
    if not case.on_device:
        return
    lost = case.lost_to("sync")
    waits = [s for s in case.syncs if not s.is_transfer]
    if not waits:
        return
    by_op: dict[str, list[Sync]] = defaultdict(list)
    for wait in waits:
        by_op[wait.op or wait.call].append(wait)
    top = max(by_op, key=lambda op: sum(s.cost_us for s in by_op[op]))
    known = next((o for o in reversed(by_op[top][0].ops) if o in _INSTEAD), "")
    asked = not by_op[top][0].op and _ASKS_TO_WAIT.search(top) is not None and case.operators
    what, instead = _asked(case) if asked else _INSTEAD.get(known, _OTHERWISE)
    if "HtoD" in by_op[top][0].copy:
        what, instead = _SENT
    cost_us = sum(s.cost_us for s in waits)
    gain, formula = amdahl(lost)
    place = user_place(by_op[top][0].stack)
    unseen: tuple[str, ...] = ()
    sat = case.sitting("sync")
    if sat is not None and sat.is_unexplained:
        instead = f"torch.{case.device_type}.synchronize()  # before recording begins\n{instead}"
        unseen = (
            f"no recorded activity ran for {fmt_ms(sat.idle_ms)} of the time in {sat.call}: the "
            "trace does not show what the call waited for (work from before the recording, or "
            "another process on this GPU)",
        )
    yield Finding(
        rule="sync",
        cures=("sync",),
        title="The host waits for the device inside the step",
        evidence=(
            f"{plural(times_waited(waits) / case.n_steps, 'sync')} per step, most costly in "
            f"{top}: {what}",
            f"{fmt_us(cost_us / case.n_steps)} of host time per step; the device is then idle "
            f"for {fmt_share(lost)} of each step until it gets work again",
            *unseen,
        ),
        what_to_do=instead,
        gain_at_most=gain,
        formula=formula,
        line=None if place is None else f"{place}{' (its def)' * by_op[top][0].at_def}",
    )


@rule
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Transfers from pageable memory block the host and hold up the device."""
    pageable = [s for s in case.syncs if s.is_transfer and "Pageable" in s.copy]
    if not case.on_device or not pageable:
        return
    lost = case.lost_to("copy")
    trace = case.trace
    rows = (
        trace.is_a(Category.MEMCPY)
        & (case.steps.containing(trace.start_ns) >= 0)
        & trace.named(lambda n: "HtoD" in n and "Pageable" in n)
    )
    n_bytes = int(trace.n_bytes[rows & (trace.n_bytes > 0)].sum())
    # also those counted as waits, since they waited for other work first: their bytes count, too
    n_copies = int(rows.sum()) / case.n_steps
    gain, formula = amdahl(lost)
    yield Finding(
        rule="pageable-copy",
        cures=("copy",),
        title="Batches are copied from pageable memory: the host waits for every copy",
        evidence=(
            f"{plural(n_copies, 'blocking copy', 'blocking copies')} per step, "
            f"{fmt_bytes(n_bytes / case.n_steps)}, "
            f"{fmt_us(sum(s.cost_us for s in pageable) / case.n_steps)} of host time",
            f"meanwhile the device is idle for {fmt_share(lost)} of each step",
        ),
        what_to_do=(
            "loader = DataLoader(dataset, ..., pin_memory=True)\n"
            "x = x.to(device, non_blocking=True)\n"
            "# and send uint8: normalise on the device"
        ),
        gain_at_most=gain,
        formula=formula,
    )
