"""When the claims of lesson 12 hold."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_12_batch_and_accumulate.measured import Tried
from perfkit.measure.compare import Comparison
from perfkit.measure.paired import Interval

_LESSON = "12-batch-and-accumulate"
#: Four times the batch has to bring this, to be worth its memory.
_GAIN = 1.25
#: 16 parts of 8 may take this share of the batch of 128; they need a sixteenth of its activations.
_SMALL_PEAK = 0.25

#: losses at the end of an epoch, one for each seed, by the name of the run
Losses = Mapping[str, list[float]]


@criterion(
    "B3",
    lesson=_LESSON,
    title="samples a second by batch size, small pictures and large ones; the largest batch",
    holds_if="a larger batch takes less time per sample with small pictures, and still at least a "
    "fifth less with large ones; and the prediction from two small batches is the largest that "
    "fits, on a GPU to a twentieth",
)
def as_large_as_possible(
    small: Comparison | Interval, large: Comparison, tried: Tried, losses: Losses
) -> Outcome:
    """Judge batches of 8 against 128 of small pictures, and of 8 against 32 of large ones.

    Args:
        small, large: the small batch against the large one, the same samples.
        tried: the largest batch below a limit.
        losses: ``"few, tuned"`` (batches of 8), ``"many, same"`` and ``"many, scaled"`` (of 128
            with the same learning rate and with 16 times as much).
    """
    still = True if large.low > _GAIN else False if large.high < _GAIN else None
    ends = {name: fmean(values) for name, values in losses.items()}
    return Outcome(
        holds=all_of(faster(small), still, tried.is_right),
        figures={
            "small_ratio": Figure.of(small),
            "large_ratio": Figure.of(large),
            "predicted_batch": Figure(tried.predicted, "1", kind="predicted"),
            "largest_batch": Figure.exact(tried.fitted),
            "loss_few": Figure(ends["few, tuned"], "1"),
            "loss_many_same": Figure(ends["many, same"], "1"),
            "loss_many_scaled": Figure(ends["many, scaled"], "1"),
        },
        headline="small_ratio",
        sentence=f"Batches of 128 instead of 8 are {small.ratio:.2f}× as fast per sample with "
        f"small pictures, and batches of 32 {large.ratio:.2f}× with large ones, which keep the "
        f"device busy at 8 already{_slower(large)}. {tried.sentence}",
    )


def _slower(large: Comparison) -> str:
    # on an H100 0.41 times as fast
    return "; the larger batch is even slower there" if large.high < 0.9 else ""


@criterion(
    "B4",
    lesson=_LESSON,
    title="16 parts of 8 against a batch of 128",
    holds_if="accumulated gradients are those of the batch to rounding, and the peak is at most a "
    "quarter of the batch's",
)
def accumulated(
    same: bool | None,
    peaks: Mapping[str, int],
    lengths: Mapping[int, float],
    exchanges: Mapping[str, int],
    timed: Comparison,
) -> Outcome:
    """Judge accumulation that divides and clears, and tell what the listing as printed does.

    Args:
        same: what ``perfkit.same_result`` says of one batch and of parts.
        peaks: ``"128 at once"`` and ``"16 × 8"`` → bytes.
        lengths: update → length of the gradient as printed, in lengths of the batch's.
        exchanges: ``"every part"`` and ``"no_sync"`` → all-reduces of an update.
        timed: 16 parts against one batch of small pictures.
    """
    once, parts = peaks["128 at once"], peaks["16 × 8"]
    last = max(lengths)
    return Outcome(
        holds=all_of(same, parts <= _SMALL_PEAK * once),
        figures={
            "peak_ratio": Figure.exact(once / parts, "×"),
            "time_ratio": Figure.of(timed),
            "printed_length": Figure.exact(lengths[last], "×"),
            "all_reduces": Figure.exact(exchanges["every part"]),
            "all_reduces_no_sync": Figure.exact(exchanges["no_sync"]),
        },
        headline="peak_ratio",
        sentence=f"16 parts of 8 rise to {parts / 1e6:.0f} MB, a batch of 128 to "
        f"{once / 1e6:.0f} MB, with the same gradients; with small pictures the batch is "
        f"{timed.ratio:.2f}× as fast. As printed, without dividing and clearing, the gradient of "
        f"update {last} is {lengths[last]:.0f} times as long.",
    )
