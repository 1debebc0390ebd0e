"""Sessions with real child processes and workloads of a few milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import torch

from perfkit.base.errors import SettingError, UsageError, WorkloadNotPortableError
from perfkit.experiment import (
    Points,
    RunFinished,
    RunStarted,
    Session,
    Setting,
    StateChanged,
    ratio,
    setting,
)

pytestmark = pytest.mark.slow


def ticking(s):
    import time

    while True:
        time.sleep(0.002)
        yield 4


def by_value(function):
    """As from a notebook: not to be imported by name in the child."""
    function.__module__ = "__main__"
    return function


ticking = by_value(ticking)


@pytest.mark.serial
def test_a_run_from_start_to_result(session):
    events = []
    one = session(ticking, [setting("width", [1, 2])], seconds=3.0, on_event=events.append)
    result = one.run(width=2)
    assert result.state == "done", result
    assert dict(result.values) == {"width": 2}
    assert one.runs == (result,)
    assert one.state == "done"
    assert result.n_quiet > 50
    assert result.n_counted == result.n_quiet
    assert not [w for w in result.warnings if "quiet" in w]
    assert result.step.minimum >= 2.0
    assert result.samples_per_s == pytest.approx(4e3 / result.counted_ms().mean())
    assert result.wait_share == 0.0
    assert result.peak_bytes > 2**20
    assert "resident set" in result.peak_kind
    assert 2.5 < result.running_s < 10.0
    assert result.provenance.seed == 0
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    states = [e.state for e in events if isinstance(e, StateChanged)]
    assert states == ["starting", "warm-up", "running", "done"]
    points = [e for e in events if isinstance(e, Points)]
    assert len(points[0].index) == 1, "the first step shows at once"
    index = np.concatenate([p.index for p in points])
    assert index.tolist() == list(range(result.n_steps))
    assert np.array_equal(np.concatenate([p.step_ms for p in points]), result.step_ms)


def test_a_workload_that_ends_early_is_fine(session):
    def three(s):
        yield from range(3)

    result = session(three).run()
    assert (result.state, result.n_steps) == ("done", 3)
    assert result.step is not None
    assert len(result.warnings) >= 2, "few steps, none of them quiet"


@pytest.mark.serial
def test_data_wait_and_samples_come_from_the_loader(session):
    def loading(s):
        import time

        import torch

        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, i):
                time.sleep(0.002)
                return {"image": torch.zeros(3), "label": i}

        time.sleep(0.2)  # building
        for _batch in torch.utils.data.DataLoader(Slow(), **s.loader_kwargs()):
            time.sleep(0.002)
            yield

    result = session(loading, ["batch_size"], seconds=5.0).run(batch_size=4)
    assert result.n_steps == 16
    assert 0.6 < result.wait_share < 0.95  # 8 of 10 ms
    assert result.samples_per_s == pytest.approx(
        4 * result.n_counted / result.counted_ms().sum() * 1e3
    )
    assert result.setup_s >= 0.2
    assert result.step_ms[0] < 150.0, "building is not in the first step"


def test_loader_workers_and_classes_of_the_notebook(session):
    class Batch(NamedTuple):
        x: torch.Tensor

    Batch.__module__ = "__main__"
    globals_ = {"__name__": "__main__", "Batch": Batch}
    exec(
        "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 10_000\n"
        "    def __getitem__(self, i): return Batch(torch.full((3,), float(i)))\n"
        "def collate(items): return Batch(torch.stack([item.x for item in items]))\n"
        "def workload(s):\n"
        "    settings = s.loader_kwargs()\n"
        "    loader = torch.utils.data.DataLoader(Data(), collate_fn=collate, **settings)\n"
        "    for batch in loader:\n"
        "        assert type(batch) is Batch\n"
        "        yield {'loss': batch.x.sum()}\n",
        globals_,
    )
    one = session(globals_["workload"], ["num_workers", "batch_size"], seconds=3.0)
    result = one.run(num_workers=2, batch_size=5)
    assert result.state == "done", result.message
    assert result.samples_per_s > 0
    assert result.loss[:2].tolist() == [30.0, 105.0]
    assert result.workers_bytes > 2**20


def test_losses_and_samples_as_a_mapping(session):
    def telling(s):
        for i in range(8):
            yield {"samples": 3, "loss": i / 2}

    result = session(telling).run()
    assert result.loss.tolist() == [i / 2 for i in range(8)]
    assert result.samples_per_s is not None


def test_a_float_is_a_loss_and_no_number_of_samples(session):
    def telling(s):
        yield from (0.5, 0.25, 0.125)

    result = session(telling).run()
    assert result.loss.tolist() == [0.5, 0.25, 0.125]
    assert result.samples_per_s is None


@pytest.mark.parametrize(
    "yielded", [10**30, {"loss": 10**400}, {"samples": 10**30, "loss": "x"}, -1, "x", [1, 2], 1j]
)
def test_what_a_step_yields_may_be_anything(session, yielded):
    def telling(s):
        for _ in range(8):
            yield yielded

    result = session(telling).run()
    assert (result.state, result.n_steps, result.samples_per_s) == ("done", 8, None)


def test_runs_are_seeded_alike(session):
    def random_losses(s):
        import random

        import numpy as np
        import torch

        for _ in range(4):
            yield {"loss": random.random() + np.random.random() + torch.rand(()).item()}

    one = session(random_losses, seed=3)
    first, second = one.run(), one.run()
    assert first.loss.tolist() == second.loss.tolist()
    assert len(set(first.loss.tolist())) == 4


def test_the_child_sees_the_kernels_directory_environment_and_values(
    session, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("X_FOR_THE_CHILD", "there")

    def telling(s):
        import os

        import torch

        where = os.path.realpath(os.curdir)
        print(where, os.environ["X_FOR_THE_CHILD"], torch.get_num_threads(), s.threads)
        yield

    result = session(telling, ["threads"]).run(threads=1)
    assert result.output == f"{tmp_path} there 1 1\n"


def test_a_setting_that_needs_a_fresh_program(session):
    one = Setting(
        "hash_seed", "hash seed", ("1", "2"), "1", "menu", "process",
        environment=lambda value: {"PYTHONHASHSEED": value},
    )  # fmt: skip

    def hashing(s):
        print(hash("a string"))
        yield

    result = session(hashing, [one], start_timeout_s=120.0).run(hash_seed="2")
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('a string'))"],
        env={**os.environ, "PYTHONHASHSEED": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.output == expected.stdout
    assert result.prepared_s == 0.0, "each such run waits for its own program"


def test_settings_are_checked_before_a_process_starts(session):
    events = []
    one = session(ticking, ["num_workers"], on_event=events.append)
    for values in ({"num_workers": -1}, {"num_workers": 10_000}, {"nun_workers": 1}):
        with pytest.raises(SettingError):
            one.start(**values)
    assert events == []
    assert one.state == "idle"
    assert one.runs == ()


@pytest.mark.parametrize(
    "options",
    [
        {"seconds": 0},
        {"seconds": "12"},
        {"seconds": float("nan")},
        {"seconds": True},
        {"step_timeout_s": -1},
        {"warmup": -1},
        {"warmup": 1.5},
        {"seed": None},
        {"seed": 2**70},
        {"seconds": 10**400},
        {"seconds": -1.0},
        {"seconds": b"5"},
        {"seconds": torch.ones(2)},  # float() of it raises a RuntimeError
        {"seed": torch.ones((), dtype=torch.int64, device="meta")},
    ],
)
def test_absurd_options_are_refused(options):
    with pytest.raises(UsageError, match="is not valid: it takes"):
        Session(ticking, **options)


class _Half:
    """Half made: what its ``repr`` needs is not there yet."""

    def __repr__(self):
        return f"<{self.name}>"


def test_what_cannot_be_shown_is_named_by_its_type():
    with pytest.raises(UsageError, match=r"^seconds=a _Half is not valid"):
        Session(ticking, seconds=_Half())
    with pytest.raises(SettingError, match=r"^a setting cannot be called a _Half"):
        setting(_Half(), [1])
    with pytest.raises(UsageError, match=r"takes the settings, not a _Half$"):
        Session(_Half())


@pytest.mark.parametrize("given", [{"on_event": 5}, {"settings": None}, {"settings": 5}])
def test_what_is_no_function_or_list_is_refused_at_once(given):
    with pytest.raises(UsageError, match=r"function|must be a list"):
        Session(ticking, **given)


def test_an_array_is_no_value_of_a_setting(session):
    for values in ([np.arange(3)] * 2, [np.arange(3), 1]):
        with pytest.raises(SettingError, match=r"^x: array\(\[0, 1, 2\]\) cannot be a value"):
            setting("x", values)
    one = session(ticking, [setting("a", [1, 2])])
    for value in (np.arange(2), torch.arange(2), np.array([1]), torch.eye(2).to_sparse()):
        with pytest.raises(SettingError, match=r"^a=.*is not valid: it takes one of 1, 2;"):
            one.start(a=value)
    assert one.runs == ()


def test_the_child_computes_with_the_kernels_threads(session):
    def telling(s):
        import torch

        print(torch.get_num_threads())
        yield

    telling = by_value(telling)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert session(telling).run().output == "3\n"
        assert session(telling, ["threads"]).run(threads=2).output == "2\n"
    finally:
        torch.set_num_threads(before)


def test_the_child_runs_the_kernels_own_perfkit(tmp_path):
    """The first place on the path holds another one, which came there after the import."""
    other = tmp_path / "perfkit"
    other.mkdir()
    (other / "__init__.py").write_text("raise RuntimeError('the other perfkit')")
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    program = f"""
import sys
import perfkit
from perfkit.experiment import Session
sys.path.insert(0, {str(tmp_path)!r})
def workload(s):
    import beside, perfkit
    print(beside.WORD, perfkit.__file__)
    yield
