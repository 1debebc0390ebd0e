"""The exercise of lesson 00: decode every picture once, and keep it in memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.images import ImageSet, make_images
from perfkit.course.kit.message import Message

SIDE = 128  # input size of the lesson's network
_N = 12
_SIZE = (320, 240)
# A second run with other numbers reveals hard-coded values.
_OTHER_N, _OTHER_SIDE, _OTHER_SIZE = 5, 96, (208, 160)

# Mean differences, of 255 levels. Other decoders and filters differ by up to 6 per pixel (nearest
# pixel) and 0.5 per block of an eighth of the side. Another colour order differs by 3 per block,
# another picture by 9; an enlarged picture of 16 × 16 pixels differs by 13 per pixel.
_FAR_BY_PIXEL, _FAR_BY_BLOCK = 9.0, 2.0
_BLOCKS = 8

# Decoders besides Pillow. Only imported ones matter: the answer cannot use another.
_DECODERS = {
    "cv2": ("imread", "imdecode"),
    "simplejpeg": ("decode_jpeg",),
    "torchvision.io": ("read_image", "decode_image", "decode_jpeg"),
}

Answer = Callable[[ImageSet, int], Any]


def _ran(
    answer: Answer, n: int = _N, side: int = SIDE, size: tuple[int, int] = _SIZE
) -> tuple[Any, int, ImageSet]:
    """What the answer returns for some small pictures, and how many decodes were seen."""
    images = make_images(n=n, size=size)
    with _counted_decodes() as decodes:
        tensor = answer(images, side)
    if tensor is None:
        raise NotYet("your function returns nothing yet: return one tensor")
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
            f"{fmt_count(decodes)} files decoded, as far as perfkit can see",
        ),
    )


def _check(answer: Answer) -> list[str]:
    tensor, decodes, images = _ran(answer)
    _judge(tensor, images, SIDE)
    other, more_decodes, other_images = _ran(answer, _OTHER_N, _OTHER_SIDE, _OTHER_SIZE)
    _judge(other, other_images, _OTHER_SIDE)
    for n, seen in ((_N, decodes), (_OTHER_N, more_decodes)):
        if seen > n:
            raise NotYet(f"{n} pictures need {n} decodes, but {seen} files were decoded")
    return [
        f"one tensor of shape {(_N, 3, SIDE, SIDE)}, torch.uint8",
        f"{fmt_bytes(tensor.nbytes)} for {_N} pictures; as float32 it would be four times that",
        f"{_N} files decoded, and none again in any later epoch"
        if decodes == _N
        else f"the pixels of {_N} files; how often they were decoded is not known: perfkit does "
        f"not see your decoder (it saw {fmt_count(decodes)} decodes)",
    ]


def _judge(tensor: Any, images: ImageSet, side: int) -> None:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise NotYet(f"return one torch tensor, got {type(tensor).__name__}")
    n = len(images)
    wanted = (n, 3, side, side)
    if tuple(tensor.shape) != wanted:
        raise NotYet(
            f"for {n} pictures and side={side} the shape must be (pictures, 3, side, side) = "
            f"{wanted}, not {tuple(tensor.shape)}"
        )
    if tensor.dtype != torch.uint8:
        raise NotYet(
            f"keep the pictures as torch.uint8, one byte a value, not as {tensor.dtype}: "
            f"that takes {tensor.element_size()} times the memory"
        )
    for index in range(n):
        _judge_picture(tensor[index].cpu().float(), images, index, side)


def _judge_picture(given: Any, images: ImageSet, index: int, side: int) -> None:
    from torch.nn.functional import avg_pool2d

    expected = _expected(images, index, side)
    by_pixel = float((given - expected).abs().mean())
    blocks, right = (avg_pool2d(one[None], side // _BLOCKS)[0] for one in (given, expected))
    by_block = float((blocks - right).abs().mean())
    if by_pixel <= _FAR_BY_PIXEL and by_block <= _FAR_BY_BLOCK:
        return
    said = f"picture {index} is not what its file holds"
    if float((blocks.flip(0) - right).abs().mean()) <= _FAR_BY_BLOCK:
        raise NotYet(f"{said}: red and blue are swapped (OpenCV reads BGR)")
    if not given.any():
        raise NotYet(f"{said}: it is all 0")
    raise NotYet(
        f"{said} (mean difference {by_pixel:.0f} of 255 levels): check the order of files, of "
        "axes and of colours, and that all of the picture is there"
    )


def _expected(images: ImageSet, index: int, side: int) -> Any:
    import numpy as np
    import torch
    from PIL import Image

    with Image.open(images.files[index]) as picture:
        small = picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).float()


@contextlib.contextmanager
def _counted_decodes() -> Iterator[list[str]]:
    """One entry per picture decoded in this block by a known decoder."""
    from PIL import ImageFile

    decoded: list[str] = []
    original = ImageFile.ImageFile.load

    def load(self: Any) -> Any:
        # Pillow calls load() often; it decodes only while there are tiles left to read.
        if self.tile:
            decoded.append(str(self.filename))
        return original(self)

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, ImageFile.ImageFile, "load", original)
        ImageFile.ImageFile.load = load  # type: ignore[method-assign]
        for module, names in _DECODERS.items():
            for name in names:
                found = getattr(sys.modules.get(module), name, None)
                if found is not None:
                    stack.callback(setattr, sys.modules[module], name, found)
                    setattr(sys.modules[module], name, _noted(found, decoded))
        yield decoded


def _noted(decoder: Callable[..., Any], decoded: list[str]) -> Callable[..., Any]:
    def decode(*args: Any, **kwargs: Any) -> Any:
        decoded.append(decoder.__name__)
        return decoder(*args, **kwargs)

    return decode


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
