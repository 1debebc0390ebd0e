"""What the answers to the questions of ``perfkit.trace`` say, one question each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

from perfkit.advice.diagnose import first_clause
from perfkit.base.words import (
    fmt_bytes,
    fmt_count,
    fmt_ms,
    fmt_number,
    fmt_ratio,
    fmt_share,
    plural,
)
from perfkit.show.document import Bar, Document, Doubt, Segment, Table, document_for
from perfkit.show.plain_text import a_step, clip, each_step, per_step
from perfkit.trace.ask import Answer
from perfkit.trace.ask.communication import Communication
from perfkit.trace.ask.compiled import Compiled
from perfkit.trace.ask.copies import Copies
from perfkit.trace.ask.critical_path import CriticalPath
from perfkit.trace.ask.diff import Diff
from perfkit.trace.ask.flops import Flops
from perfkit.trace.ask.idle import Idle
from perfkit.trace.ask.kernels import SMALL_KERNEL_US, Kernels
from perfkit.trace.ask.memory_curve import DeviceMemory, MemoryCurve
from perfkit.trace.ask.modules import Modules, SourceLines
from perfkit.trace.ask.queue import LaunchQueue
from perfkit.trace.ask.ranks import Ranks
from perfkit.trace.ask.sequences import Sequences

_TOP = 10
_FEW_RANKS = 8
# Less of the matrix work in kernels of unknown precision is not worth a word.
_LEAST_UNTOLD = 0.05
_MOST_PARTS = 8
_CAUSES = {
    "setup": "set-up: compiling, first calls, searches",
    "data": "waiting for data",
    "copy": "copy to the device",
    "sync": "host waits for the device (sync)",
    "communication": "communication",
    "kernels": "short pauses between queued kernels",
    "queued": "cause unknown, while work was queued",
    "capture": "capturing a CUDA graph, which runs only in replays",
    "driver": "allocating, loading code",
    "launch": "host too slow to launch",
    "host": "other work on the host",
}


_ON_THE_PATH = {
    "data": "the wait for data",
    "host": "Python and other work on the host",
    "launch": "operators and launches on the host",
    "sync": "the host waiting for the device",
    "copy": "copies",
    "gaps": "gaps between kernels that were queued",
    "driver": "calls of the driver that launch nothing",
    "setup": "set-up: compiling, first calls, searches",
    "compute": "computing",
    "communication": "communication",
}

# Of the path's classes, those that are not a lane's: ``host: forward`` looks like forward.
_LOOKS_ON_THE_PATH = {
    "launch delay": "idle: launch",
    "kernel gap": "idle: kernels",
    "sync return": "idle: sync",
}


def _table(
    title: str, note: str, header: Sequence[str], rows: Sequence[Sequence[str]], code: str = ""
) -> Table:
    return Table(
        title=title,
        note=note,
        header=tuple(header),
        rows=tuple(tuple(row) for row in rows),
        align="<" + ">" * (len(header) - 1),
        code=(code + "." * len(header))[: len(header)],
        open=True,
    )


def _lane(title: str, parts_us: Mapping[str, float], looks: Mapping[str, str]) -> Bar:
    """A bar of the largest parts (a bar can show eight apart), the others together."""
    parts = [(name, us) for name, us in parts_us.items() if us > 0]
    if len(parts) > _MOST_PARTS:
        least = sorted(us for _, us in parts)[-(_MOST_PARTS - 1)]
        rest = sum(us for _, us in parts if us < least)
        parts = [*((name, us) for name, us in parts if us >= least), ("rest", rest)]
    return Bar(
        title,
        tuple(
            Segment(name, us, fmt_ms(us / 1e3), looks.get(name, name.rpartition(": ")[2]))
            for name, us in parts
        ),
    )


def _short(name: str, width: int = 60) -> str:
    """A kernel's name without what says nothing; they run to thousands of characters."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(noise, "")
    return clip(name, width)


def _of_the_mean_step(n_steps: int) -> str:
    return " of the mean step" if n_steps > 1 else ""


