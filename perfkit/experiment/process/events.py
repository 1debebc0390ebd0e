"""What a :class:`~perfkit.experiment.process.session.Session` reports while a workload runs.

Events arrive in order, from one thread per run, through the session's ``on_event``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from perfkit.experiment.process.result import RunResult

#: The states in which a run has ended.
Ended = Literal["done", "stopped", "failed", "out of memory", "hung", "killed"]
State = Literal["starting", "warm-up", "running", "paused", Ended]
FINAL_STATES: frozenset[State] = frozenset(get_args(Ended))


@dataclass(frozen=True)
class RunStarted:
    """A run begins and its process is being started.

    Attributes:
        run_id: 1 for the session's first run, counting up.
        values: the value of every setting.
        notes: notes on these values, e.g. about a setting without effect.
    """

    run_id: int
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Points:
    """Measured steps, oldest first, as arrays of equal length.

    Attributes:
        index: index of the step in its run, from 0.
        step_ms: duration of the step.
        wait_ms: how much of it the training thread waited for the DataLoader.
        memory_bytes: the memory that :attr:`RunResult.memory_kind` names, at the end of the step.
        quiet: whether nothing was sent or drawn during the step. Only quiet steps after the
            warm-up count in a run's summary; the others are shown as perturbed.
    """

    run_id: int
    index: NDArray[np.int64]
    step_ms: NDArray[np.float64]
    wait_ms: NDArray[np.float64]
    memory_bytes: NDArray[np.int64]
    quiet: NDArray[np.bool_]


@dataclass(frozen=True)
class StateChanged:
    """The run changed its state; ``message`` has details, if any, in one line."""

    run_id: int
    state: State
    message: str = ""


@dataclass(frozen=True)
class RunFinished:
    """The run and its processes have ended; carries the result."""

    result: RunResult


Event = RunStarted | Points | StateChanged | RunFinished
