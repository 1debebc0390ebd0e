"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "Pictures and masks hold one byte per value. Four of every five bytes were added before "
    "the copy, and could be added after it. Background copies need pinned memory, and still "
    "have to cross the bus.",
)
