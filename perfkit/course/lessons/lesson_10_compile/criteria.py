"""When the claim of lesson 10 holds."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.base.compiling import CompileReport
from perfkit.course.kit.compiled import break_even_steps
from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_10_compile.measured import OnGpu
from perfkit.measure.compare import Comparison

_LESSON = "10-compile"
#: A static graph first, and one for all lengths.
_MOST_GRAPHS = 2


@criterion(
    "C10",
    lesson=_LESSON,
    title="a training step with and without torch.compile, and what compiling it takes",
    holds_if="a compiled step is faster in its steady state (the interval does not include 1), "
    "agrees with the uncompiled one, and for ten lengths of a batch no line ends a graph and "
    "at most two are compiled",
)
def pays(
    timed: Comparison | None,
    compile_s: float,
    reports: Mapping[str, CompileReport],
    same: bool | None,
    *,
    on_gpu: Mapping[str, OnGpu] | None = None,
) -> Outcome:
    """Judge compiling.

    Args:
        timed: an uncompiled step against a compiled one; None where nothing can be compiled here.
        compile_s: seconds of the first compilation, which nothing was cached for.
        reports: ``"careless"`` and ``"clean"`` → what ten steps compiled.
        same: what ``perfkit.same_result`` says of both.
        on_gpu: mode → a step on a GPU; None without one.
    """
    careless, clean = reports["careless"], reports["clean"]
    one_graph = not clean.breaks and not clean.given_up and clean.n_graphs <= _MOST_GRAPHS
    figures = {
        "graphs": Figure.exact(clean.n_graphs),
        "graphs_careless": Figure.exact(careless.n_graphs),
    }
    counted = (
        f"For ten lengths {careless.n_graphs} graphs are compiled of the careless model before "
        f"torch gives up, and {clean.n_graphs} of the clean one."
    )
    if timed is None:
        return Outcome(
            holds=None,
            figures=figures,
            headline="graphs",
            sentence=f"Nothing is timed: no compiler works here. {counted}",
        )
    steps = break_even_steps(compile_s, timed.a.median, timed.b.median)
    figures["step_ratio"] = Figure.of(timed)
    figures["compile_s"] = Figure(compile_s, "s")
    if steps is not None:
        figures["break_even_steps"] = Figure(steps, "1")
    for mode, one in (on_gpu or {}).items():
        figures[f"{mode.replace('-', '_')}_ratio"] = Figure.of(one.timed)
        figures[f"{mode.replace('-', '_')}_launches"] = Figure.exact(one.launches)
    paid = "and never pays" if steps is None else f"which {steps:,} steps pay back"
    return Outcome(
        holds=all_of(faster(timed), same, one_graph),
        figures=figures,
        headline="step_ratio",
        sentence=f"A compiled step takes {1 / timed.ratio:.2f} times as long; compiling took "
        f"{compile_s:.0f} s, {paid}. {counted}",
    )