with Session(workload, seconds=0.2) as session:
    result = session.run()
print(result.state, result.message, result.output, perfkit.__file__, sep="|")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    state, message, said, mine = ran.stdout.strip().split("|")
    assert (state, message) == ("done", "")
    assert said == f"found {mine}\n"


def test_a_workload_that_cannot_travel_is_refused_when_the_session_is_made():
    lock = threading.Lock()

    def locked(s):
        with lock:
            yield

    with pytest.raises(WorkloadNotPortableError, match="closure variable 'lock'"):
        Session(locked)


@pytest.mark.serial
def test_stop_takes_less_than_a_second_and_keeps_what_was_measured(session):
    one = session(ticking, seconds=60.0)
    one.start()
    wait_for(lambda: one.state == "running")
    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < 1.0
    result = one.wait()
    assert (result.state, result.message) == ("stopped", "")
    assert result.ok
    assert result.n_steps > 3


@pytest.mark.serial
def test_a_long_step_is_cut_off_by_stop(session):
    def long(s):
        import time

        while True:
            yield
            time.sleep(60)

    one = session(long, seconds=60.0)
    one.start()
    wait_for(lambda: one.state == "warm-up")
    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < 1.5
    assert one.wait().state == "stopped"


def test_the_next_start_stops_the_run_before(session):
    events = []
    one = session(ticking, seconds=60.0, on_event=events.append)
    assert one.start() == 1
    wait_for(lambda: one.state == "running")
    assert one.start() == 2
    one.stop()
    assert [r.state for r in one.runs] == ["stopped", "stopped"]
    kinds = [type(e) for e in events if not isinstance(e, Points | StateChanged)]
    assert kinds == [RunStarted, RunFinished] * 2


