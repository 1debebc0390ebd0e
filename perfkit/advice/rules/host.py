"""The host is the bottleneck: Python between operators, tiny operators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.line_kinds import (
    BACKWARD,
    FORWARD,
    OTHER,
    SLEEP,
    WAITING,
    beside_the_model,
    kind_of,
)
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_count, fmt_ms, fmt_share, plural
from perfkit.trace.ask.operators import Operator
from perfkit.trace.record.lines import Line

# In a healthy step of a few ms, Python between ops takes up to a tenth.
_LEAST_SHARE = 0.15
# An op on the CPU costs a few µs before it computes anything (torch's dispatcher); a shorter op is
# mostly that cost.
_TINY_US = 10.0
# A ResNet-50 step has about 1,000 ops issued one by one from Python; a loop over elements has more.
_MANY_OPS = 500
# An op called this often in a step is in a loop like the tiny ones; a rewrite that removes the loop
# removes it too.
_OFTEN = 50
_LEAST_SAMPLES = 5
# Python takes some tens of µs between two operators; a line that does other work takes longer.
_SHORT_GAP_NS = 300_000
# A single gap a step does not show operators that are called one by one.
_FEWEST_CALLS = 2
# Up to here a gap may be the call of an operator alone; a longer one has other Python in it.
_CALL_NS = 50_000
# From this share of the samples on, a line is what that time goes to.
_MOST = 0.5

_WHOLE_TENSOR = (
    "# one operation on the whole tensor instead of a loop over its parts:\n"
    "loss = (prediction - target).abs().mean()  # not: sum(abs(p - t) for p, t in ...)\n"
    "# or let the compiler fuse them: torch.compile(the_function)"
)
_SUM_OF_PYTHON = re.compile(r"(?<![.\w])sum\(")
_SUM = (
    "# one operation: Python's sum() takes the elements of a tensor one at a time\n"
    "n = (predicted == labels).sum()  # not: sum(predicted == labels)\n"
    "total = torch.stack(list_of_tensors).sum()  # not: sum(list_of_tensors)"
)
_TITLES = {
    WAITING: "The code waits for other processes or threads for much of the step",
    SLEEP: "The code sleeps for much of the step",
}
# What to do where no line is known: in a recording, in a file with Python's stack, without it.
_FIND_THE_LINE = (
    "# which code runs then? of a function you suspect, line by line:\n"
    "# %lprun -f the_function the_function(...)",
    'perfkit.Timeline("trace.json.gz")  # it has the Python functions that ran then',
    "# which code runs then? record it with Python's stack,\n"
    "with torch.profiler.profile(with_stack=True) as recording:\n"
    "    step(batch)\n"
    "# or have perfkit name the lines:  perfkit run script.py",
)


@rule
def python(case: Case) -> Iterator[Finding]:
    """Python and other work outside of torch's operators."""
    lost, share = case.lost_to("other"), case.shares["other"]
    if (case.idle["host"] if case.on_device else lost) < _LEAST_SHARE:
        return
    evidence = [
        f"{fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) are in no operator "
        "and no DataLoader"
    ]
    if case.on_device:
        evidence.append(f"meanwhile the device is idle for {fmt_share(lost)} of each step")
    parts = case.outside_of_torch
    inside = case.lines_in(parts)
    lines = [x for x in inside.by_line() if not x.in_data_wait]
    top = lines[0] if lines and lines[0].n_samples >= _LEAST_SAMPLES else None
    kind = OTHER if top is None else kind_of(top, trains=case.trains)
    what = "Python" if case.knows_of_python else "What runs"
    # a line of numpy or logging that calls torch now and then has short gaps, too
    does_more = top is not None and kind not in (OTHER, FORWARD, BACKWARD) and top.share >= _MOST
    lengths = parts.end - parts.start
    short = np.sort(lengths[lengths < _SHORT_GAP_NS])
    n_calls = len(short) / case.n_steps
    if short.sum() > lengths.sum() / 2 and not does_more and n_calls >= _FEWEST_CALLS:
        half_ns = int(short[np.searchsorted(np.cumsum(short), short.sum() / 2)])
        evidence.append(
            f"most of it is in {fmt_count(round(n_calls))} gaps a step, half of that time in gaps "
            f"of {fmt_ms(half_ns / 1e6)} or less"
        )
        yield found(
            "small-calls",
            f"Calling small operators {'from Python ' * case.knows_of_python}takes much of the step"
            if half_ns <= _CALL_NS
            else f"{what} between operators takes much of the step",
            evidence,
            "# more work for each call: a larger batch, or one operation on the whole tensor\n"
            "# in place of several on its parts; or let the compiler fuse them:\n"
            "model = torch.compile(model)\n"
            "# the profiler adds some µs to each call: compare with an unprofiled step",
            cures=("host",),
            share=lost,
        )
        return
    if top is not None:
        evidence.append(
            f"{fmt_share(top.share)} of it ({top.n_samples} of {inside.n_samples} samples) is at "
            f"{top.place}: {kind.words}"
        )
    waits = kind is WAITING
    yield found(
        kind.rule,
        kind.title or _TITLES.get(kind, f"{what} outside of torch takes much of the step"),
        evidence,
        _FIND_THE_LINE[case.is_file + (case.is_file and not case.knows_of_python)]
        if top is None
        else kind.what_to_do,
        cures=("host",),
        share=lost,
        formula="no bound: the work that it waits for is not recorded" * waits,
        has_bound=not waits,
        line=None if top is None else top.shown,
    )


