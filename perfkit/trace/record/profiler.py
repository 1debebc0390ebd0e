"""torch's profiler: begun where none runs, quietly, and read back as the JSON that it writes.

Two at once end the process, as does reading the events of one that somebody else has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.device import here, in_use, is_capturing
from perfkit.base.errors import MeasurementError, ProfilerBusyError
from perfkit.base.scratch import scratch_folder

# CUPTI, which records what the device does, stays attached to the process when a profiler stops,
# and every launch takes longer from then on (pytorch/pytorch#144455): on an H100 1.31 times, and
# 1.02 times where this variable at 1 lets it go (tests/bench/cupti_teardown.py). Before CUDA 12.6
# letting go crashes where CUDA graphs are used (pytorch/pytorch#146604), so there it stays.
_LET_GO = "TEARDOWN_CUPTI"
_SAFE_CUDA = (12, 6)

_NOTICE = re.compile(
    rb"profiler_kineto\.cpp|collection\.cpp|ActivityProfiler|Memory block of unknown size|"
    rb"\.cpp:\d+\] (profiler_start|profiler_stop|Profiler|CUPTI|Completed Stage)|"
    # built for CUDA, on a machine without a driver
    rb"DeviceProperties\.cpp|"
    # begun in another thread than the first time
    rb"must run in same thread as registerClient|"
    rb"^(INFO|STAGE|USDT):"
)
_WARNING = "Warning: Profiler clears events"  # torch 2.11

# Both the profiler and file descriptor 2 are the process's. Two threads that turn the latter aside
# at once would put back what the other had put there: a file that is deleted by then.
_one_thread = threading.RLock()

# For each event torch takes about 4 µs to end its recording. To read it takes as long again, half
# of it in torch, which writes a file.
END_US = 4.0
WRITTEN = 0.5
# What is over so soon needs no line.
_SHORT_S = 0.3


class TorchProfiler:
    """One of torch's profilers from its start to the trace that it wrote, with marks of ours in it.

    While nothing is wanted its collection is switched off. To stop it and start another inside of a
    ``record_function`` block of the user would leave torch with a pointer into the first recording.

    Args:
        shapes: record the shapes of inputs; or says whether, when it starts.

    Attributes:
        marks: when each mark was opened, and its name: ties other clocks to the trace's.
        is_lost: another one was in its way.
    """

    def __init__(self, shapes: bool | Callable[[], bool], *, stacks: bool, memory: bool) -> None:
        self.began_s = self.ended_s = 0.0
        self.marks: list[tuple[float, str]] = []
        self.is_lost = self.with_shapes = self.is_paused = False
        self.profile: Any = None
        self._shapes, self._stacks, self._memory = shapes, stacks, memory
        self._activities: list[Any] = []
        self._runs = False
        self._mark: Any = None

    def start(self) -> None:
        """Start it, as :func:`start_alone` does."""
        from torch.profiler import ProfilerActivity, profile, supported_activities

        wanted = {ProfilerActivity.CPU}
        if (names := here().profiler) is not None:
            wanted.add(getattr(ProfilerActivity, names.activity))
        self._activities = [*(wanted & supported_activities())]  # type: ignore[no-untyped-call]
        self.with_shapes = self._shapes() if callable(self._shapes) else self._shapes
        self.profile = profile(
            activities=self._activities,
            record_shapes=self.with_shapes,
            with_stack=self._stacks,
            profile_memory=self._memory,
        )
        self._runs = True
        try:
            start_alone(self.profile)
        except ProfilerBusyError:
            self.profile, self._runs, self.is_lost = None, False, True
            raise
        self.began_s = time.perf_counter()

    def open_mark(self, name: str) -> None:
        """Close the mark that is open, and open this one."""
        from torch.profiler import record_function

        if self._mark is not None:
            self.close_mark()
        mark: Any = record_function(name)
        with torch_compat.without_modes():
            mark.__enter__()
        self._mark = mark
        self.marks.append((time.perf_counter(), name))

    def close_mark(self) -> None:
        """Close the mark that is open, if one is."""
        mark, self._mark = self._mark, None
        if mark is not None:
            with torch_compat.without_modes():
                mark.__exit__(None, None, None)

    def pause(self) -> None:
        """Collect no more until :meth:`go_on`."""
        self.close_mark()
        self.ended_s = time.perf_counter()
        self._collect(False)

    def go_on(self) -> None:
        if self.is_paused:
            self._collect(True)

    def _collect(self, on: bool) -> None:
        with quiet_profiler():
            self.profile.toggle_collection_dynamic(on, self._activities)
        self.is_paused = not on

    def end(self) -> None:
        """Stop it; once more, where that has failed."""
        if not self._runs:
            return
        if torch_compat.profiler_runs_here():
            with quiet_profiler():
                self.profile.stop()
        else:
            self.profile, self.is_lost = None, True  # its result is somebody else's
            torch_compat.forget_running_profiler()
        self._runs = False

    def give_way(self) -> None:
        """End it for another one: its events are lost."""
        self.is_lost = True
        self.close_mark()
        self.end()
        self.forget()

    def forget(self) -> None:
        """Leave torch no events. In a forked child, where it is the parent's: it runs no more."""
        if self.profile is not None:
            torch_compat.forget_events(self.profile)
        self.profile, self._runs = None, False


