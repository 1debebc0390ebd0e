"""What half the batch would give, beside what half the batch gives."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perfkit.memory.account import MemoryAccount, _half_batch, account
from perfkit.memory.categories import INPUTS


def _cnn() -> nn.Module:
    widths = (3, 16, 32, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 256), nn.Linear(256, 10))


def _wide() -> nn.Module:
    narrow = [nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU()]
    return nn.Sequential(*narrow, nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Tanh())


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor) -> None:
    optimizer.zero_grad()
    target = torch.arange(len(images)) % 10
    cross_entropy(model(images), target).backward()
    optimizer.step()


def _accounts(
    make: Callable[[], nn.Module],
    batch: int,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
) -> tuple[MemoryAccount, MemoryAccount]:
    """The second step with this batch and with half of it, the batch made in the region."""
    found = []
    for size in (batch, batch // 2):
        model = make()
        optimizer = make_optimizer(model.parameters())
        _train(model, optimizer, torch.randn(size, 3, 32, 32))
        found.append(
            account(
                lambda m=model, o=optimizer, n=size: _train(m, o, torch.randn(n, 3, 32, 32)),
                model=model,
                optimizer=optimizer,
            )
        )
        del model, optimizer
        gc.collect()  # the next one is not to be counted with this one's left-overs
    return found[0], found[1]


@pytest.mark.parametrize(
    "make_optimizer",
    [lambda p: torch.optim.Adam(p), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)],
    ids=["Adam", "SGD"],
)
@pytest.mark.parametrize("batch", [16, 64])
def test_a_cnn_is_predicted_to_a_few_percent(batch: int, make_optimizer: Any) -> None:
    whole, half = _accounts(_cnn, batch, make_optimizer)
    predicted = whole.half_batch_peak_bytes
    assert predicted is not None
    assert half.peak_bytes < 0.8 * whole.peak_bytes
    assert predicted == pytest.approx(half.peak_bytes, rel=0.03)


@pytest.mark.slow
def test_where_the_peak_moves_to_the_optimizer_it_is_followed() -> None:
    # 17 MB of weights: Adam's step makes a temporary of their size, whatever the batch is
    whole, half = _accounts(_wide, 2048, lambda p: torch.optim.Adam(p, foreach=False))
    assert whole.curve.phase[whole.curve.peak] != "optimizer"
    assert half.curve.phase[half.curve.peak] == "optimizer"
    assert whole.half_batch_peak_bytes == pytest.approx(half.peak_bytes, rel=0.03)
    # and where it is there from the start, half the batch would not help: nothing is said
    small = _accounts(_wide, 8, lambda p: torch.optim.Adam(p, foreach=False))[0]
    assert small.curve.phase[small.curve.peak] == "optimizer"
    assert small.half_batch_peak_bytes is None


def test_evaluation_is_predicted_too() -> None:
    model = _cnn().eval()

    def look(n: int) -> MemoryAccount:
        with torch.no_grad():
            return account(lambda: model(torch.randn(n, 3, 32, 32)), model=model)

    assert look(64).half_batch_peak_bytes == pytest.approx(look(32).peak_bytes, rel=0.03)


def test_a_data_set_of_which_the_batch_is_a_slice_does_not_shrink() -> None:
    data = torch.randn(2048, 3, 32, 32)
    model = _cnn()

    def look(n: int) -> MemoryAccount:
        return account(lambda: model(data[:n]).sum().backward(), model=model)

    look(4)
    whole, half = look(64), look(32)
    assert whole.at_peak_bytes["inputs"] == data.nbytes
    assert whole.half_batch_peak_bytes == pytest.approx(half.peak_bytes, rel=0.03)


def test_a_graph_that_an_earlier_step_left_does_not_shrink() -> None:
    """26 MiB of kept losses were halved with the batch of an evaluation that followed them."""
    model = _cnn().eval()
    kept = model(torch.randn(64, 3, 32, 32)).sum()

    def look(n: int) -> MemoryAccount:
        with torch.no_grad():
            return account(lambda: model(torch.randn(n, 3, 32, 32)), model=model)

    whole, half = look(64), look(32)
    assert whole.devices[0].at_start_bytes["activations"] > 2**20
    assert whole.half_batch_peak_bytes == pytest.approx(half.peak_bytes, rel=0.03)
    assert kept.grad_fn is not None


@pytest.mark.parametrize("n_samples", [1, 8])
def test_temporaries_of_a_sample_are_not_halved_with_the_batch(n_samples: int) -> None:
    """An augmentation's 64.9 MiB for one picture were halved; half the batch left them whole."""
    model = nn.Linear(16, 4)

    def sample() -> Tensor:
        return torch.ones(1 << 16).mul(2)[:16].clone()

    def step() -> None:
        model(torch.stack([sample() for _ in range(n_samples)])).sum().backward()

    assert account(step, model=model).half_batch_peak_bytes is None


