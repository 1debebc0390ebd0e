"""A ratio whose arms sleep is simulated, and says so: read from the experiments' own code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from perfkit.course import experiments

FOLDER = Path(experiments.__file__).parent
MODULES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
# Whatever takes a chosen time: a sleep, a server that sleeps, a device that sleeps.
SLEEPERS = {"sleep", "Store", "SimulatedDevice", "SlowingMachine"}


def _names(node: ast.AST) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _bindings(body: Iterable[ast.AST]) -> Iterator[tuple[set[str], ast.AST]]:
    """Names and their definitions: functions, classes, assignments, ``with … as``."""
    for top in body:
        for node in ast.walk(top):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield {node.name}, node
            elif isinstance(node, ast.Assign):
                yield {n for target in node.targets for n in _targets(target)}, node.value
            elif isinstance(node, ast.With):
                for item in node.items:
                    if item.optional_vars is not None:
                        yield _targets(item.optional_vars), item.context_expr


def _targets(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _pairs(node: ast.Assign) -> Iterator[tuple[set[str], ast.AST]]:
    """``a, b = x, y`` as ``a = x`` and ``b = y``."""
    target, value = node.targets[0], node.value
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    if both and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        for one, other in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            yield _targets(one), other
    else:
        yield _targets(target), value


def _closure(bindings: list[tuple[set[str], ast.AST]], sleeping: set[str]) -> set[str]:
    known = set(sleeping)
    while True:
        more = {n for names, node in bindings if _names(node) & known for n in names} - known
        if not more:
            return known
        known |= more


def unlabelled(source: str) -> list[str]:
    """``Figure.of(x)`` without ``kind="simulated"`` although an arm of x sleeps."""
    tree = ast.parse(source)
    outside = [
        (names, node)
        for names, node in _bindings(tree.body)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node in tree.body
        and not any("experiment" in _names(one) for one in node.decorator_list)
    ]
    everywhere = _closure(outside, SLEEPERS)
    wrong = []
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        inside = [b for b in _bindings(function.body) if not isinstance(b[1], ast.ClassDef)]
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                inside = [b for b in inside if b[1] is not node.value] + list(_pairs(node))
        sleeping = _closure(inside, everywhere)
        for call in ast.walk(function):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "Figure.of"):
                continue
            labels = {k.arg: ast.unparse(k.value) for k in call.keywords}
            if _names(call.args[0]) & sleeping and labels.get("kind") != "'simulated'":
                wrong.append(f"{function.name}: {ast.unparse(call)}")
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_ratio_whose_arms_sleep_is_simulated(path: Path) -> None:
    assert unlabelled(path.read_text(encoding="utf-8")) == []


def test_the_rule_finds_a_sleep_through_helpers_and_leaves_work_alone() -> None:
    source = """
def slow(ms):
    time.sleep(ms)

def work(ms):
    sum(range(ms))

@experiment("A1")
def one(context):
    late, ready = partial(slow, 2), partial(work, 2)
    bad = compare(lambda: late(), lambda: ready())
    good = compare(lambda: ready(), lambda: ready())
    return Figure.of(bad), Figure.of(bad, kind="simulated"), Figure.of(good)
"""
    assert unlabelled(source) == ["one: Figure.of(bad)"]
