"""What bounds the step, in one sentence, and what to do about it, largest gain first."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfkit.advice.case import Case
from perfkit.advice.findings import MAY_WAIT, MOST_GAIN, Finding, amdahl, interval
from perfkit.advice.line_kinds import ENVIRONMENT, FEWER_STEPS, GROWS, OTHER
from perfkit.advice.outside import LARGE, OF_LOADING, outside, steps_grow
from perfkit.advice.rules import rules
from perfkit.advice.rules.host import overhead
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.plain import fields
from perfkit.base.words import fmt_count, fmt_ms, fmt_share
from perfkit.measure.summary import DATA_BOUND_FROM, PARTLY_FROM, Summary
from perfkit.trace.ask.breakdown import after_updates
from perfkit.trace.read.columns import HOST_CATEGORIES, Category
from perfkit.trace.record.elsewhere import Elsewhere

# A smaller gain is within the spread of most step times.
_LEAST_GAIN = 1.05
# What gains less does not go before what acts on the whole model.
_LARGE_GAIN = 1 / (1 - PARTLY_FROM)
# The device works on a step for longer than the host's clock says it took, by more than rounding.
_AHEAD = 1.005
# Less of a step, and what is told of the rest of it hardly changes.
_MUCH = 0.1
# The time outside of operators is a wait for others from this share of its samples on.
_MOSTLY = 0.5

BOUNDS = ("data", "host", "launch", "sync", "copy", "gaps", "driver", "compute", "communication")


@dataclass(frozen=True)
class Diagnosis:
    """What bounds the step.

    Attributes:
        bound_by: one of ``data host launch sync copy gaps driver compute communication``: the
            largest part of a typical step; with a device, the main cause of its idle time if that
            is at least a fifth of the step (``gaps``: idle although work is queued; ``driver``:
            idle while the host is in a long driver call that launches nothing).
        verdict: the same in at most twelve words.
        no_cure: a sentence if no finding is about what bounds the step; else empty.
        first: what to say before the sentence: that most of the time was not in steps like these.
        doubts: that the machine was busy or held back, to be said after it.
        step_ms: what all shares are of: the median step without the profiler, else the mean of
            the recorded ones; no less than the device works on it.
    """

    bound_by: str
    sentence: str
    findings: tuple[Finding, ...]
    no_cure: str = ""
    first: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    is_one_sided: bool = False
    verdict: str = ""
    step_ms: float = 0.0
    is_ahead: bool = False

    @property
    def headline(self) -> str:
        """The whole diagnosis in one paragraph."""
        return " ".join((*self.first, self.sentence))

    def to_dict(self) -> dict[str, Any]:
        return fields(self, without=("is_one_sided", "is_ahead"))


def diagnose(
    case: Case,
    step: Summary,
    provenance: str,
    *,
    elsewhere: Elsewhere | None = None,
    busy: CpuContention | None = None,
    no_step: str = "",
    is_piece: bool = False,
    state: Sequence[Finding] = (),
) -> Diagnosis:
    """Name the bound and run every rule.

    On a busy machine times are not the code's own: then findings have no bound.

    Args:
        provenance: where the figures come from: ``measured here``, ``recorded`` …
        no_step: that the code has no steps, to be said first.
        state: what the run's objects have shown; it comes first.
    """
    bound = _bound(case, *overhead(case))
    found = [
        f for rule in rules(case) for f in rule(case) if f.always or f.gain_at_most >= _LEAST_GAIN
    ]
    compiled = case.facts.compiled
    compile_s = 0.0 if compiled is None else compiled.compile_s
    found += outside(elsewhere, compile_s=compile_s)
    growth = None if elsewhere is None else elsewhere.growth
    found += (grows := steps_grow(growth, busy))
    if busy is not None and busy.spoils:  # it helps only with cores that nobody else uses
        found = [f for f in found if f.rule != "one-thread"]
    facts = [_with_ceiling(f, case) for f in state if not f.beside]
    facts = [f for f in facts if f.gain_at_most >= _LEAST_GAIN or not f.acts_on]
    found = _joined(*(_without_the_same(some, [*state, *found]) for some in (facts, found)))
    others = elsewhere.share if elsewhere is not None and elsewhere.is_most else 0.0
    found = _places_first(_each_line_once(found), bound.bound_by, others)
    # within the steps and outside of them: what gains more says it
    earliest = {(said, f.line): f for f in reversed(found) for said in _once(f)}
    found = [f for f in found if all(earliest[said, f.line] is f for said in _once(f))]
    found = [_with_doubt(f, case, busy) for f in found]
    found = [
        replace(f, changes=FEWER_STEPS) if f.what_to_do == ENVIRONMENT.what_to_do else f
        for f in found
    ]
    for remark in (f for f in state if f.beside):
        found = [
            replace(f, what_to_do=f"{f.what_to_do}\n{remark.what_to_do}")
            if re.search(remark.beside, f.what_to_do)
            else f
            for f in found
        ]
    is_one_sided = _is_one_sided(bound, case)
    if is_one_sided:
        found = [f for f in found if f.always or {"data", "communication"} & set(f.cures)]
    uneven = f"; {case.typical.uneven}" if case.typical.uneven else ""
    bounds = _sentence(bound, case)
    verdict = first_clause(bounds)
    what = f"{bounds} ({_step_words(step, case)}, {provenance}){uneven}."
    if is_piece:
        verdict = _of_one_piece(verdict)
        what = _of_one_piece(f"{bounds} ({fmt_ms(step.median)} in all, {provenance}).")
        found = [
            replace(
                f,
                title=_of_one_piece(f.title),
                evidence=tuple(map(_of_one_piece, f.evidence)),
                formula=_of_one_piece(f.formula),
            )
            for f in found
        ]
    doubts = []
    if busy is not None:
        shares = case.device_shares
        doubts = [busy.sentence()] * busy.is_busy
        doubts += busy.held_back_by(
            copies=shares.get("copy"), computing=shares.get("compute"), queued=case.idle["queued"]
        )
    first = [no_step] if no_step else []
    if elsewhere is not None and elsewhere.is_most:
        first.append(elsewhere.sentence())
        verdict = elsewhere.headline()
    if growth is not None and grows and growth.share >= LARGE:
        first.append(f"{growth.sentence()}.")
        verdict = growth.headline()
    if first:
        whose = "That piece" if no_step else "The recorded steps"
        what = f"{whose}: {uncapital(what)}"
    return Diagnosis(
        bound.bound_by,
        what,
        tuple(found),
        _no_cure(bound, found, case),
        tuple(first),
        tuple(doubts),
        is_one_sided,
        verdict,
        case.step_us / 1e3,
        _is_ahead(step, case),
    )


def first_clause(sentence: str) -> str:
    """What a headline keeps of a sentence: its kind and the first thing that it says."""
    first = re.split(r", |; | \(| because | although | while | that | with ", sentence)[0]
    return f"{': '.join(first.rstrip('.').split(': ')[:2])}."


# A fact that can shorten a step by less is not the first thing to say.
_LEADS = 1.15
# What is told of a whole step, of no line or object.
_VAGUE = ("host-python", "one-thread", "small-calls", "tiny-ops")
# What acts on the whole model, and may change how it trains.
_MODELS = ("kernel-gaps", "launch-bound", "optimizer-share", "small-kernels", "unfused-kernels")


def _places_first(found: list[Finding], bound_by: str, others: float) -> list[Finding]:
    """Facts that gain much, then what has a place or an object; what helps any step comes last.

    Where most of the time is not in such steps (``others``, a share), what shortens one gains less.
    """
    has_place = any(f.line and f.rule not in _MODELS for f in found)
    is_told_where = any(f.line for f in found if not f.is_state)
    about = (f for f in found if not f.cures or bound_by in f.cures)
    parts = (f.gain_at_most for f in about if f.rule not in (*_VAGUE, *_MODELS))
    # what acts on a part of what bounds the step goes before what acts on the whole model
    least = min((gain for gain in parts if gain >= _LARGE_GAIN), default=math.inf)
    slow_loading = any(  # at a line of which it is known what it does
        f.rule == "outside-the-steps" and f.cures == OF_LOADING and "DataLoader" not in f.what_to_do
        for f in found
    )
    knows_cause = any(f.rule == "slow-line" and f.gain_at_most >= _LEADS for f in found)
    # a line that makes the items slow has a cure of its own
    knows_line = any(f.rule == "slow-line" and f.cures == OF_LOADING for f in found)

    def rank(f: Finding) -> tuple[bool, bool, float, bool, bool, str]:
        is_general = (has_place and f.rule in _VAGUE and f.line is None) or (
            slow_loading and f.rule.startswith("dataloader-")
        )
        is_general = is_general or (knows_line and f.rule == "items-made-anew")
        is_general = is_general or (knows_cause and f.what_to_do == OTHER.what_to_do)
        small = bool(f.acts_on or f.has_bound) and f.gain_at_most < _LEADS
        leads = f.is_state and not (is_general or (small and is_told_where))
        leads = leads or f.title == GROWS.title
        is_whole = f.rule in _MODELS
        # as it is printed: of two that are alike, what the verdict is about
        gain = min(f.gain_at_most, least) if is_whole else f.gain_at_most
        if others and not (f.is_state or f.rule in _TIMED):
            gain = 1 / (others + (1 - others) / gain)
        return not leads, is_general, -round(gain, 1), is_whole, bound_by not in f.cures, f.rule

    kept = (f for f in found if not (has_place and f.rule == "host-python" and f.line is None))
    return sorted(kept, key=rank)


def _each_line_once(found: list[Finding]) -> list[Finding]:
    """What is known of a line by itself, or what a rule says of it: the one that knows a cause."""
    timed = ("hottest-line", "slow-line")
    vague = [f for f in found if f.rule == "host-python" and f.what_to_do == OTHER.what_to_do]
    told = {f.line for f in found if f.line and f not in vague and f.rule not in timed}
    loads = {f.line for f in found if f.rule.startswith("dataloader-")}
    cures = {f.what_to_do for f in found if f.rule == "slow-line"}
    causes = {f.line for f in found if f.rule not in timed and f.what_to_do not in cures} - loads
    slow = {f.line for f in found if f.rule == "slow-line"} - causes
    said_by = {"slow-line": causes, "hottest-line": causes | loads | slow}
    return [
        f
        for f in found
        if f.line not in said_by.get(f.rule, slow if f.rule.startswith("dataloader-") else ())
        and not ((f in vague and f.line in told) or (f.rule in _VAGUE and f.what_to_do in cures))
    ]


def _once(finding: Finding) -> tuple[str, ...]:
    """What is told of a line once: a cure, too, whatever it is called."""
    return (finding.title, finding.what_to_do) if finding.line else (finding.title,)


# What says of a line how much time it takes, and not why.
_TIMED = ("outside-the-steps", "steps-grow")
# Findings → rules that say the same, from a trace and with less.
_SAYS_MORE = {
    "backward-by-row": ("small-calls", "tiny-ops"),
    "own-profiler": ("host-python",),
    "empty-cache": ("device-allocations",),
    "gc-collect": ("gc-pauses",),
    "epoch-for-each-batch": ("row-by-row", "dataloader-no-workers", "host-python", "gc-pauses"),
    "made-again": ("host-python", "matrix-functions"),
    "workers-restarted": ("dataloader-slow-workers", "dataloader-few-workers"),
    "hooks-multiply": ("steps-grow", "graphs-kept", "tensors-kept"),
    "iterable-not-sharded": ("dataloader-slow-workers", "dataloader-few-workers"),
    "row-by-row": ("dataloader-no-workers", "dataloader-slow-code", "dataloader-small-samples"),
    "many-tensors": ("dataloader-blocked", "dataloader-few-workers", "dataloader-slow-workers"),
    "saves-often": ("host-python",),
    "single-rows": ("tiny-ops", "small-calls"),
    "weights-copied": ("host-python", "tiny-ops", "small-calls", "beside-the-model"),
}


def _without_the_same(found: Sequence[Finding], state: Sequence[Finding]) -> list[Finding]:
    said = {rule for one in state for rule in _SAYS_MORE.get(one.rule, ())}
    loads = any("data wait" in one.acts_on for one in state)  # what is said of slow steps, too
    return [
        f
        for f in found
        if f.rule not in said
        and not (loads and f.rule == "outside-the-steps" and f.cures == OF_LOADING)
    ]


def _joined(state: list[Finding], found: list[Finding]) -> list[Finding]:
    """Both; what a fact says of a line, and what is known of its time, becomes one finding."""
    for at, one in enumerate(state):
        same = [f for f in found if f.rule in _TIMED and f.line and f.line == one.line]
        found = [f for f in found if f not in same]
        if same and not one.has_bound:
            other = max(same, key=lambda f: f.gain_at_most)
            state[at] = replace(
                one,
                evidence=(*one.evidence, *other.evidence[:1]),
                gain_at_most=other.gain_at_most,
                formula=other.formula,
                has_bound=other.has_bound,
            )
    return [*state, *found]


def _with_ceiling(finding: Finding, case: Case) -> Finding:
    """A finding of the run's objects with the bound that the recorded steps give it.

    What to do shortens some classes of a step to a part of them, at best. No bound is told where
    only the little that is left would decide it.
    """
    if not finding.acts_on or finding.has_bound:
        return finding
    share = sum(case.lost_to(one) for one in finding.acts_on if one in case.shares)
    if finding.where is not None:
        share, line = finding.where(case)
        finding = replace(finding, line=finding.line or line)
    gain, formula = amdahl(share, speedup=1 / finding.leaves if finding.leaves else None)
    if gain >= MOST_GAIN and finding.where is None:
        return replace(finding, gain_at_most=gain)
    return replace(finding, gain_at_most=gain, formula=formula, has_bound=True)


_RECORD = (
    "No rule can tell what to change: record {} with torch.profiler.profile("
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])."
)
_NOT_DELIVERED = (
    "No rule can tell what to change: the device's work was asked for, and its tracer (CUPTI on "
    "CUDA) delivered none. Usual reasons: another profiler uses it (Nsight, DCGM), performance "
    "counters are not permitted, or WSL does not support it."
)
# The cycles of a schedule: https://docs.pytorch.org/docs/stable/profiler.html
_EMPTY = (
    "No rule can tell what to change: no operator of torch is recorded here. With a schedule, "
    "torch's profiler forgets a cycle as the next one begins: save the trace in on_trace_ready, or "
    "set repeat=1."
)


def as_compared(found: Diagnosis, waiting_ms: float) -> Diagnosis:
    """The same of a rank beside the others: how much of its collectives is a wait is known then."""
    told = f"{fmt_ms(waiting_ms)} of that is waiting for a later rank, by the traces of all"
    findings = tuple(
        replace(f, evidence=tuple(told if MAY_WAIT in said else said for said in f.evidence))
        for f in found.findings
    )
    return replace(found, findings=findings, sentence=found.sentence.replace(", or waits to", ""))


def _with_doubt(finding: Finding, case: Case, busy: CpuContention | None) -> Finding:
    """The finding, without a bound where that is not known."""
    why = ""
    if busy is not None and busy.spoils and finding.gain_at_most > 1:
        why = f"other programs may have taken {fmt_share(busy.lost)} of the time"
    elif case.is_file and not case.on_device:
        why = "a trace without a device does not carry one"
    elif case.is_file and (hooks := case.idle_in(after_updates(case.trace, case.steps))) > _MUCH:
        why = f"{fmt_share(hooks)} of each step, in a hook, may be a profiler's and go with it"
    return replace(finding, has_bound=False, formula=f"no bound: {why}") if why else finding


def _is_one_sided(bound: _Bound, case: Case) -> bool:
    """Whether what bounds the step cannot be told: the other side of it was not recorded."""
    if not case.has_operators:
        others = case.idle["host"] if case.on_device else case.shares["other"]
        is_unknown = bound.part == "host" and bound.share <= others
        return case.is_file and (is_unknown or not case.on_device)
    if case.on_device:  # these are the host's only if nothing was queued, which launches tell
        return bound.part in ("host", "launch", "driver") and not case.joins_launches
    return bound.part in ("compute", "host", "overhead", "driver") and bool(case.unseen_device)


def _no_cure(bound: _Bound, found: list[Finding], case: Case) -> str:
    if not _is_one_sided(bound, case):
        return "" if found else "Nothing stands out: no rule of perfkit knows a cure for this."
    if case.trace.unread and case.has_operators:
        return "No rule can tell what to change without this device's work."
    if case.trace.unread:
        return _RECORD.format("it again,")
    if not case.has_operators and not case.on_device:
        return _EMPTY
    # the device's tracer alone records such events
    if not case.on_device and case.trace.is_a(Category.RUNTIME, Category.OVERHEAD).any():
        return _NOT_DELIVERED
    missing = "the launches" if case.on_device else "the device's work"
    whose = missing if case.has_operators else "the host's operators"
    return _RECORD.format(f"{whose}, too,")


# Of code in which no step was found: what is said of steps, the longer ones first.
_OF_ONE_PIECE = (
    (re.compile(r"\b(of|for|in|inside) (?:each|every|the|a|1) step\b"), r"\1 that time"),
    (re.compile(r" per step\b"), " in all"),
    (re.compile(r"(?<=\w) a step\b"), ""),
    (re.compile(r"\b(?:each|every|the) step\b"), "the code"),
)


def _of_one_piece(sentence: str) -> str:
    """The sentence without steps: ``12 % of each step`` becomes ``12 % of that time``."""
    for pattern, instead in _OF_ONE_PIECE:
        sentence = pattern.sub(instead, sentence)
    return sentence


def uncapital(sentence: str) -> str:
    """The sentence, to follow a colon."""
    return sentence[:1].lower() + sentence[1:]


@dataclass(frozen=True)
class _Bound:
    """``bound_by``, what could go, its share, the work's own, and small operators of a step."""

    bound_by: str
    part: str
    share: float
    work: float
    n: float = 0.0


