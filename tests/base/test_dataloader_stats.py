"""What DataLoader workers do with their time: from made processes, and once from a real loader."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from perfkit.base.machine import dataloader_stats
from perfkit.base.machine.dataloader_stats import (
    DataLoaderSampler,
    DataLoaderStats,
    ProcessUse,
)
from perfkit.base.plain import fields
from perfkit.base.torch_compat import LOADER_WORKER_NAME

_HIDDEN = psutil.AccessDenied()


class Made:
    """Made processes, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock_s = 100.0
        self.main_s = 0.0
        self.waited_s: float | None = 0.5
        self.pids: list[int] = []
        self.processes: dict[int, dict[str, Any]] = {}
        self.busy_s: float | None = 0.0
        self.sampler = DataLoaderSampler(
            lambda: self.clock_s, spent=lambda: self.main_s, started=lambda: self.pids
        )
        monkeypatch.setattr(psutil, "Process", self.process)
        monkeypatch.setattr(dataloader_stats, "cores_busy_s", lambda: (self.busy_s, None))
        monkeypatch.setattr(dataloader_stats, "run_delay_s", lambda task: self.waited_s)

    def process(self, pid: int = 0) -> Any:
        if pid not in self.processes:
            raise psutil.NoSuchProcess(pid)
        made = self.processes[pid]

        def io_counters() -> Any:
            if isinstance(made["io"], Exception):
                raise made["io"]
            return SimpleNamespace(read_chars=made["io"][0], read_bytes=made["io"][1])

        return SimpleNamespace(
            name=lambda: made["name"],
            cpu_times=lambda: SimpleNamespace(user=made["user"], system=made["system"]),
            create_time=lambda: made["began"],
            io_counters=io_counters,
        )

    def set_worker(
        self, pid: int, user_s: float, system_s: float = 0.0, began: float = 7.0,
        name: str = LOADER_WORKER_NAME, io: Any = (0, 0),
    ) -> None:  # fmt: skip
        self.pids = [*dict.fromkeys([*self.pids, pid])]
        self.processes[pid] = {
            "name": name, "user": user_s, "system": system_s, "began": began, "io": io,
        }  # fmt: skip

    def after(self, seconds: float, *, now: bool = False) -> None:
        self.clock_s += seconds
        self.sampler.look(now=now)

    @property
    def stats(self) -> DataLoaderStats:
        stats = self.sampler.result()
        assert stats is not None
        return stats


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_a_worker_is_not_seen_while_the_loop_stands_still_for_perfkit(made: Made) -> None:
    """It was "blocked for 98 % of the time": the profiler's start took longer than the steps."""
    made.set_worker(41, 1.0)
    made.after(0.0)
    made.clock_s += 5.0
    made.sampler.skip(5.0)
    made.set_worker(41, 2.5)
    made.after(2.0)
    (worker,) = made.stats.workers
    assert (worker.seen_s, worker.cpu_s) == (2.0, 1.5)
    assert made.stats.wall_s == 7.0  # of the machine's cores


def test_two_looks_at_a_worker_give_what_it_did_between_them(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataloader_stats._host, "usable_cpus", lambda: 4)
    made.set_worker(41, 1.0, 0.5, io=(10, 5))
    made.set_worker(42, 3.0, name="python")  # no worker
    made.set_worker(45, 1.0)  # seen once only
    made.after(0.0)
    made.processes.pop(45)
    made.waited_s, made.busy_s = 1.25, 6.0
    made.set_worker(41, 4.0, 1.0, io=(1010, 905))
    made.after(4.0)
    assert made.stats.workers == (ProcessUse(4.0, 3.5, 0.75, 900),)
    assert made.stats.spare_cores == 2.5
    assert made.stats.mean(lambda worker: worker.cpu_s) == pytest.approx(3.5 / 4)
    assert made.stats.doubts == ("1 of 2 workers lived too short to be seen",)


def test_it_looks_at_most_once_a_second(made: Made) -> None:
    made.set_worker(41, 0.0)
    made.after(0.0)
    made.set_worker(41, 9.0)
    made.after(0.9)
    assert made.sampler.result() is None
    made.after(0.2)
    assert made.stats.workers[0].cpu_s == 9.0


