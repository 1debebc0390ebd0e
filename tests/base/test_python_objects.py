"""What a container of Python objects takes, and the arrays in place of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from perfkit.base.python_objects import as_arrays, copied_bytes


class _Pair(NamedTuple):
    path: str
    label: int


_ROWS: dict[str, Callable[[int], Any]] = {
    "dicts": lambda i: {"name": f"frame-{i:09d}.jpg", "label": i % 10, "box": [i / 3, 1.0 * i]},
    "strings": lambda i: f"word {i}",
    "numbers": float,
    "ragged": lambda i: [1_000 + i + k for k in range(1 + i % 7)],
    "pairs": lambda i: (f"{i}.png", i % 3),
    "named": lambda i: _Pair(f"{i}.png", i % 3),
    "objects": lambda i: SimpleNamespace(x=float(i), y=i % 2),
    "tensors": lambda i: torch.full((3,), float(i)),
    "others": lambda i: {i, str(i)},
    "mixed": lambda i: {"a": i} if i % 2 else {"b": i},
}


@pytest.mark.parametrize("kind", ["dicts", "strings", "numbers", "ragged", "pairs"])
def test_the_estimate_is_what_python_allocates(kind: str) -> None:
    tracemalloc.start()
    rows = [_ROWS[kind](i) for i in range(20_000)]
    true = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert copied_bytes(rows) == pytest.approx(true, rel=0.3)


def test_one_object_in_all_rows_and_large_ones_are_a_few_pages() -> None:
    assert copied_bytes(["the same"] * 100_000) < 2**20
    assert copied_bytes([bytes(2**20) for _ in range(20)]) < 20 * 5_000


@pytest.mark.parametrize("kind", _ROWS)
def test_its_code_runs_and_keeps_all_rows(kind: str) -> None:
    holder = SimpleNamespace(rows=[_ROWS[kind](i) for i in range(300)])
    code = as_arrays("self.rows", holder.rows)
    names: dict[str, Any] = {"self": holder, "np": np, "torch": torch}
    exec(code, names)
    if kind in ("others", "mixed"):
        assert code.startswith("#")
        return
    made = [one for one in vars(holder).values() if isinstance(one, np.ndarray | torch.Tensor)]
    ends = names.get("ends", [300])
    assert made
    assert all(len(one) == ends[-1] for one in made)
