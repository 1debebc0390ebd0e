"""Sweeps with real child processes; facts independent of the clock."""

from __future__ import annotations

import itertools
import json
import math
import time

import numpy as np
import pytest

import perfkit
from perfkit import show
from perfkit.base.errors import SettingError, UsageError
from perfkit.base.machine import facts
from perfkit.experiment import setting
from perfkit.experiment.compare._grid import grid_of
from perfkit.experiment.compare.batch import _search, largest_batch
from perfkit.experiment.compare.knee import knee_of
from perfkit.experiment.compare.sweep import sweep
from perfkit.measure.paired import Interval

pytestmark = pytest.mark.slow

SHORT = {"seconds": 0.1, "say": False}


def by_value(function):
    """As from a notebook: not to be imported by name in the child."""
    function.__module__ = "__main__"
    return function


@by_value
def sleeping(s):
    import time

    while True:
        time.sleep(0.001 * s.ms)
        yield 2


@by_value
def failing_from(s):
    if s.ms >= s.bad:
        raise ValueError("too much")
    yield from sleeping(s)


def test_a_point_that_did_not_run_is_not_called_slower():
    bad = setting("bad", [2])
    found = sweep(failing_from, {"ms": [1, 2]}, settings=[bad], rounds=1, **SHORT)
    assert found.sentence.startswith("The fastest of 2 points is ms 1: ")
    assert found.sentence.endswith(". 1 of 2 could not be measured.")
    assert "slower" not in found.sentence
    with pytest.raises(UsageError, match="does not vary"):
        found.knee(["ms"])


def test_rounds_are_interleaved_and_the_fastest_is_found():
    found = sweep(sleeping, {"ms": [40, 20, 1]}, rounds=4, **SHORT)
    assert perfkit.sweep is sweep
    assert found.best.values == {"ms": 1}
    assert found.stopped == "every round asked for"
    assert [len(point.runs) for point in found.points] == [4, 4, 4]
    assert len(found.runs) == 12
    order = [[run.run_id for run in point.runs.values()] for point in found.points]
    for number in range(4):
        ran = {ids[number] for ids in order}
        assert ran == {3 * number + 1, 3 * number + 2, 3 * number + 3}, "a round is a round"
    assert found.ratio(found.points[0]).low > 2
    rows = found.table()
    assert [row["rounds"] for row in rows] == [4, 4, 4]
    assert rows[2]["ratio"] == 1.0
    assert rows[0]["time_ms"] >= 40.0
    assert found.per == "step"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["best"] == {"ms": 1}
    text = show.text(found)
    assert "The fastest of 3 points is ms 1" in text
    assert max(map(len, text.splitlines())) <= 96
    assert "The fastest of 3 points" in show.html(found)


def test_it_stops_when_the_answer_is_clear():
    found = sweep(sleeping, {"ms": [30, 1]}, budget_s=300.0, **SHORT)
    assert found.stopped == "clear"
    assert len(found.runs) < 40


def test_the_budget_ends_it_but_two_rounds_of_a_small_grid_are_run():
    found = sweep(sleeping, {"ms": [1, 2]}, budget_s=0.1, **SHORT)
    assert found.stopped == "time budget"
    assert [len(point.runs) for point in found.points] == [2, 2]


def test_a_large_grid_is_halved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perfkit.experiment.compare.sweep._MOST_ROUNDS", 2)
    values = [*range(1, 12), 60, 80, 100]
    found = sweep(sleeping, {"ms": values}, budget_s=300.0, **SHORT)
    assert found.stopped == "most rounds"
    left = [point for point in found.points if not point.dropped]
    dropped = [point for point in found.points if point.dropped]
    assert len(dropped) == 7
    assert all("in the slower half after round 1" in point.dropped for point in dropped)
    assert {p.values["ms"] for p in dropped} >= {60, 80, 100}, "a sleep of 60 ms is none of 1 ms"
    assert found.best in left
    assert [len(point.runs) for point in left] == [2] * 7
    assert [len(point.runs) for point in dropped] == [1] * 7


