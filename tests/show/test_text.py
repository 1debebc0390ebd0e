"""Paragraphs and aligned tables."""

from __future__ import annotations

from perfkit.show import brief, plain_text
from perfkit.show.document import Document, Finding, Table


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


def test_where_the_first_screen_is_full_each_table_is_counted_once_and_none_without_rows() -> None:
    hidden = Table(("a", "b"), (("x", "1"),), brief=False)
    findings = tuple(Finding("What is wrong with it", source="train.py:1: x()") for _ in range(14))
    full = Document(
        "result", "It is so.", findings=findings, tables=(hidden, hidden, Table((), ()))
    )
    assert "2 tables and pictures" in brief(full)
