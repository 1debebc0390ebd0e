"""What torchrun starts as a rank of a run: the workload, in a process group that exists.

torchrun … -m perfkit.experiment.process.rank FOLDER
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from perfkit.base import collector
from perfkit.experiment.process import _failure, worker
from perfkit.experiment.process._job import Ticket
from perfkit.experiment.settings import Settings


class LastStep:
    """After which step all ranks end: a number in memory that they share; 0 for not yet.

    A collective in each step keeps ranks at most one step apart. So rank 0, having finished n
    steps, names step n + 1, and none is left alone in a collective.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    @property
    def number(self) -> int:
        """The step's number from 1 on, or 0."""
        found: int = struct.unpack("q", self._shared)[0]
        return found

    @number.setter
    def number(self, step: int) -> None:
        self._shared[:] = struct.pack("q", step)


class Until:
    """The steps of a workload up to the last one that all ranks make."""

    def __init__(self, steps: Iterator[Any], last: LastStep) -> None:
        self._steps = steps
        self._last = last
        self.n_done = 0

    def __iter__(self) -> Until:
        return self

    def __next__(self) -> Any:
        last = self._last.number
        if last and self.n_done >= last:
            raise StopIteration
        value = next(self._steps)
        self.n_done += 1
        return value

    def close(self) -> None:
        """End the workload, so that its ``finally`` runs."""
        if hasattr(self._steps, "close"):
            self._steps.close()


class _Asked:
    """The kernel's commands to rank 0: that it shall end becomes the number of the last step."""

    def __init__(self, commands: worker.PipeCommands, last: LastStep) -> None:
        self._commands = commands
        self._last = last
        self.steps: Until | None = None
        self.was_asked = False

    def finish_asked(self) -> bool:
        """Never: the steps end by themselves."""
        if self._commands.finish_asked() and not self.was_asked and self.steps is not None:
            self.was_asked = True
            self._last.number = self.steps.n_done + 1
        return False

    def park_asked(self) -> bool:
        """Whether to pause after this step; the others then wait in its next collective."""
        return self._commands.park_asked()

    def wait_for_go(self) -> None:
        """Stand still until it may go on, or shall end."""
        self._commands.wait_for_go()


def main() -> int:
    """Be a rank; the exit code."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    try:
        _run(folder, rank)
    except BaseException as error:
        own = frozenset({__file__, worker.__file__, _failure.__file__, cloudpickle.__file__ or ""})
        told = _failure.of_exception(error, own)
        # under another name first: its time says which rank failed first
        (folder / f"new{rank}").write_bytes(pickle.dumps(told))
        (folder / f"new{rank}").rename(folder / f"error{rank}")
        return 1
    return 0


def _run(folder: Path, rank: int) -> None:
    with collector.at_rest():
        import torch.distributed as dist

    ticket: Ticket = pickle.loads((folder / "ticket").read_bytes())
    # torchrun's variables say which rank this is
    workload = worker.prepared(ticket.job, dict(os.environ))
    last = LastStep(folder / "last_step")
    _join(ticket.job.world_size)
    settings = Settings(ticket.job.values)
    if rank == 0:
        (folder / "ended").write_text(_report(ticket, workload, settings, last))
    else:
        steps = Until(worker.started(workload, settings), last)
        for _ in steps:
            pass
        steps.close()
        gc.collect()  # ends loader workers with their iterators
    # not after an error: to wait for the others would hide which rank failed first
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(n: int) -> None:
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available() and torch.cuda.device_count() >= n:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        return
    # gloo asks for the address of this host's name else, and a name server may be slow to answer
    loopback = [name for name in psutil.net_if_addrs() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    dist.init_process_group("gloo")


def _report(ticket: Ticket, workload: Any, settings: Settings, last: LastStep) -> str:
    """Run the steps of rank 0 and tell the kernel."""
    pipes = Path(f"/proc/{ticket.pid}/fd")
    stream = worker.Stream(os.open(pipes / str(ticket.events_fd), os.O_WRONLY))
    commands = _Asked(
        worker.PipeCommands(os.open(pipes / str(ticket.commands_fd), os.O_RDONLY)), last
    )
    stream.say("begun")

    def steps() -> Iterator[Any]:
        commands.steps = Until(worker.started(workload, settings), last)
        return commands.steps

    ended: list[str] = []
    worker.follow(stream, commands, steps, ticket.job, ended.append)
    if not last.number and commands.steps is not None:
        last.number = commands.steps.n_done  # its data ended; nobody waits for more of its steps
    return "finished" if commands.was_asked else ended[0]


if __name__ == "__main__":
    exit_code = main()
    for printed in (sys.stdout, sys.stderr):
        printed.flush()
    # as the process of a run ends; to unload torch takes seconds on a busy machine
    os._exit(exit_code)
