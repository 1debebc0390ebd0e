"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "d",
    "Each process counts the machine's cores by itself and starts a thread for each: 16 × 16. "
    "Nothing divides the cores among processes unless you do.",
)
