"""How tests are dealt out, and what is run again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiers import ByFunction, Tiers


def test_a_notebook_and_a_test_with_its_parameters_stay_together() -> None:
    deal = ByFunction.__new__(ByFunction)
    names = {
        "notebooks/a.ipynb::Cell 0": "notebooks/a.ipynb",
        "notebooks/a.ipynb::Cell 12": "notebooks/a.ipynb",
        "tests/test_x.py::test_one": "tests/test_x.py::test_one",
        "tests/test_x.py::test_two[a[b]::c]": "tests/test_x.py::test_two",
        "tests/test_x.py::TestIt::test_three[1]": "tests/test_x.py::TestIt::test_three",
        "tests/test_x.py::test_run[00-a.ipynb]": "tests/test_x.py::test_run[00-a.ipynb]",
    }
    assert {name: deal._split_scope(name) for name in names} == names


def _after(items: list[Any], left: list[Any], last_failed: bool) -> list[Any]:
    config: Any = SimpleNamespace(getoption=lambda name, default: last_failed)
    seen = list(items)
    hook = Tiers().pytest_collection_modifyitems(config, seen)
    next(hook)
    seen[:] = left  # what pytest deselects meanwhile
    with pytest.raises(StopIteration):
        next(hook)
    return seen


class Item:
    def __init__(self, path: str) -> None:
        self.path = Path(path)


def test_a_cell_is_run_again_with_the_other_cells_of_its_notebook() -> None:
    items = [Item(path) for path in ("test_a.py", "test_a.py", "a.ipynb", "a.ipynb", "b.ipynb")]
    left = [items[1], items[3]]
    assert _after(items, left, last_failed=True) == items[1:4]
    assert _after(items, left, last_failed=False) == left
