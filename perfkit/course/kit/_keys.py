"""The right answer to each lesson's guess, and the measurement that shows it.

The keys are here so that no notebook gives one away: its last cell is just ``guess.score()``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KEYS", "Key"]


@dataclass(frozen=True)
class Key:
    """The answer to one guess.

    Attributes:
        right: the letter of the right answer.
        because: what the lesson measured; empty if the lesson's own figures show it.
    """

    right: str
    because: str = ""


#: By the lesson's number.
KEYS = {
    "00": Key(
        "d",
        "The step waited for data, and most of that wait went into decoding pixels that were "
        "then thrown away.",
    ),
    "01": Key(
        "b",
        "All of the drift fell between the two arms. The interval cannot know that: it holds only "
        "the spread within each arm. Measured in turn, the same machine shows no difference.",
    ),
    "02": Key("d"),
    "03": Key(
        "c",
        "Decoding took the time, and only stored pixels avoid it. Files that were just read are "
        "already in RAM, whether as a list, one file or many; and the decoders in the usual "
        "wheels use vector code as they come.",
    ),
    "04": Key("c", "Each worker keeps prefetch_factor batches ready, and the default is two."),
    "05": Key(
        "c",
        "The epoch was 64 waits in a row; 8 files are 8 waits. A cache has nothing to serve before "
        "the second epoch, and neither the GPU nor the batch size changes the number of requests.",
    ),
    "06": Key(
        "c",
        "Pictures and masks hold one byte per value. Four of every five bytes were added before "
        "the copy, and could be added after it. Background copies need pinned memory, and still "
        "have to cross the bus.",
    ),
    "07": Key(
        "c",
        "At its peak rates, that GPU needs 33 ms for the arithmetic of a step and 135 ms for its "
        "memory traffic: counting shows it, no GPU needed. What fits into 5.4 ms is asking for "
        "the step.",
    ),
}
