"""The book of one device's memory: what came, what went, and what was there at the peak.

Entries are written while the user's code runs and evaluated afterwards, when the categories are
known: a block may be labelled long after it was allocated, and all totals stay equal. The book
knows nothing of torch; a block is a weak reference to anything that dies when its memory does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from perfkit.memory.categories import BATCH_CATEGORIES, INPUTS, OTHER, TEMPORARY, UNDECIDED

#: Entries after which the book is folded into its highest peak so far. A training step writes
#: some hundred; 200 000 entries take about 30 MB.
FOLD_AT = 200_000

#: Points of a curve, at most; they are joined in pairs, the higher of the two staying.
MAX_POINTS = 400

#: A line of code: its file's name, its number, its function. Without a file, the function says
#: in brackets why there is no line.
Place = tuple[str, int, str]


class Block(weakref.ref[Any]):
    """One storage: a weak reference to it, its size, and what is known about it.

    Attributes:
        key: ``id`` of the storage while it lives.
        nbytes: its size in bytes, fixed: a storage that is resized becomes another block.
        phase: where it was made (a number of :mod:`perfkit.memory.tracker`).
        category: a number of :mod:`perfkit.memory.categories`; ``UNDECIDED`` until labelled.
        alive: not yet freed.
        lasting: of a data set, say, that gives many batches, or of a weight's gradient, so it does
            not grow with the batch.
        device: whose book lists it. The book itself would make a circle that only the garbage
            collector frees: where it did so while the storage itself was being freed, Python 3.11
            crashed.
        line: the innermost line of user code that it was made in.
        watched: the line of a function that is watched, through which it was made, or None.
        owner: path of the module that it was made in or belongs to; in brackets where there is
            none.
    """

    __slots__ = (
        "alive", "category", "device", "key", "lasting", "line", "nbytes", "owner", "phase",
        "watched",
    )  # fmt: skip

    alive: bool
    category: int
    device: Any
    key: int
    lasting: bool
    line: Place
    nbytes: int
    owner: str
    phase: int
    watched: Place | None


@dataclass(frozen=True)
class Point:
    """The highest moment in a stretch of the book.

    Attributes:
        index: number of the allocation or free, counted from the region's start.
        total_bytes: held at that moment.
        by_category: the same by category number.
        phase: where the latest block was made.
    """

    index: int
    total_bytes: int
    by_category: dict[int, int]
    phase: int


@dataclass(frozen=True)
class Stay:
    """What is common to some blocks alive at one moment: bytes by category, and how many."""

    by_category: dict[int, int]
    n_blocks: int

    @property
    def total_bytes(self) -> int:
        """The sum over the categories."""
        return sum(self.by_category.values())


@dataclass
class Watched:
    """A line of a watched function, in bytes: all made, the device's highest total meanwhile."""

    made_bytes: int = 0
    highest_bytes: int = 0
    n_made: int = 0


@dataclass(frozen=True)
class Totals:
    """Bytes by category number at the region's start, at its peak and at its end.

    Each ``at_…`` adds up to its total exactly, and so do ``by_owner`` and ``by_line``, which
    tell of the peak. ``freed_bytes`` is what was there at the start and is not at the end.
    ``half_batch_bytes`` is the highest moment if all that grows with the batch is halved,
    ``half_batch_at_most_bytes`` that if nothing shrinks of which it is not known.
    ``curve`` runs from the start to the end; one point of it is the peak.
    """

    start_bytes: int
    peak_bytes: int
    end_bytes: int
    at_start: dict[int, int]
    at_peak: dict[int, int]
    at_end: dict[int, int]
    by_owner: dict[str, Stay] = field(default_factory=dict)
    by_line: dict[Place, Stay] = field(default_factory=dict)
    curve: tuple[Point, ...] = ()
    n_events: int = 0
    watched: dict[Place, Watched] = field(default_factory=dict)
    watched_at_peak: dict[Place, int] = field(default_factory=dict)
    watched_at_end: dict[Place, int] = field(default_factory=dict)
    freed_bytes: int = 0
    half_batch_bytes: int = 0
    half_batch_at_most_bytes: int = 0


