"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "d",
    "The next number below 1 in bf16 is 0.996. An update of 0.0001 is less than half of that "
    "distance, so each sum is rounded back to 1. Nothing adds up, because nothing is kept.",
)
