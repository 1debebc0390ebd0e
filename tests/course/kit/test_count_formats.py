"""Number formats are read from the operators, and kept bytes from the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from perfkit.base.errors import UsageError
from perfkit.course.kit.formats import count_formats

ROWS, WIDTH = 4, 8


def _step(layer: nn.Module, *, narrow: bool) -> Callable[[], None]:
    x = torch.rand(ROWS, WIDTH)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
            loss = layer(x).square().sum()
        loss.backward()

    return step


def test_autocast_shows_in_the_operators_and_as_casts() -> None:
    layer = nn.Linear(WIDTH, 3)
    wide = count_formats(_step(layer, narrow=False))
    narrow = count_formats(_step(layer, narrow=True))
    assert wide.of("aten::addmm", "aten::mm") == {"float32": 2}
    assert narrow.of("aten::addmm", "aten::mm") == {"bfloat16": 2}
    assert wide.casts == 0
    assert narrow.casts >= 4  # the batch, weight and bias go down, two gradients come up
    assert narrow.of("aten::no_such") == {}
    assert layer.weight.grad is not None


def test_what_works_on_lists_of_tensors_and_returns_nothing_is_counted() -> None:
    narrow = [torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)]
    wide = [torch.ones(3), torch.ones(2)]
    found = count_formats(lambda: torch._foreach_add_(narrow, wide))
    assert found.of("aten::_foreach_add_") == {"bfloat16": 1}  # what it changes, not what it reads


def test_copies_views_and_whole_numbers_are_no_operators() -> None:
    x = torch.rand(ROWS, WIDTH)
    found = count_formats(lambda: (x.t().clone().double().float(), x.argmax()))
    assert dict(found.operators) == {}
    assert found.casts == 2


def test_kept_bytes_are_those_of_the_graph_without_parameters() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    x = torch.rand(ROWS, WIDTH)
    # the layer keeps x for its weight's gradient, exp its result; the weight itself is a parameter
    found = count_formats(lambda: layer(layer(x)).exp())
    assert dict(found.saved_bytes) == {"float32": 3 * ROWS * WIDTH * 4}
    assert found.total_saved_bytes == 3 * ROWS * WIDTH * 4
    with torch.no_grad():
        assert count_formats(lambda: layer(x).exp()).total_saved_bytes == 0


def test_a_storage_is_kept_once_and_indices_are_left_out() -> None:
    x = torch.rand(ROWS, WIDTH, requires_grad=True)
    made = x * 1
    index = torch.tensor([0, 2])
    found = count_formats(lambda: (made.exp() * made.view(-1).view(ROWS, WIDTH), made[index]))
    # made, and exp's result, which the product keeps as well
    assert found.total_saved_bytes == 2 * ROWS * WIDTH * 4


def test_kept_in_bf16_is_half() -> None:
    x = torch.rand(ROWS, WIDTH, requires_grad=True)
    wide, narrow = x * 1, x.bfloat16()
    assert dict(count_formats(lambda: wide.exp()).saved_bytes) == {"float32": ROWS * WIDTH * 4}
    assert dict(count_formats(lambda: narrow.exp()).saved_bytes) == {"bfloat16": ROWS * WIDTH * 2}


def test_what_the_step_raises_is_raised_and_the_hooks_are_gone() -> None:
    def broken() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        count_formats(broken)
    with pytest.raises(UsageError, match="step is 3"):
        count_formats(3)  # type: ignore[arg-type]
    x = torch.rand(2, requires_grad=True)
    (slope,) = torch.autograd.grad(x.exp().sum(), x)
    assert torch.equal(slope, x.exp())


def test_a_count_reads_as_a_sentence_and_two_tables() -> None:
    layer = nn.Linear(WIDTH, 3)
    said = count_formats(_step(layer, narrow=True)).to_text()
    assert "in bfloat16" in " ".join(said.split("\n\n")[0].split())
    assert "casts between formats" in " ".join(said.split())
    rows = [line.split() for line in said.splitlines()]
    assert ["aten::addmm", "bfloat16", "1"] in rows
    nothing = count_formats(lambda: None).to_text()
    assert "none with numbers as a result; 0 casts" in " ".join(nothing.split())
