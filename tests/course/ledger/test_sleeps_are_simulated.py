"""A ratio whose arms sleep is simulated, and says so: read from the lessons' own cells."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfkit.course.kit._places import lessons
from perfkit.course.ledger.criteria import criteria
from perfkit.course.ledger.notebook import NOT_RECORDED, read_notebook

# Whatever takes a chosen time: a sleep, a server that sleeps, a device that sleeps.
SLEEPERS = {"sleep", "Store", "SimulatedDevice", "SlowingMachine"}
Judges = dict[str, Callable[..., Any]]


class _Awake(ast.NodeTransformer):
    """``Photos(disk_ms=0)`` does not sleep, whatever ``Photos`` else does."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        for one in node.keywords:
            chosen = one.value.value if isinstance(one.value, ast.Constant) else None
            if (one.arg or "").endswith("_ms") and chosen == 0:
                return ast.Constant(None)
        return self.generic_visit(node)


def names(node: ast.AST) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def bindings(tree: ast.Module) -> Iterator[tuple[set[str], ast.AST]]:
    """Names and their definitions: functions, classes, assignments, loops, ``with … as``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield {node.name}, node
        elif isinstance(node, ast.Assign):
            yield {n for target in node.targets for n in names(target)}, node.value
        elif isinstance(node, ast.With):
            for item in node.items:
                if item.optional_vars is not None:
                    yield names(item.optional_vars), item.context_expr


def sleeping(tree: ast.Module) -> set[str]:
    known, defined = set(SLEEPERS), list(bindings(tree))
    while True:
        more = {n for bound, node in defined if names(node) & known for n in bound} - known
        if not more:
            return known
        known |= more


def unlabelled(source: str, judges: Judges) -> list[str]:
    """Arguments that sleep, of which a criterion makes a ratio that is not called simulated."""
    tree = _Awake().visit(ast.parse(source))
    asleep = sleeping(tree)
    wrong = []
    for call in ast.walk(tree):
        settles = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if not settles or call.func.attr != "settle":  # type: ignore[attr-defined]
            continue
        claim = call.func.value.args[0].value  # type: ignore[attr-defined]
        given = inspect.signature(judges[claim]).bind(*call.args, **{  # type: ignore[attr-defined]
            one.arg: one.value for one in call.keywords if one.arg  # type: ignore[attr-defined]
        })  # fmt: skip
        late = {name for name, node in given.arguments.items() if _names(node) & asleep}
        body = ast.parse(textwrap.dedent(inspect.getsource(judges[claim])))
        for made in ast.walk(body):
            if not isinstance(made, ast.Call) or ast.unparse(made.func) != "Figure.of":
                continue
            kind = {one.arg: ast.unparse(one.value) for one in made.keywords}.get("kind")
            if names(made.args[0]) & late and kind != "'simulated'":
                wrong.append(f"{claim}: {ast.unparse(made)}")
    return wrong


def _names(given: Any) -> set[str]:
    nodes = given if isinstance(given, tuple) else (given,)
    return set().union(*map(names, nodes))


def recorded_code(path: Path) -> str:
    cells = [
        "".join(cell["source"])
        for cell in read_notebook(path)["cells"]
        if cell["cell_type"] == "code" and NOT_RECORDED not in cell["metadata"].get("tags", ())
    ]
    return re.sub(r"^%.*$", "", "\n".join(cells), flags=re.M)


@pytest.mark.parametrize("path", lessons(), ids=lambda path: path.stem)
def test_a_ratio_whose_arms_sleep_is_simulated(path: Path) -> None:
    judges = {one.claim: one.judge for one in criteria(lessons=[path.stem])}
    assert unlabelled(recorded_code(path), judges) == []


def test_the_rule_finds_a_sleep_through_helpers_and_leaves_work_alone() -> None:
    source = """
class Photos:
    def __init__(self, disk_ms=5):
        time.sleep(disk_ms)

late = Photos()
ready = Photos(disk_ms=0)
bad = compare(lambda: list(late), lambda: list(ready))
good = compare(lambda: list(ready), lambda: list(ready))
claim("A1").settle(bad, good, told=bad)
"""

    def judge(first: Any, second: Any, *, told: Any) -> Any:
        return Figure.of(first), Figure.of(second), Figure.of(told, kind="simulated")

    assert unlabelled(source, {"A1": judge}) == ["A1: Figure.of(first)"]


class Figure:
    """Stands in for the ledger's in the rule's own test."""

    @staticmethod
    def of(found: Any, kind: str = "measured") -> None: ...
