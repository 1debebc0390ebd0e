"""What `perfkit record` runs of a lesson needs nothing from the cells that it leaves out."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from pathlib import Path

import pytest

from perfkit.course.ledger.notebook import NOT_RECORDED, read_notebook, settling_cells

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))
_OF_IPYTHON = {"display", "get_ipython", "In", "Out", "_"}


def recorded_cells(path: Path) -> list[str]:
    notebook = read_notebook(path)
    last = max(settling_cells(notebook).values())
    return [
        "".join(cell["source"])
        for cell in notebook["cells"][: last + 1]
        if cell["cell_type"] == "code" and NOT_RECORDED not in cell["metadata"].get("tags", ())
    ]


def unbound(cells: Iterable[str]) -> set[str]:
    """Names that these cells read and that none of them binds."""
    read: set[str] = set()
    bound = set(dir(builtins)) | _OF_IPYTHON
    for cell in cells:
        code = "\n".join(line for line in cell.splitlines() if not line.startswith("%"))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                bound.add(node.name)
    return read - bound


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_nothing_is_missing_from_what_is_recorded(path: Path) -> None:
    assert unbound(recorded_cells(path)) == set()


def test_a_name_of_a_cell_that_is_left_out_is_found() -> None:
    assert unbound(["x = 1", "%%gpumem\nprint(x, y)"]) == {"y"}
    assert unbound(["def f(a):\n    return a", "[f(i) for i in range(3)]"]) == set()
