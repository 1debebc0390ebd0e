"""The exercise of lesson 00: what it accepts, and what it says to everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from perfkit.lessons.images import ImageSet
from perfkit.lessons.start_here import cache_pictures


@pytest.fixture(autouse=True)
def data_and_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its pictures go to a scratch folder, and Pillow is left as it was."""
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))
    before = ImageFile.ImageFile.load
    yield
    assert ImageFile.ImageFile.load is before


def _cache(images: ImageSet, side: int) -> torch.Tensor:
    result = torch.empty(len(images), 3, side, side, dtype=torch.uint8)
    for i, file in enumerate(images.files):
        picture = Image.open(file)
        picture.draft("RGB", (side, side))
        picture = picture.convert("RGB").resize((side, side))
        result[i] = torch.tensor(np.asarray(picture)).permute(2, 0, 1)
    return result


def _backwards(images: ImageSet, side: int) -> torch.Tensor:
    return _cache(images, side).flip(0)


def _transposed(images: ImageSet, side: int) -> torch.Tensor:
    return _cache(images, side).transpose(2, 3)


def _twice(images: ImageSet, side: int) -> torch.Tensor:
    _cache(images, side)
    return _cache(images, side)


def test_a_right_answer_passes_with_its_facts() -> None:
    said = repr(cache_pictures.check(_cache))
    assert said.startswith("Done")
    assert "576 KiB" in said  # 12 x 3 x 128 x 128 bytes
    assert "12 files decoded" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda images, side: None, "returns nothing yet"),
        (lambda images, side: [1, 2], "one torch tensor, not a list"),
        (lambda images, side: _cache(images, side).permute(0, 2, 3, 1), "the shape must be"),
        (lambda images, side: _cache(images, side).float(), "4 times the memory"),
        (lambda images, side: _cache(images, side).long(), "8 times the memory"),
        (_twice, "24 files were decoded"),
        (_backwards, "picture 0 is not what its file holds"),
        (_transposed, "order of files and of axes"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(
    answer: Callable[[ImageSet, int], Any], reason: str
) -> None:
    said = repr(cache_pictures.check(answer)).replace("\n", " ")
    assert said.startswith("Not yet")
    assert reason in said


@pytest.mark.parametrize("ask", [cache_pictures.check, cache_pictures.show])
def test_the_readers_own_errors_are_told_with_their_line(ask: Callable[[Any], Any]) -> None:
    def broken(images: ImageSet, side: int) -> Any:
        return no_such_name  # type: ignore[name-defined]  # noqa: F821

    said = " ".join(repr(ask(broken)).split())
    line = broken.__code__.co_firstlineno + 1
    assert said.startswith("Your function stopped with an error NameError: name 'no_such_name'")
    assert f"test_start_here.py:{line})" in said
    assert "The line: return no_such_name" in said
    assert "exercise.py" not in said


def test_a_function_that_cannot_be_called_so_is_told() -> None:
    said = " ".join(repr(cache_pictures.check(lambda images: None)).split())
    assert said.startswith("Your function cannot be called like that TypeError:")
    assert "takes 1 positional argument but 2 were given" in said
    assert "give your function itself, not a int" in repr(cache_pictures.check(5))


def test_show_tells_what_an_answer_does() -> None:
    said = repr(cache_pictures.show(lambda images, side: _cache(images, side).float()))
    assert "(12, 3, 128, 128) of torch.float32" in said
    assert "Nothing to see yet" in repr(cache_pictures.show(lambda images, side: None))


def test_hints_come_one_by_one() -> None:
    titles = [repr(cache_pictures.hint()).splitlines()[0] for _ in range(4)]
    assert titles == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "No further hint"]
