"""When the claim of lesson 14 holds."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.course.ledger.criteria import criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_14_cpu_tuning.measured import Ran
from perfkit.measure.compare import Comparison

_LESSON = "14-cpu-tuning"
_NAMES = {"keep": "glibc told to keep memory"}


@criterion(
    "C15",
    lesson=_LESSON,
    title="a training step under the system's malloc and under others, in processes of their own",
    holds_if="a step takes less time under another malloc, or under the system's when it is told "
    "to keep its memory",
)
def another_allocator(against_system: Mapping[str, Comparison], ran: Mapping[str, Ran]) -> Outcome:
    """Judge mallocs against the system's.

    Args:
        against_system: malloc → the system's against it.
        ran: malloc → what a run counted, ``"system"`` among them.
    """
    verdicts = [faster(one) for one in against_system.values()]
    holds = True if True in verdicts else None if None in verdicts or not verdicts else False
    figures = {}
    for name, one in ran.items():
        figures[f"{name}_faults"] = Figure(one.faults, "1")
        figures[f"{name}_peak_bytes"] = Figure(one.peak_bytes, "B")
    said = []
    for name, compared in against_system.items():
        figures[f"{name}_ratio"] = Figure.of(compared)
        said.append(
            f"{_NAMES.get(name, name)}: {compared.ratio:.2f}× as fast, {ran[name].faults:,.0f} "
            f"page faults a step, peak {ran[name].peak_bytes / 1e6:,.0f} MB"
        )
    best = max(against_system, key=lambda name: against_system[name].ratio, default=None)
    return Outcome(
        holds=holds,
        figures=figures,
        headline=f"{best}_ratio" if best else "system_faults",
        sentence=f"The system's malloc: {ran['system'].faults:,.0f} page faults a step, peak "
        f"{ran['system'].peak_bytes / 1e6:,.0f} MB. "
        + (f"Against it, {'; '.join(said)}." if said else "There is no other one here."),
    )
