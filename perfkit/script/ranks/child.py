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
from perfkit.script.run_watch import n_steps_seen


@dataclass(frozen=True)
class Parcel:
    """What travels to the ranks.

    Attributes:
        backend: of the process group that is made for it; empty for none.
        n_steps: after so many a generator is closed: the recorded ones are over, and as many again
            without the profiler tell what recording cost.
    """

    workload: bytes = field(repr=False)
    sources: dict[str, list[str]] = field(repr=False)
    values: bytes = field(repr=False)
    backend: str
    sys_path: list[str]
    n_steps: int


@dataclass(frozen=True)
class Stopped:
    """Instead of what a generator returns: it was closed after so many of its own steps."""

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
        found = _drained(found, parcel.n_steps)
    if parcel.backend and dist.is_initialized():
        dist.destroy_process_group()
    return found


def _drained(steps: Generator[Any, Any, Any], n_steps: int) -> Any:
    """What the generator returns at its end, or how far it came.

    It may never end, so it is closed after so many steps of its optimizer: all ranks make the same,
    and whoever made one more would wait for the others in it.
    """
    for n in itertools.count():
        if n_steps_seen() >= n_steps:
            steps.close()
            return Stopped(n)
        try:
            next(steps)
        except StopIteration as end:
            return end.value


if __name__ == "__main__":
    # as the module of this name: what is unpickled is looked up there
    from perfkit.script.ranks import child

    child.main()
