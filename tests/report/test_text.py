"""Numbers with units and aligned tables."""

from __future__ import annotations

import math

import pytest

from perfkit.report import _text


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.50 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (5.59 * 1024**3, "5.59 GiB"),
        (-2048, "-2.00 KiB"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_bytes(n: float | None, shown: str) -> None:
    assert _text.fmt_bytes(n) == shown


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (0, "0 ms"),
        (0.0123, "12.3 µs"),
        (0.5, "0.500 ms"),
        (12.34, "12.3 ms"),
        (1234, "1234 ms"),
        (12_340, "12.3 s"),
        (600_000, "10.0 min"),
        (None, "–"),
    ],
)
def test_ms(x: float | None, shown: str) -> None:
    assert _text.fmt_ms(x) == shown


@pytest.mark.parametrize(
    ("x", "shown"),
    [(0, "0 %"), (0.0004, "< 0.1 %"), (0.032, "3.2 %"), (0.0996, "10 %"), (0.714, "71 %")],
)
def test_share(x: float, shown: str) -> None:
    assert _text.fmt_share(x) == shown


def test_ratio_and_count() -> None:
    assert _text.fmt_ratio(2.338) == "2.34×"
    assert _text.fmt_ratio(math.inf) == "–"
    assert _text.fmt_count(12345) == "12 345"
    assert _text.fmt_count(2.5) == "2.5"


def test_table_lines_are_as_wide_as_promised_and_numbers_survive() -> None:
    rows = [("x" * 300, "12.3 ms", "71 %"), ("short", "4 ms", "29 %")]
    lines = _text.table(("operator", "time", "share"), rows, width=60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert lines[2].endswith("12.3 ms   71 %")
    assert "…" in lines[2]


def test_table_keeps_one_row_per_line_whatever_a_cell_holds() -> None:
    lines = _text.table(("a", "b"), [("two\nlines", "1")]).splitlines()
    assert len(lines) == 3
    assert "two lines" in lines[2]


def test_table_without_rows_is_header_and_rule() -> None:
    assert len(_text.table(("a", "b"), []).splitlines()) == 2


def test_clip_marks_what_it_cut() -> None:
    assert _text.clip("abcdef", 4) == "abc…"
    assert _text.clip("abcd", 4) == "abcd"
