"""Layers that run again in the backward pass are told where there is memory for what they made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfkit.advice import explain
from perfkit.advice.findings import Finding
from perfkit.trace import Recorder


def _found(again: str, memory_bytes: int) -> dict[str, Finding]:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1, fused=True)
    with Recorder(steps=3, warmup=1) as recorder:
        for _ in range(6):
            x = torch.randn(256, 256, requires_grad=True)
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=again == "reentrant") if again else block(x)
            x.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = recorder.recording
    peak, _ = found.facts.memory or (0, 0)
    assert peak > 0
    facts = replace(found.facts, memory=(100, memory_bytes))
    told = explain(replace(found, facts=facts, busy=None)).diagnosis.findings
    return {f.rule: f for f in told}


@pytest.mark.parametrize("again", ["reentrant", "not"])
def test_checkpoints_that_save_memory_of_which_there_is_plenty(again: str) -> None:
    found = _found(again, 1_000)["checkpoints"]
    assert "hold less than 400 B" in found.evidence[0]  # three parts, and what is there now
    assert found.gain_at_most > 1.05


def test_without_checkpoints_or_with_little_memory_nothing_is_told_of_them() -> None:
    assert "checkpoints" not in _found("", 1_000)
    assert "checkpoints" not in _found("not", 700)
