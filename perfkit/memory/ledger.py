"""The book of one device's memory: what came, what went, and what was there at the peak.

Entries are written while the user's code runs and evaluated afterwards, when the categories are
known: a block may be labelled long after it was allocated, and all totals stay equal. The book
knows nothing of torch; a block is a weak reference to anything that dies when its memory does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perfkit.memory.categories import OTHER, TEMPORARY, UNDECIDED

__all__ = ["Block", "Ledger", "Totals"]

#: Entries after which the book is folded into its highest peak so far. A training step writes
#: some hundred; 200 000 entries take about 30 MB.
FOLD_AT = 200_000


class Block(weakref.ref[Any]):
    """One storage: a weak reference to it, its size, and what is known about it.

    Attributes:
        key: ``id`` of the storage while it lives.
        nbytes: its size in bytes, fixed: a storage that is resized becomes another block.
        phase: where it was made (a number of :mod:`perfkit.memory.tracker`).
        category: a number of :mod:`perfkit.memory.categories`; ``UNDECIDED`` until labelled.
        alive: not yet freed.
        ledger: the book it stands in.
    """

    __slots__ = ("alive", "category", "key", "ledger", "nbytes", "phase")

    alive: bool
    category: int
    key: int
    ledger: Ledger
    nbytes: int
    phase: int


@dataclass(frozen=True)
class Totals:
    """Bytes by category number at the region's start, at its peak and at its end.

    Each ``at_…`` adds up to its total exactly.
    """

    start_bytes: int
    peak_bytes: int
    end_bytes: int
    at_start: dict[int, int]
    at_peak: dict[int, int]
    at_end: dict[int, int]


class Ledger:
    """Allocations and frees of one device, in order.

    ``add`` and ``remove`` are one ``list.append`` each, which no other thread can split: a
    weak reference's callback may come at any time and from any thread.
    """

    def __init__(self) -> None:
        self._log: list[Any] = []
        self._start: list[Block] = []
        # what lived where the log now begins
        self._base: dict[int, Block] = {}
        self._base_bytes = 0
        self._peak: list[Block] = []
        self._peak_bytes = 0
        self.n_allocations = 0

    def add_before(self, block: Block) -> None:
        """A block that existed before the region began, whenever it is noticed."""
        self._start.append(block)
        self._base[id(block)] = block
        self._base_bytes += block.nbytes
        self._peak.append(block)
        self._peak_bytes += block.nbytes

    def add(self, block: Block) -> None:
        """A block that is allocated now."""
        self._log.append(block)
        self.n_allocations += 1
        if len(self._log) > FOLD_AT:
            self.fold()

    def remove(self, block: Block) -> None:
        """A block of this book that is freed now."""
        self._log.append((block,))

    def fold(self) -> None:
        """Evaluate the entries written so far and keep only the peak and what is alive."""
        # frees may still arrive: they append behind n and belong to the next fold
        n = len(self._log)
        entries = self._log[:n]
        del self._log[:n]
        total, highest, at = self._base_bytes, self._peak_bytes, -1
        for index, entry in enumerate(entries):
            if type(entry) is tuple:
                total -= entry[0].nbytes
            else:
                total += entry.nbytes
                if total > highest:
                    highest, at = total, index
        if at >= 0:
            _replay(self._base, entries[: at + 1])
            self._peak, self._peak_bytes = list(self._base.values()), highest
        _replay(self._base, entries[at + 1 :])
        self._base_bytes = total

    def totals(self) -> Totals:
        """Evaluate the book under the labels that the blocks have now."""
        self.fold()
        end = list(self._base.values())
        return Totals(
            start_bytes=sum(b.nbytes for b in self._start),
            peak_bytes=self._peak_bytes,
            end_bytes=self._base_bytes,
            at_start=_by_category(self._start),
            at_peak=_by_category(self._peak),
            at_end=_by_category(end),
        )


def _replay(living: dict[int, Block], entries: Iterable[Any]) -> None:
    # weak references hash like their referents, which may be gone: identity is the key
    for entry in entries:
        if type(entry) is tuple:
            living.pop(id(entry[0]), None)
        else:
            living[id(entry)] = entry


def _by_category(blocks: Iterable[Block]) -> dict[int, int]:
    found: dict[int, int] = {}
    for block in blocks:
        category = block.category
        if category == UNDECIDED:
            # what lasted beyond the region, or was there before it, is not temporary
            category = OTHER if block.alive or block.phase == BEFORE else TEMPORARY
        found[category] = found.get(category, 0) + block.nbytes
    return found


#: The phase of blocks that existed before the region began.
BEFORE = 0
