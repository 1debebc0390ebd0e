"""What the lint proposes in place of a line comes to the same as the line, whatever its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the lines use
from snippets import compiled
from torch import Tensor, nn

from perfkit.synclint.find import Syncs, syncs_of
from perfkit.synclint.watch import Watch

# 0.01 s each alone, 0.3 s after the tests of other rooms; why is not known
pytestmark = pytest.mark.slow

WIDE = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.25, -2.0], [1.0, 1.5, -0.5], [2.0, 4.0, 8.0]])
DEEP = torch.arange(24.0).view(4, 3, 2) - 7
ROWS = torch.tensor([True, False, True, True])
KINDS = torch.tensor([0, 2, 5, 2])
YES, NO = torch.tensor(True), torch.tensor(False)
HALF = torch.tensor([40_000.0, 30_000.0], dtype=torch.float16)


class _Held(nn.Module):
    """Tensors that are on the device."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def _names(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    copies = {
        name: tensor.detach().clone().requires_grad_(tensor.requires_grad)
        for name, tensor in tensors.items()
    }
    return {"F": F, "torch": torch, "math": math, **copies}


def _found(line: str, tensors: Mapping[str, Tensor], set_up: str = "") -> tuple[Syncs, Any]:
    names = _names(tensors)
    held = _Held({name: names[name] for name in tensors})
    program = compiled(line)
    watch = Watch(held)
    with watch:
        exec(set_up, names)
        exec(program, names)
    mine = Syncs(s for s in syncs_of(watch) if s.file == program.co_filename)
    return mine, names


def _check(line: str, tensors: Mapping[str, Tensor], was: str, now: str, set_up: str = "") -> str:
    """The line's value ``was`` is the cure's value ``now``; the cure, which does not wait."""
    (sync,), slow = _found(line, tensors, set_up)
    again, fast = _found(sync.instead, tensors, set_up)
    assert not again, again
    expected, found = eval(was, slow), eval(now, fast)
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(expected), check_dtype=False, equal_nan=True
    )
    return sync.instead


@pytest.mark.parametrize("kinds", [KINDS, KINDS.view(2, 2), KINDS.int(), KINDS[:0], KINDS > 1])
@pytest.mark.parametrize(
    ("line", "was", "now"),
    [
        ("y = torch.unique(k)", "y", "present.nonzero().flatten()"),
        ("y = k.unique()", "y", "present.nonzero().flatten()"),
        ("_, y = torch.unique(k, return_counts=True)", "y", "counts[present]"),
        ("_, y = k.unique(return_inverse=True)", "y", "inverse"),
    ],
)
def test_what_is_counted(line: str, was: str, now: str, kinds: Tensor) -> None:
    """It failed for positions of several dimensions, and for all but 64 bits."""
    _check(line, {"k": kinds}, was, now)


@pytest.mark.parametrize("kinds", [KINDS, KINDS.int(), KINDS[:0]])
@pytest.mark.parametrize("weights", ["", "w"])
@pytest.mark.parametrize("least", ["", "minlength=7"])
def test_what_is_counted_with_weights(kinds: Tensor, weights: str, least: str) -> None:
    """The weights were left out, and so was the length."""
    line = f"y = torch.bincount({', '.join(filter(None, ['k', weights, least]))})"
    tensors = {"k": kinds, "w": torch.arange(1.0, len(kinds) + 1)}
    _check(line, tensors, f"F.pad(y, (0, {7 if least else 6} - len(y)))", "counts")


