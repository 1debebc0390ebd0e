"""One run from start to result, in its own thread.

The thread reads the child's messages, passes them on as events, and enforces the limits: the run's
length, the longest step, the time for a stop. It also carries out requests (stop, pause, resume),
so that events come in order from one place.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perfkit.base.errors import PerfkitError
from perfkit.base.machine import facts, stamp
from perfkit.base.scratch import scratch_folder
from perfkit.experiment.process import _failure, _process
from perfkit.experiment.process._failure import Failure
from perfkit.experiment.process._figures import Curve, Figures, Pauses, figures
from perfkit.experiment.process._fingerprint import STEPS, Fingerprint
from perfkit.experiment.process._job import Job
from perfkit.experiment.process.events import (
    Event,
    Points,
    RunFinished,
    RunStarted,
    State,
    StateChanged,
)
from perfkit.experiment.process.phase_means import PhaseRows
from perfkit.experiment.process.result import NO_STEP, RunResult

Request = Literal["stop", "pause", "park", "resume"]

# A stop waits for the end of the current step; a step that lasts longer than this is cut off, so
# that a stop takes less than a second.
_STOP_WITHIN_S = 0.5
# Time for a workload to clean up after its last step.
_CLEAN_UP_WITHIN_S = 3.0
# Time for a hanging child to report where it is.
_WHERE_WITHIN_S = 0.5
# A run whose steps are longer than the run itself still gets this many.
_FEWEST_STEPS = 3
_OUTPUT_BYTES = 64 * 1024
# How often the thread checks its limits while nothing happens.
_LOOK_EVERY_S = 0.5

_JUNK = (
    "the workload wrote into the pipe through which its process reports its steps: write only to "
    "file descriptors that you opened, and not to one that was closed meanwhile"
)

# Runs of this process that are in progress: they disturb each other.
_going_on: set[Run] = set()
_going_on_lock = threading.Lock()


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        workload: pickled by cloudpickle.
        sources: source of notebook cells, by file name.
        environment: environment variables that a new program needs for these values; empty if no
            new program is needed.
        watched: whether there is a listener for the events, which may draw them.
    """

    run_id: int
    workload: bytes
    sources: Mapping[str, list[str]]
    values: Mapping[str, Any]
    notes: tuple[str, ...]
    environment: Mapping[str, str]
    seconds: float
    step_timeout_s: float
    start_timeout_s: float
    warmup: int
    seed: int
    watched: bool = True