@pytest.mark.parametrize(("look_s", "rest_s"), [(0.004, 2.0), (1.0, 5.0)])
def test_looks_take_a_five_hundredth_of_a_run_and_come_every_five_seconds(
    made: Made, look_s: float, rest_s: float
) -> None:
    made.sampler._spent = itertools.count(0.0, look_s).__next__
    made.set_worker(41, 0.0)
    made.after(0.0)
    made.after(1.0)
    for seconds, looks in ((rest_s - 0.1, False), (0.2, True)):
        made.after(seconds)
        assert (made.sampler._machine[-1][0] == made.clock_s) is looks


@pytest.mark.parametrize(("seconds", "is_told"), [(0.4, False), (0.6, True)])
def test_half_a_second_is_the_least_that_says_something(
    made: Made, seconds: float, *, is_told: bool
) -> None:
    made.set_worker(41, 0.0)
    made.after(0.0)
    made.after(seconds, now=True)
    assert (made.sampler.result() is not None) is is_told


def test_the_time_without_workers_does_not_count(made: Made) -> None:
    made.after(0.0)  # set-up
    made.after(50.0)
    made.set_worker(41, 0.0)
    made.after(50.0)
    made.set_worker(41, 1.5)
    made.after(2.0)
    made.pids.clear()  # the epoch is over; an evaluation without a loader
    made.after(100.0)
    assert (made.stats.wall_s, made.stats.workers[0].seen_s) == (2.0, 2.0)


def test_a_process_id_that_is_used_again_is_another_worker(made: Made) -> None:
    for began, user_s in ((7.0, 0.0), (7.0, 3.0), (900.0, 1.0), (900.0, 2.0)):
        made.set_worker(41, user_s, began=began)
        made.after(2.0)
    assert [worker.cpu_s for worker in made.stats.workers] == [3.0, 1.0]


def test_what_may_not_be_read_is_unknown_and_said(made: Made) -> None:
    made.set_worker(41, 0.0, io=_HIDDEN)
    made.after(0.0)
    made.after(2.0)
    stats = made.stats
    assert [worker.disk_bytes for worker in stats.workers] == [None]
    assert stats.mean(lambda worker: worker.disk_bytes) is None
    assert stats.doubts == ("how much the workers read from the disk may not be read here",)
    assert fields(stats)["workers"][0]["disk_bytes"] is None


def test_a_look_that_fails_is_switched_off_and_raises_nothing(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataloader_stats, "cores_busy_s", lambda: 1 / 0)
    made.set_worker(41, 0.0)
    made.after(0.0)
    assert made.sampler.instrument.failure is not None
    made.after(5.0)
    assert made.sampler.result() is None


def test_workers_are_among_the_processes_of_multiprocessing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = types.ModuleType("multiprocessing.process")
    monkeypatch.setitem(sys.modules, "multiprocessing.process", process)
    assert dataloader_stats._started_processes() == []  # it does not tell
    process._children = [SimpleNamespace(pid=5), SimpleNamespace(pid=None)]  # type: ignore[attr-defined]
    assert dataloader_stats._started_processes() == [5]
    monkeypatch.delitem(sys.modules, "multiprocessing.process")
    assert dataloader_stats._started_processes() == []


REAL = """
import time, torch
from torch.utils.data import DataLoader, Dataset
from perfkit.base.machine.dataloader_stats import DataLoaderSampler

class Busy(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, i):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return torch.zeros(2)

if __name__ == "__main__":
    looks = DataLoaderSampler()
    loader = DataLoader(Busy(), batch_size=2, num_workers=2, multiprocessing_context={context!r})
    # until both have computed for 0.2 s: no wall time decides
    for n, batch in enumerate(loader):
        looks.look(now=n == 0)
        use = looks.result()
        if use and len(use.workers) == 2 and min(w.cpu_s for w in use.workers) >= 0.2:
            break
    print(looks.instrument.failure, len(use.workers), use.workers[0].disk_bytes is None)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers have a name on Linux")
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_it_sees_real_workers(tmp_path: Path, context: str) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "real.py"
    script.write_text(REAL.replace("{context!r}", repr(context)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.stdout.splitlines() == ["None 2 False"], done.stderr


def test_the_mean_is_over_the_time_that_workers_were_seen() -> None:
    one = ProcessUse(10.0, 5.0, 0.0, None)
    two = ProcessUse(2.0, 1.0, 0.0, None)
    use = DataLoaderStats(10.0, 4, (one, two))
    assert use.mean(lambda worker: worker.cpu_s) == pytest.approx(0.5)
    assert DataLoaderStats(10.0, 4, ()).mean(lambda worker: worker.cpu_s) is None
