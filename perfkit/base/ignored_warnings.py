"""Warnings to which perfkit's own hooks give rise, and that ask the user for nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable


def ignore_warnings(message: str) -> Callable[[], None]:
    """Ignore warnings that begin with this pattern from now on; returns how to stop.

    For the time of the user's code: ``warnings.catch_warnings`` would undo what that filters.
    """
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message=message)
    ours = warnings.filters[0]

    def stop() -> None:
        if ours in warnings.filters and ours not in before:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]

    return stop
