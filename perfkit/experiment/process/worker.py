"""The child's side: runs the workload, measures its steps, and streams them to the kernel.

Users do not call anything here. :func:`run` runs a job and returns the exit code; it talks to the
kernel with the messages of :class:`_Stream`.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import linecache
import math
import multiprocessing
import operator
import os
import pickle
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import cloudpickle
import numpy as np

from perfkit.base.device import in_use
from perfkit.experiment.process import _failure, _fingerprint, _frames
from perfkit.experiment.process._job import Job
from perfkit.experiment.process._live_phases import LivePhases
from perfkit.experiment.process._memory_now import (
    AllocatorMemory,
    ResidentMemory,
    SampledMemory,
    busiest_gpu,
    page_faults,
    workers_bytes,
)
from perfkit.experiment.process._orders import WHERE_SIGNAL
from perfkit.experiment.process._stopwatch import HostStopwatch, Stopwatch, device_stopwatch
from perfkit.experiment.process._windows import Windows
from perfkit.experiment.process.loader_wait import LoaderWait
from perfkit.experiment.settings import Settings, _apply

# How often to check whether the kernel asks for the end.
_LOOK_EVERY_S = 0.02
# More samples than this in one step are not plausible; int64 can hold them.
_MOST_SAMPLES = 2**53
_CHANNEL = "the file descriptor through which its process reports its steps"
_FORKED = (
    "the workload forked, and the copy went on with its steps: end the copy with os._exit(0), "
    "or start it by multiprocessing or subprocess"
)


class Commands(Protocol):
    """The kernel's commands to the child."""

    def finish_asked(self) -> bool:
        """Whether the run shall end after this step."""

    def park_asked(self) -> bool:
        """Whether to pause after this step; call :meth:`finish_asked` first, which reads."""

    def wait_for_go(self) -> None:
        """Stand still until it may go on, or shall end."""


class JobCommands(Commands, Protocol):
    """Commands that begin with the job."""

    def job(self) -> Job:
        """The job; waits for it."""


class PipeCommands:
    """Commands from a pipe, read between steps, so that no thread runs beside the training."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._frames = _frames.Frames()
        self._finish = False
        self._park = False

    def job(self) -> Job:
        """The job; waits for it."""
        while data := os.read(self.fd, 1 << 20):
            for message in self._frames.feed(data):
                return as_job(message)
        raise SystemExit(0)  # the kernel is gone

    def finish_asked(self) -> bool:
        """Whether the run shall end after this step."""
        if not self._finish and select.select([self.fd], [], [], 0)[0]:
            self._read()
        return self._finish

    def park_asked(self) -> bool:
        """Whether to pause after this step."""
        return self._park and not self._finish

    def wait_for_go(self) -> None:
        """Stand still until it may go on, or shall end."""
        while self._park and not self._finish:
            self._read()

    def _read(self) -> None:
        data = os.read(self.fd, 1 << 12)
        self._finish |= not data
        for message in self._frames.feed(data):
            self._finish |= message["k"] == "finish"
            if message["k"] in ("park", "go"):
                self._park = message["k"] == "park"


def as_job(message: dict[str, Any]) -> Job:
    """The job in a message."""
    job = pickle.loads(message["job"])
    if not isinstance(job, Job):
        raise TypeError(f"the kernel sent {type(job).__name__} instead of a job")
    return job


class _Stream:
    """Messages to the kernel."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pid = os.getpid()

    def say(self, kind: str, **content: Any) -> None:
        if os.getpid() != self._pid:
            self._end_copy()
        self._write(kind, content)

    def _end_copy(self) -> None:
        """End a fork that continues as the run, and the run: their steps would be mixed."""
        told = {"state": "failed", "message": _FORKED, "traceback": ""}
        self._write("failed", told)
        if os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)
        os._exit(1)

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        data = memoryview(_frames.encode({"k": kind} | content))
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                # only the process's last output can still report it
                os.write(2, f"the workload closed {_CHANNEL} ({self.fd})\n".encode())
                os._exit(1)