def test_batches_of_other_sizes_are_compared_per_sample():
    @by_value
    def workload(s):
        import time

        while True:
            time.sleep(0.02)
            yield s.batch_size

    found = sweep(workload, {"batch_size": [8, 128]}, rounds=2, **SHORT)
    assert found.per == "sample"
    assert found.best.values == {"batch_size": 128}


def test_other_settings_keep_their_base_value():
    @by_value
    def workload(s):
        assert s.other == 7
        while True:
            yield s.num_workers

    settings = [setting("other", [1, 7]), "num_workers"]
    found = sweep(workload, {"x": [1, 2]}, settings=settings, base={"other": 7}, rounds=1, **SHORT)
    assert {point.state for point in found.points} == {"measured"}


def test_points_that_cannot_run_here_are_skipped_with_the_reason():
    here = facts()
    grid = grid_of({"precision": ["fp32", "fp16"], "x": [1]}, (), {}, here)
    if not here.gpus:
        assert [p["precision"] for p in grid.points] == ["fp32"]
        assert "not available on this machine" in grid.skipped[0].reason
    grid = grid_of({"deterministic": [False, True], "cudnn_benchmark": [False, True]}, (), {}, here)
    both = [s for s in grid.skipped if s.values == {"deterministic": True, "cudnn_benchmark": True}]
    assert len(both) == 1
    assert both[0].reason


@pytest.mark.parametrize("prefetch", [[2, 4], [4, 2], [1, 4], [8]])
def test_a_point_that_is_another_one_again_is_skipped(prefetch):
    grid = grid_of(
        {"num_workers": [0, 2], "prefetch_factor": prefetch, "persistent_workers": [False, True]},
        (),
        {},
        facts(),
    )
    without = [p for p in grid.points if p["num_workers"] == 0]
    assert len(without) == 1, "without workers nothing else matters"
    assert len(grid.points) == 1 + 2 * len(prefetch)
    assert len(grid.skipped) == 2 * len(prefetch) - 1
    assert all("has no effect without workers" in one.reason for one in grid.skipped)
    assert all("the same as num_workers 0" in one.reason for one in grid.skipped)


@pytest.mark.parametrize(
    ("grid", "options", "error", "words"),
    [
        ({}, {}, SettingError, "a mapping from settings to lists"),
        ([1], {}, SettingError, "a mapping from settings to lists"),
        ({"x": 3}, {}, SettingError, "must be a list"),
        ({"num_worker": [0, 2]}, {}, SettingError, "did you mean 'num_workers'?"),
        ({"mss": [1, 2]}, {}, SettingError, "did you mean 'ms'?"),  # what the workload reads
        ({"num_workers": [-1]}, {}, SettingError, "num_workers=-1 is not valid"),
        ({"x": [1], "y": range(900), "z": range(3)}, {}, SettingError, "the grid has 2,700 points"),
        ({"x": [1]}, {"base": {"x": 1}}, SettingError, "in the grid and in base"),
        ({"x": [1]}, {"rounds": 0}, UsageError, "rounds=0 is not valid"),
        ({"x": [1]}, {"rounds": "all"}, UsageError, "rounds='all' is not valid"),
        ({"x": [1]}, {"settings": itertools.count(5)}, SettingError, "5 is not a setting"),
        ({"x": [1]}, {"settings": np.array(5)}, SettingError, "settings must be a list of names"),
        ({"x": [1]}, {"seed": np.array([5])}, UsageError, "it takes a whole number, 0 to"),
        ({"x": [1]}, {"rounds": 10**9}, UsageError, "a whole number, 1 to 10,000"),
        ({"x": [1]}, {"budget_s": -1}, UsageError, "budget_s=-1 is not valid"),
    ],
)
def test_what_cannot_be_is_refused(grid, options, error, words):
    with pytest.raises(error, match=words):
        sweep(sleeping, grid, say=False, **options)


def test_progress_tells_where_it_is_and_how_long_it_takes():
    said = []
    sweep(sleeping, {"ms": [1, 2]}, rounds=2, seconds=0.1, say=said.append)
    assert len(said) == 4
    assert said[0].startswith("round 1, run 1 of 2: ms ")
    assert said[2].startswith("round 2, run 1 of 2: ms ")
    assert said[3].startswith("round 2, run 2 of 2: ms ")
    assert all("left" in line or "nearly done" in line for line in said[1:])


