"""The hook by which a course says which of its lessons is about a rule or a setting."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from perfkit.base import lessons


def _courses(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    found = [EntryPoint(name=v, value=v, group=lessons.GROUP) for v in values]
    monkeypatch.setattr(lessons, "entry_points", lambda *, group: found)
    monkeypatch.setattr(lessons, "_courses", lessons._courses.__wrapped__)  # not the kept answer


def about_sync(kind: str, name: str) -> str | None:
    return "7-of-mine" if (kind, name) == ("rule", "sync") else None


def raises(kind: str, name: str) -> str | None:
    raise RuntimeError(kind + name)


def test_without_a_course_there_is_no_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    _courses(monkeypatch)
    assert lessons.lesson_of("rule", "sync") is None


def test_the_first_course_that_knows_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _courses(monkeypatch, f"{__name__}:about_sync")
    assert lessons.lesson_of("rule", "sync") == "7-of-mine"
    assert lessons.lesson_of("setting", "sync") is None


def test_a_broken_course_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ("no_such_package_of_mine:hook", f"{__name__}:no_such_hook", f"{__name__}:raises")
    _courses(monkeypatch, *broken, f"{__name__}:about_sync")
    assert lessons.lesson_of("rule", "sync") == "7-of-mine"