def test_many_quick_toggles_leave_one_run(session):
    one = session(ticking, [setting("width", [1, 2])], seconds=60.0)
    for i in range(6):
        one.start(width=1 + i % 2)
    wait_for(lambda: one.state == "running")
    one.stop()
    assert len(one.runs) == 6
    assert {r.state for r in one.runs} == {"stopped"}


@pytest.mark.serial
def test_paused_time_does_not_count(session):
    one = session(ticking, seconds=1.0)
    one.start()
    wait_for(lambda: one.state == "running")
    one.pause()
    wait_for(lambda: one.state == "paused")
    child = one._run._child.pid
    time.sleep(0.3)
    assert psutil.Process(child).status() == psutil.STATUS_STOPPED
    n_before = one._run._curve.n
    time.sleep(1.5)
    assert one.state == "paused"
    assert one._run._curve.n <= n_before + 500
    one.resume()
    result = one.wait(20)
    assert result.state == "done"
    assert result.step_ms.max() < 1000.0, "the pause is in no step"
    assert result.running_s < 1.8


def test_stopping_a_paused_run(session):
    one = session(ticking, seconds=60.0)
    one.start()
    wait_for(lambda: one.state == "running")
    one.pause()
    wait_for(lambda: one.state == "paused")
    one.stop()
    assert one.wait().state == "stopped"


def test_an_event_callback_that_raises_is_shown_and_raised_once(session, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))

    def bad(event):
        if isinstance(event, RunFinished):
            raise ZeroDivisionError("in the callback")

    one = session(ticking, on_event=bad)
    one.start()
    with pytest.raises(ZeroDivisionError):
        one.wait()
    assert [str(e) for e in shown] == ["in the callback"]
    assert one.wait().state == "done", "the run itself went well"


def test_a_callback_may_start_the_next_run_at_the_end_of_one(session):
    finished = threading.Event()

    def chain(event):
        if isinstance(event, RunFinished):
            if event.result.run_id < 3:
                one.start()
            else:
                finished.set()

    one = session(ticking, seconds=0.1, on_event=chain)
    one.start()
    assert finished.wait(30)
    assert [r.run_id for r in one.runs] == [1, 2, 3]


def test_a_callback_cannot_start_a_run_in_the_middle(session):
    caught = []

    def early(event):
        if isinstance(event, Points) and not caught:
            try:
                one.start()
            except UsageError as error:
                caught.append(str(error))

    one = session(ticking, on_event=early)
    assert one.run().state == "done"
    assert caught == ["a callback can start the next run only at RunFinished"]


