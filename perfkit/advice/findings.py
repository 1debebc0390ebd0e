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
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    what_to_do: str
    gain_at_most: float
    formula: str
    lesson: str | None = None
    line: str | None = None

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


def amdahl(share: float, *, speedup: float | None = None) -> tuple[float, str]:
    """Bound of the gain if ``share`` of the step went away, and the formula in words.

    Amdahl 1967: a part that takes the share p of the time and becomes s times as fast makes
    the whole 1 / (1 - p + p / s) times as fast; without ``speedup`` the part vanishes.
    """
    share = min(max(share, 0.0), 1.0)
    rest = 1.0 - share if speedup is None else 1.0 - share + share / speedup
    gain = 1.0 / max(rest, 0.01)
    if speedup is None:
        return gain, f"at most 1 / (1 - {share:.2f}) = {gain:.1f}×, if that time vanished"
    return gain, (
        f"at most 1 / (1 - {share:.2f} + {share:.2f} / {speedup:g}) = {gain:.1f}×, "
        f"if that part became {speedup:g} times as fast"
    )