@pytest.mark.parametrize(
    ("line", "tensors", "was", "now"),
    [
        # a mask of rows, of elements, of the leading dimensions
        ("y = x[m].mean()", {"x": WIDE, "m": ROWS}, "y", "mean"),
        ("y = x[m].mean()", {"x": DEEP, "m": ROWS}, "y", "mean"),
        ("y = x[m].mean()", {"x": DEEP, "m": DEEP[..., 0] > 0}, "y", "mean"),
        ("y = x[m].mean()", {"x": WIDE, "m": WIDE > 0}, "y", "mean"),
        ("y = x[m].mean()", {"x": WIDE[0], "m": WIDE[0] > 0}, "y", "mean"),
        ("y = x[m].mean()", {"x": HALF, "m": HALF > 0}, "y", "mean"),
        ("y = torch.masked_select(x, m).mean()", {"x": WIDE, "m": WIDE > 0}, "y", "mean"),
        ("y = torch.masked_select(x, m).mean()", {"x": WIDE[0], "m": WIDE > 0}, "y", "mean"),
        ("y = x.masked_select(m).mean()", {"x": WIDE, "m": WIDE[0] > 0}, "y", "mean"),
        ("y = x.masked_select(m).mean()", {"x": HALF, "m": HALF > 0}, "y", "mean"),
        # by where they are not 0
        ("y = x[x.nonzero()[:, 0]]", {"x": WIDE[0].relu()}, "y.mean()", "mean"),
        ("y = x[torch.nonzero(x)[:, 0]].mean()", {"x": WIDE[0].relu()}, "y", "mean"),
        # losses of some
        (
            "y = F.cross_entropy(x[m], k[m])",
            {"x": WIDE, "k": KINDS.clamp(max=2), "m": ROWS},
            "y",
            "y",
        ),
        (
            "y = F.cross_entropy(x[m], k[m])",
            {"x": DEEP, "k": torch.ones(4, 3, dtype=torch.long), "m": DEEP[..., 0] > 0},
            "y",
            "y",
        ),
        # what is put to the chosen
        ("x[m] = x[m] * 2", {"x": WIDE, "m": ROWS}, "x", "x"),
        ("x[m] = x[m] * 2", {"x": WIDE, "m": WIDE > 0}, "x", "x"),
        ("x[m] = z[m].sqrt() + 1", {"x": WIDE, "m": ROWS, "z": WIDE.abs()}, "x", "x"),
        ("x[m] = -z[m]", {"x": DEEP, "m": ROWS, "z": DEEP + 1}, "x", "x"),
        ("x[m] += z[m]", {"x": WIDE, "m": ROWS, "z": WIDE + 1}, "x", "x"),
        ("x[m] *= 2", {"x": WIDE, "m": ROWS}, "x", "x"),
        ("x[m] = z", {"x": WIDE, "m": ROWS, "z": WIDE[0] + 9}, "x", "x"),  # to each row
        ("x[m] = z", {"x": WIDE, "m": ROWS, "z": WIDE[1:] + 9}, "x", "x"),  # row for row
        ("x[m] = z", {"x": WIDE[0], "m": WIDE[0] > 0, "z": WIDE[1, 1:]}, "x", "x"),
        ("x[m] = z", {"x": WIDE, "m": ROWS, "z": torch.tensor(9.0)}, "x", "x"),
        ("x[m] = z", {"x": WIDE, "m": WIDE > 0, "z": torch.tensor(9.0)}, "x", "x"),
        ("x[m] = z.mean()", {"x": WIDE, "m": ROWS, "z": WIDE}, "x", "x"),
        ("y = x.masked_fill(m, z)", {"x": WIDE, "m": WIDE > 0, "z": torch.tensor(9.0)}, "y", "y"),
        ("y = x.masked_fill(m, z)", {"x": KINDS, "m": ROWS, "z": torch.tensor(9)}, "y", "y"),
        (
            "y = x.masked_fill(m, z)",
            {"x": WIDE, "m": WIDE[0] > 0, "z": torch.tensor(9.0)},
            "y",
            "y",
        ),
        ("x[0, 1] = 5", {"x": WIDE}, "x", "x"),
        ("x[0] = 5", {"x": WIDE[0]}, "x", "x"),
        ("x[k] = 5", {"x": WIDE, "k": KINDS[:2]}, "x", "x"),
        ("x[k] = 5", {"x": WIDE, "k": KINDS[:2].view(1, 2)}, "x", "x"),
        ("x[k, 1] = True", {"x": WIDE > 0, "k": KINDS[:2]}, "x", "x"),
        ("x[k, :] = 5", {"x": KINDS.view(4, 1) + 0, "k": KINDS[:2]}, "x", "x"),
        ("y = x.index_fill(0, k, z)", {"x": WIDE, "k": KINDS[:2], "z": WIDE[0, 0]}, "y", "y"),
        ("y = x.index_fill(0, k, z)", {"x": DEEP, "k": KINDS[:2], "z": WIDE[0, 0]}, "y", "y"),
        ("y = x.index_fill(0, k, z)", {"x": WIDE[0], "k": KINDS[1], "z": WIDE[0, 0]}, "y", "y"),
        (
            "y = x.index_fill(0, k, z)",
            {"x": WIDE, "k": KINDS[:2], "z": WIDE[0, 0].double()},
            "y",
            "y",
        ),
        # the first of them
        ("y = x[:n].sum(0)", {"x": WIDE, "n": KINDS[1]}, "y", "y.sum(0)"),
        ("y = x[:n].sum(0)", {"x": DEEP, "n": KINDS[1]}, "y", "y.sum(0)"),
        ("y = x[:n].sum(0)", {"x": WIDE[0], "n": KINDS[1]}, "y", "y.sum(0)"),
        ("y = x[:n].sum(0)", {"x": WIDE, "n": KINDS[0]}, "y", "y.sum(0)"),
        # questions
        ("y = 2 in k", {"k": KINDS}, "y", "y"),
        ("y = 3 not in k", {"k": KINDS.view(2, 2)}, "y", "y"),
        ("y = torch.equal(x, z)", {"x": WIDE, "z": WIDE + 0}, "y", "y"),
        ("y = torch.allclose(x, z, rtol=0.5)", {"x": WIDE, "z": WIDE * 1.3}, "y", "y"),
        ("y = torch.isin(x, z)", {"x": KINDS, "z": torch.arange(90)}, "y", "hit"),
        (
            "y = torch.isin(x, z)",
            {"x": KINDS.view(2, 2), "z": torch.arange(90).view(9, 10)},
            "y",
            "hit",
        ),
        ("y = torch.isin(x, z)", {"x": KINDS.int(), "z": torch.arange(3, 90).int()}, "y", "hit"),
        # numbers
        ("y = x.item() + 1", {"x": WIDE[0, 0]}, "y", "y"),
        ("y = int(x) + 1", {"x": WIDE[0, 2] + 0.7}, "y", "y"),
        ("y = int(x) + 1", {"x": YES}, "y", "y"),
        ("y = float(x) + 1", {"x": KINDS[1]}, "y", "y"),
        ("y = max(x)", {"x": WIDE[0]}, "y", "y"),
        ("y = min(x)", {"x": KINDS}, "y", "y"),
        ("y = sorted(x)", {"x": WIDE[0]}, "torch.stack(y)", "y"),
        ("y = torch.tensor([x, z])", {"x": WIDE[0, 0], "z": WIDE[0, 1]}, "y", "y"),
        ("y = torch.tensor([x, z])", {"x": KINDS[0], "z": KINDS[1]}, "y", "y"),
        # statistics
        ("y = torch.cov(x)", {"x": WIDE}, "y", "y"),
        ("y = torch.cov(x)", {"x": WIDE[0]}, "y", "y"),
        ("y = torch.cov(x)", {"x": WIDE[:1]}, "y", "y"),
        ("y = torch.corrcoef(x)", {"x": WIDE}, "y", "y"),
        ("y = torch.corrcoef(x)", {"x": WIDE[0]}, "y", "y"),
        ("y = x.cumprod(0)\ny.sum().backward()", {"x": WIDE[0].abs().requires_grad_()}, "y", "y"),
        ("y = torch.prod(x)\ny.backward()", {"x": WIDE[0].abs().requires_grad_()}, "y", "y"),
        ("y = torch.histc(x, 4)", {"x": torch.tensor([-3.0, 0, 1, 3])}, "y", "y"),
        ("y = torch.histc(x, bins=4)", {"x": torch.tensor([-3.0, 0, 1, 3])}, "y", "y"),
        ("y = x.histc(4)", {"x": torch.tensor([-3.0, 0, 1, 3])}, "y", "y"),
        ("y = torch.searchsorted(x, z, sorter=x.argsort(-1))", {"x": WIDE, "z": WIDE}, "y", "y"),
        ("y = x.to_sparse()", {"x": WIDE * (WIDE > 0)}, "y.to_dense()", "y"),
        ("y = torch.repeat_interleave(x, k, dim=0)", {"x": WIDE, "k": KINDS * 0 + 2}, "y", "y"),
        ("y = F.one_hot(k)", {"k": KINDS}, "y", "y"),
        ("y = torch.linalg.inv(x)", {"x": WIDE[:3]}, "y", "result"),
        ("y = torch.linalg.solve(x, z)", {"x": WIDE[:3], "z": WIDE[3]}, "y", "result"),
        ("y = torch.linalg.cholesky(x)", {"x": WIDE.T @ WIDE}, "y", "result"),
        ("y = torch.matrix_exp(x)", {"x": WIDE[:3].double() / 1e4}, "y", "y"),
    ],
)
def test_the_cure_comes_to_the_same(
    line: str, tensors: dict[str, Tensor], was: str, now: str
) -> None:
    _check(line, tensors, was, now)


