"""Lesson 06: pictures with masks, the stand-in for a GPU, and the exercise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.far_device import far_device
from perfkit.course.kit.message import Message

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from perfkit.memory.crossings import Crossings

__all__ = ["CLASSES", "MEAN", "STD", "far_device", "prepare_batch", "scenes"]

CLASSES = 21
# The usual values for photographs, per channel, on a scale from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

_N, _SIDE = 4, 16  # size of the exercise's batch
# Twice MEAN and STD in float32: constants that may be sent along with a batch.
_CONSTANTS_BYTES = 128
# float32 arithmetic in another order differs by some 1e-6 of values up to 2.7
_CLOSE = 1e-5


def scenes(
    n: int, side: int, *, seed: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Pictures and masks as a decoder returns them.

    Returns:
        Pictures ``(n, side, side, 3)`` and masks ``(n, side, side)`` with a class from 0 to 20 per
        pixel, both uint8: the left half of a picture is one class, the right half another.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    masks = np.empty((n, side, side), np.uint8)
    masks[:, :, : side // 2] = random.integers(0, CLASSES, (n, 1, 1))
    masks[:, :, side // 2 :] = random.integers(0, CLASSES, (n, 1, 1))
    return pictures, masks


Answer = Callable[..., Any]


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    pictures, masks = scenes(_N, _SIDE, seed=1)
    return torch.from_numpy(pictures), torch.from_numpy(masks)


def _pair(given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    if given is None:
        raise NotYet("your function returns nothing yet: return pictures and masks")
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise NotYet("return two things: pictures, masks")
    for name, one in zip(("pictures", "masks"), given, strict=True):
        if not isinstance(one, torch.Tensor):
            raise NotYet(f"the {name} must be a torch tensor, got {type(one).__name__}")
    return given[0], given[1]


def _sent(answer: Answer) -> tuple[Crossings, tuple[torch.Tensor, torch.Tensor]]:
    """What the answer sends to a device, and what it returns."""
    from perfkit.memory.crossings import crossings

    pictures, masks = _batch()
    made: list[Any] = []
    found = crossings(lambda: made.append(answer(pictures, masks, far_device())))
    return found, _pair(made[0])


def _show(answer: Answer) -> Message:
    found, (pictures, masks) = _sent(answer)
    return Message(
        f"For {_N} pictures of {_SIDE} × {_SIDE}",
        items=(
            f"{fmt_bytes(found.to_device_bytes)} sent, in copies: {fmt_count(found.n_to_device)}",
            f"pictures: {tuple(pictures.shape)} of {pictures.dtype} on {pictures.device.type}",
            f"masks: {tuple(masks.shape)} of {masks.dtype} on {masks.device.type}",
        ),
    )


def _check(answer: Answer) -> list[str]:
    import torch

    found, (pictures, masks) = _sent(answer)
    far = far_device()
    for name, one in (("pictures", pictures), ("masks", masks)):
        if one.device.type != far.type:
            raise NotYet(f"the {name} must end on the device that was given, not on {one.device}")
    if tuple(pictures.shape) != (_N, 3, _SIDE, _SIDE):
        raise NotYet(
            f"the network takes pictures as (pictures, 3, side, side) = {(_N, 3, _SIDE, _SIDE)}, "
            f"not {tuple(pictures.shape)}: permute them"
        )
    if pictures.dtype != torch.float32:
        raise NotYet(f"the network takes float32 pictures, not {pictures.dtype}")
    if masks.dtype != torch.int64:
        raise NotYet(f"cross_entropy takes int64 masks, not {masks.dtype}")
    least = sum(one.nbytes for one in _batch())
    if found.to_host_bytes:
        raise NotYet(f"{fmt_bytes(found.to_host_bytes)} came back to the host; nothing should")
    if not least <= found.to_device_bytes <= least + _CONSTANTS_BYTES:
        raise NotYet(
            f"{fmt_bytes(found.to_device_bytes)} were sent; the batch is {fmt_bytes(least)}. "
            "Send it as it is, in a copy that changes nothing else, and convert there"
        )
    _check_values(answer)
    return [
        f"{fmt_bytes(found.to_device_bytes)} sent; as float32 and int64 it would be "
        f"{fmt_bytes(pictures.nbytes + masks.nbytes)}",
        "float32 pictures and int64 masks arrive, normalised",
        "nothing came back to the host",
    ]


def _check_values(answer: Answer) -> None:
    """Compare values on the CPU, where there is data; the batch must be unchanged."""
    import torch

    pictures, masks = _batch()
    made_pictures, made_masks = _pair(answer(pictures, masks, torch.device("cpu")))
    again, again_masks = _batch()
    if not (torch.equal(pictures, again) and torch.equal(masks, again_masks)):
        raise NotYet("your function changes the batch that it was given: work on copies")
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, STD))
    wanted = (again.permute(0, 3, 1, 2).to(torch.float32) / 255 - mean) / std
    if not torch.allclose(made_pictures, wanted, atol=_CLOSE, rtol=0):
        off = float((made_pictures - wanted).abs().max())
        raise NotYet(
            f"the pictures are off by up to {off:.3g}: divide by 255, subtract MEAN, divide by "
            "STD, channel by channel"
        )
    if not torch.equal(made_masks, again_masks.long()):
        raise NotYet("the masks contain other classes than those given")


prepare_batch = Exercise(
    "send bytes, convert on the device",
    spec=(
        "prepare(pictures, masks, device) takes a uint8 batch: pictures (n, side, side, 3) and "
        "masks (n, side, side), on the host.",
        "It returns both on the device: pictures (n, 3, side, side) in float32, normalised with "
        "MEAN and STD; masks in int64.",
        "What crosses is the uint8 batch, each byte once (a few constants may come along), and "
        "nothing comes back.",
    ),
    hints=(
        "Two steps for each tensor, in this order: first the device, then the dtype.",
        "pictures.to(device), and only then .permute(0, 3, 1, 2).float(). One .to(device, "
        "torch.float32) would convert on the host and send four times the bytes.",
        "mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1), std likewise; then "
        "(pictures / 255 - mean) / std, and masks.to(device).long(). Making mean and std there is "
        "a copy as well: make them once, in a function with functools.cache, not in each step.",
    ),
    show=_show,
    check=_check,
)
