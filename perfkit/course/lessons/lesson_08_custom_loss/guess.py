"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "The same sums over the same pixels, asked for in about 80 operators instead of 76,000, "
    "take a few milliseconds. Nearly all of the time was spent on asking, and a GPU is asked by "
    "the same Python, line by line.",
)
