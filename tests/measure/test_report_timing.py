from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from perfkit import show
from perfkit.measure.compare import compare
from perfkit.measure.run import WatchedRun
from perfkit.measure.summary import summarize
from perfkit.show.run_bundle import bundle
from perfkit.show.run_picture import alternative, png

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def run(clock) -> WatchedRun:
    watched = WatchedRun([torch.zeros(4)] * 60, now=clock.now, name=EVIL)
    for _ in watched:
        clock.advance_ms(10)
    return watched


def test_a_summary_is_one_line_with_unit_and_spread() -> None:
    text = str(summarize([10, 11, 12, 11, 10, 11, 12, 10]))
    (line,) = text.splitlines()
    assert line.startswith("11.0 ms, the median of 8; all from 10.0 ms to 12.0 ms.  ")
    assert line.endswith("  10.0 ms … 12.0 ms, 95 % interval")
    assert str(summarize([2.0] * 8, unit="µs")).startswith("2.00 µs")
    assert str(summarize([2.0] * 8, unit="samples")).startswith("2.00 samples")


def test_a_comparison_shows_both_arms_ratio_and_provenance(clock) -> None:
    c = compare(lambda: clock.advance_ms(20), lambda: clock.advance_ms(10), clock=clock)
    text = c.to_text()
    for part in ("20.0 ms", "10.0 ms", "2.00×", "6 blocks", "measured here", c.sentence[:40]):
        assert part in text
    assert max(map(len, text.splitlines())) <= 96


def test_a_comparison_chooses_the_units_of_what_it_shows(clock) -> None:
    c = compare(lambda: clock.advance_ms(0.02), lambda: clock.advance_ms(0.01), clock=clock)
    assert "20.0 µs" in str(c)
    assert "20.0 µs" in show.html(c).replace("\xa0", " ")


def test_the_table_tells_the_ratio_the_way_round_that_the_sentence_does(clock) -> None:
    """A headline "1.61×" stood above a table that said "0.621×"."""
    c = compare(
        lambda: clock.advance_ms(10), lambda: clock.advance_ms(20), clock=clock, names=("a", "b")
    )
    assert c.sentence.startswith("'a' is 2.00× as fast")
    (row,) = [line for line in str(c).splitlines() if "÷" in line]
    assert row.split()[:4] == ["second", "÷", "first", "2.00×"]
    assert "0.500×" not in c.to_text()


def test_names_of_user_code_are_escaped(clock, run) -> None:
    c = compare(
        lambda: clock.advance_ms(20), lambda: clock.advance_ms(10), clock=clock, names=(EVIL, "b")
    )
    for shown in (c._repr_html_(), run.summary._repr_html_(), bundle(run.summary)["text/html"]):
        assert EVIL not in shown
        assert "&lt;script&gt;" in shown
    # the control that copies is the only script
    assert bundle(run.summary)["text/html"].count("<script") == 1


def test_a_run_shows_verdict_share_memory_and_what_watching_cost(run) -> None:
    text = show.text(run.summary)
    for part in ("Not data-bound", "step, median", "10.0 ms", "data wait", "resident", "Watching"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 96


def test_an_empty_run_shows_too() -> None:
    empty = WatchedRun([])
    list(empty)
    assert "gave no batch" in str(empty.summary)
    assert "gave no batch" in empty.summary._repr_html_()
    assert "<img" not in bundle(empty.summary)["text/html"]


def test_the_picture_is_a_png_with_words(run) -> None:
    assert png(run.summary).startswith(b"\x89PNG")
    assert "median step 10.0 ms" in alternative(run.summary)
    html = bundle(run.summary)["text/html"]
    assert 'src="data:image/png;base64,' in html
    assert 'alt="Step time and data wait of' in html


def test_text_and_html_need_no_matplotlib() -> None:
    code = (
        "import sys; from perfkit.measure.run import WatchedRun\n"
        "run = WatchedRun(range(50))\nfor _ in run: pass\n"
        "str(run.summary); run.summary._repr_html_()\n"
        "assert not {'matplotlib', 'torch', 'IPython', 'ipywidgets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_first_screen_is_the_sentence_and_one_note(clock, quiet_machine) -> None:
    random = np.random.default_rng(0)

    def noisy() -> None:
        clock.advance_ms(1000 * float(random.lognormal(0, 0.5)))

    c = compare(noisy, noisy, clock=clock, budget_s=20)
    assert len(c.warnings) == 1
    page = show.html(c)
    assert show.text(c).count("Note:") == 1
    assert page.index("pk-verdict") < page.index("<details>") < page.index("median per call")


def test_the_picture_has_whole_steps_and_no_curve_lies_on_its_frame(clock) -> None:
    """Ticks at step 0.5 and 1.5, and a memory curve that could not be seen."""
    for n in (4, 60):
        watched = WatchedRun([torch.zeros(4)] * n, now=clock.now)
        for _ in watched:
            clock.advance_ms(10)
        picture = show.figure(watched.summary)
        ticks = picture.axes[0].get_xticks()
        assert len(ticks) >= 2
        assert all(float(tick).is_integer() for tick in ticks)
        for axes in picture.axes:
            low, high = axes.get_ylim()
            for line in axes.lines:
                drawn = np.asarray(line.get_ydata(), float)
                assert low < drawn.min()
                assert drawn.max() < high
    assert len(picture.axes) == 2  # with the memory
