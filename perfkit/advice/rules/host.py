"""The host is the bottleneck: Python between operators, tiny operators, slow launches."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.line_kinds import (
    BACKWARD,
    FORWARD,
    OTHER,
    SLEEP,
    WAITING,
    LineKind,
    kind_of,
)
from perfkit.advice.line_kinds import beside_the_model as kind_beside_the_model
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_count, fmt_ms, fmt_share, fmt_us, plural
from perfkit.trace.ask.operators import Operator
from perfkit.trace.read.columns import Category
from perfkit.trace.read.events import graph_captures, launch_calls
from perfkit.trace.read.lookups import covered_ns
from perfkit.trace.record.lines import Line

# In a healthy step of a few ms, Python between ops takes up to a tenth.
_LEAST_SHARE = 0.15
# An op on the CPU costs a few µs before it computes anything (torch's dispatcher); a shorter op is
# mostly that cost.
_TINY_US = 10.0
# A ResNet-50 step has about 1,000 ops issued one by one from Python; a loop over elements has more.
_MANY_OPS = 500
# From here on they are thousands, and all of the work.
_THOUSANDS, _MOST_OF_STEP = 2_000, 0.5
# An op called this often in a step is in a loop like the tiny ones; a rewrite that removes the loop
# removes it too.
_OFTEN = 50
_LEAST_SAMPLES = 5
_LAUNCH_LESS = (
    'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs\n'
    "# or larger batches: the same launches carry more work"
)
# If the code already replays a graph, do not advise graphs.
_LAUNCH_LESS_BESIDE_A_GRAPH = (
    "# the trace replays a CUDA graph: the device waits for what is launched outside of it\n"
    "with torch.cuda.graph(graph):  # capture more of the step\n"
    "    y = prepare(model(x))\n"
    "# or larger batches: the same launches carry more work"
)
_RECORD_LAUNCHES = (
    "# did the device wait for launches? only a recording that has them can tell:\n"
    "from torch.profiler import ProfilerActivity as Activity, profile\n"
    "with profile(activities=[Activity.CPU, Activity.CUDA]) as recording:\n"
    "    step(batch)"
)
_WHOLE_LOSS = (
    "# one operation on the whole tensor instead of a loop over its parts:\n"
    "loss = (prediction - target).abs().mean()  # not: sum(abs(p - t) for p, t in ...)\n"
    "# or let the compiler fuse them:\n"
    "loss_fn = torch.compile(loss_fn)"
)
_WHOLE_TENSOR = (
    "# one operation on the whole tensor instead of a loop over its parts:\n"
    "y = (a - b).abs().mean()  # not: sum(abs(p - q) for p, q in ...)\n"
    "# or let the compiler fuse them: torch.compile(the_function)"
)
# Python takes some tens of µs between two operators; a line that does other work takes longer.
_SHORT_GAP_NS = 300_000
# A single gap a step does not show operators that are called one by one.
_FEWEST_CALLS = 2
# Up to here a gap may be the call of an operator alone; a longer one has other Python in it.
_CALL_NS = 50_000
# What to do where no line is known: no advice about "this line" then.
_NO_STACK = (
    "# the trace does not say which code runs then: record it with Python's stack,\n"
    "with torch.profiler.profile(with_stack=True) as recording:\n"
    "    step(batch)\n"
    "# or have perfkit name the lines:  perfkit run script.py"
)
_IN_THE_STACK = (
    "# no line is known, but the trace has the Python functions that ran: zoom into the gap\n"
    'perfkit.Timeline("trace.json.gz")'
)
_TOO_FEW_SAMPLES = (
    "# too few samples to name a line; of a function you suspect, line by line:\n"
    "# %lprun -f the_function the_function(...)"
)
# From this share of the samples on, a line is what that time goes to.
_MOST = 0.5


@rule
def python(case: Case) -> Iterator[Finding]:
    """Python and other work outside of torch's operators."""
    lost = case.lost_to("other")
    if (case.idle["host"] if case.on_device else lost) < _LEAST_SHARE:
        return
    share = case.shares["other"]
    evidence = [
        f"{fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) are in no torch "
        "operator and no DataLoader"
    ]
    if case.on_device:
        evidence.append(f"meanwhile the device is idle for {fmt_share(lost)} of each step")
    gain, formula = amdahl(lost)
    parts = case.outside_of_torch
    inside = case.lines_in(parts)
    lines = [x for x in inside.by_line() if not x.in_data_wait]
    top = lines[0] if lines and lines[0].n_samples >= _LEAST_SAMPLES else None
    kind = OTHER if top is None else kind_of(top, trains=case.trains)
    # a line of numpy or logging that calls torch now and then has short gaps, too
    does_more = top is not None and kind not in (OTHER, FORWARD, BACKWARD) and top.share >= _MOST
    lengths = parts.end - parts.start
    short = np.sort(lengths[lengths < _SHORT_GAP_NS])
    n_calls = len(short) / case.n_steps
    if short.sum() > lengths.sum() / 2 and not does_more and n_calls >= _FEWEST_CALLS:
        calls, knows = fmt_count(round(n_calls)), case.knows_of_python
        half_ns = int(short[np.searchsorted(np.cumsum(short), short.sum() / 2)])
        evidence.append(
            f"most of it is in {calls} gaps a step of less than {fmt_ms(_SHORT_GAP_NS / 1e6)}, "
            f"half of that time in gaps of {fmt_ms(half_ns / 1e6)} or less: "
            + (
                f"what it costs {'Python' if knows else 'the program'} to call operators, "
                "one by one"
                if half_ns <= _CALL_NS
                else f"{'Python' if knows else 'other work'} between operators that are called "
                "one by one"
            )
        )
        yield Finding(
            rule="small-calls",
            cures=("host",),
            title=(
                f"Calling small operators {'from Python ' * knows}takes much of the step"
                if half_ns <= _CALL_NS
                else f"{'Python' if knows else 'What runs'} between operators takes much of the "
                "step"
            ),
            evidence=tuple(evidence),
            what_to_do=(
                "# more work for each call: a larger batch, or one operation on the whole tensor\n"
                "# in place of several on its parts; or let the compiler fuse them:\n"
                "model = torch.compile(model)\n"
                "# the profiler adds some µs to each call: compare with an unprofiled step"
            ),
            gain_at_most=gain,
            formula=formula,
        )
        return
    if top is not None:
        evidence.append(
            f"{fmt_share(top.share)} of the line samples taken in that time fall on {top.place} "
            f"({top.n_samples} of {inside.n_samples}): {kind.words}"
        )
    if kind is WAITING:
        formula = "no bound: the work that it waits for is not recorded"
    yield Finding(
        rule=kind.rule,
        cures=("host",),
        title=kind.title or _title(case, kind),
        evidence=tuple(evidence),
        what_to_do=(_find_the_line(case) if top is None else kind.what_to_do(trains=case.trains)),
        gain_at_most=gain,
        formula=formula,
        line=None if top is None else f"{top.place}: {top.source}",
        has_bound=kind is not WAITING,
    )


