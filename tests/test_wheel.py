"""What is in the wheel: package, browser code and course; no tests and no caches."""

from __future__ import annotations

import json
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import perfkit
from perfkit.course.kit._course_files import course_files

ROOT = Path(__file__).parents[1]
STATIC = ("lab.js", "live_plot.js", "timeline.css", "timeline.js", "widget.css")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    folder = tmp_path_factory.mktemp("dist")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    assert f"perfkit-{perfkit.__version__}-" in wheel
    return zipfile.Path(wheel)


@pytest.fixture(scope="module")
def names(files: zipfile.Path) -> set[str]:
    return set(files.root.namelist())


def test_the_wheel_has_every_module_and_the_browser_code(names: set[str]) -> None:
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "perfkit").rglob("*.py")}
    assert {m for m in modules if "node_modules" not in m} <= names
    assert {f"perfkit/widgets/static/{name}" for name in STATIC} <= names
    assert "perfkit/course/ledger/claims.json" in names
    assert "perfkit/show/templates/report.css" in names


def test_the_wheel_has_the_licence_of_all_that_is_bundled(files: zipfile.Path) -> None:
    about = files / f"perfkit-{perfkit.__version__}.dist-info"
    told = Parser().parsestr((about / "METADATA").read_text(encoding="utf-8"))
    lock = json.loads((ROOT / "perfkit/widgets/js/package-lock.json").read_text())
    bundled = {  # nothing else: hatch_build.py looks at what esbuild took
        path.removeprefix("node_modules/"): package
        for path, package in lock["packages"].items()
        if path and not package.get("dev")
    }
    assert bundled
    for name, package in bundled.items():
        (path,) = (p for p in told.get_all("License-File") or () if p.endswith(f"/{name}.txt"))
        assert "Copyright" in (about / "licenses" / path).read_text(encoding="utf-8")
        assert package["license"] in told["License-Expression"].split(" AND ")


def test_the_wheel_has_the_course_and_what_its_lessons_need(names: set[str]) -> None:
    lessons = [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert lessons
    for name in lessons:
        assert f"perfkit/_course/notebooks/{name}" in names
        assert f"perfkit/_course/notebooks/solutions/{name}" in names
    assert {f"perfkit/_course/{file}" for file in course_files(ROOT)} <= names
    assert "perfkit/_course/data/make_images.py" in names
    assert any(name.startswith("perfkit/_course/data/recorded/") for name in names)


def test_the_wheel_has_nothing_else(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert tops == {"perfkit", f"perfkit-{perfkit.__version__}.dist-info"}
    unwanted = (
        "__pycache__",
        "node_modules",
        ".pyc",
        ".ipynb_checkpoints",
        "/generated/",
        "/js/src",
    )
    assert [name for name in names if any(part in name for part in unwanted)] == []
    assert [name for name in names if "/tests/" in name or "/test_" in name] == []
