"""How memory looks: one sentence, the peak as a bar, a table, and where it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perfkit.base.device import of
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_share, plural
from perfkit.memory.account import DeviceAccount, MemoryAccount
from perfkit.memory.allocator import AllocatorState, AllocatorUse
from perfkit.memory.categories import CATEGORIES
from perfkit.memory.curve import Curve
from perfkit.memory.fit import Fit, GpuFit
from perfkit.memory.history import AllocatorHistory
from perfkit.memory.leaks import LeakReport
from perfkit.memory.live import LiveTensor, MemoryNow
from perfkit.memory.resident import Resident
from perfkit.show._curve import StackedCurve
from perfkit.show._plot import Line, Plot, Point, round_unit
from perfkit.show.document import Bar, Document, Doubt, Segment, Table, document_for
from perfkit.show.palette import LOOKS

_AS_CALLED = {name: name for name in CATEGORIES}

#: Rows of a table by line or module.
_ROWS = 12

# What an allocator's curve is made of.
_USED, _CACHED = "held by tensors", "reserved, not in use"

_HALF_BATCH = (
    "Half the batch is predicted: inputs, activations and the temporaries of forward and backward "
    "halved at every moment of the region, all else as it was (parameters, buffers, gradients and "
    "what is added to them, optimizer state and what its step makes, other, activations from "
    "before); the highest moment of that is the figure."
)


# --- the account of a region --------------------------------------------------------------


@document_for(MemoryAccount)
def _account(account: MemoryAccount) -> Document:
    if not account.counted:
        return Document(
            name="memory",
            kind="memory",
            sentence="The memory of this code was not counted; the code itself ran as usual.",
            warnings=account.warnings,
            foot=(account.provenance.sentence(),),
        )
    # the CPU beside a GPU is shown when tensors lived there
    devices = [d for d in account.devices if d.peak_bytes or d is account.devices[0]]
    quiet = account.did_nothing
    foot = [_resident_line(account.resident)]
    foot += [_allocator_line(d.allocator) for d in devices if d.allocator is not None]
    if account.half_batch_peak_bytes:
        foot.append(_HALF_BATCH)
    foot.append(_counted_line(account))
    foot.append(account.provenance.sentence())
    return Document(
        name="memory",
        kind="memory",
        sentence=_sentence(account),
        headline="" if quiet else _headline(account),
        figure=f"{fmt_bytes(devices[0].rise_bytes)} above the start" if not quiet else "",
        warnings=account.warnings,
        bars=()
        if quiet
        else tuple(
            _bar(
                f"at the peak of {_called(d)}, {fmt_bytes(d.peak_bytes)}",
                _segments(d.at_peak_bytes),
            )
            for d in devices
            if d.peak_bytes
        ),
        tables=() if quiet else tuple(t for d in devices for t in _tables(d)),
        foot=tuple(foot),
        advice=account.would_help if account.out_of_memory else (),
        pictures=()
        if quiet
        else tuple(
            StackedCurve(f"{_called(d)} over the region, held by tensors", d.curve, _AS_CALLED)
            for d in devices
            if d.curve.n_events
        ),
    )


def _headline(account: MemoryAccount) -> str:
    main = account.devices[0]
    name, nbytes = max(main.at_peak_bytes.items(), key=lambda item: item[1])
    most = f", {fmt_share(nbytes / main.peak_bytes)} {name}" if main.peak_bytes else ""
    peak = f"peak {fmt_bytes(main.peak_bytes)}{most}."
    if account.out_of_memory and account.requested_bytes:
        return (
            f"Out of memory: an allocation of {fmt_bytes(account.requested_bytes)} failed; {peak}"
        )
    if account.out_of_memory:
        return f"Out of memory: {peak}"
    if account.ended_by:
        return f"Until {account.ended_by}: {peak}"
    if not account.complete:
        return f"First {_counted(account.n_steps, 'optimizer step')}: {peak}"
    return _capital(peak)


def _sentence(account: MemoryAccount) -> str:
    main = account.devices[0]
    if account.did_nothing:
        if not main.start_bytes:
            return "No tensor was made or freed here, and none is alive."
        return (
            "No tensor was made or freed here; "
            f"{fmt_bytes(main.start_bytes)} of tensors were already there."
        )
    peak = f"Peak {fmt_bytes(main.peak_bytes)}"
    if main.allocator is not None:
        peak += (
            f" allocated on {main.allocator.name} "
            f"({fmt_bytes(main.allocator.peak_reserved_bytes)} reserved)"
        )
    if main.start_bytes:
        rise = main.rise_bytes
        peak += f", {fmt_bytes(rise)} above the start" if rise else ", no more than at the start"
    if main.peak_bytes:
        name, nbytes = max(main.at_peak_bytes.items(), key=lambda item: item[1])
        peak += f", {fmt_share(nbytes / main.peak_bytes)} {name}{_most_of(main, name)}"
    half = account.half_batch_peak_bytes
    less = f"half the batch would give {fmt_bytes(half)} (predicted); " if half else ""
    sentence = f"{peak}; {less}{_left(main)}"
    if account.out_of_memory:
        asked = account.requested_bytes
        more = f"an allocation of {fmt_bytes(asked)} failed; " if asked else ""
        return f"Out of memory: {more}{peak[0].lower()}{peak[1:]}."
    if account.ended_by:
        return f"Until {account.ended_by}: {sentence[0].lower()}{sentence[1:]}."
    if not account.complete:
        steps = _counted(account.n_steps, "optimizer step")
        return f"First {steps}: {sentence[0].lower()}{sentence[1:]}."
    return f"{sentence}."


def _most_of(device: DeviceAccount, category: str) -> str:
    """The part of the model that has most of a category, if one part does."""
    parts: dict[str, int] = {}
    for module in device.by_module:
        if not module.path.startswith("("):
            part = ".".join(module.path.split(".")[:2])
            parts[part] = parts.get(part, 0) + module.by_category[category]
    total = device.at_peak_bytes[category]
    if len(parts) < 2 or not total:
        return ""
    path, nbytes = max(parts.items(), key=lambda item: item[1])
    # less than a third of them is no answer to "where"
    return f" ({fmt_share(nbytes / total)} of them in {path})" if 3 * nbytes > total else ""


def _left(device: DeviceAccount) -> str:
    """What the region made and left, apart from what died of what was there before."""
    if device.kept_bytes and not any(device.left_behind_by_category_bytes.values()):
        return f"{fmt_bytes(device.kept_bytes)} was replaced, nothing more stayed behind"
    kept = f"{fmt_bytes(device.kept_bytes)} stayed behind" if device.kept_bytes else ""
    freed = f"{fmt_bytes(device.freed_bytes)} from before was freed" if device.freed_bytes else ""
    return " and ".join(filter(None, (kept or "nothing stayed behind", freed)))


def _called(device: DeviceAccount) -> str:
    if device.allocator is not None:
        return f"{device.device} ({device.allocator.name})"
    return "CPU tensors" if device.device == "cpu" else device.device


def _bar(title: str, segments: tuple[Segment, ...]) -> Bar:
    return Bar(title, segments, parts="category", quantity="memory")


def _segments(parts: Mapping[str, int]) -> tuple[Segment, ...]:
    return tuple(
        Segment(name, float(parts[name]), fmt_bytes(parts[name]))
        for name in CATEGORIES
        if parts[name]
    )


def _category_table(device: DeviceAccount) -> Table:
    left = device.left_behind_by_category_bytes
    rows = []
    for name in CATEGORIES:
        figures = (device.at_peak_bytes, device.at_start_bytes, device.at_end_bytes)
        at_peak, at_start, at_end = (of[name] for of in figures)
        if at_peak or at_start or at_end:
            share = at_peak / device.peak_bytes if device.peak_bytes else 0.0
            rows.append(
                (
                    name,
                    fmt_bytes(at_peak),
                    fmt_share(share),
                    fmt_bytes(at_start),
                    fmt_bytes(at_end),
                    _signed(left[name]),
                )
            )
    total = (
        "all",
        fmt_bytes(device.peak_bytes),
        fmt_share(1.0 if device.peak_bytes else 0.0),
        fmt_bytes(device.start_bytes),
        fmt_bytes(device.end_bytes),
        _signed(device.left_behind_bytes),
    )
    header = ("category", "at the peak", "share", "at the start", "at the end", "stayed behind")
    return Table(
        title=f"{_called(device)} by category",
        note=_counted(device.n_allocations, "allocation"),
        header=header,
        rows=(*rows, total),
        align="<>>>>>",
        code="......",
        open=True,
        brief=False,
    )


def _tables(device: DeviceAccount) -> list[Table]:
    return [
        _category_table(device),
        *([_function_table(device)] if device.function_lines else []),
        _line_table(device),
        _module_table(device),
    ]


def _function_table(device: DeviceAccount) -> Table:
    return Table(
        title=f"{_called(device)} by line of what is watched",
        note="with all that a line calls",
        header=("line", "code", "total then", "made", "at the peak", "stayed", "tensors"),
        rows=tuple(
            (
                str(x.line),
                x.text,
                fmt_bytes(x.highest_bytes),
                fmt_bytes(x.made_bytes),
                fmt_bytes(x.at_peak_bytes),
                fmt_bytes(x.at_end_bytes),
                fmt_count(x.n_made),
            )
            for x in device.function_lines
        ),
        align="><>>>>>",
        code=".c.....",
        open=True,
    )


def _line_table(device: DeviceAccount) -> Table:
    entries = [(x.where, x.text, x.nbytes, x.by_category) for x in device.by_line if x.nbytes]
    if not any(x.file for x in device.by_line):
        entries = []  # a model of a library: its modules say more
    return Table(
        title=f"{_called(device)} at the peak, by the line that made it",
        note="the innermost line of your code",
        header=("where", "code", "at the peak", "share", "mostly"),
        rows=tuple(
            (name, text, fmt_bytes(n), fmt_share(n / device.peak_bytes), kind)
            for name, text, n, kind in _top(entries)
        ),
        align="<<>><",
        code=".c...",
        open=True,
    )


def _module_table(device: DeviceAccount) -> Table:
    entries = [(m.path, "", m.nbytes, m.by_category) for m in device.by_module if m.nbytes]
    return Table(
        title=f"{_called(device)} at the peak, by module",
        note="without its children; gradients and optimizer state with their parameter",
        header=("module", "at the peak", "share", "mostly"),
        rows=tuple(
            (name, fmt_bytes(n), fmt_share(n / device.peak_bytes), kind)
            for name, _, n, kind in _top(entries)
        ),
        align="<>><",
        code="....",
        brief=False,
    )


def _top(
    entries: Sequence[tuple[str, str, int, Mapping[str, int]]],
) -> Iterator[tuple[str, str, int, str]]:
    """The largest, and the rest in one row: the shares still add up."""
    shown = entries if len(entries) <= _ROWS + 1 else entries[:_ROWS]
    for name, code, nbytes, parts in shown:
        yield name, code, nbytes, max(parts, key=lambda key: parts[key])
    rest = entries[len(shown) :]
    if rest:
        yield f"{len(rest)} more", "", sum(entry[2] for entry in rest), ""


def _signed(nbytes: int) -> str:
    return f"+{fmt_bytes(nbytes)}" if nbytes > 0 else fmt_bytes(nbytes)


def _counted(n: int, what: str) -> str:
    return f"{fmt_count(n)} {what}{'s' * (n != 1)}"


def _counted_line(account: MemoryAccount) -> str:
    return (
        f"Seen: {_counted(account.n_operators, 'tensor-making operator')} and "
        f"{_counted(account.n_steps, 'optimizer step')} in {fmt_ms(account.seconds * 1e3)}, "
        "counting included (it makes short steps slower: do not take times from this run)."
    )


def _resident_line(resident: Resident) -> str:
    before, after = fmt_bytes(resident.before_bytes), fmt_bytes(resident.after_bytes)
    if resident.peak_bytes is None:
        most = f"peak unavailable ({resident.why_no_peak})"
    else:
        most = f"{fmt_bytes(resident.peak_bytes)} at most"
    return f"{_capital(Resident.LABEL)}: {before} before, {most}, {after} after."


def _allocator_line(use: AllocatorUse) -> str:
    reserved = (
        f"{fmt_bytes(use.reserved_before_bytes)} before, "
        f"{fmt_bytes(use.peak_reserved_bytes)} at most, "
        f"{fmt_bytes(use.reserved_after_bytes)} after"
    )
    kind = of(use.type)
    calls = (
        f"{fmt_count(use.n_device_allocs)} {kind.alloc_call}, "
        f"{fmt_count(use.n_device_frees)} {kind.free_call}"
    )
    trouble = (
        f", {plural(use.n_retries, 'retry', 'retries')}, {fmt_count(use.n_ooms)} out of memory"
    )
    return (
        f"{use.place} reserved by the allocator: {reserved}; {calls}{trouble}. Peak and "
        "stayed behind are the allocator's own; the split by category is that of the tensors "
        "that operators made, the rest is in other. The allocator's peaks were reset when the "
        "region began; %gpumem still knows the older ones."
    )


# --- the state now ------------------------------------------------------------------------


@document_for(MemoryNow)
def _now(state: MemoryNow) -> Document:
    foot = [f"{_capital(Resident.LABEL)}: {fmt_bytes(state.resident_bytes)}."]
    if state.total_bytes:
        foot.append(
            "Activations are results of autograd graphs and what these keep for a backward "
            "pass. Inputs and temporaries count as other, unless a graph keeps them: "
            "%%gpumem tells them apart by watching code run."
        )
    foot.append(state.provenance.sentence())
    return Document(
        name="memory now",
        kind="memory now",
        sentence=_now_sentence(state),
        headline=_now_headline(state),
        figure=f"{plural(state.n_storages, 'tensor')}, "
        f"resident set {fmt_bytes(state.resident_bytes)}",
        warnings=state.warnings,
        bars=tuple(
            _bar(f"alive on {device}, {fmt_bytes(sum(parts.values()))}", _segments(parts))
            for device, parts in state.by_device.items()
            if sum(parts.values())
        ),
        tables=(_allocator_table(state.allocators), _biggest_table(state.biggest)),
        foot=tuple(foot),
    )


def _now_headline(state: MemoryNow) -> str:
    if not state.n_storages:
        return "No tensor is alive."
    held = {device: sum(parts.values()) for device, parts in state.by_device.items()}
    device = max(held, key=lambda name: held[name])
    return f"{fmt_bytes(held[device])} on {_place(device)}{_mostly(state.by_device[device])}."


def _now_sentence(state: MemoryNow) -> str:
    if not state.n_storages:
        return "No tensor is alive."
    held = [
        f"{fmt_bytes(sum(parts.values()))} on {_place(device)}{_mostly(parts)}"
        for device, parts in state.by_device.items()
        if sum(parts.values())
    ]
    tensors = _counted(state.n_storages, "live tensor")
    if len(held) == 1 and list(state.by_device) == ["cpu"]:
        sentence = f"{fmt_bytes(state.total_bytes)} in {tensors}{_mostly(state.by_device['cpu'])}"
    else:
        # a GPU's memory and the host's are two things: their sum is no figure
        sentence = f"{tensors}: {'; '.join(held)}" if held else f"{tensors} without memory"
    for allocator in state.allocators:
        sentence += (
            f"; {allocator.name}: {fmt_bytes(allocator.allocated_bytes)} allocated, "
            f"{fmt_bytes(allocator.reserved_bytes)} reserved"
        )
    return f"{sentence}."


def _place(device: str) -> str:
    return "the CPU" if device == "cpu" else device


def _mostly(parts: Mapping[str, int]) -> str:
    name, nbytes = max(parts.items(), key=lambda item: item[1])
    total = sum(parts.values())
    return f", {fmt_share(nbytes / total)} {name}" if total else ""


def _allocator_table(states: tuple[AllocatorState, ...]) -> Table:
    return Table(
        title=f"{of(states[0].type).label if states else 'GPU'} allocators",
        note="peaks since the process began",
        header=("device", "allocated", "reserved", "peak allocated", "peak reserved"),
        rows=tuple(
            (
                f"{s.place} {s.name}",
                fmt_bytes(s.allocated_bytes),
                fmt_bytes(s.reserved_bytes),
                fmt_bytes(s.peak_allocated_bytes),
                fmt_bytes(s.peak_reserved_bytes),
            )
            for s in states
        ),
        align="<>>>>",
        code=".....",
        open=True,
    )


def _biggest_table(biggest: tuple[LiveTensor, ...]) -> Table:
    return Table(
        title="The biggest",
        note="memory of the whole storage behind a tensor",
        header=("name", "memory", "shape", "dtype", "category", "device"),
        rows=tuple(
            (
                t.name or "(no variable)",
                fmt_bytes(t.storage_bytes),
                _shape(t),
                t.dtype,
                t.category,
                t.device,
            )
            for t in biggest
        ),
        align="<><<<<",
        code="c.cc..",
        open=True,
    )


def _shape(t: LiveTensor) -> str:
    shape = "×".join(map(str, t.shape)) or "scalar"
    # a small view can keep a large storage alive
    return shape if t.view_bytes == t.storage_bytes else f"{shape} ({fmt_bytes(t.view_bytes)})"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


# --- will it fit ---------------------------------------------------------------------------


@document_for(Fit)
def _fit(fit: Fit) -> Document:
    foot = [f"Predicted on fake tensors, no step was run: {fit.margin_reason}."]
    if fit.per_sample_bytes is not None:
        foot.append(f"One more sample near this batch: {fmt_bytes(fit.per_sample_bytes)}.")
    foot.append(
        f"{_counted(fit.n_evaluations, 'batch size')} tried in {fmt_ms(fit.seconds * 1e3)}; "
        f"precision {fit.precision}, {'with' if fit.checkpointing else 'no'} checkpointing."
    )
    foot.append(fit.provenance.sentence())
    peak = DeviceAccount(
        device="predicted",
        start_bytes=0,
        peak_bytes=fit.peak_bytes,
        end_bytes=0,
        at_start_bytes=dict.fromkeys(CATEGORIES, 0),
        at_peak_bytes=fit.at_peak_bytes,
        at_end_bytes=dict.fromkeys(CATEGORIES, 0),
        n_allocations=0,
        by_module=fit.by_module,
        by_line=fit.by_line,
    )
    title = f"at the predicted peak, {fmt_bytes(fit.peak_bytes)}"
    return Document(
        name="fit",
        sentence=_fit_sentence(fit),
        headline=_fit_headline(fit),
        figure=f"{fmt_bytes(fit.with_margin_bytes)} with the margin",
        warnings=fit.warnings,
        bars=(_bar(title, _segments(fit.at_peak_bytes)),) if fit.peak_bytes else (),
        pictures=_peaks_by_batch(fit),
        tables=(_gpu_table(fit), replace(_line_table(peak), brief=False), _module_table(peak))
        if fit.peak_bytes
        else (),
        foot=tuple(foot),
    )


def _peaks_by_batch(fit: Fit) -> tuple[Plot, ...]:
    """The peak against the batch, up to the GPUs' sizes; none where no other size is predicted."""
    found = {g.largest_batch: g.largest_peak_bytes for g in fit.gpus}
    found[fit.batch] = fit.peak_bytes
    points = tuple(
        Point(batch, nbytes, label=f"{fmt_count(batch)}: {fmt_bytes(nbytes)}")
        for batch, nbytes in sorted((b, n) for b, n in found.items() if b and n)
    )
    if len(points) < 2:
        return ()
    highest = points[-1].y
    sizes = [g.gb * 1e9 for g in fit.gpus]
    shown = [nbytes for nbytes in sizes if nbytes <= 1.6 * highest] or [min(sizes)]
    return (
        Plot(
            title="Peak against the batch, and the sizes of GPUs",
            words="; ".join(f"a batch of {p.label}" for p in points),
            lines=(Line("", points, LOOKS["memory"].fill),),
            x_label="batch size",
            y_label="peak without the margin, predicted",
            levels=tuple((nbytes, f"{nbytes / 1e9:g} GB") for nbytes in shown),
            show=fmt_bytes,
            unit=round_unit(highest, 1024),
        ),
    )


