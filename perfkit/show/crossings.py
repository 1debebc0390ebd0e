"""What the bytes between host and device say: a sentence, and a row per line of code."""

from __future__ import annotations

from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.memory.crossings import Crossing, Crossings
from perfkit.show.document import Document, Table, document_for

_STAND_IN = "Counted without a GPU: torch's meta device stood in for it."


@document_for(Crossing)
def _crossing(obj: Crossing) -> Document:
    said = f"{obj.where}: {fmt_bytes(obj.nbytes)} {obj.direction} in {_copies(obj.n_copies)}"
    return Document(name="crossing", sentence=said)


@document_for(Crossings)
def _crossings(obj: Crossings) -> Document:
    n = obj.n_to_device + obj.n_to_host
    return Document(
        name="crossings",
        sentence=_sentence(obj),
        figure=_copies(n) if n else "",
        warnings=tuple(obj.warnings),
        tables=(
            Table(
                ("Line", "Direction", "Bytes", "Copies", "Non-blocking", "Code"),
                tuple(_row(x) for x in obj.lines),
                title="By line",
                align="<<>>><",
                code=".....c",
                open=True,
            ),
        ),
        foot=(_STAND_IN,) if obj.stand_in else (),
    )


def _sentence(obj: Crossings) -> str:
    """The result in one sentence."""
    if not obj.lines:
        return "Nothing crosses between host and device."
    parts = [
        f"{fmt_bytes(nbytes)} {where}"
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
        x.text,
    )
