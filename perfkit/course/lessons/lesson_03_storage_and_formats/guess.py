"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "Decoding took the time, and only stored pixels avoid it. Files that were just read are "
    "already in RAM, whether as a list, one file or many; and the decoders in the usual "
    "wheels use vector code as they come.",
)