def test_it_is_told_as_predicted_with_how() -> None:
    whole, _ = _accounts(_cnn, 16, lambda p: torch.optim.SGD(p, 0.1))
    words, page = " ".join(whole.to_text().split()), whole._repr_html_()
    assert "; half the batch would give " in words.split(". ")[0] + words.split(". ")[1]
    for said in ("(predicted); ", "Half the batch is predicted: inputs, activations"):
        assert said in words
        assert said in page
    assert whole.to_dict()["half_batch_peak_bytes"] == whole.half_batch_peak_bytes


def test_nothing_is_said_where_nothing_is_known() -> None:
    model = nn.Linear(64, 64)

    def fails() -> None:
        model(torch.randn(4096, 64)).sum().backward()
        raise KeyError("mine")

    from perfkit.memory.account import Accountant

    accountant = Accountant(model=model)
    with pytest.raises(KeyError), accountant:
        fails()
    no_model = account(lambda: torch.randn(1000, 1000).exp().sum())
    kept: list[Tensor] = []
    unknown = account(lambda: kept.append(torch.randn(4096, 256)), model=model)
    for result in (accountant.result, no_model, unknown):
        assert result.half_batch_peak_bytes is None
        assert "half the batch" not in result.to_text().lower()


@pytest.mark.parametrize(
    ("unknown", "saving", "said"),
    [(10, 40, True), (11, 40, False), (0, 5, True), (0, 4, False)],
)
def test_it_is_predicted_where_little_is_unknown_and_something_is_saved(
    unknown: int, saving: int, said: bool
) -> None:
    point: Any = SimpleNamespace(by_category={INPUTS: 1})
    half = 100 - saving
    totals: Any = SimpleNamespace(
        curve=[point], half_batch_bytes=half, half_batch_at_most_bytes=half
    )
    parts = {"other": 7}, {"other": 7 + unknown}, {"other": 7 + unknown}
    assert _half_batch(totals, parts, 100, 0) == (half if said else None)
    totals.half_batch_at_most_bytes = half + 11 - unknown  # what may be of one sample is unknown
    assert _half_batch(totals, parts, 100, 0) is None
    totals.half_batch_at_most_bytes = half
    totals.curve = []  # no batch was seen
    assert _half_batch(totals, parts, 100, 0) is None


def test_a_data_set_that_the_region_makes_does_not_shrink() -> None:
    """A loader's batches are copies of its rows, so no module is handed a part of it."""

    def train(batch: int) -> None:
        data = torch.utils.data.TensorDataset(torch.randn(1024, 1024))
        model = nn.Linear(1024, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for (x,) in torch.utils.data.DataLoader(data, batch):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    whole, half = account(lambda: train(64)), account(lambda: train(32))
    assert whole.at_peak_bytes["inputs"] >= 4 * 1024 * 1024
    assert whole.half_batch_peak_bytes == pytest.approx(half.peak_bytes, rel=0.03)


def test_what_is_kept_from_step_to_step_does_not_shrink() -> None:
    """Half the batch was advised where a loop had kept what it made in every step."""
    mib = 2**20

    def train(batch: int) -> None:
        model, kept = nn.Linear(1024, 4), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(8):
            x = torch.randn(batch, 1024)
            kept.append(torch.empty(mib // 4))
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    whole, half = account(lambda: train(64)), account(lambda: train(32))
    assert whole.peak_bytes >= 8 * mib
    predicted = whole.half_batch_peak_bytes or whole.peak_bytes
    assert half.peak_bytes - 1.5 * mib <= predicted <= whole.peak_bytes  # 4 MiB too little before
