"""Each entry's code does what the entry says: one is reported, its cure and its twin are not."""

from __future__ import annotations

import io
import linecache
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the snippets use
from torch import nn

from perfkit.advice.synclint.catalogue import CATALOGUE, Entry
from perfkit.advice.synclint.find import Syncs, entry_of, find_syncs, syncs_of
from perfkit.advice.synclint.watch import Watch


def _namespace() -> dict[str, Any]:
    """Names of the snippets that are on the device, made from a model's output."""
    torch.manual_seed(0)
    net = nn.Linear(3, 5)
    x = net(torch.randn(4, 3))
    target = torch.tensor([0, 2, 5, 1]) + (x[:, 0] * 0).long()
    paths = torch.randn(6, 2, 5).log_softmax(-1) + x.mean()
    repeats = target * 0 + 2
    return {
        "F": F,
        "io": io,
        "label_lengths": repeats[:2],
        "labels": torch.tensor([[1, 2], [3, 1]]),
        "lengths": repeats[:2] * 3,
        "loss": x.square().mean(),
        "many": torch.arange(90) + target[0] * 0,
        "mask": x > 0,
        "n": target[1].clone(),
        "paths": paths,
        "repeats": repeats,
        "square": x.T @ x + torch.eye(5),
        "target": target,
        "torch": torch,
        "total": torch.zeros(()),
        "weight": _with_gradient(net.weight),
        "x": x,
        "x0": x.detach().clone(),
    }


def _with_gradient(weight: nn.Parameter) -> nn.Parameter:
    weight.grad = torch.ones_like(weight)
    return weight


def _run(code: str) -> tuple[Syncs, set[str]]:
    name = f"<snippet {hash(code)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    compiled = compile(code, name, "exec")
    with Watch() as watch:
        namespace = _namespace()
        exec(compiled, namespace)
    return syncs_of(watch), {entry_of(one) for one, _ in watch.found()}


def _entries(field: str) -> list[Any]:
    return [pytest.param(n, e, id=n) for n, e in CATALOGUE.items() if getattr(e, field)]


@pytest.mark.parametrize(("name", "entry"), _entries("slow"))
def test_what_waits_is_reported_under_its_entry(name: str, entry: Entry) -> None:
    syncs, entries = _run(entry.slow)
    assert len(syncs) == 1, syncs
    assert entries >= {name}
    assert syncs[0].code == entry.slow.splitlines()[syncs[0].line - 1].strip()
    assert entry.why in syncs[0].why
    assert entry.instead in syncs[0].instead


@pytest.mark.parametrize(("name", "entry"), _entries("instead"))
def test_the_cure_is_not_reported(name: str, entry: Entry) -> None:
    assert _run(entry.instead)[0] == []


@pytest.mark.parametrize(("name", "entry"), _entries("alike"))
def test_what_looks_alike_is_not_reported(name: str, entry: Entry) -> None:
    assert _run(entry.alike)[0] == []


def test_the_names_of_the_snippets_are_themselves_clean() -> None:
    assert find_syncs(_namespace) == []
