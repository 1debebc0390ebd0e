"""A document as Markdown for a pull request or a note: nothing in a name becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.base.printable import printable
from perfkit.show._bar import describe
from perfkit.show.document import Cell, Document, Finding, Table

# What Markdown or the HTML within it would take for its own. A backslash works for each of them
# in GitHub's dialect, pipes in tables included; & is one because of entities.
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@$])")
_NUMBERED = re.compile(r"^(\s*\d+)([.)])(?=\s)")


def as_markdown(document: Document) -> str:
    """The document in GitHub's dialect; what folds in HTML folds here, too."""
    return "\n\n".join(_blocks(document)).rstrip() + "\n"


def escaped(words: str) -> str:
    """One line in which nothing is markup, whatever a name holds."""
    line = " ".join(printable(str(words).replace("\n", " ")).split())
    line = _MARKS.sub(r"\\\1", line)
    if line.startswith(("-", "=", ":")):
        line = "\\" + line
    return _NUMBERED.sub(r"\1\\\2", line)


def _blocks(of: Document) -> Iterator[str]:
    if of.answer:
        yield f"**{escaped(of.answer)}** {escaped(of.figure)}".rstrip()
    if of.doubts:
        yield "\n".join(f"- Note: {escaped(doubt.sentence)}" for doubt in of.doubts)
    if not of.folds_reasons:
        yield from _reasons(of)
    if of.findings:
        if of.findings_title:
            yield f"{escaped(of.findings_title)}:"
        yield from (_finding(f"{i}. ", f) for i, f in enumerate(of.findings, 1))
    if of.more_findings:
        more = "\n\n".join(_finding("- ", f) for f in of.more_findings)
        yield _folded(of.more_title, more)
    if of.advice:
        yield "\n".join(
            [f"{escaped(of.advice_title)}:", "", *(f"- {escaped(a)}" for a in of.advice)]
        )
    said = [describe(bar.title, bar.segments) for bar in of.bars]
    said += [f"{picture.title}: {picture.words}" for picture in of.pictures]
    if said:
        yield "\n".join(f"- {escaped(words)}" for words in said)
    if of.folds_reasons and (why := "\n\n".join(_reasons(of))):
        yield _folded("Why, and how sure", why)
    for t in of.tables:
        if t.rows:
            # a lone table is the answer; GitHub folds <details>
            alone = sum(bool(other.rows) for other in of.tables) == 1
            drawn = _table(t)
            if not (alone or t.open):
                yield _folded(t.heading or of.name, drawn)
            else:
                yield f"{escaped(t.heading)}\n\n{drawn}" if t.heading else drawn
    yield from (_folded(fold.title, _fenced(fold.body)) for fold in of.folds)
    for section in of.sections:
        yield from _blocks(section)
    if of.foot:
        yield "\n".join(f"- {escaped(line)}" for line in of.foot)


def _reasons(of: Document) -> Iterator[str]:
    yield from map(escaped, filter(None, (of.more, *of.lines)))
    if of.warnings:
        yield "\n".join(f"- Note: {escaped(warning)}" for warning in of.warnings)


def _finding(mark: str, f: Finding) -> str:
    indent = " " * len(mark)
    blocks = [f"**{escaped(f.title)}**" + (f" ({escaped(f.tag)})" if f.tag else "")]
    if f.source:
        blocks.append(_fenced(f.source))
    if f.facts:
        blocks.append("\n".join(f"- {escaped(fact)}" for fact in f.facts))
    if f.code:
        blocks += [escaped(f.lead)] if f.lead else []
        blocks.append(_fenced(f.code, "python"))
    if f.small:
        blocks.append(escaped(" ".join(f.small)))
    lines = "\n\n".join(blocks).splitlines()
    return "\n".join(f"{mark if i == 0 else indent}{line}".rstrip() for i, line in enumerate(lines))


def _table(t: Table) -> str:
    rule = ["---" if side == "<" else "---:" for side in t.sides]
    rows = [[_cell(cell) for cell in row] for row in (t.header, *t.rows)]
    rows.insert(1, rule)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(cell: str | Cell) -> str:
    below = (*cell.small, *cell.folded) if isinstance(cell, Cell) else ()
    return "<br>".join(map(escaped, (str(cell), *below)))


def _fenced(code: str, language: str = "") -> str:
    """A block of code; its fence is longer than any run of backticks in it."""
    clean = printable(code, lines=True)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", clean)), default=0))
    return f"{fence}{language}\n{clean}\n{fence}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>\n\n{body}\n\n</details>"
