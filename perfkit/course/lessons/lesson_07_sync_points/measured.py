"""Lesson 07: what its claims need measured: waits before and after, kept losses, fetched masks."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import psutil
import torch
from torch.nn.functional import cross_entropy

from perfkit.course.kit.far_device import far_device
from perfkit.course.kit.fresh_process import in_fresh_process
from perfkit.course.kit.real_waits import check_syncs
from perfkit.course.ledger.recording import Figure
from perfkit.course.lessons.lesson_07_sync_points.lesson import CLASSES, IGNORE, masks
from perfkit.measure.compare import Comparison, compare
from perfkit.memory.crossings import crossings
from perfkit.memory.graphs import nodes_of
from perfkit.memory.tracker import Tracker
from perfkit.synclint.find import AS_PREDICTED, NOT_PREDICTED, NOT_SEEN, find_syncs

_N, _SIDE = 8, 128
_RESIDENT_BLOCKS = 4
_CLOSE = 1e-4  # float32 sums over 10^5 pixels in another order

_Loss = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Rewritten:
    """Two versions of a loss, forward and backward.

    Attributes:
        waits_before, waits_after: how often the host would wait in a step (predicted).
        same: whether both give the same value.
        timed: the second against the first.
        happened: on a GPU, figures of what torch reports there; else empty.
        device: ``"cpu"`` or ``"cuda"``.
    """

    waits_before: int
    waits_after: int
    same: bool
    timed: Comparison
    device: str
    happened: Mapping[str, Figure] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class KeptLosses:
    """What a loss keeps alive per step, by how it is kept; bytes of tensors unless told otherwise.

    Attributes:
        grows: by ``"loss"``, ``"item"`` and ``"detach"``, where nothing calls backward.
        waits: how often the host would wait in such a step (predicted), by the same.
        after_backward_bytes: of a kept loss after its backward pass.
        after_backward_nodes: nodes of its graph that stay.
        after_backward_resident_bytes: resident memory of a loss of a network of four blocks.
    """

    grows: Mapping[str, float]
    waits: Mapping[str, int]
    after_backward_bytes: float
    after_backward_nodes: int
    after_backward_resident_bytes: float


@dataclass(frozen=True)
class FetchedMasks:
    """A mask fetched for its sum, and the sum fetched.

    Attributes:
        fetched_bytes, summed_bytes: what crosses to the host.
        waits: how often the host would wait before it reads the sum (predicted), of both.
        timed: on a GPU, the second against the first; else ``None``.
    """

    fetched_bytes: int
    summed_bytes: int
    waits: tuple[int, int]
    timed: Comparison | None


def rewritten(
    old: _Loss, new: _Loss, model: torch.nn.Module, *, budget_s: float = 2.0
) -> Rewritten:
    """Compare waits, values and times of two versions of a loss.

    Args:
        old, new: forward passes; each returns a scalar that depends on the model's parameters.
        model: whose device counts.
        budget_s: seconds for the comparison of times.
    """
    before, after = (_waits(partial(_backward, loss), model) for loss in (old, new))
    same = math.isclose(float(new().detach()), float(old().detach()), rel_tol=_CLOSE)
    timed = compare(
        lambda: _backward(old),
        lambda: _backward(new),
        names=("waits", "does not wait"),
        budget_s=budget_s,
    )
    device = next(model.parameters()).device.type
    happened = _as_it_happened(model, old, new) if device == "cuda" else {}
    return Rewritten(before, after, same, timed, device, MappingProxyType(happened))


def kept_losses(device: str = "cpu") -> KeptLosses:
    """Count what kept losses keep; their resident memory in a process with a fresh heap."""
    batch = _Batch(device, n=1)
    kept: list[object] = []
    ways: dict[str, Callable[[torch.Tensor], None]] = {
        "loss": kept.append,
        "item": lambda loss: kept.append(loss.item()),
        "detach": lambda loss: kept.append(loss.detach()),
    }

    def validation(way: str) -> None:
        ways[way](batch.each().mean())

    def training(way: str) -> None:
        loss = batch.each().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        ways[way](loss)

    grows, waits = {}, {}
    for way in ways:
        kept.clear()
        step = partial(validation, way)
        grows[way] = _growth(step)
        waits[way] = _waits(step, batch.layer)
    kept.clear()
    after_backward = _growth(partial(training, "loss"))
    (nodes,) = nodes_of([one for one in kept[-1:] if isinstance(one, torch.Tensor)])
    resident = in_fresh_process(_resident_growth, device)
    return KeptLosses(grows, waits, after_backward, nodes, float(resident))


def fetched_masks(device: str = "cpu", *, budget_s: float = 2.0) -> FetchedMasks:
    """Count the bytes and waits of a mask that is fetched for its sum; on a GPU also time it."""
    far = far_device()
    logits = torch.empty(_N, CLASSES, _SIDE, _SIDE, device=far)
    target = torch.zeros(_N, _SIDE, _SIDE, dtype=torch.int64, device=far)
    fetched = crossings(lambda: (logits.argmax(1) == target).cpu()).to_host_bytes
    summed = crossings(lambda: (logits.argmax(1) == target).sum().cpu()).to_host_bytes
    batch = _Batch(device)

    def fetching() -> None:
        (batch.logits().argmax(1) == batch.target).cpu().sum()

    def summing() -> None:
        (batch.logits().argmax(1) == batch.target).sum()

    waits = _waits(fetching, batch.layer), _waits(summing, batch.layer)
    timed = None
    if device == "cuda":
        timed = compare(fetching, summing, names=("fetching", "summing there"), budget_s=budget_s)
    return FetchedMasks(fetched, summed, waits, timed)


class _Batch:
    """A layer whose scores enter a loss, and a mask."""

    def __init__(self, device: str, *, n: int = _N, density: float = 0.7) -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(3, CLASSES, 1).to(device)
        self.pictures = torch.randn(n, 3, _SIDE, _SIDE, device=device)
        self.target = masks(n, _SIDE, density, seed=0).to(device)

    def logits(self) -> torch.Tensor:
        scores: torch.Tensor = self.layer(self.pictures)
        return scores

    def each(self) -> torch.Tensor:
        """The loss of every pixel; 0 if it is not labelled."""
        return cross_entropy(self.logits(), self.target, reduction="none", ignore_index=IGNORE)


def _waits(step: Callable[[], object], model: torch.nn.Module) -> int:
    """Predicted number of waits of the host in a step."""
    return sum(one.count for one in find_syncs(step, model))


def _backward(loss: _Loss) -> None:
    loss().backward()  # type: ignore[no-untyped-call]


def _as_it_happened(model: torch.nn.Module, old: _Loss, new: _Loss) -> dict[str, Figure]:
    """Observed waits, and lines that differ from the prediction."""
    figures: dict[str, Figure] = {}
    for when, loss in (("before", old), ("after", new)):
        check = check_syncs(partial(_backward, loss), model)
        counts = {
            f"seen_{when}": sum(one.count for one in check if one.outcome != NOT_SEEN),
            f"lines_agreed_{when}": len(check.of(AS_PREDICTED)),
            f"lines_only_predicted_{when}": len(check.of(NOT_SEEN)),
            f"lines_only_seen_{when}": len(check.of(NOT_PREDICTED)),
        }
        figures |= {name: Figure.exact(count) for name, count in counts.items()}
        figures[f"waited_{when}"] = Figure(sum(x.waited_ms or 0.0 for x in check), "ms")
    return figures


def _growth(step: Callable[[], object], n: int = 4) -> float:
    """Bytes per step that stay, as counted by ``find_leaks``, without finding who holds them."""
    step()
    tracker = Tracker()
    alive = []
    tracker.start()
    try:
        for _ in range(2):
            for _ in range(n):
                step()
            gc.collect()
            alive.append(sum(block.nbytes for block in tracker.living()))
    finally:
        tracker.stop()
    return (alive[1] - alive[0]) / n


def _resident_growth(device: str, n: int = 600) -> float:
    """Resident bytes that a loss of a small network keeps after its backward pass.

    A first round fills the allocator's free memory, so that a second one must request more. The
    result includes the allocator's rounding.
    """
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(_RESIDENT_BLOCKS):
        layers += [torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers).to(device)
    inputs = torch.randn(4, 16, device=device)
    process = psutil.Process()
    kept, found = [], []
    for _ in range(2):
        before = process.memory_info().rss
        for _ in range(n):
            loss = network(inputs).sum()
            loss.backward()
            kept.append(loss)
        found.append((process.memory_info().rss - before) / n)
    return max(0.0, found[-1])
