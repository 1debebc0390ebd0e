"""Lesson 06: bytes that cross to the device (A9, C6, B6, B9), copies avoided (C7), overlap (C8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perfkit.base.errors import MissingError
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.course.lessons.lesson_06_host_to_device.lesson import (
    CLASSES,
    MEAN,
    STD,
    far_device,
    scenes,
)
from perfkit.course.lessons.lesson_06_host_to_device.transfers import feed, late_read
from perfkit.measure.compare import compare
from perfkit.memory.crossings import crossings

LESSON = "06-host-to-device"
_SIDE = 256
_BATCH = 8
_MEAN, _STD = np.array(MEAN, np.float32), np.array(STD, np.float32)

_Pair = tuple[torch.Tensor, torch.Tensor]


class Scenes(Dataset[_Pair]):
    """Pictures with masks, as float32 and int64, or as uint8."""

    def __init__(self, n: int, *, floats: bool, seed: int) -> None:
        self.pictures, self.masks = scenes(n, _SIDE, seed=seed)
        self.floats = floats

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> _Pair:
        picture, mask = self.pictures[index], self.masks[index]
        if not self.floats:
            return torch.from_numpy(picture), torch.from_numpy(mask)
        pixels = (picture.astype(np.float32) / 255 - _MEAN) / _STD
        return torch.from_numpy(pixels), torch.from_numpy(mask).long()


def _train(data: Scenes, device: str) -> None:
    """One epoch of a small network; converts uint8 batches on the device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.Conv2d(8, CLASSES, 1))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    mean, std = (torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (MEAN, STD))
    for pictures, masks in DataLoader(data, batch_size=_BATCH):
        x, y = pictures.to(device).permute(0, 3, 1, 2), masks.to(device)
        if x.dtype == torch.uint8:
            x, y = x.float().div_(255).sub_(mean).div_(std), y.long()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y[:, ::8, ::8]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@experiment("A9", lesson=LESSON, title="uint8 batches, normalised on the device")
def small_batches(context: Context) -> Outcome:
    far = far_device()
    pictures, masks = (torch.from_numpy(a) for a in scenes(32, 512, seed=context.seed))
    large = crossings(lambda: (pictures.float().to(far), masks.long().to(far))).to_device_bytes
    small = crossings(lambda: (pictures.to(far), masks.to(far))).to_device_bytes
    slow = Scenes(2 * _BATCH, floats=True, seed=context.seed)
    fast = Scenes(2 * _BATCH, floats=False, seed=context.seed)
    timed = compare(
        lambda: _train(slow, context.device),
        lambda: _train(fast, context.device),
        names=("float32 batches", "uint8 batches"),
        budget_s=context.budget_s,
        seed=context.seed,
    )
    return Outcome(
        holds=large == 5 * small,
        figures={
            "float_bytes": Figure(large, "B", kind="exact"),
            "uint8_bytes": Figure(small, "B", kind="exact"),
            "bytes_ratio": Figure(large / small, "×", kind="exact"),
            "step_ratio": Figure.of(timed),
        },
        headline="bytes_ratio",
        sentence="A batch of 32 pictures of 512 × 512 with masks takes a fifth of the bytes as "
        "uint8.",
    )


@experiment("C7", lesson=LESSON, title="torch.as_tensor against torch.tensor")
def no_copy(context: Context) -> Outcome:
    array = np.zeros((8, _SIDE, _SIDE, 3), np.uint8)
    copied = torch.tensor(array).data_ptr() != array.ctypes.data
    shared = torch.as_tensor(array).data_ptr() == array.ctypes.data
    timed = compare(
        lambda: torch.tensor(array),
        lambda: torch.as_tensor(array),
        names=("torch.tensor", "torch.as_tensor"),
        budget_s=min(5.0, context.budget_s),
        seed=context.seed,
    )
    return Outcome(
        holds=copied and shared,
        figures={
            "copied_bytes": Figure(array.nbytes if copied else 0, "B", kind="exact"),
            "shared_bytes": Figure(0 if shared else array.nbytes, "B", kind="exact"),
            "time_ratio": Figure.of(timed),
        },
        headline="time_ratio",
        sentence="torch.as_tensor takes the array's own memory, torch.tensor copies it.",
    )


