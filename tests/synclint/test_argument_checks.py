"""The lint's report on a distribution does not depend on earlier compilations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal

import perfkit
from perfkit.base.errors import SyncFoundError
from perfkit.synclint import reality
from perfkit.synclint.find import find_syncs


@pytest.fixture(autouse=True)
def something_was_compiled() -> Iterator[None]:
    """As after a cell or test that compiles something."""
    before = Distribution._validate_args
    torch.compile(lambda x: x + 1, backend="eager")
    Distribution.set_default_validate_args(False)  # as its first use in a process does
    yield
    Distribution.set_default_validate_args(before)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.mark.slow
def test_torch_compile_is_what_switches_the_checks_off() -> None:
    import subprocess
    import sys

    code = (
        "import torch\nfrom torch.distributions import Distribution as D\n"
        "print(D._validate_args)\ntorch.compile(lambda x: x, backend='eager')\n"
        "print(D._validate_args)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "False"]


def test_the_check_is_found_all_the_same_and_the_note_says_so(net: nn.Module) -> None:
    def step() -> None:
        y = net(torch.randn(4, 3))
        Normal(y, 1.0).rsample()

    syncs = find_syncs(step)
    assert [sync.code for sync in syncs] == ["Normal(y, 1.0).rsample()"]
    (note,) = syncs.warnings
    assert "torch.compile was used in this process" in note
    assert note in " ".join(str(syncs).replace("Note: ", "").split())
    assert Distribution._validate_args is False
    with pytest.raises(SyncFoundError, match=r"note: torch\.compile was used"), perfkit.no_syncs():
        step()
    assert Distribution._validate_args is False


def test_without_the_checks_nothing_is_found_or_noted(net: nn.Module) -> None:
    def step() -> None:
        y = net(torch.randn(4, 3))
        Normal(y, torch.ones_like(y), validate_args=False).rsample()

    syncs = find_syncs(step)
    assert syncs == []
    assert syncs.warnings == ()


@pytest.mark.parametrize("compiled_first", [True, False])
@pytest.mark.slow
def test_a_step_with_compiled_code_makes_no_checks(net: nn.Module, compiled_first: bool) -> None:
    fast = torch.compile(nn.Linear(3, 2), backend="eager")

    def step() -> None:
        if compiled_first:
            fast(torch.ones(4, 3))
        y = net(torch.randn(4, 3))
        Normal(y, torch.ones_like(y)).rsample().sum().item()
        if not compiled_first:
            fast(torch.ones(4, 3))

    syncs = find_syncs(step)
    assert [sync.op for sync in syncs] == ["Tensor.item"]
    assert syncs.warnings == ()
    assert Distribution._validate_args is False


def test_an_error_in_the_step_leaves_the_checks_as_they_were() -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        find_syncs(step)
    assert Distribution._validate_args is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="both times beside the reality of a GPU")
def test_beside_the_reality_of_a_gpu_the_process_stays_as_it_is(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        seen.append(Distribution._validate_args)
        net(torch.ones(1, 3))

    seen: list[bool] = []
    reality.lint(step)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    reality.lint(step)
    assert seen == [True, False]
