"""A finding: what was seen, what to change, and how much that can bring at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfkit.words import fmt_ms, fmt_share


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


percent = fmt_share
duration = fmt_ms


def interval(median_ms: float, low_ms: float, high_ms: float) -> str:
    """A median time with its interval."""
    return f"{fmt_ms(median_ms)} [{fmt_ms(low_ms)}, {fmt_ms(high_ms)}]"


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
