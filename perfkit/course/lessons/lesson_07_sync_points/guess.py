"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "At its peak rates, that GPU needs 33 ms for the arithmetic of a step and 135 ms for its "
    "memory traffic: counting shows it, no GPU needed. What fits into 5.4 ms is asking for "
    "the step.",
)
