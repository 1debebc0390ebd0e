"""Garbage collections of what was recorded, and of nothing else."""

from __future__ import annotations

import gc
import re
import time

import torch

import perfkit


def test_what_is_collected_after_the_time_limit_is_of_no_recorded_code() -> None:
    """The pauses of a whole minute were told as a share of its first ten seconds: 538 %."""
    keep = [[i] for i in range(200_000)]
    with perfkit.profile(max_seconds=0.3) as profiling:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            torch.rand(8).sum()
            gc.collect()
    (found,) = (f for f in profiling.result.diagnosis.findings if f.rule == "gc-pauses")
    shown = re.search(r"\(([\d.]+) %\)", found.evidence[0])
    assert shown, found.evidence[0]
    assert float(shown[1]) <= 100
    del keep
