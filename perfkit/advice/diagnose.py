"""What bounds the step, in one sentence, and what to do about it, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, duration, interval, percent
from perfkit.advice.rules import RULES
from perfkit.timing.summary import Summary
from perfkit.timing.verdict import DATA_BOUND_FROM, PARTLY_FROM

# A finding that can bring less than this is within the spread of most step times.
_LEAST_GAIN = 1.05

BOUNDS = ("data", "host", "launch", "sync", "copy", "compute", "communication")


@dataclass(frozen=True)
class Diagnosis:
    """What bounds the step.

    Attributes:
        bound_by: one of ``data host launch sync copy compute communication``: the largest part
            of a typical step; with a device, what it idles for most, from a fifth of the step on.
        sentence: the same in words, with its numbers.
        findings: what to change, by the largest bound of its gain.
    """

    bound_by: str
    sentence: str
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "bound_by": self.bound_by,
            "sentence": self.sentence,
            "findings": [f.to_dict() for f in self.findings],
        }


def diagnose(case: Case, step: Summary, provenance: str) -> Diagnosis:
    """Name the bound and run every rule.

    Args:
        case: what is known.
        step: summary of the steps' lengths in ms.
        provenance: where the figures come from: ``measured here``, ``recorded`` …
    """
    bound = _bound(case)
    found = [f for rule in RULES for f in rule(case) if f.always or f.gain_at_most >= _LEAST_GAIN]
    found.sort(key=lambda f: (-f.gain_at_most, f.rule))
    uneven = f"; {case.typical.uneven}" if case.typical.uneven else ""
    what = f"{_sentence(bound, case)} ({_step_words(step)}, {provenance}){uneven}."
    return Diagnosis(bound.bound_by, what, tuple(found))


@dataclass(frozen=True)
class _Bound:
    """``bound_by``; the part that could go away and its share; the share of the work itself."""

    bound_by: str
    part: str
    share: float
    work: float


def _bound(case: Case) -> _Bound:
    """On a CPU, the largest part. On a device, the largest loss worth removing: whatever the
    device idles for is lost beside its work, however long that takes.
    """
    compiling = case.lost_in(case.compiling, typical=True)
    starting = case.lost_in(case.start_up[0], typical=True)
    rare = case.lost_in(case.compiling) + case.lost_in(case.start_up[0])
    # what a few of the steps compile or load is told of the profiled time, not of a typical step
    losses = {
        "data": case.lost_to("data wait"),
        "host": max(case.lost_to("other") + compiling + starting, rare),
    }
    if not case.on_device:
        shares = case.shares
        work = shares["forward"] + shares["backward"] + shares["optimizer"]
        worst = max(losses, key=lambda b: losses[b])
        work = min(work, 1.0 - losses[worst])
        if losses[worst] >= work:
            return _Bound(worst, worst, losses[worst], work)
        part = worst if losses[worst] >= PARTLY_FROM else "compute"
        return _Bound("compute", part, losses.get(part, work), work)
    device = case.device_shares
    losses |= {
        "sync": case.idle["sync"],
        "copy": case.idle["copy"],
        "launch": case.idle["launch"] - compiling - starting,
        # what is left of it computes and communicates at once: that costs nothing
        "communication": device["communication"] + case.idle["communication"],
    }
    worst = max(losses, key=lambda b: losses[b])
    if losses[worst] >= PARTLY_FROM:
        return _Bound(worst, worst, losses[worst], device["compute"])
    busiest = max(("compute", "copy"), key=lambda k: device[k])
    return _Bound(busiest, busiest, device[busiest], device["compute"])


def _sentence(bound: _Bound, case: Case) -> str:
    part, share = percent(bound.share), bound.share
    if bound.part == "host":
        compiling, starting = case.share_of(case.compiling), case.share_of(case.start_up[0])
        if compiling > share / 2:
            return (
                f"Host-bound: torch.compile compiles for {percent(compiling)} of the profiled time"
            )
        if starting > share / 2:
            return f"Host-bound: {percent(starting)} of the profiled time is start-up, not training"
    if not case.on_device:
        words = {
            "data": f"{part} of each step waits for the DataLoader",
            "host": (
                f"{part} of each step is Python and other host work outside of torch's operators"
            ),
            "compute": f"{part} of each step is spent in torch's operators",
        }[bound.part]
    else:
        words = {
            "data": f"in {part} of each step the device idles for want of data",
            "host": f"in {part} of each step the device idles while the host does other work",
            "launch": (
                f"in {part} of each step the device idles because the host launches kernels "
                "too slowly"
            ),
            "sync": f"in {part} of each step the device idles after the host waited for it",
            "copy": f"for {part} of each step transfers between host and device hold it up",
            "compute": f"the device computes for {part} of each step",
            "communication": (
                f"for {part} of each step the device only exchanges data with other ranks, or "
                "waits to"
            ),
        }[bound.part]
    if bound.part == "compute":
        return f"Compute-bound: {words}"
    # as perfkit.watch says it of a whole run
    if share >= DATA_BOUND_FROM:
        return f"{bound.part.capitalize()}-bound: {words}"
    beside = ""
    if bound.work > share:
        most = "most of it" if bound.work > 0.5 else "the largest part"
        beside = (
            f"; the device computes for {percent(bound.work)}"
            if case.on_device
            else f"; {most} ({percent(bound.work)}) is compute"
        )
    return f"Partly {bound.part}-bound: {words}{beside}"


def _step_words(step: Summary) -> str:
    if step.n == 1:
        return f"one step of {duration(step.median)}"
    return f"median step {interval(step.median, step.low, step.high)}, n={step.n}"
