"""Python loops over a tensor's elements, and tensors created on the wrong device."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from math import prod

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_share, plural
from perfkit.trace.read.columns import Category, Int64
from perfkit.trace.read.events import is_data_wait
from perfkit.trace.read.intervals import union
from perfkit.trace.read.steps import WHOLE, n_backward_passes

# As in torch.profiler's pattern: ten repetitions of the same ops from one select to the next.
_LEAST_REPEATS = 10
_LONGEST_BODY = 64
_MOST_SELECTS = 6  # in one body: p[i], y[i], p[i][k] …
# An op that is mostly call overhead takes 5 to 50 µs under the profiler; a layer's op takes longer.
_SMALL_OP_US = 100.0
# Around what TorchScript runs: a method, a graph that it did not optimize, a derivative.
_TORCHSCRIPT = frozenset({"forward", "fallback_function", "<backward op>"})
_MAKES = frozenset(
    {
        "aten::zeros", "aten::ones", "aten::full", "aten::rand", "aten::randn", "aten::arange",
        "aten::eye", "aten::linspace", "aten::zeros_like", "aten::ones_like", "aten::rand_like",
        "aten::randn_like", "aten::randint", "aten::randperm", "aten::tril", "aten::triu",
    }
)  # fmt: skip

_NOT_SHOWN = (
    "; whether the copy that follows is one of that tensor is not recorded, so look at the line"
)


@rule
def indexing(case: Case) -> Iterator[Finding]:
    """A loop over a tensor's elements: ``for i in …: t[i] …``."""
    if case.steps.how_found == WHOLE and n_backward_passes(case.trace) > 1:
        return  # the loop is the training loop itself
    trace, inside = case.trace, case.nesting
    is_select = case.is_named("aten::select") & ~_loading(case) & ~_called_by_no_python(case)
    if is_select.sum() < _LEAST_REPEATS:
        return
    runs = _runs(case, np.flatnonzero(is_select))
    if not runs:
        return
    starts = np.array([trace.start_ns[inside.rows[first]] for first, _, _ in runs])
    ends = np.array([trace.end_ns[inside.rows[last]] for _, last, _ in runs])
    lost = case.lost_in(union(starts, ends))
    n_repeats = sum(n for _, _, n in runs)
    body = _body(case, runs[0][0])
    gain, formula = amdahl(lost)
    yield Finding(
        rule="loop-indexing",
        cures=("host", "launch", "sync", "compute"),
        title="A Python loop takes a tensor apart element by element",
        evidence=(
            f"{plural(n_repeats / case.n_steps, 'time')} per step the same operations follow an "
            "index: "
            f"{', '.join(body[:5])}{' …' if len(body) > 5 else ''}",
            f"these loops cost {fmt_share(lost)} of each step",
        ),
        what_to_do=(
            "y = x * weight  # not: for i in range(len(x)): y[i] = x[i] * weight\n"
            "total = x[index].sum()  # not: for i in index: total += x[i]\n"
            "rows = x.unbind()  # where a loop must be: take it apart once"
        ),
        gain_at_most=gain,
        formula=formula,
    )


