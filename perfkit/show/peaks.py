"""What the peaks of a machine say."""

from __future__ import annotations

from perfkit.base.words import (
    fmt_bytes,
    fmt_count,
    fmt_ms,
    fmt_s,
    fmt_share,
    fmt_si,
    fmt_us,
    plural,
)
from perfkit.limit.peaks import Peaks, Rate
from perfkit.limit.roofs import FORMATS
from perfkit.show._roofline import roofs
from perfkit.show.document import Document, Doubt, Table, document_for


@document_for(Peaks)
def _peaks(p: Peaks) -> Document:
    return Document(
        name="peaks",
        sentence=_sentence(p),
        headline=_headline(p),
        figure=p.device if p.device != "cpu" else f"CPU, {plural(p.threads, 'thread')}",
        doubts=tuple(map(Doubt.of, p.warnings)),
        pictures=(
            roofs(
                {f: one.flop_per_s.best for f, one in p.flop_per_s.items() if f in FORMATS},
                p.memory_by_size[-1].bytes_per_s.best,
            ),
        ),
        lines=(
            f"Measured in {fmt_s(p.seconds)}; each figure is the best of its repetitions, because "
            "what else runs on a machine only makes them slower.",
        ),
        tables=(_products(p), _sizes(p), _memory(p), _others(p)),
        foot=(*_sheet_line(p), p.provenance.sentence()),
    )


def _headline(p: Peaks) -> str:
    form, fast = max(p.flop_per_s.items(), key=lambda item: item[1].flop_per_s.best)
    memory = fmt_si(p.memory_by_size[-1].bytes_per_s.best, "B/s")
    return f"At most {fmt_si(fast.flop_per_s.best, 'FLOP/s')} in {form}, memory {memory}."


def _sentence(p: Peaks) -> str:
    name = "This CPU" if p.device == "cpu" else f"This {p.device}"
    threads = f" with {fmt_count(p.threads)} threads" if p.device == "cpu" else ""
    best = p.flop_per_s
    form = next(f for f in ("float32", *FORMATS) if f in best)
    fast = max(best, key=lambda f: best[f].flop_per_s.best)
    products = fmt_si(best[form].flop_per_s.best, "FLOP/s") + f" in {form}"
    if fast != form:
        products += f" and {fmt_si(best[fast].flop_per_s.best, 'FLOP/s')} in {fast}"
    memory = p.memory_by_size[-1].bytes_per_s.best
    return (
        f"{name}{threads} reaches {products}, its memory {fmt_si(memory, 'B/s')}; an operator "
        f"that does nothing takes {fmt_us(p.launch_us.best)}."
    )


def _spread(rate: Rate, unit: str) -> tuple[str, str, str]:
    return (fmt_si(rate.best, unit), fmt_si(rate.median, unit), fmt_si(rate.worst, unit))


def _products(p: Peaks) -> Table:
    """The fastest product of each format, the data sheet beside it."""
    sheet = p.sheet
    rows = []
    best = p.flop_per_s
    for form in (f for f in FORMATS if f in best):
        one = best[form]
        row = [form, *_spread(one.flop_per_s, "FLOP/s"), fmt_count(one.size)]
        if sheet is not None:
            dense = sheet.tflop_per_s.get(form)
            row += (
                ["–", "–"]
                if dense is None
                else [fmt_si(dense * 1e12, "FLOP/s"), fmt_share(one.flop_per_s.best / dense / 1e12)]
            )
        rows.append(tuple(row))
    header = ["format", "best", "median", "worst", "size"]
    header += ["data sheet", "reached"] if sheet is not None else []
    return Table(
        tuple(header),
        tuple(rows),
        title="Matrix products",
        note="square; the size that is fastest",
        open=True,
    )


def _sizes(p: Peaks) -> Table:
    sizes = sorted({one.size for one in p.products})
    rate = {(one.form, one.size): one.flop_per_s.best for one in p.products}
    forms = [f for f in FORMATS if f in p.flop_per_s]
    rows = tuple(
        (
            fmt_count(size),
            *(fmt_si(rate[f, size], "FLOP/s") if (f, size) in rate else "–" for f in forms),
        )
        for size in sizes
    )
    return Table(
        ("size", *forms),
        rows,
        title="Matrix products by size",
        note="best",
        align=">" * (1 + len(forms)),
        brief=False,
    )


def _memory(p: Peaks) -> Table:
    rows = [
        (fmt_bytes(one.working_set_bytes), one.what, *_spread(one.bytes_per_s, "B/s"))
        for one in p.memory_by_size
    ]
    sheet = p.sheet
    said = "bytes read and written; the fastest of copy, add and sum"
    if sheet is not None:
        share = p.memory_by_size[-1].bytes_per_s.best / sheet.gb_per_s / 1e9
        said += (
            f"; data sheet {fmt_si(sheet.gb_per_s * 1e9, 'B/s')}, reached {fmt_share(share)} of it"
        )
    return Table(
        ("working set", "pattern", "best", "median", "worst"),
        tuple(rows),
        title="Memory",
        note=said,
        align="><>>>",
        open=True,
    )


def _others(p: Peaks) -> Table:
    rows: list[tuple[str, ...]] = [
        (f"copy, {kind}", *_spread(rate, "B/s")) for kind, rate in p.copies.items()
    ]
    if p.disk is not None:
        rows.append(("disk, read once", *_spread(p.disk, "B/s")))
    for name, times in (
        ("an operator that does nothing", p.launch_us),
        ("the same, and wait for the device", p.round_trip_us),
    ):
        if times is not None:
            rows.append(
                (name, *(fmt_ms(us / 1e3) for us in (times.best, times.median, times.worst)))
            )
    return Table(
        ("", "best", "median", "worst"), tuple(rows), title="Copies, disk, operators", open=True
    )


def _sheet_line(p: Peaks) -> tuple[str, ...]:
    sheet = p.sheet
    if sheet is None:
        return () if p.device == "cpu" else (f"No data sheet of {p.device} is in perfkit's table.",)
    note = f" {sheet.note[:1].upper()}{sheet.note[1:]}." if sheet.note else ""
    return (f"Data sheet: {sheet.source}; dense, without sparsity.{note}",)
