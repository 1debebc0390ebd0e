"""Guesses are stored in one folder, survive anything else in it, and one call deletes them."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit import progress
from perfkit.course.kit.progress import Guess, calibration, folder, forget, guesses, keep


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _guess(lesson: str = "03", chosen: str = "a", sure: int | None = None) -> Guess:
    return Guess(lesson, "Which?", chosen, "a", sure)


def test_reading_makes_no_folder(home: Path) -> None:
    assert guesses() == ()
    assert repr(calibration()).startswith("Your guesses\nNo guess has been scored yet.")
    assert "Nothing was kept" in repr(forget())
    assert not home.exists()


def test_only_the_first_guess_at_a_question_counts() -> None:
    assert keep(_guess(chosen="b")) == ""
    assert keep(_guess(chosen="a")) == ""
    assert [guess.chosen for guess in guesses()] == ["b"]


def test_calibration_by_stated_confidence() -> None:
    for lesson, chosen, sure in (
        ("00", "a", 90),
        ("01", "b", 90),
        ("02", "a", 50),
        ("03", "b", None),
    ):
        keep(_guess(lesson, chosen, sure))
    found = calibration()
    assert found.by_confidence() == {50: (1, 1), 90: (1, 2)}
    assert found.n_right == 2
    said = repr(found)
    assert "So far you were right 2 of 4 times." in said
    assert "When you were 90 % sure: right 1 of 2 times." in said
    assert "- 01: wrong, you said b, it is a. Which?" in said


def test_forget_deletes_what_is_ours_and_nothing_else(home: Path) -> None:
    keep(_guess("00"))
    keep(_guess("01"))
    (home / "guesses" / ".perfkit-x.json").write_text("left by a kernel that was killed")
    (home / "thesis.txt").write_text("mine")
    assert "Forgotten" in repr(forget())
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]
    (home / "thesis.txt").unlink()
    keep(_guess())
    forget()
    assert not home.exists()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}", b'{"lesson": 3}', b"[" * 100_000),
        json.dumps({"lesson": "00", "question": "Q", "chosen": [], "right": "a"}).encode(),
    ],
    ids=range(9),
)
def test_a_damaged_file_is_passed_over_and_replaced(home: Path, content: bytes) -> None:
    keep(_guess("03"))
    keep(_guess("04"))
    damaged = next((home / "guesses").glob("03-*.json"))
    damaged.write_bytes(content)
    assert [guess.lesson for guess in guesses()] == ["04"]
    keep(_guess("03", "b"))
    assert [guess.chosen for guess in guesses()] == ["b", "a"]


@pytest.mark.parametrize("sure", [True, "90", 101, -1, 2.5])
def test_a_confidence_that_cannot_be_is_none(home: Path, sure: object) -> None:
    keep(_guess())
    (path,) = (home / "guesses").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sure": sure}))
    assert [guess.sure for guess in guesses()] == [None]


def test_what_is_being_written_is_not_read(home: Path) -> None:
    keep(_guess())
    (path,) = (home / "guesses").iterdir()
    (home / "guesses" / ".perfkit-part.json").write_bytes(path.read_bytes())
    assert len(guesses()) == 1


def test_a_name_cannot_lead_out_of_the_folder(home: Path) -> None:
    keep(Guess("../../x/\0", "../?", "a", "a"))
    assert [path.parent for path in home.rglob("*.json")] == [home / "guesses"]
    assert len(guesses()) == 1


def test_a_folder_in_the_way_of_a_file_is_told(home: Path) -> None:
    (home / "guesses" / progress._name(_guess().lesson, _guess().question)).mkdir(parents=True)
    assert "not a regular file" in keep(_guess())
    assert guesses() == ()
    keep(_guess("04"))
    with pytest.raises(UsageError, match="could not be deleted"):
        forget()
    assert guesses() == (), "what could be deleted is gone"


@pytest.mark.skipif(sys.platform == "win32", reason="permissions")
def test_a_read_only_folder_is_told_and_harmless(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, write: object) -> None:
        raise UsageError(f"cannot write {path}: Read-only file system")

    keep(_guess("00"))
    monkeypatch.setattr(progress, "write_atomically", refused)
    assert "Read-only file system" in keep(_guess("01"))
    assert [guess.lesson for guess in guesses()] == ["00"]


def _keep_many(number: int) -> None:
    for i in range(20):
        keep(Guess(f"{i:02}", "Which?", "ab"[number], "a"))


@pytest.mark.skipif(sys.platform == "win32", reason="starts processes by fork")
def test_two_kernels_lose_nothing(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_keep_many, args=(number,)) for number in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert [guess.lesson for guess in guesses()] == [f"{i:02}" for i in range(20)]
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
@pytest.mark.parametrize(
    ("xdg", "expected"),
    [("/data", "/data/perfkit"), ("", "{home}/.local/share/perfkit"),
     ("relative", "{home}/.local/share/perfkit")],
)  # fmt: skip
def test_where_the_folder_is(
    xdg: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERFKIT_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", xdg)
    assert os.fspath(folder()) == expected.format(home=tmp_path)


def test_without_a_home_a_lesson_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PERFKIT_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert "set PERFKIT_HOME" in keep(_guess())
    assert guesses() == ()


def test_a_home_of_nobody_is_told_and_a_lesson_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_HOME", "~nobody-of-this-name/x")
    with pytest.raises(UsageError, match="PERFKIT_HOME='~nobody"):
        folder()
    assert "PERFKIT_HOME" in keep(_guess())
    assert guesses() == ()
    assert "Nothing was kept" in repr(forget())