def wait_for_devices() -> None:
    """Wait for what this process has queued; where a graph is being captured, for nothing."""
    if not is_capturing():
        device = in_use()
        for index in device.devices():
            device.synchronize(index)


def start_alone(profile: Any) -> None:
    """Start a ``torch.profiler.profile``; when it stops, what it attached to CUDA lets go.

    A value that the user gave ``TEARDOWN_CUPTI`` is kept. Ours stays in the environment, for
    profilers that the user starts later, and for child processes.

    Raises:
        ProfilerBusyError: a profiler runs or is about to, or torch refuses; nothing has begun.
    """
    import torch

    if lets_go(torch.version.cuda):
        os.environ.setdefault(_LET_GO, "1")
    let_forks_exit()
    try:
        with quiet_profiler():  # one thread at a time
            if torch_compat.profiler_is_on():
                who = "a torch profiler is already active in this process (yours, or perfkit's)"
            elif torch_compat.profiler_is_prepared():
                who = "a torch profiler with a schedule is in its warm-up in this process"
            else:
                profile.start()
                return
        raise ProfilerBusyError(
            f"{who}: end it first (leave its `with` block, or call its `stop()`), then profile "
            "again"
        )
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise ProfilerBusyError(
            f"torch's profiler cannot start ({first}): end every other profiler of this process, "
            "then profile again"
        ) from error


@functools.cache
def let_forks_exit() -> None:
    """From now on, a forked process ends without C++'s destructors, once Python has ended in it.

    Kineto, which torch's profiler is built on, keeps a thread from its first use on. A forked
    process does not have it, but its ``exit`` runs a destructor that waits for it: the process
    finished its work and then hung for ever (torch 2.13, also without perfkit).

    Its files are written out and its exit code stays. Processes that end by ``os._exit``, as those
    of multiprocessing do, never ran them.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no glibc: no such wait either
        libc: Any = ctypes.CDLL(None)
        last = [ctypes.cast(f, ctypes.c_void_p) for f in (libc._exit, libc.fcloseall)]
        libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

        def in_child() -> None:
            for function in last:  # they are called in the reverse order, before all earlier ones
                libc.on_exit(function, None)

        os.register_at_fork(after_in_child=in_child)


def lets_go(cuda: str | None) -> bool:
    """Whether CUPTI may be detached after profiling, with this ``torch.version.cuda``."""
    numbers = re.match(r"(\d+)\.(\d+)", cuda or "")
    return numbers is not None and tuple(map(int, numbers.groups())) >= _SAFE_CUDA


def stays_attached() -> bool:
    """Whether this process launches more slowly from now on, because CUPTI does not let go."""
    import torch

    return torch.version.cuda is not None and os.environ.get(_LET_GO) != "1"


def raw_trace(profile: Any) -> bytes:
    """The trace as JSON, plain: to pack it takes ten times as long."""
    with scratch_folder() as folder:
        path = folder / "trace.json"
        with quiet_profiler():
            profile.export_chrome_trace(str(path))
        if not path.exists():  # it only prints that it failed
            raise MeasurementError(
                f"torch could not write its trace into {folder.parent}: free some space there, or "
                "set TMPDIR to another folder"
            )
        return path.read_bytes()


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """Drop what the profiler itself writes to standard error meanwhile; one thread at a time.

    Kineto and torch write it from C++ straight to file descriptor 2, so that is turned aside for
    the moment. What is no notice of the profiler is written through afterwards.
    """
    with _one_thread, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_WARNING)
        with _quiet_stderr():
            yield


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # no standard error at all
        yield
        return
    try:
        with tempfile.TemporaryFile() as aside:
            # sys.stderr is not flushed: we may stand inside of one of its own calls.
            os.dup2(aside.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(saved, 2)
                aside.seek(0)
                rest = b"".join(line for line in aside if not _NOTICE.search(line))
                if rest:
                    os.write(2, rest)
    finally:
        os.close(saved)


@contextlib.contextmanager
def telling(seconds: float) -> Iterator[Callable[..., None]]:
    """Around what takes about so long: what is yielded shows a line, if that is long enough."""
    if seconds < _SHORT_S:
        yield lambda *_, **__: None
        return
    from perfkit.base.progress import Progress

    with Progress("perfkit") as progress:
        yield progress.line
