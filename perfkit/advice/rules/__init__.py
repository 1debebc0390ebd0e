"""The rules: functions from a case to findings, independent of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding
from perfkit.advice.rules import (
    compiling,
    data,
    device,
    extras,
    host,
    loops,
    memory,
    optimizer,
    precision,
    ranks,
    shapes,
    transfers,
)

Rule = Callable[[Case], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    data.dataloader,
    data.images,
    host.start_up,
    host.python,
    host.beside_the_model,
    host.tiny_ops,
    host.launch_bound,
    compiling.recompiles,
    compiling.graph_breaks,
    extras.validation,
    extras.kept_graph,
    extras.logging,
    extras.garbage_collection,
    loops.indexing,
    loops.made_on_the_host,
    transfers.sync,
    transfers.pageable_copy,
    device.tensor_cores,
    device.small_grids,
    device.kernel_gaps,
    device.held_device,
    memory.nearly_full,
    memory.allocations,
    optimizer.single_tensor,
    optimizer.zero_grad,
    optimizer.large_update,
    precision.float64,
    precision.emulated_precision,
    precision.one_thread,
    shapes.conv_bias,
    shapes.alignment,
    ranks.data_parallel,
    ranks.slow_backend,
    ranks.host_collectives,
    ranks.communication,
)
