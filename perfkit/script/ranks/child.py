"""What a rank of a launched workload runs: the function that came with the folder, by value.

torchrun … -m perfkit run -q -m perfkit.script.ranks.child FOLDER
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import multiprocessing
import os
import pickle
import sys
import traceback
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from perfkit.base import collector
from perfkit.experiment.settings import Settings
from perfkit.script.ranks.job import Job, job_of
from perfkit.script.run_watch import has_recorded


@dataclass(frozen=True)
class Parcel:
    """What travels to the ranks.

    Attributes:
        workload: the function, pickled by cloudpickle.
        sources: lines of notebook cells by file name, for tracebacks.
        values: of its settings, pickled in the same way.
        backend: of the process group that is made for it; empty for none.
        sys_path: where modules are found.
        steps: how many are recorded.
    """

    workload: bytes = field(repr=False)
    sources: dict[str, list[str]] = field(repr=False)
    values: bytes = field(repr=False)
    backend: str
    sys_path: list[str]
    steps: int


@dataclass(frozen=True)
class Stopped:
    """Instead of what a generator returns: it was closed after ``n_steps``."""

    n_steps: int


def main() -> None:
    """Run the workload; what it returns, or how it failed, stays in the folder."""
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    try:
        value = _run(pickle.loads((folder / "workload").read_bytes()))
        (folder / f"value{rank}").write_bytes(cloudpickle.dumps(value))
    except BaseException as error:
        own = traceback.TracebackException.from_exception(error)
        own.stack = traceback.StackSummary.from_list(
            [frame for frame in own.stack if frame.filename != __file__]
        )
        with contextlib.suppress(OSError):
            (folder / f"error{rank}").write_text("".join(own.format()), encoding="utf-8")
        raise


def _run(parcel: Parcel) -> Any:
    sys.path[:] = list(dict.fromkeys([*parcel.sys_path, *sys.path]))
    for name, lines in parcel.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    if sys.platform == "linux":
        # notebook classes in a DataLoader then need no pickling
        multiprocessing.set_start_method("fork", force=True)
    with collector.at_rest():
        import torch
        import torch.distributed as dist

    workload = cloudpickle.loads(parcel.workload)
    if parcel.backend:
        if parcel.backend == "nccl":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(parcel.backend)
    found = workload(Settings(cloudpickle.loads(parcel.values)))
    if isinstance(found, Generator):
        found = _drained(found, parcel.steps)
    if parcel.backend and dist.is_initialized():
        dist.destroy_process_group()
    return found


def _drained(steps: Generator[Any, Any, Any], n_after: int) -> Any:
    """What the generator returns at its end, or how far it came.

    It may never end, so it is closed once every rank has recorded its steps and made as many again
    without the profiler, which tell what recording cost.
    """
    last = _LastStep(n_after)
    for n in itertools.count(1):
        if last.is_before(n):
            steps.close()
            return Stopped(n - 1)
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class _LastStep:
    """The ranks agree on it: whoever made one step more would wait for the others in it.

    A rank that has recorded says how far it will go before it asks again, which takes a
    millisecond or two: not in each step. The last one to record takes the largest of these numbers.
    """

    def __init__(self, n_after: int) -> None:
        self._n_after = n_after
        self._job = job_of(os.environ)
        self._number = 0
        self._is_agreed = False

    def is_before(self, n: int) -> bool:
        """Whether step ``n``, which is next here, is not to be made."""
        if n > self._number and not self._is_agreed and self._job and has_recorded():
            self._ask(self._job, n)
        return self._is_agreed and n > self._number

    def _ask(self, job: Job, n: int) -> None:
        agreed = job.folder / "last_step"
        with job.lock():
            if not agreed.exists():
                self._number = n + self._n_after - 1
                (job.folder / f"goes_to{job.rank}").write_text(str(self._number))
                said = [int(path.read_text()) for path in job.folder.glob("goes_to*")]
                if len(said) < job.world_size:
                    return
                agreed.write_text(str(max(said)))
            self._number, self._is_agreed = int(agreed.read_text()), True


if __name__ == "__main__":
    # as the module of this name: what is unpickled is looked up there
    from perfkit.script.ranks import child

    child.main()