def _bound(case: Case, n_small: float = 0.0, small: float = 0.0) -> _Bound:
    """On a CPU the largest part; with a device the largest loss: idle time adds to its work."""
    # what only a few steps do is a share of the profiled time, not of a typical step
    rare = max(case.idle_in(case.set_up.parts), case.idle_in(case.capturing))
    losses = {
        "data": case.idle["data"] if case.on_device else case.shares["data wait"],
        "host": max(
            case.idle["host"] if case.on_device else case.shares["other"],
            case.idle["setup"],
            case.idle["capture"],
            rare,
        ),
        "communication": case.shares["communication"],
    }
    if not case.on_device:
        shares = case.shares
        work = shares["forward"] + shares["backward"] + shares["optimizer"]
        losses |= {"driver": case.driver[1], "overhead": small}
        losses["host"] -= losses["driver"]
        worst = max(losses, key=lambda b: losses[b])
        work = min(work, 1.0 - losses[worst])
        if losses[worst] >= work:
            return _Bound(worst.replace("overhead", "host"), worst, losses[worst], work, n_small)
        part = worst if losses[worst] >= PARTLY_FROM else "compute"
        return _Bound("compute", part, losses.get(part, work), work, n_small)
    device = case.device_shares
    losses |= {
        "sync": case.idle["sync"],
        # what is copied while nothing computes could be hidden
        "copy": device["copy"] + case.idle["copy"],
        "launch": case.idle["launch"],
        "driver": case.idle["driver"],
        # the rest of it overlaps with computing and costs nothing
        "communication": device["communication"] + case.idle["communication"],
        "gaps": case.idle["kernels"] + case.idle["queued"],
    }
    worst = max(losses, key=lambda b: losses[b])
    if losses[worst] >= PARTLY_FROM:
        return _Bound(worst, worst, losses[worst], device["compute"])
    busiest = max(("compute", "copy"), key=lambda k: device[k])
    return _Bound(busiest, busiest, device[busiest], device["compute"])


