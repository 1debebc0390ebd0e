"""What a few recorded steps do not show: steps that grow, and time outside of steps like them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from perfkit.advice.findings import Finding, amdahl, fact, found
from perfkit.advice.line_kinds import (
    BACKWARD,
    BY_LIBRARY,
    ENVIRONMENT,
    FEWER_STEPS,
    GROWS,
    LOGGING,
    NUMPY,
    OTHER,
    PASSES,
    SLEEP,
    WAITING,
    WRITES,
    LineKind,
    kind_of_source,
)
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.words import fmt_s, fmt_share
from perfkit.trace.record.elsewhere import Elsewhere, Growth, Stretch

# A stretch that is smaller than this part of the whole is no finding.
_LEAST_SHARE, _LEAST_S, _MOST_STRETCHES = 0.1, 0.05, 3
#: The bounds that slow steps are about which wait for data.
OF_LOADING = ("data",)
# A phase that is so much of a stretch is what it is.
_MOST_OF_IT = 0.5
#: Growth from this share of the steps' time on is told before anything else.
LARGE = 0.25
# What every step does: the wait for data at a loop's head, the passes. Where some steps take longer
# at these alone, they are slow steps of the same kind.
_OF_EVERY_STEP = re.compile(rf"^(async )?for\b.*:$|{PASSES}")

# Drawing a model's first weights: no file has them sooner, and nothing is to be left out.
_FIRST_WEIGHTS = re.compile(r"torch/nn/init|\breset_parameters \(")
_SAVES = re.compile(r"\bsave\w*\(|_save\(|checkpoint", re.IGNORECASE)
_OF_A_MODEL = re.compile(r"model|net\b|state|checkpoint|ckpt|optim|train", re.IGNORECASE)

# What to do, by what a stretch is.
_EVALUATION = (
    "with torch.inference_mode():  # nothing is kept for a backward pass:\n"
    "    for x, y in loader:  # so larger batches fit\n        ...\n"
    "# and less often, or on a part of the set while the training runs"
)
_TOO_OFTEN = (
    "# less often, or on a part of the set while the training runs:\n"
    "if step % 500 == 0:  # or once an epoch\n"
    "    validate(model, loader)  # under torch.inference_mode(), in larger batches"
)
# an evaluation that keeps graphs is told by itself, where phases are known
_LESS_OFTEN = _TOO_OFTEN.replace("under torch.inference_mode(), ", "")
_LARGER = (
    "# in larger batches, less often, or on a part of the set while the training runs:\n"
    "loader = DataLoader(part, batch_size=4 * batch_size)"
)
_CHECKPOINT = (
    "# less often, and only what a restart needs: no data set, no settings that hold one\n"
    'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)'
)
_DATA = (
    "loader = DataLoader(..., num_workers=4, persistent_workers=True)\n"
    "# what the data set builds or opens: once, and what can be kept in a file"
)
_SET_UP = (
    "# every start does this again: keep what it makes in a file\n"
    "if path.exists():\n    made = torch.load(path)\n"
    "else:\n    made = make_it()\n    torch.save(made, path)"
)
_BY_PHASE = {"evaluation": _LARGER, "checkpoint": _CHECKPOINT, "data wait": _DATA}
_RUNS_A_MODEL = ("evaluation", "forward", "backward", "optimizer")
_BEFORE_TRAINING = "# passes before the first step: over fewer batches, in torch.inference_mode()"
_PROFILE_IT = "with perfkit.profile() as prof:  # that part by itself\n    ...\nprint(prof)"

# What to do about a line whose work grows.
_CUT_THE_GRAPH = (
    "# each backward pass goes back through the steps before it: cut the graph between them\n"
    "state = state.detach()  # what one step hands on to the next\n"
    "total += loss.item()  # what is only shown"
)
_KEEP_LESS = (
    "# it goes through something that each step adds to. A deque walks to what is in its middle,\n"
    "# `x in a_list` goes through all of it: take a list (written in a ring), a set or a dict.\n"
    "# Of figures, keep a running mean or the last few:\n"
    "mean += (value - mean) / n"
)


def of_the_program(
    elsewhere: Elsewhere | None, busy: CpuContention | None = None
) -> Elsewhere | None:
    """Without what every step does: waits for data in the head of a loop, the passes.

    And without what other programs explain: slow steps with no phase, line or rhythm of their own.
    """
    if elsewhere is None:
        return None

    def is_of_any(s: Stretch) -> bool:
        name, most = next(iter(s.phases), ("", 0.0))
        is_known = most >= _MOST_OF_IT and name in _BY_PHASE
        is_chance = s.is_any and not is_known and busy is not None and busy.spoils
        return bool(is_chance or (s.numbers and _OF_EVERY_STEP.search(s.source)))

    return replace(elsewhere, stretches=tuple(s for s in elsewhere.stretches if not is_of_any(s)))


def steps_grow(growth: Growth | None, busy: CpuContention | None) -> tuple[Finding, ...]:
    """That steps take longer and longer, where that is not the other programs' doing."""
    if growth is None or (busy is not None and busy.spoils and growth.share <= busy.lost):
        return ()
    gain, formula = amdahl(growth.most)
    kind = kind_of_source(growth.source)
    goes_back = kind is BACKWARD or growth.phase.endswith("in the backward pass")
    known = kind in (GROWS, LOGGING, SLEEP, WAITING, WRITES)
    more = f"{fmt_s(growth.seconds)} more, {fmt_share(growth.share)} of their time"
    below = f"; {fmt_share(growth.line_share)} of it below that line" if growth.place else ""
    return (
        fact(
            "steps-grow",
            growth.sentence(),
            (f"beyond the first third, steps took {more}{below}",),
            _CUT_THE_GRAPH if goes_back else kind.what_to_do if known else _KEEP_LESS,
            line=f"{growth.place}: {growth.source}" if growth.place else None,
            gain=(gain, f"for all steps, {formula}"),
            changes="gradients end where a step begins" if goes_back else "",
        ),
    )


