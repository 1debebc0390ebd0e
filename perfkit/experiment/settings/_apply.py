"""What perfkit itself applies in the run's process: cores and threads, then what each setting does.

The workload applies the rest, with the helpers of
:class:`~perfkit.experiment.settings.Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.experiment.settings import _affinity
from perfkit.experiment.settings.catalogue import CATALOGUE


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
    for name, one in CATALOGUE.items():
        if name in values:
            one.apply(values[name])
