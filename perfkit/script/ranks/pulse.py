"""A rank's sign of life: a small file, written twice a second, that the other ranks can read.

It says which step the rank is in, in which phase, and, where the step takes long, on which line;
so whoever looks at the files of a job sees who is late, who hangs, and who has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perfkit.base.instrument import Instrument
from perfkit.base.stack import Level, stack_of

_EVERY_S = 0.5
#: A rank that has said nothing for so long is stopped, or hangs in a call that lets no thread run.
SILENT_S = 5.0
# A step that takes longer than this is worth a look at where it is.
_LONG_S = 2.0
# Files of torch in which a rank waits for others; backward passes end with the gradients of all.
_MEETING = (f"torch{os.sep}distributed{os.sep}", f"torch{os.sep}nn{os.sep}parallel{os.sep}")


@dataclass(frozen=True)
class Status:
    """What a rank last said of itself.

    Attributes:
        rank: its number.
        pid: of its process.
        born: what tells the process from a later one with its pid; 0 where nothing does.
        at_s: when it said so, by ``time.time``.
        n_steps: steps so far.
        in_step_s: for how long the current one has run, or the set-up before the first.
        step_ms: mean of the last steps; None before there were some.
        wait_share: of these, the wait for data; None where no DataLoader gave it.
        phase: what the rank is in; empty where unknown.
        line: of the program, where the step takes long; empty where unknown.
        meets: whether it waits for other ranks, as far as its Python frames tell.
        ended: how it ended, in words that follow its name; empty while it runs.
        is_told: whether what it saw of the run is in the folder.
    """

    rank: int
    pid: int
    born: int
    at_s: float
    n_steps: int = 0
    in_step_s: float = 0.0
    step_ms: float | None = None
    wait_share: float | None = None
    phase: str = ""
    line: str = ""
    meets: bool = False
    ended: str = ""
    is_told: bool = False


@dataclass(frozen=True)
class Glimpse:
    """What a run is doing; see :meth:`perfkit.script.run_watch.RunWatch.glimpse`."""

    n_steps: int
    in_step_s: float
    total_s: float
    wait_s: float | None
    phase: str


class Pulse:
    """Writes this rank's status until it has ended. It does not raise into the program.

    Args:
        folder: of the job.
        rank: of this process.
        look: says what the run is doing; called in another thread.
        on_beat: called after each writing, in that thread.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        look: Callable[[], Glimpse],
        on_beat: Callable[[], None] | None = None,
    ) -> None:
        self._path = folder / f"status{rank}.json"
        self._look = look
        self._on_beat = on_beat
        self._instrument = Instrument("the sign of life of this rank")
        self._status = Status(rank, os.getpid(), _born(os.getpid()) or 0, time.time())
        self._main = threading.get_ident()
        self._seen = (0, 0.0, 0.0)  # steps, seconds, waited
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    def start(self) -> None:
        """Begin, in the thread that runs the program."""
        with self._instrument.guard("starting"):
            self._write()
            self._thread = threading.Thread(
                target=self._instrument.hook(self._beat), name="perfkit-rank", daemon=True
            )
            self._thread.start()

    def ends(self, ended: str, *, is_told: bool = False) -> None:
        """The program has ended; what it was doing last stays."""
        self._stop.set()
        with self._writing:
            self._status = replace(
                self._status, ended=ended, at_s=time.time(), is_told=is_told,
                n_steps=self._steps(),
            )  # fmt: skip
            with self._instrument.guard("ending"):
                self._write()

    def _steps(self) -> int:
        try:
            return self._look().n_steps
        except Exception:
            return self._status.n_steps

    def _beat(self) -> None:
        while not self._stop.wait(_EVERY_S):
            with self._writing:
                if self._stop.is_set():
                    return
                self._status = self._now()
                self._write()
            if self._on_beat is not None:
                self._on_beat()

    def _now(self) -> Status:
        seen = self._look()
        n, total_s, waited_s = self._seen
        before = self._status
        step_ms, share = before.step_ms, before.wait_share
        if seen.n_steps > n and seen.total_s > total_s:
            step_ms = 1e3 * (seen.total_s - total_s) / (seen.n_steps - n)
            if seen.wait_s is not None:
                share = (seen.wait_s - waited_s) / (seen.total_s - total_s)
            self._seen = seen.n_steps, seen.total_s, seen.wait_s or 0.0
        line, meets = "", False
        if seen.in_step_s > _LONG_S:
            line, meets = _where(stack_of(self._main))
        return replace(
            before, at_s=time.time(), n_steps=seen.n_steps, in_step_s=seen.in_step_s,
            step_ms=step_ms, wait_share=share, phase=seen.phase, line=line, meets=meets,
        )  # fmt: skip

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self._status)), encoding="utf-8")
        part.replace(self._path)


def read_statuses(folder: Path, ranks: Iterable[int]) -> dict[int, Status]:
    """What the ranks last said; those that never said anything are missing."""
    found = {}
    for rank in ranks:
        with contextlib.suppress(OSError, ValueError, TypeError):
            said = json.loads((folder / f"status{rank}.json").read_text(encoding="utf-8"))
            found[rank] = Status(**said)
    return found


def aged(statuses: Iterable[Status], now_s: float) -> list[Status]:
    """The same at a later time: a process that is stopped, or hangs in C, says nothing itself."""
    return [
        s
        if s.ended or now_s - s.at_s < SILENT_S
        else replace(s, in_step_s=s.in_step_s + now_s - s.at_s)
        for s in statuses
    ]


def lives(status: Status) -> bool:
    """Whether the process that said so, on this machine, is still there."""
    if os.name == "nt":
        import psutil

        return bool(psutil.pid_exists(status.pid))
    born = _born(status.pid)
    if born is not None:
        return born == status.born != 0
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not Path("/proc/self/stat").exists()


def is_stopped(status: Status) -> bool:
    """Whether the process that said so is stopped (SIGSTOP, Ctrl-Z, a debugger): it cannot end."""
    found = _stat(status.pid)
    return found is not None and found[0] in ("T", "t") and lives(status)


def stuck(statuses: Sequence[Status]) -> tuple[Status, ...]:
    """Of ranks that make no step: those for which the others wait; empty where that is not clear.

    Who is steps behind the others holds them up; else who is not where ranks wait for each other.
    """
    if len(statuses) < 2:
        return ()
    least = min(s.n_steps for s in statuses)
    behind = tuple(s for s in statuses if s.n_steps == least)
    if len(behind) == len(statuses) or all(s.meets for s in behind):
        behind = tuple(s for s in statuses if not s.meets)
    return behind if 0 < len(behind) < len(statuses) else ()


def _where(stack: Sequence[Level]) -> tuple[str, bool]:
    """The innermost line of the program, and whether it waits there for other ranks."""
    from perfkit.base.statement import statement
    from perfkit.base.user_code import cell_names, is_user_code, where

    meets = False
    for code, line, _ in stack:
        if is_user_code(code.co_filename):
            source = statement(code.co_filename, line or 0, longest=60)
            place = where(code.co_filename, line or 0, cell_names())
            return (f"{place}: {source}" if source else place), meets
        name = code.co_filename
        meets |= any(part in name for part in _MEETING) or code.co_name == "_engine_run_backward"
    return "", meets


def _born(pid: int) -> int | None:
    """Clock ticks from the start of the machine to that of the process; None where it is over."""
    found = _stat(pid)
    return None if found is None or found[0] in ("Z", "X") else found[1]


def _stat(pid: int) -> tuple[str, int] | None:
    """The state of a process, and when it was born, by proc_pid_stat(5); None without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
