"""Which lesson teaches which rule and which setting: the toolkit asks through an entry point.

And where each lesson stands on the course's map.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

# The notebooks lie beside the package in a clone, and inside it in an installed wheel.
_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = _PACKAGE / "_course" / "notebooks"
_NOTEBOOKS = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE.parent / "notebooks"

#: lesson -> the rules that it teaches; lessons to come are in it too
RULES: Mapping[str, tuple[str, ...]] = {
    "01-measure": ("start-up",),
    "02-read-a-trace": ("held-device",),
    "03-storage-and-formats": (
        "image-decode",
        "dataloader-slow-disk",
    ),
    "04-dataloader": (
        "dataloader-slow-workers",
        "dataloader-no-workers",
        "dataloader-slow-code",
        "dataloader-few-workers",
        "dataloader-blocked",
        "host-sleeps",
    ),
    "06-host-to-device": (
        "made-on-host",
        "pageable-copy",
    ),
    "07-sync-points": ("sync",),
    "08-custom-loss": (
        "host-python",
        "tiny-ops",
    ),
    "09-precision": (
        "tf32-off",
        "32-bits",
        "tensor-cores-unused",
        "float64",
        "emulated-format",
        "matmul-alignment",
    ),
    "10-compile": (
        "recompiles",
        "compile-gave-up",
        "graph-breaks",
        "graphs-anew",
        "kernel-gaps",
        "launch-bound",
        "small-calls",
        "optimizer-loop",
        "tensor-loop",
        "algorithm-search",
    ),
    "11-memory-anatomy": ("kept-graph",),
    "12-batch-and-accumulate": (
        "small-kernels",
        "optimizer-share",
    ),
    "13-allocator": ("device-allocations",),
    "14-cpu-tuning": (
        "one-thread",
        "too-many-threads",
    ),
    "15-data-parallel": (
        "data-parallel",
        "host-collectives",
        "communication",
    ),
    "18-capstone": (
        "validation-in-step",
        "logging-in-step",
        "gc-pauses",
    ),
}

#: lesson -> the settings that it teaches
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "03-storage-and-formats": ("storage",),
    "04-dataloader": (
        "num_workers",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
    ),
    "06-host-to-device": (
        "uint8",
        "pin_memory",
        "non_blocking",
    ),
    "08-custom-loss": ("loss",),
    "09-precision": (
        "precision",
        "deterministic",
    ),
    "10-compile": (
        "channels_last",
        "compile",
        "cuda_graphs",
        "fused",
        "foreach",
        "cudnn_benchmark",
    ),
    "11-memory-anatomy": (
        "set_to_none",
        "checkpointing",
    ),
    "12-batch-and-accumulate": (
        "batch_size",
        "accumulate",
    ),
    "13-allocator": (
        "collate",
        "alloc_conf",
    ),
    "14-cpu-tuning": (
        "threads",
        "affinity",
        "malloc",
    ),
    "15-data-parallel": (
        "world_size",
        "bucket_cap_mb",
    ),
}


_EVERYWHERE = ("data", "host", "launch", "compute", "memory", "network")

#: lesson -> its places on the map in its header (:mod:`perfkit.course.kit.map`)
PLACES: Mapping[str, tuple[str, ...]] = {
    "00-start-here": _EVERYWHERE,
    "01-measure": _EVERYWHERE,
    "02-read-a-trace": ("launch", "compute"),
    "03-storage-and-formats": ("data",),
    "04-dataloader": ("data", "host"),
    "05-remote-data": ("data",),
    "06-host-to-device": ("host", "memory"),
    "07-sync-points": ("host", "launch"),
    "08-custom-loss": ("host", "launch"),
    "09-precision": ("compute", "memory"),
    "10-compile": ("launch", "compute"),
    "11-memory-anatomy": ("memory",),
    "12-batch-and-accumulate": ("compute", "memory"),
    "13-allocator": ("memory",),
    "14-cpu-tuning": ("host",),
    "15-data-parallel": ("network",),
    "16-many-machines": ("network",),
    "17-time-or-money": _EVERYWHERE,
    "18-capstone": _EVERYWHERE,
    "19-forensics": _EVERYWHERE,
}


def lesson_of(kind: str, name: str) -> str | None:
    """The lesson about a rule or a setting whose notebook is here; the hook of perfkit.lessons."""
    lesson = _lessons().get((kind, name))
    return lesson if lesson and (_NOTEBOOKS / f"{lesson}.ipynb").is_file() else None


@functools.cache
def _lessons() -> Mapping[tuple[str, str], str]:
    taught = (("rule", RULES), ("setting", SETTINGS))
    return {
        (kind, name): lesson
        for kind, table in taught
        for lesson, names in table.items()
        for name in names
    }