@pytest.mark.parametrize("asked", [YES, NO, YES.view(1), WIDE[0, 0], WIDE[0, 0] * 0, KINDS[0]])
@pytest.mark.parametrize(
    "line", ["if c:\n    x = z", "if c:\n    x *= z", "if c:\n    x -= 2", "if c:\n    x /= z"]
)
def test_both_sides_of_a_question(line: str, asked: Tensor) -> None:
    """``torch.where`` takes a bool only; what else refers to ``x`` sees what is done in place."""
    _check(line, {"c": asked, "x": WIDE, "z": WIDE + 9}, "x", "x")
    shared = "" if " = " in line else "seen = x"
    _check(
        line,
        {"c": asked, "x": WIDE, "z": WIDE + 9},
        "seen" if shared else "x",
        "seen" if shared else "x",
        shared,
    )


@pytest.mark.parametrize(
    ("mean", "std"),
    [("x", "z"), ("0.0", "z"), ("x", "z[:1]"), ("x[:1]", "z")],
)
def test_random_numbers_are_of_the_same_distribution(mean: str, std: str) -> None:
    """One random number for all, where one standard deviation was for all."""
    n = 4096
    tensors = {"x": torch.linspace(-9, 9, n).requires_grad_(), "z": torch.full((n,), 2.0)}
    (sync,), slow = _found(f"y = torch.normal({mean}, {std})", tensors)
    torch.manual_seed(0)
    _, fast = _found(sync.instead, tensors)
    assert fast["y"].shape == slow["y"].shape
    rest = (fast["y"] - eval(mean, fast)).detach()
    assert rest.mean().abs() < 0.2
    assert 1.8 < rest.std() < 2.2
    assert not fast["y"].requires_grad or slow["y"].requires_grad