def _largest(parts: Mapping[str, float]) -> tuple[str, float]:
    return max(parts.items(), key=lambda item: item[1])


@document_for(Answer)
def _(a: Answer) -> Document:
    """An answer that says nothing of its own: its figures and lists."""
    lists = [(f.name, getattr(a, f.name)) for f in fields(a)]  # type: ignore[arg-type]
    tables = [
        _table(
            name.replace("_", " "),
            "",
            [f.name.replace("_", " ") for f in fields(value[0])],
            [[_figure(f.name, getattr(one, f.name)) for f in fields(one)] for one in value[:_TOP]],
        )
        for name, value in lists
        if isinstance(value, tuple) and value and is_dataclass(value[0])
    ]
    figures = [
        f"{name.replace('_', ' ')} {_figure(name, value)}"
        for name, value in lists
        if isinstance(value, str | int | float)
    ]
    return Document(
        type(a).__name__,
        f"{'; '.join(figures) or type(a).__name__}.",
        warnings=getattr(a, "warnings", ()),
        tables=tuple(tables),
    )


def _figure(name: str, value: object) -> str:
    """The value in the unit that its name ends in."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    for end, per_ms in (("_ns", 1e6), ("_us", 1e3), ("_ms", 1.0)):
        if name.endswith(end):
            return fmt_ms(value / per_ms)
    if name.endswith("_bytes"):
        return fmt_bytes(value)
    return fmt_share(value) if name.endswith("share") else fmt_number(value)


@document_for(Idle)
def _(a: Idle) -> Document:
    if not a.steps:
        return Document("idle time", "The device's idle time is not recorded.", warnings=a.warnings)
    shares = a.shares()
    total = sum(shares.values())
    cause, share = _largest(shares)
    said = f"The device idles {fmt_share(total)} of the time"
    if share:
        said = first_clause(f"{said}: {_CAUSES[cause]}").rstrip(".")
    mean_us = {_CAUSES[c]: us / len(a.steps) for c, us in a.total_us.items()}
    busy_us = sum(mean_us.values()) * (1 / total - 1) if total else 0.0
    looks = {words: f"idle: {cause}" for cause, words in _CAUSES.items()}
    return Document(
        "idle time",
        f"{said}.",
        doubts=tuple(map(Doubt.of, a.warnings)),
        bars=(
            _lane(
                f"Device time{_of_the_mean_step(len(a.steps))}",
                {**mean_us, "busy": busy_us},
                looks | {"busy": "compute"},
            ),
        ),
    )


@document_for(Copies)
def _(a: Copies) -> Document:
    if not a.kinds:
        return Document("copies", "Copies are not recorded.", warnings=a.warnings)
    n = max(a.n_steps, 1)
    first = a.kinds[0]
    took = f"{fmt_ms(first.busy_us / 1e3 / n)} {a_step(n)}"
    where = f", host memory {first.memory}" if first.memory else ""
    rows = [
        (
            f"{c.direction}{f', {c.memory}' if c.memory else ''}",
            fmt_count(round(c.count / n, 1)),
            fmt_bytes(None if c.n_bytes is None else c.n_bytes / n),
            fmt_ms(c.busy_us / 1e3 / n),
            "–" if c.rate_gb_per_s is None else f"{fmt_number(c.rate_gb_per_s)} GB/s",
            fmt_share(c.overlapped_share),
        )
        for c in a.kinds
    ]
    header = ("copy", "count", "bytes", "time", "rate", "while computing")
    return Document(
        "copies",
        f"Most copy time: {first.direction}; {took}{where}.",
        headline=f"Most copy time: {first.direction}.",
        warnings=a.warnings,
        tables=(_table("Copies", per_step(n), header, rows),),
    )


@document_for(Compiled)
def _(a: Compiled) -> Document:
    n = max(a.n_steps, 1)
    compiling = (
        f"; {plural(a.n_compilations, 'compilation')} in these steps "
        f"{'takes' if a.n_compilations == 1 else 'take'} {fmt_ms(a.compile_us / 1e3)}"
        if a.n_compilations
        else ""
    )
    if not a.regions:
        sentence = f"No compiled code ran in the steps{compiling}."
        return Document("compiled code", sentence, warnings=a.warnings)
    pieces = {one.name.partition("/")[0] for one in a.regions}
    calls = sum(one.count for one in a.regions)
    rows = [
        (one.name, fmt_count(round(one.count / n, 1)), fmt_ms(one.total_us / 1e3 / n))
        for one in a.regions[:_TOP]
    ]
    return Document(
        "compiled code",
        f"{plural(len(pieces), 'piece')} of compiled code, called {fmt_count(round(calls / n, 1))} "
        f"times{each_step(n)}{compiling}.",
        warnings=a.warnings,
        tables=(
            _table(
                "Compiled pieces of code",
                f"host time {per_step(n)}; 0/1: piece 0, compiled a second time",
                ("piece/attempt", "calls", "host time"),
                rows,
            ),
        ),
    )


@document_for(Kernels)
def _(a: Kernels) -> Document:
    if not a.kernels:
        return Document("kernels", "Kernels are not recorded.", warnings=a.warnings)
    n = max(a.n_steps, 1)
    told = (
        []
        if a.tensor_core_share is None
        else [f"tensor cores do {fmt_share(a.tensor_core_share)} of the matrix work"]
    )
    if a.untold_share >= _LEAST_UNTOLD:
        told.append(f"precision unknown for {fmt_share(a.untold_share)} of the matrix work")
    tensor = "; ".join(told) or "no matrix product, convolution or attention among them"
    rows = [
        (
            _short(k.name),
            k.family,
            "?" if k.tensor_cores is None else "yes" if k.tensor_cores else "",
            fmt_count(round(k.count / n, 1)),
            fmt_ms(k.total_us / 1e3 / n),
            fmt_share(k.share),
            fmt_share(k.occupancy),
        )
        for k in a.kernels[:_TOP]
    ]
    header = ("kernel", "family", "tensor", "count", "time", "share", "occupancy")
    note = f"{per_step(n)}; ?: its name does not tell" if a.untold_share else per_step(n)
    small = (
        f"{fmt_share(a.small_count_share)} of them are shorter than {SMALL_KERNEL_US:g} µs "
        f"({fmt_share(a.small_time_share)} of the time)"
    )
    return Document(
        "kernels",
        f"{plural(round(a.per_step, 1), 'kernel')} {a_step(n)}; {tensor}; {small}.",
        doubts=tuple(map(Doubt.of, a.warnings)),
        bars=(
            _lane(
                f"Kernel time{_of_the_mean_step(n)} by family",
                {f: us / n for f, us in a.family_us.items()},
                {},
            ),
        ),
        tables=(_table("Top kernels", note, header, rows, "c"),),
    )


@document_for(LaunchQueue)
def _(a: LaunchQueue) -> Document:
    if a.median_delay_us is None or a.empty_share is None:
        return Document("launch queue", "The launch queue is not recorded.", warnings=a.warnings)
    rows = [
        (
            s.name,
            fmt_count(s.n_launches),
            fmt_ms(s.median_delay_us / 1e3),
            fmt_number(s.mean_length),
            fmt_count(s.longest),
            fmt_share(s.empty_share),
        )
        for s in a.steps[:_TOP]
    ]
    header = ("step", "launches", "median delay", "mean length", "longest", "empty")
    return Document(
        "launch queue",
        f"The launch queue is empty {fmt_share(a.empty_share)} of the time; a launch waits "
        f"{fmt_ms(a.median_delay_us / 1e3)} (median).",
        warnings=a.warnings,
        tables=(_table("Launch queue by step", "", header, rows),),
    )


@document_for(Flops)
def _(a: Flops) -> Document:
    if not a.ops:
        return Document("FLOPs", "FLOPs are not recorded.", warnings=a.warnings)
    n = max(a.n_steps, 1)
    busy = a.busy_tflop_per_s
    least = "At least " if a.n_unknown else ""
    while_busy = "" if busy is None else f", {fmt_number(busy)} TFLOP/s while its operators ran"
    rows = [
        (
            o.op,
            clip(o.shapes, 40),
            fmt_count(round(o.count / n, 1)),
            f"{fmt_number(o.flops / 1e9 / n)}",
            "–" if o.tflop_per_s is None else fmt_number(o.tflop_per_s),
        )
        for o in a.ops[:_TOP]
    ]
    header = ("operator", "shapes", "count", "GFLOP", "TFLOP/s")
    return Document(
        "FLOPs",
        f"{least}{fmt_number(a.per_step / 1e9)} GFLOP {a_step(n)}: "
        f"{fmt_number(a.achieved_tflop_per_s)} TFLOP/s over the whole "
        f"{'step' if n > 1 else 'time'}{while_busy}.",
        warnings=a.warnings,
        tables=(_table("FLOPs by operator and shapes", per_step(n), header, rows, "cc"),),
    )


@document_for(CriticalPath)
def _(a: CriticalPath) -> Document:
    rows = [(_short(name), fmt_ms(us / 1e3)) for name, us in a.top.items()][:_TOP]
    waits = [(name, fmt_ms(us / 1e3)) for name, us in a.event_waits.items()][:_TOP]
    share = fmt_share(a.bounds_us[a.bound_by] / a.wall_us if a.wall_us else None)
    return Document(
        "critical path",
        f"{share} of the critical path: {_ON_THE_PATH[a.bound_by]}; taken from {a.step}.",
        figure=fmt_ms(a.wall_us / 1e3),
        doubts=tuple(map(Doubt.of, a.warnings)),
        bars=(_lane("Critical path", a.by_class_us, _LOOKS_ON_THE_PATH),) if a.wall_us else (),
        tables=(
            _table("Device activities on the path", "", ("activity", "time"), rows, "c"),
            _table(
                "Event waits on the path", "as recorded", ("wait", "stream idle for"), waits, "."
            ),
        ),
    )


@document_for(Sequences)
def _(a: Sequences) -> Document:
    if not a.sequences:
        return Document(
            "kernel sequences", "No sequence of small kernels repeats.", warnings=a.warnings
        )
    n = max(a.n_steps, 1)
    rows = [
        (
            " → ".join(_short(name, 26) for name in s.names),
            fmt_count(round(s.count / n, 1)),
            fmt_ms(s.busy_us / 1e3 / n),
            fmt_ms(s.saved_at_most_us / 1e3 / n),
        )
        for s in a.sequences[:_TOP]
    ]
    best = a.sequences[0]
    saved = f"{fmt_ms(best.saved_at_most_us / 1e3 / n)}{each_step(n)}"
    return Document(
        "kernel sequences",
        f"Fusing {len(best.names)} kernels would save at most {saved}; they follow each other "
        f"{plural(round(best.count / n, 1), 'time')}{each_step(n)}.",
        warnings=a.warnings,
        tables=(
            _table(
                "Kernel sequences",
                f"{per_step(n)}; candidates for fusion, which may share kernels",
                ("sequence", "count", "time", "saved at most"),
                rows,
                "c",
            ),
        ),
    )


@document_for(MemoryCurve)
def _(a: MemoryCurve) -> Document:
    if not a.devices:
        return Document("memory curve", "Memory is not recorded.", warnings=a.warnings)
    first = a.devices[0]
    rows = [
        (
            d.device,
            fmt_bytes(d.peak_bytes),
            fmt_bytes(d.peak_reserved_bytes),
            fmt_ms(d.peak_at_ns / 1e6),
            fmt_count(len(d.at_ns)),
        )
        for d in a.devices
    ]
    header = ("device", "peak allocated", "peak reserved", "reached after", "events")
    return Document(
        "memory curve",
        f"Peak on {first.device}: {fmt_bytes(first.peak_bytes)} allocated.",
        warnings=a.warnings,
        tables=(
            _table("Peaks", "", header, rows),
            *(t for d in a.devices for t in _peak_tables(d)),
        ),
    )


def _peak_tables(d: DeviceMemory) -> tuple[Table, ...]:
    title = f"Alive at the peak of {d.device}"
    phases = [(k, fmt_bytes(v)) for k, v in d.by_phase_bytes.items() if v]
    ops = [(k, fmt_bytes(v)) for k, v in d.by_op_bytes.items() if v][:_TOP]
    return (
        _table(title, "by when it was allocated", ("phase", "bytes"), phases),
        _table(title, "of what was allocated since", ("operator", "bytes"), ops, "c"),
    )


@document_for(Modules)
def _(a: Modules) -> Document:
    if not a.modules:
        return Document("modules", "Modules are not recorded.", warnings=a.warnings)
    n = max(a.n_steps, 1)
    rows = [
        (
            m.name or "(outside of any module)",
            fmt_count(round(m.count / n, 1)),
            fmt_ms(m.host_us / 1e3 / n),
            fmt_ms(m.backward_us / 1e3 / n),
            fmt_ms(m.device_us / 1e3 / n),
        )
        for m in a.modules[:_TOP]
    ]
    header = ("module", "calls", "host", "of it backward", "device")
    return Document(
        "modules",
        f"Costliest module: {a.modules[0].name or 'none, what is outside of them'}.",
        warnings=a.warnings,
        tables=(_table("Modules", f"own ops, {per_step(n)}", header, rows, "c"),),
    )


@document_for(SourceLines)
def _(a: SourceLines) -> Document:
    if not a.lines:
        return Document("source lines", "Source lines are not recorded.", warnings=a.warnings)
    n = max(a.n_steps, 1)
    rows = [
        (
            f"{s.file}:{s.line}{f' {s.function}' if s.function else ''}",
            fmt_count(round(s.count / n, 1)),
            fmt_ms(s.host_us / 1e3 / n),
            fmt_ms(s.device_us / 1e3 / n),
            fmt_count(round(s.n_launches / n, 1)),
        )
        for s in a.lines[:_TOP]
    ]
    which = "lines of the calls" if a.of_calls else "lines of the functions' def"
    header = ("line", "ops", "host", "device", "launches")
    return Document(
        "source lines",
        f"Costliest line: {a.lines[0].file}:{a.lines[0].line}.",
        warnings=a.warnings,
        tables=(_table("Source lines", f"{which}, {per_step(n)}", header, rows),),
    )


@document_for(Communication)
def _(a: Communication) -> Document:
    if not a.collectives:
        return Document("communication", "Collectives are not recorded.", warnings=a.warnings)
    n = max(a.n_steps, 1)
    rows = [
        (
            _short(c.name),
            c.dtype,
            fmt_bytes(c.message_bytes),
            fmt_count(round(c.count / n, 1)),
            fmt_ms(c.total_us / 1e3 / n),
            fmt_ms(c.exposed_us / 1e3 / n),
            "–" if c.bus_gb_per_s is None else f"{fmt_number(c.bus_gb_per_s)} GB/s",
        )
        for c in a.collectives[:_TOP]
    ]
    header = ("collective", "type", "bytes", "count", "time", "not hidden", "bus")
    return Document(
        "communication",
        f"Communication takes {fmt_ms(a.busy_us / 1e3 / n)} {a_step(n)}; computing hides "
        f"{fmt_share(a.overlapped_share)} of it.",
        warnings=a.warnings,
        tables=(_table("Collectives", per_step(n), header, rows),),
    )


@document_for(Ranks)
def _(a: Ranks) -> Document:
    slow = ", ".join(map(str, a.stragglers))
    sentence = (
        f"The others wait for rank {slow}."
        if len(a.stragglers) == 1
        else f"The others wait for ranks {slow}."
        if a.stragglers
        else f"{len(a.ranks)} ranks; none is a straggler."
    )
    if not a.n_collectives:
        sentence = f"{len(a.ranks)} ranks; who waits for whom is not recorded."
    headline = sentence
    if a.imbalance is not None:
        sentence += f" The longest computes {fmt_ratio(a.imbalance)} the mean."
    figure = ""
    if a.skew_ms is not None and a.transfer_ms is not None:
        figure = "" if not a.stragglers else f"{fmt_ms(a.skew_ms)} a step waited for later ranks"
        sentence += (
            f" Of the {fmt_ms(a.skew_ms + a.transfer_ms)} a step in collectives, "
            f"{fmt_ms(a.skew_ms)} is waiting for a later rank."
        )
    rows = [
        (
            str(r.rank),
            fmt_ms(r.step_ms),
            fmt_ms(r.device_ms.get("compute")),
            fmt_ms(r.communication_ms),
            fmt_ms(r.waited_ms if a.n_collectives else None),
            fmt_count(r.last_in),
        )
        for r in a.ranks
    ]
    header = ("rank", "step", "compute", "communication", "of it waiting", "came last")
    return Document(
        "ranks",
        sentence,
        headline=headline,
        figure=figure,
        doubts=tuple(map(Doubt.of, a.warnings)),
        tables=(_table("Ranks", "per step", header, rows), _waits(a)),
    )


def _waits(a: Ranks) -> Table:
    """Each rank for each; of many ranks, for whom they wait."""
    if len(a.ranks) <= _FEW_RANKS:
        pairs = [
            (f"{who} for {whom}", fmt_ms(ms)) for (who, whom), ms in a.waits_ms.items() if ms > 0
        ]
        return _table("Who waits for whom", "per step", ("rank", "time"), pairs[:_TOP])
    by_whom: dict[int, list[float]] = {}
    for (_, whom), ms in a.waits_ms.items():
        if ms > 0:
            by_whom.setdefault(whom, []).append(ms)
    others = len(a.ranks) - 1
    rows = [
        (str(whom), fmt_ms(sum(each) / others), fmt_ms(max(each)))
        for whom, each in sorted(by_whom.items(), key=lambda item: -sum(item[1]))
    ]
    note = f"per step; each of the other {others} ranks"
    return _table("For whom the others wait", note, ("rank", "mean", "longest"), rows[:_TOP])


# A part of the step that changed by less of it is not what changed.
_LEAST_CHANGE = 0.02


@document_for(Diff)
def _(a: Diff) -> Document:
    rows = [
        (
            _short(c.name),
            c.kind,
            c.status,
            fmt_ms(c.before_ms),
            fmt_ms(c.after_ms),
            f"{'+' if c.delta_ms > 0 else ''}{fmt_ms(c.delta_ms)}",
        )
        for c in a.changes
        if c.status != "same"
    ][: 2 * _TOP]
    header = ("operator or kernel", "kind", "status", "before", "after", "change")
    classes = [
        (f"{lane}: {name}", fmt_ms(x), fmt_ms(y))
        for lane, parts in (("host", a.host_ms), ("device", a.device_ms))
        for name, (x, y) in parts.items()
        if x or y
    ]
    return Document(
        "difference of two traces",
        headline=_changed(a),
        figure=f"{fmt_ms(a.before_step_ms)} → {fmt_ms(a.after_step_ms)}",
        sentence=f"A step took {fmt_ms(a.before_step_ms)} before and {fmt_ms(a.after_step_ms)} "
        f"after ({fmt_ratio(a.ratio)} as fast, one run each).",
        warnings=a.warnings,
        tables=(
            _table("Parts of the step", "mean", ("class", "before", "after"), classes),
            replace(_table("What changed", "per step", header, rows, "c"), brief=False),
        ),
    )


def _changed(a: Diff) -> str:
    """How much faster or slower, and the class of the host's time that changed most."""
    if a.ratio <= 0:
        return ""
    faster = a.ratio >= 1
    said = f"{fmt_ratio(a.ratio)} as fast" if faster else f"{fmt_ratio(1 / a.ratio)} slower"
    parts = {name: y - x for name, (x, y) in a.host_ms.items()}
    most = (min if faster else max)(parts, key=lambda name: parts[name], default="")
    if not most or abs(parts[most]) < _LEAST_CHANGE * a.before_step_ms:
        return f"{said}."
    before, after = a.host_ms[most]
    return f"{said}: {most} {fmt_ms(before)} → {fmt_ms(after)}."
