"""A document as plain text, at most 96 columns wide but for code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit.base.words import plural
from perfkit.show._bar import text_bar
from perfkit.show._text import WIDTH, clip, notes, table, wrap
from perfkit.show.document import Cell, Document, Finding, Table


def as_text(document: Document, *, brief: bool = False) -> str:
    """The document; with ``brief``, its first screen and a line that says what is left out."""
    return "\n\n".join(_blocks(document, brief))


def _blocks(of: Document, brief: bool) -> Iterator[str]:
    """The verdict, what to do, why, how sure, where from."""
    said = [*map(wrap, of.lines), *notes(of.warnings)]
    first = [wrap(of.sentence), *map(wrap, of.doubts)]
    yield "\n".join(first if of.findings else first + said)
    yield from _findings(of, brief)
    if of.advice:
        yield "\n".join([f"{of.advice_title}:", *(wrap(f"- {a}", hang="  ") for a in of.advice)])
    for bar in of.bars:
        drawn = text_bar(bar.parts, bar.segments, quantity=bar.quantity)
        yield f"{wrap(bar.title)}\n{drawn}" if bar.title else drawn
    yield from (picture.as_text() for picture in of.pictures if not (brief and picture.folds))
    if of.findings and said:
        yield "\n".join(said)
    for t in of.tables:
        if t.rows and (t.brief or not brief):
            yield _table(t)
    if of.folds:
        yield "\n\n".join(_indented(f"{fold.title}:", fold.body) for fold in of.folds)
    for section in of.sections:
        yield from _blocks(section, brief)
    if of.foot:
        yield "\n".join(wrap(line, hang="  ") for line in of.foot)
    more = _left_out(of) if brief else []
    if more:
        yield wrap(f"More with -v or print(): {', '.join(more)}.", hang="  ")


def _findings(of: Document, brief: bool) -> Iterator[str]:
    if of.findings:
        said = [_finding(i, found, brief) for i, found in enumerate(of.findings, 1)]
        yield "\n\n".join([of.findings_title, *said] if of.findings_title else said)
    if of.more_findings and not brief:
        titles = [
            wrap(", ".join(filter(None, (f.title, f.tag))), indent="  - ", hang="    ")
            for f in of.more_findings
        ]
        yield "\n".join([of.more_title, *titles])


def _finding(number: int, f: Finding, brief: bool) -> str:
    lines = [wrap(f"{number}. {f.title}" + (f" ({f.tag})" if f.tag else ""), hang="   ")]
    lines += [f"       {clip(line, WIDTH - 7)}" for line in f.source.splitlines()]
    facts = f.facts[:1] if brief else f.facts
    lines += [wrap(fact, indent="   - ", hang="     ") for fact in facts]
    if f.code:
        lines += [f"   {f.lead}"] if f.lead else [""]
        lines += [*_code(f.code), ""]
    if not brief:
        lines += [wrap(words, indent="   ", hang="   ") for words in f.small]
    return "\n".join(lines).rstrip()


def _code(code: str) -> list[str]:
    """Code is never wrapped: a broken line is broken code."""
    return [f"       {line}".rstrip() for line in code.splitlines()]


def _table(t: Table) -> str:
    rows = [[_cell(cell) if t.wrap else cell for cell in row] for row in t.rows]
    drawn = table(t.header, rows, align=t.sides, wrap_last=t.wrap)
    return f"{wrap(t.heading)}\n{drawn}" if t.heading else drawn


def _cell(cell: str | Cell) -> str:
    return "\n".join([str(cell), *(cell.small if isinstance(cell, Cell) else ())])


def _indented(title: str, body: str) -> str:
    return "\n".join([title, *(f"    {line}" for line in body.splitlines())])


def _left_out(of: Document) -> Sequence[str]:
    """What the first screen lacks."""
    what = "more finding" if of.findings else "finding"
    more = [plural(len(of.more_findings), what)] if of.more_findings else []
    more += [picture.title.lower() for picture in of.pictures if picture.folds]
    return more + [t.title.lower() for t in of.tables if t.rows and not t.brief]
