"""The breakdown bar: adds up, has words for the picture, and escapes its labels."""

from __future__ import annotations

import re

import pytest

from perfkit.show._bar import bar, describe, text_bar
from perfkit.show.document import Segment

SEGMENTS = (
    Segment("data wait", 71.0, "71.0 ms"),
    Segment("forward", 20.0, "20.0 ms"),
    Segment("sync", 0.0, "0 ms"),
    Segment("backward", 9.0, "9.00 ms"),
)


def test_widths_add_up_to_the_whole_lane() -> None:
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", bar("host", SEGMENTS))]
    assert sum(widths) == pytest.approx(100.0, abs=0.01)
    assert len(widths) == 3  # a class of nothing has no segment, but stays in the legend


def test_picture_has_a_text_alternative_with_every_share() -> None:
    shown = bar("host", SEGMENTS)
    assert 'role="img"' in shown
    assert describe("host", SEGMENTS) in shown
    assert describe("host", SEGMENTS).startswith("host: data wait 71.0 ms (71 %), forward")


def test_neighbours_differ_by_more_than_colour() -> None:
    # every segment is named in the legend, in the order of the picture
    legend = re.findall(r"</span>([a-z ]+) <b>", bar("host", SEGMENTS))
    assert legend == ["data wait", "forward", "sync", "backward"]


def test_labels_are_escaped() -> None:
    hostile = (Segment("<img src=x onerror=alert(1)>", 1.0, "1 ms"),)
    assert "<img" not in bar('"><script>', hostile)
    assert "<script" not in bar('"><script>', hostile)


@pytest.mark.parametrize("width", [7, 60, 61])
def test_glyphs_fill_the_width_exactly(width: int) -> None:
    first = text_bar("host", SEGMENTS, width=width).splitlines()[0].strip()
    assert len(first) == width + 2
    assert " " not in first


def test_a_bar_of_nothing_is_empty_not_an_error() -> None:
    nothing = (Segment("data wait", 0.0, "0 ms"),)
    assert describe("host", nothing) == "host: nothing"
    assert "|" + " " * 60 + "|" in text_bar("host", nothing)
    assert "width:" not in bar("host", nothing)
