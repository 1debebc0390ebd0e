"""When the claims of lesson 08 hold."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.advice.profile import Profile
from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_08_custom_loss.measured import OnGpu
from perfkit.measure.compare import Comparison

_LESSON = "08-custom-loss"
# findings that blame the calls, not what they compute
_CALLS = frozenset({"tiny-ops", "small-calls", "host-python", "launch-bound"})
_TINY_US = 20.0
_MOST = 256


@criterion(
    "A15",
    lesson=_LESSON,
    title="a loss over instances: a loop against a few operators",
    holds_if="with the most instances that were timed the vectorised loss is faster (the interval "
    "does not include 1), its value and gradients are the same, and its number of operators does "
    "not grow with the instances",
)
def without_the_loop(
    operators: Mapping[str, Mapping[int, int]],
    timed: Mapping[int, Comparison],
    waits: Mapping[str, int],
    same: bool | None,
    *,
    loop_s: float | None = None,
    on_gpu: Mapping[str, OnGpu] | None = None,
) -> Outcome:
    """Judge both losses.

    Args:
        operators: ``"loop"`` and ``"vectorised"`` → instances → operators of a step.
        timed: instances → the loop against the vectorised loss, forward and backward.
        waits: predicted waits of a step with 16 instances, by the same names.
        same: what ``perfkit.same_result`` says.
        loop_s: seconds of one step of the loop with 256 instances; ``None`` if not timed.
        on_gpu: launches and waits on a GPU with 16 instances, by the same names; ``None`` without
            one.
    """
    most = max(timed)
    loop, vectorised = operators["loop"], operators["vectorised"]
    figures = {
        **{f"ratio_{k}": Figure.of(one) for k, one in timed.items()},
        "loop_operators": Figure.exact(loop[most]),
        "vectorised_operators": Figure.exact(vectorised[most]),
        "loop_waits": Figure(waits["loop"], "1", kind="predicted"),
        "vectorised_waits": Figure(waits["vectorised"], "1", kind="predicted"),
    }
    said = (
        f"With {most} instances in each picture a loop asks for {loop[most]:,} operators, the "
        f"vectorised loss for {vectorised[most]:,}, and it is {timed[most].ratio:.0f} times as "
        f"fast; with 16 a loop would wait for a GPU {waits['loop']:,} times (predicted), the "
        f"vectorised loss {waits['vectorised']} times"
    )
    if loop_s is not None:
        figures[f"loop_{_MOST}"] = Figure(loop_s, "s")
        said += f". With {_MOST} the loop takes {loop_s:.0f} s a batch"
    for name, one in (on_gpu or {}).items():
        figures[f"{name}_launches"] = Figure.exact(one.launches)
        figures[f"{name}_seen_waits"] = Figure.exact(one.waits)
    return Outcome(
        holds=all_of(
            faster(timed[most]),
            same,
            len(set(vectorised.values())) == 1 and max(loop.values()) > loop[min(loop)],
        ),
        figures=figures,
        headline=f"ratio_{most}",
        sentence=f"{said}.",
    )


@criterion(
    "A16",
    lesson=_LESSON,
    title="a profile of the loss alone, and what it blames",
    holds_if="a finding of the profile blames the calls: their number, or the Python around them",
)
def profiled_alone(found: Profile) -> Outcome:
    """Judge a profile of a loss alone, forward and backward; lesson 01 counts another's calls."""
    calls = sum(one.count for one in found.operators)
    each = calls / max(found.n_steps, 1)
    tiny = sum(one.count for one in found.operators if one.self_us < _TINY_US * one.count)
    blamed = [one.rule for one in found.diagnosis.findings if one.rule in _CALLS]
    return Outcome(
        holds=bool(blamed),
        figures={
            "calls_each": Figure.exact(round(each)),
            "tiny_share": Figure(100 * tiny / max(calls, 1), "%"),
        },
        headline="calls_each",
        sentence=f"Profiled alone, the loop over instances calls {each:,.0f} "
        f"operators in a forward and backward pass, {100 * tiny / max(calls, 1):.0f} % of them "
        f"of a kind that takes less than {_TINY_US:g} µs; the profile blames "
        f"{', '.join(blamed) if blamed else 'something else'}.",
    )
