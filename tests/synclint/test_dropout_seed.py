"""An LSTM with dropout reads the seed of its dropout: once in a process, and after a new seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from perfkit.synclint.find import find_syncs
from perfkit.synclint.reality import SyncCheck, check_syncs, lint

_OP = "an LSTM, GRU or RNN with dropout"
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _rnn(kind: str, dropout: float = 0.5) -> Any:
    more = {"nonlinearity": "relu"} if kind == "RELU" else {}
    make = {"RELU": nn.RNN, "RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}[kind]
    return make(3, 4, num_layers=2, dropout=dropout, **more).to(_DEVICE)


def _input(packed: bool) -> torch.Tensor | PackedSequence:
    x = torch.randn(5, 2, 3, device=_DEVICE)
    return pack_sequence([x[:, 0], x[:3, 1]]) if packed else x


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "RELU"])
def test_after_a_new_seed_the_next_call_waits(kind: str, packed: bool) -> None:
    rnn, x = _rnn(kind), _input(packed)

    def step() -> None:
        torch.manual_seed(0)
        rnn(x)
        rnn(x)

    (sync,) = find_syncs(step)
    assert (sync.op, sync.count) == (_OP, 1)
    assert sync.line == step.__code__.co_firstlineno + 2
    assert "before the loop" in sync.instead


def test_the_sizes_of_packed_sequences_are_on_the_host() -> None:
    """Of sequences that were packed before, each call was to wait twice for their number."""
    rnn, x = _rnn("LSTM", 0.0), _input(packed=True)
    assert find_syncs(lambda: rnn(x)) == []


def _without_a_seed(rnn: Any, x: Any) -> None:
    rnn(x)


def _with_a_seed(rnn: Any, x: Any) -> None:
    torch.manual_seed(0)
    rnn(x)


def _evaluated(rnn: Any, x: Any) -> None:
    rnn.eval()
    _with_a_seed(rnn, x)


def _by_other_kernels(rnn: Any, x: Any) -> None:
    with torch.backends.cudnn.flags(enabled=False):
        _with_a_seed(rnn, x)


@pytest.mark.parametrize(
    ("run", "dropout"),
    [
        # the first in a process waits: a step does not tell whether this one is
        (_without_a_seed, 0.5),
        (_with_a_seed, 0.0),
        (_evaluated, 0.5),
        (_by_other_kernels, 0.5),
    ],
)
def test_what_needs_no_seed_does_not_wait(run: Callable[..., None], dropout: float) -> None:
    rnn, x = _rnn("LSTM", dropout), _input(packed=False)
    assert find_syncs(lambda: run(rnn, x)) == []


def test_the_seed_is_set_as_without_the_lint() -> None:
    net = nn.Linear(3, 2)
    drawn: list[torch.Tensor] = []

    def step() -> None:
        assert torch.manual_seed(7) is torch.default_generator
        drawn.append(net(torch.rand(3)))
        torch.seed()

    before = torch.manual_seed, torch.seed
    find_syncs(step)
    assert (torch.manual_seed, torch.seed) == before
    step()
    assert torch.equal(*drawn)


def test_the_wait_of_the_first_call_is_named_where_it_is_seen(gpu: Any) -> None:
    rnn, x = _rnn("LSTM"), _input(packed=False)

    def first() -> None:
        rnn(x), gpu.wait()
        torch.zeros(3).clone()

    result = lint(first)
    assert isinstance(result, SyncCheck)
    (sync,) = result.agreed
    assert sync.op == _OP
    assert not result.only_happened
    # and where it is not the first, nothing is missed
    later = lint(lambda: rnn(x))
    assert isinstance(later, SyncCheck)
    assert later.happened == later.predicted == []
    assert later.only_predicted == ()


@pytest.mark.gpu
def test_torch_waits_as_predicted() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rnn, x = _rnn("LSTM"), _input(packed=False)

    def step() -> None:
        rnn(x)
        torch.manual_seed(0)
        rnn(x)
        rnn(x)

    check = check_syncs(step)
    assert [(one.code, one.count) for one in check.happened] == [("rnn(x)", 1)]
    assert len(check.agreed) == 1
    assert check.only_happened == check.only_predicted == ()
