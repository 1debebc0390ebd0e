"""The stopping rule: when a measurement in turns looks at its interval, to stop if it is tight.

It looks at a few geometrically spaced moments, and only at the interval's width. Looking after
every block, or stopping when a difference appears, would give too many false ones.
"""

from __future__ import annotations

import math

#: Each look comes after this many times the blocks of the one before.
GROWTH = 1.5


class Looks:
    """The moments of one measurement.

    Args:
        first: blocks before the first look.
    """

    def __init__(self, first: int) -> None:
        self._next = first

    def is_due(self, done: int) -> bool:
        """Whether to look after so many blocks; asked once after each."""
        if done < self._next:
            return False
        self._next = math.ceil(done * GROWTH)
        return True
