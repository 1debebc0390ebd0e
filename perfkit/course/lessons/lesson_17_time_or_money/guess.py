"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "A step of the catalogue is the update of a large table: it reads or writes 7 numbers for "
    "each parameter and computes next to nothing. Its lower bound is its bytes over the memory's "
    "rate, and an H100's memory is 3,350 / 300 = 11 times as fast as an L4's.",
)
