"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "d",
    "Nothing divides the sum of 16 gradients by 16, and nothing clears it afterwards: the tenth "
    "update gets the sum of 160. The loss that the loop shows is divided, so it looks right.",
)
