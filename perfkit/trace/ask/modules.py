"""Operators by the module, and by the source line, that called them.

Both need what only some traces hold: modules the ``nn.Module: …`` frames of ``with_stack=True`` (or
``with_modules=True``), lines the Python frames or the ``Call stack`` of older traces. A backward op
belongs to the module of the forward op with its sequence number. The line of a Python frame is
that of the function's ``def``, not of the call: the trace does not know better.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.ask.operators import launched, nesting, self_ns
from perfkit.trace.read.columns import Bool, Category, Int64, Trace
from perfkit.trace.read.events import enclosing, sum_by, together
from perfkit.trace.read.steps import Steps, find_steps

_MODULE = "nn.Module: "
_FRAME = re.compile(r"^(?P<file>.*?)\((?P<line>\d+)\)(?:: (?P<function>.*))?$")
_NOT_USERS = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python\d|^<(?!ipython|stdin)|^torch[/\\]|"
    r"[/\\]torch[/\\](?:nn|autograd|optim|utils|profiler|_\w+)[/\\]|^(?:threading|contextlib)\.py|"
    r"^runpy\.py|importlib"
)


@dataclass(frozen=True)
class ModuleTime:
    """All calls of one module.

    Attributes:
        name: e.g. ``Linear_3``; empty for ops outside of any module.
        count: forward calls, all steps together.
        host_us: self time on the host of the ops that it called itself (not through a submodule),
            forward and backward, in µs, all steps together.
        backward_us: of this, the backward part.
        device_us: time of the kernels, copies and memsets that these ops launched, in µs.
    """

    name: str
    count: int
    host_us: float
    backward_us: float
    device_us: float


@dataclass(frozen=True)
class Modules(Shown):
    """Time by module; empty where no modules were recorded.

    Attributes:
        modules: the costliest first (on the device where there is one).
    """

    modules: tuple[ModuleTime, ...]
    n_steps: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceLine:
    """All ops called from one line.

    Attributes:
        file: as recorded.
        line: of the call in older traces (``Call stack``), of the ``def`` in newer ones.
        function: its name.
        count: ops, all steps together.
        host_us: self time on the host of these ops, in µs, all steps together.
        device_us: time of the device activities that they launched, in µs.
        n_launches: how many of these.
    """

    file: str
    line: int
    function: str
    count: int
    host_us: float
    device_us: float
    n_launches: int


@dataclass(frozen=True)
class SourceLines(Shown):
    """Time by source line; empty where no stacks were recorded.

    Attributes:
        lines: the costliest first (on the device where there is one).
        of_calls: whether lines are those of the call rather than of the function's ``def``.
    """

    lines: tuple[SourceLine, ...]
    of_calls: bool
    n_steps: int
    warnings: tuple[str, ...] = ()


@question("modules", "Which module takes the time?")
def modules(trace: Trace, steps: Steps | None = None) -> Modules:
    """Time by module, where modules were recorded."""
    steps = find_steps(trace) if steps is None else steps
    frames = np.flatnonzero(
        trace.is_a(Category.PYTHON, Category.ANNOTATION) & trace.begins(_MODULE)
    )
    if not len(frames):
        doubt = "no modules were recorded (with_stack=True)"
        return Modules((), len(steps), together(steps.warnings, [doubt]))
    rows, own_ns, device_ns, _ = _costs(trace, steps)
    frame = enclosing(trace, frames, rows)
    is_backward = np.zeros(len(rows), dtype=np.bool_)
    sequence = trace.sequence[rows]
    known = np.flatnonzero((frame >= 0) & (sequence >= 0))
    if len(known):
        # The forward op comes first; of ops with one sequence number the last is the node's own.
        keys, last = np.unique(sequence[known][::-1], return_index=True)
        owners = frame[known][::-1][last]
        lost = (frame < 0) & (sequence >= 0)
        at = np.minimum(np.searchsorted(keys, sequence), len(keys) - 1)
        joined = lost & (keys[at] == sequence)
        frame[joined], is_backward[joined] = owners[at[joined]], True
        frame, is_backward = _inherit(trace, rows, frame, is_backward)
    name = np.where(frame >= 0, trace.name_id[np.maximum(frame, 0)], len(trace.names))
    n = len(trace.names) + 1
    calls = np.bincount(
        trace.name_id[frames[steps.containing(trace.start_ns[frames]) >= 0]], minlength=n
    )
    host, device = sum_by(name, own_ns, n), sum_by(name, device_ns, n)
    back = sum_by(name[is_backward], own_ns[is_backward], n)
    found = [
        ModuleTime(
            name=trace.names[i].removeprefix(_MODULE) if i < n - 1 else "",
            count=int(calls[i]),
            host_us=int(host[i]) / 1e3,
            backward_us=int(back[i]) / 1e3,
            device_us=int(device[i]) / 1e3,
        )
        for i in np.flatnonzero((host > 0) | (calls > 0))
    ]
    return Modules(
        tuple(sorted(found, key=lambda m: (-m.device_us, -m.host_us, m.name))),
        len(steps),
        together(steps.warnings),
    )


@question("lines", "Which source line takes the time?")
def source_lines(trace: Trace, steps: Steps | None = None) -> SourceLines:
    """Time by the innermost source line that is the user's own, where stacks were recorded."""
    steps = find_steps(trace) if steps is None else steps
    of_calls = bool((trace.stack_id >= 0).any())
    places: dict[tuple[str, int, str], int] = defaultdict(lambda: len(places))
    if of_calls:
        rows, own_ns, device_ns, launches = _costs(trace, steps)
        of_stack = np.array([_innermost(s, places) for s in (*trace.stacks, "")], dtype=np.int64)
        place = of_stack[trace.stack_id[rows]]
    else:
        of_name = np.array([_own_frame(n, places) for n in trace.names], dtype=np.int64)
        frames = np.flatnonzero(trace.is_a(Category.PYTHON))
        frames = frames[of_name[trace.name_id[frames]] >= 0] if len(frames) else frames
        if not len(frames):
            doubt = "no Python stacks were recorded (with_stack=True)"
            return SourceLines((), False, len(steps), together(steps.warnings, [doubt]))
        rows, own_ns, device_ns, launches = _costs(trace, steps)
        frame = enclosing(trace, frames, rows)
        place = np.where(frame >= 0, of_name[trace.name_id[np.maximum(frame, 0)]], -1)
    there = place >= 0
    n = len(places)
    host, device, n_launches = (
        sum_by(place[there], of[there], n) for of in (own_ns, device_ns, launches)
    )
    count = np.bincount(place[there], minlength=n)
    found = [
        SourceLine(
            *where, int(count[i]), int(host[i]) / 1e3, int(device[i]) / 1e3, int(n_launches[i])
        )
        for where, i in places.items()
        if count[i]
    ]
    return SourceLines(
        tuple(sorted(found, key=lambda s: (-s.device_us, -s.host_us, s.file, s.line))),
        of_calls,
        len(steps),
        together(steps.warnings),
    )