def _fit_headline(fit: Fit) -> str:
    what = "The batch" if fit.batch is None else f"A batch of {fmt_count(fit.batch)}"
    return f"{what} needs {fmt_bytes(fit.peak_bytes)}{_where_it_fits(fit)}."


def _where_it_fits(fit: Fit) -> str:
    fitting = [gpu.gb for gpu in fit.gpus if gpu.fits]
    if not fit.gpus:
        return ""
    return (
        f": it fits from {min(fitting):g} GB on" if fitting else ": it fits on none of these GPUs"
    )


def _fit_sentence(fit: Fit) -> str:
    what = "The batch" if fit.batch is None else f"A batch of {fmt_count(fit.batch)}"
    return (
        f"{what} needs {fmt_bytes(fit.peak_bytes)} (predicted), "
        f"{fmt_bytes(fit.with_margin_bytes)} with the margin{_where_it_fits(fit)}."
    )


def _gpu_table(fit: Fit) -> Table:
    return Table(
        title="GPUs",
        note="predicted; sizes as sold, in 10^9 bytes",
        header=("GPU", "this batch", "largest batch", "peak there"),
        rows=tuple(
            (
                f"{gpu.gb:g} GB",
                "fits" if gpu.fits else "does not fit",
                _largest(gpu),
                fmt_bytes(gpu.largest_peak_bytes),
            )
            for gpu in fit.gpus
        ),
        align="><>>",
        code="....",
        open=True,
    )


