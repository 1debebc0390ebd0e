"""Settings that do not work together: refused combinations, and settings without effect.

A combination is refused if it would make a run meaningless or wrong, or fail at its first step. If
a setting merely has no effect, there is a note.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

Values = Mapping[str, Any]

_VARYING = ("pad", "bucket")
_GRAPHED_MODES = ("reduce-overhead", "max-autotune")

# Each entry: whether it applies, and why. Undeclared settings are not among the values.
_REFUSED: tuple[tuple[Callable[[Values], bool], str], ...] = (
    (
        lambda v: on(v, "deterministic") and on(v, "cudnn_benchmark"),
        "deterministic and cudnn_benchmark: the benchmark chooses kernels by time, so another run "
        "may choose others; switch one off",
    ),
    (
        lambda v: on(v, "fused") and v.get("foreach") is True,
        "fused and foreach: an optimizer has one implementation, and torch refuses both; "
        "switch one off",
    ),
    (
        lambda v: on(v, "cuda_graphs") and v.get("collate") in _VARYING,
        "cuda_graphs and collate pad or bucket: a graph replays the shapes that it was captured "
        "with, and these batches change; use collate='pad_to_max'",
    ),
    (
        lambda v: on(v, "cuda_graphs") and v.get("accumulate", 1) > 1,
        "cuda_graphs and accumulate: the captured step always updates, so nothing would be "
        "accumulated; set accumulate=1",
    ),
    (
        lambda v: on(v, "cuda_graphs") and v.get("precision") == "fp16",
        "cuda_graphs and precision='fp16': the gradient scaler asks the GPU in each step whether "
        "to update, which cannot be captured; use bf16",
    ),
    (
        lambda v: on(v, "cuda_graphs") and on(v, "checkpointing"),
        "cuda_graphs and checkpointing: recomputing restores the random state, which cannot be "
        "captured; switch one off",
    ),
    (
        lambda v: on(v, "cuda_graphs") and v.get("compile") in _GRAPHED_MODES,
        "cuda_graphs and compile='reduce-overhead' or 'max-autotune': both would capture the same "
        "step; use compile=True",
    ),
    (
        lambda v: on(v, "cuda_graphs") and v.get("world_size", 1) > 1,
        "cuda_graphs and world_size: perfkit's captured step does not wait for other processes; "
        "set world_size=1",
    ),
)


def on(values: Values, name: str) -> bool:
    """Whether a flag is declared and on."""
    return values.get(name) is True


def refused(values: Values) -> str | None:
    """Why these values cannot be combined; None if they can."""
    return next((words for applies, words in _REFUSED if applies(values)), None)


def without_effect(values: Values, defaults: Values) -> tuple[str, ...]:
    """Settings that have no effect beside the others, one sentence each."""
    told = [
        f"{name} has no effect without workers (num_workers=0)"
        for name in ("persistent_workers", "prefetch_factor", "in_order")
        if values.get("num_workers") == 0 and values.get(name, defaults[name]) != defaults[name]
    ]
    if values.get("affinity") == "apart" and values.get("num_workers") == 0:
        told.append("affinity='apart' has no effect without workers (num_workers=0)")
    if values.get("affinity") == "one" and values.get("threads", 1) > 1:
        told.append(f"affinity='one': {values['threads']} threads share one core")
    if on(values, "non_blocking") and values.get("pin_memory") is False:
        told.append("non_blocking has no effect from memory that is not pinned (pin_memory off)")
    bucket = values.get("bucket_cap_mb", defaults["bucket_cap_mb"])
    if values.get("world_size") == 1 and bucket != defaults["bucket_cap_mb"]:
        told.append("bucket_cap_mb has no effect with one process (world_size=1)")
    if on(values, "fused") and values.get("foreach") is False:
        told.append("foreach off has no effect with fused")
    if values.get("alloc_conf") == "default":
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            if os.environ.get(name):
                told.append(f"alloc_conf default: {name}={os.environ[name]} of this process stays")
    return tuple(told)
