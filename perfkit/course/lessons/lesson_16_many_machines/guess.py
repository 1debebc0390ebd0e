"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "The checkpoint of update 10 holds 80 samples. The restarted loader begins at the first one "
    "again, so updates 11 to 16 repeat the first 48, and the last 48 never come.",
)