def _largest(gpu: GpuFit) -> str:
    if gpu.largest_batch is None:
        return "–"
    return fmt_count(gpu.largest_batch) if gpu.exact else f"≥ {fmt_count(gpu.largest_batch)}"


# --- leaks ---------------------------------------------------------------------------------


@document_for(LeakReport)
def _leaks(report: LeakReport) -> Document:
    return Document(
        name="leak report",
        sentence=_leaks_sentence(report),
        headline=_leaks_headline(report),
        figure=f"{plural(report.n_steps, 'step')}",
        doubts=tuple(map(Doubt.of, report.warnings)),
        pictures=_growth(report),
        tables=(
            Table(
                title="What grows",
                note="memory made in the counted steps that stays",
                header=("held by", "a step", "in all", "made at"),
                rows=tuple(
                    (
                        leak.holder or "(no variable found that holds it)",
                        _signed(round(leak.bytes_per_step)),
                        fmt_bytes(leak.nbytes),
                        leak.lines[0]
                        + (f" and {len(leak.lines) - 1} more" if len(leak.lines) > 1 else ""),
                    )
                    for leak in report.leaks
                ),
                align="<>><",
                code="c..c",
                open=True,
            ),
            Table(
                title="Small tensors on large storages",
                note=".clone() the small one to let the rest go",
                header=("held by", "tensors", "shape", "each shows", "each keeps"),
                rows=tuple(
                    (
                        view.holder or "(no variable found that holds it)",
                        fmt_count(view.n_tensors),
                        "×".join(map(str, view.shape)) or "scalar",
                        fmt_bytes(view.view_bytes),
                        fmt_bytes(view.storage_bytes),
                    )
                    for view in report.views
                ),
                align="<><>>",
                code="c....",
                open=True,
            ),
        ),
        foot=tuple(_leaks_foot(report)),
    )


