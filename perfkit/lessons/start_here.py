"""The exercise of lesson 00: decode every picture once, and keep it in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from perfkit.lessons._message import Message
from perfkit.lessons.exercise import Exercise, NotYet
from perfkit.lessons.images import ImageSet, make_images
from perfkit.words import fmt_bytes, fmt_count

__all__ = ["SIDE", "cache_pictures"]

SIDE = 128  # what the lesson's network takes
_N = 12

Answer = Callable[[ImageSet, int], Any]


def _ran(answer: Answer) -> tuple[Any, int, ImageSet]:
    """What the answer gives for twelve small pictures, and how many files it decoded."""
    images = make_images(n=_N, size=(320, 240))
    with _counted_decodes() as decodes:
        tensor = answer(images, SIDE)
    if tensor is None:
        raise NotYet("your function returns nothing yet: let it return one tensor")
    return tensor, len(decodes), images


def _show(answer: Answer) -> Message:
    tensor, decodes, _ = _ran(answer)
    shape = tuple(getattr(tensor, "shape", ()))
    kind = getattr(tensor, "dtype", type(tensor).__name__)
    n_bytes = getattr(tensor, "nbytes", None)
    return Message(
        f"For {_N} pictures you returned",
        items=(
            f"shape {shape} of {kind}",
            f"{fmt_bytes(n_bytes)} of memory",
            f"{fmt_count(decodes)} files decoded",
        ),
    )


def _check(answer: Answer) -> list[str]:
    import torch

    tensor, decodes, images = _ran(answer)
    if not isinstance(tensor, torch.Tensor):
        raise NotYet(f"return one torch tensor, not a {type(tensor).__name__}")
    wanted = (_N, 3, SIDE, SIDE)
    if tuple(tensor.shape) != wanted:
        raise NotYet(
            f"the shape must be (pictures, 3, side, side) = {wanted}, not {tuple(tensor.shape)}"
        )
    if tensor.dtype != torch.uint8:
        raise NotYet(
            f"keep the pictures as torch.uint8, one byte a value, not as {tensor.dtype}: "
            f"that takes {tensor.element_size()} times the memory"
        )
    if decodes != _N:
        raise NotYet(f"{_N} pictures need {_N} decodes, but {decodes} files were decoded")
    for index in (0, _N - 1):
        far = float((tensor[index].float() - _expected(images, index).float()).abs().mean())
        # Another filter or another order of the steps moves pixels by a few levels; another
        # picture, or swapped axes, by dozens.
        if far > 12:
            raise NotYet(
                f"picture {index} is not what its file holds (mean difference {far:.0f} of 255 "
                "levels): check the order of files and of axes"
            )
    return [
        f"one tensor of shape {wanted}, torch.uint8",
        f"{fmt_bytes(tensor.nbytes)} for {_N} pictures; as float32 it would be four times that",
        f"{_N} files decoded, and none again in any later epoch",
    ]


def _expected(images: ImageSet, index: int) -> Any:
    import numpy as np
    import torch
    from PIL import Image

    with Image.open(images.files[index]) as picture:
        small = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


@contextlib.contextmanager
def _counted_decodes() -> Iterator[list[str]]:
    """One entry for each file that Pillow decodes in this block."""
    from PIL import ImageFile

    decoded: list[str] = []
    original = ImageFile.ImageFile.load

    def load(self: Any) -> Any:
        # Pillow calls load() freely; it decodes while there are tiles left to read.
        if self.tile:
            decoded.append(str(self.filename))
        return original(self)

    ImageFile.ImageFile.load = load  # type: ignore[method-assign]
    try:
        yield decoded
    finally:
        ImageFile.ImageFile.load = original  # type: ignore[method-assign]


cache_pictures = Exercise(
    "decode every picture once",
    spec=(
        "cache(images, side) returns one tensor with all pictures of images.files, in that order.",
        "Its shape is (pictures, 3, side, side), its type torch.uint8.",
        "Each file is decoded once.",
    ),
    hints=(
        "Make the result first, empty: one tensor for all pictures, of the smallest type that "
        "holds a pixel. Then fill it picture by picture.",
        "torch.empty(len(images), 3, side, side, dtype=torch.uint8); then loop over "
        "enumerate(images.files): open, draft, convert, resize.",
        "np.asarray(picture) is (side, side, 3): torch.tensor(np.asarray(picture))"
        ".permute(2, 0, 1) goes into result[i].",
    ),
    show=_show,
    check=_check,
)
