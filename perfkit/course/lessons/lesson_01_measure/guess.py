"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "b",
    "All of the drift fell between the two arms. The interval cannot know that: it holds only "
    "the spread within each arm. Measured in turn, the same machine shows no difference.",
)
