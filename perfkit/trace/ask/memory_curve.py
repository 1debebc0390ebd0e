"""Memory over time, from the allocator's events in a trace (``profile_memory=True``).

Newer traces say after every event how much is allocated and reserved on the device; older ones say
only how much each event took or gave back: then the curve counts from what was there when the
recording began, which is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfkit.base.device import place_of
from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.ask.breakdown import host_layers
from perfkit.trace.read.columns import Bool, Category, Int64, MemoryEvents, Trace
from perfkit.trace.read.events import enclosing_points, together
from perfkit.trace.read.steps import Steps, find_steps

_PHASES = ("optimizer", "backward", "forward")
_BEFORE = "before the recording"


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """The memory of one device.

    Attributes:
        device: ``cpu``, ``cuda:0`` …
        at_ns: times in ns after the trace's origin.
        allocated_bytes: allocated from then on; counted from 0 at the beginning if not
            ``is_absolute``.
        reserved_bytes: reserved by the caching allocator from then on; empty if not recorded.
        is_absolute: whether the trace itself says how much is allocated.
        peak_bytes: highest value of the curve.
        peak_at_ns: when it was reached first.
        peak_reserved_bytes: highest reserved value; None if not recorded.
        by_phase_bytes: what was alive at the peak, by when it was allocated: before the recording,
            in forward, backward, optimizer, or elsewhere (other); adds up to ``peak_bytes``.
            Empty where addresses were not recorded.
        by_op_bytes: of what was allocated since, by the innermost op, the largest first; likewise.
    """

    device: str
    at_ns: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64
    is_absolute: bool
    peak_bytes: int
    peak_at_ns: int
    peak_reserved_bytes: int | None
    by_phase_bytes: Mapping[str, int]
    by_op_bytes: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class MemoryCurve(Shown):
    """Memory over time; no devices where no memory events were recorded.

    Attributes:
        devices: accelerators first, then the CPU.
    """

    devices: tuple[DeviceMemory, ...]
    warnings: tuple[str, ...] = ()


@question("memory-curve", "How does memory rise and fall, and what is alive at its peak?")
def memory_curve(trace: Trace, steps: Steps | None = None) -> MemoryCurve:
    """Allocated and reserved bytes over time, and what the peak was made of.

    Args:
        steps: its steps, which tell the phases; found from the trace where not given.
    """
    steps = find_steps(trace) if steps is None else steps
    m = trace.memory
    if not len(m):
        doubt = "no memory events were recorded (profile_memory=True)"
        return MemoryCurve((), together(steps.warnings, [doubt]))
    found, doubts = [], []
    for number in sorted({*m.device_type.tolist()}, key=lambda n: (n <= 0, n)):
        of_type = m.device_type == number
        for index in np.unique(m.device[of_type]):
            rows = np.flatnonzero(of_type & (m.device == index))
            one = _one(trace, steps, m, rows, place_of(number, int(index)))
            found.append(one)
            if not one.is_absolute:
                doubts.append(
                    f"{one.device}: the trace holds only changes; what was allocated before the "
                    "recording is not in the curve"
                )
    return MemoryCurve(tuple(found), together(steps.warnings, doubts))


def _one(trace: Trace, steps: Steps, m: MemoryEvents, rows: Int64, device: str) -> DeviceMemory:
    told = m.allocated[rows]
    # 0 in every event is what the CPU's allocator, which keeps no total, writes.
    is_absolute = bool((told >= 0).all() and (told > 0).any())
    counted = np.cumsum(m.n_bytes[rows])
    counted -= min(int(counted.min()), 0)  # what is given back was there before
    curve = told if is_absolute else counted
    reserved = m.reserved[rows]
    has_reserved = bool((reserved > 0).any())
    peak = int(curve.argmax())
    by_phase: dict[str, int] = {}
    by_op: dict[str, int] = {}
    if (m.address[rows] > 0).any():
        live = rows[_alive_at(m.address[rows], m.n_bytes[rows], peak)]
        by_phase, by_op = _composition(trace, steps, m, live)
        since = sum(by_phase.values())
        by_phase = {_BEFORE: int(curve[peak]) - since, **by_phase}
        if by_phase[_BEFORE] < 0:  # blocks whose end was not recorded
            by_phase, by_op = {}, {}
    return DeviceMemory(
        device=device,
        at_ns=m.at_ns[rows],
        allocated_bytes=curve,
        reserved_bytes=reserved if has_reserved else reserved[:0],
        is_absolute=is_absolute,
        peak_bytes=int(curve[peak]),
        peak_at_ns=int(m.at_ns[rows[peak]]),
        peak_reserved_bytes=int(reserved.max()) if has_reserved else None,
        by_phase_bytes=by_phase,
        by_op_bytes=by_op,
    )


def _alive_at(address: Int64, n_bytes: Int64, peak: int) -> Bool:
    """Which events are allocations that had been made, and not given back, at event ``peak``."""
    index = np.arange(len(address))
    order = np.lexsort((index, address))
    # The next event of the same address is what ends a block.
    ends = np.full(len(address), len(address), dtype=np.int64)
    same = address[order][1:] == address[order][:-1]
    ends[order[:-1][same]] = order[1:][same]
    return np.asarray((n_bytes > 0) & (index <= peak) & (ends > peak))


def _composition(
    trace: Trace, steps: Steps, m: MemoryEvents, live: Int64
) -> tuple[dict[str, int], dict[str, int]]:
    at, size = m.at_ns[live], m.n_bytes[live]
    layers = host_layers(trace, steps)
    phase = np.full(len(live), len(_PHASES))
    for i in range(len(_PHASES) - 1, -1, -1):
        phase[layers[_PHASES[i]].covers(at)] = i
    by_phase = {name: int(size[phase == i].sum()) for i, name in enumerate((*_PHASES, "other"))}
    ops = np.flatnonzero(trace.is_a(Category.OP))
    owner = enclosing_points(trace, ops, m.thread[live], at, at)
    by_op: dict[str, int] = {}
    names = np.where(owner >= 0, trace.name_id[np.maximum(owner, 0)], -1)
    for name in np.unique(names):
        text = trace.names[name] if name >= 0 else "outside of any op"
        by_op[text] = int(size[names == name].sum())
    return by_phase, dict(sorted(by_op.items(), key=lambda item: -item[1]))
