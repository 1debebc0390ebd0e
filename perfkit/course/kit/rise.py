"""How much memory a step holds above what was there before it."""

from __future__ import annotations

import gc
from collections.abc import Callable

from perfkit.memory.account import account


def rise_bytes(step: Callable[[], object]) -> int:
    """The peak of ``step()`` above what was there before it, in bytes of tensors.

    What only waits for the garbage collector is collected first: it would count as there before,
    and hide as many bytes of the step's own if the collector came meanwhile.
    """
    gc.collect()
    found = account(step)
    return found.peak_bytes - found.start_bytes