def _leaks_headline(report: LeakReport) -> str:
    if report.leaks:
        growth = sum(leak.bytes_per_step for leak in report.leaks)
        return f"Tensor memory grows by {fmt_bytes(growth)} a step."
    if report.nodes_per_step:
        return (
            f"The autograd graph grows by {fmt_count(round(report.nodes_per_step))} nodes a step."
        )
    if report.process_bytes_per_step:
        rose = fmt_bytes(report.process_bytes_per_step)
        return f"The process grows by {rose} a step, its tensors do not."
    return "Nothing grows."


def _growth(report: LeakReport) -> tuple[Plot, ...]:
    if len(report.alive_bytes) < 2 or not report.leaks:
        return ()
    first = report.alive_bytes[0][1]
    points = tuple(Point(step, nbytes - first) for step, nbytes in report.alive_bytes)
    highest = max(abs(p.y) for p in points)
    rise = f"{_signed(round(points[-1].y))} from step {report.alive_bytes[0][0]}"
    return (
        Plot(
            title="Memory of tensors that are alive after a step",
            words=f"{rise} to step {report.alive_bytes[-1][0]}",
            lines=(Line("", points, LOOKS["memory"].fill),),
            x_label="step",
            y_label="bytes above the first look",
            show=lambda nbytes: fmt_bytes(round(nbytes)),
            unit=round_unit(highest, 1024),
        ),
    )


