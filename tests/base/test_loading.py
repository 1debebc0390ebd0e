"""What DataLoader workers do with their time: from a made /proc, and once from a real loader."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from perfkit.base.machine import loading
from perfkit.base.machine.loading import LoaderLooks, LoaderUse, ProcessUse
from perfkit.base.plain import fields
from perfkit.base.torch_compat import LOADER_WORKER_NAME

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

TICKS = 100  # a second of CPU time, in the kernel's ticks


class Made:
    """A made /proc with this thread and its children, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock_s = 100.0
        self.reads = 0
        self.waited_s = 0.5
        self.started = True  # some process of Python's multiprocessing
        self.looks = LoaderLooks(
            self.now, root, spent=lambda: 0.0, may_have_workers=lambda: self.started
        )
        self.thread = f"proc/self/task/{self.looks._thread_id}"
        self.set_main(run_s=0.0, children=())

    def now(self) -> float:
        return self.clock_s

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def set_main(self, *, run_s: float, children: tuple[int, ...], disk: int = 0) -> None:
        self.write(f"{self.thread}/stat", stat("python", 0, round(run_s * TICKS) // 5, 0, 5))
        self.write(
            f"{self.thread}/schedstat", f"{round(run_s * 1e9)} {round(self.waited_s * 1e9)} 3\n"
        )
        self.write(f"{self.thread}/children", " ".join(map(str, children)))
        self.write("proc/self/io", f"rchar: 0\nread_bytes: {disk}\n")

    def set_worker(
        self, pid: int, *, user_s: float, system_s: float = 0.0, faults: int = 0,
        started: int = 7, name: str = LOADER_WORKER_NAME, io: str = "rchar: 0\nread_bytes: 0\n",
    ) -> None:  # fmt: skip
        self.write(f"proc/{pid}/comm", f"{name}\n")
        self.write(
            f"proc/{pid}/stat",
            stat(name, round(user_s * TICKS), round(system_s * TICKS), faults, started),
        )
        self.write(f"proc/{pid}/schedstat", f"0 {round(self.waited_s * 1e9)} 1\n")
        self.write(f"proc/{pid}/io", io)

    def after(self, seconds: float) -> None:
        self.clock_s += seconds
        self.looks.look()


def stat(name: str, user: int, system: int, faults: int, started: int) -> str:
    fields = ["0"] * 45
    fields[0] = "S"
    fields[7], fields[11], fields[12], fields[19] = map(str, (faults, user, system, started))
    return f"9 ({name} (x)) {' '.join(fields)}\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(loading, "cores_busy_s", lambda: (0.0, None))
    monkeypatch.setattr(loading.os, "sysconf", lambda name: {"SC_CLK_TCK": TICKS}.get(name, 4096))
    return Made(tmp_path)


def test_a_worker_is_not_seen_while_the_loop_stands_still_for_perfkit(made: Made):
    """It was "blocked for 98 % of the time": the profiler's start took longer than the steps."""
    made.set_main(run_s=1.0, children=(41,))
    made.set_worker(41, user_s=1.0)
    made.after(0.0)
    made.clock_s += 5.0
    made.looks.skip(5.0)
    made.set_worker(41, user_s=2.5)
    made.after(2.0)
    use = made.looks.result()
    assert use is not None
    (worker,) = use.workers
    assert (worker.seen_s, worker.cpu_s) == (2.0, 1.5)
    assert use.main is not None
    assert use.main.seen_s == 2.0
    assert use.wall_s == 7.0  # of the machine's cores


def test_two_looks_at_a_worker_give_what_it_did_between_them(
    made: Made, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading._host, "usable_cpus", lambda: 4)
    monkeypatch.setattr(loading, "cores_busy_s", iter([(10.0, None), (16.0, None)]).__next__)
    made.write("proc/pressure/io", "some avg10=0.00 total=1500000\n")
    made.set_main(run_s=1.0, children=(41, 42))
    made.set_worker(41, user_s=1.0, system_s=0.5, io="rchar: 10\nread_bytes: 5\n")
    made.set_worker(42, user_s=3.0, name="python")  # no worker: torch's fork server …
    made.write("proc/42/task/42/children", "45")  # … whose child is one, seen once only
    made.set_worker(45, user_s=1.0, started=8)
    made.after(0.0)
    assert (45, "8") in made.looks._workers
    made.waited_s = 1.25
    made.write("proc/pressure/io", "some avg10=0.00 total=3500000\n")
    made.set_main(run_s=2.5, children=(41,), disk=300)
    made.set_worker(
        41, user_s=4.0, system_s=1.0, faults=2, io="rchar: 1010\nread_bytes: 905\nwrite_bytes: 1\n"
    )
    made.after(4.0)
    use = made.looks.result()
    assert use is not None
    assert use.workers == (
        ProcessUse(
            seen_s=4.0,
            cpu_s=3.5,
            system_s=0.5,
            waited_s=0.75,
            fresh_bytes=2 * 4096,
            asked_bytes=1000,
            disk_bytes=900,
        ),
    )
    assert use.main is not None
    assert (use.main.cpu_s, use.main.system_s, use.main.waited_s) == (1.5, 0.3, 0.75)
    assert use.main.disk_bytes == 300
    assert (use.spare_cores, use.io_stalled_s) == (2.5, 2.0)
    assert use.mean(lambda worker: worker.cpu_s) == pytest.approx(3.5 / 4)


def test_it_looks_at_most_once_a_second(made: Made):
    made.set_main(run_s=0.0, children=(41,))
    made.set_worker(41, user_s=0.0)
    made.after(0.0)
    made.set_worker(41, user_s=9.0)
    made.after(0.9)
    assert made.looks.result() is None
    made.after(0.2)
    use = made.looks.result()
    assert use is not None
    assert use.workers[0].cpu_s == 9.0


@pytest.mark.parametrize(("look_s", "rest_s"), [(0.004, 2.0), (1.0, 5.0)])
def test_looks_take_a_five_hundredth_of_a_run_and_come_every_five_seconds(
    made: Made, look_s: float, rest_s: float
):
    made.looks._spent = itertools.count(0.0, look_s).__next__
    made.set_main(run_s=0.0, children=(41,))
    made.set_worker(41, user_s=0.0)
    made.after(0.0)
    made.after(1.0)
    for seconds, looks in ((rest_s - 0.1, False), (0.2, True)):
        made.after(seconds)
        assert (made.looks._machine[-1][0] == made.clock_s) is looks


@pytest.mark.parametrize(("seconds", "is_told"), [(0.4, False), (0.6, True)])
def test_half_a_second_is_the_least_that_says_something(
    made: Made, seconds: float, *, is_told: bool
):
    made.set_main(run_s=0.0, children=(41,))
    made.set_worker(41, user_s=0.0)
    made.after(0.0)
    made.clock_s += seconds
    made.looks.look(now=True)
    assert (made.looks.result() is not None) is is_told


def test_the_time_without_workers_does_not_count(made: Made):
    made.after(0.0)  # set-up
    made.after(50.0)
    made.set_main(run_s=0.0, children=(41,))
    made.set_worker(41, user_s=0.0)
    made.after(50.0)
    made.set_worker(41, user_s=1.5)
    made.after(2.0)
    made.set_main(run_s=0.0, children=())  # the epoch is over; an evaluation without a loader
    made.after(100.0)
    use = made.looks.result()
    assert use is not None
    assert (use.wall_s, use.workers[0].seen_s) == (2.0, 2.0)


def test_a_process_id_that_is_used_again_is_another_worker(made: Made):
    made.set_main(run_s=0.0, children=(41,))
    for started, user_s in ((7, 0.0), (7, 3.0), (900, 1.0), (900, 2.0)):
        made.set_worker(41, user_s=user_s, started=started)
        made.after(2.0)
    use = made.looks.result()
    assert use is not None
    assert [worker.cpu_s for worker in use.workers] == [3.0, 1.0]


def test_what_may_not_be_read_is_unknown_and_said(made: Made):
    made.set_main(run_s=0.0, children=(41, 43))
    made.set_worker(41, user_s=0.0, io="")
    made.after(0.0)
    made.set_worker(43, user_s=0.0)
    made.after(2.0)
    (made.root / "proc/43/stat").unlink()  # it has ended
    made.after(2.0)
    use = made.looks.result()
    assert use is not None
    assert [worker.disk_bytes for worker in use.workers] == [None]
    assert use.mean(lambda worker: worker.disk_bytes) is None
    assert use.doubts == (
        "1 of 2 workers lived too short to be seen",
        "how much the workers read from the disk may not be read here",
    )
    assert fields(use)["workers"][0]["disk_bytes"] is None


def test_a_broken_proc_switches_the_look_off_and_raises_nothing(made: Made):
    made.set_main(run_s=0.0, children=(41,))
    made.set_worker(41, user_s=0.0)
    made.write("proc/41/stat", "9 (x) " + " ".join(["x"] * 45))
    made.after(0.0)
    assert made.looks.instrument.failure is not None
    made.after(5.0)
    assert made.looks.result() is None


def test_without_a_started_process_nobody_is_looked_for(made: Made, monkeypatch):
    """In a kernel that search reads a file for each of its threads, at every second update."""
    searched: list[Path] = []

    def search(proc: Path, at_s: float):
        searched.append(proc)
        return {}

    monkeypatch.setattr(LoaderLooks, "_read_workers", staticmethod(search))
    made.started = False
    for _ in range(20):
        made.set_main(run_s=made.clock_s - 100.0, children=())
        made.after(0.5)
    assert searched == []
    assert len(made.looks._machine) == 2
    made.set_main(run_s=12.0, children=())
    made.looks.look(now=True)  # the run has ended
    use = made.looks.result()
    assert use is not None
    assert use.main is not None
    assert (use.main.cpu_s, use.wall_s) == (pytest.approx(12.0), pytest.approx(9.5))
    looked_at_s = set()
    for _ in range(1000):
        made.after(1.0)
        looked_at_s.add(made.looks._machine[-1][0])
    # each takes as long as an update of watch, and only the last one counts
    assert 10 < len(looked_at_s) <= 25
    made.started = True  # an epoch with workers begins: the next look finds them
    made.after(1.0)
    assert len(searched) == 1


def test_a_process_of_multiprocessing_is_enough_to_look_for_workers(monkeypatch):
    process = types.ModuleType("multiprocessing.process")
    monkeypatch.setitem(sys.modules, "multiprocessing.process", process)
    assert loading._has_started_processes()  # it does not tell: look
    process._children = set()
    assert not loading._has_started_processes()
    process._children.add(object())
    assert loading._has_started_processes()
    monkeypatch.delitem(sys.modules, "multiprocessing.process")
    assert not loading._has_started_processes()


def test_without_proc_nothing_is_read_again(tmp_path: Path):
    looks = LoaderLooks(lambda: 1.0, tmp_path)
    looks.look(now=True)
    assert looks._is_off
    assert looks.result() is None


REAL = """
import time, torch
from torch.utils.data import DataLoader, Dataset
from perfkit.base.machine.loading import LoaderLooks

class Busy(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, i):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return torch.zeros(2)

if __name__ == "__main__":
    looks = LoaderLooks()
    loader = DataLoader(Busy(), batch_size=2, num_workers=2, multiprocessing_context={context!r})
    # until both have computed for 0.2 s: no wall time decides
    for n, batch in enumerate(loader):
        looks.look(now=n == 0)
        use = looks.result()
        if use and len(use.workers) == 2 and min(w.cpu_s for w in use.workers) >= 0.2:
            break
    kernel = all(w.system_s <= w.cpu_s for w in use.workers)
    print(looks.instrument.failure, len(use.workers), kernel)
    print(use.workers[0].disk_bytes is None, use.main.cpu_s < sum(w.cpu_s for w in use.workers))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("context", ["fork"])
def test_it_sees_real_workers(tmp_path: Path, context: str):
    pytest.importorskip("torch")
    script = tmp_path / "real.py"
    script.write_text(REAL.replace("{context!r}", repr(context)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.stdout.splitlines() == ["None 2 True", "False True"], done.stderr


def test_the_mean_is_over_the_time_that_workers_were_seen():
    one = ProcessUse(10.0, 5.0, 1.0, 0.0, 0, None, None)
    two = ProcessUse(2.0, 1.0, 0.0, 0.0, 0, None, None)
    use = LoaderUse(10.0, 4, None, (one, two))
    assert use.mean(lambda worker: worker.cpu_s) == pytest.approx(0.5)
    assert LoaderUse(10.0, 4, None, ()).mean(lambda worker: worker.cpu_s) is None
