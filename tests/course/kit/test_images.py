"""The photographs: identical everywhere, complete, and showing their classes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from PIL import Image

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit import images as images_
from perfkit.course.kit.images import CLASSES, make_images

SIZE = (96, 64)


def _digests(made: images_.ImageSet) -> list[str]:
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in made.files]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first = make_images(tmp_path / "a", n=6, size=SIZE)
    again = make_images(tmp_path / "b", n=6, size=SIZE)
    other = make_images(tmp_path / "a", n=6, size=SIZE, seed=1)
    assert _digests(first) == _digests(again)
    assert not set(_digests(first)) & set(_digests(other))


def test_pixels_do_not_depend_on_this_machine(tmp_path: Path) -> None:
    random = images_._Random(0)
    sky = images_._sky(random, SIZE)
    pixels = images_._picture(random, sky, SIZE, 0).tobytes()
    # Whole numbers from a stable stream: before the encoder, every machine gets these.
    assert hashlib.sha256(pixels).hexdigest()[:16] == "d2192edbe3a51c93"


def test_every_file_is_a_whole_jpeg_of_its_size(tmp_path: Path) -> None:
    made = make_images(tmp_path, n=9, size=SIZE)
    assert len(made) == len(made.files) == len(made.labels) == 9
    assert made.total_bytes == sum(file.stat().st_size for file in made.files)
    for file, label in zip(made.files, made.labels, strict=True):
        assert file.parent.name == CLASSES[label]
        with Image.open(file) as picture:
            picture.load()
            assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", SIZE)
    assert sorted(set(made.labels)) == [0, 1, 2, 3]


def test_files_are_of_a_cameras_size(tmp_path: Path) -> None:
    made = make_images(tmp_path, n=2)
    assert made.size == (1600, 1200)
    assert 300_000 < made.total_bytes / len(made) < 800_000


def test_a_second_call_makes_nothing(tmp_path: Path) -> None:
    made = make_images(tmp_path, n=4, size=SIZE)
    before = [file.stat().st_mtime_ns for file in made.files]
    assert make_images(tmp_path, n=4, size=SIZE) == made
    assert [file.stat().st_mtime_ns for file in made.files] == before


@pytest.mark.parametrize("damage", ["missing", "cut short", "no manifest", "torn manifest"])
def test_a_damaged_set_is_made_anew(tmp_path: Path, damage: str) -> None:
    made = make_images(tmp_path, n=4, size=SIZE)
    good = _digests(made)
    victim = made.files[2] if damage in ("missing", "cut short") else made.folder / "manifest.json"
    if damage in ("missing", "no manifest"):
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-20])
    assert _digests(make_images(tmp_path, n=4, size=SIZE)) == good
    assert [p.name for p in tmp_path.iterdir()] == [made.folder.name]


def test_a_set_that_another_process_finished_meanwhile_stays(tmp_path: Path) -> None:
    """Somebody may be reading it: two lessons make the same pictures at the same time."""
    inodes: list[int] = []

    def another(done: int, n: int) -> None:
        if not inodes:
            inodes.append(0)
            first = make_images(tmp_path, n=3, size=SIZE)
            inodes[:] = [file.stat().st_ino for file in first.files]

    made = make_images(tmp_path, n=3, size=SIZE, progress=another)
    assert [file.stat().st_ino for file in made.files] == inodes
    assert [path.name for path in tmp_path.iterdir()] == [made.folder.name]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(made: int, n: int) -> None:
        if made == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_images(tmp_path, n=4, size=SIZE, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(MissingError, match="PERFKIT_DATA"):
        make_images(tmp_path, n=4)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write images"):
        make_images(tmp_path / "file", n=1, size=SIZE)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"size": (0, 10)}, {"size": (10**6, 10)}, {"quality": 101}, {"seed": -1}]
)
def test_values_that_cannot_be(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        make_images(tmp_path, **wrong)  # type: ignore[arg-type]


def test_every_picture_in_a_notebook_has_a_text_alternative(tmp_path: Path) -> None:
    page = make_images(tmp_path, n=4, size=SIZE)._repr_html_()
    assert page.count("<img ") == page.count(' alt="a ') == 4
    assert "http" not in page


def test_where_data_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfkit.course.kit._places import data_folder

    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "mine"))
    assert data_folder() == tmp_path / "mine"
    monkeypatch.delenv("PERFKIT_DATA")
    clone = tmp_path / "clone"
    (clone / "data").mkdir(parents=True)
    (clone / "data" / "make_images.py").write_text("")
    (clone / "notebooks").mkdir()
    monkeypatch.chdir(clone / "notebooks")
    assert data_folder() == clone / "data" / "generated"
