"""A finding: what was seen, what to change, and an upper bound of the gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfkit.base.plain import fields
from perfkit.base.words import fmt_bound, fmt_ms

#: The largest gain that perfkit states: see ``Finding.gain_at_most``.
MOST_GAIN = 10
#: Said where one rank's recording alone is known.
MAY_WAIT = "may be waiting for a slower rank"


@dataclass(frozen=True)
class Finding:
    """One thing worth changing.

    Attributes:
        evidence: what was seen, with numbers, one sentence each.
        gain_at_most: upper bound of the speed-up of a step, e.g. 1.4; a bound, not a promise.
            Bounds above 10 read "over 10×": the rest of such a step is not known well enough to
            say more.
        formula: how the bound was computed, with its numbers.
        cures: the bounds of a step that it is about (``Diagnosis.bound_by``); none where it is
            about something else: then it is told without a gain, too.
        line: the source line, e.g. ``train.py:12: img = Image.open(path)``.
        has_bound: whether the trace supports a bound of the gain; if not, ``gain_at_most`` only
            sorts the findings.
        is_state: a fact of the run's objects, which needs no sample: it comes first.
        acts_on: of such a one, the classes of a step that what to do shortens; none where it
            saves no time of a step.
        leaves: the part of these classes that is left then, 0 to 1.
        where: of a case, the share that is meant, and a line, where not all of these classes are.
        changes: how what to do changes the training; empty where it does not.
        beside: this is no finding, but a remark on all others whose code matches this.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    what_to_do: str
    gain_at_most: float
    formula: str
    cures: tuple[str, ...] = ()
    line: str | None = None
    has_bound: bool = True
    is_state: bool = False
    acts_on: tuple[str, ...] = ()
    leaves: float = 0.0
    where: Callable[[Any], Any] | None = field(default=None, repr=False, compare=False)
    changes: str = ""
    beside: str = ""

    @property
    def always(self) -> bool:
        """Whether to tell it however small the gain: it costs nothing, or averts a failure."""
        return self.is_state or not self.cures

    def to_dict(self) -> dict[str, Any]:
        from perfkit.base.lessons import lesson_of

        return fields(
            self,
            without=("title", "cures", "has_bound", "acts_on", "leaves", "where", "beside"),
            rule=self.rule,
            sentence=self.title,
            gain_at_most=self.gain_at_most if self.has_bound else None,
            lesson=lesson_of("rule", self.rule),
        )


def found(
    rule: str,
    title: str,
    evidence: Sequence[str],
    what_to_do: str,
    *,
    cures: tuple[str, ...],
    share: float,
    speedup: float | None = None,
    of: str = "",
    formula: str = "",
    **more: Any,
) -> Finding:
    """A finding about a share of the step, which bounds its gain; see :class:`Finding`.

    Args:
        share: what could go, or become ``speedup`` times as fast.
        of: what the bound is of, where that is not the step, to precede the formula.
        formula: instead of it, where no time is gained.
    """
    gain, said = amdahl(share, speedup=speedup)
    formula = formula or f"{of}{said}"
    return Finding(rule, title, tuple(evidence), what_to_do, gain, formula, cures, **more)


# Class of a step → the bounds that are about it.
_BOUNDS_OF = {
    "data wait": ("data",),
    "forward": ("compute", "launch"),
    "backward": ("compute", "launch"),
    "optimizer": ("compute", "launch"),
    "other": ("host",),
    "sync": ("sync",),
    "copy": ("copy",),
    "communication": ("communication",),
}


def fact(
    rule: str,
    title: str,
    evidence: tuple[str, ...],
    what_to_do: str,
    *,
    acts_on: tuple[str, ...] = (),
    gain: tuple[float, str] | None = None,
    **more: Any,
) -> Finding:
    """A finding about the run's objects; see :class:`Finding`."""
    at_most, formula = gain or (1.0, "")
    cures = tuple(dict.fromkeys(bound for one in acts_on for bound in _BOUNDS_OF[one]))
    more |= {"has_bound": gain is not None, "is_state": True, "acts_on": acts_on}
    return Finding(rule, title, evidence, what_to_do, at_most, formula, cures, **more)


def interval(median_ms: float, low_ms: float, high_ms: float) -> str:
    """A median time with its interval."""
    return f"{fmt_ms(median_ms)} [{fmt_ms(low_ms)}, {fmt_ms(high_ms)}]"


def gain_words(gain: float) -> str:
    """A bound in words: ``at most 1.4×``, with only significant digits."""
    if gain < 1.005:
        return "no gain in time"
    if gain >= MOST_GAIN:
        return f"over {MOST_GAIN}× at best"
    return f"at most {fmt_bound(gain)}"


def amdahl(share: float, *, speedup: float | None = None) -> tuple[float, str]:
    """Bound of the gain if ``share`` of the step disappeared, and the formula in words.

    Amdahl 1967: if a part with share p of the time becomes s times as fast, the whole becomes
    1 / (1 - p + p / s) times as fast; without ``speedup`` the part disappears. The gain is capped
    at ``MOST_GAIN``, because the small rest of such a step is not known well.
    """
    share = min(max(share, 0.0), 1.0)
    rest = 1.0 - share if speedup is None else 1.0 - share + share / speedup
    part = f"{share:.2f}" if share < 0.95 else f"{share:.3f}"
    if rest * MOST_GAIN <= 1.0:
        return float(MOST_GAIN), f"over {MOST_GAIN}× at best: that part is {part} of the time"
    gain = 1.0 / rest
    if speedup is None:
        return gain, f"at most 1 / (1 - {part}) = {fmt_bound(gain)}, if that time vanished"
    return gain, (
        f"at most 1 / (1 - {part} + {part} / {speedup:g}) = {fmt_bound(gain)}, "
        f"if that part became {speedup:g} times as fast"
    )