class Run:
    """One run; :meth:`start` it once.

    Args:
        emit: called with each event; must not raise.
        ended: called with the result, before the event that announces it.
    """

    def __init__(
        self, plan: Plan, emit: Callable[[Event], None], ended: Callable[[RunResult], None]
    ) -> None:
        self.plan = plan
        self.state: State = "starting"
        self.result: RunResult | None = None
        self.finished = threading.Event()
        self._emit = emit
        self._ended = ended
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._child: _process.Child | None = None
        self._thread = threading.Thread(
            target=self._work, name=f"perfkit-run-{plan.run_id}", daemon=True
        )
        self._curve = Curve()
        self._phases = PhaseRows()
        self._pauses = Pauses()
        self._output = bytearray()
        self._last: dict[str, Any] = {}
        self._gradients: Fingerprint | None = None
        self._begun = False
        self._failure: Failure | None = None
        self._done = False
        self._after_end: Failure | None = None
        self._finish_asked = False
        self._want_pause = False
        self._parks = False
        self._kill_at_s: float | None = None
        self._where_from: int | None = None
        self._first_end_s: float | None = None
        self._first_point_s: float | None = None
        self._prepared_s = 0.0
        self._overlapped = False

    # --- from other threads -------------------------------------------------------------

    def start(self) -> None:
        """Begin the run; returns at once."""
        self._thread.start()

    def in_own_thread(self) -> bool:
        """Whether the caller is an event callback of this run."""
        return threading.current_thread() is self._thread

    def ask(self, request: Request) -> None:
        """Ask the run to stop, pause or resume; returns at once."""
        self._requests.put(request)
        child = self._child
        if child is not None:
            child.wake()

    def stop(self) -> None:
        """Stop, and wait until all its processes have ended (below 1 s)."""
        self.ask("stop")
        if self.in_own_thread():
            return
        if not self.finished.wait(_STOP_WITHIN_S + 1.0):
            child = self._child
            if child is not None:  # the thread is stuck, perhaps in a callback
                child.kill()
            self.finished.wait(5.0)

    # --- the thread -----------------------------------------------------------------------

    def _meet_others(self) -> None:
        """Note which runs are active at once: they disturb each other, paused ones do not."""
        with _going_on_lock:
            for other in _going_on - {self}:
                if other._pauses.since_s is None:
                    other._overlapped = self._overlapped = True

    def _work(self) -> None:
        self._began_s = time.perf_counter()
        self._oom_kills = _failure.oom_kill_count()
        with _going_on_lock:
            _going_on.add(self)
        self._meet_others()
        code = 0
        try:
            self._emit(RunStarted(self.plan.run_id, dict(self.plan.values), self.plan.notes))
            self._enter("starting")
            with scratch_folder() as scratch:
                code = self._follow(str(scratch))
        except _NotStarted:
            pass
        except PerfkitError as error:
            self._failure = Failure("failed", str(error))
        except BaseException as error:
            # whatever happens, the run must end with a result that says so
            text = "".join(traceback.format_exception(error))
            self._failure = Failure("failed", f"perfkit itself failed: {error!r}", text)
        finally:
            if self._child is not None:
                self._child.close()
            with _going_on_lock:
                _going_on.discard(self)
            result = self.result = self._made(code)
            self.state = result.state
            self._ended(result)
            self._emit(StateChanged(self.plan.run_id, result.state, result.message))
            self._emit(RunFinished(result))
            self.finished.set()

    def _follow(self, scratch: str) -> int:
        """Read and act until the child has ended; return its exit code."""
        child = self._child = _process.new_child(self.plan.environment)
        child.send({"k": "job", "job": pickle.dumps(self._job(scratch))})
        self._sign_s = time.perf_counter()
        while True:
            for kind, content in child.news(self._patience_s()):
                self._sign_s = max(self._sign_s, time.perf_counter())
                if kind == "exit":
                    return int(content)
                if kind == "pid" and not self.plan.environment:
                    self._prepared_s = time.perf_counter() - self._began_s
                if kind == "output":
                    self._output += content
                    del self._output[:-_OUTPUT_BYTES]
                elif kind == "message":
                    self._hear(content)
                elif kind == "junk" and self._failure is None:
                    self._failure = Failure("failed", _JUNK)
                    self._kill_at_s = time.perf_counter()
            self._answer_requests(child)
            self._hold_limits(child)

    def _job(self, scratch: str) -> Job:
        return Job(
            workload=self.plan.workload,
            values=dict(self.plan.values),
            seed=self.plan.seed,
            sys_path=list(sys.path),
            cwd=os.getcwd(),  # noqa: PTH109 - the child needs the text
            environment={**os.environ, **self.plan.environment},
            sources=dict(self.plan.sources),
            threads=_threads_here(),
            scratch=scratch,
            # the hook disturbs no step that counts; the last warm-up step is left out because a
            # compiled optimizer step may be recompiled when the hook is removed
            watched_steps=min(max(self.plan.warmup - 1, 1), self.plan.warmup, STEPS),
            phases=self.plan.watched,  # else all steps count, and none is to be disturbed
        )

    def _enter(self, state: State, message: str = "") -> None:
        if state != self.state or state == "starting":
            self.state = state
            self._emit(StateChanged(self.plan.run_id, state, message))

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["k"]
        if kind == "begun":
            self._begun = True
            self._enter("warm-up")
        elif kind == "points":
            self._take_points(message)
        elif kind == "gradients":
            self._gradients = Fingerprint.from_dict(message["found"])
        elif kind == "parked" and self._parks:
            self._stands_still(between_steps=True)
        elif kind == "done":
            self._done = True
            self._kill_at_s = time.perf_counter() + _CLEAN_UP_WITHIN_S
        elif kind == "failed":
            if self._done:
                self._after_end = Failure("done", message["message"], message["traceback"])
            else:
                self._failure = Failure(message["state"], message["message"], message["traceback"])
                self._last = self._last | {"on_gpu": message.get("on_gpu", self._on_gpu())}
            self._kill_at_s = time.perf_counter() + _CLEAN_UP_WITHIN_S

    def _take_points(self, message: dict[str, Any]) -> None:
        self._last = message
        part = self._curve.take(message, self._pauses)
        self._phases.take(message, part["index"], self.plan.warmup)
        if self._first_point_s is None:
            self._first_point_s = time.perf_counter() - self._began_s
            self._first_end_s = time.perf_counter()
        if len(part["index"]):
            self._emit(
                Points(
                    self.plan.run_id,
                    part["index"],
                    part["step_ms"],
                    part["wait_ms"],
                    part["memory_bytes"],
                    part["quiet"],
                )
            )
        if self.state == "warm-up" and self._curve.n > self.plan.warmup:
            self._enter("running")

    def _stands_still(self, *, between_steps: bool) -> None:
        child = self._child
        if child is None or self._failure is not None or self._done:
            return
        self._pauses.begin(time.perf_counter(), between_steps=between_steps)
        child.pause()  # including its loader workers and threads
        self._enter("paused")

    def _answer_requests(self, child: _process.Child) -> None:
        now_s = time.perf_counter()
        while not self._requests.empty():
            request = self._requests.get()
            if request == "stop":
                self._stop(child, now_s)
            else:
                self._want_pause = request == "pause"
                if request == "park" and self._pauses.since_s is None:
                    self._parks = True
                    child.send({"k": "park"})
                elif request == "resume" and self._parks:
                    self._go_on(child)
        paused = self._pauses.since_s is not None
        if self._failure is not None or self._done or self._parks or paused == self._want_pause:
            return
        if self._want_pause and child.pid is not None and self._begun:
            self._stands_still(between_steps=False)
        elif not self._want_pause and paused:
            self._go_on(child)

    def _go_on(self, child: _process.Child) -> None:
        paused = self._pauses.since_s is not None
        if paused:
            child.resume()
            self._pauses.end(time.perf_counter())
            self._sign_s = time.perf_counter()
            self._meet_others()
        if self._parks:
            self._parks = False
            child.send({"k": "go"})
        if paused:
            self._enter("running" if self._curve.n > self.plan.warmup else "warm-up")

    def _stop(self, child: _process.Child, now_s: float) -> None:
        if self._failure is not None or self._done:
            return
        self._failure = Failure("stopped", "")
        if self._parks and self._pauses.since_s is not None:
            # between two steps it can end as after the last one, and clean up
            child.resume()
            self._pauses.end(now_s)
            child.send({"k": "finish"})
            self._kill_at_s = now_s + _STOP_WITHIN_S
        elif not self._begun or self._pauses.since_s is not None:
            self._kill_at_s = now_s
        else:
            child.send({"k": "finish"})
            self._kill_at_s = now_s + _STOP_WITHIN_S

    def _hold_limits(self, child: _process.Child) -> None:
        now_s = time.perf_counter()
        if self._kill_at_s is not None:
            if now_s >= self._kill_at_s:
                self._kill(child)
            return
        if self._pauses.since_s is not None:
            return
        limit_s = self._silence_limit_s()
        if now_s - self._sign_s > limit_s:
            self._hangs(child, limit_s)
        elif self._time_is_up(now_s):
            # counted here, because the child does not know about pauses
            child.send({"k": "finish"})
            self._finish_asked = True

    def _time_is_up(self, now_s: float) -> bool:
        return (
            not self._finish_asked
            and self._curve.n >= _FEWEST_STEPS
            and self._running_s(now_s) >= self.plan.seconds
        )

    def _silence_limit_s(self) -> float:
        return self.plan.start_timeout_s if self._first_end_s is None else self.plan.step_timeout_s

    def _running_s(self, now_s: float) -> float:
        if self._first_end_s is None:
            return 0.0
        return now_s - self._first_end_s - self._pauses.total_s(now_s)

    def _hangs(self, child: _process.Child, limit_s: float) -> None:
        what = "step" if self._first_end_s is not None else "first step"
        self._failure = Failure("hung", f"no {what} within {limit_s:g} s")
        self._where_from = len(self._output)
        child.ask_where()
        self._kill_at_s = time.perf_counter() + _WHERE_WITHIN_S

    def _kill(self, child: _process.Child) -> None:
        self._kill_at_s = float("inf")
        if child.pid is None and not self._begun:
            # the prepared process is still loading; its guard will notice that nobody waits
            raise _NotStarted
        child.kill()

    def _patience_s(self) -> float:
        """How long to wait for news before a limit has to be checked."""
        now_s = time.perf_counter()
        waits = [_LOOK_EVERY_S]
        if self._kill_at_s is not None:
            waits.append(self._kill_at_s - now_s)
        elif self._pauses.since_s is None:
            waits.append(self._sign_s + self._silence_limit_s() - now_s + 0.001)
            if not self._finish_asked and self._curve.n >= _FEWEST_STEPS:
                waits.append(self.plan.seconds - self._running_s(now_s))
        return max(min(waits), 0.005)

    # --- the result -------------------------------------------------------------------------

    def _made(self, code: int) -> RunResult:
        output = self._output.decode(errors="replace")
        failure = self._how_it_ended(code, output)
        try:
            found = figures(self._curve, self.plan.warmup, watched=self.plan.watched)
        except PerfkitError as error:
            found = figures(Curve(), self.plan.warmup)
            failure = Failure("failed", f"its steps cannot be summarised: {error}")
        return self._result(failure, found, output)

    def _how_it_ended(self, code: int, output: str) -> Failure:
        failure = self._failure
        if failure is not None and failure.state == "hung":
            dump = output[min(self._where_from or 0, len(output)) :]
            where = _failure.innermost(dump)
            hint = "raise step_timeout_s if a step may take longer"
            if self._first_end_s is None:
                hint = "raise start_timeout_s if building takes that long"
            at = f"; it was at {where}" if where else ""
            return Failure("hung", f"{failure.message}{at}; {hint}", dump)
        if failure is not None:
            return failure
        if self._done:
            if not self._curve.n and not self._last:
                return Failure("failed", NO_STEP)
            return self._cleaned_up(code, output)
        if self._child is not None and self._child.pid is None and not self._begun:
            return Failure("failed", _process.why_no_child())
        return _failure.of_exit(
            code,
            output=output,
            # the system does not kill a process for its GPU memory
            last_bytes=0 if self._on_gpu() else int(self._last.get("peak_bytes") or 0),
            ram_bytes=facts().ram_bytes,
            oom_kills=_failure.oom_kill_count() - self._oom_kills,
        )

    def _cleaned_up(self, code: int, output: str) -> Failure:
        """All steps are measured: report what went wrong afterwards, but do not fail the run."""
        after = self._after_end
        if after is not None:
            words = f"its steps are measured; cleaning up then failed: {after.message}"
            return Failure("done", words, after.traceback_text)
        if self._kill_at_s == float("inf"):
            limit = f"cleaning up took longer than {_CLEAN_UP_WITHIN_S:g} s and was cut off"
            return Failure("done", f"its steps are measured; {limit}")
        if code:
            ended = _failure.of_exit(code, output=output, last_bytes=0, ram_bytes=1, oom_kills=0)
            return Failure("done", f"its steps are measured; then {ended.message}", output)
        return Failure("done", "")

    def _on_gpu(self) -> bool:
        return bool(self._last.get("on_gpu"))

    def _result(self, failure: Failure, found: Figures, output: str) -> RunResult:
        curve, last = self._curve, self._last
        end_s = curve.column("end_s")
        warnings = [*self.plan.notes, *found.warnings]
        if self._overlapped:
            warnings.append("another run went on in parallel: they disturbed each other")
        running_s = 0.0
        if len(end_s) > 1:
            between = [s for s in self._pauses.spans_s if end_s[0] <= s[0] <= end_s[-1]]
            running_s = float(end_s[-1] - end_s[0]) - sum(b - a for a, b in between)
        return RunResult(
            run_id=self.plan.run_id,
            values=dict(self.plan.values),
            state=failure.state,
            message=failure.message,
            step=found.step,
            wait_share=found.wait_share,
            samples_per_s=found.samples_per_s,
            peak_bytes=last.get("peak_bytes"),
            peak_kind=last.get("peak_kind", ""),
            n_steps=curve.n,
            n_quiet=found.n_quiet,
            provenance=stamp(seed=self.plan.seed, device=None if self._on_gpu() else "cpu"),
            n_counted=int(found.counted.sum()),
            memory_kind=last.get("memory_kind", ""),
            workers_bytes=last.get("workers_bytes"),
            index=curve.column("index"),
            step_ms=curve.column("step_ms"),
            wait_ms=curve.column("wait_ms"),
            memory_bytes=curve.column("memory_bytes"),
            quiet=curve.column("quiet"),
            counted=found.counted,
            loss=curve.column("loss"),
            page_faults=curve.column("page_faults"),
            gradients=self._gradients,
            phases=self._phases.means(),
            setup_s=last.get("setup_s"),
            first_point_s=self._first_point_s,
            prepared_s=self._prepared_s,
            running_s=running_s,
            output=output,
            traceback_text=failure.traceback_text,
            warnings=tuple(warnings),
        )


def _threads_here() -> int | None:
    """The thread count of torch in this process; None if torch is not loaded."""
    ask = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return None if ask is None else int(ask())


class _NotStarted(Exception):  # noqa: N818 - not an error: a stop before the process started
    """The run was stopped before its process started."""
