"""perfkit without extras serves a bare server; what needs an extra says which, in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.base import extras
from perfkit.base.errors import MissingError

ROOT = Path(__file__).parent.parent

# pip's name -> the name in an import, where they differ
_IMPORTED = {"ipython": "IPython", "opencv-python-headless": "cv2", "pillow": "PIL"}
# tools of the command line, and what comes with another one
_NOT_IMPORTED, _COMES_ALONG = {"nbval"}, {"traitlets": "notebook", "nbformat": "lab"}

# An interpreter in which what the extras bring is not found, as after `pip install .`. What
# those packages depend on is there, but nothing of perfkit imports it.
BARE = f"""
import sys
from importlib.machinery import PathFinder

class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {set(extras._BROUGHT_BY)!r}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Without if one is PathFinder else one for one in sys.meta_path]
"""


def _pyproject() -> dict[str, str]:
    """Imported name -> extra, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {}
    for extra, wanted in project["optional-dependencies"].items():
        for one in wanted:
            name = one.split(">")[0].split("[")[0]
            if name != "perfkit" and name not in _NOT_IMPORTED:
                found[_IMPORTED.get(name, name)] = extra
    return found | _COMES_ALONG


def test_the_table_is_that_of_pyproject() -> None:
    assert _pyproject() == extras._BROUGHT_BY


def test_no_text_installs_perfkit_by_its_name() -> None:
    """No index has it: whoever registered it there would run code on readers' machines."""
    by_name = re.compile(r"install (-\S+ )*\W*perfkit\b(?!-)|perfkit\[\w+\]'")
    folders = (".docs", "binder", "data", "notebooks", "perfkit")
    paths = [p for folder in folders for p in (ROOT / folder).rglob("*")]
    texts = [
        path
        for path in (*ROOT.glob("*.md"), ROOT / "Makefile", *paths)
        if path.suffix in ("", ".ipynb", ".js", ".json", ".md", ".py", ".sh", ".yml")
        and path.is_file()
        and not {"generated", "node_modules"} & {*path.parts}
    ]
    assert len(texts) > 500
    assert [p for p in texts if by_name.search(p.read_text(encoding="utf-8"))] == []


def test_lab_brings_all_of_notebook() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "perfkit[notebook]" in wanted["optional-dependencies"]["lab"]


def test_another_missing_module_is_not_taken_for_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), extras.needs("this"):
        import no_such_module  # noqa: F401


def test_a_missing_package_of_an_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingError) as caught, extras.needs("a figure"):
        import matplotlib  # noqa: F401
    assert str(caught.value) == (
        "a figure needs matplotlib, which is not installed: pip install '.[notebook]' in perfkit's "
        "folder, or its wheel with [notebook] after the name"
    )


WORKS = """
import json, sys
import torch
import perfkit
from perfkit.cli import main

model = torch.nn.Linear(8, 8)
def step():
    model(torch.randn(4, 8)).sum().backward()

said = {}
profile = perfkit.profile(step)
profile.save(sys.argv[1] + "/profile.html")
profile.save(sys.argv[1] + "/profile.json")
said["profile"] = str(profile)
said["compare"] = str(perfkit.compare(step, step, budget_s=0.2))
said["account"] = str(perfkit.account(step))
said["syncs"] = str(perfkit.find_syncs(step, model))
said["watched"] = len(list(perfkit.watch(range(3), live=False)))
said["doctor"] = main(["doctor"])
said["trace"] = main(["trace", sys.argv[1] + "/profile.json", "--html", sys.argv[1] + "/t.html"])

import perfkit.integrations
from perfkit.base.errors import MissingError
lacks = {}
for name, call in {
    "figure": lambda: profile.figure(),
    "png": lambda: profile.save(sys.argv[1] + "/profile.png"),
    "Lab": lambda: perfkit.Lab,
    "Timeline": lambda: perfkit.Timeline,
    "from": lambda: exec("from perfkit import Lab"),
}.items():
    try:
        call()
    except MissingError as error:
        lacks[name] = str(error)
said["lacks"] = lacks
owners = (perfkit, "Lab"), (perfkit, "Timeline"), (perfkit.integrations, "LightningWatch")
said["has"] = [hasattr(*owned) for owned in owners]
exec("from perfkit import *", every := {})
said["every"] = sorted(every)
print("RESULT" + json.dumps(said))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("bare")
    done = subprocess.run(
        [sys.executable, "-c", BARE + WORKS, str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT")) | {"out": done.stdout, "folder": folder}


def test_a_bare_server_records_explains_and_measures(bare: dict[str, object]) -> None:
    assert "step" in str(bare["profile"])
    assert "first" in str(bare["compare"])
    assert bare["watched"] == 3
    assert bare["doctor"] == bare["trace"] == 0
    assert "<html" in (Path(str(bare["folder"])) / "t.html").read_text()[:200]


def test_doctor_there_names_the_extras(bare: dict[str, object]) -> None:
    assert "pip install '.[notebook]'" in str(bare["out"])
    assert "pip install '.[lab]'" in str(bare["out"])


@pytest.mark.parametrize(
    ("what", "package", "extra"),
    [
        ("figure", "matplotlib", "notebook"),
        ("png", "matplotlib", "notebook"),
        ("Lab", "anywidget", "notebook"),
        ("Timeline", "anywidget", "notebook"),
        ("from", "anywidget", "notebook"),
    ],
)
def test_what_needs_an_extra_says_which(
    bare: dict[str, dict[str, str]], what: str, package: str, extra: str
) -> None:
    said = bare["lacks"][what]
    assert f"needs {package}, which is not installed: pip install '.[{extra}]'" in said
    assert "\n" not in said


def test_what_looks_at_every_name_does_not_stumble(bare: dict[str, Any]) -> None:
    """``hasattr`` and ``import *`` raised."""
    assert bare["has"] == [False, False, False]
    assert {"__builtins__", *perfkit.__all__} - {*bare["every"]} == {"Lab", "Timeline"}


@pytest.mark.parametrize("package", ["IPython", "anywidget", "ipywidgets", "traitlets"])
def test_dir_leaves_out_what_cannot_be_had(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knew of anywidget only, so that help(perfkit) failed without one of the others."""
    without = f"import sys; sys.modules[{package!r}] = None; import perfkit; print(*dir(perfkit))"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert {*perfkit.__all__}.difference(done.stdout.split()) == {"Lab", "Timeline"}
    monkeypatch.setitem(sys.modules, package, types.ModuleType(package))  # a stub is not missing
    assert extras.is_here(package)
