"""Does this machine's measurement agree with the lesson's text? One sentence, either way.

A lesson's prose describes the machine on which it was written. After a measured cell::

    measured = perfkit.compare(slow, fast)
    measured

    on_your_machine(measured)                  # the text says: the second one is faster
    on_your_machine(measured, expect="same")   # the text says: it makes no difference

says "On your machine: 2.3× as fast [2.1, 2.5], as the text says", or that no difference was seen
and how large a one may have been missed, or that it went the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_interval, fmt_ratio, fmt_share

Expected = Literal["faster", "slower", "same"]

#: A difference smaller than this share agrees with "no difference", even if it is visible.
_ALIKE = 0.1
#: If the upper end of an interval is this many times the lower end, it is too wide to conclude.
_WIDE = 1.5

_SAID = {
    "faster": "that it is faster",
    "slower": "that it is slower",
    "same": "that it makes no difference",
}

_PAGE = """{% extends "_base.html" %}
{% block name %}On your machine{% endblock %}
{% block body %}
<p class="pk-headline">{{ sentence }}</p>
{% endblock %}"""


@dataclass(frozen=True, repr=False)
class OnYourMachine:
    """A measurement on this machine against the lesson's text; its ``repr`` is the sentence.

    Attributes:
        expected: what the text says about the second version: ``"faster"``, ``"slower"`` or
            ``"same"``.
        seen: what was measured: one of these, or ``"unclear"`` if the interval is too wide to call
            the two alike.
        sentence: both in words.
    """

    expected: Expected
    seen: Literal["faster", "slower", "same", "unclear"]
    sentence: str

    @property
    def agrees(self) -> bool:
        """Whether this machine shows what the text says."""
        return self.seen == self.expected

    def __repr__(self) -> str:
        return self.sentence

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.sentence)

    def _repr_html_(self) -> str:
        from perfkit.show._html import render_string

        return render_string(_PAGE, sentence=self.sentence)


def on_your_machine(
    measured: Any, *, expect: Expected = "faster", because: str = ""
) -> OnYourMachine:
    """Say whether a comparison on this machine agrees with the lesson.

    Args:
        measured: a ``perfkit.compare`` or ``perfkit.ab`` result.
        expect: what the text says about the second version (``b``): ``"faster"``, ``"slower"``, or
            ``"same"`` for no difference.
        because: a sentence that may explain why a machine shows something else.

    Raises:
        UsageError: it has no ratio with an interval, or ``expect`` is none of the three.
    """
    if expect not in _SAID:
        raise UsageError(f"expect is one of {', '.join(map(repr, _SAID))}, not {expect!r}")
    try:
        ratio, low, high = float(measured.ratio), float(measured.low), float(measured.high)
    except (AttributeError, TypeError, ValueError):
        kind = type(measured).__name__
        raise UsageError(f"a {kind} has no ratio with an interval to look at") from None
    seen = _seen(low, high, expect)
    # the way round in which the comparison above it tells the ratio: as a figure above 1
    figure = (
        f"{fmt_ratio(1 / ratio)} as long {fmt_interval(1 / high, 1 / low if low else inf)}"
        if ratio > 0 and 0 < high < 1
        else f"{fmt_ratio(ratio)} as fast {fmt_interval(low, high)}"
    )
    agrees = seen == expect
    if agrees and seen == "same":
        said = (
            f"On your machine: no difference seen ({figure}), as the text says; "
            f"{_hidden(low, high)}."
            if low <= 1 <= high
            else f"On your machine: next to no difference, {figure}. The text says: hardly any."
        )
    elif agrees:
        said = f"On your machine: {figure}, as the text says."
    elif seen == "same":
        said = (
            f"On your machine: no difference seen ({figure}); {_hidden(low, high)}. "
            f"The text says {_SAID[expect]}."
        )
    elif not isfinite(high):
        said = (
            f"On your machine: too few rounds for an interval (the ratio was {fmt_ratio(ratio)}). "
            f"The text says {_SAID[expect]}; measure again with a larger budget_s."
        )
    elif seen == "unclear":
        said = (
            f"On your machine: too unsteady to tell ({figure}). The text says {_SAID[expect]}; "
            "measure again when nothing else runs."
        )
    else:
        said = f"On your machine it is {seen}: {figure}. The text says {_SAID[expect]}."
    if because and not agrees and seen != "unclear":
        said = f"{said} {because}"
    return OnYourMachine(expect, seen, said)


def _hidden(low: float, high: float) -> str:
    """The largest difference that an interval around 1 leaves room for."""
    return f"one of up to {fmt_share(max(high - 1, 1 / low - 1))} may hide in the interval"


def _seen(low: float, high: float, expect: str) -> Literal["faster", "slower", "same", "unclear"]:
    alike = low >= 1 / (1 + _ALIKE) and high <= 1 + _ALIKE
    if low <= 1 <= high:
        narrow = alike if expect == "same" else high < _WIDE * low
        return "same" if narrow else "unclear"
    if alike and expect == "same":
        return "same"
    return "faster" if low > 1 else "slower"
