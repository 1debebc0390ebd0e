"""What a figure is of: of one step on average, or of everything."""

from __future__ import annotations


def per_step(n_steps: int) -> str:
    """``per step``, for the note of a table; of one step, or where there is none, ``in all``."""
    return "per step" if n_steps > 1 else "in all"


def a_step(n_steps: int) -> str:
    """``a step``, for a sentence; of one step, or where there is none, ``in all``."""
    return "a step" if n_steps > 1 else "in all"


def each_step(n_steps: int) -> str:
    """`` a step``, behind a count: ``12 times a step``; of one step nothing: ``12 times``."""
    return " a step" if n_steps > 1 else ""
