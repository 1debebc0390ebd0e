"""The input of the rules: everything known about the profiled steps."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base.device import pattern
from perfkit.base.words import plural
from perfkit.trace.ask.breakdown import (
    DEVICE_CLASSES,
    Breakdown,
    device_layers,
    device_step_us,
    host_layers,
)
from perfkit.trace.ask.operators import Nesting, Operator, nesting, operators
from perfkit.trace.ask.set_up import SetUp, compiling, set_up
from perfkit.trace.ask.typical import Typical, typical
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Bool, Category, Int64, Trace
from perfkit.trace.read.events import (
    backward_rows,
    driver_calls,
    graph_captures,
    host_rows,
    is_communication,
    is_compiling,
    join_device,
    launch_rows,
    shows_training,
)
from perfkit.trace.read.intervals import Intervals, joined, overlap, paint, span, union, without
from perfkit.trace.read.steps import Steps
from perfkit.trace.record.facts import Facts
from perfkit.trace.record.lines import NO_LINES, LineSamples, is_sleep, is_wait

if TYPE_CHECKING:  # a device's, which a step without one never asks
    from perfkit.trace.ask.idle import Sitting
    from perfkit.trace.ask.syncs import Sync

_AMD_CALL = re.compile(r"^hip[A-Z]")
_COMPILED = "Torch-Compiled Region: "
# Calls that give a device something to do.
_GIVES_WORK = re.compile(r"Launch|Memcpy|Memset")
# Recording an operator or a call takes at most so long: 2.1 to 4.4 µs, on an H200.
_EVENT_US = 5.0


@dataclass(frozen=True, eq=False)
class Case:
    """What the rules examine.

    Shares of a class (``shares``, ``idle``, ``lost_to``, ``device_shares``) are shares of typical
    steps (see :class:`Typical`). Shares of selected events are shares of the time of
    all profiled steps, because what happens in only a few steps still costs time.

    One time base: a step takes what steps of the same run take without the profiler, or what the
    device works on it, whichever is longer. The device's own times do not change with recording, so
    what is left of the step it idles, in the recording's proportions.

    Attributes:
        lines: samples of source lines; none for a trace from a file.
        facts: what the trace does not contain; empty for a trace from a file.
        is_file: whether it is a trace from a file, about which nothing else is known.
        plain_ms: what a step takes without the profiler; None where that is not known.
        whole: host class → share, of all steps of a whole run, recorded or not, and of the
            ``rest``, which only the recording can divide; None where only the recorded ones are
            known.
        evaluated_ms: what of each recorded step was evaluation; empty where that is not known.
    """

    trace: Trace
    steps: Steps
    breakdown: Breakdown
    lines: LineSamples = NO_LINES
    facts: Facts = field(default_factory=Facts)
    is_file: bool = False
    plain_ms: float | None = None
    whole: Mapping[str, float] | None = None
    worker_lines: LineSamples = NO_LINES
    evaluated_ms: Sequence[float] = ()

    @cached_property
    def nesting(self) -> Nesting:
        return nesting(self.trace, self.steps)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        return operators(self.trace, self.steps)

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """Host-device syncs, sorted by cost."""
        if not self.trace.is_a(Category.RUNTIME).any():
            return ()
        from perfkit.trace.ask.syncs import syncs

        return syncs(self.trace, self.steps)

    @cached_property
    def wall_us(self) -> float:
        """Wall time of all profiled steps together, in µs."""
        return max(sum(s.wall_ns for s in self.breakdown.steps) / 1e3, 1e-3)

    @property
    def n_steps(self) -> int:
        return max(len(self.steps), 1)

    @property
    def on_device(self) -> bool:
        """Whether a device was used in these steps."""
        return self.breakdown.has_device

    @cached_property
    def joins_launches(self) -> bool:
        """Whether the trace says by which calls most of the device's activities were launched."""
        rows = np.flatnonzero(self.trace.is_a(*DEVICE_CATEGORIES) & self._inside)
        n_known = int((launch_rows(self.trace, rows) >= 0).sum())
        return len(rows) > 0 and n_known >= len(rows) / 2

    @cached_property
    def has_operators(self) -> bool:
        """Whether the host's operators, labels or functions were recorded, not its calls alone."""
        recorded = (Category.OP, Category.ANNOTATION, Category.PYTHON)
        return bool(self.trace.is_a(*recorded).any())

    @cached_property
    def trains(self) -> bool:
        """Whether training was recorded; if not, advice must fit inference."""
        return bool(self.facts.optimizers) or shows_training(self.trace)

    @cached_property
    def knows_of_python(self) -> bool:
        """Whether Python ran; a file without any function of it may be of a program in C++."""
        return not self.is_file or bool(self.trace.is_a(Category.PYTHON).any())

    @cached_property
    def unseen_device(self) -> str:
        """How the trace shows that a device was in use whose work is not in it; else empty."""
        if self.on_device or not self.is_file:
            return ""
        if self.trace.unread:
            said = [f"{plural(n, 'event')} of {kind}" for kind, n in self.trace.unread.items()]
            return f"perfkit cannot read {' and '.join(said)}"
        launches = self.trace.is_a(Category.RUNTIME) & self.trace.named(_GIVES_WORK.search)
        if n := int(launches.sum()):
            return f"{plural(n, 'call')} gave it work, and none was recorded"
        needs_one = pattern("needed_by").search
        rows = self.rows(Category.OP, Category.ANNOTATION) & self.trace.named(needs_one)
        names = Counter(self.trace.name_id[rows].tolist()).most_common(1)
        return "".join(
            f"operators ran that need one, such as {self.trace.names[one]}" for one, _ in names
        )

    @cached_property
    def typical(self) -> Typical:
        """The steps whose shares are shown."""
        return typical(self.breakdown)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Host class → share."""
        recorded = self.typical.breakdown.shares()
        if self.whole is None or self.on_device or recorded.get("communication"):
            return recorded  # phases do not tell waits for other ranks
        known = {name: share for name, share in self.whole.items() if name != "rest"}
        left = {name: recorded[name] for name in recorded if name not in known}
        scale = self.whole["rest"] / (sum(left.values()) or 1.0)
        return {name: known.get(name, recorded[name] * scale) for name in recorded}

    @cached_property
    def device_shares(self) -> Mapping[str, float]:
        """Device class → share; empty without a device."""
        shares = {c: us / self.step_us for c, us in self._worked_us.items()}
        return {**shares, "idle": max(1.0 - sum(shares.values()), 0.0)} if shares else {}

    @cached_property
    def _worked_us(self) -> Mapping[str, float]:
        """Device class → µs that the device works on a step; empty without a device."""
        typical = self.typical.breakdown
        if not self.on_device:
            return {}
        n, classes = max(len(typical.steps), 1), DEVICE_CLASSES[:-1]
        works_us = device_step_us(self.trace, self.steps)
        if works_us is None:
            return {c: sum(s.device_ns[c] for s in typical.steps) / 1e3 / n for c in classes}
        # the host ran ahead: the device works on these steps after their end
        layers = device_layers(self.trace)[0]
        till = joined(layers).end[-1:]
        seen = paint(self.steps.start_ns[:1], till, (), layers)[0, 0, :-1].tolist()
        return {c: works_us * ns / sum(seen) for c, ns in zip(classes, seen, strict=True)}

    @cached_property
    def step_us(self) -> float:
        """What a step takes, without the profiler if known: at least what the device works."""
        recorded_us = self._typical_us / max(len(self.typical.indices), 1)
        plain_us = recorded_us if self.plain_ms is None else 1e3 * self.plain_ms
        return max(plain_us, self.works_us)

    @property
    def works_us(self) -> float:
        """What the device works on a step; 0 without one."""
        return sum(self._worked_us.values())

    @cached_property
    def recording(self) -> float:
        """How many times as long as a step a recorded one is; at least 1."""
        return max(self._typical_us / max(len(self.typical.indices), 1) / self.step_us, 1.0)

    @cached_property
    def _more_busy(self) -> float:
        """How many times as busy as in the recorded steps the device is."""
        recorded = self.typical.breakdown.device_shares()
        busy = 1.0 - recorded.get("idle", 1.0)
        return (1.0 - self.device_shares["idle"]) / busy if busy else 0.0

    @cached_property
    def idle(self) -> Mapping[str, float]:
        """Cause of idle device time → share; zeros without a device."""
        if not self.on_device:
            return Counter[str]()
        from perfkit.trace.ask.idle import IDLE_CAUSES, idle_causes

        causes = idle_causes(self.trace, self.steps)
        chosen = [causes[i] for i in self.typical.indices] if causes else []
        seen = {c: sum(step[c] for step in chosen) for c in IDLE_CAUSES}
        total = sum(seen.values())
        idle = self.device_shares.get("idle", 0.0)
        return {c: idle * ns / total if total else 0.0 for c, ns in seen.items()}

    def sitting(self, cause: str) -> Sitting | None:
        """In which call the host sat for most of what typical steps idle for this cause."""
        from perfkit.trace.ask.idle import sitting

        return sitting(self.trace, self.steps, cause, self.typical.indices)

    @cached_property
    def driver(self) -> tuple[str, float]:
        """Of the driver's long calls other than launches, copies and waits: which of them take
        longest, and the share of a typical step that they take outside of operators.
        """
        rows = driver_calls(self.trace, self.steps)
        rows = rows[self._inside[rows]]
        if not len(rows):
            return "", 0.0
        spent = np.bincount(self.trace.name_id[rows], weights=self.trace.dur_us[rows])
        parts = overlap(span(self.trace, rows), self.outside_of_torch)
        share = self._covered_us(parts, self.typical.indices) / self._typical_us
        return self.trace.names[int(spent.argmax())], share

    @cached_property
    def _typical_us(self) -> float:
        return max(sum(s.wall_ns for s in self.typical.breakdown.steps) / 1e3, 1e-3)

    @property
    def evaluated(self) -> float:
        """The share of typical steps that is evaluation; 0 where that is not known."""
        chosen = self.typical.indices if self.evaluated_ms else ()
        return 1e3 * sum(self.evaluated_ms[i] for i in chosen) / self._typical_us

    def lost_to(self, host_class: str) -> float:
        """The most of a step that could go with a host class.

        Recording makes nothing shorter, so on the host that is at most its recorded time. With a
        device, the step still takes as long as the device works.
        """
        seen = self.shares[host_class] * (1.0 if self.whole is not None else self.recording)
        return min(seen, self._hosts_idle)

    @property
    def _hosts_idle(self) -> float:
        """The share of a step that a faster host could save: the device idles, nothing queued."""
        waits = self.idle["queued"] + self.idle["communication"]
        return self.device_shares["idle"] - waits if self.on_device else 1.0

    def lost_to_loop(self, parts: Intervals) -> float:
        """The same of a loop of small operators, with their kernels, which become fewer."""
        share = self.lost_in(parts)
        if share and self.is_file and self.on_device:  # recording may have added all to the rest
            events = self.trace.is_a(Category.OP, Category.RUNTIME) & self._inside
            n = int((~parts.covers(self.trace.start_ns[events])).sum())
            rest = max(1.0 - n * _EVENT_US / self.wall_us, share)
            share = min(share / rest, self._hosts_idle)
        return min(share + self.device_share(self.launched_by(self.within(parts))), 1.0)

    def rows(self, *categories: Category) -> Bool:
        """Rows of these categories on the steps' host threads that begin inside a step."""
        return self.trace.is_a(*categories) & self._here

    @cached_property
    def _here(self) -> Bool:
        return self._inside & host_rows(self.trace, self.steps)

    @cached_property
    def _inside(self) -> Bool:
        return self.steps.containing(self.trace.start_ns) >= 0

    def lost_in(self, parts: Intervals) -> float:
        """The most of a step that could go with these intervals; see :meth:`lost_to`."""
        seen = self.share_of(parts) * self.recording
        return min(seen, self._hosts_idle)

    def idle_in(self, parts: Intervals) -> float:
        """The share of the steps that these cost: with a device only while it idled."""
        if not self.on_device or not len(parts):
            return self.share_of(parts)
        device = device_layers(self.trace)[0]
        cells = paint(self.steps.start_ns, self.steps.end_ns, [parts], device)
        recorded = self.typical.breakdown.device_shares()["idle"]
        idle = self.device_shares["idle"] / recorded if recorded else 0.0
        return float(cells[:, 0, -1].sum()) / 1e3 / self.wall_us * idle

    def share_of(self, parts: Intervals) -> float:
        """The share of the steps covered by these intervals on the host."""
        return self._covered_us(parts) / self.wall_us

    def _covered_us(self, parts: Intervals, steps: Sequence[int] | slice = slice(None)) -> float:
        if not len(parts):
            return 0.0
        cells = paint(self.steps.start_ns, self.steps.end_ns, [parts])
        return float(cells[steps, 0, 0].sum()) / 1e3

    @cached_property
    def outside_of_torch(self) -> Intervals:
        """The time inside steps that is in no torch operator and no DataLoader."""
        layers = host_layers(self.trace, self.steps).values()
        return without(union(self.steps.start_ns, self.steps.end_ns), joined(layers))

    @cached_property
    def waiting(self) -> tuple[float, float]:
        """Shares of that time of waits for others, and of sleeps; 0 for too few line samples."""
        samples = self.lines_in(self.outside_of_torch)
        return samples.share_of(is_wait), samples.share_of(is_sleep)

    @cached_property
    def in_forward(self) -> Intervals:
        """The time inside the steps of class *forward*."""
        layers = dict(host_layers(self.trace, self.steps))
        return without(layers.pop("forward"), joined(layers.values()))

    def lines_in(self, parts: Intervals) -> LineSamples:
        """The line samples taken inside these intervals."""
        taken = self.lines.taken
        inside = parts.covers(np.array([at for at, _ in taken], dtype=np.int64))
        return self.lines.chosen(inside.tolist())

    @cached_property
    def compiling(self) -> Intervals:
        """The time inside the steps in which ``torch.compile`` compiles."""
        return compiling(self.trace, self.steps)

    @cached_property
    def compiles(self) -> bool:
        """Whether ``torch.compile`` was used, as far as is known."""
        names = self.trace.name_table(lambda n: n.startswith(_COMPILED) or is_compiling(n))
        return self.facts.compiled is not None or bool(names.any())

    @cached_property
    def capturing(self) -> Intervals:
        """The time inside the steps in which a CUDA graph is captured."""
        inside = union(self.steps.start_ns, self.steps.end_ns)
        return overlap(graph_captures(self.trace), inside)

    @property
    def set_up(self) -> SetUp:
        """What of the steps is compiling, first calls and searches for an algorithm."""
        return set_up(self.trace)

    @cached_property
    def launched(self) -> Int64:
        """For each position in ``nesting.rows``: row of the device activity launched, or -1."""
        return join_device(self.trace, self.nesting.rows)

    def within(self, parts: Intervals) -> Bool:
        """Which positions in ``nesting.rows`` are operators that begin inside these intervals."""
        rows = self.nesting.rows
        return self.trace.is_a(Category.OP)[rows] & parts.covers(self.trace.start_ns[rows])

    def launched_by(self, positions: Bool) -> Int64:
        """Rows of the device activities launched by these ops or ops inside them."""
        trace, rows = self.trace, self.nesting.rows
        found = []
        for thread in np.unique(trace.thread[rows[positions]]):
            here = trace.thread[rows] == thread
            calls = rows[positions & here]
            inside = span(trace, calls)
            launched = here & (self.launched >= 0)
            launched[launched] = inside.covers(trace.start_ns[rows[launched]])
            found.append(self.launched[launched])
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def share_at(self, positions: Bool) -> float:
        """The share of the steps of these positions in ``nesting.rows``."""
        if self.on_device:
            return self.device_share(self.launched_by(positions))
        rows, begins = self.nesting.rows[positions], np.sort(self.trace.start_ns[self.nesting.rows])
        ends = self.trace.end_ns[rows]  # what was given is freed after it
        after = begins[np.minimum(np.searchsorted(begins, ends), len(begins) - 1)]
        return self.share_of(union(self.trace.start_ns[rows], np.maximum(after, ends)))

    def line_at(self, positions: Bool) -> str | None:
        """The line with most samples while those that are not of a backward pass run."""
        here = span(self.trace, self.nesting.rows[positions])
        lines = self.lines_in(without(here, span(self.trace, backward_rows(self.trace)))).by_line()
        return lines[0].shown if lines else None

    def dims(self, position: int) -> list[list[int]]:
        """The sizes of what an op was given, a list an argument: empty for what is no tensor."""
        index = int(self.trace.dims_id[self.nesting.rows[position]])
        dims = json.loads(self.trace.input_dims[index]) if index >= 0 else []
        shapes = dims if isinstance(dims, list) else []
        return [
            one if isinstance(one, list) and all(isinstance(n, int) for n in one) else []
            for one in shapes
        ]

    def concrete(self, position: int) -> list[Any]:
        """What an op was given for its arguments that are no tensors; empty where not recorded."""
        index = int(self.trace.concrete_id[self.nesting.rows[position]])
        given = json.loads(self.trace.concrete_inputs[index]) if index >= 0 else []
        return given if isinstance(given, list) else []

    def device_share(self, rows: Int64) -> float:
        """Share of the steps in which any of these device activities runs."""
        return self.share_of(span(self.trace, rows)) * self._more_busy

    def activities(self, *categories: Category, named: Callable[[str], object]) -> Int64:
        """Rows of a device that begin inside a step and have such a name."""
        return np.flatnonzero(self.trace.is_a(*categories) & self._inside & self.trace.named(named))

    @cached_property
    def kernels(self) -> Int64:
        """Rows of kernels, without communication, that begin inside a step."""
        return self.activities(Category.KERNEL, named=lambda name: not is_communication(name))

    @property
    def busy_share(self) -> float:
        """Share of the steps in which the device is busy; 0 without one."""
        return 1.0 - self.device_shares["idle"] if self.on_device else 0.0

    @property
    def is_amd(self) -> bool:
        """Whether it is a GPU of AMD's, by its name, its wavefronts or its runtime's calls."""
        gpu = self.trace.gpu
        named = "amd" in str(gpu.get("name", "")).lower() or gpu.get("warpSize") == 64
        return named or bool(self.trace.name_table(_AMD_CALL.match).any())

    @property
    def nvidia_major(self) -> int:
        """Major compute capability of an NVIDIA GPU; 0 for any other or an unknown one."""
        major = self.trace.gpu.get("computeMajor")
        return major if isinstance(major, int) and not self.is_amd else 0

    def is_named(self, *names: str) -> Bool:
        """Which positions in ``nesting.rows`` have one of these names."""
        ids = [i for i, name in enumerate(self.trace.names) if name in names]
        return np.isin(self.trace.name_id[self.nesting.rows], ids)

    def labels(self, prefix: str) -> Intervals:
        """The time inside steps covered by labels (in old traces, ops) with this prefix."""
        rows = self.rows(Category.ANNOTATION, Category.OP)
        return span(self.trace, rows & self.trace.begins(prefix))

    def ops_inside(self, parts: Intervals) -> Counter[str]:
        """Op name → how many begin inside these intervals, all steps together."""
        rows = np.flatnonzero(self.rows(Category.OP))
        rows = rows[parts.covers(self.trace.start_ns[rows])]
        counts = np.bincount(self.trace.name_id[rows], minlength=len(self.trace.names))
        return Counter({self.trace.names[i]: int(counts[i]) for i in np.flatnonzero(counts)})

    def ms_per_step(self, share: float) -> float:
        """A share of a step, in ms."""
        return share * self.step_us / 1e3
