"""A rank among the others: it says where it is, leaves its record, and the last one reports.

No rank that has begun is waited for at another one's end: who ends last, reports on all of them. So
a rank that died or hangs keeps nobody from ending, and whoever launched the job sees no difference.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from perfkit.base.instrument import Instrument
from perfkit.base.scratch import hold
from perfkit.script.ranks.heartbeat import Heartbeat, Snapshot, lives, read_statuses
from perfkit.script.ranks.job import Job
from perfkit.script.ranks.torchrun import ends_with

if TYPE_CHECKING:
    from perfkit.script._torch_watch import TorchWatch
    from perfkit.script.ranks.joint import RankedRun
    from perfkit.script.whole_run import WholeRun

# A rank that ends before another one has begun waits so long for it: only such a one waits.
_LATEST_START_S = 5.0
#: A file in the job's folder.
MISSES_A_FILE = "misses_a_file"


class Meeting:
    """This rank's part in a job; nothing of it raises into the program."""

    def __init__(self, job: Job, look: Callable[[], Snapshot]) -> None:
        self.job = job
        self._instrument = Instrument("the report on all ranks")
        self._heartbeat = Heartbeat(job.folder, job.rank, look)
        self._ended = ""

    def begins(self) -> None:
        """The program is about to run, in this thread."""
        self._heartbeat.start()
        if self.job.is_lent:  # perfkit launched it: nothing of it is to outlive torchrun
            with self._instrument.guard("holding the folder"):  # where perfkit is killed, too
                hold(self.job.folder.parent)
            ends_with(os.getppid())

    def ends(self, ended: str) -> None:
        """The program has ended, as these words say that follow its name."""
        self._ended = ended
        self._heartbeat.ends(ended)

    def misses_a_file(self) -> None:
        """A file that was asked for could not be written: for whoever launched the job."""
        with self._instrument.guard("saying that a file is missing"):
            (self.job.folder / MISSES_A_FILE).touch()

    def leaves(self, result: WholeRun, seen: TorchWatch | None, text: str) -> None:
        """Leave what this rank saw; rank 0's ``text`` is printed with the report on all."""
        from perfkit.script.ranks.record import keep

        job = self.job
        with self._instrument.guard("leaving what this rank saw"):
            keep(job.folder, job.rank, result, seen, text=text, trace=job.is_kept)

    @contextlib.contextmanager
    def report(self) -> Iterator[tuple[RankedRun, str] | None]:
        """The report, and rank 0's own if it is here, where all others have ended; else None.

        On each of several machines it is of the ranks there; on the one that ends last, of all.
        """
        if not self._is_last():
            yield None
            return
        from perfkit.script.ranks.joint import joint
        from perfkit.script.ranks.record import read_record

        job = self.job
        try:
            own = read_record(job.folder, 0) if 0 in job.here else None
            ranks = job.here
            if job.world_size > len(ranks):
                from perfkit.script.ranks.hosts import gather

                if gather(job, os.environ):
                    ranks = tuple(range(job.world_size))
            run = joint(job.folder, ranks, job.world_size, here=job.here)
            yield run, "" if own is None else own.text
        finally:
            if not (self.job.is_kept or self.job.is_lent):
                shutil.rmtree(self.job.folder.parent, ignore_errors=True)

    def _is_last(self) -> bool:
        folder = self.job.folder
        # each tells before it looks: of two that end at once, one at least sees the other
        self._heartbeat.ends(self._ended, is_told=True)
        late_s, here = time.monotonic() + _LATEST_START_S, self.job.here
        while len(others := read_statuses(folder, here)) < len(here) and time.monotonic() < late_s:
            time.sleep(0.1)
        if any(not s.is_told and s.pid != os.getpid() and lives(s) for s in others.values()):
            return False
        try:
            os.close(os.open(folder / "reported", os.O_CREAT | os.O_EXCL))
        except OSError:  # it has been reported; or the folder is gone
            return False
        return True
