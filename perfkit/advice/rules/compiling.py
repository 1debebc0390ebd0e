"""``torch.compile``: compiling inside the profiled steps, giving up, and breaks in the graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.ask.compiled import REGION
from perfkit.trace.read.columns import Category
from perfkit.trace.read.intervals import union, without

# What failed where a size changed; other checks are of values, which no dynamic=True helps.
_OF_SIZES = re.compile(r"\bsize\b|\bstride\b|size\(\)|\bshape\b")
# A number that the compiled function was called with, not one of an object's.
_OF_AN_ARGUMENT = re.compile(r"^\w+ == -?\d")
_MOST_TOLD = 3


@rule
def recompiles(case: Case) -> Iterator[Finding]:
    """Compilation inside the steps: shapes or values change, or there was no warm-up."""
    parts = case.compiling
    if case.facts.compiled is not None and case.facts.compiled.given_up:
        return  # that is said instead, with why
    share = case.share_of(parts)
    attempts = _attempts(case)
    again = max(attempts.values(), default=0)
    in_steps = len(set(case.steps.containing(parts.start).tolist()))
    found = case.facts.compiled
    # Where torch's log was read, the report says how many graphs were compiled. The stretches here
    # are not as many: an attempt that is given up is one, and so is a backward pass of its own.
    what = "compiling" if found is not None else plural(len(parts), "compilation")
    take = "take" if found is None and len(parts) > 1 else "takes"
    evidence = [
        f"{what} in {in_steps} of {plural(case.n_steps, 'step')} {take} "
        f"{fmt_ms(parts.total_ns / 1e6)}, {fmt_share(share)} of all profiled time"
    ]
    if again:
        changed = "keep changing" if again > 1 else "changed"
        evidence.append(f"one region was compiled {again + 1} times: its inputs {changed}")
    checks = () if found is None else (*found.recompilations, *found.given_up)
    evidence.extend(f"{one.place}: the check {one.why} failed" for one in checks[-_MOST_TOLD:])
    gain, formula = amdahl(share)
    yield Finding(
        rule="recompiles",
        cures=("host", "launch", "driver"),
        title=_title(again, in_most=case.n_steps > 1 and 2 * in_steps > case.n_steps),
        evidence=tuple(evidence),
        what_to_do=_against([one.why for one in checks]),
        gain_at_most=gain,
        formula=formula,
    )


def _title(again: int, *, in_most: bool) -> str:
    """Of a region that was compiled so often again, or of compilations in most steps."""
    if again > 1 or in_most:
        return "torch.compile keeps recompiling"
    if again:
        return "torch.compile compiled a region again"
    return "torch.compile compiles inside the profiled steps"


_SIZES = (
    "model = torch.compile(model, dynamic=True)  # one graph for all sizes\n"
    "torch._dynamo.mark_dynamic(x, 0)  # or say which dimension varies; drop_last=True helps, too"
)
# Not in place: torch 2.13 recomputes from the changed buffer in the backward pass, and the gradient
# is wrong (seen with the backends aot_eager and inductor).
_ARGUMENTS = (
    "model = torch.compile(model)  # without dynamic=False: one graph for all values of a number\n"
    "# or few values: round it up, e.g. to the next multiple of 64, and pad to that"
)
_VALUES = (
    "# a number that changes, in a graph: keep it in a tensor, which the graph reads afresh\n"
    "self.register_buffer('n', torch.zeros(()))  # then self.n = self.n + 1, not in place\n"
    "# or change it outside of what is compiled"
)


def _against(checks: Sequence[str]) -> str:
    """What to do where these checks failed."""
    sizes = [why for why in checks if _OF_SIZES.search(why)]
    if not checks:
        return f"{_SIZES}\n# TORCH_LOGS=recompiles python script.py  says why"
    arguments = [why for why in checks if _OF_AN_ARGUMENT.match(why)]
    others = len(checks) - len(sizes) - len(arguments)
    parts = [_SIZES] * bool(sizes) + [_ARGUMENTS] * bool(arguments) + [_VALUES] * (others > 0)
    return "\n".join(parts)


@rule
def gave_up(case: Case) -> Iterator[Finding]:
    """Code that was compiled again so often that torch has stopped: it runs uncompiled."""
    found = case.facts.compiled
    if found is None or not found.given_up:
        return
    compiled_again = Counter(one.place for one in found.recompilations)
    places = list(dict.fromkeys(one.place for one in found.given_up))
    yield Finding(
        rule="compile-gave-up",
        cures=("host", "launch"),
        title="torch.compile compiled again and again, and gave up: this code runs uncompiled",
        evidence=tuple(
            f"{one.place} was compiled again {compiled_again[one.place]} times, and then the check "
            f"{one.why} failed once more"
            for one in found.given_up[:_MOST_TOLD]
        ),
        what_to_do=f"{_against([one.why for one in found.given_up])}\n"
        "torch._dynamo.config.fail_on_recompile_limit_hit = True  # an error instead of silence",
        gain_at_most=1.0,
        formula="no bound: how fast the compiled code would be is not known",
        line=places[0],
        always=True,
        has_bound=False,
        is_state=True,
    )


def _attempts(case: Case) -> dict[int, int]:
    """Compiled region → how often it was recompiled, from the names."""
    found: dict[int, int] = {}
    for name in case.trace.names:
        match = REGION.match(name)
        if match:
            frame = int(match["frame"])
            found[frame] = max(found.get(frame, 0), int(match["attempt"]))
    return found


@rule
def graph_breaks(case: Case) -> Iterator[Finding]:
    """Several compiled regions in a step with Python between them."""
    trace = case.trace
    rows = np.flatnonzero(case.rows(Category.OP, Category.ANNOTATION, named=REGION.match))
    frames = {i: int(m["frame"]) for i, name in enumerate(trace.names) if (m := REGION.match(name))}
    frame = np.array([frames[i] for i in trace.name_id[rows].tolist()])
    step = case.steps.containing(trace.start_ns[rows])
    # From the end of one region to the start of the next in the same step. The backward pass has no
    # regions of its own, so forward code between two regions was not compiled.
    between = (step[1:] == step[:-1]) & (frame[1:] != frame[:-1])
    gaps = union(trace.end_ns[rows[:-1]][between], trace.start_ns[rows[1:]][between])
    lost = case.lost_in(without(gaps, case.compiling))
    gain, formula = amdahl(lost)
    found = case.facts.compiled
    breaks = [
        f"{one.place} ended a graph {plural(one.count, 'time')}: {one.reason}"
        for one in ([] if found is None else found.breaks[:_MOST_TOLD])
    ]
    yield Finding(
        rule="graph-breaks",
        cures=("host", "launch"),
        title="The compiled model is in pieces: between them Python runs uncompiled code",
        evidence=(
            f"{plural(len(rows) / case.n_steps, 'compiled region')} per step, of "
            f"{len(set(frame))} "
            "different pieces of code",
            f"what runs between them costs {fmt_share(lost)} of each step",
            *breaks,
        ),
        what_to_do=(
            "model = torch.compile(model, fullgraph=True)  # an error at the first break\n"
            "# TORCH_LOGS=graph_breaks python script.py  lists them: print, .item(), NumPy …"
        ),
        gain_at_most=gain,
        formula=formula,
    )
