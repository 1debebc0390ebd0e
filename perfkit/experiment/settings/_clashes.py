"""Settings that have no effect beside others: a note, and the run goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from perfkit.experiment.settings._rules import on

Values = Mapping[str, Any]


def without_effect(values: Values, defaults: Values) -> tuple[str, ...]:
    """Settings that have no effect beside the others, one sentence each."""
    told = [
        f"{name} has no effect without workers (num_workers=0)"
        for name in ("persistent_workers", "prefetch_factor", "in_order")
        if values.get("num_workers") == 0 and values.get(name, defaults[name]) != defaults[name]
    ]
    if values.get("affinity") == "apart" and values.get("num_workers") == 0:
        told.append("affinity='apart' has no effect without workers (num_workers=0)")
    if values.get("affinity") == "apart" and "num_workers" not in values:
        told.append(
            "affinity='apart' keeps one core for all loader workers, because the setting "
            "num_workers is not declared: declare it, and each gets a core"
        )
    if values.get("affinity") == "one" and values.get("threads", 1) > 1:
        told.append(f"affinity='one': {values['threads']} threads share one core")
    if on(values, "non_blocking") and values.get("pin_memory") is False:
        told.append("non_blocking has no effect from memory that is not pinned (pin_memory off)")
    bucket = values.get("bucket_cap_mb", defaults["bucket_cap_mb"])
    if values.get("world_size") == 1 and bucket != defaults["bucket_cap_mb"]:
        told.append("bucket_cap_mb has no effect with one process (world_size=1)")
    if (n := values.get("world_size", 1)) > 1:
        told.append(f"step, samples/s and memory are those of rank 0 of {n}")
    if on(values, "fused") and values.get("foreach") is False:
        told.append("foreach off has no effect with fused")
    if values.get("alloc_conf") == "default":
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            if os.environ.get(name):
                told.append(f"alloc_conf default: {name}={os.environ[name]} of this process stays")
    return tuple(told)
