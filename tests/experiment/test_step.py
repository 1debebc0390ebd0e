"""The training step against a hand-written one, and what the helpers do not touch."""

from __future__ import annotations

import contextlib
import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn

from perfkit.base.device import of
from perfkit.base.errors import SettingError
from perfkit.experiment import Settings

here = pytest.mark.skipif(torch.cuda.is_available(), reason="compares numbers on a CPU")


def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


def batches(n, size=4):
    torch.manual_seed(2)
    return [(torch.rand(size, 3, 4, 4), torch.randint(0, 2, (size,))) for _ in range(n)]


def trained(settings, data, net=None):
    net = settings.prepare(net or model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, **settings.optimizer_kwargs())
    step = settings.training_step(net, optimizer, nn.functional.cross_entropy)
    torch.manual_seed(3)
    losses = [step(x, y) for x, y in data]
    return net, losses


def by_hand(data):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    torch.manual_seed(3)
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def same(a, b, **tolerance):
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


EXACT = {"rtol": 0, "atol": 0}


@here
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"set_to_none": False},
        {"set_to_none": True},
        {"checkpointing": True},
        {"precision": "fp32", "accumulate": 1, "uint8": True, "non_blocking": False},
    ],
)
def test_what_leaves_the_result_alone_gives_the_same_bits(values):
    data = batches(4)
    same(trained(Settings(values), data)[0], by_hand(data), **EXACT)


@here
@pytest.mark.parametrize("values", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_an_optimizers_implementation_only_rounds(values):
    data = batches(4)
    same(trained(Settings(values), data)[0], by_hand(data))


@here
def test_accumulated_parts_are_one_large_batch():
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    ((x, y),) = batches(1, size=16)
    parts = list(zip(x.split(4), y.split(4), strict=True))
    whole, _ = trained(Settings(), [(x, y)], copy.deepcopy(net))
    added, losses = trained(Settings(accumulate=4), parts, copy.deepcopy(net))
    same(added, whole)
    assert len(losses) == 4
    assert all(p.grad is None for p in added.parameters())
    held, _ = trained(Settings(accumulate=4), parts[:3], copy.deepcopy(net))
    same(held, net, **EXACT)  # not yet updated


def test_the_loss_keeps_no_graph():
    _, losses = trained(Settings(), batches(1))
    assert not losses[0].requires_grad
    assert losses[0].grad_fn is None


def saved_bytes(net, x):
    """What autograd keeps for the backward pass."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = net(x)
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    del y
    return sum(size for pointer, size in kept.items() if pointer not in own)


@here
def test_checkpointing_keeps_less_in_any_model():
    def deep():
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(16)])

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = deep(), deep()

        def forward(self, x):
            return self.b(self.a(x))

    x = torch.rand(128, 64, requires_grad=True)
    for net in (deep(), Other()):
        plain = saved_bytes(net, x)
        assert saved_bytes(Settings(checkpointing=False).prepare(net), x) == plain
        assert saved_bytes(Settings(checkpointing=True).prepare(net), x) < plain / 2
    by_itself = Other()
    Settings(checkpointing=True).prepare(by_itself, blocks=())
    assert "forward" not in vars(by_itself.a)
    only = Other()
    Settings(checkpointing=True).prepare(only, blocks=[only.b])
    assert "forward" in vars(only.b)
    assert "forward" not in vars(only.a)


@here
def test_a_function_is_checkpointed_where_it_is_on():
    x = torch.ones(3, requires_grad=True)
    for on in (False, True):
        calls = []

        def square(value, calls=calls):
            calls.append(1)
            return value.exp().exp()

        Settings(checkpointing=on).checkpointed(square, x).sum().backward()
        assert len(calls) == 1 + on


def test_bytes_and_floats_arrive_alike():
    image = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
    early, late = Settings(uint8=False), Settings(uint8=True)
    assert early.as_sent(image).dtype is torch.float32
    assert late.as_sent(image) is image
    assert torch.equal(early.to_float(early.as_sent(image)), late.to_float(late.as_sent(image)))
    assert Settings().as_sent(image).dtype is torch.float32
    labels = torch.tensor([1, 2])
    assert late.to_float(labels) is labels


def test_to_device_goes_through_what_a_loader_gives():
    class Batch(NamedTuple):
        image: torch.Tensor
        name: str

    s = Settings(channels_last=True)
    batch = {"a": [torch.zeros(2, 3, 4, 4), 7], "b": Batch(torch.zeros(2), "x"), "c": (None,)}
    moved = s.to_device(batch)
    assert moved["a"][0].is_contiguous(memory_format=torch.channels_last)
    assert moved["a"][1] == 7
    assert isinstance(moved["b"], Batch)
    assert moved["b"].name == "x"
    assert moved["c"] == (None,)
    assert moved["b"].image.device.type == s.device.type


def test_helpers_cover_only_what_is_declared():
    s = Settings()
    for kwargs in (s.loader_kwargs(), s.optimizer_kwargs(), s.zero_grad_kwargs(), s.ddp_kwargs()):
        assert kwargs == {}
    assert Settings(in_order=False, num_workers=0).loader_kwargs() == {"num_workers": 0}
    assert Settings(in_order=False, num_workers=1).loader_kwargs()["in_order"] is False
    assert Settings(cuda_graphs=True).loader_kwargs() == {"drop_last": True}
    assert Settings(foreach="auto", fused=False).optimizer_kwargs() == {}
    assert Settings(foreach=False, fused=True).optimizer_kwargs() == {"fused": True}


def test_a_capture_is_not_spoiled_by_a_loaders_thread(monkeypatch):
    """One that pins memory calls CUDA, which a capture forbids every thread by default."""
    options = []

    def graph(graph, **given):
        options.append(given)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr("perfkit.experiment.settings._step.here", lambda: of("cuda"))
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    settings = Settings(cuda_graphs=True)
    step = settings.training_step(net, optimizer, nn.functional.cross_entropy)
    ((images, labels),) = batches(1)
    step._graph._capture(images, labels)
    assert options == [{"capture_error_mode": "thread_local"}]


def test_without_graphs_the_setting_says_so(monkeypatch):
    monkeypatch.setattr("perfkit.experiment.settings._step.here", lambda: of("mps"))
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(SettingError, match="cuda_graphs: MPS has no graphs"):
        Settings(cuda_graphs=True).training_step(net, optimizer, nn.functional.cross_entropy)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_captured_step_trains_as_the_plain_one(set_to_none):
    data = batches(8)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    values = {"set_to_none": set_to_none}
    plain, losses = trained(Settings(values), data, copy.deepcopy(net))
    graphed, replayed = trained(Settings(values | {"cuda_graphs": True}), data, copy.deepcopy(net))
    same(graphed, plain)
    torch.testing.assert_close(torch.stack(replayed), torch.stack(losses))
    other = Settings(cuda_graphs=True)
    with pytest.raises(SettingError, match="captured with a batch of"):
        trained(other, [*batches(5), *batches(1, size=3)], copy.deepcopy(net))
