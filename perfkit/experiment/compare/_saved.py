"""A run as plain JSON types, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from perfkit.base.machine import Provenance
from perfkit.experiment.process._fingerprint import SavedFingerprint
from perfkit.experiment.process.events import Ended
from perfkit.experiment.process.phase_means import PhaseMeans
from perfkit.experiment.process.result import RunResult
from perfkit.measure.summary import Summary

# A run of a million steps would take a line of 100 MB; above this, neighbours are averaged.
_MOST_POINTS = 2000
_LONGEST_OUTPUT = 2000
_FLOATS = ("step_ms", "wait_ms", "loss")
_FLAGS, _NUMBERS = ("quiet", "counted"), ("index", "memory_bytes")

# JSON's numbers are exact up to here, and none of these comes near it
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Bytes = Annotated[int, Meta(ge=-(2**53), le=2**53)]
_Time = Annotated[float, Meta(ge=0)]


class _Curve(Struct):
    """The columns of a run, all of one length."""

    index: list[_Count]
    step_ms: list[_Time]
    wait_ms: list[_Time]
    memory_bytes: list[_Bytes]
    memory_kind: str
    quiet: list[bool]
    counted: list[bool]
    loss: list[float | None]  # None for what JSON cannot hold
    page_faults: list[_Bytes] = []  # an older perfkit did not count them

    def __post_init__(self) -> None:
        faults = ("page_faults",) if self.page_faults else ()
        for name in (*_FLOATS, *_FLAGS, *_NUMBERS, *faults):
            n = len(getattr(self, name))
            if n != len(self.index):
                raise ValueError(f"{name} has {n} values, index has {len(self.index)}")


class SavedRun(Struct):
    """A run as :func:`saved` writes it; what is not declared here is for other readers."""

    run_id: _Count
    values: dict[str, str | bool | int | float | None]
    state: Ended
    message: str
    summary: Summary | None
    wait_share: float | None
    samples_per_s: _Time | None
    peak_bytes: _Bytes | None
    peak_kind: str
    n_steps: _Count
    n_quiet: _Count
    n_counted: _Count
    workers_bytes: _Bytes | None
    setup_s: float | None
    first_point_s: float | None
    running_s: float
    curve: _Curve
    traceback: str
    warnings: tuple[str, ...]
    provenance: Provenance
    output: str
    gradients: SavedFingerprint | None = None
    phases: PhaseMeans = field(default_factory=PhaseMeans)  # an older perfkit did not see them
    prepared_s: float = 0.0  # nor did it tell this apart

    def run(self) -> RunResult:
        """The run."""
        curve = self.curve
        same = (
            "run_id values state message wait_share samples_per_s peak_bytes peak_kind n_steps "
            "n_quiet n_counted workers_bytes setup_s first_point_s prepared_s running_s output "
            "warnings provenance phases"
        )
        columns: dict[str, Any] = {
            **{name: np.asarray(getattr(curve, name), np.float64) for name in _FLOATS},
            **{name: np.asarray(getattr(curve, name), np.int64) for name in _NUMBERS},
            **{name: np.asarray(getattr(curve, name), np.bool_) for name in _FLAGS},
            "page_faults": np.asarray(curve.page_faults, np.int64),
        }
        return RunResult(
            **{name: getattr(self, name) for name in same.split()},
            step=self.summary,
            memory_kind=curve.memory_kind,
            gradients=None if self.gradients is None else self.gradients.fingerprint(),
            traceback_text=self.traceback,
            **columns,
        )


def saved(run: RunResult) -> dict[str, Any]:
    """Everything of a run that is needed later; a long curve is thinned, the figures are exact."""
    found = run.to_dict()
    found["summary"] = None if run.step is None else run.step.to_dict()
    found["output"] = run.output[-_LONGEST_OUTPUT:]
    found["curve"] = _thinned(run)
    plain: dict[str, Any] = _plain(found)
    return plain


def _thinned(run: RunResult) -> dict[str, Any]:
    n = len(run.index)
    each = max(math.ceil(n / _MOST_POINTS), 1)

    def means(values: NDArray[Any]) -> list[float]:
        groups = [values[i : i + each] for i in range(0, n, each)]
        return [round(float(np.mean(group)), 5) for group in groups]

    def alls(values: NDArray[np.bool_]) -> list[bool]:
        return [bool(values[i : i + each].all()) for i in range(0, n, each)]

    return {
        "each": each,
        "index": run.index[::each].tolist(),
        "memory_kind": run.memory_kind,
        "memory_bytes": run.memory_bytes[::each].tolist(),
        "page_faults": run.page_faults[::each].tolist(),
        "quiet": alls(run.quiet),
        "counted": alls(run.counted),
        **{name: means(getattr(run, name)) for name in _FLOATS},
    }


def _plain(value: Any) -> Any:
    """None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
