"""When the claims of lesson 13 hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_13_allocator.measured import AllocatorCounts
from perfkit.measure.compare import Comparison

_LESSON = "13-allocator"
#: So much more than tensors held at once is fragmentation, and not rounding.
_FRAGMENTED = 1.25
#: Up to here it is rounding: sizes, segments, and the small pool.
_WHOLE = 1.1


@criterion(
    "D7",
    lesson=_LESSON,
    title="reserved against allocated over batches of many lengths, and of one",
    holds_if="with random lengths at least a quarter more is reserved than tensors hold at once, "
    "and memory is taken from the device after the second step; with one length none is; and "
    "expandable segments reserve at most a tenth more than tensors hold",
)
def fragments(
    arms: Mapping[str, AllocatorCounts], expandable: AllocatorCounts, timed: Comparison
) -> Outcome:
    """Judge what the allocator reserved for batches of random and of equal lengths.

    Args:
        arms: ``"random"``, ``"bucketed"`` and ``"padded"``, with torch's default settings.
        expandable: the random lengths in expandable segments.
        timed: random against bucketed batches of a small model.
    """
    at_random, padded, bucketed = (arms[name] for name in ("random", "padded", "bucketed"))
    kind = cast("Literal['exact', 'simulated']", at_random.kind)
    told = cast("Literal['exact', 'simulated']", expandable.kind)
    return Outcome(
        holds=all_of(
            at_random.ratio >= _FRAGMENTED,
            at_random.late_allocs > 0,
            padded.late_allocs == 0,
            expandable.ratio <= _WHOLE,
        ),
        figures={
            "reserved_ratio": Figure(at_random.ratio, "×", kind=kind),
            "reserved_ratio_bucketed": Figure(bucketed.ratio, "×", kind=kind),
            "reserved_ratio_expandable": Figure(expandable.ratio, "×", kind=told),
            "late_device_allocs": Figure(at_random.late_allocs, "1", kind=kind),
            "late_device_allocs_padded": Figure(padded.late_allocs, "1", kind=kind),
            "device_allocs_padded": Figure(padded.device_allocs, "1", kind=kind),
            "bucketed_time_ratio": Figure.of(timed),
        },
        headline="reserved_ratio",
        sentence=f"Random lengths reserve {at_random.ratio:.2f} times what tensors hold at once "
        f"({'simulated' if kind == 'simulated' else 'counted'}), bucketed ones "
        f"{bucketed.ratio:.2f} times, expandable segments {expandable.ratio:.2f} times. "
        f"cudaMalloc is called {padded.device_allocs} times with one length, all of them in the "
        f"first two steps, and {at_random.late_allocs} times later than that with random ones.",
    )


@criterion(
    "D8",
    lesson=_LESSON,
    title="calls of cudaMalloc after the second step, with one length and with random ones",
    holds_if="cudaMalloc is called in the first two steps and never after them, whatever the "
    "lengths are",
)
def only_at_the_start(arms: Mapping[str, AllocatorCounts]) -> Outcome:
    """Judge when memory was taken from the device.

    Args:
        arms: ``"random"`` and ``"padded"``, with torch's default settings.
    """
    at_random, padded = arms["random"], arms["padded"]
    kind = cast("Literal['exact', 'simulated']", at_random.kind)
    counted = "simulated" if kind == "simulated" else "counted"
    return Outcome(
        holds=all_of(padded.device_allocs > 0, padded.late_allocs == 0, at_random.late_allocs == 0),
        figures={
            "late_device_allocs": Figure(at_random.late_allocs, "1", kind=kind),
            "late_device_allocs_padded": Figure(padded.late_allocs, "1", kind=kind),
        },
        headline="late_device_allocs",
        sentence=f"With one length, {padded.late_allocs} calls of cudaMalloc come after the second "
        f"step; with random lengths, {at_random.late_allocs} ({counted}).",
    )
