"""The case before the rules: everything known about the profiled steps, asked for by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from perfkit.advice.typical import Typical, typical
from perfkit.trace.breakdown import HOST_CLASSES, Breakdown, device_layers, host_layers
from perfkit.trace.columns import Bool, Category, Int64, Trace
from perfkit.trace.critical_path import CriticalPath, critical_path
from perfkit.trace.events import (
    driver_calls,
    host_threads,
    is_communication,
    join_device,
    runtime_calls,
)
from perfkit.trace.facts import Facts
from perfkit.trace.idle import IDLE_CAUSES, Sitting, idle_causes, sitting
from perfkit.trace.intervals import EMPTY, Intervals, paint, union, without
from perfkit.trace.lines import NO_LINES, LineSamples
from perfkit.trace.operators import Nesting, Operator, nesting, operators
from perfkit.trace.steps import Steps
from perfkit.trace.syncs import Sync, syncs

# Dynamo's own labels around all that compiling is, forward and (lazily) backward.
_COMPILES = re.compile(r"^(entire_(frame|backward)_compile|_compile\.compile_inner)\b")


@dataclass(frozen=True, eq=False)
class Case:
    """What the rules look at.

    Shares of a class (``shares``, ``idle``, ``lost_to``, ``device_shares``) are those of typical
    steps (see :mod:`perfkit.advice.typical`); shares of chosen events are of all profiled steps'
    time, unless ``typical`` asks otherwise: what happens in a few steps only still costs.

    Attributes:
        trace: the events.
        steps: the steps in them.
        breakdown: their split.
        lines: samples of source lines; none for a trace from a file.
        facts: what the trace does not say; empty for a trace from a file.
        is_file: whether it is a trace from a file, of which nothing else is known.
    """

    trace: Trace
    steps: Steps
    breakdown: Breakdown
    lines: LineSamples = NO_LINES
    facts: Facts = field(default_factory=Facts)
    is_file: bool = False

    @cached_property
    def nesting(self) -> Nesting:
        """Which op encloses which."""
        return nesting(self.trace, self.steps)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators by self time."""
        return operators(self.trace, self.steps, within=self.nesting)

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """Host-device syncs by cost."""
        return syncs(self.trace, self.steps)

    @cached_property
    def wall_us(self) -> float:
        """All profiled steps together, in µs."""
        return max(sum(s.wall_ns for s in self.breakdown.steps) / 1e3, 1e-3)

    @property
    def n_steps(self) -> int:
        """How many steps were profiled."""
        return max(len(self.steps), 1)

    @property
    def on_device(self) -> bool:
        """Whether a device worked in these steps."""
        return self.breakdown.has_device

    @cached_property
    def typical(self) -> Typical:
        """The steps whose shares are shown."""
        return typical(self.breakdown)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Host class → share; zeros where there is no step."""
        return self.typical.breakdown.shares() or dict.fromkeys(HOST_CLASSES, 0.0)

    @cached_property
    def device_shares(self) -> Mapping[str, float]:
        """Device class → share; empty without a device."""
        return self.typical.breakdown.device_shares()

    @cached_property
    def idle(self) -> Mapping[str, float]:
        """Cause of device idling → share; zeros without a device."""
        causes = idle_causes(self.trace, self.steps)
        chosen = [causes[i] for i in self.typical.indices] if causes else []
        return {c: sum(step[c] for step in chosen) / 1e3 / self._typical_us for c in IDLE_CAUSES}

    def sitting(self, cause: str) -> Sitting | None:
        """In which call the host sat for most of what typical steps idle for this cause."""
        return sitting(self.trace, self.steps, cause, self.typical.indices)

    @cached_property
    def longest_driver_call(self) -> str:
        """Name of the call, other than launching, copying and waiting, that takes longest in all;
        empty without any.
        """
        rows = driver_calls(self.trace, self.steps)
        rows = rows[self.steps.containing(self.trace.start_ns[rows]) >= 0]
        if not len(rows):
            return ""
        spent = np.bincount(self.trace.name_id[rows], weights=self.trace.dur_us[rows])
        return self.trace.names[int(spent.argmax())]

    @cached_property
    def path(self) -> CriticalPath:
        """Critical path of the step of median length."""
        return critical_path(self.trace, self.steps)

    @cached_property
    def _typical_us(self) -> float:
        return max(sum(s.wall_ns for s in self.typical.breakdown.steps) / 1e3, 1e-3)

    def _share(self, cell_ns: Int64, *, typical: bool) -> float:
        """What these times per step are of all steps, or of the typical ones."""
        if typical:
            chosen = np.array(self.typical.indices, dtype=np.int64)
            return float(cell_ns[chosen].sum()) / 1e3 / self._typical_us
        return float(cell_ns.sum()) / 1e3 / self.wall_us

    def lost_to(self, host_class: str) -> float:
        """The share of the step that a host class really costs.

        On a device, the host may do what it likes while the device is busy: only the time in
        which the device idled meanwhile is lost.
        """
        if not self.on_device:
            return self.shares[host_class]
        if host_class == "data wait":
            return self.idle["data"]
        if host_class == "copy":
            return self.idle["copy"]
        if host_class == "sync":
            return self.idle["sync"]
        if host_class == "other":
            return self.idle["host"]
        return self.typical.breakdown.idle_shares()[host_class]

    def rows(self, *categories: Category, named: Callable[[str], object]) -> Bool:
        """Rows on the steps' host threads that begin inside a step and are named so."""
        return self.trace.is_a(*categories) & self._here & self.trace.named(named)

    @cached_property
    def _here(self) -> Bool:
        return self._inside & host_threads(self.trace, self.steps)[self.trace.thread]

    @cached_property
    def _inside(self) -> Bool:
        return self.steps.containing(self.trace.start_ns) >= 0

    def span(self, rows: Bool) -> Intervals:
        """The time that these rows cover."""
        return union(self.trace.start_ns[rows], self.trace.end_ns[rows])

    def lost_in(self, parts: Intervals, *, typical: bool = False) -> float:
        """The share of the steps that these intervals cost: covered on a CPU; with a device, only
        what it idled meanwhile.
        """
        if not len(parts):
            return 0.0
        cells = paint(self.steps.start_ns, self.steps.end_ns, [parts], self._device)
        return self._share(cells[:, 0, -1], typical=typical)

    @cached_property
    def _device(self) -> list[Intervals]:
        return device_layers(self.trace)[0] if self.on_device else []

    def share_of(self, parts: Intervals, *, typical: bool = False) -> float:
        """The share of the steps that these intervals cover on the host."""
        if not len(parts):
            return 0.0
        cells = paint(self.steps.start_ns, self.steps.end_ns, [parts])
        return self._share(cells[:, 0, 0], typical=typical)

    @cached_property
    def outside_of_torch(self) -> Intervals:
        """The time inside the steps that no torch operator and no DataLoader covers."""
        layers = host_layers(self.trace, self.steps).values()
        covered = union(
            np.concatenate([part.start for part in layers]),
            np.concatenate([part.end for part in layers]),
        )
        return without(union(self.steps.start_ns, self.steps.end_ns), covered)

    @cached_property
    def in_forward(self) -> Intervals:
        """The time inside the steps of class *forward*."""
        layers = host_layers(self.trace, self.steps)
        others = [part for name, part in layers.items() if name != "forward"]
        covered = union(
            np.concatenate([part.start for part in others]),
            np.concatenate([part.end for part in others]),
        )
        return without(layers["forward"], covered)

    def lines_in(self, parts: Intervals) -> LineSamples:
        """The line samples that were taken inside these intervals."""
        taken = self.lines.taken
        inside = parts.covers(np.array([at for at, _ in taken], dtype=np.int64))
        return self.lines.chosen(inside.tolist())

    @cached_property
    def compiling(self) -> Intervals:
        """The time inside the steps in which ``torch.compile`` compiles."""
        return self.span(self.rows(Category.ANNOTATION, Category.OP, named=_COMPILES.match))

    @cached_property
    def start_up(self) -> tuple[Intervals, tuple[tuple[str, float], ...]]:
        """First calls that take long because they are the first, and (op, ms) of the longest.

        The first allocation makes the CUDA context, the first convolution loads cuDNN and tries
        its algorithms, the first call of any kernel may load it: seconds that no later step has.
        Such a call takes over 1 ms and a twentieth of all steps, by itself (without what it
        called or waited for); later calls of the same op take less than a tenth of that, and
        where there is none it is an allocation.
        """
        trace, inside = self.trace, self.nesting
        if not self.on_device or not len(inside.rows):
            return EMPTY, ()
        rows = inside.rows
        dur = (trace.end_ns - trace.start_ns)[rows]
        calls = runtime_calls(trace, self.steps).rows
        counted = trace.is_a(Category.OP)[rows] | np.isin(rows, calls)
        of_others = np.zeros(len(rows), dtype=np.int64)
        within = counted & (inside.parent_op >= 0)
        np.add.at(of_others, inside.parent_op[within], dur[within])
        own = dur - of_others
        least_ns = max(1e6, 0.05 * self.wall_us * 1e3)
        name = trace.name_id[rows]
        is_op = trace.is_a(Category.OP)[rows]
        chosen = []
        for at in np.flatnonzero(is_op & (own > least_ns)).tolist():
            same = np.flatnonzero(is_op & (name == name[at]))
            later = same[same > at]
            if later[:1].size:
                is_first = own[later].max() < 0.1 * own[at] or (
                    len(later) > 2 and np.median(own[later]) < 0.01 * own[at]
                )
            else:
                is_first = same[0] == at and trace.names[name[at]].startswith("aten::empty")
            if is_first:
                chosen.append(at)
        longest = sorted(chosen, key=lambda at: -own[at])
        told = tuple((trace.names[name[at]], float(own[at]) / 1e6) for at in longest[:3])
        return union(trace.start_ns[rows[chosen]], trace.end_ns[rows[chosen]]), told

    @cached_property
    def next_op(self) -> Int64:
        """For each op in ``nesting.rows``: position of the next op on its level; -1 where none."""
        inside = self.nesting
        ops = np.flatnonzero(self.trace.category[inside.rows] == Category.OP)
        thread = self.trace.thread[inside.rows[ops]]
        # positions are in order of time: a stable sort keeps it within each level
        order = np.lexsort((inside.parent_op[ops], thread, inside.step[ops]))
        here, after = ops[order[:-1]], ops[order[1:]]
        same = (
            (inside.parent_op[here] == inside.parent_op[after])
            & (inside.step[here] == inside.step[after])
            & (self.trace.thread[inside.rows[here]] == self.trace.thread[inside.rows[after]])
        )
        result = np.full(len(inside.rows), -1, dtype=np.int64)
        result[here[same]] = after[same]
        return result

    @cached_property
    def launched(self) -> Int64:
        """For each position in ``nesting.rows``: row of the device activity it launched, or -1."""
        return join_device(self.trace, self.nesting.rows)

    def launched_by(self, positions: Bool) -> Int64:
        """Rows of the device activity that these ops, or ops inside of them, launched."""
        trace, rows = self.trace, self.nesting.rows
        found = []
        for thread in np.unique(trace.thread[rows[positions]]):
            here = trace.thread[rows] == thread
            calls = rows[positions & here]
            inside = union(trace.start_ns[calls], trace.end_ns[calls])
            launched = here & (self.launched >= 0)
            launched[launched] = inside.covers(trace.start_ns[rows[launched]])
            found.append(self.launched[launched])
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def launched_within(self, position: int) -> Int64:
        """As :meth:`launched_by`, for one op; quick enough to ask for each of thousands."""
        row = self.nesting.rows[position]
        at, start = self._launches
        first = np.searchsorted(start, self.trace.start_ns[row], side="left")
        last = np.searchsorted(start, self.trace.end_ns[row], side="left")
        here = at[first:last]
        same = self.trace.thread[self.nesting.rows[here]] == self.trace.thread[row]
        launched: Int64 = self.launched[here[same]]
        return launched

    @cached_property
    def _launches(self) -> tuple[Int64, Int64]:
        at = np.flatnonzero(self.launched >= 0)
        return at, self.trace.start_ns[self.nesting.rows[at]]

    def device_share(self, rows: Int64) -> float:
        """Share of the steps in which one of these device activities runs."""
        parts = union(self.trace.start_ns[rows], self.trace.end_ns[rows])
        cells = paint(self.steps.start_ns, self.steps.end_ns, [parts])
        return float(cells[:, 0, 0].sum()) / 1e3 / self.wall_us

    @cached_property
    def kernels(self) -> Int64:
        """Rows of the kernels that begin inside a step, without communication."""
        kernels = self.trace.is_a(Category.KERNEL) & self._inside
        return np.flatnonzero(kernels & ~self.trace.named(is_communication))

    @property
    def busy_share(self) -> float:
        """Share of the steps in which the device works; 0 without one."""
        return 1.0 - self.device_shares["idle"] if self.on_device else 0.0

    @cached_property
    def gpu(self) -> Mapping[str, Any]:
        """What the trace says of its first device: name, totalGlobalMem, computeMajor …"""
        devices = self.trace.metadata.get("deviceProperties")
        first = devices[0] if isinstance(devices, list) and devices else {}
        return first if isinstance(first, dict) else {}

    @property
    def nvidia_major(self) -> int:
        """Major compute capability of an NVIDIA GPU; 0 for any other or an unknown one."""
        major, warp = self.gpu.get("computeMajor"), self.gpu.get("warpSize")
        is_amd = "amd" in str(self.gpu.get("name", "")).lower() or warp == 64
        return major if isinstance(major, int) and not is_amd else 0

    def is_named(self, *names: str) -> Bool:
        """Which positions in ``nesting.rows`` have one of these names."""
        ids = [i for i, name in enumerate(self.trace.names) if name in names]
        return np.isin(self.trace.name_id[self.nesting.rows], ids)

    def labels(self, prefix: str) -> Intervals:
        """The time that labels (or, in old traces, ops) with this prefix cover, inside steps."""
        return self.span(
            self.rows(Category.ANNOTATION, Category.OP, named=lambda n: n.startswith(prefix))
        )

    def ops_inside(self, parts: Intervals) -> dict[str, int]:
        """Op name → how many of them begin inside these intervals, all steps together."""
        ops = self.rows(Category.OP, named=lambda n: True)
        rows = np.flatnonzero(ops)
        rows = rows[parts.covers(self.trace.start_ns[rows])]
        counts = np.bincount(self.trace.name_id[rows], minlength=len(self.trace.names))
        return {self.trace.names[i]: int(counts[i]) for i in np.flatnonzero(counts)}

    def ms_per_step(self, share: float) -> float:
        """A share of the typical step, in ms."""
        return share * self._typical_us / max(len(self.typical.indices), 1) / 1e3
