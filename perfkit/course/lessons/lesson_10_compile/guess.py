"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "d",
    "Each call changes self.n_calls, and each value needs another graph. After eight attempts "
    "torch gives up: from then on this code runs uncompiled, and one warning in a log says so.",
)
