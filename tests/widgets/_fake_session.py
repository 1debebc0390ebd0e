"""A Session without a child process: the test says when steps come and how a run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfkit.base.machine import facts, stamp
from perfkit.experiment.process.events import (
    Event,
    Points,
    RunFinished,
    RunStarted,
    State,
    StateChanged,
)
from perfkit.experiment.process.phase_means import PhaseMeans
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.settings import Setting, check_values, resolve
from perfkit.measure.summary import summarize


def _phases(step_ms: float) -> PhaseMeans:
    parts = {"data_wait": step_ms / 2, "forward": step_ms / 6, "backward": step_ms / 3}
    return PhaseMeans(parts, 20)


class FakeSession:
    """Steps take 40 ms without workers and 10 ms with them, plus a fixed ripple."""

    def __init__(
        self,
        workload: Any,
        settings: Sequence[str | Setting],
        *,
        seconds: float = 12.0,
        on_event: Callable[[Event], None] = lambda event: None,
        **timeouts_s: float,
    ) -> None:
        self.timeouts_s = timeouts_s
        self.settings = resolve(settings)
        self.runs: tuple[RunResult, ...] = ()
        self.closed = 0
        self.phases: PhaseMeans | None = None
        self.rate: float | None = None  # samples per second; None: 8 a step
        self.calls: list[str] = []
        self.finish_at_once = True
        self.on_event = on_event
        self._values: dict[str, Any] = {}
        self._run_id = 0
        self._index = 0
        self._ended = threading.Event()

    def start(self, **values: Any) -> int:
        chosen = check_values(self.settings, values, facts())
        if self._run_id and not self._ended.is_set():
            self.finish("stopped")
        self._values = chosen
        self._run_id += 1
        self._index = 0
        self._ended.clear()
        self.on_event(RunStarted(self._run_id, self._values))
        self.on_event(StateChanged(self._run_id, "running"))
        if self.finish_at_once:
            self.steps(30)
            self.finish()
        return self._run_id

    def steps(self, n: int, *, quiet: bool = True) -> None:
        base = 10.0 if self._values.get("num_workers") else 40.0
        index = np.arange(self._index, self._index + n)
        step_ms = base + 0.1 * (index % 7)
        self._index += n
        self.on_event(
            Points(
                self._run_id,
                index,
                step_ms,
                0.5 * step_ms,
                np.full(n, 300 * 2**20, np.int64),
                np.full(n, quiet),
            )
        )

    def finish(self, state: State = "done", message: str = "", traceback_text: str = "") -> None:
        measured = state in ("done", "stopped")
        base = 10.0 if self._values.get("num_workers") else 40.0
        step_ms = base + 0.1 * (np.arange(30) % 7) if measured else np.empty(0)
        result = RunResult(
            run_id=self._run_id,
            values=dict(self._values),
            state=state,
            message=message,
            step=summarize(step_ms, unit="ms") if measured else None,
            wait_share=0.5 if measured else None,
            samples_per_s=self.rate or 8e3 / float(step_ms.mean()) if measured else None,
            peak_bytes=300 * 2**20 if measured else None,
            peak_kind="resident memory, with workers",
            n_steps=len(step_ms),
            n_quiet=len(step_ms),
            provenance=stamp(),
            n_counted=len(step_ms),
            index=np.arange(len(step_ms)),
            step_ms=step_ms,
            wait_ms=0.5 * step_ms,
            memory_bytes=np.full(len(step_ms), 300 * 2**20, np.int64),
            quiet=np.ones(len(step_ms), bool),
            phases=self.phases or _phases(base) if measured else PhaseMeans(),
            counted=np.ones(len(step_ms), bool),
            traceback_text=traceback_text,
        )
        self.runs = (*self.runs, result)
        self.on_event(StateChanged(self._run_id, state, message))
        self.on_event(RunFinished(result))
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> RunResult:
        assert self._ended.wait(timeout_s or 10)
        return self.runs[-1]

    def stop(self) -> None:
        self.calls.append("stop")
        if self._run_id and not self._ended.is_set():
            self.finish("stopped")

    def pause(self) -> None:
        self.calls.append("pause")
        self.on_event(StateChanged(self._run_id, "paused"))

    def resume(self) -> None:
        self.calls.append("resume")
        self.on_event(StateChanged(self._run_id, "running"))

    @property
    def packed(self) -> str:
        return "packed"

    def close(self) -> None:
        self.closed += 1
