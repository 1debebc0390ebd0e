"""Rounds of a sweep on an executor's workers: each whole on one, a lost one repeated once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from perfkit.base.errors import WorkloadError
from perfkit.experiment.compare import _elsewhere
from perfkit.experiment.compare._elsewhere import RoundRuns
from perfkit.experiment.compare.sweep import Sweep, sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_SHORT: dict[str, Any] = {"seconds": 0.1, "say": False}


def _sleeping(s: Any) -> Iterator[int]:
    import time

    while True:
        time.sleep(0.001 * s.ms)
        yield 2


_sleeping.__module__ = "__main__"  # as from a notebook: not to be imported by name in a child


class _Here(Executor):
    """Runs at once, in this process; loses what it is told to lose, and pretends machines."""

    def __init__(self, lose: tuple[int, ...] = (), machines: int = 1) -> None:
        self.lose, self.machines, self.n = lose, machines, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.n += 1
        if self.n in self.lose:
            future.set_exception(OSError("the worker is gone"))
            return future
        found: RoundRuns = cloudpickle.loads(fn(*args, **kwargs))
        machine = f"machine {found.number % self.machines}"
        runs = tuple(
            (i, replace(run, provenance=replace(run.provenance, machine=machine)), took_s)
            for i, run, took_s in found.runs
        )
        future.set_result(cloudpickle.dumps(replace(found, runs=runs)))
        return future


def _swept(executor: Executor, **more: Any) -> Sweep:
    return sweep(_sleeping, {"ms": [30, 1]}, executor=executor, **{"rounds": 2, **_SHORT, **more})


def test_rounds_run_in_a_pool_of_processes_and_the_fastest_is_found() -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with ProcessPoolExecutor(1) as pool:
        found = _swept(pool, rounds=3)
        pids = {pool.submit(os.getpid).result()}
    assert os.getpid() not in pids
    assert found.best is not None
    assert found.best.values == {"ms": 1}
    assert [sorted(point.runs) for point in found.points] == [[0, 1, 2], [0, 1, 2]]
    slower = found.ratio(found.points[0])
    assert slower is not None
    assert slower.low > 2
    assert not any("beside" in w or "machines" in w for w in found.warnings)
    left = {p.pid for p in psutil.Process().children(recursive=True)} - before
    assert not left & pids


def test_a_lost_round_is_repeated_once() -> None:
    here = _Here(lose=(1,))
    found = _swept(here)
    assert here.n == 3
    assert [len(point.runs) for point in found.points] == [2, 2]
    assert not found.warnings


def test_a_round_that_is_lost_twice_is_told() -> None:
    here = _Here(lose=(1, 3))  # the first round, and its repetition
    found = _swept(here)
    assert here.n == 3
    assert [sorted(point.runs) for point in found.points] == [[1], [1]]
    (told,) = found.warnings
    assert told == "round 1 was lost with its worker (OSError: the worker is gone)"


def test_an_executor_that_is_shut_down_loses_its_rounds_and_no_more() -> None:
    pool = ProcessPoolExecutor(1)
    pool.shutdown()
    found = _swept(pool)
    assert found.best is None
    assert sum("was lost" in warning for warning in found.warnings) == 2


def test_a_round_that_somebody_cancels_is_lost_and_the_others_are_not() -> None:
    """CancelledError came out of the sweep, and what had run was gone."""

    class Cancels(_Here):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if self.n in (0, 2):  # the first round, and its repetition
                self.n += 1
                future: Future[Any] = Future()
                future.cancel()
                future.set_running_or_notify_cancel()
                return future
            return super().submit(fn, *args, **kwargs)

    found = _swept(Cancels())
    assert [sorted(point.runs) for point in found.points] == [[1], [1]]
    (told,) = found.warnings
    assert told == "round 1 was cancelled"


class _Endless:
    """A session whose runs end when they are stopped."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.stopped = threading.Event()

    def __enter__(self) -> _Endless:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, **values: Any) -> None:
        assert self.stopped.wait(10)

    def stop(self) -> None:
        self.stopped.set()


def _round(folder: Path) -> bytes:
    points = ((0, {}), (1, {}))
    order: bytes = cloudpickle.dumps(
        _elsewhere.Round(0, None, (), points, {}, os.getppid(), folder)  # type: ignore[arg-type]
    )
    return order


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_elsewhere, "Session", _Endless)
    monkeypatch.setattr(_elsewhere, "_LOOK_EVERY_S", 0.001)


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("runs_already", [False, True])
def test_a_round_in_a_pool_ends_with_its_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_already: bool
) -> None:
    """After Ctrl-C a pool went on with what it had, and the one after."""
    folder = tmp_path / "waits"
    if runs_already:
        folder.mkdir()

    def ends_meanwhile(session: _Endless, **values: Any) -> None:
        folder.rmdir()
        assert session.stopped.wait(10)

    monkeypatch.setattr(_Endless, "run", ends_meanwhile)
    with pytest.raises(WorkloadError, match="the sweep has ended before this round"):
        _elsewhere.run_round(_round(folder))


@pytest.mark.usefixtures("endless")
def test_a_round_in_a_pool_ends_when_the_sweeps_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill -9 of the notebook its pool went on measuring."""
    order, parent = _round(tmp_path), os.getppid()
    ppids = iter([parent] * 4)
    monkeypatch.setattr(os, "getppid", lambda: next(ppids, 1))
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(_Endless, "run", lambda self: _until(lambda: codes))
    _elsewhere.run_round(order)
    assert set(codes) == {1}


def _until(said: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 10
    while not said() and time.monotonic() < deadline_s:
        time.sleep(0.001)


def test_machines_are_told_and_points_are_compared_within_a_round() -> None:
    found = _swept(_Here(machines=2))
    assert any("ran on 2 machines" in warning for warning in found.warnings)
    for number in range(2):
        machines = {point.runs[number].provenance.machine for point in found.points}
        assert machines == {f"machine {number}"}


def test_rounds_that_ran_beside_each_other_are_counted() -> None:
    from perfkit.experiment.compare._elsewhere import overlaps

    made: list[RoundRuns] = []

    class Keeps(_Here):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(fn, *args, **kwargs)
            made.append(cloudpickle.loads(future.result()))
            return future

    _swept(Keeps())
    assert overlaps(made) == 0
    first, second = made
    beside = replace(second, began_s=first.began_s, ended_s=first.ended_s)
    assert overlaps([first, beside]) == 2
    assert overlaps([first, replace(beside, host="another")]) == 0
    after = replace(second, began_s=first.ended_s, ended_s=first.ended_s + 1)
    assert overlaps([first, after]) == 0


def test_what_the_store_has_is_not_run_again(tmp_path: Path) -> None:
    store = tmp_path / "runs.jsonl"
    first = _Here()
    _swept(first, store=store)
    again = _Here()
    found = _swept(again, store=store, rounds=3)
    assert (first.n, again.n) == (2, 1)
    assert found.n_resumed == 4
    assert [sorted(point.runs) for point in found.points] == [[0, 1, 2], [0, 1, 2]]


def test_on_dask_it_runs_the_same() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster, distributed.Client(cluster) as client:  # fmt: skip
        found = _swept(client.get_executor())
    assert found.best is not None
    assert found.best.values == {"ms": 1}
