"""What a rank says of itself twice a second, in a file: who died, who hangs, how far each is."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perfkit.base.instrument import Instrument
from perfkit.base.stack import Level, stack_of
from perfkit.base.words import fmt_count, fmt_s

#: How a run is said to have ended where nothing ended it.
FINISHED = "finished"

_EVERY_S = 0.5
# Who has said nothing for so long is stopped, or hangs in a call that lets no thread run.
_SILENT_S = 5.0
# A step that takes longer than this is worth a look at where it is.
_LONG_S = 2.0
# Files of torch in which a rank waits for others; backward passes end with the gradients of all.
_MEETING = (f"torch{os.sep}distributed{os.sep}", f"torch{os.sep}nn{os.sep}parallel{os.sep}")


@dataclass(frozen=True)
class Status:
    """What a rank last said of itself; times are by ``time.time``.

    Attributes:
        step_began_s: when the current one began, or the set-up before the first.
        step_ms: median of the last steps; None before there were some.
        line: of the program, where the step takes long; empty where unknown.
        waits_in: in what it waits for other ranks, as far as its frames tell: ``all_reduce``.
        is_told: whether what it saw of the run is in the folder.
    """

    rank: int
    pid: int
    at_s: float
    n_steps: int = 0
    step_began_s: float = 0.0
    step_ms: float | None = None
    line: str = ""
    waits_in: str = ""
    ended: str = ""
    is_told: bool = False

    def does(self, now_s: float) -> str:
        """What it does, in words that follow its name."""
        if not self.ended and now_s - self.at_s > _SILENT_S:
            return f"has given no sign for {fmt_s(now_s - self.at_s)}"
        if self.waits_in:
            return f"waits in {self.waits_in}"
        step = f"is in step {fmt_count(self.n_steps + 1)}" if self.n_steps else "is in its set-up"
        return f"{step}, at {self.line}" if self.line else step


@dataclass(frozen=True)
class Snapshot:
    """What a run is doing; see :meth:`perfkit.script.run_watch.RunWatch.snapshot`."""

    n_steps: int
    in_step_s: float
    step_ms: float | None


class Heartbeat:
    """Writes this rank's status until it has ended, as ``look`` tells it in another thread."""

    def __init__(self, folder: Path, rank: int, look: Callable[[], Snapshot]) -> None:
        self._path = folder / f"status{rank}.json"
        self._look = look
        self._instrument = Instrument("the sign of life of this rank")
        now_s = time.time()
        self._status = Status(rank, os.getpid(), now_s, step_began_s=now_s)
        self._main = threading.get_ident()
        self._stop = threading.Event()
        self._writing = threading.Lock()

    def start(self) -> None:
        """Begin, in the thread that runs the program."""
        with self._instrument.guard("starting"):
            self._write()
            threading.Thread(
                target=self._instrument.hook(self._beat), name="perfkit-rank", daemon=True
            ).start()

    def ends(self, ended: str, *, is_told: bool = False) -> None:
        """The program has ended; what it was doing last stays."""
        self._stop.set()
        with self._writing:
            n_steps = self._status.n_steps
            with contextlib.suppress(Exception):
                n_steps = self._look().n_steps
            self._status = replace(
                self._status, ended=ended, at_s=time.time(), is_told=is_told, n_steps=n_steps
            )
            with self._instrument.guard("ending"):
                self._write()

    def _beat(self) -> None:
        while not self._stop.wait(_EVERY_S):
            with self._writing:
                if self._stop.is_set():
                    return
                self._status = self._now()
                self._write()

    def _now(self) -> Status:
        seen = self._look()
        line, waits_in = _where(stack_of(self._main)) if seen.in_step_s > _LONG_S else ("", "")
        now_s = time.time()
        return replace(
            self._status, at_s=now_s, n_steps=seen.n_steps, step_began_s=now_s - seen.in_step_s,
            step_ms=seen.step_ms, line=line, waits_in=waits_in,
        )  # fmt: skip

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self._status)), encoding="utf-8")
        part.replace(self._path)


def read_statuses(folder: Path, ranks: Container[int] | None = None) -> dict[int, Status]:
    """What these ranks, or all, last said; those that never said anything are missing."""
    found = {}
    for path in folder.glob("status*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            one = Status(**json.loads(path.read_text(encoding="utf-8")))
            if ranks is None or one.rank in ranks:
                found[one.rank] = one
    return dict(sorted(found.items()))


def quiet_s(statuses: Iterable[Status], now_s: float) -> float:
    """For how long none of the ranks that run has made a step; 0 where none runs."""
    return min((now_s - s.step_began_s for s in statuses), default=0.0)


def lives(status: Status) -> bool:
    """Whether the process that said so, on this machine, is still there."""
    import psutil

    try:
        process = psutil.Process(status.pid)
        # a later process may have its pid
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= status.at_s
    except psutil.Error:
        return False


def _where(stack: Sequence[Level]) -> tuple[str, str]:
    """The innermost line of the program, and what it waits in there for other ranks."""
    from perfkit.base.source import shown_line
    from perfkit.base.user_code import is_user_code

    waits_in = ""
    for code, line, _ in stack:
        if is_user_code(code.co_filename):
            return shown_line(code.co_filename, line or 0), waits_in
        if not waits_in and any(part in code.co_filename for part in _MEETING):
            waits_in = code.co_name
        elif not waits_in and code.co_name == "_engine_run_backward":
            waits_in = "its backward pass"
    return "", waits_in
