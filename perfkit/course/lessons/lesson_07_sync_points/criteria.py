"""When the claims of lesson 07 hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfkit.course.kit.published import PUBLISHED
from perfkit.course.kit.simulated_gpu import SimulatedGpu
from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_07_sync_points.lesson import crossover
from perfkit.course.lessons.lesson_07_sync_points.measured import (
    FetchedMasks,
    KeptLosses,
    Rewritten,
)
from perfkit.course.lessons.lesson_07_sync_points.traffic import Work
from perfkit.measure.compare import Comparison
from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.flops import flops
from perfkit.trace.ask.idle import idle
from perfkit.trace.read.columns import Trace

_LESSON = "07-sync-points"
_RESIDENT_BLOCKS = 4
_REWRITTEN = (
    "the first version waits and the second never does (predicted; on a GPU also seen), and both "
    "give the same value"
)


@criterion("E1", lesson=_LESSON, title="torch.nonzero against torch.where", holds_if=_REWRITTEN)
def not_nonzero(found: Rewritten) -> Outcome:
    """Judge a mean over chosen pixels, written both ways."""
    return _rewritten(found, "torch.where instead of torch.nonzero")


@criterion(
    "E2",
    lesson=_LESSON,
    title="torch.unique against sort, difference and count",
    holds_if=_REWRITTEN,
)
def not_unique(found: Rewritten) -> Outcome:
    """Judge a loss divided by the number of classes, written both ways."""
    return _rewritten(found, "sort, difference and count instead of torch.unique")


@criterion("E3", lesson=_LESSON, title="a boolean mask against ignore_index", holds_if=_REWRITTEN)
def ignored_pixels(found: Rewritten) -> Outcome:
    """Judge a mean over labelled pixels, written both ways."""
    return _rewritten(found, "ignore_index instead of a boolean mask")


def _rewritten(found: Rewritten, what: str) -> Outcome:
    before, after, really = found.waits_before, found.waits_after, found.happened
    return Outcome(
        holds=after == 0 < before
        and found.same
        and (not really or really["seen_after"].value == 0 < really["seen_before"].value),
        figures={
            "waits_before": Figure(before, "1", kind="predicted"),
            "waits_after": Figure(after, "1", kind="predicted"),
            "step_ratio": Figure.of(found.timed),
            **really,
        },
        headline="seen_before" if really else "waits_before",
        sentence=f"{what}: waits in a step {before} before, {after} after (predicted), "
        f"{'the same' if found.same else 'another'} value; forward and backward on this "
        f"{'GPU' if found.device == 'cuda' else 'CPU'} {found.timed.ratio:.2f}× as fast"
        f"{_said_of(really)}.",
    )


def _said_of(really: Mapping[str, Figure]) -> str:
    if not really:
        return ""
    before, after = really["seen_before"].value, really["seen_after"].value
    differ = sum(one.value for name, one in really.items() if name.startswith("lines_only"))
    return f"; seen there {before} before and {after} after, lines that differ: {differ}"


@criterion(
    "E4",
    lesson=_LESSON,
    title="compacting against ignore_index, by density of the mask",
    holds_if="at the lowest density compacting takes less time than ignore_index, and at the "
    "highest more (neither interval includes 1)",
)
def compacting_wins(densities: Sequence[float], ratios: Sequence[Comparison]) -> Outcome:
    """Judge the time of compacting against that of ``ignore_index``, by ascending density."""
    sparse, dense = ratios[0], ratios[-1]
    equal = crossover(densities, [one.ratio for one in ratios])
    figures = {"sparse_ratio": Figure.of(sparse), "dense_ratio": Figure.of(dense)}
    if equal is not None:
        figures["equal_at"] = Figure(100 * equal, "%")
    where = (
        "nowhere in this range" if equal is None else f"at about {float(f'{100 * equal:.1g}'):g} %"
    )
    wins = True if sparse.high < 1 else False if sparse.low > 1 else None
    loses = True if dense.low > 1 else False if dense.high < 1 else None
    return Outcome(
        holds=all_of(wins, loses),
        figures=figures,
        headline="sparse_ratio" if equal is None else "equal_at",
        sentence=f"With {100 * densities[0]:g} % of the pixels labelled, x[mask] takes "
        f"{sparse.ratio:.2f} of the time of ignore_index, with all of them {dense.ratio:.1f} times "
        f"as long; the two are equal {where}.",
    )


@criterion(
    "E5",
    lesson=_LESSON,
    title="what the published step must take, and asking for one",
    holds_if="the published time is enough for the step's arithmetic and for its memory traffic at "
    "the peak rates of that GPU",
)
def ask_and_run(
    work: Work, read_ms: Mapping[str, float] | None, true_ms: Mapping[str, float] | None
) -> Outcome:
    """Bound the published time by counts and peak rates; on a GPU, stopwatch against throughput.

    A simulated device would need to know how long a step takes, which is the question.

    Args:
        work: of the published step.
        read_ms: what a stopwatch around each step reads, by ``"a wait"`` and ``"no wait"``;
            ``None`` without a GPU.
        true_ms: time per step of many steps, by the same.
    """
    compute_ms, traffic_ms = work.least_ms(
        tflop_per_s=PUBLISHED.tflop_per_s, gb_per_s=PUBLISHED.gb_per_s
    )
    least_ms = max(compute_ms, traffic_ms)
    figures = {
        "flops": Figure.exact(work.flops, "FLOP"),
        "traffic_bytes": Figure.exact(work.traffic_bytes, "B"),
        "least_compute_ms": Figure(compute_ms, "ms", kind="predicted"),
        "least_ms": Figure(least_ms, "ms", kind="predicted"),
        "beyond_ratio": Figure(least_ms / PUBLISHED.after_ms, "×", kind="predicted"),
        "most_ratio": Figure(PUBLISHED.before_ms / least_ms, "×", kind="predicted"),
    }
    said = (
        f"The published step needs at least {compute_ms:.0f} ms for its arithmetic and "
        f"{traffic_ms:.0f} ms for its memory traffic on that GPU, operator by operator "
        f"(predicted): a step cannot take 5.4 ms, and the gain was at most "
        f"{PUBLISHED.before_ms / least_ms:.1f}×"
    )
    if read_ms is not None and true_ms is not None:
        figures |= {
            "stopwatch_ratio": Figure(read_ms["a wait"] / read_ms["no wait"], "×"),
            "throughput_ratio": Figure(true_ms["a wait"] / true_ms["no wait"], "×"),
            "asked_ms": Figure(read_ms["no wait"], "ms"),
            "run_ms": Figure(true_ms["no wait"], "ms"),
        }
        said += (
            f"; on this GPU a stopwatch without a wait reads {read_ms['no wait']:.1f} ms for a "
            f"step that takes {true_ms['no wait']:.0f} ms"
        )
    return Outcome(
        holds=compute_ms <= PUBLISHED.after_ms and traffic_ms <= PUBLISHED.after_ms,
        figures=figures,
        headline="most_ratio",
        sentence=f"{said}.",
    )


@criterion(
    "E6",
    lesson=_LESSON,
    title="ten waits behind a utilisation of 90 %",
    holds_if="a step with ten waits shows a utilisation above 85 % while it uses less than 10 % of "
    "the achievable FLOP/s, and most of its idle time is for waits (simulated)",
)
def hidden_waits(trace: Trace, gain: float) -> Outcome:
    """Judge a simulated trace; ``gain`` is how much faster it is without the waits.

    Lesson 02 has the measured counterpart.
    """
    utilisation = breakdown(trace).device_shares()["compute"]
    causes = idle(trace).shares()
    used = flops(trace).achieved_tflop_per_s / SimulatedGpu().tflop_per_s
    return Outcome(
        holds=utilisation > 0.85 and used < 0.1 and max(causes, key=lambda c: causes[c]) == "sync",
        figures={
            "utilisation": Figure(100 * utilisation, "%", kind="simulated"),
            "hidden_flops_share": Figure(100 * used, "%", kind="simulated"),
            "sync_idle": Figure(100 * causes["sync"], "%", kind="simulated"),
            "gain_without_waits": Figure(gain, "×", kind="simulated"),
        },
        headline="utilisation",
        sentence=f"A simulated step with ten waits has a utilisation of {100 * utilisation:.0f} % "
        f"and uses {100 * used:.1f} % of the achievable FLOP/s; without the waits it is "
        f"{gain:.2f}× as fast.",
    )


@criterion(
    "B5",
    lesson=_LESSON,
    title="collected losses: the graph, the value, the detached one",
    holds_if="a kept loss holds over a thousand times the bytes of a detached one where nothing "
    "calls backward; .item() keeps nothing and waits once; .detach() does not wait",
)
def kept_losses(found: KeptLosses) -> Outcome:
    """Judge what three ways of keeping a loss keep."""
    whole, value = found.grows["loss"], found.grows["detach"]
    after, resident = found.after_backward_bytes, found.after_backward_resident_bytes
    return Outcome(
        holds=whole > 1000 * value
        and found.grows["item"] == 0
        and found.waits == {"loss": 0, "item": 1, "detach": 0},
        figures={
            "graph_bytes": Figure.exact(round(whole), "B"),
            "after_backward_bytes": Figure.exact(round(after), "B"),
            "after_backward_nodes": Figure.exact(found.after_backward_nodes),
            "after_backward_resident": Figure(round(resident), "B"),
            "detached_bytes": Figure.exact(round(value), "B"),
            "item_bytes": Figure.exact(round(found.grows["item"]), "B"),
            "item_waits": Figure(found.waits["item"], "1", kind="predicted"),
            "detached_waits": Figure(found.waits["detach"], "1", kind="predicted"),
        },
        headline="graph_bytes",
        sentence=f"A kept loss holds {round(whole):,} B of tensors where nothing calls backward, "
        f"and {round(after)} B after it, where the nodes of its graph stay: about "
        f"{resident / 1e3:.0f} kB of resident memory a loss of {_RESIDENT_BLOCKS} blocks; .item() "
        f"keeps nothing and waits, .detach() keeps {round(value)} B and does not wait.",
    )


@criterion(
    "B6",
    lesson=_LESSON,
    title="a mask fetched for its sum, against the sum fetched",
    holds_if="the sum sends fewer bytes than the mask, and only the mask makes the host wait "
    "before somebody reads it",
)
def fetched_masks(found: FetchedMasks) -> Outcome:
    """Judge bytes and waits of both; lesson 06 has a ``step_ratio`` of this claim."""
    fetched, summed = found.fetched_bytes, found.summed_bytes
    figures = {
        "fetched_bytes": Figure.exact(fetched, "B"),
        "summed_bytes": Figure.exact(summed, "B"),
        "fetched_waits": Figure(found.waits[0], "1", kind="predicted"),
        "summed_waits": Figure(found.waits[1], "1", kind="predicted"),
    }
    if found.timed is not None:
        figures["fetch_ratio"] = Figure.of(found.timed)
    return Outcome(
        holds=fetched > summed and found.waits == (1, 0),
        figures=figures,
        headline="fetched_bytes",
        sentence=f"Fetching a mask for its sum sends {fetched:,} B and waits; summed on the device "
        f"it is {summed} B, and nobody waits before it is read.",
    )
