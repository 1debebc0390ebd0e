"""Batches gathered by a shuffled index from one large tensor or array in host memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share
from perfkit.trace.read.columns import Category
from perfkit.trace.read.intervals import Intervals, union

# Below this a batch that came for free would not be felt.
_LEAST_SHARE = 0.1
# Do not name a line for fewer samples than this.
_LEAST_SAMPLES = 5
_GATHERS = ("aten::index", "aten::index_select", "aten::take")
# `data[perm[i:i+b]]`, `images[order[lo:hi]]`: a slice of an index.
_OF_A_SLICE = re.compile(r"([A-Za-z_][\w.]*)\s*\[\s*[A-Za-z_][\w.]*\s*\[[^\[\]]*:[^\[\]]*\]")
# `data[idx]`, `data.index_select(0, idx)`, where the name says that it is a shuffled index.
_NAMED = r"\w*(?:perm|shuffle|idxs?\b|inds?\b|index\b|indices|indexes|order\b)\w*"
_BY_NAME = re.compile(
    rf"([A-Za-z_][\w.]*)\s*(?:\[\s*{_NAMED}|\.(?:index_select|take)\(\s*(?:0\s*,\s*)?{_NAMED})",
    re.IGNORECASE,
)


def _gathered(text: str, *, by_name: bool) -> str:
    """The name of what the line takes a batch from; empty where it does not look like that."""
    found = _OF_A_SLICE.search(text) or (_BY_NAME.search(text) if by_name else None)
    return found[1] if found else ""


@rule
def shuffled_gather(case: Case) -> Iterator[Finding]:
    """A batch is put together row by row, from random places of host memory, while all waits.

    Two things must agree: the time, in index operators that launch nothing on a device (or, of
    arrays, in no operator at all), and the line that was running then.
    """
    operators = _index_operators(case)
    for parts, by_name in ((operators, True), (case.outside_of_torch, False)):
        inside = case.lines_in(parts)
        lines = [x for x in inside.by_line() if not x.in_data_wait]
        sources = [(x, _gathered(x.source, by_name=by_name)) for x in lines]
        chosen = [(x, source) for x, source in sources if source]
        n = sum(x.n_samples for x, _ in chosen)
        if n < _LEAST_SAMPLES:
            continue
        # of time in no operator, only the part of the samples that fall on such lines
        part = n / inside.n_samples
        share = case.lost_in(parts) * part
        if share < _LEAST_SHARE:
            continue
        line, data = chosen[0]
        tensor = data if by_name else f"torch.from_numpy({data})"
        gain, formula = amdahl(share)
        yield Finding(
            rule="shuffled-gather",
            cures=("data", "host", "compute"),
            title="Each step gathers its batch by a shuffled index, row by row",
            evidence=(
                f"about {fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) go "
                f"into taking rows of `{data}` at random places in host memory, and copying them",
                f"{n} of the {inside.n_samples} line samples taken in "
                + ("index operators" if by_name else "that kind of time, outside of torch,")
                + f" fall on {line.place}",
            ),
            what_to_do=(
                "# gather the next batch in a worker, alongside the step:\n"
                f"indices = BatchSampler(RandomSampler({data}), batch_size, drop_last=True)\n"
                f"loader = DataLoader(TensorDataset({tensor}), sampler=indices, batch_size=None,\n"
                "                    num_workers=1)  # each index is a whole batch\n"
                "# or shuffle blocks: a slice of a tensor is a view, nothing is copied\n"
                f"first = torch.randperm(len({data}) // batch_size) * batch_size  # "
                f"{'once an epoch' if case.trains else 'anew for each pass'}\n"
                "for i in first.tolist():\n"
                f"    x = {data}[i : i + batch_size]"
            ),
            gain_at_most=gain,
            formula=formula,
            line=f"{line.place}: {line.source}",
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
