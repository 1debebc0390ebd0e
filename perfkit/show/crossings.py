"""How the bytes between host and device look: a sentence, and a row per line of code."""

from __future__ import annotations

from perfkit.memory.crossings import Crossing, Crossings
from perfkit.show._text import clip, notes, table, wrap
from perfkit.show._view import TableView
from perfkit.words import fmt_bytes, fmt_count

__all__ = ["html", "text"]

_STAND_IN = "Counted without a GPU: torch's meta device stood in for it."
_HEADER = ("Line", "Direction", "Bytes", "Copies", "Non-blocking", "Code")
_ALIGN = "<<>>><"
_CODE_COLUMNS = 44


def text(obj: Crossing | Crossings) -> str:
    """The plain-text form."""
    if isinstance(obj, Crossing):
        return f"{obj.where}: {fmt_bytes(obj.nbytes)} {obj.direction} in {_copies(obj.n_copies)}"
    lines = [wrap(sentence(obj))]
    if obj.lines:
        lines += ["", table(_HEADER, [_row(x) for x in obj.lines], align=_ALIGN)]
    if obj.stand_in:
        lines += ["", _STAND_IN]
    lines += notes(obj.warnings)
    return "\n".join(lines)


def html(obj: Crossing | Crossings) -> str:
    """The HTML form."""
    from perfkit.show._html import render

    lines = (obj,) if isinstance(obj, Crossing) else obj.lines
    rows = tuple(_row(x) for x in lines)
    view = TableView("By line", "", _HEADER, rows, _ALIGN, ".....c", open=True)
    return render(
        "crossings.html",
        sentence=text(obj) if isinstance(obj, Crossing) else sentence(obj),
        tables=(view,) if rows else (),
        foot=_foot(obj),
    )


def _foot(obj: Crossing | Crossings) -> tuple[str, ...]:
    if isinstance(obj, Crossing):
        return ()
    return (*((_STAND_IN,) if obj.stand_in else ()), *obj.warnings)


def sentence(obj: Crossings) -> str:
    """The result in one sentence."""
    if not obj.lines:
        return "Nothing crosses between host and device."
    parts = [
        f"{fmt_bytes(nbytes)} {where} in {_copies(n)}"
        for nbytes, where, n in (
            (obj.to_device_bytes, "to the device", obj.n_to_device),
            (obj.to_host_bytes, "to the host", obj.n_to_host),
        )
        if n
    ]
    return f"{', '.join(parts)}."


def _copies(n: int) -> str:
    return "1 copy" if n == 1 else f"{fmt_count(n)} copies"


def _row(x: Crossing) -> tuple[str, ...]:
    return (
        x.where,
        x.direction,
        fmt_bytes(x.nbytes),
        fmt_count(x.n_copies),
        fmt_count(x.non_blocking),
        clip(x.text, _CODE_COLUMNS),
    )
