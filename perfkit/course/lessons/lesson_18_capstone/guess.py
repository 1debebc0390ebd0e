"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "It takes off the same milliseconds, first or last. But a ratio counts what is left: first, "
    "all other faults are still there, and last, next to nothing is.",
)
