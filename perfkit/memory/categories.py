"""What a tensor's memory is for: eight categories, and who wins where two apply."""

from __future__ import annotations

from collections.abc import Mapping

# A smaller number wins: a gradient that was first seen as a temporary becomes a gradient, never
# the other way round.
PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS, INPUTS, ACTIVATIONS, TEMPORARY, OTHER = range(8)
UNDECIDED = 8

#: What grows with the batch; the optimizer's temporaries are the exception.
BATCH_CATEGORIES = frozenset({INPUTS, ACTIVATIONS, TEMPORARY})

_NAMES = {
    PARAMETERS: "parameters",
    BUFFERS: "buffers",
    GRADIENTS: "gradients",
    OPTIMIZER_STATE: "optimizer state",
    ACTIVATIONS: "activations",
    INPUTS: "inputs",
    TEMPORARY: "temporary",
    OTHER: "other",
}

#: The categories, in the order in which they are shown. How each is decided stands in
#: :mod:`perfkit.memory.tracker`.
CATEGORIES = tuple(_NAMES.values())


def by_name(nbytes: Mapping[int, int]) -> dict[str, int]:
    """Bytes by category, each category present, keyed by its name."""
    return {name: nbytes.get(number, 0) for number, name in _NAMES.items()}


def name_of(number: int) -> str:
    """The name of one category."""
    return _NAMES[number]