def _leaks_foot(report: LeakReport) -> Iterator[str]:
    yield (
        f"{_counted(report.n_steps, 'step')} counted after warm-up; a step adds "
        f"{_signed(round(report.bytes_per_step))} of tensors, "
        f"{_steady(report.heap_bytes_per_step)} to the process's heap (malloc), "
        f"{_steady(report.resident_bytes_per_step)} to its resident memory."
    )
    if report.nodes_per_step:
        yield (
            "An autograd graph lives as long as a tensor that it made, and none of its nodes is "
            "tensor memory. Keep loss.detach() instead of the loss itself."
        )
    yield (
        "Not looked at: worker processes; other objects of Python, and what libraries allocate, "
        "only as a sum, in heap and resident memory."
    )
    yield report.provenance.sentence()


def _steady(nbytes: float | None) -> str:
    if nbytes is None:
        return "an unknown amount"
    return _signed(round(nbytes)) if nbytes else "nothing steady"


def _leaks_sentence(report: LeakReport) -> str:
    steps = _counted(report.n_steps, "step")
    what = "heap" if report.heap_bytes_per_step else "resident memory"
    rose = ""
    if report.process_bytes_per_step:
        rose = f"the process's {what} grew by {fmt_bytes(report.process_bytes_per_step)} a step"
    parts = []
    if report.leaks:
        growth = sum(leak.bytes_per_step for leak in report.leaks)
        first = report.leaks[0]
        share = "most" if first.bytes_per_step > growth / 2 else "the largest part"
        held = f", {share} of it held by {first.holder}" if first.holder else ""
        parts.append(f"Tensor memory grows by {fmt_bytes(growth)} a step{held}")
    if report.nodes_per_step:
        nodes = _counted(round(report.nodes_per_step), "node")
        held = f", held by {report.graph_holder}" if report.graph_holder else ""
        parts.append(
            f"the autograd graph by {nodes} a step{held}"
            if parts
            else f"The autograd graph grows by {nodes} a step{held}; no tensor memory does"
        )
    if parts:
        return f"{'; '.join([*parts, rose] if rose else parts)}."
    kept = " and ".join(
        f"{name} gains {plural(round(entries), 'entry', 'entries')} a step"
        for name, entries in report.containers
    )
    if kept and rose:  # a number a step in a list is not worth a word by itself
        return f"No tensor memory and no autograd graph grows ({steps}), but {rose}: {kept}."
    if rose:
        return (
            f"No tensor memory and no autograd graph grows ({steps}), but {rose}: "
            "something else is kept, or an allocator is still filling up."
        )
    return f"Nothing grows: {steps}, no tensor memory, no autograd graph."