def outside(elsewhere: Elsewhere | None, *, compile_s: float = 0.0) -> list[Finding]:
    """A finding about each large part of the time outside the recorded steps, but for compiling."""
    if elsewhere is None or not elsewhere.is_worth_a_word:
        return []
    # an evaluation now and then, and once more after the last step, is one thing
    groups: dict[str, list[Stretch]] = {}
    for stretch in elsewhere.stretches:
        if stretch.is_set_up and _FIRST_WEIGHTS.search(stretch.mostly):
            continue
        groups.setdefault(stretch.below or stretch.place or stretch.when, []).append(stretch)
    least_s = max(_LEAST_SHARE * elsewhere.region_s, _LEAST_S)
    spent = [(one, sum(s.seconds for s in one)) for one in groups.values()]
    large = [one for one, s in spent if s >= least_s and compile_s < s / 2]
    told = [_of(one, elsewhere.region_s) for one in large[:_MOST_STRETCHES]]
    # a place without a cure, rollouts between updates for one, is only worth a word if it is large
    no_gain = amdahl(LARGE)[0]
    return [f for f in told if f.what_to_do != OTHER.what_to_do or f.gain_at_most >= no_gain]


def _of(stretches: list[Stretch], region_s: float) -> Finding:
    stretch, spent_s = stretches[0], sum(s.seconds for s in stretches)
    when = " and ".join(s.when for s in stretches)
    share = min(spent_s / region_s, 1.0)
    name, most = next(iter(stretch.phases), ("", 0.0))
    phase = name if most >= _MOST_OF_IT else ""
    lines = [(stretch.place, stretch.source), *(one[:2] for one in stretch.inside)]
    seen_most = (lines[1:] or lines)[0]
    kinds = [kind_of_source(one[1], stretch.mostly * (one is seen_most)) for one in lines]
    # what is largest: a line that overlaps with the phase, or has most of the time itself
    shares = (stretch.share or 1.0, *(one[2] for one in stretch.inside))
    is_of_it = [x + most > 1 if phase else not i or x >= _MOST_OF_IT for i, x in enumerate(shares)]
    known = (i for i, kind in enumerate(kinds) if is_of_it[i] and kind not in (OTHER, BACKWARD))
    at = next(known, None)
    kind, (place, source) = OTHER if at is None else kinds[at], lines[at or 0]
    title = f"{fmt_share(share)} of the time is spent {when}"
    to_do = _what_to_do(stretch, kind, phase)
    by_code = {code: name for name, code in _BY_PHASE.items()}
    by_code[ENVIRONMENT.what_to_do] = "rollouts"
    by_code |= dict.fromkeys((_LESS_OFTEN, _TOO_OFTEN, _EVALUATION), "evaluation")
    between = min((b - a for a, b in pairwise(stretch.numbers)), default=0)
    of_phase = phase * (phase in _BY_PHASE and kind not in BY_LIBRARY)
    what = by_code.get(to_do, of_phase or kind.words * (kind is not OTHER))
    line = f"{place}: {source}" if place and is_of_it[at or 0] else None
    return found(
        "outside-the-steps",
        kind.title or (f"{title}: {what}" if what else title),
        [
            f"{fmt_s(spent_s)} of {fmt_s(region_s)}, not in steps like the recorded ones",
            *(s.words() for s in stretches),
            *(f"{fmt_share(part)} of it at {at}: {source}" for at, source, part in stretch.inside),
        ],
        to_do.replace("% 500", f"% {max(500, 4 * between)}"),  # not what the code does already
        cures=OF_LOADING if phase == "data wait" else (),
        share=share,
        of="for the code as a whole, ",
        changes=FEWER_STEPS * (what == "rollouts"),
        line=(stretch.below * (by_code.get(to_do) == "evaluation")) or line,
    )


def _what_to_do(stretch: Stretch, kind: LineKind, phase: str) -> str:
    """A snippet for the line that is known to be slow, else for what the stretch is."""
    if kind.title or kind in (SLEEP, WAITING):
        return kind.what_to_do
    if stretch.plays and not stretch.is_set_up and kind in (OTHER, NUMPY, ENVIRONMENT):
        return ENVIRONMENT.what_to_do
    code = f"{stretch.source} {stretch.below}"
    saves = _SAVES.search(f"{code} {stretch.place}") and _OF_A_MODEL.search(code)
    if phase == "checkpoint" or saves:
        return _CHECKPOINT
    if stretch.is_set_up and (phase in _RUNS_A_MODEL or stretch.evaluates):
        return _BEFORE_TRAINING
    if stretch.is_set_up:
        return _SET_UP if stretch.place else _PROFILE_IT
    if kind not in (OTHER, ENVIRONMENT):
        return kind.what_to_do
    if phase == "evaluation" or (stretch.evaluates and phase not in _BY_PHASE):
        at_times, once = (_LESS_OFTEN, _LARGER) if phase else (_TOO_OFTEN, _EVALUATION)
        return at_times if stretch.numbers else once
    if phase in _BY_PHASE:
        return _BY_PHASE[phase]
    return OTHER.what_to_do if stretch.place else _PROFILE_IT