#: Also used by the spawned child.
Stream = _Stream


def run(job: Job, commands: Commands, stream: _Stream) -> int:
    """Run the job and report its outcome; return 0 if the workload ended well."""
    own_files = frozenset({__file__, *(m.__file__ or "" for m in (_failure, cloudpickle))})
    try:
        workload = prepared(job, job.environment)
    except Exception as error:
        tell_failure(stream, error, own_files, "the workload cannot be loaded in its process: ")
        return 1
    stream.say("begun")
    try:
        follow(
            stream,
            commands,
            lambda: started(workload, Settings(job.values)),
            job,
            lambda ended: stream.say("done", ended=ended),
        )
    except BaseException as error:
        tell_failure(stream, error, own_files)
        return 1
    return 0


def follow(
    stream: _Stream,
    commands: Commands,
    begin: Callable[[], Iterator[Any]],
    job: Job,
    on_end: Callable[[str], None],
) -> None:
    """Run the steps that ``begin`` starts, report them, and clean up.

    Args:
        stream: to the kernel.
        commands: from the kernel.
        begin: starts the workload; called where its loaders are timed.
        job: says what is recorded beside the steps.
        on_end: takes how the steps ended, before the workload cleans up.
    """
    with contextlib.ExitStack() as stack:
        loader = stack.enter_context(LoaderWait())
        watch = stack.enter_context(_fingerprint.Watch(job.watched_steps))
        phases = LivePhases() if job.phases else None
        if phases is not None:
            stack.callback(phases.end)
        recorder = _Recorder(stream, loader, watch, phases)
        steps = begin()
        try:
            ended = recorder.follow(steps, commands)
        except BaseException:
            # earlier steps count, but a failed device may be unable to report them
            with contextlib.suppress(Exception):
                recorder.send()
            raise
        recorder.send()
        on_end(ended)
        if hasattr(steps, "close"):
            steps.close()
        del steps
        gc.collect()  # ends loader workers with their iterators


def tell_failure(
    stream: _Stream, error: BaseException, own_files: frozenset[str], lead: str = ""
) -> None:
    failure = _failure.of_exception(error, own_files)
    say_failure(stream, failure, lead)
    if failure.state == "out of memory":
        # reported again with what was alive; collecting that may fail for lack of memory, and then
        # the first message has to do
        with contextlib.suppress(Exception):
            from perfkit.experiment.process._alive import alive

            say_failure(stream, failure.with_more(*alive(error)), lead)


def say_failure(stream: _Stream, failure: _failure.Failure, lead: str = "") -> None:
    stream.say(
        "failed",
        state=failure.state,
        message=_failure.sayable(lead + failure.message),
        traceback=_failure.sayable(failure.traceback_text),
        on_gpu=not in_use().is_cpu,
    )