# --- the CUDA allocator's history ----------------------------------------------------------


@document_for(AllocatorHistory)
def _history(history: AllocatorHistory) -> Document:
    reserved, allocated = history.reserved_bytes, history.allocated_bytes
    curve = Curve(
        index=history.index,
        total_bytes=reserved,
        by_category={
            _USED: allocated,
            _CACHED: tuple(max(r - a, 0) for r, a in zip(reserved, allocated, strict=True)),
        },
        phase=(history.device,) * len(reserved),
        peak=reserved.index(max(reserved)),
        n_events=history.index[-1],
    )
    looks = {_USED: "memory", _CACHED: "other"}
    n = history.n_retries
    retries = "retries unknown" if n is None else plural(n, "retry", "retries")
    return Document(
        name="allocator history",
        sentence=(
            f"{history.device}: at most {fmt_bytes(history.peak_reserved_bytes)} reserved for "
            f"{fmt_bytes(history.peak_allocated_bytes)} of tensors; "
            f"{_counted(history.n_cuda_mallocs, 'cudaMalloc')}, "
            f"{_counted(history.n_cuda_frees, 'cudaFree')}, "
            f"{retries}, {fmt_count(history.n_ooms)} out of memory."
        ),
        figure=_counted(history.n_cuda_mallocs, "cudaMalloc"),
        warnings=history.warnings,
        bars=(),
        tables=(
            Table(
                title="Segments at the end",
                note=f"{fmt_bytes(history.fragmented_bytes)} free in segments partly in use",
                header=("segment", "size", "in use", "largest free", "blocks", "pool"),
                rows=tuple(
                    (
                        str(number),
                        fmt_bytes(s.total_bytes),
                        fmt_bytes(s.allocated_bytes),
                        fmt_bytes(s.largest_free_bytes),
                        fmt_count(s.n_blocks),
                        s.kind,
                    )
                    for number, s in enumerate(history.segments[:_ROWS], start=1)
                ),
                align=">>>>><",
                code="......",
                open=True,
            ),
        ),
        foot=(
            f"{_counted(history.n_allocs, 'allocation')} and {_counted(history.n_frees, 'free')} "
            f"by tensors; {_counted(len(history.segments), 'segment')} at the end.",
            history.provenance.sentence(),
        ),
        pictures=(StackedCurve(f"reserved on {history.device}", curve, looks),)
        if len(reserved) > 1
        else (),
        kind="allocator history",
    )
