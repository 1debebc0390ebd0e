"""How tests are dealt out, and what is run again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiers import ByFunction, Tiers


def test_what_shares_a_kernel_or_a_fixture_stays_together(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@pytest.fixture\ndef made(): ...\n")
    (tmp_path / "test_y.py").write_text('@pytest.fixture(scope="module")\ndef made(): ...\n')
    (tmp_path / "test_z.py").write_text("from real_results import result\n")
    deal = ByFunction.__new__(ByFunction)
    deal.config = SimpleNamespace(rootpath=tmp_path)  # type: ignore[assignment]
    names = {
        "notebooks/a.ipynb::Cell 0": "notebooks/a.ipynb",
        "notebooks/a.ipynb::Cell 12": "notebooks/a.ipynb",
        "test_x.py::test_one": "test_x.py::test_one",
        "test_x.py::test_two[a[b]::c]": "test_x.py::test_two",
        "test_x.py::TestIt::test_three[1]": "test_x.py::TestIt::test_three",
        "test_x.py::test_run[00-a.ipynb]": "test_x.py::test_run[00-a.ipynb]",
        "test_y.py::test_one": "test_y.py",
        "test_y.py::test_two[1]": "test_y.py",
        "test_z.py::test_one[Profile]": "test_z.py",
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