@experiment("C6", lesson=LESSON, title="tensors made on the device against sent ones")
def make_there(context: Context) -> Outcome:
    far = far_device()
    shape = (32, 3, 256, 256)
    sent = crossings(lambda: torch.rand(shape).to(far)).to_device_bytes
    made = crossings(lambda: torch.rand(shape, device=far)).to_device_bytes
    figures = {
        "sent_bytes": Figure(sent, "B", kind="exact"),
        "made_bytes": Figure(made, "B", kind="exact"),
    }
    if context.device == "cuda":
        figures["time_ratio"] = Figure.of(
            compare(
                lambda: torch.rand(shape).to("cuda"),
                lambda: torch.rand(shape, device="cuda"),
                budget_s=context.budget_s,
            )
        )
    return Outcome(
        holds=made == 0 < sent,
        figures=figures,
        headline="time_ratio" if "time_ratio" in figures else "sent_bytes",
        sentence="A tensor that is made on the device sends nothing.",
    )


@experiment("C8", lesson=LESSON, title="non_blocking copies, pinned and not")
def overlap(context: Context) -> Outcome:
    """On CUDA, a pinned, non-blocking copy against a plain one; else on the simulated device."""
    if context.device == "cuda":
        return _overlap_on_cuda(context)
    nbytes, compute_ms = 167_772_160, 12.0
    plain, _ = feed("plain", nbytes=nbytes, compute_ms=compute_ms)
    pageable, _ = feed("non_blocking", nbytes=nbytes, compute_ms=compute_ms)
    pinned, _ = feed("pinned", nbytes=nbytes, compute_ms=compute_ms)
    in_loop, _ = feed("pin in the loop", nbytes=nbytes, compute_ms=compute_ms)
    ahead, _ = feed("side stream", nbytes=nbytes, compute_ms=compute_ms)
    return Outcome(
        holds=pageable == plain > pinned and late_read(nbytes=4096, wait=False) == "old",
        figures={
            "pinned_ratio": Figure(plain / pinned, "×", kind="simulated"),
            "pageable_ratio": Figure(plain / pageable, "×", kind="simulated"),
            "pin_in_loop_ratio": Figure(plain / in_loop, "×", kind="simulated"),
            "side_stream_ratio": Figure(plain / ahead, "×", kind="simulated"),
        },
        headline="pinned_ratio",
        sentence="Simulated: non_blocking helps from memory that is pinned already, and only then.",
    )


def _overlap_on_cuda(context: Context) -> Outcome:
    pageable = torch.zeros(32, 512, 512, 3, dtype=torch.uint8)
    pinned = pageable.pin_memory()

    def host_ms(source: torch.Tensor, *, non_blocking: bool) -> float:
        """Milliseconds until ``.to`` returns, median of 20."""
        times = []
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            source.to("cuda", non_blocking=non_blocking)
            times.append((time.perf_counter_ns() - begin) / 1e6)
        return float(np.median(times))

    timed = compare(
        lambda: pageable.to("cuda"),
        lambda: pinned.to("cuda", non_blocking=True),
        names=("pageable", "pinned, non_blocking"),
        budget_s=context.budget_s / 2,
    )
    in_loop = compare(
        lambda: pageable.to("cuda"),
        lambda: pageable.pin_memory().to("cuda", non_blocking=True),
        names=("pageable", "pin_memory() in the loop"),
        budget_s=context.budget_s / 2,
    )
    waits, returns = (
        host_ms(pinned, non_blocking=False),
        host_ms(pinned, non_blocking=True),
    )
    return Outcome(
        holds=timed.low > 1 and returns < waits,
        figures={
            "pinned_ratio": Figure.of(timed),
            "pin_in_loop_ratio": Figure.of(in_loop),
            "host_blocking_ms": Figure(waits, "ms"),
            "host_non_blocking_ms": Figure(returns, "ms"),
        },
        headline="pinned_ratio",
        sentence="A pinned copy is faster than a pageable one, and non_blocking frees the host.",
    )