def _find_the_line(case: Case) -> str:
    if not case.is_file:
        return _TOO_FEW_SAMPLES
    return _IN_THE_STACK if case.knows_of_python else _NO_STACK


def _title(case: Case, kind: LineKind) -> str:
    if kind is WAITING:
        return "The code waits for other processes or threads for much of the step"
    if kind is SLEEP:
        return "The code sleeps for much of the step"
    if case.knows_of_python:
        return "Python outside of torch takes much of the step"
    return "What is outside of torch's operators takes much of the step"


@rule
def beside_the_model(case: Case) -> Iterator[Finding]:
    """EMA, mixup, metrics and other packages' optimizers, in time counted as forward."""
    inside = case.lines_in(case.in_forward)
    counts: dict[str, int] = {}
    tops: dict[str, tuple[LineKind, Line]] = {}
    for line in inside.by_line():
        kind = kind_beside_the_model(line, trains=case.trains)
        if kind is not None and not line.in_data_wait:
            counts[kind.name] = counts.get(kind.name, 0) + line.n_samples
            tops.setdefault(kind.name, (kind, line))
    for name, count in counts.items():
        if count < _LEAST_SAMPLES:
            continue
        share = case.shares["forward"] * count / inside.n_samples
        kind, top = tops[name]
        gain, formula = amdahl(share)
        yield Finding(
            rule="beside-the-model",
            cures=("compute",),
            title=f"Part of what counts as forward is {kind.words}",
            evidence=(
                f"{count} of the {inside.n_samples} line samples taken in forward fall on it: "
                f"about {fmt_share(share)} of each step",
            ),
            what_to_do=kind.what_to_do(trains=case.trains),
            gain_at_most=gain,
            formula=formula,
            line=f"{top.place}: {top.source}",
        )


