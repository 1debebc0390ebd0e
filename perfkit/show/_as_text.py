"""A document as plain text, at most 96 columns wide but for code and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfkit.base.words import plural
from perfkit.show._bar import line_bar, text_bar
from perfkit.show._ink import bold, columns, how_to_see_more, sign
from perfkit.show.document import Cell, Document, Finding, Table
from perfkit.show.plain_text import beside, clip, notes, table, wrap


def as_text(document: Document, *, brief: bool = False) -> str:
    """The document; with ``brief``, its first screen and a line that says what is left out."""
    return "\n\n".join(_first_screen(document) if brief else _blocks(document))


# Lines that a terminal of its usual size shows at once.
_SCREEN = 25
# A table of less of its lines says too little: title, header, rule, two rows and a mark.
_LEAST_TABLE = 6
# Lines of a long text's end, which say how it ended.
_FOLD_LINES = 8
# Lines of code that the first finding shows at most, and each other one: as many as find room.
_CODE_LINES = ((10, 10), (10, 6), (10, 4), (10, 3), (8, 2), (8, 1), (8, 0), (6, 0), (4, 0), (2, 0))


def _first_screen(of: Document) -> list[str]:
    chips = " · ".join(doubt.chip for doubt in of.doubts)
    head = [
        bold(beside(of.answer, of.figure)),
        *([wrap(f"! {chips}", hang="  ")] if chips else []),
        *([] if of.folds_reasons else _reasons(of)),
    ]
    bars = "\n".join(
        line_bar(bar.title.partition(" (")[0].partition(", ")[0], bar.segments) for bar in of.bars
    )
    advice = [wrap(f"- {a}", hang="  ") for a in of.advice]
    pictures = of.pictures[: not bars]
    drawn = [one.as_text() for one in pictures if one.glyphs and not one.folds]
    said = filter(None, ("\n".join(head), bars, *drawn, "\n".join(advice)))
    before = list(said)
    beyond = [wrap(one.answer) for one in of.sections]
    last = [wrap(line, hang="  ") for line in of.foot[-1 if of.folds_reasons else 0 :]]
    for first, other in _CODE_LINES:
        findings = "\n".join(
            _first_finding(i, found, first if i == 1 else other)
            for i, found in enumerate(of.findings, 1)
        )
        fixed = list(filter(None, (*before, findings, *beyond, "\n".join(last))))
        room = _SCREEN - 1 - sum(block.count("\n") + 2 for block in fixed)
        if room >= 0:
            break
    n_left = len(of.pictures) - len(drawn)
    ends = []
    for fold in of.folds:
        body = fold.body.splitlines()
        most = min(_FOLD_LINES, room - 3)
        kept = body if len(body) <= most else ["…", *body[-most:]]
        if most > 0:
            ends.append(_indented(f"{fold.title}:", "\n".join(kept)))
            room -= len(kept) + 2
        n_left += most <= 0
    tables = []
    for t in of.tables:
        if not (t.rows and t.brief):
            continue
        lines = _table(t).splitlines()
        shown = lines if len(lines) < room else [*lines[: max(room - 2, 0)], "  …"]
        if len(shown) >= min(_LEAST_TABLE, len(lines)):
            tables.append("\n".join(shown))
            room -= len(shown) + 1
        n_left += shown != lines
    if more := ", ".join(_left_out(of, n_left)):
        last.append(wrap(f"More with {how_to_see_more.get()}: {more}.", hang="  "))
    return list(filter(None, (*before, findings, *tables, *ends, *beyond, "\n".join(last))))


def _first_finding(number: int, f: Finding, most: int) -> str:
    """What to change, where, and as many lines of code as there is room for."""
    lines = [wrap(f"{number}. {f.title}" + (f" ({f.tag})" if f.tag else ""), hang="   ")]
    lines += [f"     {clip(line, columns.get() - 5)}" for line in f.source.splitlines()[:1]]
    code = f.code.splitlines()
    return "\n".join(lines + [f"       {line}".rstrip() for line in code[:most]]
                     + ["       …"] * (0 < most < len(code)))  # fmt: skip


def _blocks(of: Document) -> Iterator[str]:
    """The verdict, what to do, why, how sure, where from."""
    first = [bold(beside(of.answer, of.figure)), *notes([doubt.sentence for doubt in of.doubts])]
    why = _reasons(of)
    yield "\n".join(first if of.findings else first + why)
    yield from _findings(of)
    if of.advice:
        yield "\n".join([f"{of.advice_title}:", *(wrap(f"- {a}", hang="  ") for a in of.advice)])
    for bar in of.bars:
        drawn = text_bar(bar.parts, bar.segments, quantity=bar.quantity)
        yield f"{wrap(bar.title)}\n{drawn}" if bar.title else drawn
    yield from (picture.as_text() for picture in of.pictures)
    if of.findings and why:
        yield "\n".join(why)
    yield from (_table(t) for t in of.tables if t.rows)
    yield from (_indented(f"{fold.title}:", fold.body) for fold in of.folds)
    for section in of.sections:
        yield from _blocks(section)
    if of.foot:
        yield "\n".join(wrap(line, hang="  ") for line in of.foot)


def _reasons(of: Document) -> list[str]:
    return [*map(wrap, filter(None, (of.more, *of.lines))), *notes(of.warnings)]


def _findings(of: Document) -> Iterator[str]:
    if of.findings:
        said = [_finding(i, found) for i, found in enumerate(of.findings, 1)]
        yield "\n\n".join([of.findings_title, *said] if of.findings_title else said)
    if of.more_findings:
        titles = [
            wrap(", ".join(filter(None, (f.title, f.tag))), indent="  - ", hang="    ")
            for f in of.more_findings
        ]
        yield "\n".join([of.more_title, *titles])


def _finding(number: int, f: Finding) -> str:
    lines = [wrap(f"{number}. {f.title}" + (f" ({f.tag})" if f.tag else ""), hang="   ")]
    lines += [f"       {clip(line, columns.get() - 7)}" for line in f.source.splitlines()]
    lines += [wrap(fact, indent="   - ", hang="     ") for fact in f.facts]
    if f.code:
        lines += [f"   {f.lead}"] if f.lead else [""]
        lines += [*_code(f.code), ""]
    lines += [wrap(words, indent="   ", hang="   ") for words in f.small]
    return "\n".join(lines).rstrip()


def _code(code: str) -> list[str]:
    """Code is never wrapped: a broken line is broken code."""
    return [f"       {line}".rstrip() for line in code.splitlines()]


def _table(t: Table) -> str:
    rows = [[_cell(cell) if t.wrap else cell for cell in row] for row in t.rows]
    drawn = table(t.header, rows, align=t.sides, wrap_last=t.wrap)
    if {str(row[0]) for row in t.rows} <= {"yes", "no"}:
        drawn = re.sub(r"^  (yes|no)\b", lambda at: f"  {sign(at[1])}", drawn, flags=re.MULTILINE)
    return f"{wrap(t.heading)}\n{drawn}" if t.heading else drawn


def _cell(cell: str | Cell) -> str:
    return "\n".join([str(cell), *(cell.small if isinstance(cell, Cell) else ())])


def _indented(title: str, body: str) -> str:
    return "\n".join([title, *(f"    {line}" for line in body.splitlines())])


def _left_out(of: Document, n_cut: int) -> Sequence[str]:
    """What the first screen lacks; ``n_cut`` tables, texts and pictures are not all on it."""
    what = "more finding" if of.findings else "finding"
    more = [plural(len(of.more_findings), what)] if of.more_findings else []
    more += ["why"] if of.doubts or (of.folds_reasons and _reasons(of)) else []
    more += [plural(len(of.warnings), "note")] if of.warnings and of.folds_reasons else []
    n = n_cut + sum(bool(t.rows) and not t.brief for t in of.tables)
    n += len(of.sections)
    return [*more, plural(n, "table and picture", "tables and pictures")] if n else more
