"""What the line samples tell: which line the time is at, and what such a line does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.line_kinds import (
    BACKWARD,
    IMAGES,
    OTHER,
    LineKind,
    beside_the_model,
    kind_of,
)
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.columns import Category
from perfkit.trace.read.intervals import Intervals, union
from perfkit.trace.record.lines import Line, LineSamples

# A line with less of the time is one among several; a wait for data of less is no matter.
_LEAST_SHARE, _LEAST_WAIT = 0.35, 0.2
_LEAST_SAMPLES = 8
_LEAST_OF_A_FUNCTION = 0.2
# What is of one kind needs fewer, and a smaller share to be felt.
_LEAST_OF_A_KIND, _LEAST_KIND = 5, 0.1
# Lines that every training loop has, and that say nothing by themselves.
_USUAL = re.compile(r"\.backward\(|\.step\(|\.zero_grad\(|^(async )?for\b.*:$|^with\b.*:$")
_GATHERS = ("aten::index", "aten::index_select", "aten::take")
# `data[perm[i:i+b]]`, `images[order[lo:hi]]`: a slice of an index.
_OF_A_SLICE = re.compile(r"([A-Za-z_][\w.]*)\s*\[\s*[A-Za-z_][\w.]*\s*\[[^\[\]]*:[^\[\]]*\]")
# `data[idx]`, `data.index_select(0, idx)`, where the name says that it is a shuffled index.
_NAMED = r"\w*(?:perm|shuffle|idxs?\b|inds?\b|index\b|indices|indexes|order\b)\w*"
_BY_NAME = re.compile(
    rf"([A-Za-z_][\w.]*)\s*(?:\[\s*{_NAMED}|\.(?:index_select|take)\(\s*(?:0\s*,\s*)?{_NAMED})",
    re.IGNORECASE,
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
        if not (_USUAL.search(x.source) or x.function == "forward")
        and "torch/nn/modules" not in x.mostly
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
        yield found(
            "hottest-line",
            f"{fmt_share(share)} of the steps' time is in {name}()",
            [f"{n} samples on {plural(len(lines), 'line')} of it, which no rule knows"],
            "# does each step need its result? If it is only looked at: every 50 steps, or once\n"
            "# an epoch; if it goes through all that came before, keep a running result",
            cures=("host", "compute", "data"),
            share=share,
            line=lines[0].shown,
        )
        return


def _at_this_line(case: Case, top: Line, of_what: str) -> Finding:
    kind = kind_of(top, trains=case.trains)
    low, high = top.interval
    inside = f", mostly in {top.mostly}" if top.mostly else ""
    return found(
        "slow-line" if kind.title else "hottest-line",
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
    """Lines in forward that are no model, and lines in the wait for data that are images."""
    in_forward = case.lines_in(case.in_forward)
    beside = [(x, beside_the_model(x, trains=case.trains)) for x in in_forward.by_line()]
    beside = [(x, kind) for x, kind in beside if not x.in_data_wait]
    yield from _by_kind(case, beside, in_forward.n_samples, case.shares["forward"], "compute")
    waits = [(x, kind_of(x, trains=case.trains)) for x in case.lines.by_line() if x.in_data_wait]
    images = [(x, kind) for x, kind in waits if kind is IMAGES]
    n = sum(x.n_samples for x, _ in images)
    share = min(sum(x.share for x, _ in images), case.lost_to("data wait"))
    yield from _by_kind(case, images, n, share, "data")


def _by_kind(
    case: Case, lines: Sequence[tuple[Line, LineKind | None]], n_of: int, share: float, cures: str
) -> Iterator[Finding]:
    """A finding for each kind that takes part of a share of the steps with so many samples."""
    for kind in dict.fromkeys(kind for _, kind in lines if kind is not None):
        mine = [line for line, its in lines if its is kind]
        n = sum(line.n_samples for line in mine)
        part = share * n / max(n_of, 1)
        if n < _LEAST_OF_A_KIND or (cures == "data" and part < _LEAST_KIND):
            continue
        is_data = cures == "data"
        yield found(
            "image-decode" if is_data else "beside-the-model",
            "Images are decoded or changed while the step waits"
            if is_data
            else f"Part of what counts as forward is {kind.words}",
            [f"{n} line samples fall on such lines: about {fmt_share(part)} of each step"],
            kind.what_to_do,
            cures=(cures,),
            share=part,
            line=mine[0].shown,
        )


@rule
def shuffled_gather(case: Case) -> Iterator[Finding]:
    """A batch is put together row by row, from random places of host memory, while all waits.

    Two things must agree: the time, in index operators that launch nothing on a device (or, of
    arrays, in no operator at all), and the line that was running then.
    """
    for parts, by_name in ((_index_operators(case), True), (case.outside_of_torch, False)):
        inside = case.lines_in(parts)
        chosen = [
            (x, match[1])
            for x in inside.by_line()
            if not x.in_data_wait
            and (match := _OF_A_SLICE.search(x.source) or (by_name and _BY_NAME.search(x.source)))
        ]
        n = sum(x.n_samples for x, _ in chosen)
        share = case.lost_in(parts) * n / max(inside.n_samples, 1)
        if n < _LEAST_OF_A_KIND or share < _LEAST_KIND:
            continue
        line, data = chosen[0]
        tensor = data if by_name else f"torch.from_numpy({data})"
        yield found(
            "shuffled-gather",
            "Each step gathers its batch by a shuffled index, row by row",
            [
                f"about {fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) go "
                f"into taking rows of `{data}` at random places in host memory, by {n} line samples"
            ],
            "# gather the next batch in a worker, alongside the step:\n"
            f"indices = BatchSampler(RandomSampler({data}), batch_size, drop_last=True)\n"
            f"loader = DataLoader(TensorDataset({tensor}), sampler=indices, batch_size=None,\n"
            "                    num_workers=1)  # each index is a whole batch",
            cures=("data", "host", "compute"),
            share=share,
            line=line.shown,
        )
        return


def _index_operators(case: Case) -> Intervals:
    """The time in index operators of the steps' own thread that launch nothing on a device."""
    trace, inside = case.trace, case.nesting
    chosen = case.is_named(*_GATHERS) & (trace.thread[inside.rows] == case.steps.thread)
    chosen &= trace.is_a(Category.OP)[inside.rows]
    at = np.flatnonzero(chosen)
    if case.on_device:
        at = np.array([i for i in at if not len(case.launched_within(int(i)))], dtype=np.int64)
    rows = inside.rows[at]
    return union(trace.start_ns[rows], trace.end_ns[rows])
