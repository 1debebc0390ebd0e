"""A trace report as text and as an HTML page: the profile, and the ranks before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit import show
from perfkit._printable import printable
from perfkit.advice.trace_report import TraceReport
from perfkit.show import profile as _profile
from perfkit.show._text import table, wrap
from perfkit.words import fmt_ms, fmt_share, plural

__all__ = ["brief", "html", "page", "text"]

_RANKS_HEADER = ("rank", "file", "bound by", "step", "compute", "communication", "idle")
# Of a hundred ranks, those that the others wait for and the slowest say what there is to say.
_MOST_RANKS = 16


def text(obj: Any) -> str:
    """Plain text of a TraceReport, at most 96 columns wide; ``repr`` of others."""
    return _as_text(obj, _profile.text)


def brief(obj: Any) -> str:
    """The same without the profile's tables."""
    return _as_text(obj, _profile.brief)


def _as_text(obj: Any, profile_text: Callable[[Any], str]) -> str:
    if not isinstance(obj, TraceReport):
        return repr(obj)
    blocks = [wrap(_head(obj))]
    if obj.ranks:
        blocks.append(table(_RANKS_HEADER, _ranks(obj), align="><<>>>>"))
        blocks.append(wrap(_chosen(obj)))
    blocks.append(profile_text(obj.profile))
    if obj.comparison is not None:
        blocks.append(show.text(obj.comparison))
    if obj.diff is not None:
        blocks.append(f"{_compared(obj)}\n\n{show.text(obj.diff)}")
    return "\n\n".join(blocks)


def html(obj: Any) -> str:
    """HTML of a TraceReport: self-contained, escaped, without scripts."""
    from perfkit.show._html import render_string

    if not isinstance(obj, TraceReport):
        return render_string("<pre>{{ shown }}</pre>", shown=repr(obj))
    lead = render_string(
        "<p>{{ head }}</p>"
        "{% if rows %}<table><thead><tr>{% for h in header %}<th scope=col>{{ h }}</th>{% endfor %}"
        "</tr></thead><tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>"
        "{% endfor %}</tr>{% endfor %}</tbody></table><p>{{ chosen }}</p>{% endif %}",
        head=_head(obj),
        header=_RANKS_HEADER,
        rows=_ranks(obj),
        chosen=_chosen(obj) if obj.ranks else "",
    )
    parts = [f'<div class="pk-report">{lead}</div>', _profile.html(obj.profile)]
    if obj.comparison is not None:
        parts.append(show.html(obj.comparison))
    if obj.diff is not None:
        parts += [render_string("<h2>{{ what }}</h2>", what=_compared(obj)), show.html(obj.diff)]
    return "\n".join(parts)


def page(obj: TraceReport, *, scrub: bool = True) -> str:
    """The same as a whole page, for a file of its own, without what is private."""
    from perfkit.show.page import page as whole

    return whole(obj, title=f"perfkit trace: {_name(obj.file)}", scrub=scrub)


def _name(file: str) -> str:
    return printable(Path(file).name)


def _head(of: TraceReport) -> str:
    name = _name(of.file)
    if not of.ranks:
        return f"{name}: {plural(len(of.profile.trace), 'event')}"
    shown = (
        f"; shown are the {_MOST_RANKS} that the others wait for or that are slowest"
        if len(of.ranks) > _MOST_RANKS
        else ""
    )
    return f"{len(of.ranks)} ranks: {name} and {len(of.ranks) - 1} more{shown}"


def _compared(of: TraceReport) -> str:
    return f"From {_name(of.other)} (before) to {_name(of.file)} (after)"


def _chosen(of: TraceReport) -> str:
    name = _name(of.file)
    waits = "communication" in of.profile.breakdown.device_shares()
    late = of.comparison.stragglers if of.comparison is not None else ()
    why = (
        "the others wait for it"
        if late
        else "it waits least for the others"
        if waits
        else "the slowest of them"
    )
    return f"Below: {name} ({why})."


def _ranks(of: TraceReport) -> list[tuple[str, ...]]:
    rows = []
    late = of.comparison.stragglers if of.comparison is not None else ()
    first = sorted(
        range(len(of.ranks)),
        key=lambda i: (
            of.ranks[i]["file"] != of.file,
            of.ranks[i]["rank"] not in late,
            -of.ranks[i]["step_ms"]["median"],
        ),
    )
    for rank in (of.ranks[i] for i in sorted(first[:_MOST_RANKS])):
        device = rank["device_shares"]
        rows.append(
            (
                "–" if rank["rank"] is None else str(rank["rank"]),
                _name(rank["file"]),
                rank["bound_by"],
                fmt_ms(rank["step_ms"]["median"]),
                *(fmt_share(device.get(c)) for c in ("compute", "communication", "idle")),
            )
        )
    return rows
