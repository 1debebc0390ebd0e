"""`find_syncs`: what a data set puts on the device, and what it does on the host."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from perfkit.synclint.find import find_syncs

_DEVICE = torch.device("cpu")  # what a script falls back to


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


class _Fetching(torch.utils.data.Dataset[Any]):
    """Four samples, each as ``fetch`` makes it of a tensor on the host."""

    def __init__(self, fetch: Callable[[torch.Tensor], Any]) -> None:
        self.fetch = fetch
        self.data = torch.randn(4, 3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return self.fetch(self.data[i])


def _fetched_step(
    net: nn.Module, fetch: Callable[[torch.Tensor], Any], **options: Any
) -> Callable[[], None]:
    loader = DataLoader(_Fetching(fetch), **{"batch_size": 2, **options})

    def step() -> None:
        for x in loader:
            net(x.to(_DEVICE)).sum().backward()

    return step


@pytest.mark.parametrize(
    ("fetch", "op"),
    [
        (lambda x: x.to(_DEVICE), "a copy to the device"),
        (lambda x: torch.tensor([1.0, 2.0, 3.0], device=_DEVICE), "torch.tensor(…)"),
        (lambda x: (x.to(_DEVICE, non_blocking=True) * 2).sum().item() + x, "Tensor.item"),
        (lambda x: torch.randn(3, device=_DEVICE).abs().cpu() + x, "Tensor.cpu"),
    ],
)
def test_what_a_data_set_puts_on_the_device_waits_for_each_sample(
    net: nn.Module, fetch: Any, op: str
) -> None:
    found = find_syncs(_fetched_step(net, fetch))
    sync = next(sync for sync in found if sync.op == op)
    assert sync.count == 4
    assert sync.code.startswith(("(lambda x", "lambda x"))
    # a batch that is on the device already is not copied to it again
    assert any("net(x.to" in one.code for one in found) == (op in {"Tensor.item", "Tensor.cpu"})


def test_a_data_set_is_advised_to_leave_its_samples_on_the_host(net: nn.Module) -> None:
    def fetch(x: torch.Tensor) -> torch.Tensor:
        half = x.to(_DEVICE) / 2
        return half

    (sync,) = find_syncs(_fetched_step(net, fetch))
    assert sync.instead.startswith("leave each sample on the host, and copy the batch, in the loop")
    assert sync.example == ""


@pytest.mark.parametrize(
    "fetch",
    [
        lambda x: x + x.sum().item(),
        lambda x: x[x > -9],
        lambda x: x.to(x.device).cpu(),
        lambda x: torch.tensor([1.0, 2.0, 3.0], device=x.device) + float(x[0]),
        lambda x: x.to(torch.float64).numpy().astype("float32"),
        lambda x: nn.Sequential(nn.ReLU())(x) + x.tolist()[0],
        lambda x: torch.load(io.BytesIO(_saved(x))),
    ],
)
@pytest.mark.parametrize("batch_size", [2, None])
def test_what_a_data_set_does_on_the_host_does_not_count(
    net: nn.Module, fetch: Any, batch_size: int | None
) -> None:
    step = _fetched_step(net, lambda x: torch.as_tensor(fetch(x)).float(), batch_size=batch_size)
    assert [sync.code for sync in find_syncs(lambda: (step(), step()))] == [
        "net(x.to(_DEVICE)).sum().backward()"
    ]


def test_a_data_set_whose_samples_the_model_sees_as_they_are_is_still_on_the_host(
    net: nn.Module,
) -> None:
    loader = DataLoader(_Fetching(lambda x: x.mul_(x.sum().item())), batch_size=None)

    def step() -> None:
        for x in loader:  # no device is named: a view of the data set meets the model
            net(x).sum().backward()

    assert find_syncs(lambda: (step(), step())) == []


def _saved(x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(x, file)
    return file.getvalue()
