"""What a profile shows, as plain words and rows: one view behind the text and the HTML.

Templates compute nothing and the two forms cannot drift apart, because everything that is said
is worked out once, into these.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.show._bar import Segment
from perfkit.show.strip import Strip

__all__ = ["FindingView", "LaneView", "ProfileView", "TableView"]


@dataclass(frozen=True)
class LaneView:
    """One breakdown bar: the host's or the device's median step."""

    title: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class FindingView:
    """One finding; empty strings where there is nothing to say."""

    title: str
    gain: str
    evidence: tuple[str, ...]
    what_to_do: str
    formula: str
    lesson: str
    line: str


@dataclass(frozen=True)
class TableView:
    """A table of formatted cells.

    Attributes:
        align: ``<`` or ``>`` per column.
        code: ``c`` for columns that hold code (monospaced in HTML), ``.`` for others.
        open: shown unfolded in HTML.
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    code: str
    open: bool = False


@dataclass(frozen=True)
class ProfileView:
    """Everything that a profile's report says, in order."""

    sentence: str
    step_line: str
    warnings: tuple[str, ...]
    lanes: tuple[LaneView, ...]
    strip: Strip | None
    findings: tuple[FindingView, ...]
    more_findings: tuple[FindingView, ...]
    tables: tuple[TableView, ...]
    foot: tuple[str, ...]
