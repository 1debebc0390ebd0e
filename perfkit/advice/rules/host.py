"""The host is the bottleneck: Python between operators, tiny operators."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.line_kinds import (
    BACKWARD,
    ENVIRONMENT,
    FORWARD,
    OTHER,
    PASSES,
    SLEEP,
    TEXT,
    WAITING,
    WITHOUT_TORCH,
    beside_the_model,
    kind_of,
    text_lines,
)
from perfkit.advice.rules import rule
from perfkit.base.backward_for import keeps_graphs
from perfkit.base.in_one_call import code_of, rounds_in_one_call
from perfkit.base.source import Loop, loops_around, only_line_with, shown_line, statement
from perfkit.base.words import fmt_count, fmt_ms, fmt_share, plural
from perfkit.trace.ask.breakdown import after_updates
from perfkit.trace.ask.operators import Operator
from perfkit.trace.ask.passes import many_passes
from perfkit.trace.read.events import FETCH
from perfkit.trace.record.lines import Line, LineSamples

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

_BATCH = (
    "# {0} passes for one update: one for all of their samples has the same mean gradient\n"
    "loss_fn(model(inputs), targets).backward()\n"
    "# a loader of one sample: batch_size={0}, or what memory takes, rows padded to one length"
)
_FUSED = (
    "# one operation on the whole tensor in place of several on its parts, or the compiler:\n"
    "{0} = torch.compile({0})"
)
# `model = torch.compile(model)` compiles its forward() alone.
_FUSED_METHOD = _FUSED.replace("{0} = torch.compile({0})", "@torch.compile\ndef {0}(self, ...):")
_METHOD = re.compile(r"(?<!<locals>)\.[a-zA-Z_]\w*$")
_MORE_A_CALL = (
    "# more work for each call: a larger batch, or one operation on the whole tensor in place of\n"
    "# several on its parts; torch.compile, where they are the model's.\n"
    "# The profiler adds some µs to each call: compare with an unprofiled step"
)
# Where operators run that no line of the forward pass calls by itself.
_PASSES = re.compile(rf"{PASSES}|\bautograd\.grad\(")
# A loop with so many samples of those around it issues what they issue.
_INNER = 0.7
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
_HOOKS = (
    "hooks = torch.optim.optimizer._global_optimizer_post_hooks  # of all optimizers\n"
    "print(*hooks.values(), *optimizer._optimizer_step_post_hooks.values())"
)


@rule
def host(case: Case) -> Iterator[Finding]:
    """Operators that are too small and too many, and other work outside of them.

    The time between such operators is theirs, too, and so is that of the backward pass: one answer.
    """
    tiny = list(_tiny_ops(case))
    yield from tiny
    yield from _python(case, is_told=bool(tiny))


def _python(case: Case, *, is_told: bool) -> Iterator[Finding]:
    lost, share = case.lost_to("other"), case.shares["other"]
    if (case.idle["host"] if case.on_device else lost) < _LEAST_SHARE:
        return
    evidence = [
        f"{fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) are in no operator "
        "and no DataLoader"
    ]
    if case.on_device:
        idle = fmt_share(case.idle["host"])
        evidence.append(f"meanwhile the device is idle for {idle} of each step")
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
    # few operators are no loop of them: the place that issues most is not what takes the time
    is_many = sum(o.count for o in case.operators) >= _MANY_OPS * case.n_steps
    place = _issued_at(case) if is_many else None
    is_theirs = place is not None and top is not None and (top.file, top.line) in place.below
    is_calls = short.sum() > lengths.sum() / 2 and not does_more and n_calls >= _FEWEST_CALLS
    if top is not None and TEXT.fits(top.mostly) and text_lines(case.lines):
        return
    if is_told and (is_calls or kind is BACKWARD or (is_theirs and kind in (OTHER, FORWARD))):
        return
    if is_calls:
        half_ns = int(short[np.searchsorted(np.cumsum(short), short.sum() / 2)])
        evidence.append(
            f"most of it is in {fmt_count(round(n_calls))} gaps a step, half of that time in gaps "
            f"of {fmt_ms(half_ns / 1e6)} or less"
        )
        # a rewrite that removes a loop removes its longer operators, too
        longest_us = math.inf if place and place.loop else _CALL_NS / 1e3
        yield found(
            "small-calls",
            f"Calling small operators {'from Python ' * case.knows_of_python}takes much of the step"
            if half_ns <= _CALL_NS
            else f"{what} between operators takes much of the step",
            evidence,
            _MORE_A_CALL if place is None else place.what_to_do,
            cures=("host",),
            share=lost if case.on_device else max(lost, _goes(case, longest_us)[1]),
            line=None if place is None else place.line,
        )
        return
    if top is not None:
        evidence.append(
            f"{fmt_share(top.share)} of it ({top.n_samples} of {inside.n_samples} samples) is at "
            f"{top.place}: {kind.words}"
        )
    waits = kind is WAITING
    after = after_updates(case.trace, case.steps)
    hooks = case.share_of(after) * (2 * len(after.start) > case.n_steps)  # not once, by chance
    is_hook = top is None and 2 * hooks > share
    if top is None and case.lines.n_samples and not (is_hook or case.on_device) and lost < _MOST:
        return  # no line was seen at it often, and it is not what bounds the step
    what += " outside of torch"
    if is_hook:
        what = "A hook of the optimizer, perhaps a profiler's,"
        evidence.append(f"{fmt_share(hooks)} follow the last operator of Optimizer.step, within it")
    issued = place if kind is BACKWARD or (is_theirs and kind in (OTHER, FORWARD)) else None
    yield found(
        kind.rule,
        kind.title or _TITLES.get(kind, f"{what} takes much of the step"),
        evidence,
        _HOOKS
        if is_hook
        else _FIND_THE_LINE[case.is_file + (case.is_file and not case.knows_of_python)]
        if top is None
        else (issued or kind).what_to_do,
        cures=("host",),
        share=lost,
        formula="no bound: the work that it waits for is not recorded" * waits,
        has_bound=not waits,
        line=issued.line if issued else None if top is None else top.shown,
    )


def overhead(case: Case) -> tuple[float, float]:
    """On a CPU: the small operators of a step and the share of it that they and the short gaps
    take, without what the profiler may have added; zeros where few are tiny.
    """
    n, goes = _goes(case, _CALL_NS / 1e3) if _tiny(case) else (0.0, 0.0)
    gaps_ns = case.outside_of_torch.end - case.outside_of_torch.start
    long = float(gaps_ns[gaps_ns > _CALL_NS].sum()) / 1e3 / case.wall_us
    share = 1.0 - (1.0 - goes + long) * case.recording
    return (n, share) if share * case.step_us < _TINY_US * n else (0.0, 0.0)


def _tiny_ops(case: Case) -> Iterator[Finding]:
    """On a CPU: so many tiny operations that calling them is most of the work."""
    tiny, (_, share) = _tiny(case), _goes(case)
    if not tiny or share < _of_text(case):  # without the text the next recording shows what is left
        return
    place = _issued_at(case)
    named = sorted(tiny, key=lambda o: -o.count)[:3]
    per_step = sum(tiny.values()) / case.n_steps
    yield found(
        "tiny-ops",
        "Many tiny operations: calling them takes much of the step",
        [
            f"{plural(per_step, 'operation')} of less than {_TINY_US:g} µs in each step take "
            f"{fmt_share(_share_of(tiny, case))} of it, most often "
            + ", ".join(f"{o.name} ({fmt_count(o.count / case.n_steps)})" for o in named),
            *([place.evidence] if place else []),
        ],
        place.what_to_do if place else "",
        cures=("compute", "host"),
        share=share,
        of="with what else is called so often, and all that is between, ",
        line=place.line if place else None,
    )


def _calls(case: Case) -> dict[Operator, int]:
    """Operator → its calls outside of the optimizer and data loading."""
    aside = case.ops_inside(case.labels("Optimizer."))
    aside += case.ops_inside(case.labels(FETCH))
    return {o: max(o.count - aside[o.name], 0) for o in case.operators}


def _tiny(case: Case) -> dict[Operator, int]:
    """The tiny ones; none where they are few or take little, and with a device."""
    tiny = {o: n for o, n in _calls(case).items() if o.self_us / o.count < _TINY_US}
    is_much = sum(tiny.values()) >= _MANY_OPS * case.n_steps and not case.on_device
    return tiny if is_much and _share_of(tiny, case) >= _LEAST_SHARE else {}


def _share_of(calls: Mapping[Operator, int], case: Case) -> float:
    return sum(o.self_us * n / o.count for o, n in calls.items()) / case.wall_us


def _goes(case: Case, longest_us: float = math.inf) -> tuple[float, float]:
    """How many operators of a step are tiny, or up to so long and called often (they are in the
    same loop), and the most of it that goes with them: all but what else its passes compute.

    What is between operators is no operator's, and goes within the passes, too.
    """
    calls, least = _calls(case), _OFTEN * case.n_steps
    us = {o: o.self_us / o.count for o in calls}
    large = {o: n for o, n in calls.items() if us[o] >= _TINY_US}
    stays = {o: n for o, n in large.items() if n < least or us[o] >= longest_us}
    shares = case.typical.breakdown.shares()
    aside = (x for x in case.lines.by_line() if kind_of(x, trains=case.trains) in WITHOUT_TORCH)
    other = max(shares["other"] - sum(x.share for x in aside if not x.in_data_wait), 0.0)
    passes = shares["forward"] + shares["backward"] + other
    n_small = (sum(calls.values()) - sum(stays.values())) / case.n_steps
    return n_small, max(passes - _share_of(stays, case) - _of_text(case), 0.0)


def _of_text(case: Case) -> float:
    """The share of a step that another finding tells: the text of tensors, by many operators."""
    return sum(x.share for x in text_lines(case.lines))


class _Place(NamedTuple):
    """Where in the forward pass most operators are issued, and the lines that run there."""

    line: str
    what_to_do: str
    evidence: str
    below: frozenset[tuple[str, int]]
    loop: bool


def _issued_at(case: Case) -> _Place | None:
    """The loop that most samples outside of backward, optimizer and loader are in, else the
    function; None if none stands out.

    Operators alone do not show which code calls them.
    """
    told = text_lines(case.lines)
    lines = [
        x
        for x in case.lines.by_line()
        if not (x.in_data_wait or x in told or _PASSES.search(x.source))
        and kind_of(x, trains=case.trains) not in WITHOUT_TORCH
    ]
    n = sum(x.n_samples for x in lines)
    least = max(_LEAST_SAMPLES, n / 4)
    of = Counter[tuple[str, str]]()
    for x in lines:
        of[x.file, x.function] += x.n_samples
    loop, below = _loop(case.lines, least)
    inside = [
        x
        for x in lines
        if ((x.file, x.line) in below if loop else of[x.file, x.function] == max(of.values()))
    ]
    n_inside = sum(x.n_samples for x in inside)
    if n_inside < least:
        return None
    top = inside[0]
    calls_layers = "torch.nn.modules" in top.library_function and (
        loop is None or _calls_itself(loop, top, case.lines)
    )
    kind = (beside_the_model if loop else kind_of)(top, trains=case.trains)
    n_tensors = sum(one.n_tensors for one in case.facts.optimizers)
    shown = shown_line(*loop[:2]) if loop else top.shown
    if n_passes := many_passes(case.trace, case.steps, n_tensors):
        what_to_do, shown = _BATCH.format(n_passes), only_line_with(r"\.backward\(") or shown
    elif kind and kind not in (OTHER, FORWARD, BACKWARD):
        what_to_do = kind.what_to_do
    elif loop and ENVIRONMENT.fits(code_of(loop)):
        what_to_do = ENVIRONMENT.what_to_do
    elif code := rounds_in_one_call(loop, top.source, of_layers=calls_layers):
        what_to_do = code
    elif keeps_graphs(top.file) or any(
        _PASSES.search(x.source) and (x.file, x.function) == (top.file, top.function)
        for x in case.lines.by_line()
    ):
        what_to_do = _MORE_A_CALL  # the training loop itself, and this, is nothing to compile
    else:
        function = top.function if top.function.isidentifier() else "the_function"
        at = (one for one, *_ in case.lines.stacks if one[0].place == (top.file, top.line))
        names = [frame.function for frame in next(at, ())]
        in_model = calls_layers or function == "forward"
        what_to_do = _FUSED.format("model" if in_model else function)
        if names and _METHOD.search(names[0]) and not any(x.endswith(".forward") for x in names):
            what_to_do = _FUSED_METHOD.format(function)
    return _Place(
        shown,
        what_to_do,
        f"{n_inside} of {plural(n, 'sample')} outside of backward, optimizer and loader are in "
        f"{'this loop' if loop else f'{top.function}()'}",
        frozenset((x.file, x.line) for x in inside),
        loop is not None,
    )


def _calls_itself(loop: Loop, line: Line, lines: LineSamples) -> bool:
    """Whether a line is of the loop, or of the forward of a module that the loop calls."""
    file, first, last = loop
    return (line.file == file and first <= line.line <= last) or any(
        inner.function.endswith(".forward") and outer.file == file and first <= outer.line <= last
        for frames, *_ in lines.stacks
        for inner, outer in pairwise(frames)
        if frames[0].place == (line.file, line.line)
    )


def _loop(lines: LineSamples, least: float) -> tuple[Loop | None, set[tuple[str, int]]]:
    """The innermost loop of the forward pass with most samples, and the lines that run in it.

    One around a pass, a wait for data or everything is the loop over the steps.
    """
    stacks, of_steps = [], set[Loop]()
    places = {frame.place for frames, *_ in lines.stacks for frame in frames}
    loops_at = {place: loops_around(*place) for place in places}
    for frames, waits, count in lines.stacks:
        around = {loop for frame in frames for loop in loops_at[frame.place]}
        if waits or _PASSES.search(statement(*frames[0].place)):
            of_steps |= around
        else:
            stacks.append((around, frames[0].place, count))
    n_in = Counter[Loop]()
    for around, _, count in stacks:
        n_in.update(dict.fromkeys(around - of_steps, count))
    # where nothing else was seen, what is around everything
    n_all = 0 if len(stacks) < len(lines.stacks) else sum(count for *_, count in stacks)
    most = max((n for n in n_in.values() if n != n_all), default=0)
    large = [
        (n, last - first, (file, first, last))
        for (file, first, last), n in n_in.items()
        if n >= max(least, _INNER * most) and n != n_all
    ]
    if not large:
        return None, set()
    loop = min(large)[-1]
    return loop, {place for around, place, _ in stacks if loop in around}
