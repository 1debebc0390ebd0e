"""Why less was recorded than was asked for, in words."""

from __future__ import annotations

from typing import Literal

from perfkit.base.words import fmt_count, plural
from perfkit.trace.record.deadline import MOST_EVENTS
from perfkit.trace.record.step_log import StepLog

#: One step may be longer than max_seconds; it is waited for, up to this many times as long.
PATIENCE = 5

EndedBy = Literal["the code", "time", "memory", "a failure"]


def why_so_few(log: StepLog, ended_by: EndedBy) -> str:
    """What ended the recording before all steps were recorded; empty where they are, or none ran.

    Args:
        log: the region's steps.
        ended_by: what ended it.
    """
    n, within, asked = log.n_recorded, log.n_until_stop + 1, log.asked
    if log.is_complete:
        return ""
    if ended_by == "memory":
        return (
            f"recording ended early, after {plural(n, 'whole step')}: meanwhile this process grew "
            f"by more than perfkit lets the events take (about {fmt_count(MOST_EVENTS)} of them); "
            f"your code ran on unrecorded; {_what_fits(log)}"
        )
    if not log.n:
        return ""
    if n or ended_by == "a failure":
        said = f"{n} of {asked.steps} steps {'was' if n == 1 else 'were'} recorded"
        if ended_by == "time":
            return f"{said}: the {asked.max_seconds:g} s to record in were over"
        return said if ended_by == "a failure" else f"{said}: the code ended"
    figures = "the figures are of that part of it" if asked.late else "the figures include warm-up"
    if ended_by == "time":
        longest = f"{(1 + PATIENCE) * asked.max_seconds:g} s that are recorded of one"
        return f"step {within} took longer than the {longest}: {figures}"
    if asked.late:
        return f"the code ended within step {within}: {figures}"
    n_steps = plural(log.n, "step")
    return f"the code ended after {n_steps}, and the warm-up takes {asked.warmup}: {figures}"


def _what_fits(log: StepLog) -> str:
    if log.n_recorded:
        return "record fewer steps (-n 1), or a shorter piece of the code"
    if not log.asked.warmup or log.n < log.asked.warmup:
        # nothing has shown yet how much the code needs for itself
        return (
            "if it was your tensors that grew, run the code once before you profile it; if it "
            "was the events, profile a shorter piece"
        )
    return (
        "no whole step of it fits: make one shorter for the recording (a shorter sequence, "
        "fewer iterations)"
    )
