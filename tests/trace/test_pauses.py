"""Garbage collections of what was recorded, and of nothing else."""

from __future__ import annotations

import gc

import torch

from perfkit.base import collector
from perfkit.trace import Recorder


def test_what_is_collected_after_the_time_limit_is_of_no_recorded_code() -> None:
    """The pauses of a whole minute were told as a share of its first ten seconds: 538 %."""
    looked_at = [[n] for n in range(200_000)]  # some ms: what is shorter than 0.1 ms is not noted
    with collector.at_rest(), Recorder() as recorder:
        gc.collect()
        recorder._enough()  # as its clock says
        for _ in range(3):
            gc.collect()
    recording = recorder.recording
    assert recording.n_steps_seen == 0
    assert len(recording.facts.gc_pauses_ms) == 1
    assert sum(recording.facts.gc_pauses_ms) / 1e3 <= recording.coverage.profiled_s
    del looked_at


def test_what_perfkit_collects_between_two_steps_is_of_none() -> None:
    """A look of perfkit's own after a step had its imports collected: 123 % of the steps."""
    looked_at = [[n] for n in range(200_000)]
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with collector.at_rest(), Recorder(steps=4, on_step=lambda *_: gc.collect()) as recorder:
        for _ in range(8):
            model(torch.ones(4)).sum().backward()
            optimizer.step()
    assert recorder.recording.coverage.last_step > 0
    assert recorder.recording.facts.gc_pauses_ms == ()
    del looked_at
