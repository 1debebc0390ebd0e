"""Paragraphs and aligned tables in plain text, and what a figure in them is of."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from perfkit.base.printable import printable
from perfkit.show._ink import columns


def clip(value: str, width: int) -> str:
    """``value`` on one line of at most ``width`` columns, its tail cut with an ellipsis."""
    line = _one_line(value)
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def _one_line(value: str) -> str:
    """White space is one space, and nothing is left that a terminal would obey."""
    return printable(" ".join(value.split()))


def beside(words: str, figure: str) -> str:
    """A headline, and a figure at the right end of the line where there is room."""
    line = wrap(words)
    room = columns.get() - len(line) - len(figure)
    if not figure:
        return line
    return f"{line}{' ' * room}{figure}" if room > 1 else f"{line}\n{figure}"


def one_sentence(notes: Sequence[str]) -> str:
    """Several notes as one sentence: before a table a reader takes in one, not three."""
    return "; ".join(note.rstrip(". ") for note in notes) + "." * bool(notes)


def notes(warnings: Sequence[str]) -> list[str]:
    """The one paragraph that says what is doubtful, as a list of one; empty without warnings."""
    if not warnings:
        return []
    return [wrap(f"Note: {one_sentence(warnings)}", hang="  ")]


def wrap(value: str, *, width: int | None = None, indent: str = "", hang: str | None = None) -> str:
    """A paragraph broken at ``width`` columns; ``hang`` indents the lines after the first."""
    return textwrap.fill(
        _one_line(value),
        width=width or columns.get(),
        initial_indent=indent,
        subsequent_indent=indent if hang is None else hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    align: str | None = None,
    width: int | None = None,
    wrap_last: bool = False,
) -> str:
    """An aligned table with a rule below its header.

    Args:
        header: one title per column.
        align: one of ``<`` and ``>`` per column; by default the first column to the left and
            all others to the right.
        width: the most columns of text a line may take. The widest column to the left is
            clipped to hold it.
        wrap_last: a long last column goes on in the next line, instead of being cut.
    """
    align = align or "<" + ">" * (len(header) - 1)
    cells = [[_one_line(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    if wrap_last:  # its ends of lines stay
        for row, said in zip(cells, (header, *rows), strict=True):
            row[-1] = "\n".join(map(_one_line, str(said[-1]).splitlines()))
    too_much = 2 + sum(widths) + 2 * (len(widths) - 1) - (width or columns.get())
    if too_much > 0:
        # numbers are never cut: the widest text column gives way
        texts = [i for i, side in enumerate(align) if side == "<"] or list(range(len(header)))
        texts = [len(header) - 1] if wrap_last else texts
        widest = max(texts, key=lambda i: widths[i])
        widths[widest] = max(widths[widest] - too_much, min(widths[widest], 8))
    lines = []
    for row in cells:
        several = [row[-1]]
        if wrap_last:
            said = row[-1].splitlines()
            several = [line for one in said for line in wrap(one, width=widths[-1]).splitlines()]
        for i, part in enumerate(several or [""]):
            beside = [*row[:-1], part] if i == 0 else [*[""] * (len(row) - 1), part]
            parts = [
                f"{clip(cell, size):{side}{size}}"
                for cell, size, side in zip(beside, widths, align, strict=True)
            ]
            lines.append(("  " + "  ".join(parts)).rstrip())
    rule = "  " + "  ".join("─" * size for size in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def per_step(n_steps: int) -> str:
    """``per step``, for the note of a table; of one step, or where there is none, ``in all``."""
    return "per step" if n_steps > 1 else "in all"


def a_step(n_steps: int) -> str:
    """``a step``, for a sentence; of one step, or where there is none, ``in all``."""
    return "a step" if n_steps > 1 else "in all"


def each_step(n_steps: int) -> str:
    """`` a step``, behind a count: ``12 times a step``; of one step nothing: ``12 times``."""
    return " a step" if n_steps > 1 else ""
