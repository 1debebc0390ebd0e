"""A line that runs only where there is no GPU says nothing about a GPU."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from perfkit.synclint.find import find_syncs
from perfkit.synclint.sites import runs_only_without_gpu

# a loop that picks its branch by the name of the device, as nanoGPT's get_batch does
LOOP = """
def batch(x, device, device_type):
    if device_type == 'cuda':
        return x.pin_memory().to(device, non_blocking=True)
    else:
        return x.to(device)

def step(net, x, device):
    out = net(batch(x, device, device)).sum()
    return out.item()
"""


def known(source: str, name: str) -> str:
    """The source under a name that linecache knows."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return name


@pytest.mark.parametrize(
    ("test", "then", "otherwise"),
    [
        ("device == 'cuda'", False, True),
        ("device != 'cuda:0'", True, False),
        ("args.device == 'cpu'", True, False),
        ("not torch.cuda.is_available()", True, False),
        ("th.cuda.is_available()", False, True),
        ("x.is_cuda", False, False),  # a batch is on the host first with a GPU, too
        ("x.device.type == 'cuda'", False, False),
        ("device == 'cpu' or training", False, False),
        ("device == 'mps'", False, False),
        ("lower < device < upper", False, False),
    ],
)
def test_which_branch_a_gpu_does_not_take(test: str, then: bool, otherwise: bool) -> None:
    name = known(
        f"if {test}:\n    a = (\n        1)\nelse:\n    b = 1\nc = 1\n", f"<branch {test}>"
    )
    found = [runs_only_without_gpu(name, line) for line in range(1, 7)]
    assert found == [False, then, then, False, otherwise, False]


@pytest.mark.parametrize("source", ["", "if (\n", "x = 1\n"])
def test_code_without_a_branch_has_none(source: str) -> None:
    assert not runs_only_without_gpu(known(source, "<no branch>"), 1)


def test_the_lint_leaves_the_other_branch_out_and_says_so() -> None:
    name = known(LOOP, "/home/somebody/loop.py")
    module: dict[str, object] = {}
    exec(compile(LOOP, name, "exec"), module)
    net = nn.Linear(3, 1)
    step = module["step"]
    assert callable(step)
    syncs = find_syncs(lambda: step(net, torch.rand(2, 3), "cpu"))
    assert [sync.line for sync in syncs] == [10]  # the .item(), not the .to() of the else
    (said,) = syncs.warnings
    assert said.startswith("left out, because only a machine without a GPU runs it: loop.py:6;")
