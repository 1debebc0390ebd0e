"""What lives now: by category, by name, without running anything."""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import Tensor, nn

from perfkit.memory.categories import CATEGORIES
from perfkit.memory.live import LiveTensor, MemoryNow, now
from perfkit.memory.names import names_of_storages


def _bytes(state: MemoryNow, category: str) -> int:
    return sum(parts[category] for parts in state.by_device.values())


def _by_name(state: MemoryNow) -> dict[str | None, LiveTensor]:
    return {tensor.name: tensor for tensor in state.biggest}


def test_categories_are_exact() -> None:
    before = now()
    model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    after = now()
    parameters = (32 * 32 + 32 + 32 + 32) * 4
    assert _bytes(after, "parameters") - _bytes(before, "parameters") == parameters
    assert _bytes(after, "gradients") - _bytes(before, "gradients") == parameters
    state_bytes = 2 * parameters + 4 * 4
    assert _bytes(after, "optimizer state") - _bytes(before, "optimizer state") == state_bytes
    assert _bytes(after, "buffers") - _bytes(before, "buffers") == 2 * 32 * 4 + 8
    assert _bytes(after, "activations") == _bytes(before, "activations")


def test_a_kept_graph_shows_as_activations() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Sigmoid())
    before = _bytes(now(), "activations")
    loss = model(torch.randn(16, 32)).sum()
    # two sigmoids' outputs, the batch that the first Linear keeps, and the loss itself
    assert _bytes(now(), "activations") - before == 3 * 16 * 32 * 4 + 4
    loss.backward()
    assert _bytes(now(), "activations") - before == 4


def test_the_biggest_are_named_from_the_namespace() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(1, 64)).sum().backward()
    optimizer.step()
    namespace = {
        "_9": torch.zeros(90_000),
        "Out": {9: torch.zeros(85_000)},
        "losses": [torch.zeros(1), torch.zeros(80_000)],
        "batch": torch.zeros(70_000),
        "model": model,
        "optimizer": optimizer,
        "number": 3,
    }
    state = now(namespace, limit=100)
    names = _by_name(state)
    for name, nbytes in (
        ("_9", 360_000),
        ("Out[9]", 340_000),
        ("losses[1]", 320_000),
        ("batch", 280_000),
        ("model.weight", 64 * 64 * 4),
        ("model.weight.grad", 64 * 64 * 4),
        ("optimizer.state[0]['momentum_buffer']", 64 * 64 * 4),
    ):
        assert names[name].storage_bytes == nbytes
    assert names["model.weight"].category == "parameters"
    assert names["batch"].category == "other"
    assert [t.storage_bytes for t in state.biggest] == sorted(
        (t.storage_bytes for t in state.biggest), reverse=True
    )


def test_a_shared_storage_has_one_name_and_the_plainest_wins() -> None:
    model = nn.Linear(8, 8)
    shared = {"_": model.weight, "model": model, "w": model.weight}
    names = names_of_storages(shared)
    name, tensor = names[id(model.weight.untyped_storage())]
    assert name == "w"
    assert tensor is model.weight


def test_a_small_view_of_a_large_storage_shows_both_sizes() -> None:
    view = torch.zeros(500_000)[:10]
    tensor = _by_name(now({"view": view}))["view"]
    assert (tensor.storage_bytes, tensor.view_bytes) == (2_000_000, 40)
    assert "(40 B)" in str(now({"view": view}))


def test_nothing_is_run_and_nothing_is_kept() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[object] = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    sparse, view = torch.eye(4).to_sparse(), torch.ones(3)[1:]
    graph = nn.Linear(4, 4)(torch.randn(2, 4)).relu()
    with Spy():
        now({"sparse": sparse, "view": view, "graph": graph})
    assert seen == []


def test_the_headline_does_not_add_a_gpus_bytes_to_the_hosts() -> None:
    nothing = dict.fromkeys(CATEGORIES, 0)
    both = replace(
        now(),
        by_device={
            "cpu": {**nothing, "other": 3 * 2**20},
            "cuda:0": {**nothing, "parameters": 5 * 2**20},
        },
        n_storages=7,
    )
    said = both.to_text()
    assert said.startswith("5.00 MiB on cuda:0, 100 % parameters.")
    assert "3.00 MiB on the CPU, 100 % other" in said
    assert "8.00 MiB" not in said


def test_it_can_be_limited_and_written() -> None:
    keep: list[Tensor] = [torch.zeros(10) for _ in range(20)]
    state = now(limit=3)
    assert len(state.biggest) == 3
    assert now(limit=0).biggest == ()
    assert state.n_storages >= len(keep)
    data = json.loads(json.dumps(state.to_dict()))
    assert data["total_bytes"] == state.total_bytes
    assert "not tensor memory" in data["resident"]["label"]
