"""Real programs on this machine, and what the rules say about them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import perfkit
from perfkit.advice import Profile, explain


def _trained(model: nn.Module, x: torch.Tensor, loss_fn: nn.Module | None = None) -> Profile:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    y = torch.zeros(len(x), dtype=torch.long)
    compute = loss_fn or nn.CrossEntropyLoss()

    def step() -> None:
        compute(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return perfkit.profile(step, steps=4, warmup=1, shapes=True, lines=False)


def _rules(profile: Profile) -> set[str]:
    return {f.rule for f in profile.diagnosis.findings}


def _by_order(profile: Profile) -> Profile:
    """The same events in the same order and nesting, 5 µs from each begin or end to the next.

    A rule's verdict then depends on what the program did and how often, not on this machine's clock
    or load.
    """
    trace = profile.trace
    moments = np.unique(np.r_[trace.start_ns, trace.end_ns])
    start_us = 5.0 * np.searchsorted(moments, trace.start_ns)
    end_us = 5.0 * np.searchsorted(moments, trace.end_ns)
    return explain(replace(trace, start_us=start_us, dur_us=end_us - start_us))


class _LossInALoop(nn.Module):
    def forward(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = scores.new_zeros(())
        for i in range(len(y)):
            total = total - torch.log_softmax(scores[i], 0)[y[i]]
        return total / len(y)


@pytest.mark.slow
def test_a_loss_in_a_loop_and_the_same_loss_without() -> None:
    model, x = nn.Linear(16, 10), torch.randn(128, 16)
    loop = _by_order(_trained(model, x, _LossInALoop()))
    assert "tiny-ops" in _rules(loop)
    assert "tiny-ops" not in _rules(_by_order(_trained(model, x)))


def test_a_healthy_program_has_no_finding() -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    profile = _by_order(_trained(model, torch.randn(512, 512)))
    assert _rules(profile) <= {"one-thread"}  # of the machine, not of the program
    assert profile.diagnosis.bound_by == "compute"


@pytest.mark.slow
def test_collections_are_seen_and_nothing_listens_afterwards() -> None:
    before = list(gc.callbacks)
    keep = [[i] for i in range(300_000)]
    collect = gc.collect  # under a name that is not the one perfkit looks at
    profile = perfkit.profile(lambda: collect(), steps=2, warmup=0, lines=False)
    assert gc.callbacks == before
    assert "gc-pauses" in _rules(profile)
    del keep


def test_with_accumulation_every_micro_batch_is_one_step() -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = 0

    def micro_batch() -> None:
        nonlocal calls
        calls += 1
        model(torch.randn(4, 8)).sum().backward()
        if calls % 3 == 0:
            optimizer.step()

    assert perfkit.profile(micro_batch, steps=4, warmup=2, lines=False).n_steps == 4
    assert calls == 4 + 2 + 3  # warm-up, profiled, unprofiled


class _Resized(torch.utils.data.Dataset[torch.Tensor]):
    """Resizes an image that is in memory, or opens a file first."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._image = Image.effect_noise((900, 900), 50).convert("RGB")

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._path is not None:
            return torch.tensor(Image.open(self._path).convert("RGB").getpixel((0, 0)))
        return torch.tensor(self._image.resize((700, 700)).getpixel((0, 0)))


@pytest.mark.parametrize("from_file", [True, False])
@pytest.mark.slow
def test_work_on_images_in_a_data_set_is_named(from_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "noise.jpg"
    Image.effect_noise((900, 900), 50).convert("RGB").save(path)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def epoch() -> None:
        for x in DataLoader(_Resized(path if from_file else None), batch_size=8):
            model(x.float()).sum().backward()
            optimizer.step()

    rules = _rules(perfkit.profile(epoch, steps=5, warmup=1))
    assert "image-decode" in rules


@pytest.mark.parametrize(
    ("mode", "needs_grad", "fires"),
    [
        (torch.enable_grad, True, True),
        (torch.enable_grad, False, False),
        (torch.no_grad, True, False),
        (torch.inference_mode, True, False),
    ],
)
def test_inference_that_keeps_the_graph(
    mode: Callable[[], AbstractContextManager[object]], needs_grad: bool, fires: bool
) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model.requires_grad_(needs_grad)
    x = torch.randn(8, 64)

    def predict() -> None:
        with mode():
            model(x)

    profile = perfkit.profile(predict, steps=3, warmup=1, lines=False)
    assert ("kept-graph" in _rules(profile)) is fires


def test_training_keeps_the_graph_for_good_reason() -> None:
    assert "kept-graph" not in _rules(_trained(nn.Linear(16, 10), torch.randn(8, 16)))

    model = nn.Linear(8, 2)

    def gradients() -> None:
        model(torch.randn(4, 8)).sum().backward()

    assert "kept-graph" not in _rules(perfkit.profile(gradients, steps=2, warmup=0, lines=False))