# Part of the step → how it is told of a CPU, and with a device.
_WORDS = {
    "data": (
        "{} of each step waits for the DataLoader",
        "for {} of each step the device waits for data",
    ),
    "host": (
        "{} of each step is {python}outside of torch's operators",
        "host work idles the device for {} of each step, outside of torch's operators",
    ),
    "waits": (
        "{} of each step is outside of torch's operators, and {waits}",
        "for {} of each step the device waits for the host, and {waits}",
    ),
    "communication": (
        "{} of each step is spent in exchanges with other ranks, waits included",
        "for {} of each step the device only exchanges data with other ranks, or waits to",
    ),
    "driver": (
        "{} of each step is in {driver}, or other calls of the driver that launch nothing",
        "for {} of each step the device waits for {driver}, or other calls that launch nothing",
    ),
    "compute": (
        "{} of each step is spent in torch's operators",
        "the device computes for {} of each step",
    ),
    "launch": (
        "",
        "for {} of each step the device waits for launches, while the host runs operators",
    ),
    "overhead": ("{n} small operators take {} of each step", ""),
    "copy": ("", "for {} of each step copies hold it up, between host and device"),
}
# An operator that takes so much of a step is what it is about.
_ALONE = 0.9


def _sentence(bound: _Bound, case: Case) -> str:
    part, share = fmt_share(bound.share), bound.share
    is_unknown = _is_one_sided(bound, case)
    if is_unknown and case.on_device:
        has_host = case.trace.is_a(*HOST_CATEGORIES).any()
        what = "no operator was recorded" if has_host else "nothing of the host was recorded"
        if case.has_operators:
            what = "the trace does not say which calls launched its work"
        idle = fmt_share(case.device_shares["idle"])
        return f"In {idle} of each step the device idles, and {what}"
    if is_unknown and not case.has_operators:
        why = case.unseen_device or "nothing that torch's profiler records is in here"
        return f"What takes the time is not known: {why}"
    if bound.part == "host" and (known := _set_up(case, share)):
        return known
    if bound.part == "gaps":
        return _gaps(case, part)
    waits = _waits(case)
    words = (
        _waiting(case, part)
        if bound.part == "sync"
        else _WORDS["waits" if waits and bound.part == "host" else bound.part][
            case.on_device
        ].format(
            part,
            waits=waits,
            python="Python and other host work, " * case.knows_of_python,
            driver=case.driver[0],
            n=fmt_count(round(bound.n)),
        )
    )
    if is_unknown:
        unseen = case.unseen_device
        if not case.trace.unread:
            unseen = f"the device's work was not recorded ({unseen})"
        told = f"What takes the time is not known: {unseen}; on the host, {words}"
        return f"{words}; {unseen}" if bound.part == "driver" else told
    if bound.part == "compute":
        for one in () if case.on_device else case.operators[:1]:
            alone = one.self_us / case.wall_us
            if alone >= _ALONE and ": " not in one.name:
                named = f"{fmt_share(alone)} of each step is spent in {one.name}"
                return f"Compute-bound: {named}, {part} in all of torch's operators"
        return f"Compute-bound: {words}"
    if bound.part == "host" and case.waiting[0] >= _MOSTLY:
        return f"{'Waiting' if share >= DATA_BOUND_FROM else 'Partly waiting'}: {words}"
    # the same words as perfkit.watch for a whole run
    if share >= DATA_BOUND_FROM:
        return f"{bound.part.capitalize()}-bound: {words}"
    beside = ""
    if bound.work > share and bound.part != "overhead":
        most = "most of it" if bound.work > 0.5 else "the largest part"
        beside = (
            f"; the device computes for {fmt_share(bound.work)}"
            if case.on_device
            else f"; {most} ({fmt_share(bound.work)}) is spent in torch's operators"
        )
    return f"Partly {bound.part}-bound: {words}{beside}"


