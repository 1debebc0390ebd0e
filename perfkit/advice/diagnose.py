"""What bounds the step, in one sentence, and what to do about it, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, duration, interval, percent
from perfkit.advice.rules import RULES
from perfkit.timing.summary import Summary

# Below a sixth of the step, removing a loss gains less than 1.18×: the work itself is the bound.
_BOUND_FROM = 0.15
# A finding that can bring less than this is within the spread of most step times.
_LEAST_GAIN = 1.05

BOUNDS = ("data", "host", "launch", "sync", "copy", "compute", "communication")


@dataclass(frozen=True)
class Diagnosis:
    """What bounds the step.

    Attributes:
        bound_by: one of ``data host launch sync copy compute communication``.
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
    bound_by, share = _bound(case)
    found = [f for rule in RULES for f in rule(case) if f.always or f.gain_at_most >= _LEAST_GAIN]
    found.sort(key=lambda f: (-f.gain_at_most, f.rule))
    what = _sentence(bound_by, share, case)
    return Diagnosis(bound_by, f"{what} ({_step_words(step)}, {provenance}).", tuple(found))


def _bound(case: Case) -> tuple[str, float]:
    compiling = case.lost_in(case.compiling)
    losses = {"data": case.lost_to("data wait"), "host": case.lost_to("other") + compiling}
    if case.on_device:
        starting = case.lost_in(case.start_up[0])
        losses["host"] += starting
        losses |= {
            "sync": case.idle["sync"],
            "copy": case.idle["copy"],
            "launch": case.idle["launch"] - compiling - starting,
            # what is left of it computes and communicates at once: that costs nothing
            "communication": case.breakdown.device_shares()["communication"]
            + case.idle.get("communication", 0.0),
        }
    worst = max(losses, key=lambda b: losses[b])
    if losses[worst] >= _BOUND_FROM:
        return worst, losses[worst]
    if not case.on_device:
        shares = case.shares
        return "compute", shares["forward"] + shares["backward"] + shares["optimizer"]
    device = case.breakdown.device_shares()
    work = {k: device[k] for k in ("compute", "copy")}
    busiest = max(work, key=lambda k: work[k])
    return busiest, work[busiest]


def _sentence(bound_by: str, share: float, case: Case) -> str:
    part = percent(share)
    if bound_by == "host":
        compiling, starting = case.share_of(case.compiling), case.share_of(case.start_up[0])
        if compiling > share / 2:
            return (
                f"Host-bound: torch.compile compiles for {percent(compiling)} of the profiled time"
            )
        if starting > share / 2:
            return f"Host-bound: {percent(starting)} of the profiled time is start-up, not training"
    if not case.on_device:
        return {
            "data": f"Data-bound: {part} of each step waits for the DataLoader",
            "host": (
                f"Host-bound: {part} of each step is Python and other host work outside of "
                "torch's operators"
            ),
            "compute": f"Compute-bound: {part} of each step is spent in torch's operators",
        }[bound_by]
    return {
        "data": f"Data-bound: in {part} of each step the device idles for want of data",
        "host": (
            f"Host-bound: in {part} of each step the device idles while the host does other work"
        ),
        "launch": (
            f"Launch-bound: in {part} of each step the device idles because the host launches "
            "kernels too slowly"
        ),
        "sync": f"Sync-bound: in {part} of each step the device idles after the host waited for it",
        "copy": (
            f"Copy-bound: for {part} of each step transfers between host and device hold it up"
        ),
        "compute": f"Compute-bound: the device computes for {part} of each step",
        "communication": (
            f"Communication-bound: for {part} of each step the device only exchanges data with "
            "other ranks, or waits to"
        ),
    }[bound_by]


def _step_words(step: Summary) -> str:
    if step.n == 1:
        return f"one step of {duration(step.median)}"
    return f"median step {interval(step.median, step.low, step.high)}, n={step.n}"
