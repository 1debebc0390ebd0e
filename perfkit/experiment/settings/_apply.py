"""Settings that perfkit itself applies in the run's process.

The workload applies the rest, with the helpers of
:class:`~perfkit.experiment.settings.Settings`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from perfkit.base.device import here
from perfkit.experiment.settings import _affinity

# cuBLAS is deterministic only with a fixed workspace; it reads this when it starts.
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def apply(values: Mapping[str, Any], threads: int | None) -> None:
    """Apply the declared settings; all others keep torch's defaults.

    Args:
        threads: torch's thread count in the kernel, for a workload that does not declare it.
    """
    import torch

    # before torch starts its threads, because they inherit the cores
    cores = _affinity.pin(values)
    wanted = values.get("threads", threads)
    if cores is not None and "threads" not in values:
        wanted = min(wanted or torch.get_num_threads(), len(cores))
    if wanted is not None and wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)
    if "precision" in values and here().has_tf32:
        tf32 = values["precision"] != "fp32"
        # fp32 means fp32: by default cuDNN's convolutions would use TF32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
    if "cudnn_benchmark" in values:
        torch.backends.cudnn.benchmark = values["cudnn_benchmark"]
    if "deterministic" in values:
        _be_deterministic(values["deterministic"])


def _be_deterministic(on: bool) -> None:
    import torch

    if on:
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
