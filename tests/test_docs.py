"""What the site is built from; Sphinx itself is not needed here."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

import perfkit
from perfkit.course.kit.folding import folded_cells

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def sources() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_sources", ROOT / ".docs" / "sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gathered(sources: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "sources"
    sources.gather(folder)
    return folder


def test_every_lesson_is_in_the_table_of_contents(gathered: Path) -> None:
    contents = (gathered / "notebooks" / "README.md").read_text().split("```{toctree}")[1]
    for path in LESSONS:
        assert f"<{path.stem}>" in contents
        assert (gathered / "notebooks" / path.name).is_file()
        assert (gathered / "notebooks" / "solutions" / path.name).is_file()


@pytest.mark.parametrize("lesson", [path.stem for path in LESSONS])
def test_outputs_below_the_guess_wait_for_it(gathered: Path, lesson: str) -> None:
    saved = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4)
    made = nbformat.read(gathered / "notebooks" / f"{lesson}.ipynb", as_version=4)
    waiting = [c for c in made["cells"] if "pk-waits" in c["metadata"].get("tags", ())]
    assert len(waiting) == len(folded_cells(saved))
    asked = [n for n, c in enumerate(made["cells"]) if 'id="guess"' in c["source"]]
    assert len(asked) == (1 if waiting else 0)
    if waiting:
        assert made["cells"].index(waiting[0]) > asked[0]


@pytest.mark.parametrize("lesson", [path.stem for path in LESSONS])
def test_each_output_has_one_form_and_each_picture_is_a_file(gathered: Path, lesson: str) -> None:
    made = nbformat.read(gathered / "notebooks" / f"{lesson}.ipynb", as_version=4)
    for cell in made["cells"]:
        assert "attachment:" not in cell["source"]
        for output in cell.get("outputs", ()):
            assert len(output.get("data", {0: 0})) == 1
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", made["cells"][0]["source"])
    assert pictures
    assert all((gathered / "notebooks" / name).is_file() for name in pictures)


def test_the_reference_names_every_public_function_and_result(gathered: Path) -> None:
    page = (gathered / "api.md").read_text()
    public = {name for name in perfkit.__all__ if not name.endswith("_extension")}
    named = set(re.findall(r"auto\w+:: perfkit\.(\w+)$", page, re.M))
    assert named >= public - {"PerfkitError", "__version__"}  # automodule brings the errors


def test_the_claims_are_not_said_to_be_of_the_machine_that_builds_the_site(gathered: Path) -> None:
    page = (gathered / "ledger.md").read_text()
    assert "claim-A1" in page
    assert "holds here" not in page
    assert "no machine" not in page


def test_commands_and_magics_are_those_that_exist(gathered: Path, sources: ModuleType) -> None:
    page = (gathered / "commands.md").read_text()
    assert {"run", "trace", "doctor", "lab", "compare-runs"} <= set(sources.commands())
    for name in sources.commands():
        assert f"### perfkit {name}\n\n```text\nusage: perfkit {name}" in page
    assert "### %torchprof" in page
    assert "option_strings" not in page  # an unescaped % in the help of an argument


def test_a_picture_of_two_themes_is_two_pictures(sources: ModuleType) -> None:
    themed = sources._themed(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="d.png">'
        '<img alt="a Lab" src="l.png"></picture>'
    )
    assert themed == "![a Lab](l.png){.only-light}\n![a Lab](d.png){.only-dark}"


def test_text_that_stands_for_a_widget_goes_where_its_picture_follows(sources: ModuleType) -> None:
    widget: Any = {"data": {"text/plain": "Lab('')"}}
    still: Any = {"data": {"text/html": '<div class="pk-static-1">', "text/plain": "run 1"}}
    assert [*sources._shown([widget, still])] == [
        {"data": {"text/html": still["data"]["text/html"]}}
    ]
