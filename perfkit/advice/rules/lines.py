"""What the line samples tell: which line the time is at, and what such a line does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.line_kinds import (
    BACKWARD,
    BY_CLASS,
    BY_LIBRARY,
    DIFFERENCES,
    OPENS,
    OTHER,
    LineKind,
    beside_the_model,
    kind_of,
    kind_of_source,
)
from perfkit.advice.rules import rule
from perfkit.base.words import fmt_share, plural
from perfkit.trace.record.lines import Line, LineSamples

# A line with less of the time is one among several; a wait for data of less is no matter.
_LEAST_SHARE, _LEAST_WAIT = 0.35, 0.2
_LEAST_SAMPLES = 8
_LEAST_OF_A_FUNCTION = 0.2
# What is of one kind needs fewer, and a smaller share to be felt.
_LEAST_OF_A_KIND, _LEAST_KIND = 5, 0.1
# Lines that every training loop has, and that say nothing by themselves.
_USUAL = re.compile(r"\.backward\(|\.step\(|\.zero_grad\(|^(async )?for\b.*:$|^with\b.*:$")

_OF_A_FUNCTION = (
    "# is its result needed each time? If it is only looked at: every 50th time, or once\n"
    "# an epoch; if it goes through all that came before, keep a running result"
)


@rule
def hottest_line(case: Case) -> Iterator[Finding]:
    """No busy machine changes it: the samples are of one clock, and fall where time goes."""
    top = _hottest(case.lines)
    if top is not None:
        yield _at_this_line(case, top, "of the steps' time")
    else:
        yield from _in_a_function(case)
    waits = case.shares["data wait"] >= _LEAST_WAIT
    works = _hottest(case.worker_lines) if waits else None
    if works is not None:
        yield _at_this_line(case, works, "of the loader workers' time")


def _hottest(lines: LineSamples) -> Line | None:
    """The line with most samples, but for what each loop has: that a model computes is its use."""
    told = (
        x
        for x in lines.by_line()
        if OPENS.fits(x.source)
        or not (
            _USUAL.search(x.source) or x.function == "forward" or "torch/nn/modules" in x.mostly
        )
    )
    top = max(told, key=lambda x: x.n_samples, default=None)
    is_hot = top is not None and top.n_samples >= _LEAST_SAMPLES and top.share >= _LEAST_SHARE
    return top if is_hot else None


def _in_a_function(case: Case) -> Iterator[Finding]:
    """The function with most samples, where none of its lines has many: no model, and no loop."""
    of: dict[tuple[str, str], list[Line]] = {}
    for line in case.lines.by_line():
        of.setdefault((line.file, line.function), []).append(line)
    for (_, name), lines in sorted(of.items(), key=lambda one: -sum(x.share for x in one[1])):
        n, share = sum(x.n_samples for x in lines), sum(x.share for x in lines)
        if n < _LEAST_SAMPLES or share < _LEAST_OF_A_FUNCTION:
            return
        if name in ("forward", "<module>") or any(_USUAL.search(x.source) for x in lines):
            continue
        kinds = ((kind_of(x, trains=case.trains), x) for x in lines)
        known = (one for one in kinds if one[0] in BY_LIBRARY)
        kind, line = next(known, (None, lines[0]))
        yield found(
            "hottest-line",
            f"{fmt_share(share)} of the steps' time is in {name}()"
            + (f", much of it {kind.words}" if kind else ""),
            [f"{n} samples on {plural(len(lines), 'line')} of it"],
            kind.what_to_do if kind else _OF_A_FUNCTION,
            cures=("host", "compute", "data"),
            share=share,
            line=line.shown,
        )
        return


def _rule_of(kind: LineKind) -> str:
    return "slow-line" if kind.rule == "host-python" else kind.rule


def _at_this_line(case: Case, top: Line, of_what: str) -> Finding:
    kind = kind_of(top, trains=case.trains)
    low, high = top.interval
    inside = f", mostly in {top.mostly}" if top.mostly else ""
    return found(
        _rule_of(kind) if kind.title else "hottest-line",
        kind.title or f"{fmt_share(top.share)} {of_what} is at this line{inside}",
        [
            f"{fmt_share(top.share)} {of_what} [{fmt_share(low)}, {fmt_share(high)}], by "
            f"{top.n_samples} samples{inside}"
        ],
        kind.what_to_do if kind not in (OTHER, BACKWARD) else "",
        cures=("host", "compute", "data"),
        share=top.share,
        line=top.shown,
    )


@rule
def of_a_kind(case: Case) -> Iterator[Finding]:
    """Lines in forward that are no model; of those and of loading, lines of a kind with a cure."""
    inside = case.lines_in(case.in_forward)
    of: dict[LineKind, list[Line]] = {}
    for line in inside.by_line():
        kind = None if line.in_data_wait else beside_the_model(line, trains=case.trains)
        if kind is None and (by_text := kind_of_source(line.source)) in (BY_CLASS, DIFFERENCES):
            kind = by_text
        if kind is not None:
            of.setdefault(kind, []).append(line)
    for line in (x for x in case.lines.by_line() if x.in_data_wait):
        kind = kind_of(line, trains=case.trains)
        if kind.title:
            of.setdefault(kind, []).append(line)
    for kind, lines in of.items():
        n, is_data = sum(x.n_samples for x in lines), lines[0].in_data_wait
        if is_data:
            share = min(sum(x.share for x in lines), case.lost_to("data wait"))
        else:
            passes = ("forward", "backward") if kind.title else ("forward",)
            share = sum(case.shares[one] for one in passes) * n / inside.n_samples
        if n < _LEAST_OF_A_KIND or (kind.title and share < _LEAST_KIND):
            continue
        yield found(
            _rule_of(kind) if kind.title else "beside-the-model",
            kind.title or f"Part of what counts as forward is {kind.words}",
            [f"{n} line samples fall on such lines: about {fmt_share(share)} of each step"],
            kind.what_to_do,
            cures=("data" if is_data else "compute",),
            share=share,
            line=lines[0].shown,
        )
