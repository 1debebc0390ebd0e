"""Paragraphs and aligned tables."""

from __future__ import annotations

from perfkit.show import plain_text


def test_table_lines_are_as_wide_as_promised_and_numbers_survive() -> None:
    rows = [("x" * 300, "12.3 ms", "71 %"), ("short", "4 ms", "29 %")]
    lines = plain_text.table(("operator", "time", "share"), rows, width=60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert lines[2].endswith("12.3 ms   71 %")
    assert "…" in lines[2]


def test_table_keeps_one_row_per_line_whatever_a_cell_holds() -> None:
    lines = plain_text.table(("a", "b"), [("two\nlines", "1")]).splitlines()
    assert len(lines) == 3
    assert "two lines" in lines[2]


def test_table_without_rows_is_header_and_rule() -> None:
    assert len(plain_text.table(("a", "b"), []).splitlines()) == 2


def test_clip_marks_what_it_cut() -> None:
    assert plain_text.clip("abcdef", 4) == "abc…"
    assert plain_text.clip("abcd", 4) == "abcd"
