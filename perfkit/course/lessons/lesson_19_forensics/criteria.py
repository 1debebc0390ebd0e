"""When the claims of lesson 19 hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfkit.course.kit.published import PUBLISHED
from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, FigureKind, Outcome
from perfkit.course.lessons.lesson_19_forensics.measured import Clocked, Listing

_LESSON = "19-forensics"
#: "No change" in the time of a step: less than this share of it.
_ALIKE = 0.1
#: What is left of the published gain of 240× to call it that.
_SAME_GAIN = 100.0


@criterion(
    "B15",
    lesson=_LESSON,
    title="listings in their shortest form, run with today's releases",
    holds_if="every listing that can be tried here runs, and computes what its article says",
)
def listings_run(found: Sequence[Listing]) -> Outcome:
    """Judge what became of each listing."""
    tried = [one for one in found if one.state != "not tried"]
    raises = [one.name for one in tried if one.state == "raises"]
    other = [one.name for one in tried if one.state == "runs, another result"]
    left = [one.name for one in found if one.state == "not tried"]
    parts = [
        f"raises: {', '.join(raises)}" if raises else "",
        f"runs and computes something else: {', '.join(other)}" if other else "",
        f"not tried: {', '.join(left)}" if left else "",
    ]
    return Outcome(
        holds=None if not tried else not raises and not other,
        figures={
            "listings_tried": Figure.exact(len(tried)),
            "listings_that_fail": Figure.exact(len(raises) + len(other)),
        },
        headline="listings_that_fail",
        sentence=f"Of {len(tried)} listings, {len(raises) + len(other)} do not do what their "
        f"article says; {'; '.join(filter(None, parts)) or 'all run'}.",
    )


@criterion(
    "E5",
    lesson=_LESSON,
    title="the published step against its bounds, and on a GPU the script itself",
    holds_if="the published time is enough for the step's least memory traffic on that GPU and for "
    "drawing its pictures; and, on a GPU, the script without waits has at least 100 times the "
    "throughput",
)
def published_step_time(
    activations_ms: float, pictures_ms: float, ran: Mapping[str, Clocked] | None
) -> Outcome:
    """Judge the published time by bounds, and on a GPU by the script.

    Args:
        activations_ms: lower bound of the time to write and read each activation once.
        pictures_ms: lower bound of the time to draw the pictures of a step.
        ran: on a GPU, ``"two waits"`` and ``"none"`` → both clocks; else ``None``.
    """
    least_ms = max(activations_ms, pictures_ms)
    figures = {
        "activations_ms": Figure(activations_ms, "ms", kind="predicted"),
        "pictures_ms": Figure(pictures_ms, "ms", kind="predicted"),
        "least_fused_ms": Figure(least_ms, "ms", kind="predicted"),
    }
    said = (
        f"Writing and reading each activation once takes that GPU at least {activations_ms:.0f} "
        f"ms, and drawing the pictures of a step at least {pictures_ms:.0f} ms (predicted): "
        f"a step cannot take {PUBLISHED.after_ms} ms"
    )
    gained = None
    if ran is not None:
        before, after = ran["two waits"], ran["none"]
        gained = before.true_ms / after.true_ms
        figures |= {
            "script_stopwatch_ratio": Figure(before.read_ms / after.read_ms, "×"),
            "script_throughput_ratio": Figure(gained, "×"),
        }
        said += (
            f"; on this GPU the script without waits has {gained:.2f}× the throughput, while a "
            f"stopwatch reads {before.read_ms / after.read_ms:.1f}×"
        )
    return Outcome(
        holds=all_of(
            least_ms <= PUBLISHED.after_ms, *([] if gained is None else [gained >= _SAME_GAIN])
        ),
        figures=figures,
        headline="least_fused_ms",
        sentence=f"{said}.",
    )


@criterion(
    "E8",
    lesson=_LESSON,
    title="two waits in a step, the first removed, both removed",
    holds_if="two waits are predicted, then one, then none, and with the first removed the "
    "throughput changes by less than a tenth",
)
def wait_moves(waits: Sequence[int], clocks: Mapping[str, Clocked], device: str) -> Outcome:
    """Judge a step with two waits, with one, and with none.

    Args:
        waits: predicted waits of the three versions.
        clocks: ``"two waits"``, ``"one"`` and ``"none"`` → both clocks.
        device: ``"cpu"`` if the device that was timed is simulated.
    """
    kind: FigureKind = "simulated" if device == "cpu" else "measured"
    two, one, none = (clocks[name] for name in ("two waits", "one", "none"))
    ratio = two.true_ms / one.true_ms
    return Outcome(
        holds=all_of(list(waits) == [2, 1, 0], 1 / (1 + _ALIKE) < ratio < 1 + _ALIKE),
        figures={
            "first_removed_ratio": Figure(ratio, "×", kind=kind),
            "both_removed_ratio": Figure(two.true_ms / none.true_ms, "×", kind=kind),
            "both_removed_stopwatch": Figure(two.read_ms / none.read_ms, "×", kind=kind),
        },
        headline="first_removed_ratio",
        sentence=f"With the first of two waits removed a step is {ratio:.2f}× as fast, with both "
        f"{two.true_ms / none.true_ms:.2f}×, while a stopwatch around each step then reads "
        f"{two.read_ms / none.read_ms:.1f}× ({kind}).",
    )
