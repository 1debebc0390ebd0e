"""Steps that take longer and longer: by how much, and which line what they take more is below.

A few recorded steps are early ones, and say nothing of it. The length of every step is known and
lines are sampled all along: what late steps have more of than early ones is what grows.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfkit.base.words import fmt_ms
from perfkit.trace.record.lines import Sample, inside, line_beyond

# Of fewer steps the middle ones of each part show nothing.
_LEAST_STEPS = 24
_PARTS = 6
# The last third takes so many times what the first one takes, at least.
_LEAST_RATIO = 1.25
_LEAST_S = 0.05
# From part to part steps may get shorter by so much, by chance; a third has so much of it all.
_CHANCE, _LEAST_OF_IT = 0.05, 0.15
# Fewer samples of what late steps take more name no line.
_LEAST_SAMPLES = 5


@dataclass(frozen=True)
class Growth:
    """Steps that take longer and longer.

    Attributes:
        first_ms, last_ms: median of the first third, and of the last.
        seconds: what all of them take beyond the first third's median.
        share: the same as a share of all of them.
        place: the innermost line below which most of it is; empty where none is.
        source: that line's source.
        line_share: how much of it is below that line.
        phase: in which phase most of it is, in words; empty where that is not known.
    """

    first_ms: float
    last_ms: float
    seconds: float
    share: float
    place: str = ""
    source: str = ""
    line_share: float = 0.0
    phase: str = ""

    def headline(self) -> str:
        """The same in a few words."""
        return f"Steps grow: {fmt_ms(self.first_ms)} → {fmt_ms(self.last_ms)}."

    def sentence(self) -> str:
        """The same in words, without the full stop."""
        where_it_is = ", ".join(filter(None, (self.phase, f"at {self.place}" * bool(self.place))))
        told = f"Steps grow: {fmt_ms(self.first_ms)} → {fmt_ms(self.last_ms)}"
        return f"{told}, {where_it_is}" if where_it_is else told


def growth(steps_s: Sequence[tuple[float, float]], samples: Sequence[Sample]) -> Growth | None:
    """Whether steps take longer and longer, beyond noise; None where they do not.

    Each sixth of the steps takes as long as the one before, or longer, and the thirds are apart:
    one jump, or a few slow steps, are no growth.

    Args:
        steps_s: begin and end of the steps, by time, none of them slowed by perfkit.
        samples: line samples of all of it.
    """
    n = len(steps_s)
    if n < _LEAST_STEPS:
        return None
    lengths = [end - begin for begin, end in steps_s]
    levels = levels_of(lengths)
    thirds = [lengths[n * i // 3 : n * (i + 1) // 3] for i in range(3)]
    first, middle, last = (statistics.median(one) for one in thirds)
    grown = last - first
    falls = any(b < a - _CHANCE * grown - _CHANCE * a for a, b in itertools.pairwise(levels))
    if last < _LEAST_RATIO * first or falls:
        return None
    if min(middle - first, last - middle) < _LEAST_OF_IT * grown:
        return None
    if statistics.quantiles(thirds[2])[0] <= statistics.quantiles(thirds[0])[2]:
        return None
    spent = sum(lengths)
    more = sum(max(level_at(levels, i, n) - first, 0.0) for i in range(n))
    if more < _LEAST_S:
        return None
    early, late = steps_s[: n // 3], steps_s[n * 2 // 3 :]
    seen, usual = inside(late, samples), inside(early, samples)
    times = len(late) / len(early)
    found = Growth(1e3 * first, 1e3 * last, more, min(more / spent, 1.0))
    if len(seen) - times * len(usual) < _LEAST_SAMPLES:
        return found
    line = line_beyond(seen, usual, times)
    if line is None:
        return found
    return replace(found, place=line.place, source=line.source, line_share=line.share)


def levels_of(lengths: Sequence[float]) -> list[float]:
    """The median of each sixth."""
    n = len(lengths)
    return [statistics.median(lengths[n * i // _PARTS : n * (i + 1) // _PARTS])
            for i in range(_PARTS)]  # fmt: skip


def level_at(levels: Sequence[float], i: int, n: int) -> float:
    """How long step ``i`` of ``n`` takes usually, between the middles of the sixths."""
    at = min(max(_PARTS * (i + 0.5) / n - 0.5, 0.0), _PARTS - 1.0)
    low = min(int(at), _PARTS - 2)
    return levels[low] + (at - low) * (levels[low + 1] - levels[low])
