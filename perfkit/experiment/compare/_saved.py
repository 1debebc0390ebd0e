"""A run as plain JSON types, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.base.machine import Provenance
from perfkit.experiment.process._fingerprint import Fingerprint
from perfkit.experiment.process.events import FINAL_STATES
from perfkit.experiment.process.result import RunResult
from perfkit.measure.summary import Summary

# A run of a million steps would take a line of 100 MB; above this, neighbours are averaged.
_MOST_POINTS = 2000
_LONGEST_OUTPUT = 2000
_FLOATS = ("step_ms", "wait_ms", "loss")
_TEXTS = ("message", "peak_kind", "output", "traceback")
_NUMBERS = (
    *("wait_share", "samples_per_s", "peak_bytes", "workers_bytes", "setup_s", "first_point_s"),
    *("running_s", "run_id", "n_steps", "n_quiet", "n_counted"),
)
_MAY_LACK = frozenset(_NUMBERS[:6])
_SUMMARY = ("n", "median", "low", "high", "confidence", "minimum", "maximum")


def saved(run: RunResult) -> dict[str, Any]:
    """Everything of a run that is needed later; a long curve is thinned, the figures are exact."""
    found = run.to_dict()
    found["summary"] = None if run.step is None else run.step.to_dict()
    found["output"] = run.output[-_LONGEST_OUTPUT:]
    found["curve"] = _thinned(run)
    plain: dict[str, Any] = _plain(found)
    return plain


def run_of(found: Mapping[str, Any]) -> RunResult:
    """Read a run that :func:`saved` wrote.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: it is not a run.
    """
    curve, summary = found["curve"], found["summary"]
    _check(found)
    if summary is not None:
        summary = Summary(**summary | {"warnings": tuple(summary["warnings"])})
    same = (
        "run_id state message wait_share samples_per_s peak_bytes peak_kind n_steps n_quiet "
        "n_counted workers_bytes setup_s first_point_s running_s output"
    )
    columns: dict[str, Any] = {name: np.asarray(curve[name], np.float64) for name in _FLOATS}
    return RunResult(
        **{name: found[name] for name in same.split()},
        values=dict(found["values"]),
        step=summary,
        provenance=Provenance.from_dict(found["provenance"]),
        memory_kind=curve["memory_kind"],
        index=np.asarray(curve["index"], np.int64),
        memory_bytes=np.asarray(curve["memory_bytes"], np.int64),
        quiet=np.asarray(curve["quiet"], np.bool_),
        counted=np.asarray(curve["counted"], np.bool_),
        gradients=Fingerprint.from_dict(found["gradients"]) if found.get("gradients") else None,
        traceback_text=found["traceback"],
        warnings=tuple(found["warnings"]),
        **columns,  # a loss that JSON cannot hold is None in the file and NaN here
    )


def _check(found: Mapping[str, Any]) -> None:
    """Check a run's parts now, rather than where they are used.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: a part is invalid.
    """
    for name in _TEXTS:
        _must(isinstance(found[name], str), name, found[name])
    _must(found["state"] in FINAL_STATES, "state", found["state"])
    _must(all(isinstance(text, str) for text in found["warnings"]), "warnings", found["warnings"])
    for name in _NUMBERS:
        lacks = found[name] is None and name in _MAY_LACK
        _must(lacks or _is_number(found[name]), name, found[name])
    _must((found["samples_per_s"] or 0) >= 0, "samples_per_s", found["samples_per_s"])
    for name, value in dict(found["values"]).items():
        _must(_is_value(value), name, value)
    for name in _SUMMARY if found["summary"] is not None else ():
        _must(_is_number(found["summary"][name]), name, found["summary"][name])
    curve = found["curve"]
    n = len(curve["index"])
    for name in ("index", "memory_bytes", "quiet", "counted", *_FLOATS):
        column, kind = curve[name], bool if name in ("quiet", "counted") else int
        _must(isinstance(column, list) and len(column) == n, f"curve {name}", column)
        if name == "loss":
            _must(all(x is None or _is_number(x) for x in column), name, column)
        elif name in _FLOATS:
            _must(all(_is_number(x) and x >= 0 for x in column), name, column)
        else:
            _must(all(type(x) is kind for x in column), name, column)


def _must(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"its {name} is {value!r:.40}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


def _is_value(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _is_number(value)


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
