"""What a step really waits for on a GPU, beside what the sync lint predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perfkit.base.device import here
from perfkit.base.errors import MissingError
from perfkit.synclint.find import SyncLines
from perfkit.synclint.reality import lint

if TYPE_CHECKING:
    import torch


def check_syncs(step: Callable[[], object], model: torch.nn.Module | None = None) -> SyncLines:
    """Run ``step()`` twice on a GPU: to warm up, then to compare prediction with reality.

    Returns:
        Predicted lines and others that waited, each with its ``outcome``.

    Raises:
        MissingError: there is no GPU, the step does not use it, or there is no trace of it.
        UsageError: within another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``step`` raises, unchanged.
    """
    if here().is_cpu:
        raise MissingError(
            "check_syncs: there is no GPU here; perfkit.find_syncs predicts without one"
        )
    step()  # the first run loads kernels and makes states, once
    result = lint(step, model)
    if not result.is_measured:
        raise MissingError(f"check_syncs: {result.warnings[-1]}")
    return result
