"""When the claims of lesson 17 hold."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.measure.compare import Comparison

_LESSON = "17-time-or-money"
#: A least time that is missed by more than this share was none: the machine was busy while its
#: peaks were measured, or work was counted that the operator does not do.
_SLACK = 0.9
#: A prediction that is off by the same factor on all devices may miss a smaller difference.
_CHEAPER = 1.25


@criterion(
    "C9",
    lesson=_LESSON,
    title="the least time of two trainings on five GPUs by their data sheets; on this machine, "
    "least times beside measured ones",
    holds_if="at the example prices there are two GPUs of which one is cheaper by a quarter for "
    "one training and the other by a quarter for the other one (predicted), and on this machine, "
    "of two products with the same FLOPs the one with the longer least time takes longer (the "
    "interval does not include 1), while no operator is faster than nine tenths of its least time",
)
def the_right_gpu(
    least_ms: Mapping[str, Mapping[str, float]],
    prices: Mapping[str, float],
    shapes: Comparison,
    over_least: Mapping[str, float],
) -> Outcome:
    """Judge whether the choice of a GPU depends on the training.

    Args:
        least_ms: training → GPU → predicted least time of a step; two trainings.
        prices: GPU → price an hour.
        shapes: of two products with the same FLOPs, the one with more bytes against the other.
        over_least: operator → measured over least time on this machine; empty where no rates
            of its device are known.
    """
    spent = {
        training: {gpu: ms * prices[gpu] for gpu, ms in by_gpu.items()}
        for training, by_gpu in least_ms.items()
    }
    (name, one), (other_name, other) = spent.items()
    swap, first, second = max(
        (min(one[b] / one[a], other[a] / other[b]), a, b) for a in one for b in one if a != b
    )
    figures = {"swap_ratio": Figure(swap, "×", kind="predicted")}
    for training, by_gpu in spent.items():
        figures[f"{training}_dearest_ratio"] = Figure(
            max(by_gpu.values()) / min(by_gpu.values()), "×", kind="predicted"
        )
    figures["shapes_ratio"] = Figure.of(shapes)
    said = ""
    if over_least:
        low, high = min(over_least.values()), max(over_least.values())
        figures["closest_to_least"] = Figure(low, "×")
        figures["farthest_from_least"] = Figure(high, "×")
        said = f", and operators take {low:.2g} to {high:.2g} times their least time"
    return Outcome(
        holds=all_of(
            swap >= _CHEAPER, faster(shapes), True if over_least and low >= _SLACK else None
        ),
        figures=figures,
        headline="shapes_ratio",
        sentence=f"At the example prices {name} costs {one[second] / one[first]:.2f} times as "
        f"much on {second} as on {first}, and {other_name} {other[first] / other[second]:.2f} "
        f"times as much on {first} as on {second} (predicted). Here, with the same FLOPs a "
        f"product with one row takes {shapes.ratio:.1f} times as long as a square one{said}.",
    )


@criterion(
    "A17",
    lesson=_LESSON,
    title="a cost model of work against a faster GPU; one fix measured; a trainer that waits for "
    "its data, on one device and on one half as fast",
    holds_if="at the example prices a faster GPU makes an epoch cheaper, so that work on the code "
    "costs more for at least one epoch (predicted), the fix is faster here (the interval does not "
    "include 1), and a device half as fast makes no difference to a trainer that waits for data",
)
def hardware_or_work(
    per_epoch: Mapping[str, float], work_price: float, fix: Comparison, waiting: Comparison
) -> Outcome:
    """Judge when hardware is cheaper than work.

    Args:
        per_epoch: ``"as it is"``, ``"after work"`` and ``"faster GPU"`` → price of an epoch.
        work_price: of the work, once.
        fix: the step before and after that work, measured here.
        waiting: a trainer that waits for its data, with a device half as fast and with this one.
    """
    now, after = per_epoch["as it is"], per_epoch["after work"]
    bought = per_epoch["faster GPU"]
    break_even = work_price / (now - after) if now > after else float("inf")
    always = bought <= after
    until = float("inf") if always else work_price / (bought - after)
    gains = faster(waiting)
    figures = {
        "fix_ratio": Figure.of(fix),
        "gpu_saves": Figure(now / bought, "×", kind="predicted"),
        "waiting_ratio": Figure.of(waiting, kind="simulated"),
    }
    if break_even < float("inf"):
        figures["break_even_epochs"] = Figure(break_even, "1", kind="predicted")
    pays = (
        f"pays back after {break_even:,.0f} epochs" if break_even < float("inf") else "never pays"
    )
    gpu = (
        "at every number of them"
        if always
        else f"below {until:,.0f} of them"
        if bought <= now
        else "nowhere"
    )
    return Outcome(
        holds=all_of(bought < now and until > 1, faster(fix), None if gains is None else not gains),
        figures=figures,
        headline="gpu_saves",
        sentence=f"Work that makes the step {fix.ratio:.2f}× as fast here {pays}; the faster GPU "
        f"makes an epoch {now / bought:.2g} times cheaper and is the cheaper of the two {gpu} "
        f"(predicted, example prices). Where a trainer waits for its data, a device twice as fast "
        f"brings {waiting.ratio:.2f}× (simulated).",
    )
