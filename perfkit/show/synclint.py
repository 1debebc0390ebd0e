"""How a list of syncs looks, and a comparison of prediction with reality."""

from __future__ import annotations

from perfkit.advice.synclint.find import Sync, Syncs
from perfkit.advice.synclint.reality import SyncCheck
from perfkit.show._text import WIDTH, clip, notes, wrap
from perfkit.words import fmt_ms

__all__ = ["html", "text"]

_DIFFERENCES = (
    ("only_happened", "Happened, and was not predicted"),
    ("only_predicted", "Predicted, and did not happen here"),
)


def text(obj: Sync | Syncs | SyncCheck) -> str:
    """The plain-text form, at most 96 columns wide."""
    if isinstance(obj, Sync):
        return "\n".join(_lines(obj))
    lines = [wrap(sentence(obj))]
    lines += [wrap(seen(obj))] if seen(obj) else []
    lines += notes(obj.warnings)
    for sync in obj.happened if isinstance(obj, SyncCheck) else obj:
        lines += ["", *_lines(sync)]
    if isinstance(obj, SyncCheck):
        for field, title in _DIFFERENCES:
            syncs = getattr(obj, field)
            lines += ["", f"{title}: {len(syncs)}"] if syncs else []
            lines += [f"  {clip(f'{sync.place}: {sync.code}', WIDTH - 2)}" for sync in syncs]
    return "\n".join([*lines, "", wrap(obj.provenance.sentence())])


def html(obj: Sync | Syncs | SyncCheck) -> str:
    """The HTML form."""
    from perfkit.show._html import render

    if isinstance(obj, Sync):
        return render(
            "synclint.html",
            sentence="",
            warnings=(),
            syncs=(obj,),
            groups=(),
            foot="",
            waited=waited,
            origin=origin,
        )
    checked = isinstance(obj, SyncCheck)
    groups = [(title, getattr(obj, field)) for field, title in _DIFFERENCES] if checked else []
    return render(
        "synclint.html",
        sentence=" ".join(filter(None, (sentence(obj), seen(obj)))),
        warnings=obj.warnings,
        syncs=obj.happened if isinstance(obj, SyncCheck) else obj,
        groups=[(title, syncs) for title, syncs in groups if syncs],
        foot=obj.provenance.sentence(),
        waited=waited,
        origin=origin,
    )


def seen(obj: Syncs | SyncCheck) -> str:
    """Which part of the program was watched; empty where it was all."""
    return obj.predicted.seen if isinstance(obj, SyncCheck) else obj.seen


def sentence(obj: Syncs | SyncCheck) -> str:
    """The result in one sentence."""
    if isinstance(obj, SyncCheck):
        return obj.sentence
    if not obj:
        return "No line of this code would make the host wait for a GPU."
    n, times = len(obj), sum(sync.count for sync in obj)
    lines = "1 line" if n == 1 else f"{n} lines"
    often = "once" if times == 1 else f"{times} times"
    copies = sum(sync.kind == "copy" for sync in obj)
    cheap = sum(sync.right_after == sync.count for sync in obj)
    more = ""
    if copies:
        of_them = "for a copy to it" if copies == n else f"{copies} of them for a copy to it"
        more += f", {of_them}"
    if cheap and cheap < n:
        more += f"; {cheap} only right after another wait, where that costs next to nothing"
    return f"{lines} would make the host wait for a GPU, {often} in this run{more}."


def waited(sync: Sync) -> str:
    """How often the line waited and, where it was traced, how long: ``3 times, 1.2 ms in all``."""
    times = f"{sync.count} times" if sync.count > 1 else ""
    if sync.waited_ms is None:
        cheap = sync.right_after == sync.count
        return ", ".join(filter(None, (times, "right after another wait" if cheap else "")))
    took = fmt_ms(sync.waited_ms)
    return f"{times}, {took} in all" if times else f"waited {took}"


def origin(sync: Sync) -> tuple[str, ...]:
    """Whose line it is, where it is not the user's own."""
    return tuple(
        words
        for words in (
            f"below {sync.below}" if sync.below else "",
            f"in {sync.module}" if sync.module else "",
            f"asked for in {sync.inside}" if sync.inside else "",
        )
        if words
    )


def _lines(sync: Sync) -> list[str]:
    times = f"  ({waited(sync)})" if waited(sync) else ""
    lines = [
        f"{sync.place}{times}",
        f"    {clip(sync.code, WIDTH - 4)}" if sync.code else "",
        wrap(f"{sync.op}: {sync.why}", indent="  "),
        *(f"  {words}" for words in origin(sync)),
        "  instead:",
        *(f"    {line}" for line in sync.instead.splitlines()),
    ]
    return [line for line in lines if line]