@rule
def tiny_ops(case: Case) -> Iterator[Finding]:
    """On a CPU: so many tiny operations that calling them is most of the work."""
    if case.on_device:
        return
    optimizer = case.labels("Optimizer.")
    in_optimizer = case.ops_inside(optimizer)
    data = case.ops_inside(case.labels("enumerate(DataLoader)"))

    def calls(op: Operator) -> int:
        """Calls outside the optimizer and data loading."""
        return max(op.count - in_optimizer.get(op.name, 0) - data.get(op.name, 0), 0)

    def share_of(ops: list[Operator]) -> float:
        """Self time in these calls, as a share of the steps' time."""
        return sum(o.self_us * calls(o) / o.count for o in ops) / case.wall_us

    tiny = [o for o in case.operators if o.self_us / o.count < _TINY_US]
    per_step = sum(calls(o) for o in tiny) / case.n_steps
    # Part of an op's time is real work; the share is of calls outside the optimizer.
    share = share_of(tiny)
    if per_step < _MANY_OPS or share < _LEAST_SHARE:
        return
    often = [o for o in case.operators if o in tiny or calls(o) >= _OFTEN * case.n_steps]
    # Replacing the loop with one operation also removes its larger ops and the Python between them:
    # without these, "at most" would not be true.
    between = case.typical.breakdown.shares()["other"]
    all_of_it = min(share_of(often) + between, 1.0)
    gain, formula = amdahl(all_of_it)
    place = _line_that_calls(case)
    named = sorted(tiny, key=lambda o: -o.count)[:3]
    yield Finding(
        rule="tiny-ops",
        cures=("compute",),
        title=(
            "Thousands of tiny operations: calling them is the work"
            if per_step >= _THOUSANDS and share >= _MOST_OF_STEP
            else "Many tiny operations: calling them takes much of the step"
        ),
        evidence=(
            f"{plural(per_step, 'operation')} of less than {_TINY_US:g} µs in each step take "
            f"{fmt_share(share)} of it; all that is called {_OFTEN} times a step or more, and the "
            f"Python between, {fmt_share(all_of_it)}",
            "most often "
            + ", ".join(f"{o.name} ({fmt_count(o.count / case.n_steps)} per step)" for o in named),
        ),
        what_to_do="" if place is None else _whole(place, trains=case.trains),
        gain_at_most=gain,
        formula=formula,
        line=None if place is None else f"{place.place}: {place.source}",
    )


def _line_that_calls(case: Case) -> Line | None:
    """The line most often seen outside of backward, optimizer and loader; None if none stands out.

    Operators alone do not show which code calls them.
    """
    seen = [x for x in case.lines.by_line() if not x.in_data_wait and ".backward(" not in x.source]
    seen = [x for x in seen if not re.search(r"\.step\(", x.source)]
    top = max(seen, key=lambda x: x.n_samples, default=None)
    n = sum(x.n_samples for x in seen)
    return top if top is not None and top.n_samples >= max(_LEAST_SAMPLES, n / 4) else None


def _whole(line: Line, *, trains: bool) -> str:
    """What to do about a line that calls many small operators."""
    kind = kind_beside_the_model(line, trains=trains)
    if kind is not None:
        return kind.what_to_do(trains=trains)
    if "loss" in line.function or "loss" in line.source:
        return _WHOLE_LOSS
    return _WHOLE_TENSOR


