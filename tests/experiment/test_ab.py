"""Two arms in turn: real processes, workloads of milliseconds, facts independent of the clock."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading

import numpy as np
import pytest

import perfkit
from perfkit import show
from perfkit.base.errors import (
    SettingError,
    StoreError,
    UsageError,
    WorkloadEmptyError,
    WorkloadFailedError,
    WorkloadHungError,
    WorkloadKilledError,
    WorkloadNotPortableError,
)
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.experiment import setting
from perfkit.experiment.compare import _blocks
from perfkit.experiment.compare.ab import ab
from perfkit.experiment.compare.store import read

pytestmark = pytest.mark.slow
ab_module = importlib.import_module(
    "perfkit.experiment.compare.ab"
)  # the package has a function ab

SHORT = {"budget_s": 2.0, "min_blocks": 2, "max_blocks": 2, "say": False}


def by_value(function):
    """As from a notebook: not to be imported by name in the child."""
    function.__module__ = "__main__"
    return function


@by_value
def sleeping(s):
    import time

    while True:
        time.sleep(0.002 if s.quick else 0.04)
        yield 4


@pytest.fixture(autouse=True)
def short_letters(monkeypatch):
    """The arms differ by a factor, or their times do not matter."""
    monkeypatch.setattr(_blocks, "_LETTER_S", 0.06)


LOCK = threading.Lock()
ARRAY = np.zeros(2)


@by_value
def holds_a_lock(s):
    with LOCK:
        yield


def test_the_slower_arm_is_seen_and_the_result_says_so():
    found = ab(sleeping, {"quick": False}, {"quick": True}, budget_s=60.0, max_blocks=6, say=False)
    assert found.names == ("quick off", "quick on")
    assert found.low > 2.0, found  # twenty times, and sleeps are never short
    assert found.different
    assert found.per == "step"
    assert len(found.blocks) >= 6
    assert len(found.runs) == 2 * len(found.blocks)
    assert [run.run_id for run in found.runs] == list(range(1, len(found.runs) + 1))
    assert all(run.values["quick"] == bool(i % 2) for i, run in enumerate(found.runs))
    assert all(block.fresh and block.order in ("ABBA", "BAAB") for block in found.blocks)
    assert all(block.a_ms >= 40.0 and block.b_ms >= 2.0 for block in found.blocks)
    assert not [w for run in found.runs for w in run.warnings if "parallel" in w]
    assert json.loads(json.dumps(found.to_dict()))["different"] is True
    shown = show.text(found)
    assert found.sentence.split(" (")[0] in " ".join(shown.split())
    assert "quick on" in show.html(found)


def test_it_is_perfkit_ab():
    assert perfkit.ab is ab


def test_other_batches_are_compared_per_sample():
    @by_value
    def workload(s):
        import time

        while True:
            time.sleep(0.001 * s.batch_size / 8)
            yield s.batch_size

    found = ab(workload, {"batch_size": 8}, {"batch_size": 80}, **SHORT)
    assert found.per == "sample"
    # per step it would be 0.1; per sample sleeping costs at least the same
    assert found.ratio > 0.5


def test_a_workload_that_ends_by_itself_is_measured_to_its_end():
    @by_value
    def ten(s):
        import time

        for _ in range(10):
            time.sleep(0.005)
            yield 1

    found = ab(ten, {"x": 1}, {"x": 2}, settings=[setting("x", [1, 2])], **SHORT)
    assert {run.n_steps for run in found.runs} == {10}
    assert {run.state for run in found.runs} <= {"done", "stopped"}


def test_a_workload_that_ends_within_its_warm_up_is_told():
    @by_value
    def two(s):
        yield 1
        yield 1

    found = ab(two, {"x": 1}, {"x": 2}, **SHORT)
    assert [w for w in found.warnings if "only 2 steps: a warm-up of 3 could not be" in w]


def test_a_workload_without_a_step_is_an_error():
    @by_value
    def none(s):
        yield from ()

    with pytest.raises(WorkloadEmptyError, match="yielded no step"):
        ab(none, {"x": 1}, {"x": 2}, **SHORT)


def test_an_arm_that_fails_is_named_with_its_error():
    @by_value
    def workload(s):
        yield 1
        if s.bad:
            raise ValueError("no such thing")
        while True:
            yield 1

    with pytest.raises(WorkloadFailedError, match=r"bad on: ValueError: no such thing"):
        ab(workload, {"bad": False}, {"bad": True}, **SHORT)


def test_an_arm_that_hangs_is_ended_and_told():
    @by_value
    def workload(s):
        import time

        for i in range(10**9):
            time.sleep(1000 if s.bad and i > 20 else 0.001)
            yield 1

    with pytest.raises(WorkloadHungError, match=r"bad on: no step within 1 s"):
        ab(workload, {"bad": False}, {"bad": True}, step_timeout_s=1.0, **SHORT)


def test_a_run_that_is_killed_once_is_made_again(tmp_path):
    @by_value
    def workload(s):
        import os
        import time
        from pathlib import Path

        for i in range(10**9):
            time.sleep(0.001)
            marker = Path(s.marker)
            if s.x == 2 and i == 10 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), 9)
            yield 1

    marker = str(tmp_path / "killed")
    settings = [setting("marker", [marker])]
    found = ab(workload, {"x": 1}, {"x": 2}, settings=settings, **SHORT)
    assert [w for w in found.warnings if "cut off (killed (SIGKILL)" in w]
    assert len(found.runs) == 2 * len(found.blocks)


def test_a_run_that_is_killed_each_time_is_an_error():
    @by_value
    def workload(s):
        for i in range(10**9):
            if s.x == 2 and i == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            yield 1

    with pytest.raises(WorkloadKilledError, match=r"x 2: killed \(SIGKILL\)"):
        ab(workload, {"x": 1}, {"x": 2}, **SHORT)


def test_arms_that_do_not_fit_together_run_one_after_the_other(tmp_path):
    @by_value
    def workload(s):
        import fcntl
        import time
        from pathlib import Path

        with Path(s.place).open("a") as taken:  # there is place for one
            try:
                fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MemoryError("no place") from None
            while True:
                time.sleep(0.001)
                yield 1

    place = [setting("place", [str(tmp_path / "place")])]
    found = ab(workload, {"x": 1}, {"x": 2}, settings=place, **SHORT)
    assert {block.order for block in found.blocks} <= {"AB", "BA"}
    assert [w for w in found.warnings if "no memory for both arms at once" in w]


def test_processes_stay_where_starting_them_takes_the_budget():
    @by_value
    def workload(s):
        import time

        time.sleep(1.0)
        while True:
            time.sleep(0.001)
            yield 1

    found = ab(workload, {"x": 1}, {"x": 2}, budget_s=2.0, say=False)
    assert [block.fresh for block in found.blocks] == [True] + [False] * (len(found.blocks) - 1)
    assert len(found.runs) == 2
    assert [w for w in found.warnings if "one process of each served all blocks" in w]
    # two starts of a second each use the whole budget: it is kept, and nothing is concluded
    assert found.stopped == "time budget"
    assert len(found.blocks) < 6
    assert not found.different


def test_progress_is_told_to_who_asks(monkeypatch):
    monkeypatch.setattr(ab_module, "_busy", lambda mark: "The machine was busy: all of it.")
    said = []
    found = ab(sleeping, {"quick": True}, {"quick": True}, budget_s=1.0, say=said.append)
    assert any("The machine was busy: all of it" in doubt for doubt in found.warnings)
    assert said[0].startswith("a | b: first block; about 1 s left")
    assert said[1].startswith("a | b: 1 block, ratio ")
    assert all("left" in line or "nearly done" in line for line in said)


@pytest.mark.parametrize(("others_s", "told"), [(17.0, True), (6.0, False)])
def test_that_other_programs_filled_the_cores_is_a_doubt(others_s, told):
    """This process only waits for its arms: that it never lacked a core means nothing."""

    class Mark:
        def until_now(self):
            return CpuContention(
                wall_s=10.0, n_cores=2, process_s=3.0, waited_s=0.0, others_s=others_s
            )

    said = ab_module._busy(Mark())
    assert said == ("The machine was busy: other programs used 1.7 of 2 cores." if told else "")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"a": {"nun_workers": 1}}, SettingError, "'nun_workers' is in one arm only"),
        ({"a": {"nun_workers": 1}}, SettingError, "did you mean 'num_workers'?"),
        ({"a": {"num_worker": 0}, "b": {"num_worker": 2}}, SettingError, "did you mean"),
        ({"a": ["num_workers"]}, SettingError, "a mapping from settings to values"),
        ({"a": {"num_workers": -1}}, SettingError, "num_workers=-1 is not valid"),
        ({"a": {"x": ARRAY}, "b": {"x": ARRAY}}, SettingError, "cannot be a value"),
        ({"budget_s": 0}, UsageError, "budget_s=0 is not valid"),
        ({"min_blocks": 1}, UsageError, "min_blocks=1 is not valid"),
        ({"max_blocks": 3}, UsageError, "max_blocks=3 is below min_blocks=6"),
        ({"names": "ab"}, UsageError, "two different strings"),
        ({"names": ("a", "a")}, UsageError, "two different strings"),
        ({"seed": -1}, UsageError, "seed=-1 is not valid"),
        ({"warmup": 1.5}, UsageError, "warmup=1.5 is not valid"),
        ({"step_timeout_s": 0}, UsageError, "step_timeout_s=0 is not valid"),
        ({"workload": sleeping(None)}, UsageError, "pass the function sleeping itself"),
        ({"workload": holds_a_lock}, WorkloadNotPortableError, "cannot travel"),
        ({"store": 5}, StoreError, "5 is not a file name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(monkeypatch, options, error, words):
    monkeypatch.setattr(
        "perfkit.experiment.compare.ab.prepared_process", None
    )  # nothing is prepared
    given = {"workload": sleeping, "a": {"num_workers": 0}, "b": {"num_workers": 1}} | options
    with pytest.raises(error, match=words):
        ab(given.pop("workload"), given.pop("a"), given.pop("b"), say=False, **given)


def test_what_a_store_holds_is_not_run_again(tmp_path):
    count, store = tmp_path / "count", tmp_path / "s.jsonl"

    @by_value
    def workload(s):
        import time
        from pathlib import Path

        with Path(s.count).open("a") as file:
            file.write("x")
        while True:
            time.sleep(0.002 if s.quick else 0.02)
            yield 1

    options = {"settings": [setting("count", [str(count)])], "store": store, "say": False}
    arms = {"quick": False}, {"quick": True}
    options |= {"budget_s": 120.0, "min_blocks": 4, "max_blocks": 4}
    first = ab(workload, *arms, **options)
    n = len(count.read_text())
    assert n == len(first.runs) == len(read(store)[0]) == 8
    again = ab(workload, *arms, **options)
    assert len(count.read_text()) == n
    assert again.blocks == first.blocks
    assert again.ratio == first.ratio
    turned = ab(workload, *reversed(arms), **options)
    assert len(count.read_text()) == 2 * n, "other arms, other runs"
    assert turned.high < 1


def test_whether_both_learn_the_same_is_told():
    @by_value
    def workload(s):
        from torch import nn, optim, randn

        model = nn.Linear(4, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        while True:
            loss = s.scale * model(randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss

    blocks = SHORT | {"budget_s": 120.0, "min_blocks": 3, "max_blocks": 3}
    same = ab(workload, {"scale": 1}, {"scale": 1}, **blocks).same
    assert same.same is True, same
    other = ab(workload, {"scale": 1}, {"scale": 3}, **blocks)
    assert other.same.same is False, other.same
    assert other.same.sentence in " ".join(show.text(other).split())


def test_a_comparison_of_results_that_breaks_loses_no_times(monkeypatch):
    def broken(*_):
        raise RuntimeError("never seen")

    monkeypatch.setattr("perfkit.experiment.compare.ab.same_result", broken)
    found = ab(sleeping, {"quick": False}, {"quick": True}, **SHORT)
    assert found.same is None
    assert found.ratio > 1
    assert [w for w in found.warnings if "RuntimeError: never seen" in w]


def test_figures_have_their_words():

    found = ab(sleeping, {"quick": False}, {"quick": True}, **SHORT)
    picture = show.figure(found)
    (axes,) = picture.axes
    assert len(axes.lines[0].get_ydata()) == len(found.blocks)
    assert found.sentence in show.alt_text(found)