def prepared(job: Job, environment: Mapping[str, str]) -> Callable[[Settings], Any]:
    """Make this process look like the kernel, with these variables, and load the workload."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(job.cwd)
    sys.path[:] = job.sys_path
    # the streams of the prepared process belong to other files
    sys.stdout, sys.stderr = (
        open(  # noqa: SIM115 - open as long as the process lives
            fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        for fd in (1, 2)
    )
    faulthandler.enable(file=2)
    if WHERE_SIGNAL is not None:
        faulthandler.register(WHERE_SIGNAL, file=2, all_threads=True, chain=False)
    for name, lines in job.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    if sys.platform == "linux":
        # the default that torch's DataLoader expects; notebook classes then need no pickling
        multiprocessing.set_start_method("fork", force=True)
    if job.scratch:
        # for multiprocessing's sockets: a killed process cannot remove its own folder
        multiprocessing.current_process()._config["tempdir"] = job.scratch  # type: ignore[attr-defined]
    _seed(job.seed)
    workload: Callable[[Settings], Any] = cloudpickle.loads(job.workload)
    _become_main(workload)
    _apply.apply(job.values, job.threads)
    return workload


def _seed(seed: int) -> None:
    import random

    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _become_main(workload: Any) -> None:
    """Put the notebook's names into ``__main__`` here too.

    Loader workers send batches of notebook classes by plain pickle, which looks the classes up
    there.
    """
    function = workload
    while not isinstance(function, types.FunctionType):
        inner = getattr(function, "__func__", None) or getattr(function, "func", None)
        if inner is None:
            inner = vars(type(function)).get("__call__")
            if not isinstance(inner, types.FunctionType):
                return
        function = inner
    if function.__module__ != "__main__":
        return
    module = types.ModuleType("__main__")
    names = {k: v for k, v in function.__globals__.items() if not k.startswith("__")}
    vars(module).update(names)
    sys.modules["__main__"] = module


def started(workload: Callable[[Settings], Any], settings: Settings) -> Iterator[Any]:
    steps = workload(settings)
    try:
        return iter(steps)
    except TypeError:
        raise TypeError(
            f"the workload returned {type(steps).__name__} and no steps: it must be a generator "
            "function, with one `yield` at the end of each training step"
        ) from None


class _Recorder:
    """Times steps and sends them, window by window."""

    def __init__(
        self,
        stream: _Stream,
        loader: LoaderWait,
        watch: _fingerprint.Watch | None = None,
        phases: LivePhases | None = None,
    ) -> None:
        self._stream = stream
        self._phases = phases
        self._watch = watch
        self._loader = loader
        self._windows = Windows()
        self._stopwatch: Stopwatch = HostStopwatch()
        self._memory = SampledMemory(ResidentMemory())
        self._n_sent = 0
        self._setup_s: float | None = None
        self._faults_before: int | None = None
        self._workers_bytes: int | None = None
        self._clear()

    def _clear(self) -> None:
        self._end_s: list[float] = []
        self._wait_ms: list[float] = []
        self._bytes: list[int] = []
        self._quiet: list[bool] = []
        self._samples: list[int] = []  # -1 if unknown
        self._faults: list[int] = []
        self._loss: list[Any] = []

    def follow(self, steps: Iterator[Any], commands: Commands) -> str:
        """Run the steps; ``"ended"`` if they ran out, ``"finished"`` if the kernel asked for it."""
        clock = time.perf_counter
        looked_s = 0.0
        first = True
        while True:
            phases = self._phases if self._phases is not None and self._phases.is_on else None
            self._stopwatch.begin()
            self._faults_before = page_faults()
            if phases is not None:
                phases.step_begins()
            begin_s = clock()
            try:
                value = next(steps)
            except StopIteration:
                self._tell_gradients()
                return "ended"
            if first:
                begin_s = self._first_step(begin_s)
                first = False
            else:
                self._stopwatch.end()
            end_s = clock()
            if phases is not None:
                phases.step_ended(self._n_sent + len(self._end_s))
            self._note(value, begin_s, end_s)
            if self._watch is not None and self._watch.after_step():
                self._tell_gradients()
            action = self._windows.after_step(begin_s, end_s)
            if action == "send":
                self.send()
                if self._windows.sent(clock()):
                    # at the start of a quiet window, before its steps count
                    self._workers_bytes = workers_bytes() or self._workers_bytes
                self._see_phases()
            elif action == "beat":
                self._stream.say("beat")
            if end_s - looked_s >= _LOOK_EVERY_S:
                looked_s = end_s
                if commands.finish_asked():
                    self._tell_gradients()
                    return "finished"
                if commands.park_asked():
                    self.send()  # waits for the device, so no work of a step is left
                    self._stream.say("parked")
                    commands.wait_for_go()

    def _see_phases(self) -> None:
        """Where the time goes is looked at in live windows alone, after the watched steps."""
        if self._phases is None:
            return
        if self._windows.is_live and self._watch is None:
            self._phases.begin()
        else:
            self._phases.end()

    def _first_step(self, begin_s: float) -> float:
        """The first step begins at its first request for data; before that is set-up."""
        gpu = in_use()
        for used in gpu.devices():
            gpu.synchronize(used)
        asked_s = self._loader.first_asked_s
        began_s = begin_s if asked_s is None else asked_s
        self._setup_s = began_s - begin_s
        self._first_ms = max(time.perf_counter() - began_s, 0.0) * 1e3
        if gpu.is_cpu:
            self._stopwatch = HostStopwatch()
        else:
            index = busiest_gpu(gpu)
            self._stopwatch = device_stopwatch(gpu, index)
            self._memory = SampledMemory(AllocatorMemory(gpu, index))
        return began_s

    def _note(self, value: Any, begin_s: float, end_s: float) -> None:
        wait_s, fetched = self._loader.take()
        samples, loss = told(value)
        faults, before = page_faults(), self._faults_before
        self._faults.append(-1 if faults is None or before is None else faults - before)
        self._end_s.append(end_s)
        self._wait_ms.append(wait_s * 1e3)
        self._bytes.append(self._memory.at(end_s))
        self._quiet.append(self._windows.is_quiet(begin_s))
        known = samples if samples is not None else fetched
        self._samples.append(-1 if known is None else known)
        self._loss.append(loss)

    def _tell_gradients(self) -> None:
        """Send the gradients of the first steps, once; later steps are not watched."""
        watch, self._watch = self._watch, None
        found = None if watch is None else watch.found()
        if found is not None:
            self._stream.say("gradients", found=found.to_dict())

    def send(self) -> None:
        """Send the measurements since the last call."""
        n = len(self._end_s)
        step_ms = self._stopwatch.take()
        if self._n_sent == 0 and n:
            step_ms.insert(0, self._first_ms)
        # a step that raised began but never ended
        step = np.asarray(step_ms[:n], np.float64)
        if not n:
            return
        memory = self._memory.memory
        self._stream.say(
            "points",
            first=self._n_sent,
            end_s=np.asarray(self._end_s, np.float64).tobytes(),
            step_ms=step.tobytes(),
            wait_ms=np.minimum(np.asarray(self._wait_ms, np.float64), step).tobytes(),
            memory_bytes=np.asarray(self._bytes, np.int64).tobytes(),
            quiet=np.asarray(self._quiet, np.bool_).tobytes(),
            samples=np.asarray(self._samples, np.int64).tobytes(),
            page_faults=np.asarray(self._faults, np.int64).tobytes(),
            loss=np.asarray([as_float(x) for x in self._loss], np.float64).tobytes(),
            peak_bytes=memory.peak(),
            peak_kind=memory.peak_kind,
            on_gpu=isinstance(memory, AllocatorMemory),
            memory_kind=memory.now_kind,
            workers_bytes=self._workers_bytes,
            setup_s=self._setup_s,
            **({} if self._phases is None else self._phases.take()),
        )
        self._n_sent += n
        self._clear()


def told(value: Any) -> tuple[int | None, Any]:
    """Samples and loss from what a step yielded: ``n``, ``{"samples": n, "loss": x}`` or a loss.

    A whole number is a number of samples; a float or a scalar tensor is a loss.
    """
    if isinstance(value, Mapping):
        return _whole(value.get("samples")), _kept(value.get("loss"))
    samples = _whole(value)
    return (samples, None) if samples is not None else (None, _kept(value))


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or getattr(value, "is_floating_point", None) is not None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if 0 <= number <= _MOST_SAMPLES else None


def _kept(value: Any) -> Any:
    """A loss detached from its graph, which would keep the step's memory alive."""
    return value.detach() if hasattr(value, "detach") else value


def as_float(value: Any) -> float:
    """A loss as a number; NaN for anything else. Waits for a GPU, so only between windows."""
    if value is None or isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan
