"""``torch.compile``: compiling inside the profiled steps, giving up, and breaks in the graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules import rule
from perfkit.base.compiling import Recompilation
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.ask.compiled import REGION
from perfkit.trace.read.columns import Category
from perfkit.trace.read.intervals import union, without

# What failed where a size changed; other checks are of values, which no dynamic=True helps.
_OF_SIZES = re.compile(r"\bsize\b|\bstride\b|size\(\)|\bshape\b")
_MOST_TOLD = 3

_SIZES = (
    "model = torch.compile(model, dynamic=True)  # one graph for all sizes\n"
    "torch._dynamo.mark_dynamic(x, 0)  # or say which dimension varies; drop_last=True helps, too"
)
_STATIC = (
    "model = torch.compile(model)  # without dynamic=False: one graph for all sizes\n"
    "# or few sizes: pad to the next multiple of 64"
)
# Not in place: torch 2.13 recomputes from the changed buffer in the backward pass, and the gradient
# is wrong (seen with the backends aot_eager and inductor).
_VALUES = (
    "# a number that changes, in a graph: keep it in a tensor, which the graph reads afresh\n"
    "self.register_buffer('n', torch.zeros(()))  # then self.n = self.n + 1, not in place\n"
    "# or change it outside of what is compiled"
)


@rule
def recompiles(case: Case) -> Iterator[Finding]:
    """Compilation inside the steps: shapes or values change, or there was no warm-up."""
    parts, known = case.compiling, case.facts.compiled
    if known is not None and known.given_up:
        return  # that is said instead, with why
    share = case.share_of(parts)
    regions = filter(None, map(REGION.match, case.trace.names))
    again = max((int(region["attempt"]) for region in regions), default=0)
    in_steps = len(set(case.steps.containing(parts.start).tolist()))
    in_most = case.n_steps > 1 and 2 * in_steps > case.n_steps
    evidence = [
        f"compiling in {in_steps} of {plural(case.n_steps, 'step')} takes "
        f"{fmt_ms(parts.total_ns / 1e6)}, {fmt_share(share)} of all profiled time"
    ]
    if again:
        changed = "keep changing" if again > 1 else "changed"
        evidence.append(f"one region was compiled {again + 1} times: its inputs {changed}")
    checks = () if known is None else known.recompilations[-_MOST_TOLD:]
    evidence.extend(f"{one.place}: the check {one.why} failed" for one in checks)
    yield found(
        "recompiles",
        "torch.compile keeps recompiling"
        if again > 1 or in_most
        else "torch.compile compiles inside the profiled steps",
        evidence,
        _against(checks),
        cures=("host", "launch", "driver"),
        share=share,
    )


def _against(checks: Sequence[Recompilation]) -> str:
    """What to do where these checks failed."""
    if not checks:
        return f"{_SIZES}\n# TORCH_LOGS=recompiles python script.py  says why"
    return "\n".join(sorted({_cure(one) for one in checks}, key=(_STATIC, _SIZES, _VALUES).index))


def _cure(check: Recompilation) -> str:
    if _OF_SIZES.search(check.why):
        return _STATIC if check.is_static else _SIZES
    # a module's own number (self.n == 3) gets a graph for each value even with dynamic=True
    own = "." in check.why.partition(" ")[0]
    return _STATIC if check.is_static and not own else _VALUES


@rule
def gave_up(case: Case) -> Iterator[Finding]:
    """Code that was compiled again so often that torch has stopped: it runs uncompiled."""
    known = case.facts.compiled
    if known is None or not known.given_up:
        return
    again = Counter(one.place for one in known.recompilations)
    yield found(
        "compile-gave-up",
        "torch.compile compiled again and again, and gave up: this code runs uncompiled",
        [
            f"{one.place} was compiled again {again[one.place]} times, and then the check "
            f"{one.why} failed once more"
            for one in known.given_up[:_MOST_TOLD]
        ],
        f"{_against(known.given_up)}\n"
        "torch._dynamo.config.fail_on_recompile_limit_hit = True  # an error instead of silence",
        cures=("host", "launch"),
        share=0.0,
        formula="no bound: how fast the compiled code would be is not known",
        line=known.given_up[0].place,
        has_bound=False,
        is_state=True,
    )


@rule
def graph_breaks(case: Case) -> Iterator[Finding]:
    """Several compiled regions in a step with Python between them."""
    trace = case.trace
    rows = np.flatnonzero(case.rows(Category.OP, Category.ANNOTATION) & trace.named(REGION.match))
    frames = {i: int(m["frame"]) for i, name in enumerate(trace.names) if (m := REGION.match(name))}
    frame = np.array([frames[i] for i in trace.name_id[rows].tolist()])
    step = case.steps.containing(trace.start_ns[rows])
    # The backward pass has no regions of its own: what is between two in a step was not compiled.
    between = (step[1:] == step[:-1]) & (frame[1:] != frame[:-1])
    gaps = union(trace.end_ns[rows[:-1]][between], trace.start_ns[rows[1:]][between])
    lost = case.lost_in(without(gaps, case.compiling))
    known = case.facts.compiled
    yield found(
        "graph-breaks",
        "The compiled model is in pieces: between them Python runs uncompiled code",
        [
            f"{plural(len(rows) / case.n_steps, 'compiled region')} per step; what runs between "
            f"them costs {fmt_share(lost)} of it",
            *(
                f"{one.place} ended a graph {plural(one.count, 'time')}: {one.reason}"
                for one in (() if known is None else known.breaks[:_MOST_TOLD])
            ),
        ],
        "model = torch.compile(model, fullgraph=True)  # an error at the first break\n"
        "# TORCH_LOGS=graph_breaks python script.py  lists them: print, .item(), NumPy …",
        cures=("host", "launch"),
        share=lost,
    )