# --- the knee ----------------------------------------------------------------------------------


def ratio(centre, low, high):
    return Interval(centre, low, high, 0.95)


SELF = ratio(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("values", "best", "knee", "sure", "words"),
    [
        # 2 is the first that is not shown to be more than 5 % slower
        ([(0, ratio(3, 2.8, 3.2)), (2, ratio(1.02, 1.0, 1.04)), (4, SELF)], 4, 2, True, "is 2"),
        # it may be: the interval extends beyond the margin
        ([(0, ratio(3, 2.8, 3.2)), (2, ratio(1.06, 0.9, 1.2)), (4, SELF)], 4, 2, False, "wide"),
        # measured up to two margins above it, it may be; beyond, it is none
        ([(0, ratio(3, 2.8, 3.2)), (2, ratio(1.09, 0.9, 1.3)), (4, SELF)], 4, 2, False, "wide"),
        ([(0, ratio(3, 2.8, 3.2)), (2, ratio(1.11, 0.9, 1.3)), (4, SELF)], 4, 4, False, "No knee"),
        # measured far above it is no knee, however wide its interval
        ([(0, ratio(3, 1.5, 9)), (2, SELF), (4, ratio(1.1, 1.08, 1.2))], 2, 2, True, "also the"),
        # but then it is not shown that it would lose
        ([(0, ratio(3, 0.5, 9)), (2, SELF), (4, ratio(1.1, 1.08, 1.2))], 2, 2, False, "that 0 w"),
        ([(0, ratio(3, 0.5, 9)), (2, SELF)], 2, 2, False, "worse: its interval is wide"),
        ([(0, ratio(3, 0.5, 9)), (1, ratio(2, 1, 4)), (2, SELF)], 2, 2, False, "that 0 or 1 w"),
        ([(0, ratio(3, 0.5, 9)), (1, ratio(2, 1, 4)), (2, SELF)], 2, 2, False, "their intervals"),
        ([(2, SELF)], 2, 2, True, "also the fastest"),  # of one value "up to" says nothing
        ([(0, ratio(3, 0.0, math.inf)), (2, SELF)], 2, 2, False, "worse: too few rounds were run"),
        ([(0, ratio(3, 2.8, 3.2)), (2, ratio(1.5, 1.4, 1.6)), (4, SELF)], 4, 4, True, "No knee"),
        ([(0, SELF), (2, ratio(1.2, 1.1, 1.3))], 0, 0, True, "also the fastest"),
        # shown to be slower, though by less than two margins
        ([(0, ratio(1.08, 1.06, 1.1)), (2, SELF)], 2, 2, True, "No knee"),
        # just at the margin is not beyond it
        ([(0, ratio(1.1, 1.05, 1.2)), (2, SELF)], 2, 0, False, "is 0: it takes 1.10×"),
        ([(0, ratio(1.02, 1.0, 1.05)), (2, SELF)], 2, 0, True, "is 0: it takes 1.02×"),
        ([(0, ratio(3, 1.05, 9)), (2, SELF)], 2, 2, False, "that 0 would be worse"),
    ],
)
def test_the_knee_is_the_smallest_value_not_shown_to_be_slower(values, best, knee, sure, words):
    found = knee_of("num_workers", values, best, 0.05)
    assert (found.value, found.best, found.sure) == (knee, best, sure)
    assert words in found.sentence


def test_the_knee_of_a_sweep():
    @by_value
    def workload(s):
        import time

        while True:
            time.sleep({0: 0.03, 1: 0.01, 2: 0.01}[s.num_workers] * (2 if s.slow else 1))
            yield 1

    grid = {"slow": [True, False], "num_workers": [2, 0, 1]}
    found = sweep(workload, grid, rounds=3, **SHORT)
    knee = found.knee("num_workers", margin=0.5)
    assert knee.value == 1
    assert found.best.values["slow"] is False
    with pytest.raises(UsageError, match="does not vary 'nun_workers'"):
        found.knee("nun_workers")


