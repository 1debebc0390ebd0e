"""Collectives are counted as DDP asks for them, in a group of this process alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from perfkit.base.errors import MissingError, UsageError
from perfkit.measure.collectives import count_collectives, group_of_one

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
