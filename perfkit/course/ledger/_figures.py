"""How a recorded figure is written."""

from __future__ import annotations

from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_number, fmt_ratio
from perfkit.course.ledger.recording import Figure

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
