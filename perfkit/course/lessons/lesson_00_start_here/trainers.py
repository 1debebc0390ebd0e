"""Lesson 00: small trainers, each slow in one way on purpose, and what is measured on them.

They need only torch and numpy; a numpy median filter takes the place of decoding.
"""

from __future__ import annotations

import cProfile
import importlib.util
import pstats
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from perfkit.advice.profile import Profile
from perfkit.advice.profiling import profile as profiled
from perfkit.base.device import of
from perfkit.base.scratch import scratch_folder
from perfkit.course.kit.sizes import has_gpu_speed
from perfkit.course.kit.threads import one_thread
from perfkit.measure.compare import Comparison, compare

_STEPS = 6
_WARMUP = 2
# Enough steps for warm-up, profiled and further unprofiled ones.
_ALL_STEPS = 11
_COMPARED_STEPS = 2
_BATCH = 4
_SIDE = 64
_NARROW = 4  # channels of a network that is much faster than its pictures


class Filtered(Dataset[tuple[torch.Tensor, int]]):
    """Noise pictures (3 x side x side, float32), median-filtered on access or beforehand."""

    def __init__(self, n: int, *, ready: bool, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.pictures = random.random((n, 3, _SIDE, _SIDE), dtype=np.float32)
        self.ready = ready
        if ready:
            self.pictures = np.stack([median_filter(one) for one in self.pictures])

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = self.pictures[index]
        if not self.ready:
            picture = median_filter(picture)
        return torch.from_numpy(picture), index % 4


def median_filter(picture: Any) -> Any:
    """Replace each pixel by the median of its 5 x 5 neighbourhood; same shape and dtype."""
    moves = [(dy, dx) for dy in range(-2, 3) for dx in range(-2, 3)]
    shifted = np.stack([np.roll(picture, move, axis=(1, 2)) for move in moves], axis=-1)
    return np.ascontiguousarray(np.sort(shifted, axis=-1)[..., len(moves) // 2])


def data_bound(device: str) -> None:
    """A small network with pictures that are expensive to load."""
    data = Filtered(_ALL_STEPS * _BATCH, ready=False, seed=0)
    _train(_network(_NARROW, device), DataLoader(data, _BATCH), device)


def host_bound(device: str) -> None:
    """A tiny network, and statistics in plain Python in every step."""
    pictures = torch.rand(_ALL_STEPS * _BATCH, 3, _SIDE, _SIDE)
    values = pictures[0].flatten().tolist() * 4
    histogram: dict[int, int] = {}

    def count() -> None:
        for value in values:
            bucket = int(value * 100)
            histogram[bucket] = histogram.get(bucket, 0) + 1

    labels = torch.arange(len(pictures)) % 4
    loader = DataLoader(TensorDataset(pictures, labels), _BATCH)
    _train(_network(_NARROW, device), loader, device, each_step=count)


def compute_bound(device: str) -> None:
    """A network of wide convolutions with ready pictures."""
    data = Filtered(_ALL_STEPS * _BATCH, ready=True, seed=0)
    _train(_network(_wide(device), device), DataLoader(data, _BATCH), device)


def _wide(device: str) -> int:
    """Channels for which the network takes several times as long as its pictures."""
    if not has_gpu_speed(device):
        return 160
    # An H100 waits for launches with 1024. With 4096, weights and gradients take 1.2 GB.
    total_bytes = of(device).total_bytes(torch.device(device).index or 0)
    return 4096 if (total_bytes or 0) > 8e9 else 1024


def _network(width: int, device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 4),
    ).to(device)


def _train(
    model: nn.Module, loader: Any, device: str, *, each_step: Callable[[], None] | None = None
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for pictures, labels in loader:
        pictures, labels = pictures.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if each_step is not None:
            each_step()
        optimizer.step()


def _profile(train: Callable[[], None]) -> Profile:
    return profiled(train, steps=_STEPS, warmup=_WARMUP)


# Written to a separate file, because a profile leaves out perfkit's own lines.
_SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def read(index):
    return np.random.default_rng(index).random((3, 128, 128), dtype=np.float32)


def neighbours(picture):
    moves = [(dy, dx) for dy in (-2, -1, 0, 1, 2) for dx in (-2, -1, 0, 1, 2)]
    return np.stack([np.roll(picture, move, axis=(1, 2)) for move in moves], axis=-1)


def median(around):
    in_order = np.sort(around, axis=-1, kind="stable")
    return np.ascontiguousarray(in_order[..., 12])


def normalise(picture):
    return (picture - 0.5) / 0.25


class Pictures(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return torch.from_numpy(normalise(median(neighbours(read(index))))), index % 4


def train():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for pictures, labels in DataLoader(Pictures(), batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
"""
_HOT_LINE = 'in_order = np.sort(around, axis=-1, kind="stable")'


@dataclass(frozen=True)
class FewSteps:
    """What a few profiled steps say, and what two profilers say over the whole run.

    Attributes:
        profile: of the few steps.
        steps: of the whole run.
        function: the hottest function by cProfile.
        cprofile_s: seconds that cProfile counted in all.
        line: the hottest line's number by line_profiler; ``None`` if it is not installed.
        hot_line: the line that was made hot.
    """

    profile: Profile
    steps: int
    function: str
    cprofile_s: float
    line: int | None
    hot_line: str = _HOT_LINE


def three_trainers(device: str = "cpu") -> dict[str, Profile]:
    """Profile trainers that are bound by data, by the host and by computing, in this order."""
    loops = {"data": data_bound, "host": host_bound, "compute": compute_bound}
    with one_thread():
        return {kind: _profile(partial(loop, device)) for kind, loop in loops.items()}


def few_steps_and_all(steps: int = 40) -> FewSteps:
    """Profile a few steps of a run, and the whole run with cProfile and line_profiler."""
    with scratch_folder() as folder, one_thread():
        module, file = _script(folder, steps)
        few = profiled(module.train, steps=_STEPS, warmup=_WARMUP)
        function, seconds = _hottest_function(module.train, file)
        line = _hottest_line(module, function)
    return FewSteps(few, steps, function, seconds, line)


def _script(folder: Path, steps: int) -> tuple[Any, Path]:
    file = folder / "few_steps_trainer.py"
    file.write_text(_SCRIPT.replace("STEPS", str(steps)), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("few_steps_trainer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, file


def _hottest_function(train: Callable[[], None], file: Path) -> tuple[str, float]:
    """By cProfile: the file's function with the most time outside the file's other functions."""
    profiler = cProfile.Profile()
    profiler.runcall(train)
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    own = {key: value for key, value in stats.items() if key[0] == str(file)}
    inside = {key: value[3] for key, value in own.items()}
    for key, value in own.items():
        for caller, (_, _, _, cumulative) in value[4].items():
            # a library function called between two of the file's counts towards the outer one
            if caller in inside and caller != key:
                inside[caller] -= cumulative
    leaves = {key: seconds for key, seconds in inside.items() if key[2] != "train"}
    hottest = max(leaves, key=lambda key: leaves[key])
    return str(hottest[2]), float(sum(value[2] for value in stats.values()))


def _hottest_line(module: Any, function: str) -> int | None:
    """By line_profiler: the hottest line of that function; ``None`` if it is not installed."""
    try:
        from line_profiler import LineProfiler
    except ImportError:
        return None
    target = getattr(module, function, None)
    if target is None:  # a method: line_profiler's figures would include what it calls
        return None
    profiler = LineProfiler(target)
    profiler.runcall(module.train)
    times: list[tuple[int, int, int]] = next(iter(profiler.get_stats().timings.values()))
    return max(times, key=lambda entry: entry[2])[0]


def changed(
    bound: str, device: str = "cpu", *, budget_s: float = 2.4
) -> tuple[str, dict[str, Comparison]]:
    """Make two changes to a trainer: less work for its data, and less computing.

    Args:
        bound: ``"data"`` or ``"compute"``: what the trainer is bound by, on purpose.
        device: where the network is.
        budget_s: seconds for each of the two comparisons.

    Returns:
        Which of the two perfkit's verdict asks for, and how much each brings.
    """
    width = {"data": _NARROW, "compute": _wide(device)}[bound]
    n = _COMPARED_STEPS * _BATCH
    as_it_was = Filtered(n, ready=False, seed=0)
    filtered_before = Filtered(n, ready=True, seed=0)  # done once, untimed

    def few(data: Filtered, width: int) -> None:
        _train(_network(width, device), DataLoader(data, _BATCH), device)

    changes = {
        "data": partial(few, filtered_before, width),
        "compute": partial(few, as_it_was, width // 2),
    }
    with one_thread():
        told = "data" if _verdict(device, width) == "data" else "compute"
        gains = {
            name: compare(
                partial(few, as_it_was, width),
                change,
                names=("as it was", f"less {name}"),
                budget_s=budget_s,
            )
            for name, change in changes.items()
        }
    return told, gains


def _verdict(device: str, width: int) -> str:
    data = Filtered(_ALL_STEPS * _BATCH, ready=False, seed=0)
    loader = DataLoader(data, _BATCH)
    return _profile(lambda: _train(_network(width, device), loader, device)).diagnosis.bound_by
