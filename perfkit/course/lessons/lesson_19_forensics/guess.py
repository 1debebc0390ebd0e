"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "Two workers with eight batches each had 16 ready before the profile began, so its eight steps "
    "never met the loader. Later every step waits for its share of two workers: 40 / 2 = 20 ms.",
)