def test_waiting_has_a_limit_and_needs_a_run(session):
    one = session(ticking, seconds=60.0)
    with pytest.raises(UsageError, match="no run was started"):
        one.wait()
    one.start()
    with pytest.raises(TimeoutError):
        one.wait(0.1)


def test_a_closed_session_refuses_and_closes_twice(session):
    one = session(ticking, seconds=60.0)
    one.start()
    one.close()
    one.close()
    assert one.state == "closed"
    assert [r.state for r in one.runs] == ["stopped"]
    with pytest.raises(UsageError, match="closed"):
        one.start()


def test_two_sessions_at_once_disturb_each_other_and_say_so(session):
    one, other = session(ticking, seconds=1.0), session(ticking, seconds=0.5)
    one.start()
    other.start()
    for result in (one.wait(30), other.wait(30)):
        assert result.state == "done"
        assert any("in parallel" in w for w in result.warnings)


def test_settings_without_effect_are_told_in_the_result(session):
    settings = ["num_workers", "persistent_workers"]
    result = session(ticking, settings).run(persistent_workers=True)
    assert any("persistent_workers has no effect" in w for w in result.warnings)


@pytest.mark.serial
def test_the_ratio_of_two_runs(session):
    def sleeping(s):
        import time

        while True:
            time.sleep(s.ms / 1e3)
            yield

    one = session(sleeping, [setting("ms", [2, 8])], seconds=0.6)
    found = ratio(one.run(ms=8), one.run(ms=2))
    assert found.low > 2.0


def test_a_prepared_session_is_ready(session):
    one = session(ticking)
    assert one.ready(60.0)
    result = one.run()
    assert result.first_point_s < 5.0
    if sys.platform == "linux":
        assert 0 < result.prepared_s <= result.first_point_s


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_a_fork_of_the_kernel_leaves_the_session_alone(session):
    one = session(ticking, seconds=60.0)
    one.start()
    wait_for(lambda: one.state == "running")
    real = one._owner_pid
    try:
        one._owner_pid = os.getpid() + 1  # what a fork sees
        one.close()
    finally:
        one._owner_pid = real
    assert one.state == "running"


@pytest.mark.serial
def test_a_run_that_parks_stands_between_two_steps(session):
    seen = []
    one = session(ticking, seconds=30.0, on_event=seen.append, draws=False)
    one.start()
    wait_for(lambda: one.state == "running")
    one.park()
    wait_for(lambda: one.state == "paused")
    before = [e for e in seen if isinstance(e, Points)]
    time.sleep(0.5)
    assert [e for e in seen if isinstance(e, Points)] == before, "all was told when it stood still"
    one.resume()
    wait_for(lambda: one.state == "running")
    time.sleep(0.2)
    one.stop()
    result = one.wait()
    assert result.n_steps > before[-1].index[-1]
    assert result.index.tolist() == list(range(result.n_steps)), "no step is left out"
    assert result.n_counted == result.n_steps - 3
    assert result.step_ms[3:].max() < 450.0, "the pause is in no step"


def test_two_runs_of_which_one_stands_still_do_not_disturb_each_other(session):
    first, second = (session(ticking, seconds=30.0) for _ in range(2))
    first.start()
    wait_for(lambda: first.state == "running")
    first.park()
    wait_for(lambda: first.state == "paused")
    second.start()
    wait_for(lambda: second.state == "running")
    second.park()
    wait_for(lambda: second.state == "paused")
    first.resume()
    wait_for(lambda: first.state == "running")
    second.stop()
    first.stop()
    for one in (first, second):
        assert not [w for w in one.wait().warnings if "parallel" in w]
    both = session(ticking, seconds=30.0)
    both.start()
    wait_for(lambda: both.state == "running")
    second.start()
    wait_for(lambda: second.state == "running")
    for one in (both, second):
        one.stop()
        assert [w for w in one.wait().warnings if "parallel" in w]


@pytest.mark.serial
def test_a_run_parks_where_nothing_is_prepared(session, monkeypatch):
    from perfkit.experiment.process import _process

    monkeypatch.setattr(_process, "can_prepare", lambda: False)
    seen = []
    one = session(ticking, seconds=30.0, on_event=seen.append, draws=False)
    one.start()
    wait_for(lambda: one.state == "running")
    one.park()
    wait_for(lambda: one.state == "paused")
    before = len(seen)
    time.sleep(0.3)
    assert len(seen) == before
    one.resume()
    wait_for(lambda: len(seen) > before + 1)
    one.stop()
    result = one.wait()
    assert result.index.tolist() == list(range(result.n_steps))
    assert result.step_ms[3:].max() < 250.0, "the pause is in no step"
