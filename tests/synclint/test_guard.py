"""`with no_syncs():` as a test would use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import perfkit
from perfkit.base.errors import PerfkitError, SyncFoundError


def test_a_step_that_never_waits_passes() -> None:
    net = nn.Linear(2, 2)
    with perfkit.no_syncs():
        net(torch.randn(3, 2)).sum().backward()


def test_a_step_that_waits_fails_with_line_and_what_helps() -> None:
    net = nn.Linear(2, 2)
    losses: list[float] = []

    def test() -> None:
        with perfkit.no_syncs():
            loss = net(torch.randn(3, 2)).sum()
            losses.append(loss.item())

    with pytest.raises(AssertionError) as caught:
        test()
    error = caught.value
    assert isinstance(error, SyncFoundError)
    assert isinstance(error, PerfkitError)
    (sync,) = error.syncs
    assert str(error).startswith("1 line would make the host wait")
    lines = [line.strip() for line in str(error).splitlines()]
    at = lines.index(f"1. test_guard.py:{sync.line}: Tensor.item")
    assert lines[at + 1] == "losses.append(loss.item())"
    assert "- instead: keep it on the device" in str(error)
    assert "losses.append(loss.detach())" in lines


def test_an_error_in_the_block_comes_first() -> None:
    net = nn.Linear(2, 2)

    def test() -> None:
        with perfkit.no_syncs():
            net(torch.randn(3, 2)).sum().item()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        test()


def test_as_a_decorator_and_twice() -> None:
    net = nn.Linear(2, 2)

    @perfkit.no_syncs(net)
    def step(wait: bool) -> None:
        y = net(torch.randn(3, 2))
        if wait:
            y.tolist()

    step(False)
    with pytest.raises(SyncFoundError):
        step(True)
    step(False)


@pytest.mark.slow
def test_in_a_real_pytest_run(tmp_path: Path) -> None:
    test = tmp_path / "test_step.py"
    test.write_text(
        "import torch, perfkit\n"
        "def test_step():\n"
        "    net = torch.nn.Linear(2, 2)\n"
        "    with perfkit.no_syncs():\n"
        "        if net(torch.ones(1, 2)).sum() > 0:\n"
        "            pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    root = Path(perfkit.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 1
    assert "test_step.py:5: if tensor" in done.stdout
    assert "if net(torch.ones(1, 2)).sum() > 0:" in done.stdout
    assert "guard.py" not in done.stdout


def test_copies_to_the_device_can_be_let_pass() -> None:
    net = nn.Linear(3, 2)

    def step() -> torch.Tensor:
        y: torch.Tensor = net(torch.randn(4, 3))
        return y[[0, 2]]

    with perfkit.no_syncs(copies=False):
        step()
    with pytest.raises(SyncFoundError, match="list or an array as an index"), perfkit.no_syncs():
        step()
    with pytest.raises(SyncFoundError), perfkit.no_syncs(copies=False):
        step().tolist()