@rule
def tiny_ops(case: Case) -> Iterator[Finding]:
    """On a CPU: so many tiny operations that calling them is most of the work."""
    if case.on_device:
        return
    aside = case.ops_inside(case.labels("Optimizer."))
    aside += case.ops_inside(case.labels("enumerate(DataLoader)"))
    # calls outside the optimizer and data loading
    calls = {o: max(o.count - aside[o.name], 0) for o in case.operators}

    def share_of(ops: list[Operator]) -> float:
        return sum(o.self_us * calls[o] / o.count for o in ops) / case.wall_us

    tiny = [o for o in case.operators if o.self_us / o.count < _TINY_US]
    per_step = sum(calls[o] for o in tiny) / case.n_steps
    share = share_of(tiny)
    if per_step < _MANY_OPS or share < _LEAST_SHARE:
        return
    often = [o for o in case.operators if o in tiny or calls[o] >= _OFTEN * case.n_steps]
    # Replacing the loop with one operation also removes its larger ops and the Python between them:
    # without these, "at most" would not be true.
    all_of_it = min(share_of(often) + case.typical.breakdown.shares()["other"], 1.0)
    line = _line_that_calls(case)
    named = sorted(tiny, key=lambda o: -o.count)[:3]
    kind = None if line is None else beside_the_model(line, trains=case.trains)
    yield found(
        "tiny-ops",
        "Many tiny operations: calling them takes much of the step",
        [
            f"{plural(per_step, 'operation')} of less than {_TINY_US:g} µs in each step take "
            f"{fmt_share(share)} of it, most often "
            + ", ".join(f"{o.name} ({fmt_count(o.count / case.n_steps)})" for o in named)
        ],
        ""
        if line is None
        else kind.what_to_do
        if kind
        else _SUM
        if _SUM_OF_PYTHON.search(line.source)
        else _WHOLE_TENSOR,
        cures=("compute",),
        share=all_of_it,
        of="with what else is called so often, and the Python between, ",
        line=None if line is None else line.shown,
    )


def _line_that_calls(case: Case) -> Line | None:
    """The line most often seen outside of backward, optimizer and loader; None if none stands out.

    Operators alone do not show which code calls them.
    """
    seen = [
        x
        for x in case.lines.by_line()
        if not x.in_data_wait and not re.search(r"\.(backward|step)\(", x.source)
    ]
    top = max(seen, key=lambda x: x.n_samples, default=None)
    n = sum(x.n_samples for x in seen)
    return top if top is not None and top.n_samples >= max(_LEAST_SAMPLES, n / 4) else None
