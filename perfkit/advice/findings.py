"""A finding: what was seen, what to change, and how much that can bring at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing worth changing.

    Attributes:
        rule: the rule that found it, e.g. ``dataloader-no-workers``.
        title: the finding in a sentence without its end.
        evidence: what was seen, in numbers; one sentence each.
        what_to_do: code to change, as a snippet.
        gain_at_most: upper bound of the speed-up of a step, e.g. 1.4; a bound, no promise.
        formula: how the bound was found, with its numbers.
        lesson: id of the lesson that teaches it, e.g. ``04-dataloader``.
        line: the source line it concerns, e.g. ``train.py:12: img = Image.open(path)``.
        always: told however little it brings: it costs nothing, or it averts a failure.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    what_to_do: str
    gain_at_most: float
    formula: str
    lesson: str | None = None
    line: str | None = None
    always: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "rule": self.rule,
            "sentence": self.title,
            "evidence": list(self.evidence),
            "what_to_do": self.what_to_do,
            "gain_at_most": self.gain_at_most,
            "formula": self.formula,
            "lesson": self.lesson,
            "line": self.line,
        }


def percent(share: float) -> str:
    """A share in words, with the space that the unit takes: ``71 %``."""
    return f"{share * 100:.0f} %"


def duration(ms: float, *, like_ms: float | None = None) -> str:
    """A time in the unit that reads best: ``73 µs``, ``152.5 ms``, ``43.4 s``."""
    return f"{_in_unit(ms, like_ms)} {_unit(ms if like_ms is None else like_ms)[0]}"


def interval(median_ms: float, low_ms: float, high_ms: float) -> str:
    """A median with its interval, all in the unit of the median."""
    low, high = (_in_unit(x, median_ms) for x in (low_ms, high_ms))
    return f"{duration(median_ms)} [{low}, {high}]"


def _unit(ms: float) -> tuple[str, float]:
    if abs(ms) >= 10_000:
        return "s", 1e-3
    return ("ms", 1.0) if abs(ms) >= 0.1 or ms == 0 else ("µs", 1e3)


def _in_unit(ms: float, like_ms: float | None) -> str:
    value = ms * _unit(ms if like_ms is None else like_ms)[1]
    # One decimal is what a step time can carry; below 1 it would say too little.
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"


def gain_words(gain: float) -> str:
    """A bound in words: ``at most 1.4×``; no more digits than it can carry."""
    if gain < 1.005:
        return "no gain in time"
    return f"at most {times(gain)}×"


def times(gain: float) -> str:
    """A speed-up with no more digits than a bound can carry: ``1.08``, ``2.1``, ``26``."""
    if gain < 1.15:  # 1 / (1 - 0.05) = 1.1 would read wrong
        return f"{gain:.2f}"
    return f"{gain:.1f}" if gain < 9.95 else f"{gain:,.0f}" if gain < 1000 else "1,000"


def amdahl(share: float, *, speedup: float | None = None) -> tuple[float, str]:
    """Bound of the gain if ``share`` of the step went away, and the formula in words.

    Amdahl 1967: a part that takes the share p of the time and becomes s times as fast makes
    the whole 1 / (1 - p + p / s) times as fast; without ``speedup`` the part vanishes.
    A part of more than 99.9 % counts as 99.9 %: what is left of such a step is not known
    better than that.
    """
    share = min(max(share, 0.0), 0.999)
    rest = 1.0 - share if speedup is None else 1.0 - share + share / speedup
    gain = 1.0 / rest
    part = f"{share:.2f}" if share < 0.95 else f"{share:.3f}"
    if speedup is None:
        return gain, f"at most 1 / (1 - {part}) = {times(gain)}×, if that time vanished"
    return gain, (
        f"at most 1 / (1 - {part} + {part} / {speedup:g}) = {times(gain)}×, "
        f"if that part became {speedup:g} times as fast"
    )
