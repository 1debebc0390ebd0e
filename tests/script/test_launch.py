"""`perfkit.launch`: a workload on two ranks; what it returns, who failed, and nothing is left."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import perfkit
from perfkit.base.errors import (
    UsageError,
    WorkloadFailedError,
    WorkloadHungError,
    WorkloadNotPortableError,
)
from perfkit.script.options import Options
from perfkit.script.ranks.heartbeat import quiet_s
from perfkit.script.ranks.launch import run_workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="gloo under torchrun, process ids by /proc"),
]


@pytest.fixture(autouse=True)
def _nothing_is_left(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    if "programs_are_forked" in request.fixturenames:
        request.getfixturevalue("programs_are_forked")  # the process that forks them stays
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    threads = {t.name for t in threading.enumerate()}
    yield
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not left
    assert {t.name for t in threading.enumerate()} <= threads


def _workload(settings: Any) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # in one write: print() makes two without a buffer, and the other rank's line may come between
    sys.stdout.write(f"rank {rank} of {settings.world_size}\n")
    sys.stdout.flush()
    for step in range(20):
        if rank == 1:
            time.sleep(0.05)
            if step == 15 and settings["end"] == "raise":
                raise ValueError("made up")
            if step == 15 and settings["end"] == "hang":
                time.sleep(600)
            if step == 15 and settings["end"] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        yield
    return 10 * rank  # type: ignore[return-value]


def test_its_values_come_back_with_a_report_on_its_ranks() -> None:
    # it ends before it would be stopped
    found = perfkit.launch(_workload, ranks=2, settings={"end": ""}, warmup=9, live=False)
    assert found.values == (0, 10)
    assert sorted(found.output.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert [r.n_steps for r in found.ranks] == [20, 20]
    assert found.program == "_workload"
    assert found.late is not None
    assert [one.rank for one in found.late.late] == [1]
    assert found.late.late[0].lost_ms > 10  # of 50 ms of sleep
    assert found.compared is not None
    assert found.compared.stragglers == (1,)
    assert found.culprits == ()


BEFORE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def Net():
    return torch.nn.Linear(8, 4)

dataset = TensorDataset(torch.ones(100, 8), torch.ones(100, 4))
criterion = torch.nn.functional.mse_loss
"""


def test_the_guides_workload_is_stopped_once_its_steps_are_recorded() -> None:
    """It ends in `while True`, and the call never returned."""
    guide = (Path(perfkit.__file__).parents[1] / ".docs/pages/guide.md").read_text(encoding="utf-8")
    (source,) = (block for block in guide.split("```") if "def workload" in block)
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(BEFORE + source.removeprefix("python"), cell)
    found = perfkit.launch(cell["workload"], ranks=2, steps=3, warmup=2, hang_s=60)
    (n_steps,) = {one.n_steps for one in found.ranks}
    assert n_steps == 2 + 3 + 3
    assert [one.ended for one in found.ranks] == ["finished", "finished"]
    assert found.values == (None, None)
    assert f"was stopped after {n_steps} steps, when 3 were recorded" in found.to_text()


def test_a_function_travels_by_value_and_what_cannot_is_named() -> None:
    lock = threading.Lock()

    def holds_a_lock(settings: Any) -> None:
        lock.acquire()

    with pytest.raises(WorkloadNotPortableError, match="lock"):
        perfkit.launch(holds_a_lock, live=False)


@pytest.mark.usefixtures("programs_are_forked")
def test_a_rank_that_raises_is_named_with_its_traceback() -> None:
    with pytest.raises(WorkloadFailedError, match="Rank 1 raised ValueError in step 16") as raised:
        perfkit.launch(_workload, settings={"end": "raise"}, live=False)
    assert "ValueError: made up" in str(raised.value)
    assert 'raise ValueError("made up")' in raised.value.traceback_text
    assert "child.py" not in raised.value.traceback_text


@pytest.mark.usefixtures("programs_are_forked")
def test_a_rank_that_raises_in_a_notebook_s_cell_shows_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, source = (
        "/nowhere/cell.py",
        "def workload(settings):\n    raise ValueError('in a cell')\n",
    )
    lines = source.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, name, (len(source), None, lines, name))
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), cell)
    with pytest.raises(WorkloadFailedError, match="ValueError") as raised:
        perfkit.launch(cell["workload"], live=False)
    assert lines[1].strip() in raised.value.traceback_text


