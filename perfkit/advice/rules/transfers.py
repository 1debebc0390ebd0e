"""Waiting for the device, and copying to it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.advice.where import user_place
from perfkit.base.words import fmt_bytes, fmt_ms, fmt_share, fmt_us, plural
from perfkit.trace.ask.syncs import Sync, times_waited
from perfkit.trace.read.columns import Category
from perfkit.trace.read.events import graph_captures, launch_calls

# Below this share of the step, waits cost nothing that shows.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class _Wait:
    """What the user wrote, and what to write instead; outside of training, if that differs."""

    what: str
    in_training: str
    elsewhere: str = ""


# op → the wait that it makes
_INSTEAD = {
    "aten::item": _Wait(
        "a value is read on the host (.item(), float(), an `if` on a tensor, print)",
        "running += loss.detach()  # stays on the device\n"
        "if step % 50 == 0:\n"
        "    print(running.item() / 50)  # one sync in fifty steps",
        "values.append(y)  # stays on the device\n"
        "values = torch.stack(values).tolist()  # after the loop: one sync for all",
    ),
    "aten::nonzero": _Wait(
        "the number of hits must be known on the host (nonzero, boolean index)",
        "loss = torch.where(mask, loss, 0.0).sum() / mask.sum()  # instead of loss[mask].mean()",
        "y = torch.where(mask, x, 0.0)  # instead of x[mask]: keeps the shape",
    ),
    "aten::_unique2": _Wait(
        "the number of distinct values must be known on the host",
        "ordered = values.sort().values\nn = 1 + (ordered[1:] != ordered[:-1]).sum()",
    ),
}
_INSTEAD["aten::_local_scalar_dense"] = _INSTEAD["aten::item"]
_INSTEAD["aten::is_nonzero"] = _INSTEAD["aten::item"]
_INSTEAD["aten::index"] = _INSTEAD["aten::nonzero"]
_INSTEAD["aten::masked_select"] = _INSTEAD["aten::nonzero"]
_INSTEAD["aten::unique_dim"] = _INSTEAD["aten::_unique2"]
_SENT = _Wait(
    "a blocking copy to the device waits for everything that was launched before it",
    "loader = DataLoader(dataset, ..., pin_memory=True)\n"
    "x = x.to(device, non_blocking=True)  # asks for the copy, and goes on",
    "x = torch.empty(shape, pin_memory=True)  # what is filled on the host: in pinned memory\n"
    "x = x.to(device, non_blocking=True)  # asks for the copy, and goes on",
)
_OTHERWISE = _Wait(
    "the host waits for a result (.cpu(), .tolist(), synchronize)",
    "result = result.detach()  # keep it on the device until it is needed, outside of the step",
    "results.append(result)  # keep it on the device until it is needed, outside of the step",
)
# What torch.cuda.graph launches between its own wait and the capture: numbers for the generators.
_LAUNCHES_BEFORE_A_CAPTURE = 8


_ASKS_TO_WAIT = re.compile(r"Synchronize")


def _asked(case: Case, name: str) -> _Wait:
    """For a wait that no operator made."""
    call = f"torch.{case.device_type}.synchronize()"
    if _is_before_captures(case, name):
        replays = (
            "# capturing is done once: profile the replays, which do not wait like this\n"
            "with torch.profiler.profile() as profiler:\n"
            f"    graph.replay()\n    {call}"
        )
        what = "asked for right before a graph is captured, as torch.cuda.graph does by itself"
        return _Wait(what, replays)
    return _Wait(
        f"the code, or a library, asks to wait ({call}, a stream's or an event's)",
        f"# only a clock needs to wait, and not in every step:\nif step % 50 == 0:\n    {call}",
        "# only a clock, or code that reads a result, needs to wait: once, after all of the work\n"
        f"results = [model(x) for x in inputs]\n{call}",
    )


def _is_before_captures(case: Case, name: str) -> bool:
    """Whether most of the time in calls of this name is spent right before captures of a graph."""
    trace = case.trace
    captures = graph_captures(trace).start
    rows = np.flatnonzero(case.rows(Category.RUNTIME, named=lambda n: n == name))
    launches = np.sort(trace.start_ns[launch_calls(trace, case.steps)])
    end = trace.end_ns[rows]
    after = np.searchsorted(captures, end)
    has_one = after < len(captures)
    begin = captures[after[has_one]]
    n_between = np.searchsorted(launches, begin) - np.searchsorted(launches, end[has_one])
    took_us = trace.dur_us[rows]
    chosen = took_us[has_one][n_between <= _LAUNCHES_BEFORE_A_CAPTURE]
    return float(chosen.sum()) > float(took_us.sum()) / 2


@rule
def sync(case: Case) -> Iterator[Finding]:
    """The host waits for the device inside the step, which empties the queue."""
    if not case.on_device:
        return
    lost = case.lost_to("sync")
    if case.idle["sync"] < _LEAST_SHARE:
        return  # nothing waits for what it delays
    waits = [s for s in case.syncs if not s.is_transfer]
    if not waits:
        return
    by_op: dict[str, list[Sync]] = defaultdict(list)
    for wait in waits:
        by_op[wait.op or wait.call].append(wait)
    top = max(by_op, key=lambda op: sum(s.cost_us for s in by_op[op]))
    known = next((o for o in reversed(by_op[top][0].ops) if o in _INSTEAD), "")
    # without operators any wait is in none
    has_operators = case.trace.is_a(Category.OP).any()
    asked = not by_op[top][0].op and _ASKS_TO_WAIT.search(top) is not None and has_operators
    kind = _asked(case, top) if asked else _INSTEAD.get(known, _OTHERWISE)
    if "HtoD" in by_op[top][0].copy:
        kind = _SENT
    instead = (kind.elsewhere if not case.trains else "") or kind.in_training
    cost_us = sum(s.cost_us for s in waits)
    gain, formula = amdahl(lost)
    place = user_place(by_op[top][0].stack)
    unseen: tuple[str, ...] = ()
    idle = "the device is then idle"
    sat = case.sitting("sync")
    if sat is not None and sat.is_unexplained:
        instead = f"torch.{case.device_type}.synchronize()  # before recording begins\n{instead}"
        idle = "no recorded activity then runs"
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
            f"{top}: {kind.what}",
            f"{fmt_us(cost_us / case.n_steps)} of host time per step; {idle} "
            f"for {fmt_share(lost)} of each step until the device gets work again",
            *unseen,
        ),
        what_to_do=instead,
        gain_at_most=gain,
        formula=formula,
        line=None if place is None else f"{place}{' (its def)' * by_op[top][0].at_def}",
    )


@rule
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Transfers from pageable memory: the host waits for them, and the device does nothing else."""
    trace = case.trace
    rows = np.flatnonzero(
        trace.is_a(Category.MEMCPY)
        & (case.steps.containing(trace.start_ns) >= 0)
        & trace.named(lambda n: "HtoD" in n and "Pageable" in n)
    )
    if not len(rows):
        return
    # while it copies and computes nothing, and while it waits for a copy; hidden ones cost nothing
    lost = min(case.device_share(rows), case.device_shares["copy"]) + case.idle["copy"]
    n_bytes = int(trace.n_bytes[rows][trace.n_bytes[rows] > 0].sum())
    gain, formula = amdahl(lost)
    yield Finding(
        rule="pageable-copy",
        cures=("copy",),
        title="Batches are copied from pageable memory, and nothing hides it",
        evidence=(
            f"{plural(len(rows) / case.n_steps, 'copy', 'copies')} a step, "
            f"{fmt_bytes(n_bytes / case.n_steps)}: for {fmt_share(lost)} of each step the device "
            "copies or waits for it, and computes nothing",
        ),
        what_to_do=(
            "loader = DataLoader(dataset, ..., pin_memory=True)  # or x.pin_memory(), once\n"
            "x = x.to(device, non_blocking=True)  # from pageable memory that changes nothing\n"
            "# and send uint8: normalise on the device"
        )
        if case.trains
        else _SENT.elsewhere,
        gain_at_most=gain,
        formula=formula,
    )
