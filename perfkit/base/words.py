"""Numbers and units in words: the one place where perfkit formats a quantity.

Every text, page, table and widget formats through these functions, so the same quantity reads
the same everywhere. The rules:

* A measurement has three significant digits. Shares have two, because they are read side by side
  and should add up at a glance.
* The unit is chosen so that the number is between 1 and 1000.
* A non-zero value never reads as zero, a share below 1 never as ``100 %``, and a ratio near 1 has
  three decimals: ``1.00×`` is exactly 1.
* Counts are exact up to the last digit. Thousands are separated by commas.
* ``–`` means that there is no value.

``numbers.js`` does the same for the widgets; both are tested against one table of cases.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

ABSENT = "–"
_MINUS = "−"
_INFINITE = "∞"

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Seconds go on to 600: "120 s" says more than "2.00 min".
_TIME_UNITS = (("ns", 1e-6, 1e3), ("µs", 1e-3, 1e3), ("ms", 1.0, 1e3), ("s", 1e3, 600.0))
_LONG_TIME_UNITS = (("min", 60e3, 600.0), ("h", 3600e3, math.inf))
_SI_UNITS = ("", "k", "M", "G", "T", "P", "E")


# The widest interval, as its upper end over its lower one, that says "no difference seen".
_NARROW = 1.25

# Steps come "every 10th" if this share of the distances between them is the same.
_REGULAR, _MOST_NAMED = 0.8, 3


def _signed(say: Callable[[float], str]) -> Callable[[float | None], str]:
    """The sign, then what is said of the absolute value; a decorator."""

    @functools.wraps(say)
    def signed(x: float | None) -> str:
        if x is None or math.isnan(x):
            return ABSENT
        return f"{_MINUS}{say(-x)}" if x < 0 else say(x)

    return signed


@_signed
def fmt_number(x: float) -> str:
    """Three significant digits without a unit: ``0.0123``, ``1.23``, ``123``, ``12,300``."""
    if x == 0:
        return "0"
    if math.isinf(x):
        return _INFINITE
    x = _rounded(x)
    power = math.floor(math.log10(x))
    if not -6 <= power < 15:
        return f"{x:.2e}"  # no exponent where it is readable without
    return f"{x:,.{max(2 - power, 0)}f}"


@_signed
def fmt_count(n: float) -> str:
    """A count, exact: ``12,345``. A mean count that is not whole has three digits: ``2.5``."""
    if math.isinf(n):
        return _INFINITE
    if float(n).is_integer():
        return f"{n:,.0f}"
    text = fmt_number(n)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def plural(n: float, noun: str, many: str | None = None) -> str:
    """A count with its noun: ``1 step``, ``2 steps``, ``12,345 steps``."""
    return f"{fmt_count(n)} {noun if n == 1 else many or noun + 's'}"


def most_often(counts: Counter[str], noun: str) -> str:
    """What was counted most often and how many others were: ``train.py:12 and 2 other lines``."""
    (first, _), *others = counts.most_common()
    return f"{first} and {plural(len(others), f'other {noun}')}" if others else first


def which_steps(numbers: Sequence[int], n_of: int) -> str:
    """Which steps of so many: ``in every 10th step (steps 10, 20 … 90)``, ``in steps 7 and 31``."""
    gaps = [b - a for a, b in itertools.pairwise(numbers)]
    first, last = fmt_count(numbers[0]), fmt_count(numbers[-1])
    usual = round(statistics.median(gaps)) if len(gaps) > 1 else 0
    if usual and gaps.count(usual) >= _REGULAR * len(gaps):
        if gaps == [1] * len(gaps):
            return f"in steps {first} to {last}"
        if usual > 1:
            join = " and " if len(numbers) == 3 else " … "
            shown = f"{first}, {fmt_count(numbers[1])}{join}{last}"
            return f"in every {_ordinal(usual)} step (steps {shown})"
    if len(numbers) == 1:
        return f"in step {first}"
    if len(numbers) > n_of / 2:
        return f"in {fmt_count(len(numbers))} of the {fmt_count(n_of)} steps"
    named = [fmt_count(one) for one in numbers[:_MOST_NAMED]]
    if len(numbers) <= _MOST_NAMED:
        return f"in steps {', '.join(named[:-1])} and {last}"
    return f"in {fmt_count(len(numbers))} steps ({', '.join(named)} …)"


def _ordinal(n: int) -> str:
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


@_signed
def fmt_bytes(n: float) -> str:
    """Bytes in binary units: ``0 B``, ``1.50 KiB``, ``5.59 GiB``."""
    if n < 999.5:
        # a mean may be below one byte
        return f"{n:.0f} B" if n == 0 or n > 0.5 else f"{fmt_number(n)} B"
    size, unit = n / 1024, 1
    while _rounded(size) >= 1000 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{fmt_number(size)} {_BYTE_UNITS[unit]}"


@_signed
def fmt_ms(x: float) -> str:
    """A time given in milliseconds, in the unit that reads best, from ns to h: ``12.3 ms``."""
    unit, size = time_unit(x)
    return f"{fmt_number(x / size)} {unit}"


def fmt_s(x: float | None) -> str:
    """A time given in seconds; see :func:`fmt_ms`."""
    return fmt_ms(None if x is None else x * 1e3)


def fmt_us(x: float | None) -> str:
    """A time given in microseconds; see :func:`fmt_ms`."""
    return fmt_ms(None if x is None else x / 1e3)


def fmt_ms_interval(low: float, high: float) -> str:
    """The two ends of a time, given in milliseconds, in one unit: ``[11.9, 12.8] ms``."""
    unit, size = time_unit(max(abs(low), abs(high)) if math.isfinite(high) else abs(low))
    return f"{fmt_interval(low / size, high / size)} {unit}"


def time_unit(ms: float) -> tuple[str, float]:
    """The unit in which a time, given in milliseconds, reads best, and its length in ms."""
    if ms == 0:
        return "ms", 1.0
    for unit, size, end in (*_TIME_UNITS, *_LONG_TIME_UNITS):
        if _rounded(ms / size) < end:
            return unit, size
    return "h", 3600e3


def fmt_share(x: float | None) -> str:
    """A measured share of 1 in per cent: ``71 %``, ``3.2 %``, ``< 0.1 %``, ``0 %``."""
    return "> −0.1 %" if x is not None and -0.001 < x < 0 else _share(x)


def fmt_change(x: float | None) -> str:
    """A relative change with its sign: ``+12 %``, ``−3.4 %``."""
    if x is not None and 0 < x < 0.001:
        return "< +0.1 %"
    return ("+" if x is not None and x > 0 else "") + fmt_share(x)


def fmt_chosen_share(x: float) -> str:
    """A chosen share, such as a margin or a confidence level: ``5 %``, ``97.5 %``."""
    percent = 100 * x
    digits = 3
    while x != 1 and float(f"{percent:.{digits}g}") == 100 and digits < 9:
        digits += 1
    return f"{percent:.{digits}g} %"


def fmt_deviation(x: float) -> str:
    """A relative deviation of any size, two digits: ``0.0012 %``, ``3.1 %``, ``240 %``."""
    if not math.isfinite(x) or x == 0:
        return fmt_share(x)
    percent = float(f"{100 * x:.2g}")
    power = math.floor(math.log10(abs(percent)))
    text = f"{percent:,.{max(1 - power, 0)}f}" if -5 <= power < 15 else f"{percent:.1e}"
    return f"{text} %"


def fmt_ratio(x: float | None) -> str:
    """A ratio: ``2.34×``, ``12.0×``, ``1.003×``; ``–`` also for infinity."""
    if x is None or math.isinf(x):
        return ABSENT
    text = _ratio(x)
    return text if text == ABSENT else f"{text}×"


def fmt_interval(low: float | None, high: float | None) -> str:
    """The ends of an interval with the same number of decimals: ``[0.995, 1.020]``."""
    if low is None or high is None:
        return ABSENT
    ends = [_ratio(end) for end in (low, high)]
    decimals = [len(end.partition(".")[2]) for end in ends]
    near = 0 < abs(high) < 10 * abs(low) and "e" not in "".join(ends)
    if near and decimals[0] != decimals[1]:
        ends = [
            end if n == max(decimals) else _minus(f"{value:,.{max(decimals)}f}")
            for end, n, value in zip(ends, decimals, (low, high), strict=True)
        ]
    return f"[{ends[0]}, {ends[1]}]"


def no_difference(low: float, high: float) -> str:
    """What an interval of a ratio that holds 1 says: nothing was seen, or nothing can be.

    An interval whose ends are more than a quarter apart has room for a difference that matters.
    """
    return "no difference seen" if high <= _NARROW * low else "too unsteady to tell"


def fmt_bound(gain: float) -> str:
    """A bound on a speed-up, with only significant digits: ``1.08×``, ``2.1×``, ``26×``."""
    if not math.isfinite(gain):
        return ABSENT
    if gain <= 1.15:  # 1 / (1 - 0.05) = 1.1 would look wrong
        return f"{gain:.2f}×"
    return f"{gain:.1f}×" if gain < 9.95 else f"{gain:,.0f}×"


def fmt_si(x: float | None, unit: str) -> str:
    """A large quantity with the prefix of its unit: ``12.3 TFLOP/s``, ``640 kFLOP``."""
    if x is None or math.isnan(x):
        return f"{ABSENT} {unit}"
    size, power = _rounded(abs(x)), 0
    while size >= 1e3 and power < len(_SI_UNITS) - 1:
        size, power = _rounded(abs(x) / 1e3 ** (power + 1)), power + 1
    return f"{_MINUS if x < 0 else ''}{fmt_number(size)} {_SI_UNITS[power]}{unit}"


def _minus(text: str) -> str:
    return text.replace("-", _MINUS)


def _rounded(size: float) -> float:
    return float(f"{size:.3g}")


@_signed
def _share(x: float) -> str:
    percent = 100 * x
    if percent == 0:
        return "0 %"
    if math.isinf(percent):
        return f"{_INFINITE} %"
    if percent < 0.1:
        return "< 0.1 %"
    if percent < 9.95:
        return f"{percent:.1f} %"
    if percent < 99.5 or percent >= 100:
        return f"{percent:,.0f} %"
    return f"{percent:.1f} %" if percent < 99.95 else "> 99.9 %"


@_signed
def _ratio(x: float) -> str:
    text = fmt_number(x)
    return f"{x:.3f}" if text == "1.00" and x != 1 else text
