"""Lesson 00: a verdict that names the bottleneck (A1), from a few steps (A5), and why first (C2).

Three small trainers with different bottlenecks, on purpose. They need only torch and numpy; a
numpy median filter takes the place of decoding.
"""

from __future__ import annotations

import cProfile
import importlib.util
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from perfkit.advice.profile import Profile
from perfkit.advice.profiling import profile as profiled
from perfkit.course.experiments._threads import one_thread
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.measure.compare import compare

LESSON = "00-start-here"
_STEPS = 6
_WARMUP = 2
# Enough steps for warm-up, profiled and further unprofiled ones.
_ALL_STEPS = 11
_COMPARED_STEPS = 2
_BATCH = 4
_SIDE = 64
_NARROW = 4  # channels of a network that is much faster than its pictures
# Accepted verdicts: on a CPU, Python's own work is "host"; a GPU that waits for it may be reported
# as "launch".
_EXPECTED = {"data": ("data",), "host": ("host", "launch"), "compute": ("compute",)}


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


def data_bound(context: Context) -> None:
    """A small network with pictures that are expensive to load."""
    data = Filtered(_ALL_STEPS * _BATCH, ready=False, seed=context.seed)
    _train(_network(_NARROW, context), DataLoader(data, _BATCH), context)


def host_bound(context: Context) -> None:
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
    _train(_network(_NARROW, context), loader, context, each_step=count)


def compute_bound(context: Context) -> None:
    """A network of wide convolutions with ready pictures."""
    data = Filtered(_ALL_STEPS * _BATCH, ready=True, seed=context.seed)
    _train(_network(_wide(context), context), DataLoader(data, _BATCH), context)


def _wide(context: Context) -> int:
    """Channels for which the network takes several times as long as its pictures."""
    return 1024 if context.device == "cuda" else 160


def _network(width: int, context: Context) -> nn.Module:
    torch.manual_seed(context.seed)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 4),
    ).to(context.device)


def _train(
    model: nn.Module,
    loader: Any,
    context: Context,
    *,
    each_step: Callable[[], None] | None = None,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for pictures, labels in loader:
        pictures, labels = pictures.to(context.device), labels.to(context.device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if each_step is not None:
            each_step()
        optimizer.step()


def _profile(train: Callable[[], None]) -> Profile:
    return profiled(train, steps=_STEPS, warmup=_WARMUP)


@experiment("A1", lesson=LESSON, title="three trainers, each with another bottleneck: the verdicts")
def verdicts(context: Context) -> Outcome:
    """Profile each of three trainers; the verdict must name its built-in bottleneck."""
    loops = {"data": data_bound, "host": host_bound, "compute": compute_bound}
    with one_thread():
        profiles = {kind: _profile(lambda f=f: f(context)) for kind, f in loops.items()}  # type: ignore[misc]
    said = {kind: profile.diagnosis.bound_by for kind, profile in profiles.items()}
    right = sum(said[kind] in _EXPECTED[kind] for kind in loops)
    wait = {kind: profile.breakdown.shares()["data wait"] for kind, profile in profiles.items()}
    return Outcome(
        holds=right == len(loops),
        figures={
            "named_right": Figure(right, f"of {len(loops)} trainers"),
            "data_wait_percent": Figure(100 * wait["data"], "%"),
            "data_wait_percent_of_compute_bound": Figure(100 * wait["compute"], "%"),
        },
        headline="named_right",
        sentence="Made to be bound by data, host and computing; perfkit said "
        + ", ".join(said[kind] for kind in loops)
        + ".",
    )


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


@experiment("A5", lesson=LESSON, title="the hottest line of a few steps, against the whole run's")
def few_steps(context: Context) -> Outcome:
    """A few profiled steps, against cProfile and (if installed) line_profiler over all."""
    steps = 40
    module, file = _script(context.folder, steps)
    with one_thread():
        few = profiled(module.train, steps=_STEPS, warmup=_WARMUP)
        function, seconds = _hottest_function(module.train, file)
        line = _hottest_line(module, function)
    found = few.lines.by_line()
    ours = found[0] if found else None
    agree = {"cProfile": ours is not None and ours.function == function}
    if line is not None:
        agree["line_profiler"] = ours is not None and ours.line == line
    n = sum(agree.values())
    figures = {
        "tools_that_agree": Figure(n, f"of {len(agree)} tools"),
        "line_share_percent": Figure(100 * (ours.share if ours else 0.0), "%"),
        "steps_profiled": Figure(few.n, "steps", kind="exact"),
        "steps_of_the_run": Figure(steps, "steps", kind="exact"),
        "cprofile_seconds": Figure(seconds, "s"),
    }
    named = ours.text if ours is not None else "no line"
    return Outcome(
        holds=n == len(agree) and ours is not None and ours.text == _HOT_LINE,
        figures=figures,
        headline="tools_that_agree",
        sentence=f"{few.n} of {steps} steps name the line `{named}`; over the whole run "
        + " and ".join(f"{tool} {'does' if ok else 'does not'}" for tool, ok in agree.items())
        + ".",
    )


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


@experiment("C2", lesson=LESSON, title="the change that the verdict asks for, against another one")
def bottleneck_first(context: Context) -> Outcome:
    """Two trainers and two changes: each change is right for one and wrong for the other."""
    n = _COMPARED_STEPS * _BATCH
    as_it_was = Filtered(n, ready=False, seed=context.seed)
    filtered_before = Filtered(n, ready=True, seed=context.seed)  # done once, untimed

    def few(data: Filtered, width: int) -> None:
        _train(_network(width, context), DataLoader(data, _BATCH), context)

    figures = {}
    larger = []
    for bound, width in (("data", _NARROW), ("compute", _wide(context))):
        changes: dict[str, Callable[[], None]] = {
            "data": lambda width=width: few(filtered_before, width),  # type: ignore[misc]
            "compute": lambda width=width: few(as_it_was, width // 2),  # type: ignore[misc]
        }
        start: Callable[[], None] = lambda width=width: few(as_it_was, width)  # type: ignore[misc]  # noqa: E731
        with one_thread():
            told = "data" if _verdict(context, width) == "data" else "compute"
            gains = {
                name: compare(
                    start,
                    change,
                    names=("as it was", f"less {name}"),
                    budget_s=context.budget_s / 5,
                    seed=context.seed,
                )
                for name, change in changes.items()
            }
        other = "compute" if told == "data" else "data"
        figures[f"{bound}_bound_told_change"] = Figure.of(gains[told])
        figures[f"{bound}_bound_other_change"] = Figure.of(gains[other])
        larger.append(gains[told].low > gains[other].high)
    return Outcome(
        holds=all(larger),
        figures=figures,
        headline="data_bound_told_change",
        sentence=f"In {sum(larger)} of {len(larger)} trainers the change that the verdict asked "
        "for brought clearly more than the other one.",
    )


def _verdict(context: Context, width: int) -> str:
    data = Filtered(_ALL_STEPS * _BATCH, ready=False, seed=context.seed)
    loader = DataLoader(data, _BATCH)
    return _profile(lambda: _train(_network(width, context), loader, context)).diagnosis.bound_by