@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("hang", r"rank 1 is in step 16, at .*sleep.*; rank 0 waits in "),
        # what it last says of itself is that its step is young, and the job hung for ever
        ("stop", r"No rank has made a step for .*rank 1 has given no sign for "),
    ],
)
def test_a_job_that_hangs_is_ended_and_the_rank_named(
    end: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit below 20 s the error was about a job in which nobody hung."""

    def impatient(*given: Any, on_live: Any, hang_s: float, **more: Any) -> Any:
        assert hang_s == 600

        def from_now_on(line: str, left_s: float | None) -> None:
            if line.startswith("step 15 "):  # however long the ranks took to start
                faster = lambda statuses, now_s: 200 * quiet_s(statuses, now_s)  # noqa: E731
                monkeypatch.setattr("perfkit.script.ranks.launch.quiet_s", faster)

        return run_workload(*given, on_live=from_now_on, hang_s=hang_s, **more)

    monkeypatch.setattr("perfkit.widgets.launch.run_workload", impatient)
    # torchrun gives a rank that cannot end 30 s
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "10")
    with pytest.raises(WorkloadHungError, match=said):
        perfkit.launch(_workload, settings={"end": end}, hang_s=600, live=False)


@pytest.mark.usefixtures("programs_are_forked")
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_workload(
            _workload, {"world_size": 2, "end": "hang"}, ranks=2, backend="gloo",
            options=Options(), hang_s=600, on_output=interrupted, on_live=interrupted,
        )  # fmt: skip


def _killed_once(settings: Any) -> tuple[int, str]:
    import torch
    import torch.distributed as dist

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    for step in range(8):
        if attempt == "0" and step == 4 and dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        dist.all_reduce(torch.ones(4))
    return dist.get_rank(), attempt


@pytest.mark.usefixtures("programs_are_forked")
def test_a_job_is_started_anew_after_a_kill_and_says_so() -> None:
    found = perfkit.launch(_killed_once, ranks=2, restarts=1, live=False)
    assert found.values == ((0, "1"), (1, "1"))
    assert len(found.failures) == 1
    assert found.failures[0].startswith("Rank 1 died")
    assert any("restarted after attempt 1: Rank 1 died" in said for said in found.warnings)


def _where(settings: Any) -> tuple[str, ...]:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    names = ("GROUP_RANK", "LOCAL_RANK", "GROUP_WORLD_SIZE")
    return (*(os.environ[name] for name in names), str(int(total)))


@pytest.mark.usefixtures("programs_are_forked")
def test_two_hosts_meet_by_the_rendezvous_of_torchrun() -> None:
    found = perfkit.launch(_where, ranks=2, hosts=2, live=False)
    assert sorted(found.values) == [("0", "0", "2", "2"), ("1", "0", "2", "2")]
    assert [one.ended for one in found.ranks] == ["finished", "finished"]
    assert found.failures == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 3, "hosts": 2}, "3 ranks cannot be shared by 2 hosts"),
        ({"hosts": 3}, "hosts"),
        ({"restarts": -1}, "restarts"),
        ({"hosts": 2, "restarts": 1}, "leave hosts at 1"),
        ({"backend": np.zeros(2)}, r"backend is array\(\[0., 0.\]\)"),
        ({"live": np.zeros(2)}, "live is a ndarray; give True or False"),
        ({"settings": [("x", 1)]}, r"settings must be a mapping .* not \[\('x', 1\)\]"),
        ({"settings": {1: 2}}, r"settings must be a mapping .* not \{1: 2\}"),
        ({"settings": {"world_size": 7}}, "world_size 7, and there are 2 ranks: leave it out"),
    ],
)
def test_what_cannot_be_started_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        perfkit.launch(_where, **{"live": False, **wrong})


def test_a_setting_that_cannot_travel_is_named() -> None:
    """It was an error of pickle's, without a name."""
    with pytest.raises(WorkloadNotPortableError, match=r"^settings cannot .*\['x'\] \(a _thr"):
        perfkit.launch(_where, settings={"x": threading.Lock()}, live=False)
