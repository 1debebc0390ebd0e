"""Numbers in notebook prose that are backed by a record: ``<data value="A9.x">5.0×</data>``.

The text between the tags begins or ends with the number, followed by its unit. A second attribute,
``data-device="cuda"`` (or ``"cpu"``), binds it to records of one kind of device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from perfkit.base.device import known
from perfkit.base.errors import UsageError
from perfkit.course.ledger._figures import shown
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import Records, read_records

_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_TAG = re.compile(r"<data\b([^>]*)>(.*?)</data\s*>", re.DOTALL | re.IGNORECASE)
_OPENED = re.compile(r"</?data\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([a-z-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_NUMBER = re.compile(
    "(?P<sign>[-\N{MINUS SIGN}]?)"
    "(?P<whole>[0-9]{1,3}(?:[,\N{NARROW NO-BREAK SPACE}\N{NO-BREAK SPACE}\N{THIN SPACE} ]"
    "[0-9]{3}(?![0-9]))+|[0-9]+)"
    r"(?P<part>\.[0-9]+)?"
)
_SCALES = (
    {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    | {"byte": 1.0, "bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
    | {"MiB/s": 2.0**20, "GiB/s": 2.0**30},
    {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    {"1": 1.0, "%": 0.01},
    {"×": 1.0, "x": 1.0, "times": 1.0, "-fold": 1.0},
)
_ROUND = 1e-9  # relative to the number: the last digits of a float


@dataclass(frozen=True)
class Bound:
    """A number in prose and the key of the figure that backs it.

    Attributes:
        place: notebook and cell, for messages.
        key: such as ``"A9.bytes_ratio"``; empty if the tag has none.
        device: ``"cpu"``, ``"cuda"`` … or empty.
        text: the text between the tags.
    """

    place: str
    key: str
    device: str
    text: str


@dataclass(frozen=True)
class Disagreement:
    """A number in prose that no record backs, and the reason."""

    bound: Bound
    reason: str

    def __str__(self) -> str:
        return f"{self.bound.place}: {self.bound.text!r} ({self.bound.key}): {self.reason}"


def disagreements(notebooks: Iterable[Path], *, folders: Iterable[Path]) -> list[Disagreement]:
    """All numbers in these notebooks' prose that the records do not back.

    An exact figure must agree with every record of it at the precision shown in the prose. Any
    other figure must be within the interval of the newest record, or be its rounded value.

    Args:
        notebooks: notebook files.
        folders: folders of records.

    Raises:
        UsageError: a notebook cannot be read.
    """
    records = read_records(folders)
    found = []
    for path in notebooks:
        for bound in bound_numbers(path):
            reason = _wrong(bound, records)
            if reason:
                found.append(Disagreement(bound, reason))
    return found


def bound_numbers(notebook: Path) -> list[Bound]:
    """The bound numbers in a notebook's Markdown cells, in order; code cells are ignored.

    Raises:
        UsageError: the file cannot be read as a notebook.
    """
    try:
        cells = json.loads(notebook.read_bytes())["cells"]
        prose = [
            (str(cell.get("id", number)), "".join(cell["source"]))
            for number, cell in enumerate(cells)
            if cell["cell_type"] == "markdown"
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{notebook} cannot be read as a notebook: {error}") from None
    return [bound for cell, text in prose for bound in _bound_in(text, f"{notebook.name}, {cell}")]


def _bound_in(text: str, place: str) -> list[Bound]:
    plain = _CODE.sub(" ", text)
    found = []
    for tag in _TAG.finditer(plain):
        attributes = {name: a or b for name, a, b in _ATTRIBUTE.findall(tag[1])}
        words = " ".join(tag[2].split())
        key, device = attributes.get("value", ""), attributes.get("data-device", "")
        found.append(Bound(place, key, device, words))
    torn = _OPENED.search(_TAG.sub(" ", plain))
    if torn:
        found.append(Bound(place, "", "", plain[torn.start() :][:40]))
    return found


def _wrong(bound: Bound, records: Records) -> str:
    """Why no record backs it; empty if one does."""
    claim, _, name = bound.key.partition(".")
    if not claim or not name:
        return 'it is not written <data value="CLAIM.name">…</data>'
    types = [device.type for device in known()]
    if bound.device and bound.device not in types:
        return f"data-device is {' or '.join(types)}, not {bound.device!r}"
    having = [
        one
        for one in records.of(claim)
        if name in one.outcome.figures and bound.device in ("", one.device.type)
    ]
    if not having:
        refused = [why for path, why in records.refused.items() if path.stem.split("-")[0] == claim]
        return refused[0] if refused else "no record has this figure"
    having.sort(key=lambda one: one.provenance.when_utc, reverse=True)
    newest, figures = having[0], [one.outcome.figures[name] for one in having]
    exact = figures[0].kind == "exact"
    reasons = [_differs(bound.text, one) for one in (figures if exact else figures[:1])]
    if not all(reasons):
        return ""
    return f"{reasons[0]} ({newest.device.name}, {newest.date})"


def _differs(text: str, figure: Figure) -> str:
    """How the number in the prose differs from the figure; empty if it does not."""
    number = _NUMBER.search(text)
    if number is None:
        return "there is no number in it"
    factor = _factor(text[number.end() :], figure.unit)
    if factor is None:
        return f"its unit is not the record's ({figure.unit})"
    part = number["part"] or ""
    said = float(re.sub(r"[^0-9]", "", number["whole"]) + part)
    said = -said if number["sign"] else said
    # half a unit of the last digit shown
    precision = 0.5 * 10.0 ** -max(len(part) - 1, 0)
    recorded = figure.value / factor
    if abs(recorded - said) <= precision + _ROUND * abs(recorded):
        return ""
    if figure.kind != "exact" and figure.low is not None and figure.high is not None:
        low, high = figure.low / factor, figure.high / factor
        if low <= said <= high:
            return ""
    return f"the record says {shown(figure)}"


def _factor(rest: str, unit: str) -> float | None:
    """The factor from the prose's unit to the record's; None if they do not convert."""
    words = rest.strip(" *_.,;:)\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}")
    if words in ("", unit):
        return 1.0
    first = words.split()[0]
    for scale in _SCALES:
        if unit in scale:
            known = first if first in scale else words
            if known in scale:
                return scale[known] / scale[unit]
            # a plain number may be followed by what it counts, but not by another unit
            foreign = any(first in other for other in _SCALES)
            return 1.0 if unit == "1" and not foreign else None
    return None