def test_no_knee_is_drawn_at_the_last_value_that_was_tried():
    @by_value
    def workload(s):
        import time

        while True:
            time.sleep(0.02 / (1 + s.n**2))
            yield 1

    found = sweep(workload, {"n": [0, 1, 3]}, rounds=2, **SHORT)
    assert found.best.values["n"] == 3
    assert "no gain beyond" not in found._repr_html_()


def test_values_without_an_order_have_no_knee():
    found = sweep(sleeping, {"ms": [1], "kind": ["a", "b"]}, rounds=1, **SHORT)
    with pytest.raises(UsageError, match="not numbers"):
        found.knee("kind")


# --- the largest batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 100, 127, 128, 1000])
def test_the_search_is_exact_where_asked(limit):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= limit

    assert _search(fits, 8, 4096, 0.0) == (limit, limit + 1)
    assert len(tried) == len(set(tried)) <= 22


def test_the_search_ends_where_nothing_fits_and_where_all_does():
    assert _search(lambda n: False, 8, 100, 0.0) == (None, 1)
    assert _search(lambda n: True, 8, 100, 0.0) == (100, None)
    good, bad = _search(lambda n: n <= 1000, 8, 4096, 0.05)
    assert good <= 1000 < bad
    assert bad - good <= 0.05 * good


@by_value
def needs_memory(s):
    import time

    if s.batch_size > 37:
        raise MemoryError("no more than 37")
    while True:
        time.sleep(0.001)
        yield s.batch_size


def test_the_largest_batch_is_found_by_running_it():
    found = largest_batch(needs_memory, seconds=0.05, within=0.0, say=False)
    assert (found.batch, found.too_large) == (37, 38)
    assert [run.values["batch_size"] for run in found.runs][:4] == [8, 16, 32, 64]
    assert "The largest batch that fits is 37; 38 does not" in found.sentence
    assert json.loads(json.dumps(found.to_dict()))["batch"] == 37
    assert found.sentence in " ".join(show.text(found).split())


def test_a_simulated_limit_counts_like_memory_itself():
    @by_value
    def workload(s):
        held = bytearray(s.size << 20)
        while True:
            held[::4096] = bytes(len(held[::4096]))
            yield s.size

    own = {"setting": "size", "seconds": 0.05, "say": False}
    with pytest.raises(UsageError, match="within=1 is not valid"):
        largest_batch(workload, start=1, most=1, within=1, **own)
    # not of the first run: its process may have started otherwise, and hold some 70 MiB less
    free = largest_batch(workload, start=1, most=2, **own).runs[-1].peak_bytes
    limit = free + (100 << 20)
    found = largest_batch(workload, start=16, limit_bytes=limit, **own)
    # the resident set of a bare process differs by some 30 MiB from one to the next
    assert 50 <= found.batch <= 200, found
    assert "simulated limit" in found.sentence
    assert "out of memory (simulated)" in next(r.message for r in found.runs if not r.ok)


def test_another_failure_is_no_lack_of_memory():
    @by_value
    def workload(s):
        yield 1
        raise ValueError("no such picture")

    with pytest.raises(perfkit.PerfkitError, match="no such picture"):
        largest_batch(workload, seconds=0.05, say=False)


def test_a_wall_clock_that_goes_backwards_is_harmless(monkeypatch):
    now = [2e9]

    def backwards():
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    found = sweep(sleeping, {"ms": [1, 2]}, rounds=2, **SHORT)
    assert [len(point.runs) for point in found.points] == [2, 2]
    assert 0 < found.duration_s < 60
    assert all(run.running_s >= 0 for run in found.runs)


def test_a_sweep_as_a_figure_has_its_words():

    grid = {"ms": [20, 1, 5], "kind": ["a", "<b>"]}
    found = sweep(sleeping, grid, rounds=1, **SHORT)
    (axes,) = show.figure(found).axes
    assert axes.get_xlabel() == "ms"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "5", "20"]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    lines = {name: times for name, times in lines.items() if name.startswith("kind ")}
    assert set(lines) == {"kind a", "kind <b>"}
    assert all(times[2] >= 20.0 for times in lines.values())
    words = show.alt_text(found)
    assert "Time per step: " in words
    assert found.sentence in words
    assert "<b>" not in show.html(found).replace("&lt;b&gt;", "")
