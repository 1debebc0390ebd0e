"""When the claims of lesson 06 hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_06_host_to_device.measured import Overlap, RoundTrips
from perfkit.measure.compare import Comparison
from perfkit.memory.crossings import Crossings

_LESSON = "06-host-to-device"


@criterion(
    "A9",
    lesson=_LESSON,
    title="uint8 batches, normalised on the device",
    holds_if="a batch of pictures with masks sends exactly a fifth of the bytes as uint8",
)
def small_batches(as_floats: Crossings, as_bytes: Crossings, timed: Comparison) -> Outcome:
    """Judge what crosses; ``timed`` compares training with floats to training with bytes."""
    large, small = as_floats.to_device_bytes, as_bytes.to_device_bytes
    return Outcome(
        holds=large == 5 * small,
        figures={
            "float_bytes": Figure.exact(large, "B"),
            "uint8_bytes": Figure.exact(small, "B"),
            "bytes_ratio": Figure.exact(large / small, "×"),
            "step_ratio": Figure.of(timed),
        },
        headline="bytes_ratio",
        sentence="A batch of 32 pictures of 512 × 512 with masks takes "
        f"{'a fifth' if large == 5 * small else f'{small / large:.2f}'} of the bytes as uint8.",
    )


@criterion(
    "C7",
    lesson=_LESSON,
    title="torch.as_tensor against torch.tensor",
    holds_if="torch.as_tensor takes the array's own memory, and torch.tensor does not",
)
def no_copy(array: Any, timed: Comparison) -> Outcome:
    """Judge where the tensors of a numpy array are; ``timed`` compares making them."""
    copied = torch.tensor(array).data_ptr() != array.ctypes.data
    shared = torch.as_tensor(array).data_ptr() == array.ctypes.data
    return Outcome(
        holds=copied and shared,
        figures={
            "copied_bytes": Figure.exact(array.nbytes if copied else 0, "B"),
            "shared_bytes": Figure.exact(0 if shared else array.nbytes, "B"),
            "time_ratio": Figure.of(timed),
        },
        headline="time_ratio",
        sentence="torch.as_tensor takes the array's own memory, torch.tensor copies it.",
    )


@criterion(
    "C6",
    lesson=_LESSON,
    title="tensors made on the device against sent ones",
    holds_if="a tensor made on the device sends no byte, and one made on the host does",
)
def make_there(sent_bytes: int, made_bytes: int, timed: Comparison | None = None) -> Outcome:
    """Judge what crosses; ``timed``, on a GPU, compares the two."""
    figures = {
        "sent_bytes": Figure.exact(sent_bytes, "B"),
        "made_bytes": Figure.exact(made_bytes, "B"),
    }
    if timed is not None:
        figures["time_ratio"] = Figure.of(timed)
    return Outcome(
        holds=made_bytes == 0 < sent_bytes,
        figures=figures,
        headline="time_ratio" if "time_ratio" in figures else "sent_bytes",
        sentence="A tensor that is made on the device sends nothing.",
    )


@criterion(
    "C8",
    lesson=_LESSON,
    title="non_blocking copies, pinned and not",
    holds_if="non_blocking helps from pinned memory (on a GPU: a pinned copy is faster, and the "
    "call returns earlier; simulated: it does nothing from pageable memory, and a copy home that "
    "is read at once holds old data)",
)
def overlap(found: Overlap) -> Outcome:
    """Judge copies on a GPU, or on the simulated device."""
    if found.pinned is not None and found.pin_in_loop is not None and found.host_ms is not None:
        waits, returns = found.host_ms[True], found.host_ms[False]
        return Outcome(
            holds=all_of(faster(found.pinned), returns < waits),
            figures={
                "pinned_ratio": Figure.of(found.pinned),
                "pin_in_loop_ratio": Figure.of(found.pin_in_loop),
                "host_blocking_ms": Figure(waits, "ms"),
                "host_non_blocking_ms": Figure(returns, "ms"),
            },
            headline="pinned_ratio",
            sentence="A pinned copy is faster than a pageable one, and non_blocking frees the "
            "host.",
        )
    took = found.simulated_ms
    plain = took["plain"]
    ways = {
        "pinned": "pinned",
        "pageable": "non_blocking",
        "pin_in_loop": "pin in the loop",
        "side_stream": "side stream",
    }
    return Outcome(
        holds=took["non_blocking"] == plain > took["pinned"] and found.late == "old",
        figures={
            f"{name}_ratio": Figure(plain / took[way], "×", kind="simulated")
            for name, way in ways.items()
        },
        headline="pinned_ratio",
        sentence="Simulated: non_blocking helps from memory that is pinned already, and only then.",
    )


@criterion(
    "B6",
    lesson=_LESSON,
    title="round trips between host and device",
    holds_if="a step in which the model goes to the host and back moves more bytes than one "
    "without",
)
def round_trips(found: RoundTrips) -> Outcome:
    """Judge what crosses in a step with a round trip and in one without."""
    crossed = found.crossed_bytes
    right, again = crossed["as it should be"], crossed["model.cpu() and back"]
    figures = {
        "right_bytes": Figure.exact(right, "B"),
        "model_bytes": Figure.exact(again, "B"),
        "outputs_bytes": Figure.exact(crossed["outputs.cpu()"], "B"),
        "bytes_ratio": Figure.exact(again / right, "×"),
    }
    if found.timed is not None and found.emptied is not None:
        figures["step_ratio"] = Figure.of(found.timed)
        figures["empty_cache_ratio"] = Figure.of(found.emptied)
    return Outcome(
        holds=again > right,
        figures=figures,
        headline="step_ratio" if "step_ratio" in figures else "bytes_ratio",
        sentence="A model that goes to the host and back moves all its parameters and gradients.",
    )


@criterion(
    "B9",
    lesson=_LESSON,
    title="where to cut a model in two devices",
    holds_if="some cuts of a small network send more bytes in a step than others",
)
def cut_in_two(crossed_bytes: Sequence[int]) -> Outcome:
    """Judge what crosses in a step, by the place of the cut."""
    worst, best = max(crossed_bytes), min(crossed_bytes)
    return Outcome(
        holds=worst > best,
        figures={
            "worst_bytes": Figure.exact(worst, "B"),
            "best_bytes": Figure.exact(best, "B"),
            "bytes_ratio": Figure.exact(worst / best, "×"),
        },
        headline="bytes_ratio",
        sentence="Where a model is cut in two decides how many bytes cross in every step.",
    )
