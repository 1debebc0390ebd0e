"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "By then the cache holds blocks of many sizes, cut up for other lengths. A request finds no "
    "block that is large enough, though far more than it asks for is free. The same batches in "
    "expandable segments fit.",
)
