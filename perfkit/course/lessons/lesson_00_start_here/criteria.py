"""When the claims of lesson 00 hold."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.advice.profile import Profile
from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_00_start_here.trainers import FewSteps
from perfkit.measure.compare import Comparison

_LESSON = "00-start-here"
# Accepted verdicts: on a CPU, Python's own work is "host"; a GPU that waits for it may be reported
# as "launch".
_EXPECTED = {"data": ("data",), "host": ("host", "launch"), "compute": ("compute",)}


@criterion(
    "A1",
    lesson=_LESSON,
    title="three trainers, each with another bottleneck: the verdicts",
    holds_if="the verdict names the bottleneck of each of the three",
)
def verdicts(profiles: Mapping[str, Profile]) -> Outcome:
    """Judge profiles by what each trainer was made to be bound by: data, host, compute."""
    said = {kind: profile.diagnosis.bound_by for kind, profile in profiles.items()}
    right = sum(said[kind] in expected for kind, expected in _EXPECTED.items())
    wait = {kind: profile.breakdown.shares()["data wait"] for kind, profile in profiles.items()}
    return Outcome(
        holds=right == len(_EXPECTED),
        figures={
            "named_right": Figure(right, f"of {len(_EXPECTED)} trainers"),
            "data_wait_percent": Figure(100 * wait["data"], "%"),
            "data_wait_percent_of_compute_bound": Figure(100 * wait["compute"], "%"),
        },
        headline="named_right",
        sentence="Made to be bound by data, host and computing; perfkit said "
        + ", ".join(said[kind] for kind in _EXPECTED)
        + ".",
    )


@criterion(
    "A5",
    lesson=_LESSON,
    title="the hottest line of a few steps, against the whole run's",
    holds_if="a few profiled steps name the line that was made hot, and cProfile and line_profiler "
    "name it over the whole run",
)
def few_steps(found: FewSteps) -> Outcome:
    """Judge a few profiled steps against cProfile and, if installed, line_profiler over all."""
    lines = found.profile.lines.by_line()
    ours = lines[0] if lines else None
    agree = {"cProfile": ours is not None and ours.function == found.function}
    if found.line is not None:
        agree["line_profiler"] = ours is not None and ours.line == found.line
    n = sum(agree.values())
    named = ours.text if ours is not None else "no line"
    return Outcome(
        holds=n == len(agree) and ours is not None and ours.text == found.hot_line,
        figures={
            "tools_that_agree": Figure(n, f"of {len(agree)} tools"),
            "line_share_percent": Figure(100 * (ours.share if ours else 0.0), "%"),
            "steps_profiled": Figure.exact(found.profile.n_steps, "steps"),
            "steps_of_the_run": Figure.exact(found.steps, "steps"),
            "cprofile_seconds": Figure(found.cprofile_s, "s"),
        },
        headline="tools_that_agree",
        sentence=f"{found.profile.n_steps} of {found.steps} steps name the line `{named}`; over "
        "the whole run "
        + " and ".join(f"{tool} {'does' if ok else 'does not'}" for tool, ok in agree.items())
        + ".",
    )


@criterion(
    "C2",
    lesson=_LESSON,
    title="the change that the verdict asks for, against another one",
    holds_if="in both trainers the change that the verdict asks for brings more than the other one "
    "(their intervals do not overlap)",
)
def bottleneck_first(changes: Mapping[str, tuple[str, Mapping[str, Comparison]]]) -> Outcome:
    """Judge, by what a trainer is bound by: which change was told, and what each one brings."""
    figures: dict[str, Figure] = {}
    larger: list[bool | None] = []
    for bound, (told, gains) in changes.items():
        other = "compute" if told == "data" else "data"
        figures[f"{bound}_bound_told_change"] = Figure.of(gains[told])
        figures[f"{bound}_bound_other_change"] = Figure.of(gains[other])
        if gains[told].low > gains[other].high:
            larger.append(True)
        else:  # where the intervals overlap, that is a matter of the budget
            larger.append(False if gains[told].high < gains[other].low else None)
    clearly = sum(one is True for one in larger)
    return Outcome(
        holds=all_of(*larger),
        figures=figures,
        headline="data_bound_told_change",
        sentence=f"In {clearly} of {len(larger)} trainers the change that the verdict asked "
        "for brought clearly more than the other one.",
    )
