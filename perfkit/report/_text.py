"""Numbers with units, and aligned plain-text tables.

Every renderer formats through these functions, so that a millisecond looks the same in text
and in HTML. Significant digits follow what a measurement can carry: three.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from perfkit._printable import printable

__all__ = [
    "WIDTH",
    "clip",
    "fmt_bytes",
    "fmt_count",
    "fmt_ms",
    "fmt_number",
    "fmt_ratio",
    "fmt_share",
    "table",
    "wrap",
]

#: Widest line of a plain-text report, in columns.
WIDTH = 96

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ABSENT = "–"


def fmt_number(value: float) -> str:
    """Three significant digits, no unit: for columns whose header names it."""
    return _three_digits(value)


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent: 0.0123, 1.23, 12.3, 123, 1234."""
    if value == 0:
        return "0"
    value = float(f"{value:.3g}") if abs(value) < 1000 else value
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 6)}f}"


def fmt_bytes(n: float | None) -> str:
    """Bytes in binary units: ``0 B``, ``1.50 KiB``, ``5.59 GiB``; ``–`` for None or NaN."""
    if n is None or math.isnan(n):
        return _ABSENT
    size = abs(n)
    unit = 0
    # 999.5 would print as 1000: it belongs to the next unit
    while size >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        size /= 1024
        unit += 1
    sign = "-" if n < 0 else ""
    number = f"{size:.0f}" if unit == 0 else _three_digits(size)
    return f"{sign}{number} {_BYTE_UNITS[unit]}"


def fmt_ms(x: float | None) -> str:
    """A duration given in milliseconds, in the unit that reads best: µs, ms, s or min."""
    if x is None or math.isnan(x):
        return _ABSENT
    size = abs(x)
    if size == 0:
        return "0 ms"
    if size < 0.1:
        return f"{_three_digits(x * 1e3)} µs"
    if size < 10_000:
        return f"{_three_digits(x)} ms"
    if size < 600_000:
        return f"{_three_digits(x / 1e3)} s"
    return f"{_three_digits(x / 60e3)} min"


def fmt_share(x: float | None) -> str:
    """A share of 1 in per cent: ``71 %``, ``3.2 %``, ``< 0.1 %``, ``0 %``."""
    if x is None or math.isnan(x):
        return _ABSENT
    percent = 100 * x
    if percent == 0:
        return "0 %"
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if abs(percent) < 9.95 else f"{percent:.0f} %"


def fmt_ratio(x: float | None) -> str:
    """A ratio: ``2.34×``, ``12.0×``; ``–`` for None, NaN or infinity."""
    if x is None or math.isnan(x) or math.isinf(x):
        return _ABSENT
    return f"{_three_digits(x)}×"


def fmt_count(n: float | None) -> str:
    """A count with thin groups of three: ``12 345``; one decimal if it is not whole."""
    if n is None or math.isnan(n):
        return _ABSENT
    whole = float(n).is_integer()
    return (f"{n:,.0f}" if whole else f"{n:,.1f}").replace(",", " ")


def clip(value: str, width: int) -> str:
    """``value`` on one line of at most ``width`` columns, its tail cut with an ellipsis."""
    line = _one_line(value)
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def _one_line(value: str) -> str:
    """White space is one space, and nothing is left that a terminal would obey."""
    return printable(" ".join(value.split()))


def wrap(value: str, *, width: int = WIDTH, indent: str = "", hang: str | None = None) -> str:
    """A paragraph broken at ``width`` columns; ``hang`` indents the lines after the first."""
    return textwrap.fill(
        _one_line(value),
        width=width,
        initial_indent=indent,
        subsequent_indent=indent if hang is None else hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    align: str | None = None,
    width: int = WIDTH,
    indent: str = "  ",
) -> str:
    """An aligned table with a rule below its header.

    Args:
        header: one title per column.
        rows: cells, already formatted.
        align: one of ``<`` and ``>`` per column; by default the first column to the left and
            all others to the right.
        width: the most columns of text a line may take. The widest column to the left is
            clipped to hold it.
        indent: what stands before every line.
    """
    align = align or "<" + ">" * (len(header) - 1)
    cells = [[_one_line(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    too_much = len(indent) + sum(widths) + 2 * (len(widths) - 1) - width
    if too_much > 0:
        # numbers are never cut: the widest text column gives way
        texts = [i for i, side in enumerate(align) if side == "<"] or list(range(len(header)))
        widest = max(texts, key=lambda i: widths[i])
        widths[widest] = max(widths[widest] - too_much, min(widths[widest], 8))
    lines = []
    for row in cells:
        parts = [
            f"{clip(cell, size):{side}{size}}"
            for cell, size, side in zip(row, widths, align, strict=True)
        ]
        lines.append((indent + "  ".join(parts)).rstrip())
    rule = indent + "  ".join("─" * size for size in widths)
    return "\n".join([lines[0], rule, *lines[1:]])
