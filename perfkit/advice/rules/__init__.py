"""The rules, each a function from a case to findings; none knows of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding
from perfkit.advice.rules import data, host, optimizer, precision, transfers

Rule = Callable[[Case], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    data.dataloader,
    data.decoding,
    host.python,
    host.tiny_ops,
    host.launch_bound,
    transfers.sync,
    transfers.pageable_copy,
    optimizer.single_tensor,
    optimizer.zero_grad,
    optimizer.large_update,
    precision.float64,
    precision.emulated_precision,
    precision.one_thread,
)
