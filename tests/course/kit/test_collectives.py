"""Collectives are counted as DDP asks for them, in a group of this process alone."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist
from torch import nn

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit.collectives import (
    CollectiveCount,
    count_collectives,
    group_of_one,
    pretended_group,
)

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
)


@pytest.fixture
def group() -> Iterator[None]:
    with group_of_one():
        yield


def _ddp(**given: object) -> nn.parallel.DistributedDataParallel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    wrapped = nn.parallel.DistributedDataParallel(model, **given)  # type: ignore[arg-type]
    for _ in range(2):  # it agrees on its buckets
        wrapped(torch.rand(2, 8)).sum().backward()
    return wrapped


@needs_gloo
@pytest.mark.usefixtures("group")
def test_a_backward_pass_of_ddp_exchanges_its_gradients_once_and_no_sync_does_not() -> None:
    model = _ddp()
    parameter_bytes = sum(p.nbytes for p in model.parameters())

    def backward() -> None:
        model(torch.rand(2, 8)).sum().backward()

    def four_parts() -> None:
        with model.no_sync():
            for _ in range(3):
                backward()
        backward()

    once = count_collectives(backward)
    assert dict(once.by_name) == {"c10d::allreduce_": 1}
    assert once.total_bytes == parameter_bytes
    assert count_collectives(four_parts) == once

    def without() -> None:
        for _ in range(4):
            backward()

    assert count_collectives(without).total == 4
    with model.no_sync():
        assert count_collectives(backward).total == 0


@needs_gloo
@pytest.mark.usefixtures("group")
def test_collectives_of_ones_own_are_counted_and_operators_are_not() -> None:
    x = torch.ones(3)

    def own() -> None:
        dist.all_reduce(x.mul(2))
        dist.all_reduce(x)
        dist.broadcast(x, 0)

    found = count_collectives(own)
    assert dict(found.by_name) == {"c10d::allreduce_": 2, "c10d::broadcast_": 1}
    assert (found.total, found.total_bytes) == (3, 36)
    assert count_collectives(lambda: x + 1).total == 0


@needs_gloo
def test_a_group_that_exists_is_used_and_stays() -> None:
    assert not dist.is_initialized()
    with group_of_one():
        outer = dist.group.WORLD
        with group_of_one():
            assert dist.group.WORLD is outer
        assert dist.is_initialized()
    assert not dist.is_initialized()


@needs_gloo
def test_a_group_ends_with_an_error_of_its_user() -> None:
    with pytest.raises(ValueError, match="mine"), group_of_one():
        raise ValueError("mine")
    assert not dist.is_initialized()


@needs_gloo
def test_a_model_that_dies_after_its_group_is_not_the_last_to_hold_it() -> None:
    """Torch waited for itself for ever, once in some 350 times on a busy machine."""
    with group_of_one():
        model = _ddp()
        group = weakref.ref(dist.group.WORLD)
    assert not dist.is_initialized()
    del model
    assert group() is not None


@needs_gloo
def test_a_host_without_a_name_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at device.cc] unable to resolve hostname\nmore")

    monkeypatch.setattr(dist, "init_process_group", fails)
    with pytest.raises(MissingError, match=r"resolve hostname\); .*GLOO_SOCKET_IFNAME"):
        group_of_one().__enter__()


def test_without_gloo_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(MissingError, match="built with gloo"):
        group_of_one().__enter__()


def test_what_the_step_raises_is_raised() -> None:
    def broken() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        count_collectives(broken)
    with pytest.raises(UsageError, match="step is 3"):
        count_collectives(3)  # type: ignore[arg-type]


@needs_gloo
@pytest.mark.usefixtures("group")
def test_a_group_of_one_sends_nothing() -> None:
    found = count_collectives(lambda: dist.all_reduce(torch.ones(3)))
    assert (found.total_bytes, found.sent_bytes) == (12, 0)


def _blocks() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(3)]
    return nn.Sequential(*blocks)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_what_eight_ranks_of_fsdp2_would_send_is_counted_in_one() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    x = torch.rand(2, 8)
    with pretended_group(8):
        model = _blocks()
        parameter_bytes = sum(p.nbytes for p in model.parameters())
        mesh = init_device_mesh("cpu", (8,))  # by default that of a GPU, where there is one
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

        def step() -> None:
            model(x).sum().backward()

        step()  # the first pass shares out what belongs together
        found = count_collectives(step)
    names = dict(found.by_name)
    assert names == {"c10d::_allgather_base_": 6, "c10d::_reduce_scatter_base_": 3}
    # weights in both passes, gradients once; 7 of 8 parts of each go elsewhere
    assert found.sent_bytes == 3 * 7 / 8 * parameter_bytes
    assert not dist.is_initialized()


def test_of_a_tensor_parallel_block_the_activations_are_sent() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    x = torch.rand(2, 8)
    with pretended_group(4, rank=3):
        mesh = init_device_mesh("cpu", (4,))
        model = _blocks()
        for block in model:
            parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        found = count_collectives(lambda: model(x).sum().backward())
    # one in each forward pass, one in each backward pass but the first block's
    assert dict(found.by_name) == {"_c10d_functional::all_reduce": 5}
    assert found.sent_bytes == 5 * 2 * 3 / 4 * x.nbytes


@pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names for two of them
def test_what_each_kind_sends() -> None:
    x, parts = torch.zeros(16), torch.zeros(4, 16)
    ask: dict[str, tuple[Callable[[], object], float | None]] = {
        "all_reduce": (lambda: dist.all_reduce(x), 2 * 0.75 * 64),
        "broadcast": (lambda: dist.broadcast(x, 0), 0.75 * 64),
        "all_gather": (lambda: dist.all_gather(list(parts), x), 3 * 64),
        "all_gather_into": (lambda: dist.all_gather_into_tensor(parts, x), 3 * 64),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(x, parts.flatten()), 0.75 * 256),
        "all_to_all": (lambda: dist.all_to_all_single(torch.zeros(16), x), 0.75 * 64),
        "send": (lambda: dist.send(x, 1), 64),
        "recv": (lambda: dist.recv(x, 1), 0),
        "barrier": (dist.barrier, 0),
        "gather": (lambda: dist.gather(x, list(parts)), None),
    }
    with pretended_group(4):
        found = {name: count_collectives(do).sent_bytes for name, (do, _) in ask.items()}
    assert found == {name: sent for name, (_, sent) in ask.items()}


def test_a_pretended_group_refuses_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="ranks"):
        pretended_group(0).__enter__()
    with pretended_group(1, rank=0):
        assert count_collectives(lambda: dist.all_reduce(torch.ones(3))).sent_bytes == 0
    with pytest.raises(UsageError, match="rank"):
        pretended_group(4, rank=4).__enter__()
    with pretended_group(2), pytest.raises(UsageError, match="exists already"):
        pretended_group(2).__enter__()
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="mine"), pretended_group(2):
        raise ValueError("mine")
    assert not dist.is_initialized()


def test_a_count_travels_between_processes() -> None:
    found = CollectiveCount(2, 36, MappingProxyType({"c10d::allreduce_": 2}), 18)
    assert pickle.loads(pickle.dumps(found)) == found


@needs_gloo
@pytest.mark.usefixtures("group")
def test_gradients_of_a_sparse_embedding_are_counted_and_what_they_send_is_not_known() -> None:
    """The count raised into the step: a sparse tensor has no ``nbytes``."""
    table = nn.Embedding(10, 4, sparse=True)
    model = nn.parallel.DistributedDataParallel(table)

    def backward() -> None:
        table.weight.grad = None  # else rows are added to those of before
        model(torch.tensor([1, 2])).sum().backward()

    for _ in range(2):
        backward()
    found = count_collectives(backward)
    assert found.total == 1
    # two rows of four numbers, and their two numbers
    assert (found.total_bytes, found.sent_bytes) == (2 * 4 * 4 + 2 * 8, None)
