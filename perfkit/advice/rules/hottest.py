"""The line of code on which the steps spend most of their time, whatever the cause."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.line_kinds import BACKWARD, OTHER, kind_of
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_share
from perfkit.trace.record.lines import Line, LineSamples

# A line with less of the time is one among several; a wait for data of less is no matter.
_LEAST_SHARE, _LEAST_WAIT = 0.35, 0.2
_LEAST_SAMPLES = 8
# Lines that every training loop has, and that say nothing by themselves.
_USUAL = re.compile(r"\.backward\(|\.step\(|\.zero_grad\(|^(async )?for\b.*:$|^with\b.*:$")


@rule
def hottest_line(case: Case) -> Iterator[Finding]:
    """No busy machine changes it: the samples are of one clock, and fall where time goes."""
    top = _hottest(case.lines)
    if top is not None:
        yield _finding(case, top, "of the steps' time", case.lines.n_samples)
    waits = case.shares["data wait"] >= _LEAST_WAIT
    works = _hottest(case.worker_lines) if waits else None
    if works is not None:
        yield _finding(case, works, "of the loader workers' time", case.worker_lines.n_samples)


def _hottest(lines: LineSamples) -> Line | None:
    told = [x for x in lines.by_line() if not (_USUAL.search(x.source) or _computes(x))]
    top = max(told, key=lambda x: x.n_samples, default=None)
    if top is None or top.n_samples < _LEAST_SAMPLES or top.share < _LEAST_SHARE:
        return None
    return top


def _computes(line: Line) -> bool:
    """Whether it calls a model, or is a part of one: that it computes is what it is for."""
    return line.function == "forward" or "torch/nn/modules" in line.mostly


def _finding(case: Case, top: Line, of_what: str, n: int) -> Finding:
    kind = kind_of(top, trains=case.trains)
    low, high = top.interval
    inside = f", mostly in {top.mostly}" if top.mostly else ""
    gain, formula = amdahl(top.share)
    return Finding(
        rule="slow-line" if kind.title else "hottest-line",
        cures=("host", "compute", "data"),
        title=kind.title or f"{fmt_share(top.share)} {of_what} is at this line{inside}",
        evidence=(
            f"{fmt_share(top.share)} {of_what} [{fmt_share(low)}, {fmt_share(high)}], by "
            f"{top.n_samples} of {n} samples{inside}",
        ),
        what_to_do=kind.what_to_do(trains=case.trains) if kind not in (OTHER, BACKWARD) else "",
        gain_at_most=gain,
        formula=formula,
        line=f"{top.place}: {top.source}",
    )