@pytest.mark.parametrize("mask", [ROWS[:3], WIDE[:3] > 0, WIDE[0] > 99])
def test_what_is_scattered_comes_in_its_own_order(mask: Tensor) -> None:
    """``torch.where(mask, new, old)`` is another thing: there each element has its own place."""
    tensors = {"x": WIDE[:3], "m": mask, "z": (DEEP[:3] + 99).requires_grad_()}
    _check("y = x.masked_scatter(m, z)\ny.sum().backward()", tensors, "y", "y")


@pytest.mark.parametrize(
    ("read", "kept"),
    [("w.item()", ".clone()"), ("float(w.detach())", ".clone()"), ("w.detach().cpu()", ".clone()")],
)
def test_what_changes_in_place_is_kept_as_it_was(read: str, kept: str) -> None:
    """A reference to a weight is not the weight that it was."""
    steps = (
        f"kept = []\nfor _ in range(3):\n    kept.append({read})\n"
        "    with torch.no_grad():\n        w.add_(1)"
    )
    tensors = {"w": WIDE[0, 0].clone().requires_grad_()}
    (sync,), slow = _found(steps, tensors)
    assert kept in sync.instead
    fast = _names(tensors)
    exec(steps.replace(f"kept.append({read})", sync.instead.splitlines()[-1]), fast)
    assert [float(one) for one in fast["kept"]] == [float(one) for one in slow["kept"]]


def test_a_sum_of_many_halves_is_kept_in_float32() -> None:
    """In 16 bits it stops at 2048: adding 1 makes no difference."""
    (sync,), _ = _found("total = total + x.item()", {"x": HALF[0] * 0 + 1}, "total = 0.0")
    fast = _names({"x": HALF[0] * 0 + 1}) | {"total": 0.0}
    for _ in range(3000):
        exec(sync.instead, fast)
    assert fast["total"] == 3000