def mistakes(device: torch.device) -> dict[str, Callable[[], object]]:
    """A step as it should be, and the same step with one of the usual round trips."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    batch = torch.rand(64, 1024)

    def step() -> torch.Tensor:
        outputs: torch.Tensor = model(batch.to(device))
        outputs.sum().backward()  # type: ignore[no-untyped-call]
        return outputs

    def model_again() -> None:
        model.cpu()  # as after a checkpoint or an evaluation on the host
        model.to(device)
        step()

    def outputs_home() -> None:
        step().detach().cpu().argmax(dim=1)

    def loss_home() -> None:
        step().sum().item()

    return {
        "as it should be": step,
        "model.cpu() and back": model_again,
        "outputs.cpu()": outputs_home,
        ".item()": loss_home,
    }


@experiment("B6", lesson=LESSON, title="round trips between host and device")
def round_trips(context: Context) -> Outcome:
    steps = mistakes(far_device())
    sent = {}
    for name, step in steps.items():
        crossings(step)  # gradients exist from the second step on
        found = crossings(step)
        sent[name] = found.to_device_bytes + found.to_host_bytes
    right, again = sent["as it should be"], sent["model.cpu() and back"]
    figures = {
        "right_bytes": Figure(right, "B", kind="exact"),
        "model_bytes": Figure(again, "B", kind="exact"),
        "outputs_bytes": Figure(sent["outputs.cpu()"], "B", kind="exact"),
        "bytes_ratio": Figure(again / right, "×", kind="exact"),
    }
    if context.device == "cuda":
        figures["step_ratio"] = Figure.of(
            compare(
                steps["model.cpu() and back"],
                steps["as it should be"],
                budget_s=context.budget_s / 2,
            )
        )

        def emptied() -> None:
            steps["as it should be"]()
            torch.cuda.empty_cache()

        figures["empty_cache_ratio"] = Figure.of(
            compare(emptied, steps["as it should be"], budget_s=context.budget_s / 2)
        )
    return Outcome(
        holds=again > right,
        figures=figures,
        headline="step_ratio" if "step_ratio" in figures else "bytes_ratio",
        sentence="A model that goes to the host and back moves all its parameters and gradients.",
    )


def splits(side: int = 64, n: int = 8) -> Iterator[tuple[int, int]]:
    """Each place to cut a small network in two, and the bytes that cross per training step."""
    far = torch.device("meta")
    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.MaxPool2d(4),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * (side // 16) ** 2, 10),
    ]
    pictures = torch.rand(n, 3, side, side)
    for cut in range(1, len(layers)):
        near_part = nn.Sequential(*layers[:cut])
        far_part = nn.Sequential(*layers[cut:]).to(far)

        def step(near: nn.Module = near_part, after: nn.Module = far_part) -> None:
            after(near(pictures).to(far)).sum().backward()

        found = crossings(step)
        yield cut, found.to_device_bytes + found.to_host_bytes
        layers = [*near_part, *far_part.to_empty(device="cpu")]


@experiment("B9", lesson=LESSON, title="where to cut a model in two devices")
def cut_in_two(context: Context) -> Outcome:
    if context.device == "cuda" and torch.cuda.device_count() > 1:
        raise MissingError("timing a split over two GPUs belongs to lesson 15")
    sizes = [nbytes for _, nbytes in splits()]
    return Outcome(
        holds=max(sizes) > min(sizes),
        figures={
            "worst_bytes": Figure(max(sizes), "B", kind="exact"),
            "best_bytes": Figure(min(sizes), "B", kind="exact"),
            "bytes_ratio": Figure(max(sizes) / min(sizes), "×", kind="exact"),
        },
        headline="bytes_ratio",
        sentence="Where a model is cut in two decides how many bytes cross in every step.",
    )