def _set_up(case: Case, share: float) -> str:
    """That most of the host's share is known, and need not be in the steps; else empty."""
    known = {
        "torch.compile compiles for {} of the profiled time": case.share_of(case.compiling),
        "capturing a CUDA graph takes {} of the profiled time: what is launched then runs only in "
        "replays": case.idle_in(case.capturing),
        "for {} of each step convolutions search for their fastest algorithm, in every step "
        "anew": case.share_of(case.set_up.searching),
        **{
            f"{{}} of the profiled time is start-up: {name} took {fmt_ms(ms)} the first time": (
                case.share_of(case.set_up.first)
            )
            for name, ms in case.set_up.longest[:1]
        },
    }
    said = max(known, key=lambda one: known[one])
    start = "Host-bound" if share >= DATA_BOUND_FROM else "Partly host-bound"
    return f"{start}: {said.format(fmt_share(known[said]))}" if known[said] > share / 2 else ""


def _waits(case: Case) -> str:
    """That the host's time outside of operators is no work of its own; else empty."""
    waiting, sleeping = case.waiting
    if max(waiting, sleeping) < _MOSTLY:
        return ""
    if sleeping > waiting:
        return "for most of that the code sleeps"
    return (
        "for most of that the main thread waits for other processes, threads or connections, "
        "whose work is not seen here"
    )


