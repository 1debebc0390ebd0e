"""The course's table of what its lessons teach fits the toolkit and the notebooks."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from perfkit.advice.rules.data import RULE_OF_CAUSE
from perfkit.base.lessons import GROUP
from perfkit.course import teaches
from perfkit.experiment.settings.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]


def test_the_toolkit_finds_the_course() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ((name, value),) = config["project"]["entry-points"][GROUP].items()
    assert EntryPoint(name=name, value=value, group=GROUP).load() is teaches.lesson_of


def test_every_rule_that_is_taught_exists() -> None:
    rules = set(RULE_OF_CAUSE.values())
    for path in (ROOT / "perfkit" / "advice").rglob("*.py"):
        rules |= set(re.findall(r'"([a-z0-9-]+)"', path.read_text(encoding="utf-8")))
    taught = [rule for names in teaches.RULES.values() for rule in names]
    assert len(taught) == len(set(taught))
    assert set(taught) <= rules


def test_every_setting_that_is_taught_exists() -> None:
    taught = [name for names in teaches.SETTINGS.values() for name in names]
    assert len(taught) == len(set(taught))
    assert set(taught) <= set(CATALOGUE)


def test_lessons_are_called_like_their_notebooks() -> None:
    here = {path.stem[:2]: path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    for lesson in {*teaches.RULES, *teaches.SETTINGS}:
        assert re.fullmatch(r"\d\d(-[a-z]+)+", lesson)
        assert here.get(lesson[:2], lesson) == lesson


def test_only_lessons_that_are_here_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaches, "_NOTEBOOKS", tmp_path)
    assert teaches.lesson_of("setting", "num_workers") is None
    (tmp_path / "04-dataloader.ipynb").touch()
    assert teaches.lesson_of("setting", "num_workers") == "04-dataloader"
    assert teaches.lesson_of("rule", "dataloader-no-workers") == "04-dataloader"
    assert teaches.lesson_of("rule", "num_workers") is None


def test_a_step_that_sleeps_is_no_matter_of_the_loss() -> None:
    # it waits alongside training where a loader's worker does it
    assert teaches.lesson_of("rule", "host-sleeps") == "04-dataloader"
    assert teaches.lesson_of("rule", "host-waits") is None  # whose work is not seen
