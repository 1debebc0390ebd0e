"""When the claims of lesson 09 hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_09_precision.measured import OnGpu
from perfkit.measure.compare import Comparison

_LESSON = "09-precision"


def apart(curves: Mapping[str, Sequence[Sequence[float]]], one: str, other: str) -> float:
    """How far two ways end apart on the same seed, over how far seeds end apart in the first.

    The last ten steps of each curve are averaged. A value below 1 is less than another seed does.
    """
    ends = {way: [_end(losses) for losses in seeds] for way, seeds in curves.items()}
    between = max(ends[one]) - min(ends[one])
    most = max(abs(a - b) for a, b in zip(ends[one], ends[other], strict=True))
    return most / max(between, 1e-12)


def _end(losses: Sequence[float]) -> float:
    last = losses[-10:]
    return sum(last) / len(last)


@criterion(
    "B7",
    lesson=_LESSON,
    title="a training step in fp32 and under autocast to bf16",
    holds_if="a step under autocast is faster (the interval does not include 1; on a GPU, a step "
    "of a block of width 1,024), keeps fewer bytes for its backward pass, agrees with fp32 in its "
    "first steps within bf16's rounding, and its loss ends closer to that of fp32 than another "
    "seed does",
)
def mixed_precision(
    timed: Comparison,
    saved_bytes: Mapping[str, int],
    same: bool | None,
    curves: Mapping[str, Sequence[Sequence[float]]],
    *,
    on_gpu: Mapping[str, OnGpu] | None = None,
) -> Outcome:
    """Judge autocast to bf16.

    Args:
        timed: a step in fp32 against one under autocast; a small one, launch-bound on a GPU.
        saved_bytes: ``"fp32"`` and ``"autocast"`` → bytes kept for the backward pass.
        same: what ``perfkit.same_result`` says.
        curves: ``"fp32"``, ``"autocast"`` and ``"weights in bf16"`` → losses by seed.
        on_gpu: a larger step in three formats; ``None`` without a GPU.
    """
    judged = timed if on_gpu is None else on_gpu["bf16"].timed
    share = saved_bytes["autocast"] / saved_bytes["fp32"]
    distance = apart(curves, "fp32", "autocast")
    of_weights = apart(curves, "fp32", "weights in bf16")
    figures = {
        "step_ratio": Figure.of(timed),
        "saved_share": Figure.exact(100 * share, "%"),
        "loss_apart": Figure(distance, "1"),
        "weights_apart": Figure(of_weights, "1"),
    }
    for way, one in (on_gpu or {}).items():
        figures[f"{way}_ratio"] = Figure.of(one.timed)
        figures[f"{way}_peak_share"] = Figure(100 * one.peak_bytes / one.fp32_peak_bytes, "%")
    return Outcome(
        holds=all_of(faster(judged), share < 1, same, distance < 1),
        figures=figures,
        headline="step_ratio" if on_gpu is None else "bf16_ratio",
        sentence=f"Under autocast to bf16 a step takes {1 / judged.ratio:.2f} times as long as in "
        f"fp32 and keeps {100 * share:.0f} % of the bytes; over {len(curves['fp32'])} seeds its "
        f"loss ends {distance:.2g} times as far from that of fp32 as two seeds are apart, with the "
        f"weights in bf16 {of_weights:.2g} times.",
    )


@criterion(
    "C12",
    lesson=_LESSON,
    title="one matrix product in fp32 and in narrower formats",
    holds_if="the product is faster in bf16 than in fp32 (the interval does not include 1), and, "
    "on a GPU with fp8, faster again in e4m3",
)
def narrow_products(
    product: Comparison, errors: Mapping[str, float], *, in_fp8: Comparison | None = None
) -> Outcome:
    """Judge narrower formats.

    Args:
        product: fp32 against bf16.
        errors: format → relative error of a product, between 0 and 1.
        in_fp8: bf16 against e4m3 on a GPU that has it; else ``None``.
    """
    figures = {"bf16_ratio": Figure.of(product)}
    for name, error in errors.items():
        key = name.lower().replace(" ", "_")
        figures[f"{key}_error"] = Figure.exact(100 * error, "%")
    said = (
        f"A product in bf16 takes {1 / product.ratio:.2f} times as long as in fp32, in half the "
        f"bytes and with an error of {100 * errors['bf16']:.1g} %; in e4m3 the error is "
        f"{100 * errors['fp8 e4m3']:.1g} %"
    )
    parts = [faster(product)]
    if in_fp8 is not None:
        figures["fp8_ratio"] = Figure.of(in_fp8)
        parts.append(faster(in_fp8))
        said += f", and it takes {1 / in_fp8.ratio:.2f} times as long as in bf16"
    return Outcome(
        holds=all_of(*parts), figures=figures, headline="bf16_ratio", sentence=f"{said}."
    )