def _loading(case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Positions inside the DataLoader, whose collating does not count."""
    trace = case.trace
    parts = case.span(case.rows(Category.ANNOTATION, Category.OP, named=is_data_wait))
    return parts.covers(trace.start_ns[case.nesting.rows])


def _called_by_no_python(case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Positions right inside an operator of torch or a script: a loop there is theirs."""
    inside, trace = case.nesting, case.trace
    is_theirs = trace.name_table(lambda n: n.startswith("aten::") or n in _TORCHSCRIPT)
    around = inside.rows[np.maximum(inside.parent_op, 0)]
    return (inside.parent_op >= 0) & is_theirs[trace.name_id[around]]


def _runs(case: Case, selects: Int64) -> list[tuple[int, int, int]]:
    """Loops, each as (first position, last position, repetitions).

    A stretch is a select and the ops after it on its level, up to the next select; a loop body is
    one or a few stretches that repeat.
    """
    names: list[int] = case.trace.name_id[case.nesting.rows].tolist()
    next_op: list[int] = case.next_op.tolist()
    is_select = set(selects.tolist())
    seen: set[int] = set()
    runs = []
    for first in selects.tolist():
        chain: list[tuple[int, tuple[int, ...], int]] = []  # position, ops after it, last of them
        at = first
        while at in is_select and at not in seen:
            seen.add(at)
            ops: list[int] = []
            end, after = at, next_op[at]
            while after >= 0 and after not in is_select and len(ops) < _LONGEST_BODY:
                ops.append(names[after])
                end, after = after, next_op[after]
            chain.append((at, tuple(ops), end))
            at = after
        if len(chain) >= _LEAST_REPEATS:
            runs += _repeated(chain)
    return [run for run in runs if _is_made_of_small_ops(case, next_op, run)]


def _repeated(chain: list[tuple[int, tuple[int, ...], int]]) -> list[tuple[int, int, int]]:
    """The loops in a chain of stretches: the shortest period that repeats often enough."""
    numbers: dict[tuple[int, ...], int] = {}
    ids = np.array([numbers.setdefault(ops, len(numbers)) for _, ops, _ in chain])
    for period in range(1, _MOST_SELECTS + 1):
        if len(ids) < period * _LEAST_REPEATS:
            break
        again = np.r_[False, ids[period:] == ids[:-period], False]
        begins = np.flatnonzero(again[1:] & ~again[:-1])
        ends = np.flatnonzero(~again[1:] & again[:-1])
        found = []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            last = end + period  # one past the last stretch that repeats an earlier one
            n = (last - begin) // period
            # the last repetition runs into whatever follows the loop
            follows = (
                last < len(chain)
                and chain[last][1][: len(chain[last - period][1])] == (chain[last - period][1])
            )
            n += follows and (last - begin) % period == period - 1
            if n >= _LEAST_REPEATS:
                found.append((chain[begin][0], chain[last - 1][2], n))
        if found:
            return found
    return []


def _is_made_of_small_ops(case: Case, next_op: list[int], run: tuple[int, int, int]) -> bool:
    """False for a loop around real work, such as the time steps of a recurrent net."""
    first, last, _ = run
    at = first
    took_us: list[float] = []
    while at >= 0 and at <= last:
        took_us.append(float(case.trace.dur_us[case.nesting.rows[at]]))
        at = next_op[at]
    # the median: an op that was preempted is still small
    return statistics.median(took_us) <= _SMALL_OP_US


def _body(case: Case, first: int) -> list[str]:
    names, rows = case.trace.names, case.nesting.rows
    found = [names[case.trace.name_id[rows[first]]]]
    at = int(case.next_op[first])
    while names[case.trace.name_id[rows[at]]] != "aten::select" and len(found) < 8:
        found.append(names[case.trace.name_id[rows[at]]])
        at = int(case.next_op[at])
    return found


def _n_elements(case: Case, first: int, last: int) -> set[int]:
    """How many elements the tensors have that these ops are given; empty where not recorded."""
    thread = case.trace.thread[case.nesting.rows]
    here = (at for at in range(first, last) if thread[at] == thread[first])
    return {prod(sizes) for at in here for sizes in case.dims(at) if _has_elements(sizes)}


def _has_elements(sizes: object) -> bool:
    # an argument that is no tensor has an empty list, as has a tensor without dimensions
    if not isinstance(sizes, list) or not sizes:
        return False
    return all(isinstance(n, int) and n > 0 for n in sizes)


@rule
def made_on_the_host(case: Case) -> Iterator[Finding]:
    """A tensor is filled on the host and then copied: ``torch.zeros(n).to(device)``."""
    if not case.on_device:
        return
    trace, rows = case.trace, case.nesting.rows
    ids = [i for i, name in enumerate(trace.names) if name in _MAKES]
    made = np.flatnonzero(np.isin(trace.name_id[rows], ids) & (case.next_op >= 0) & ~_loading(case))
    if not len(made):
        return
    moved = case.next_op[made]
    is_move = case.is_named("aten::to", "aten::_to_copy", "aten::copy_")[moved]
    made, moved = made[is_move], moved[is_move]
    to_device = trace.name_table(lambda n: "HtoD" in n)
    pairs = []
    same = True  # as far as recorded sizes show, each copy is one of the tensor made before it
    for a, b in zip(made.tolist(), moved.tolist(), strict=True):
        copies = case.launched_within(b)
        made_here = len(case.launched_within(a)) == 0
        if not made_here or not to_device[trace.name_id[copies]].any():
            continue
        filled, copied = _n_elements(case, a, b), _n_elements(case, b, b + 1)
        if not filled or not copied:
            same = False
        elif not filled & copied:
            continue
        pairs.append((a, b))
    if not pairs:
        return
    starts = np.array([trace.start_ns[rows[a]] for a, _ in pairs])
    ends = np.array([trace.end_ns[rows[b]] for _, b in pairs])
    lost = case.lost_in(union(starts, ends))
    name = trace.names[trace.name_id[rows[pairs[0][0]]]].removeprefix("aten::")
    gain, formula = amdahl(lost)
    yield Finding(
        rule="made-on-host",
        cures=("host", "launch", "sync", "copy"),
        title="Tensors are filled on the host and then copied to the device",
        evidence=(
            f"{plural(len(pairs) / case.n_steps, 'time')} per step, first with torch.{name}"
            + ("" if same else _NOT_SHOWN),
            f"meanwhile the device is idle for {fmt_share(lost)} of each step",
        ),
        what_to_do=(
            "noise = torch.randn(shape, device=device)  # not: torch.randn(shape).to(device)"
        ),
        gain_at_most=gain,
        formula=formula,
    )
