"""A size that is read off a tensor: what helps is to pass the size, not to add up on the device."""

from __future__ import annotations

import linecache
from types import ModuleType

import pytest
import torch
from torch import nn

from perfkit.synclint.find import find_syncs

# as torch_geometric/utils/_scatter.py and num_nodes.py have it
LIBRARY = """
import torch

def scatter(src, index, dim_size=None):
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() > 0 else 0
    return src.new_zeros(dim_size).scatter_add_(0, index, src)

def degree(index, num_nodes=None):
    n = num_nodes if num_nodes is not None else int(torch.max(index)) + 1
    return scatter(torch.ones_like(index, dtype=torch.float32), index, n)
"""


@pytest.fixture
def library() -> ModuleType:
    name = "/usr/lib/python3/site-packages/graphs/utils.py"
    linecache.cache[name] = (len(LIBRARY), None, LIBRARY.splitlines(keepends=True), name)
    module = ModuleType("graphs")
    exec(compile(LIBRARY, name, "exec"), vars(module))
    return module


def test_for_a_size_that_a_library_reads_it_says_to_pass_it(library: ModuleType) -> None:
    net = nn.Linear(3, 1)

    def step(size: int | None = None) -> None:
        y = net(torch.ones(4, 3))[:, 0]
        index = torch.tensor([0, 1, 1, 2]) + (y.detach() * 0).long()
        library.scatter(y, index, size).sum().backward()
        library.degree(index, size)

    syncs = [s for s in find_syncs(step) if s.file.endswith("graphs/utils.py")]
    assert [s.op for s in syncs] == ["int(tensor.max())"] * 2
    for sync in syncs:
        assert "dim_size=n" in sync.instead
        assert sync.example == ""  # it would be of the library's line
    assert not [s for s in find_syncs(lambda: step(3)) if s.file.endswith("graphs/utils.py")]


def test_the_largest_of_shapes_is_no_wait() -> None:
    net = nn.Linear(3, 1)
    assert not find_syncs(lambda: net(torch.ones(int(max((4, 3))), 3)).sum().backward())