class Ledger:
    """Allocations and frees of one device, in order.

    ``add`` and ``remove`` are one ``list.append`` each, which no other thread can split: a
    weak reference's callback may come at any time and from any thread.
    """

    def __init__(
        self, *, fixed_phases: Set[int] = frozenset(), unsure_phase: int | None = None
    ) -> None:
        """An empty book.

        Args:
            fixed_phases: where temporaries do not grow with the batch (the optimizer's step).
            unsure_phase: where they may be of one sample, or of the batch (a loader's work).
        """
        self._fixed_phases = fixed_phases
        self._unsure_phase = unsure_phase
        self._half_batch_bytes = 0.0
        self._half_batch_at_most_bytes = 0.0
        self._log: list[Any] = []
        self._start: list[Block] = []
        # what lived where the log now begins
        self._base: dict[int, Block] = {}
        self._base_bytes = 0
        self._peak: list[Block] = []
        self._peak_bytes = 0
        self.n_allocations = 0
        self._curve: list[Point] = []
        self._stretch = 1
        self._n_folded = 0
        self._phase = BEFORE
        self._watched: dict[Place, Watched] = {}

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
        self._draw(entries)
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
        peak = self._peak
        alive = {id(block) for block in end}
        return Totals(
            half_batch_bytes=round(self._half_batch_bytes),
            half_batch_at_most_bytes=round(self._half_batch_at_most_bytes),
            freed_bytes=sum(block.nbytes for block in self._start if id(block) not in alive),
            by_owner=_stays(peak, "owner"),
            by_line=_stays(peak, "line"),
            curve=(
                *(self._curve or [Point(0, self._base_bytes, _by_category(end), BEFORE)]),
                Point(self._n_folded, self._base_bytes, _by_category(end), self._phase),
            ),
            n_events=self._n_folded,
            watched=dict(self._watched),
            watched_at_peak=_sums(peak),
            watched_at_end=_sums(b for b in end if b.phase != BEFORE),
            start_bytes=sum(b.nbytes for b in self._start),
            peak_bytes=self._peak_bytes,
            end_bytes=self._base_bytes,
            at_start=_by_category(self._start),
            at_peak=_by_category(self._peak),
            at_end=_by_category(end),
        )

    def _draw(self, entries: list[Any]) -> None:
        """Continue the curve over these entries, each stretch shown by its highest moment."""
        now = _by_category(self._base.values())
        total = self._base_bytes
        self._curve = self._curve or [Point(0, total, dict(now), BEFORE)]
        growing = [block for block in self._base.values() if self._grows(block)]
        halved = total - sum(block.nbytes for block in growing) / 2
        # what may be of one sample is whole in this one
        unsure = halved + sum(block.nbytes for block in growing if self._is_unsure(block)) / 2
        halved_most = max(self._half_batch_bytes, halved)
        unsure_most = max(self._half_batch_at_most_bytes, unsure)
        best: Point | None = None
        for index, entry in enumerate(entries, start=self._n_folded + 1):
            if type(entry) is tuple:
                block, sign = entry[0], -1
            else:
                block, sign = entry, 1
                self._phase = block.phase
            total += sign * block.nbytes
            grows = self._grows(block)
            halved += sign * (block.nbytes / 2 if grows else block.nbytes)
            if halved > halved_most:
                halved_most = halved
            shrinks = grows and not self._is_unsure(block)
            unsure += sign * (block.nbytes / 2 if shrinks else block.nbytes)
            if unsure > unsure_most:
                unsure_most = unsure
            category = _shown_category(block)
            now[category] = now.get(category, 0) + sign * block.nbytes
            place = block.watched
            if place is not None and sign > 0:
                line = self._watched.setdefault(place, Watched())
                line.made_bytes += block.nbytes
                line.n_made += 1
                line.highest_bytes = max(line.highest_bytes, total)
            if best is None or total > best.total_bytes:
                best = Point(index, total, dict(now), self._phase)
            if index % self._stretch == 0 or index == self._n_folded + len(entries):
                self._curve.append(best)
                best = None
                if len(self._curve) > MAX_POINTS:
                    self._curve = _halved(self._curve)
                    self._stretch *= 2
        self._n_folded += len(entries)
        self._half_batch_bytes, self._half_batch_at_most_bytes = halved_most, unsure_most

    def _grows(self, block: Block) -> bool:
        """Whether a batch of twice the size would make this block twice as large."""
        category = _shown_category(block)
        # a graph that an earlier step left is of that step's batch, not of this one's
        is_earlier = block.phase == BEFORE and category != INPUTS
        fixed = block.lasting or block.phase in self._fixed_phases or is_earlier
        return not fixed and category in BATCH_CATEGORIES

    def _is_unsure(self, block: Block) -> bool:
        return block.phase == self._unsure_phase and _shown_category(block) == TEMPORARY


def _halved(points: list[Point]) -> list[Point]:
    """The first point, then the higher of each pair."""
    pairs = (points[i : i + 2] for i in range(1, len(points), 2))
    return [points[0], *(max(pair, key=lambda p: p.total_bytes) for pair in pairs)]


def _stays(blocks: Iterable[Block], attribute: str) -> dict[Any, Stay]:
    groups: dict[Any, list[Block]] = {}
    for block in blocks:
        groups.setdefault(getattr(block, attribute), []).append(block)
    return {key: Stay(_by_category(group), len(group)) for key, group in groups.items()}


def _sums(blocks: Iterable[Block]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for block in blocks:
        if block.watched is not None:
            found[block.watched] = found.get(block.watched, 0) + block.nbytes
    return found


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
        category = _shown_category(block)
        found[category] = found.get(category, 0) + block.nbytes
    return found


def _shown_category(block: Block) -> int:
    if block.category != UNDECIDED:
        return block.category
    # what lasted beyond the region, or was there before it, is not temporary
    return OTHER if block.alive or block.phase == BEFORE else TEMPORARY


#: The phase of blocks that existed before the region began.
BEFORE = 0
