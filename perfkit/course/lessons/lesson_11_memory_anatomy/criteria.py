"""When the claims of lesson 11 hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_11_memory_anatomy.measured import KeptAfterBackward

_LESSON = "11-memory-anatomy"
#: A loss and its neighbours in a storage: what a kept loss may hold of tensors after backward().
_A_LOSS_BYTES = 8


@criterion(
    "B5",
    lesson=_LESSON,
    title="collected losses: a validation with its graphs, a training after backward()",
    holds_if="a validation's kept result adds over a thousand times the bytes of tensors that a "
    "detached one adds, and a loss kept after backward() adds no tensor but itself, and all the "
    "same resident memory of the host",
)
def kept_losses(
    validation: Any, detached: Any, training: Any, resident: KeptAfterBackward
) -> Outcome:
    """Judge what kept losses keep.

    Args:
        validation: what ``perfkit.find_leaks`` found where each validation's mean is kept.
        detached: the same with the detached one.
        training: the same where each training loss is kept after its backward pass.
        resident: the host's memory of a kept loss after its backward pass.
    """
    whole, value = validation.bytes_per_step, detached.bytes_per_step
    after = training.bytes_per_step
    figures = {
        "validation_graph_bytes": Figure.exact(round(whole), "B"),
        "validation_detached_bytes": Figure.exact(round(value), "B"),
        "training_bytes": Figure.exact(round(after), "B"),
        "training_nodes": Figure.exact(round(training.nodes_per_step)),
        "training_resident": Figure(round(resident.resident_bytes), "B"),
    }
    if training.heap_bytes_per_step:
        figures["training_heap"] = Figure(round(training.heap_bytes_per_step), "B")
    grows = resident.resident_bytes > 0 or None  # a resident set that stood still says nothing
    return Outcome(
        holds=all_of(whole > 1000 * max(value, 1), after <= _A_LOSS_BYTES, grows),
        figures=figures,
        headline="validation_graph_bytes",
        sentence=f"A kept validation adds {whole / 1e6:.1f} MB of tensors, a detached one "
        f"{round(value)} B. A loss kept after backward() adds {round(after)} B of tensors and "
        f"{round(training.nodes_per_step)} nodes; with {resident.blocks} blocks that is about "
        f"{resident.resident_bytes / 1e3:.0f} kB of the host's resident memory.",
    )


@criterion(
    "C16",
    lesson=_LESSON,
    title="the memory of a training step, by arithmetic and counted",
    holds_if="parameters, gradients, optimizer state and what the forward pass keeps for the "
    "backward pass are what the arithmetic says, to the byte, and a loss holds none of it after "
    "backward()",
)
def to_the_byte(
    by_hand: Mapping[str, int], counted: Mapping[str, int], after_backward_bytes: float
) -> Outcome:
    """Judge the account of a step.

    Args:
        by_hand: name of a part → bytes, calculated.
        counted: the same, counted.
        after_backward_bytes: tensors that a loss holds after its backward pass.
    """
    kept = counted["kept for backward"]
    rest = sum(counted.values()) - kept
    return Outcome(
        holds=dict(by_hand) == dict(counted) and after_backward_bytes <= _A_LOSS_BYTES,
        figures={
            **{
                f"{name.replace(' ', '_')}_bytes": Figure.exact(n, "B")
                for name, n in counted.items()
            },
            "after_backward_bytes": Figure.exact(round(after_backward_bytes), "B"),
        },
        headline="kept_for_backward_bytes",
        sentence=f"For its backward pass the forward pass keeps {kept:,} B, {kept / rest:.0f} "
        "times as much as parameters, gradients and optimizer state together; after backward() a "
        f"loss holds {round(after_backward_bytes)} B of tensors.",
    )
