from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from perfkit import show
from perfkit.base.machine import stamp
from perfkit.experiment import CATALOGUE, Ratio, RunResult
from perfkit.measure.summary import summarize
from perfkit.show import runs as renderer


def run(run_id, step_ms, state="done", **more):
    step = np.asarray(step_ms, np.float64)
    n = len(step)
    given = {
        "values": {"num_workers": run_id - 1, "fused": run_id > 1},
        "message": "",
        "peak_bytes": 2**28 if n else None,
        "peak_kind": "peak resident set of the training process" if n else "",
        "wait_share": 0.71 if n else None,
        "samples_per_s": 20 * 1234.0 / step.mean() if n else None,
    }
    return RunResult(
        run_id=run_id,
        state=state,
        step=summarize(step) if n else None,
        n_steps=n,
        n_quiet=n,
        n_counted=n,
        provenance=stamp(device="cpu"),
        index=np.arange(n),
        step_ms=step,
        wait_ms=step * 0.71,
        memory_bytes=np.full(n, 7),
        quiet=np.ones(n, bool),
        counted=np.ones(n, bool),
        loss=np.full(n, np.nan),
        **(given | more),
    )


SLOW = run(1, [20.0, 20.1, 19.9, 20.0, 20.2, 19.8, 20.0])
FAST = run(2, [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0])
EVIL = run(
    3,
    [],
    state="failed",
    message="ValueError: <script>alert(1)</script> | `x`",
    traceback_text="Traceback\n  <b>bold</b>",
)


def test_one_run_says_what_was_measured_and_where():
    said = str(SLOW)
    one_line = " ".join(said.split())
    for words in (
        "Run 1 (num_workers 0, fused off) done: 20.0 ms a step (median)",
        "71 % of it data wait",
    ):
        assert words in one_line
    for words in ("1,230 samples/s", "256 MiB", "n=7 of 7 steps", "measured here"):
        assert words in one_line
    assert "samples/s" not in str(replace(SLOW, samples_per_s=None)), "not known: not said"
    assert "peak resident set of the training process" in said
    assert max(map(len, said.splitlines())) <= 96


def test_several_runs_are_a_table_with_ratios_and_their_doubt():
    said = show.text([SLOW, FAST])
    assert "2 runs; the fastest was run 2 (num_workers 1, fused on): 10.0 ms per step" in said
    assert "2.00× [" in said
    assert "num_workers 1, fused on" in said
    words = " ".join(said.split())
    assert "speed: mean time per step in quiet windows" in words
    assert "run 1's ÷ the run's" in words
    assert "one run after the other, so drift is not cancelled" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 96


def test_a_failed_run_shows_its_message_and_traceback():
    said = str(EVIL)
    assert "Run 3 (num_workers 2, fused on) failed: ValueError" in said
    assert "<b>bold</b>" in said


def test_the_output_stands_where_there_is_no_traceback():
    killed = run(4, [], state="killed", message="killed", output="one\nlast words\n")
    assert "last words" in str(killed)


def test_words_of_the_user_never_become_markup():
    page = show.html([SLOW, EVIL])
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "<b>bold</b>" not in page
    assert 'role="group"' in page
    assert "<th scope=" in page
    assert show.html(SLOW).count("<table") == 0


def test_the_notebook_gets_html_and_text():
    assert "20.0\xa0ms a step" in SLOW._repr_html_()
    assert show.text(SLOW) == str(SLOW)


def test_markdown_escapes_and_has_one_row_per_run():
    said = show.markdown([SLOW, FAST, EVIL])
    rows = [line for line in said.splitlines() if line.startswith("|")]
    figures, settings = rows[:5], rows[5:]
    assert len(settings) == 5
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in figures} == {8}
    assert "\\<script\\>" in said


def test_no_runs():
    assert renderer.document_of([]).sentence == "No run yet."
    assert show.text([]) == "[]"
    assert renderer.alt_text([EVIL]) == "No step was measured."


def test_the_figure_leaves_pyplot_alone_and_has_words():
    picture = renderer.figure([SLOW, FAST, EVIL])
    upper, lower = picture.axes
    assert len(upper.get_lines()) == 4
    assert len(lower.get_lines()) == 2
    assert [t.get_text()[:5] for t in upper.get_legend().get_texts()] == ["run 1", "run 2"]
    assert upper.get_ylabel() == "step [ms]"
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )
    words = renderer.alt_text([SLOW, FAST, EVIL])
    assert "median step 20.0 ms" in words
    assert "median step 10.0 ms" in words
    assert renderer.figure([]).axes


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(2.0, 1.9, 2.1), "2.00× as fast"),
        (Ratio(0.5, 0.4, 0.6), "0.500× as fast"),
        (Ratio(1.01, 0.9, 1.1), "No difference seen. 1.01× as fast"),
        (Ratio(1.01, 0.7, 1.5), "Too unsteady to tell. 1.01× as fast"),
    ],
)
def test_a_ratio_is_a_sentence(ratio, words):
    said = " ".join(show.text(ratio).split())
    assert said.startswith(words)
    assert "drift is not cancelled" in said


def test_other_things_of_the_room_show_their_repr():
    one = CATALOGUE["fused"]
    assert show.text(one) == repr(one)
    assert "Setting(" in show.html(one)


def test_the_first_screen_of_a_failed_run_ends_with_the_end_of_its_traceback():
    deep = "\n".join(f'  File "train.py", line {n}, in step' for n in range(40))
    failed = replace(EVIL, traceback_text=f"{deep}\nValueError: of the last line")
    lines = str(failed).splitlines()
    assert lines[:2] == ["Run 3 failed.", "! ValueError"]
    assert any("ValueError: of the last line" in line for line in lines)
    assert len(lines) <= 25
    assert all(line.strip() in failed.to_text() for line in deep.splitlines())


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([SLOW, FAST], "Run 2: 2.00× as fast as run 1."),
        ([FAST, SLOW], "Run 2 is the fastest of 2."),
        ([SLOW, replace(SLOW, run_id=2)], "Run 1 is the fastest of 2."),
        ([EVIL, EVIL], "2 runs, none with a measured step."),
    ],
)
def test_the_headline_of_several_runs_is_the_speed_of_the_table(runs, words):
    assert show.brief(runs).splitlines()[0].startswith(words)
