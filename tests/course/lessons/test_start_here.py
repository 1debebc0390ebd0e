"""The exercise of lesson 00: what it accepts, and what it says about other answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from perfkit.course.kit.images import ImageSet
from perfkit.course.lessons.lesson_00_start_here.exercise import cache_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each set is made once."""
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(autouse=True)
def data_and_pillow(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its pictures go to a scratch folder, and Pillow is left as it was."""
    monkeypatch.setenv("PERFKIT_DATA", str(pictures))
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


def _all_zero(images: ImageSet, side: int) -> torch.Tensor:
    return torch.zeros_like(_cache(images, side))


def _zero_between(images: ImageSet, side: int) -> torch.Tensor:
    result = _cache(images, side)
    result[1:-1] = 0
    return result


def _reordered_between(images: ImageSet, side: int) -> torch.Tensor:
    result = _cache(images, side)
    return torch.cat([result[:1], result[1:-1].flip(0), result[-1:]])


def _bgr(images: ImageSet, side: int) -> torch.Tensor:
    return _cache(images, side).flip(1)


def _grey(images: ImageSet, side: int) -> torch.Tensor:
    return _cache(images, side).float().mean(1, keepdim=True).expand(-1, 3, -1, -1).byte()


def _mirrored(images: ImageSet, side: int) -> torch.Tensor:
    return _cache(images, side).flip(3)


def _cropped(images: ImageSet, side: int) -> torch.Tensor:
    def middle(file: Path) -> torch.Tensor:
        picture = Image.open(file)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        piece = picture.convert("RGB").crop((left, top, left + side, top + side))
        return torch.tensor(np.asarray(piece)).permute(2, 0, 1)

    return torch.stack([middle(file) for file in images.files])


def _coarse(images: ImageSet, side: int) -> torch.Tensor:
    small = _cache(images, 16).float()
    return torch.nn.functional.interpolate(small, (side, side)).byte()


def _other_side(images: ImageSet, side: int) -> torch.Tensor:
    return _cache(images, 128)


def _with_opencv(images: ImageSet, side: int) -> torch.Tensor:
    cv2 = pytest.importorskip("cv2")
    pictures = [cv2.cvtColor(cv2.imread(str(f)), cv2.COLOR_BGR2RGB) for f in images.files]
    small = [cv2.resize(picture, (side, side)) for picture in pictures]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2)


def _with_opencv_in_bgr(images: ImageSet, side: int) -> torch.Tensor:
    return _with_opencv(images, side).flip(1)


def _with_opencv_twice(images: ImageSet, side: int) -> torch.Tensor:
    _with_opencv(images, side)
    return _with_opencv(images, side)


def _with_simplejpeg(images: ImageSet, side: int) -> torch.Tensor:
    simplejpeg = pytest.importorskip("simplejpeg")
    result = []
    for file in images.files:
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(file.read_bytes())).permute(2, 0, 1)
        small = torch.nn.functional.interpolate(pixels[None].float(), (side, side), mode="bilinear")
        result.append(small[0].round().byte())
    return torch.stack(result)


def _with_a_decoder_of_another_name(images: ImageSet, side: int) -> torch.Tensor:
    """What perfkit does not see; the pixels are what counts."""
    pytest.importorskip("simplejpeg")
    from simplejpeg._jpeg import decode_jpeg

    pixels = [np.asarray(decode_jpeg(file.read_bytes())) for file in images.files]
    small = [np.asarray(Image.fromarray(one).resize((side, side))) for one in pixels]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).contiguous()


def _full_decode_lanczos(images: ImageSet, side: int) -> torch.Tensor:
    pictures = [Image.open(file).convert("RGB") for file in images.files]
    small = [np.asarray(p.resize((side, side), Image.Resampling.LANCZOS)) for p in pictures]
    return torch.tensor(np.stack(small)).permute(0, 3, 1, 2)


def _nearest_pixel(images: ImageSet, side: int) -> torch.Tensor:
    pictures = [Image.open(file).convert("RGB") for file in images.files]
    small = [np.asarray(p.resize((side, side), Image.Resampling.NEAREST)) for p in pictures]
    return torch.tensor(np.stack(small)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "answer",
    [
        _cache,
        _full_decode_lanczos,
        _nearest_pixel,
        _with_opencv,
        _with_simplejpeg,
        _with_a_decoder_of_another_name,
    ],
)
def test_every_right_answer_passes(answer: Callable[[ImageSet, int], Any]) -> None:
    assert repr(cache_pictures.check(answer)).startswith("Done")


def test_what_perfkit_does_not_see_it_does_not_claim() -> None:
    said = repr(cache_pictures.check(_with_a_decoder_of_another_name))
    assert "files decoded, and none again" not in said
    assert "is not known" in said


def test_a_right_answer_passes_with_its_facts() -> None:
    said = repr(cache_pictures.check(_cache))
    assert said.startswith("Done")
    assert "576 KiB" in said  # 12 x 3 x 128 x 128 bytes
    assert "12 files decoded" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda images, side: None, "returns nothing yet"),
        (lambda images, side: [1, 2], "one torch tensor, got list"),
        (lambda images, side: _cache(images, side).permute(0, 2, 3, 1), "the shape must be"),
        (lambda images, side: _cache(images, side).float(), "4 times the memory"),
        (lambda images, side: _cache(images, side).long(), "8 times the memory"),
        (_twice, "24 files were decoded"),
        (_backwards, "picture 0 is not what its file holds"),
        (_transposed, "order of files, of axes"),
        (_all_zero, "picture 0 is not what its file holds: it is all 0"),
        (_zero_between, "picture 1 is not what its file holds: it is all 0"),
        (_reordered_between, "picture 1 is not what its file holds (mean"),
        (_bgr, "red and blue are swapped"),
        (_with_opencv_in_bgr, "red and blue are swapped"),
        (_with_opencv_twice, "files were decoded"),
        (_grey, "of colours"),
        (_mirrored, "picture 0 is not what its file holds"),
        (_cropped, "that all of the picture is there"),
        (_coarse, "picture 0 is not what its file holds"),
        (_other_side, "for 5 pictures and side=96 the shape must be"),
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
    assert "pass your function itself, got int" in repr(cache_pictures.check(5))


def test_show_tells_what_an_answer_does() -> None:
    said = repr(cache_pictures.show(lambda images, side: _cache(images, side).float()))
    assert "(12, 3, 128, 128) of torch.float32" in said
    assert "Nothing to see yet" in repr(cache_pictures.show(lambda images, side: None))


def test_hints_come_one_by_one() -> None:
    titles = [repr(cache_pictures.hint()).splitlines()[0] for _ in range(4)]
    assert titles == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "No further hint"]
