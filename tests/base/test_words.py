"""The formatter: every case of the shared table, and properties that hold for every number."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from javascript import says

from perfkit.base import words

CASES = json.loads(Path(__file__).with_name("words_cases.json").read_text(encoding="utf-8"))

_UNITS = {
    "ns": 1e-6,
    "µs": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "min": 60e3,
    "h": 3600e3,
    "B": 1,
    "%": 0.01,
    "×": 1,
    "": 1,
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGTP")},
}
_MEASURED: dict[str, Callable[[float], str]] = {
    "number": words.fmt_number,
    "ms": words.fmt_ms,
    "bytes": words.fmt_bytes,
    "share": words.fmt_share,
    "ratio": words.fmt_ratio,
    "count": words.fmt_count,
}

positive = st.floats(min_value=1e-5, max_value=1e13)
any_measured = st.sampled_from(sorted(_MEASURED))


def read(text: str) -> float:
    """The value that a reader takes from a text."""
    found = re.fullmatch(r"([<>] )?([−+]?)([\d.,]+(?:e[-+]\d+)?) ?([^\d\s]*)", text)
    assert found, text
    sign = -1 if found[2] == "−" else 1
    return sign * float(found[3].replace(",", "")) * _UNITS[found[4]]


@pytest.mark.parametrize(
    ("kind", "value", "shown"), [(k, v, text) for k, rows in CASES.items() for v, text in rows]
)
def test_the_shared_table_of_cases(kind: str, value: float, shown: str) -> None:
    assert getattr(words, f"fmt_{kind}")(value) == shown


@given(any_measured, positive)
def test_no_loss_beyond_three_digits(kind: str, x: float) -> None:
    text = _MEASURED[kind](x)
    if text.startswith(("<", ">")):
        return
    if kind == "share":  # two digits, or one decimal
        assert read(text) == pytest.approx(x, rel=0.0051, abs=0.00051 if x < 0.099 else 0.0051)
    elif kind == "bytes" and x < 999.5:
        assert read(text) == pytest.approx(x, rel=0.006, abs=0.5)
    else:
        assert read(text) == pytest.approx(x, rel=0.0051)


@given(any_measured, positive, positive)
def test_what_is_more_never_reads_as_less(kind: str, x: float, y: float) -> None:
    low, high = sorted((x, y))
    assert read(_MEASURED[kind](low)) <= read(_MEASURED[kind](high)) * (1 + 1e-9)


@given(any_measured, st.floats(min_value=5e-324, max_value=1e300))
def test_what_is_not_zero_never_reads_as_zero(kind: str, x: float) -> None:
    text = _MEASURED[kind](x)
    assert re.search(r"[1-9]", text), text


@given(st.floats(min_value=0, max_value=1, exclude_max=True))
def test_less_than_everything_is_never_100_percent(x: float) -> None:
    assert words.fmt_share(x) != "100 %"


@given(st.floats(min_value=0.5, max_value=1 - 1e-9))
def test_a_chosen_share_below_1_is_never_100_percent(x: float) -> None:
    assert words.fmt_chosen_share(x) != "100 %"


@given(positive)
def test_one_time_reads_the_same_whatever_its_unit_was(ms: float) -> None:
    # a float on the edge between two digits may fall to either side
    assert read(words.fmt_us(ms * 1e3)) == pytest.approx(read(words.fmt_ms(ms)), rel=0.011)
    assert words.fmt_s(1.7416) == words.fmt_ms(1741.6) == words.fmt_us(1741600) == "1.74 s"


@given(any_measured, positive)
def test_a_negative_value_is_the_positive_one_behind_a_minus(kind: str, x: float) -> None:
    text = _MEASURED[kind](x)
    if not text.startswith(("<", ">")):
        assert _MEASURED[kind](-x) == f"−{text}"


@given(st.floats(min_value=1e-3, max_value=1e3), st.floats(min_value=1, max_value=9.9))
def test_both_ends_of_an_interval_have_the_same_decimals(low: float, times: float) -> None:
    ends = words.fmt_interval(low, low * times)[1:-1].split(", ")
    assert len({len(end.partition(".")[2]) for end in ends}) == 1


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.9901, 1.0402, "[0.990, 1.040]"),
        (1.002, 1.03, "[1.002, 1.030]"),
        (2, math.inf, "[2.00, ∞]"),
        (0.01, 25, "[0.0100, 25.0]"),
        (1, 1, "[1.00, 1.00]"),
    ],
)
def test_intervals(low: float, high: float, shown: str) -> None:
    assert words.fmt_interval(low, high) == shown


def test_times_of_an_interval_share_their_unit() -> None:
    assert words.fmt_ms_interval(0.912, 1.23) == "[0.912, 1.230] ms"
    assert words.fmt_ms_interval(1614, 1742) == "[1.61, 1.74] s"
    assert words.fmt_ms_interval(0, 0) == "[0, 0] ms"


@pytest.mark.parametrize("value", [None, math.nan])
@pytest.mark.parametrize("kind", sorted({*_MEASURED, "us", "s", "change"}))
def test_what_is_not_known_is_a_dash(kind: str, value: float | None) -> None:
    assert getattr(words, f"fmt_{kind}")(value) == "–"


def test_infinity_is_no_ratio_and_no_digits() -> None:
    assert words.fmt_ratio(math.inf) == words.fmt_bound(math.inf) == "–"
    assert words.fmt_ms(math.inf) == "∞ h"
    assert words.fmt_number(-math.inf) == "−∞"


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (0.12, "+12 %"),
        (-0.034, "−3.4 %"),
        (0, "0 %"),
        (0.0009, "< +0.1 %"),
        (0.001, "+0.1 %"),
        (1.5, "+150 %"),
    ],
)
def test_a_change_has_a_sign(x: float, shown: str) -> None:
    assert words.fmt_change(x) == shown


@pytest.mark.parametrize(
    ("x", "shown"),
    [(0.05, "5 %"), (1 / 3, "33.3 %"), (0.975, "97.5 %"), (0.99997, "99.997 %"), (1, "100 %")],
)
def test_a_chosen_share_has_no_digits_that_nobody_chose(x: float, shown: str) -> None:
    assert words.fmt_chosen_share(x) == shown


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (0, "0 %"),
        (1.23e-5, "0.0012 %"),
        (0.031, "3.1 %"),
        (2.38, "240 %"),
        (4.2e-7, "0.000042 %"),
        (4.2e-9, "4.2e-07 %"),
    ],
)
def test_a_deviation_keeps_its_digits_however_small(x: float, shown: str) -> None:
    assert words.fmt_deviation(x) == shown


def test_bounds_counts_with_nouns_and_large_units() -> None:
    bounds = {1.083: "1.08×", 1.15: "1.15×", 2.12: "2.1×", 6.24: "6.2×", 9.95: "10×", 26.4: "26×"}
    assert [words.fmt_bound(x) for x in bounds] == [*bounds.values()]
    assert words.plural(1, "step") == "1 step"
    assert words.plural(12345, "step") == "12,345 steps"
    assert words.plural(2, "copy", "copies") == "2 copies"
    assert words.fmt_si(1.23e13, "FLOP/s") == "12.3 TFLOP/s"
    assert words.fmt_si(999.9, "FLOP") == "1.00 kFLOP"
    assert words.fmt_si(6.4e5, "FLOP") == "640 kFLOP"
    assert words.fmt_si(0, "FLOP") == "0 FLOP"
    assert words.fmt_si(2e22, "FLOP") == "20,000 EFLOP"
    assert words.fmt_si(None, "FLOP") == "– FLOP"


def test_the_widgets_say_the_same(tmp_path: Path) -> None:
    source = Path(words.__file__).parent.parent / "widgets" / "js" / "src" / "numbers.js"
    kinds = ("number", "us", "count", "bytes", "share")
    (tmp_path / "numbers.mjs").write_bytes(source.read_bytes())
    (tmp_path / "say.mjs").write_text(
        'import * as n from "./numbers.mjs";\n'
        f"const cases = {json.dumps({k: CASES[k] for k in kinds})};\n"
        "const say = { number: n.fmtNumber, us: n.fmtUs, count: n.fmtCount, bytes: n.fmtBytes,\n"
        "              share: n.fmtShare };\n"
        "const said = Object.keys(cases).map((k) => cases[k].map(([x]) => say[k](x)));\n"
        "console.log(JSON.stringify(said));\n",
        encoding="utf-8",
    )
    expected = [[text for _, text in CASES[k]] for k in kinds]
    assert says(tmp_path / "say.mjs") == expected


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.98, 1.02, "no difference seen"),
        (0.9, 1.1, "no difference seen"),
        (0.43, 1.07, "too unsteady to tell"),
        (0.9, 1.125, "no difference seen"),
        (0.9, 1.13, "too unsteady to tell"),
        (0.8, 1.25, "too unsteady to tell"),
        (0.0, math.inf, "too unsteady to tell"),
    ],
)
def test_no_difference_is_not_said_of_an_interval_that_has_room_for_one(
    low: float, high: float, said: str
) -> None:
    assert words.no_difference(low, high) == said


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ("aab", "a and 1 other line"),
        ("abb", "b and 1 other line"),
        ("abbc", "b and 2 other lines"),
        ("aa", "a"),
    ],
)
def test_the_most_frequent_is_named_and_the_others_are_counted(counted: str, said: str) -> None:
    assert words.most_often(Counter(counted), "line") == said
