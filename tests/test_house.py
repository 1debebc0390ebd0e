"""The rooms: no file imports in a circle, none of the much used ones is private, and the picture
in CONTRIBUTING.md is the order that import-linter holds.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grimp
import pytest

from perfkit.course import teaches
from perfkit.course.ledger.claims import claims

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfkit"
# From this many on, a file is part of how its room is used.
_MANY = 18

# the C1 control characters, a GPU, and an example of a lesson's name in the help of the hook
_OTHER_THINGS = {("printable.py", "C1"), ("datasheet.py", "A10"), ("lessons.py", "04-dataloader")}

Arrows = dict[str, set[str]]


@pytest.fixture(scope="module")
def arrows() -> Arrows:
    """Module -> the modules that it imports, in functions too, or looks up by name."""
    graph = grimp.build_graph("perfkit", exclude_type_checking_imports=True, cache_dir=None)
    found = {m: set(graph.find_modules_directly_imported_by(m)) for m in graph.modules}
    for module in found:
        found[module] |= set(_spelled(_file(module))) & found.keys()
    return found


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _spelled(path: Path) -> Iterator[str]:
    """The strings of a file, without docstrings: importlib may be given one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            yield node.value


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one file."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        ahead = [*arrows[start]]
        while ahead:
            one = ahead.pop()
            if one not in seen:
                seen.add(one)
                ahead += arrows[one]
        reached[start] = seen
    in_one = {
        tuple(sorted({b for b in reached[a] if a in reached[b]})) for a in arrows if a in reached[a]
    }
    return [list(one) for one in sorted(in_one) if len(one) > 1]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_no_file_imports_itself_by_way_of_others(arrows: Arrows) -> None:
    assert circles(arrows) == []


def test_lookups_by_name_count_as_imports(arrows: Arrows) -> None:
    assert "perfkit.show.profile" in arrows["perfkit.show.lookup"]
    assert "perfkit.widgets.lab" in arrows["perfkit"]


def test_no_file_that_many_import_is_private(arrows: Arrows) -> None:
    used: dict[str, int] = {}
    for ahead in arrows.values():
        for module in ahead:
            used[module] = used.get(module, 0) + 1
    assert max(used.values()) >= _MANY
    private = [m for m in used if re.match(r"_(?!version)", m.rpartition(".")[2])]
    assert {m: used[m] for m in private if used[m] >= _MANY} == {}


def test_the_picture_in_the_readme_is_the_order_of_the_contracts() -> None:
    drawn = _picture()
    layers = [
        {room.strip().removeprefix("perfkit.") for room in layer.split("|")}
        for layer in _contract("layers", "perfkit.cli")["layers"]
    ]
    # rooms side by side in the picture may be one above the other in the contract
    assert [room for row in drawn for room in sorted(row)] == [
        room for layer in layers for room in sorted(layer)
    ]
    for layer in layers:
        assert any(layer <= row for row in drawn), layer


def test_no_import_goes_up_in_the_picture(arrows: Arrows) -> None:
    """Also not one within a function, and none that is looked up by name."""
    row = {room: at for at, rooms in enumerate(_picture()) for room in rooms}
    between = {(_room(start), _room(end)) for start, ahead in arrows.items() for end in ahead}
    # the package itself hands out names of every room, and is in none
    up = [(a, b) for a, b in between if a in row and b in row and row[b] < row[a]]
    assert ("show", "trace") in between
    assert up == []


def _room(module: str) -> str:
    return (*module.split("."), "")[1]


def _picture() -> list[set[str]]:
    """The rooms in CONTRIBUTING.md, a set for each row."""
    readme = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = readme.split("## How the code is laid out")[1].split("```")[1]
    return [set(re.findall(r"(\w+)/", line)) for line in picture.strip().splitlines()]


def test_the_toolkit_names_no_lesson_and_no_claim() -> None:
    """A course says which of its lessons is about what: perfkit/base/lessons.py."""
    lessons = {*teaches.RULES, *teaches.SETTINGS}
    lessons |= {path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    names = "|".join(map(re.escape, sorted(lessons)))
    told = re.compile(rf"\b({names}|{'|'.join(claims())})\b|[Ll]essons? \d\d")
    found = set()
    for path in PACKAGE.rglob("*"):
        folders = path.relative_to(PACKAGE).parts
        ours = folders[0] not in ("course", "cli", "_course")
        ours = ours and not {"static", "node_modules"} & set(folders)
        if ours and path.suffix in (".py", ".html", ".css", ".js"):
            text = path.read_text(encoding="utf-8")
            found |= {(path.name, match[0]) for match in told.finditer(text)}
    assert found == _OTHER_THINGS


def test_every_folder_of_the_package_is_a_room() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    named = re.findall(r"perfkit\.(\w+)", " ".join(_contract("layers", "perfkit.cli")["layers"]))
    assert folders == set(named)


def _contract(kind: str, holds: str) -> dict[str, Any]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = [
        one
        for one in config["tool"]["importlinter"]["contracts"]
        if one["type"] == kind and holds in one.get("layers", ())
    ]
    return dict(found)


def test_every_temporary_folder_is_swept_after_a_kill() -> None:
    """perfkit/base/scratch.py names the process that made it; nothing else would be removed."""
    makers = re.compile(r"\b(TemporaryDirectory|mkdtemp)\b")
    found = {p.name for p in PACKAGE.rglob("*.py") if makers.search(p.read_text(encoding="utf-8"))}
    assert found == {"scratch.py"}


def test_advice_takes_no_name_of_a_loop_over_weights() -> None:
    """After ``for p in model.parameters()`` within the block, ``print(p)`` shows a parameter."""
    takes = re.compile(r"perfkit\.profile\([^)]*\) as p\b")
    texts = [ROOT / "README.md", *PACKAGE.rglob("*.py")]
    assert not [path for path in texts if takes.search(path.read_text(encoding="utf-8"))]