@rule
def launch_bound(case: Case) -> Iterator[Finding]:
    """The device runs kernels faster than the host launches them."""
    if not case.on_device:
        return
    lost = case.idle["launch"]
    if lost < _LEAST_SHARE:
        return
    # a graph of the whole step leaves the host nothing to do between kernels
    gain, formula = amdahl(lost + sum(case.idle[cause] for cause in ("host", "driver", "kernels")))
    replays = case.rows(Category.RUNTIME, named=lambda n: "GraphLaunch" in n).any()
    yield Finding(
        rule="launch-bound",
        cures=("launch",),
        title=(
            "The device waits for the host to launch kernels"
            if case.joins_launches and case.launches_several
            else "The device idles while the host runs operators"
        ),
        evidence=(
            f"the device idles for {fmt_share(lost)} of each step while the host runs operators",
            _kernels_told(case),
        ),
        what_to_do=(
            _RECORD_LAUNCHES
            if not case.joins_launches
            else _LAUNCH_LESS_BESIDE_A_GRAPH
            if replays
            else _LAUNCH_LESS
        ),
        gain_at_most=gain,
        formula=formula,
    )


def _kernels_told(case: Case) -> str:
    took_us = case.trace.dur_us[case.kernels]
    if not len(took_us):
        talks = case.device_shares["communication"] > 0
        return f"no kernel{' but collectives' * talks} runs in these steps"
    which = "half of them shorter than" if len(took_us) > 1 else "of"
    n = plural(len(took_us) / case.n_steps, "kernel")
    return f"{n} per step, {which} {fmt_us(float(np.median(took_us)))}"


@rule
def start_up(case: Case) -> Iterator[Finding]:
    """The first steps recorded: contexts, libraries and kernels are being loaded."""
    longest = case.set_up.longest
    share = case.share_of(case.set_up.first)
    if share < _LEAST_SHARE:
        return
    calls = ", ".join(f"{name} {fmt_ms(ms)}" for name, ms in longest)
    gain, formula = amdahl(share)
    yield Finding(
        rule="start-up",
        cures=("host", "launch", "driver"),
        title="Much of the profiled time is start-up: calls that take long only the first time",
        evidence=(
            f"first calls take {fmt_share(share)} of the profiled time ({calls}): they make the "
            "device's context, load libraries and kernels, try algorithms, or set up the profiler",
        ),
        what_to_do=(
            "schedule = torch.profiler.schedule(wait=1, warmup=4, active=3)\n"
            "with torch.profiler.profile(schedule=schedule) as profiler:\n"
            f"    for batch in {'loader' if case.trains else 'batches'}:\n"
            "        step(batch)\n"
            "        profiler.step()"
        ),
        gain_at_most=gain,
        formula=f"without start-up, {formula}",
    )


@rule
def graph_capture(case: Case) -> Iterator[Finding]:
    """A graph is captured in the profiled steps: what is launched then does not run."""
    parts = case.capturing
    lost = case.lost_in(parts)
    if lost < _LEAST_SHARE:
        return
    calls = case.trace.start_ns[launch_calls(case.trace, case.steps)]
    n_recorded = int(parts.covers(calls).sum())
    captures = graph_captures(case.trace)
    n_captures = int((covered_ns(parts, captures.start, captures.end) > 0).sum())
    gain, formula = amdahl(lost)
    yield Finding(
        rule="graph-capture",
        cures=("host", "launch", "driver"),
        title="A CUDA graph is captured in the profiled time: what is launched then does not run",
        evidence=(
            f"{plural(n_captures, 'capture')} of {fmt_ms(parts.total_ns / 1e6)} in all; the device "
            f"is idle for {fmt_share(lost)} of the profiled time meanwhile",
            f"{plural(n_recorded, 'launch', 'launches')} in "
            + ("it went into the graph" if n_captures == 1 else "them went into the graphs"),
        ),
        what_to_do=(
            "graph.replay()  # once capturing is over: profile the replays\n"
            "with torch.profiler.profile() as profiler:\n"
            "    graph.replay()\n"
            "    torch.cuda.synchronize()"
        ),
        gain_at_most=gain,
        formula=f"without the capture, {formula}",
    )
