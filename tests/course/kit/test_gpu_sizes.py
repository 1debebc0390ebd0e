"""A cell takes a GPU's sizes on a GPU alone, and not on a played one."""

from __future__ import annotations

import pytest
import torch

from perfkit.course.kit import sizes


@pytest.mark.parametrize("played", [False, True])
def test_a_gpu_s_sizes_are_for_a_gpu(monkeypatch: pytest.MonkeyPatch, played: bool) -> None:
    monkeypatch.setattr(sizes, "is_played", lambda: played)
    for cpu in ("cpu", "cpu:0", torch.device("cpu")):
        assert not sizes.has_gpu_speed(cpu)
    for gpu in ("cuda", "cuda:1", torch.device("mps")):
        assert sizes.has_gpu_speed(gpu) is not played
