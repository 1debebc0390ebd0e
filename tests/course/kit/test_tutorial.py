"""The course from a real wheel, installed into a scratch folder: complete, and never overwriting
what a reader changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary

import perfkit
from perfkit import cli
from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit import tutorial
from perfkit.course.kit._course_files import course_files
from perfkit.course.kit.tutorial import WORK, copy_course, own_copy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def _ours(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=200,
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with perfkit from the wheel and nothing else; read-only, as some are."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-index", "--target", str(target), str(wheel)),
        ],
        check=True,
        capture_output=True,
        timeout=200,
    )
    return target


def _perfkit(
    installed: Path, cwd: Path, *arguments: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "perfkit.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran


def test_the_wheel_holds_the_sources_of_the_course_and_nothing_generated(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    course = {n.removeprefix("perfkit/_course/") for n in names if "/_course/" in n}
    assert {"notebooks/00-start-here.ipynb", "notebooks/solutions/00-start-here.ipynb"} <= course
    assert {"data/make_images.py", "data/README.md", "notebooks/README.md"} <= course
    assert course == {str(path) for path in course_files(ROOT)}
    assert not [n for n in names if "generated" in n or "checkpoint" in n or "__pycache__" in n]
    assert "perfkit/course/kit/front/choices.js" in names
    # nothing of it lands in site-packages beside the package
    assert {n.split("/")[0].partition("-")[0] for n in names} == {"perfkit"}


def test_the_course_comes_out_of_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    before = _ours(installed)
    assert "`perfkit tutorial DIR`" in _perfkit(installed, tmp_path, "lab", code=1).stderr
    assert "`perfkit tutorial DIR`" in _perfkit(installed, tmp_path, "tour", code=1).stderr

    said = _perfkit(installed, tmp_path, "tutorial", "my course").stdout
    assert "Next: cd 'my course' && perfkit lab" in said
    course = tmp_path / "my course"
    expected = {str(path) for path in course_files(ROOT)} | {"README.md", ".perfkit-tutorial.json"}
    assert _ours(course) == expected
    for path in course.rglob("*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))
    assert "nothing to do" in _perfkit(installed, tmp_path, "tutorial", "my course").stdout

    # inside the copy its lessons are found, and data goes there, not into the installed package
    program = (
        "from perfkit.course.kit import _places as p; print(p.lesson_path('00')); "
        "print(p.data_folder())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=course / "notebooks",
        env={k: v for k, v in os.environ.items() if k != "PERFKIT_DATA"}
        | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert found == [
        str(course / "notebooks" / "00-start-here.ipynb"),
        str(course / "data" / "generated"),
    ]
    assert _ours(installed) == before


def test_an_installed_wheel_knows_its_lessons_and_records(installed: Path, tmp_path: Path) -> None:
    found = json.loads(_perfkit(installed, tmp_path, "claims", "--json").stdout)
    taught = {row["id"]: row["taught_in"] for row in found["claims"]}
    assert "00-start-here" in taught["C2"]
    program = (
        "from perfkit.base.lessons import lesson_of; "
        "from perfkit.course.kit._recorded import recorded_folders; "
        "print(lesson_of('setting', 'num_workers'), [f.parts[-3:] for f in recorded_folders()])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1",
             "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout  # fmt: skip
    assert said == "04-dataloader [('_course', 'data', 'recorded')]\n"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a small course, as version one; returns its root."""
    root = tmp_path / "site" / "perfkit" / "_course"
    for name in ("notebooks/00-a.ipynb", "notebooks/README.md", "data/make_images.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"one {name}")
    monkeypatch.setattr(perfkit, "__file__", str(tmp_path / "site" / "perfkit" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    return root


def test_a_changed_file_is_named_and_nothing_is_written(
    course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    copy_course(mine)
    (mine / "notebooks" / "00-a.ipynb").write_text("my work")
    (mine / "notebooks" / "own.ipynb").write_text("my own")
    (mine / "data" / "make_images.py").unlink()
    (course / "notebooks" / "README.md").write_text("two")
    assert cli.main(["tutorial", "mine"]) == 2
    said = capsys.readouterr().err
    assert "1 file in mine changed since they were copied: notebooks/00-a.ipynb." in said
    assert said.count("\n") == 1
    assert not (mine / "data" / "make_images.py").exists()
    assert (mine / "notebooks" / "README.md").read_text().startswith("one")

    assert cli.main(["tutorial", "mine", "--force"]) == 0
    assert (mine / "notebooks" / "00-a.ipynb").read_text().startswith("one")
    assert (mine / "notebooks" / "README.md").read_text() == "two"
    assert (mine / "notebooks" / "own.ipynb").read_text() == "my own"


def test_a_newer_course_renews_what_was_not_changed(course: Path, tmp_path: Path) -> None:
    copy_course(tmp_path / "mine")
    (course / "notebooks" / "00-a.ipynb").write_text("two")
    copied = copy_course(tmp_path / "mine")
    assert (copied.written, copied.same) == (1, 3)
    assert (tmp_path / "mine" / "notebooks" / "00-a.ipynb").read_text() == "two"


@pytest.mark.parametrize("manifest", ["", "[]", '{"files": 3}', "\x00"])
def test_without_a_readable_manifest_every_other_file_is_the_readers(
    course: Path, tmp_path: Path, manifest: str
) -> None:
    copy_course(tmp_path / "mine")
    (tmp_path / "mine" / ".perfkit-tutorial.json").write_text(manifest)
    (course / "notebooks" / "00-a.ipynb").write_text("two")
    with pytest.raises(UsageError, match=r"00-a\.ipynb"):
        copy_course(tmp_path / "mine")


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_nothing_behind(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    mine = tmp_path / "mine"
    if there:
        mine.mkdir()
        (mine / "thesis.txt").write_text("mine")
    written = []

    def write(path: Path, content: bytes) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        with path.open("wb") as file:
            return file.write(content)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(UsageError, match="No space left on device"):
        copy_course(mine)
    assert len(written) == 3
    assert mine.exists() == there
    assert _ours(tmp_path / "mine") == ({"thesis.txt"} if there else set())


@pytest.mark.parametrize(
    ("blocked", "reason"),
    [
        ("mine", "not a folder"),
        ("mine/notebooks", "in the way"),
        ("mine/notebooks/00-a.ipynb/", "in the way"),
    ],
)
def test_what_is_in_the_way_is_named(
    course: Path, tmp_path: Path, blocked: str, reason: str
) -> None:
    path = tmp_path / blocked
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if blocked.endswith("/") else path.write_text("")
    with pytest.raises(UsageError, match=reason):
        copy_course(tmp_path / "mine", force=True)


def test_the_course_is_not_copied_over_itself(course: Path) -> None:
    with pytest.raises(UsageError, match="where the course comes from"):
        copy_course(course, force=True)


def test_a_package_without_a_course_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfkit, "__file__", str(tmp_path / "perfkit" / "__init__.py"))
    with pytest.raises(MissingError, match="without its lessons"):
        tutorial.course_root()


@pytest.mark.parametrize("folder", ["", "a\0b"])
def test_a_folder_that_cannot_be_is_wrong_use(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["tutorial", folder])
    assert ended.value.code == 2
    assert "usage: perfkit tutorial" in capsys.readouterr().err


def test_a_clone_gives_the_same_files_as_its_wheel(tmp_path: Path) -> None:
    copied = copy_course(tmp_path / "mine")
    manifest = json.loads((tmp_path / "mine" / ".perfkit-tutorial.json").read_text())
    assert set(manifest["files"]) == {str(p) for p in course_files(ROOT)} | {"README.md"}
    assert copied.lessons == len(list((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb")))


@pytest.fixture
def clone(course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small course as a clone has it, and the working directory in it."""
    root = tmp_path / "clone"
    (course).rename(root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PERFKIT_DATA", "")
    return root


def test_a_lesson_of_a_clone_is_opened_as_a_copy_that_keeps_the_reader_s_work(clone: Path) -> None:
    lesson = clone / "notebooks" / "00-a.ipynb"
    said: list[str] = []
    mine = own_copy(lesson, said.append)
    assert mine == clone / "my-course" / "notebooks" / "00-a.ipynb"
    assert mine.read_text() == lesson.read_text()

    # what the reader changed stays, and what they did not is renewed
    mine.write_text("my work")
    (clone / "notebooks" / "README.md").write_text("two")
    del said[:]
    assert own_copy(lesson, said.append).read_text() == "my work"
    assert (mine.parent / "README.md").read_text() == "two"
    assert len(said) == 1, "the course did not change what the reader changed"

    # the course goes on: said each time until the reader does something about it
    lesson.write_text("two")
    for _ in range(2):
        del said[:]
        assert own_copy(lesson, said.append).read_text() == "my work"
        assert "newer versions of files that you changed: notebooks/00-a.ipynb." in said[1]
    mine.rename(mine.with_name("old.ipynb"))
    del said[:]
    assert own_copy(lesson, said.append).read_text() == "two"
    assert len(said) == 1
    assert not any(path.is_dir() and path.name == "my-course" for path in mine.parents[1].iterdir())


def test_what_is_not_a_lesson_of_a_clone_is_opened_where_it_is(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.ipynb"
    own.write_text("{}")
    assert own_copy(own, print) == own
    assert not (clone / "my-course").exists()
    mine = own_copy(clone / "notebooks" / "00-a.ipynb", lambda _: None)
    monkeypatch.chdir(mine.parent)  # inside the copy, the copy is what is opened
    assert own_copy(mine, print) == mine


def test_git_and_make_leave_the_reader_s_copy_alone() -> None:
    assert f"/{WORK}/" in (ROOT / ".gitignore").read_text().splitlines()
    assert WORK not in (ROOT / "Makefile").read_text().partition("\nclean:")[2]


def test_copies_are_trusted_and_what_a_reader_brings_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JupyterLab took the style out of every saved report, and a reload the quiz and the Lab."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    copied = copy_course(tmp_path / "course")
    notary = NotebookNotary()
    notebooks = sorted(copied.folder.rglob("*.ipynb"))
    assert len(notebooks) >= 20
    signed = [notary.check_signature(nbformat.read(path, as_version=4)) for path in notebooks]
    assert all(signed)
    other = nbformat.read(notebooks[0], as_version=4)
    other.cells[1].source += "\n1"
    assert not notary.check_signature(other)
