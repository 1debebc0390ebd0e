"""Host-device syncs: runtime calls in which the host waited, by the op that made them.

An op alone proves nothing (``aten::item`` on a CPU tensor waits for nothing): only a runtime
call that waits, or a copy that blocks, is a sync. A copy that is only asked for (from or to pinned
memory, ``non_blocking=True``) is none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import rows_around, runtime_calls
from perfkit.trace.read.steps import Steps

# Kineto writes a frame as ``path(line): function``.
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
# Frames of Python, installed packages and perfkit, on any machine.
_NOT_THE_USERS = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python\d[\d.]*|torch|perfkit)[/\\]|^<"
)


@dataclass(frozen=True)
class Sync:
    """All syncs of one kind inside the steps.

    Attributes:
        call: the runtime call, e.g. ``cudaStreamSynchronize``.
        op: the innermost op that made it; empty where none encloses it.
        ops: all enclosing ops and labels, outermost first.
        copy: what the joined copy was, e.g. ``Memcpy DtoH (Device -> Pageable)``; empty for a
            plain wait.
        is_transfer: a blocking host-to-device transfer rather than a wait for a result.
        count: calls, all steps together.
        cost_us: host time in them, in µs, all steps together.
        stack: recorded Python stack of the op, innermost line first; empty without stacks.
        at_def: whether the lines in ``stack`` are those of the functions' ``def`` (what Kineto
            records of Python functions since 2022) rather than of the calls.
    """

    call: str
    op: str
    ops: tuple[str, ...]
    copy: str
    is_transfer: bool
    count: int
    cost_us: float
    n_steps: int
    stack: str
    at_def: bool = False

    @property
    def per_step(self) -> float:
        """Calls per step."""
        return self.count / max(self.n_steps, 1)

    @property
    def place(self) -> tuple[str, int, str] | None:
        """File, line and function of the innermost user frame; None if there is none."""
        for frame in self.stack.split(";"):
            found = _FRAME.match(frame.strip())
            if found and not _NOT_THE_USERS.search(found["file"]):
                return found["file"], int(found["line"]), found["function"]
        return None


@dataclass(frozen=True)
class Syncs(Shown):
    """The host-device syncs of the steps, the costliest first.

    Attributes:
        syncs: one entry per kind.
    """

    syncs: tuple[Sync, ...]
    n_steps: int
    warnings: tuple[str, ...] = ()

    @property
    def cost_us(self) -> float:
        """Host time in all of them, in µs, all steps together."""
        return sum(s.cost_us for s in self.syncs)


def times_waited(found: Iterable[Sync]) -> int:
    """How often the host waited: a copy and the wait for it are two calls but one wait."""
    n = 0
    of_an_op: dict[tuple[tuple[str, ...], str], list[int]] = defaultdict(lambda: [0, 0])
    for one in found:
        if one.op:
            of_an_op[one.ops, one.stack][bool(one.copy)] += one.count
        else:
            n += one.count
    return n + sum(map(max, of_an_op.values()))


@question("syncs", "Where did the host wait for the device?")
def all_syncs(trace: Trace, steps: Steps) -> Syncs:
    """The syncs inside the steps, the costliest first; see :func:`syncs`."""
    return Syncs(syncs(trace, steps), len(steps), steps.warnings)


def syncs(trace: Trace, steps: Steps) -> tuple[Sync, ...]:
    """The syncs inside the steps, the costliest first."""
    calls = runtime_calls(trace, steps)
    wanted = calls.blocks & (steps.containing(trace.start_ns[calls.rows]) >= 0)
    groups: dict[tuple[str, tuple[str, ...], str, bool, str, bool], list[int]] = defaultdict(
        lambda: [0, 0]
    )
    is_python = trace.category == Category.PYTHON
    around = trace.is_a(Category.OP, Category.ANNOTATION, Category.PYTHON)
    around = around & ~trace.begins("ProfilerStep", "perfkit ")
    enclosing = rows_around(trace, calls.rows[wanted], around)
    for row, device_row, is_sync in zip(
        calls.rows[wanted], calls.device_row[wanted], calls.is_sync[wanted], strict=True
    ):
        ops = [i for i in enclosing[int(row)] if not is_python[i]]
        functions = [i for i in enclosing[int(row)] if is_python[i]]
        names = tuple(trace.names[trace.name_id[i]] for i in ops)
        stack = next(
            (trace.stacks[trace.stack_id[i]] for i in reversed(ops) if trace.stack_id[i] >= 0), ""
        )
        at_def = not stack and bool(functions)
        if at_def:
            stack = ";".join(trace.names[trace.name_id[i]] for i in reversed(functions))
        copy = trace.names[trace.name_id[device_row]] if device_row >= 0 else ""
        group = groups[trace.names[trace.name_id[row]], names, copy, not is_sync, stack, at_def]
        group[0] += 1
        group[1] += int(trace.end_ns[row] - trace.start_ns[row])
    found = [
        Sync(
            call=call,
            op=next((n for n in reversed(names) if "::" in n), ""),
            ops=names,
            copy=copy,
            is_transfer=is_transfer,
            count=count,
            cost_us=cost_ns / 1e3,
            n_steps=len(steps),
            stack=stack,
            at_def=at_def,
        )
        for (call, names, copy, is_transfer, stack, at_def), (count, cost_ns) in groups.items()
    ]
    return tuple(sorted(found, key=lambda s: -s.cost_us))
