"""Garbage collections of what was recorded, and of nothing else."""

from __future__ import annotations

import gc
import time

import torch

from perfkit.trace import Recorder


def test_what_is_collected_after_the_time_limit_is_of_no_recorded_code() -> None:
    """The pauses of a whole minute were told as a share of its first ten seconds: 538 %."""
    with Recorder(max_seconds=0.3) as recorder:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            torch.rand(8).sum()
            gc.collect()
    recording = recorder.recording
    assert recording.n_steps_seen == 0
    collected_s = sum(recording.facts.gc_pauses_ms) / 1e3
    assert 0 < collected_s <= recording.coverage.profiled_s