def _gaps(case: Case, part: str) -> str:
    """The trace does not show the cause of gaps, so this does not say "bound"."""
    if case.idle["queued"] < case.idle["kernels"]:
        return f"Gaps between kernels: they take {part} of each step, though the next one is queued"
    sat = case.sitting("queued")
    meanwhile = "" if sat is None else f"; meanwhile the host sat in {sat.words()}"
    return (
        f"For {part} of each step the device idles though work is queued{meanwhile}; the trace "
        "does not show what held the device"
    )


def _waiting(case: Case, part: str) -> str:
    """Why the device idles although the host only waits for it."""
    sat = case.sitting("sync")
    if sat is not None and sat.is_unexplained:
        return (
            f"in {part} of each step no recorded activity runs, because of waits of the host's; it "
            f"sat in {sat.words()}, and the trace does not show what it waited for"
        )
    where = "" if sat is None else f"; the host sat in {sat.words()}"
    return (
        f"for {part} of each step the device idles around syncs, where the host waits, or has just "
        f"waited, for it{where}"
    )


def _is_ahead(step: Summary, case: Case) -> bool:
    """Whether the host only launches, and the device works on after it."""
    return case.works_us > _AHEAD * 1e3 * step.median


def _step_words(step: Summary, case: Case) -> str:
    if _is_ahead(step, case):
        return f"{fmt_ms(case.works_us / 1e3)} a step, by the device: the host ran ahead"
    if step.n == 1:
        return f"one step of {fmt_ms(step.median)}"
    return f"median step {interval(step.median, step.low, step.high)}, n={step.n}"
