"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "The epoch was 64 waits in a row; 8 files are 8 waits. A cache has nothing to serve before "
    "the second epoch, and neither the GPU nor the batch size changes the number of requests.",
)
