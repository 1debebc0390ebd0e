"""The catalogue's process settings: cores, threads, allocators, kernels, ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from perfkit.experiment.settings import _malloc, _rules
from perfkit.experiment.settings._rules import on
from perfkit.experiment.settings._setting import Setting

_MOST_THREADS = 1024
_MOST_PROCESSES = 256
_MOST_BUCKET_MB = 65_536
_MALLOCS = ("system", "keep", "jemalloc", "tcmalloc")

_GPU = "a CUDA GPU"
_OTHER_KERNELS = "Different kernels add in a different order."


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _thread_counts() -> tuple[int, ...]:
    """1, 2, 4 … up to the number of cores, and that number itself."""
    cores = _cores()
    return tuple(sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores}))


def _conf_environment(value: Any) -> Mapping[str, str]:
    """The environment variable that torch's allocator reads."""
    return {} if value == "default" else {"PYTORCH_ALLOC_CONF": value}


def _try_algorithms(benchmark: Any) -> None:
    import torch

    torch.backends.cudnn.benchmark = benchmark


def _be_deterministic(on: Any) -> None:
    import torch

    if on:
        # cuBLAS is deterministic only with a fixed workspace; it reads this when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "threads",
        "torch threads",
        _thread_counts(),
        _cores(),
        "slider",
        "rebuild",
        "Threads with which torch computes on the CPU, in the training process.",
        numerics="rounding",
        numerics_note="Sums are split among the threads.",
        applied_by="perfkit",
        _accept=_rules.whole_number(1, _MOST_THREADS),
        _hint=_rules.more_than_cores("threads"),
    ),
    Setting(
        "affinity",
        "cores",
        ("any", "one", "apart"),
        "any",
        "menu",
        "rebuild",
        "Any core, all on one, or loader workers on other cores than the training.",
        numerics="none",
        numerics_note="The same numbers on other cores.",
        needs="Linux; apart: two cores",
        applied_by="perfkit",
        _accept=_rules.one_of(("any", "one", "apart")),
        _need=_rules.several_cores_for("any", "apart"),
    ),
    Setting(
        "malloc",
        "CPU allocator",
        _MALLOCS,
        "system",
        "menu",
        "process",
        "Which malloc serves CPU tensors, numpy and Python: the system's, the same told to keep "
        "what is freed, or another one, put in front by LD_PRELOAD.",
        environment=_malloc.environment,
        numerics="none",
        numerics_note="The same numbers at other addresses.",
        needs="Linux; keep: glibc; others: their library",
        applied_by="perfkit",
        _accept=_rules.one_of(_MALLOCS),
        _need=_rules.malloc_here,
    ),
    Setting(
        "alloc_conf",
        "GPU allocator options",
        ("default", "expandable_segments:True", "max_split_size_mb:128", "backend:cudaMallocAsync"),
        "default",
        "menu",
        "process",
        "Options of torch's allocator of GPU memory, as in PYTORCH_ALLOC_CONF.",
        environment=_conf_environment,
        numerics="none",
        numerics_note="The same numbers at other addresses.",
        needs=_GPU,
        applied_by="perfkit",
        _accept=_rules.alloc_conf,
        _need=_rules.caching_allocator_here,
    ),
    Setting(
        "cudnn_benchmark",
        "try cuDNN's algorithms",
        (False, True),
        False,
        "checkbox",
        "step",
        "cuDNN times its convolution algorithms at each new shape and keeps the fastest.",
        numerics="rounding",
        numerics_note=f"{_OTHER_KERNELS} Which ones, may differ from run to run.",
        needs=_GPU,
        applied_by="perfkit",
        _accept=_rules.flag,
        _need=_rules.cuda_when_on("cuDNN works on NVIDIA GPUs"),
        _apply=_try_algorithms,
    ),
    Setting(
        "deterministic",
        "the same each time",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "Only operators that give the same bits each time; torch refuses those that cannot.",
        numerics="rounding",
        numerics_note=_OTHER_KERNELS,
        applied_by="perfkit",
        _accept=_rules.flag,
        _apply=_be_deterministic,
        _refused=(
            (
                lambda v: on(v, "deterministic") and on(v, "cudnn_benchmark"),
                "deterministic and cudnn_benchmark: the benchmark chooses kernels by time, so "
                "another run may choose others; switch one off",
            ),
        ),
    ),
    Setting(
        "world_size",
        "processes",
        (1, 2, 4),
        1,
        "menu",
        "rebuild",
        "Processes that train together, each on its part of the batch; torchrun starts them, and "
        "their process group exists when the workload begins.",
        numerics="changes what is learnt",
        numerics_note="The batch is as many times larger; at the same total, the same up to "
        "rounding.",
        needs="a GPU for each, or torch with gloo on a CPU",
        _accept=_rules.whole_number(1, _MOST_PROCESSES),
        _need=_rules.processes_here,
        _hint=_rules.processes_share_cores,
    ),
    Setting(
        "bucket_cap_mb",
        "gradient bucket (MiB)",
        (1, 5, 25, 100),
        25,
        "slider",
        "rebuild",
        "DDP sends gradients in pieces of this size, while the backward pass goes on.",
        numerics="rounding",
        numerics_note="Gradients are summed in different pieces.",
        applied_by="ddp_kwargs",
        _accept=_rules.whole_number(1, _MOST_BUCKET_MB),
    ),
)
