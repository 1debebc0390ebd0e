"""How a recorded figure is written."""

from __future__ import annotations

from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_number, fmt_ratio
from perfkit.course.ledger.recording import Figure, Outcome

_MS = {"µs": 1e-3, "ms": 1.0, "s": 1e3}


def shown(figure: Figure) -> str:
    """Value, unit and interval: ``2.34× [2.10, 2.61]``; whole numbers with all their digits."""
    value = _number(figure.value, figure)
    if figure.low is None or figure.high is None:
        return value
    low, high = _number(figure.low, figure), _number(figure.high, figure)
    if figure.unit == "×":
        low, high = low.removesuffix("×"), high.removesuffix("×")
    return f"{value} [{low}, {high}]"


def timed(outcome: Outcome) -> bool:
    """Whether a figure of it has an interval, which a larger budget makes narrower."""
    return any(figure.low is not None for figure in outcome.figures.values())


def shown_undecided(figure: Figure) -> str:
    """:func:`shown`, where a ratio that was measured without an interval says so."""
    bare = figure.low is None and figure.unit == "×" and figure.kind in ("measured", "simulated")
    return f"{shown(figure)} (no interval)" if bare else shown(figure)


def undecided(outcome: Outcome) -> str:
    """The sentence of an outcome that decides nothing, and the intervals of its ratios."""
    ratios = "; ".join(
        f"{name.replace('_', ' ')} {shown_undecided(figure)}"
        for name, figure in outcome.figures.items()
        if figure.unit == "×" and figure.kind in ("measured", "simulated")
    )
    return f"{outcome.sentence} 95 % intervals: {ratios}." if ratios else outcome.sentence


def _number(value: float, figure: Figure) -> str:
    if figure.unit == "×":
        return fmt_ratio(value)
    whole = isinstance(value, int) or (figure.kind == "exact" and float(value).is_integer())
    if whole and (figure.kind == "exact" or figure.unit not in ("B", *_MS)):
        number = fmt_count(value)
    elif figure.unit == "B":
        return fmt_bytes(value)
    elif figure.unit in _MS:
        return fmt_ms(value * _MS[figure.unit])
    else:
        number = f"-{fmt_number(-value)}" if value < 0 else fmt_number(value)
    return number if figure.unit == "1" else f"{number} {figure.unit}"
