"""A run of several processes (``world_size``): torchrun's agent, within the run's process.

::

    kernel ── guard ── the run's process: the agent of torchrun
                          ├─ rank 0: reports its steps to the kernel
                          └─ rank 1, …: the same workload, in the same process group

The pipes to the kernel stay with the run's process; rank 0 opens them through ``/proc``, because
torchrun starts its ranks with none but the standard streams. So this is for Linux. All ranks end
after the same step: see ``rank.LastStep``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfkit.base.machine._host import usable_cpus
from perfkit.experiment.process._descendants import descendants
from perfkit.experiment.process._failure import Failure, of_exit, oom_kill_count
from perfkit.experiment.process._job import Job, Ticket
from perfkit.experiment.process._orders import WHERE_SIGNAL

# torchrun waits 30 s for ranks that it has asked to end; a Lab's next run does not.
_ENDS_WITHIN_S = "2"
_ANSWERS_WITHIN_S = 0.1


def run_ranks(job: Job, commands_fd: int, events_fd: int) -> Failure | str:
    """Run the job on its ranks; when this returns, they have ended.

    Returns:
        How rank 0's steps ended (``"ended"`` or ``"finished"``), or the failure of the rank that
        failed first, which is named.
    """
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.cwd)
    n = job.world_size
    folder = Path(job.scratch) / "ranks"
    folder.mkdir()
    shared = replace(job, threads=max(usable_cpus() // n, 1))
    ticket = Ticket(shared, os.getpid(), commands_fd, events_fd)
    (folder / "ticket").write_bytes(pickle.dumps(ticket))
    (folder / "last_step").write_bytes(b"\0" * 8)
    home = str(Path(__file__).absolute().parents[3])
    given = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (home, given)))
    os.environ.setdefault("OMP_NUM_THREADS", str(shared.threads))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _ENDS_WITHIN_S)
    if WHERE_SIGNAL is not None:
        signal.signal(WHERE_SIGNAL, _ask_ranks)
    killed_before = oom_kill_count()
    codes = _torchrun(n, folder)
    if codes is not None:
        return _failure(codes, folder, oom_kill_count() - killed_before)
    return (folder / "ended").read_text()


def _torchrun(n: int, folder: Path) -> dict[int, int] | None:
    """Start the ranks and wait; the exit codes of those that failed, None if none did."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=n,
        run_id=str(uuid.uuid4()),
        # as `torchrun --standalone` does
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    launch: Any = elastic_launch(config, sys.executable)
    try:
        launch("-u", "-m", "perfkit.experiment.process.rank", str(folder))
    except ChildFailedError as error:
        return {rank: one.exitcode for rank, one in error.failures.items()}
    return None


def _ask_ranks(number: int, frame: object) -> None:
    """Pass the kernel's question where they are on to the ranks, one after the other.

    They print their answers line by line into one pipe.
    """
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            time.sleep(_ANSWERS_WITHIN_S)


def _failure(codes: dict[int, int], folder: Path, oom_kills: int) -> Failure:
    """The first one: the others fail because it is missing."""
    # SIGTERM comes from torchrun, after a first failure
    struck = [rank for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM]
    told = sorted(folder.glob("error*"), key=lambda path: path.stat().st_mtime_ns)
    if struck:
        rank = struck[0]
        found = of_exit(codes[rank], output="", last_bytes=0, ram_bytes=1, oom_kills=oom_kills)
    elif told:
        rank = int(told[0].name.removeprefix("error"))
        found = pickle.loads(told[0].read_bytes())
    else:
        rank, code = next(iter(codes.items()))
        found = of_exit(code, output="", last_bytes=0, ram_bytes=1, oom_kills=oom_kills)
    return replace(found, message=f"rank {rank}: {found.message}")