def _costs(trace: Trace, steps: Steps) -> tuple[Int64, Int64, Int64, Int64]:
    """Rows of the ops inside the steps, their self time and device time in ns, and launches."""
    inside = nesting(trace, steps)
    is_op = trace.category[inside.rows] == Category.OP
    active, at = launched(trace, steps)
    owner, n = inside.parent_op[at], len(inside.rows)
    active, owner = active[owner >= 0], owner[owner >= 0]
    device_ns = sum_by(owner, (trace.end_ns - trace.start_ns)[active], n)
    n_launches = np.bincount(owner, minlength=n)
    return inside.rows[is_op], self_ns(trace, steps)[is_op], device_ns[is_op], n_launches[is_op]


def _inherit(trace: Trace, rows: Int64, frame: Int64, is_backward: Bool) -> tuple[Int64, Bool]:
    """What a backward node calls belongs to the node's module."""
    nodes = rows[is_backward]
    around = enclosing(trace, nodes, rows)
    place = np.full(len(trace), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    lost = (frame < 0) & (around >= 0)
    frame, is_backward = frame.copy(), is_backward.copy()
    frame[lost] = frame[place[around[lost]]]
    is_backward[lost] = True
    return frame, is_backward


def _innermost(stack: str, places: dict[tuple[str, int, str], int]) -> int:
    """Number of the innermost frame of a recorded stack that is the user's; -1 for none."""
    for frame in stack.split(";"):
        number = _own_frame(frame.strip(), places)
        if number >= 0:
            return number
    return -1


def _own_frame(text: str, places: dict[tuple[str, int, str], int]) -> int:
    found = _FRAME.match(text)
    if not found or _NOT_USERS.search(found["file"]):
        return -1
    return places[found["file"], int(found["line"][:9]), found["function"] or ""]
