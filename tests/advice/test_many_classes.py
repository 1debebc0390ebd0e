"""Scores of very many classes are told as the output layer's, and not as an embedding's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import perfkit
from perfkit.advice.findings import Finding


class _Words(nn.Module):
    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(n_words, 64), nn.Linear(64, n_words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.embed(words))
        return scores


def _found(n_words: int, *, momentum: float = 0.0) -> list[Finding]:
    model = _Words(n_words)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)

    def step() -> None:
        words = torch.randint(n_words, (32,))
        nn.functional.cross_entropy(model(words), words).backward()
        optimizer.step()
        optimizer.zero_grad()

    with perfkit.profile(lines=False) as prof:
        for _ in range(8):
            step()
    return list(prof.result.diagnosis.findings)


def test_most_of_a_step_goes_to_the_scores_of_very_many_classes() -> None:
    found = {f.rule: f for f in _found(30_000)}
    told = found["output-layer"]
    assert "AdaptiveLogSoftmaxWithLoss(features, 30000, cutoffs=[600, 6000])" in told.what_to_do
    assert told.changes
    assert list(found).index("output-layer") < list(found).index("dense-embedding")


def test_of_fewer_classes_nothing_is_told() -> None:
    assert "output-layer" not in {f.rule for f in _found(2_000)}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_plain_sgd_takes_the_gradients_of_a_sparse_table(momentum: float) -> None:
    found = {f.rule: f for f in _found(30_000, momentum=momentum)}["dense-embedding"]
    assert ("SparseAdam" in found.what_to_do) is bool(momentum)
    assert bool(found.changes) is bool(momentum)
