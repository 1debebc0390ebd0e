"""Lesson 07: what waits (E1-E3, B5, B6), sparse masks (E4), what a published time was (E5, E6)."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import psutil
import torch
from torch.nn.functional import cross_entropy

from perfkit.course.kit.simulated_gpu import SimulatedGpu, simulate, what_if
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.course.lessons.lesson_02_read_a_trace.lesson import BUSY
from perfkit.course.lessons.lesson_06_host_to_device.lesson import far_device
from perfkit.course.lessons.lesson_07_sync_points.lesson import (
    CLASSES,
    IGNORE,
    PUBLISHED,
    crossover,
    masks,
    published_step,
)
from perfkit.course.lessons.lesson_07_sync_points.traffic import work_of
from perfkit.measure.compare import compare
from perfkit.memory.crossings import crossings
from perfkit.memory.graphs import nodes_of
from perfkit.memory.tracker import Tracker
from perfkit.synclint.find import find_syncs
from perfkit.synclint.reality import check_syncs
from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.flops import flops
from perfkit.trace.ask.idle import idle

__all__ = [
    "ask_and_run",
    "compacting_wins",
    "fetched_masks",
    "hidden_waits",
    "ignored_pixels",
    "kept_losses",
    "not_nonzero",
    "not_unique",
]

_LESSON = "07-sync-points"
_N, _SIDE = 8, 128
_GUESS = math.log(CLASSES)
_DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# E4 is about a large tensor. On a GPU a small one is computed faster than it is launched, whatever
# its mask; this one has scores of 336 MB, and needs some 4 GB in all.
_N_LARGE, _SIDE_LARGE = 32, 512
_RESIDENT_BLOCKS = 4
_CLOSE = 1e-4  # float32 sums over 10^5 pixels in another order

_Loss = Callable[[], torch.Tensor]


class _Batch:
    """A layer whose scores enter a loss, and a mask."""

    def __init__(self, context: Context, *, n: int = _N, density: float = 0.7) -> None:
        torch.manual_seed(context.seed)
        self.layer = torch.nn.Conv2d(3, CLASSES, 1).to(context.device)
        self.pictures = torch.randn(n, 3, _SIDE, _SIDE, device=context.device)
        self.target = masks(n, _SIDE, density, seed=context.seed).to(context.device)

    def logits(self) -> torch.Tensor:
        scores: torch.Tensor = self.layer(self.pictures)
        return scores

    def each(self) -> torch.Tensor:
        """The loss of every pixel; 0 if it is not labelled."""
        return cross_entropy(self.logits(), self.target, reduction="none", ignore_index=IGNORE)

    def waits(self, step: Callable[[], object]) -> int:
        """Predicted number of waits of the host in a step, forward and backward."""
        return sum(one.count for one in find_syncs(step, self.layer))


def _backward(loss: _Loss) -> None:
    loss().backward()  # type: ignore[no-untyped-call]


def _rewritten(context: Context, batch: _Batch, old: _Loss, new: _Loss, what: str) -> Outcome:
    """Compare waits, values and times of both versions."""
    before, after = batch.waits(lambda: _backward(old)), batch.waits(lambda: _backward(new))
    wanted = float(old().detach())
    same = math.isclose(float(new().detach()), wanted, rel_tol=_CLOSE)
    timed = compare(
        lambda: _backward(old),
        lambda: _backward(new),
        names=("waits", "does not wait"),
        budget_s=context.budget_s,
        seed=context.seed,
    )
    figures = {
        "waits_before": Figure(before, "1", kind="predicted"),
        "waits_after": Figure(after, "1", kind="predicted"),
        "step_ratio": Figure.of(timed),
    }
    really: dict[str, Figure] = {}
    if context.device == "cuda":
        really = _as_it_happened(batch, old, new)
    return Outcome(
        holds=after == 0 < before
        and same
        and (not really or really["seen_after"].value == 0 < really["seen_before"].value),
        figures=figures | really,
        headline="seen_before" if really else "waits_before",
        sentence=f"{what}: waits in a step {before} before, {after} after (predicted), the same "
        f"value; forward and backward on this {'GPU' if context.device == 'cuda' else 'CPU'} "
        f"{timed.ratio:.2f}× as fast{_said_of(really)}.",
    )


def _as_it_happened(batch: _Batch, old: _Loss, new: _Loss) -> dict[str, Figure]:
    """Observed waits, and lines that differ from the prediction."""
    figures: dict[str, Figure] = {}
    for when, loss in (("before", old), ("after", new)):
        check = check_syncs(partial(_backward, loss), batch.layer)
        counts = {
            f"seen_{when}": sum(one.count for one in check.happened),
            f"elsewhere_{when}": len(check.elsewhere),
            f"lines_agreed_{when}": len(check.agreed),
            f"lines_only_predicted_{when}": len(check.only_predicted),
            f"lines_only_seen_{when}": len(check.only_happened),
        }
        figures |= {name: Figure(count, "1", kind="exact") for name, count in counts.items()}
        if check.waited_ms is not None:
            figures[f"waited_{when}"] = Figure(check.waited_ms, "ms")
    return figures


def _said_of(really: Mapping[str, Figure]) -> str:
    if not really:
        return ""
    before, after = really["seen_before"].value, really["seen_after"].value
    differ = sum(one.value for name, one in really.items() if name.startswith("lines_only"))
    return f"; seen there {before} before and {after} after, lines that differ: {differ}"


@experiment("E1", lesson=_LESSON, title="torch.nonzero against torch.where")
def not_nonzero(context: Context) -> Outcome:
    batch = _Batch(context)

    def gathered() -> torch.Tensor:
        each = batch.each().flatten()
        return each[torch.nonzero(each > _GUESS)].mean()

    def weighed() -> torch.Tensor:
        each = batch.each().flatten()
        worse = each > _GUESS
        return torch.where(worse, each, 0.0).sum() / worse.sum().clamp(min=1)

    return _rewritten(context, batch, gathered, weighed, "torch.where instead of torch.nonzero")


@experiment("E2", lesson=_LESSON, title="torch.unique against sort, difference and count")
def not_unique(context: Context) -> Outcome:
    batch = _Batch(context)

    def unique() -> torch.Tensor:
        return batch.each().sum() / len(torch.unique(batch.target))

    def counted() -> torch.Tensor:
        ordered = batch.target.flatten().sort().values
        return batch.each().sum() / ((ordered.diff() != 0).sum() + 1)

    return _rewritten(
        context, batch, unique, counted, "sort, difference and count instead of torch.unique"
    )


@experiment("E3", lesson=_LESSON, title="a boolean mask against ignore_index")
def ignored_pixels(context: Context) -> Outcome:
    batch = _Batch(context)

    def indexed() -> torch.Tensor:
        valid = batch.target != IGNORE
        scores = batch.logits().permute(0, 2, 3, 1)[valid]
        return cross_entropy(scores, batch.target[valid])

    def ignored() -> torch.Tensor:
        return cross_entropy(batch.logits(), batch.target, ignore_index=IGNORE)

    return _rewritten(context, batch, indexed, ignored, "ignore_index instead of a boolean mask")


@experiment("E4", lesson=_LESSON, title="compacting against ignore_index, by density of the mask")
def compacting_wins(context: Context) -> Outcome:
    torch.manual_seed(context.seed)
    n, side = (_N_LARGE, _SIDE_LARGE) if context.device == "cuda" else (_N, _SIDE)
    logits = torch.randn(n, CLASSES, side, side, device=context.device, requires_grad=True)
    ratios = []
    for density in _DENSITIES:
        target = masks(n, side, density, seed=context.seed).to(context.device)

        def compacting(target: torch.Tensor = target) -> None:
            logits.grad = None
            valid = target != IGNORE
            scores = logits.permute(0, 2, 3, 1)[valid]
            cross_entropy(scores, target[valid]).backward()  # type: ignore[no-untyped-call]

        def ignoring(target: torch.Tensor = target) -> None:
            logits.grad = None
            loss = cross_entropy(logits, target, ignore_index=IGNORE)
            loss.backward()  # type: ignore[no-untyped-call]

        ratios.append(
            compare(
                compacting,
                ignoring,
                names=("compacting", "ignoring"),
                budget_s=context.budget_s / len(_DENSITIES),
                seed=context.seed,
            )
        )
    equal = crossover(_DENSITIES, [one.ratio for one in ratios])
    figures = {
        "sparse_ratio": Figure.of(ratios[0]),
        "dense_ratio": Figure.of(ratios[-1]),
    }
    if equal is not None:
        figures["equal_at"] = Figure(100 * equal, "%")
    where = (
        "nowhere in this range" if equal is None else f"at about {float(f'{100 * equal:.1g}'):g} %"
    )
    return Outcome(
        holds=ratios[0].high < 1 < ratios[-1].low,
        figures=figures,
        headline="sparse_ratio" if equal is None else "equal_at",
        sentence=f"With 0.1 % of the pixels labelled, x[mask] takes {ratios[0].ratio:.2f} of the "
        f"time of ignore_index, with all of them {ratios[-1].ratio:.1f} times as long; the two are "
        f"equal {where}.",
    )


@experiment("E5", lesson=_LESSON, title="what the published step must take, and asking for one")
def ask_and_run(context: Context) -> Outcome:
    """Bound the published time by counts and peak rates; on a GPU, stopwatch against throughput.

    A simulated device would need to know how long a step takes, which is the question.
    """
    work = work_of(published_step("meta"))
    compute_ms, traffic_ms = work.least_ms(
        tflop_per_s=PUBLISHED.tflop_per_s, gb_per_s=PUBLISHED.gb_per_s
    )
    least_ms = max(compute_ms, traffic_ms)
    figures = {
        "flops": Figure(work.flops, "FLOP", kind="exact"),
        "traffic_bytes": Figure(work.traffic_bytes, "B", kind="exact"),
        "least_compute_ms": Figure(compute_ms, "ms", kind="predicted"),
        "least_ms": Figure(least_ms, "ms", kind="predicted"),
        "beyond_ratio": Figure(least_ms / PUBLISHED.after_ms, "×", kind="predicted"),
        "most_ratio": Figure(PUBLISHED.before_ms / least_ms, "×", kind="predicted"),
    }
    said = (
        f"The published step needs at least {compute_ms:.0f} ms for its arithmetic and "
        f"{traffic_ms:.0f} ms for its memory traffic on that GPU, operator by operator "
        f"(predicted): 5.4 ms is no time of a step, and the gain was at most "
        f"{PUBLISHED.before_ms / least_ms:.1f}×"
    )
    if context.device == "cuda":
        seen = _asked_and_run()
        figures |= seen
        said += (
            f"; on this GPU a stopwatch without a wait reads {seen['asked_ms'].value:.1f} ms for a "
            f"step that takes {seen['run_ms'].value:.0f} ms"
        )
    return Outcome(
        holds=compute_ms <= PUBLISHED.after_ms and traffic_ms <= PUBLISHED.after_ms,
        figures=figures,
        headline="most_ratio",
        sentence=f"{said}.",
    )


def _asked_and_run() -> dict[str, Figure]:
    """The published step on a GPU: with a wait in each step, and with one at the end.

    Both do the same work; the savings from rewriting the loss are not included.
    """
    free, _ = torch.cuda.mem_get_info()
    ask = published_step("cuda", batch=max(1, min(PUBLISHED.batch, int(free // 80e6))))
    wait = torch.cuda.synchronize
    stopwatch, throughput = _clocked(ask, wait)

    def ask_and_wait() -> None:
        ask()
        wait()

    waited, waited_throughput = _clocked(ask_and_wait, wait)
    return {
        "stopwatch_ratio": Figure(waited / stopwatch, "×"),
        "throughput_ratio": Figure(waited_throughput / throughput, "×"),
        "asked_ms": Figure(stopwatch, "ms"),
        "run_ms": Figure(throughput, "ms"),
    }


def _clocked(step: Callable[[], object], wait: Callable[[], None], n: int = 6) -> tuple[float, ...]:
    """Stopwatch around each step (median, ms), and ms per step with one wait at the end."""
    step()
    wait()
    each, begin = [], time.perf_counter()
    for _ in range(n):
        start = time.perf_counter()
        step()
        each.append(1e3 * (time.perf_counter() - start))
    wait()
    return statistics.median(each), 1e3 * (time.perf_counter() - begin) / n


@experiment("E6", lesson=_LESSON, title="ten waits behind a utilisation of 90 %")
def hidden_waits(context: Context) -> Outcome:
    """Simulated on every machine; lesson 02 has the measured counterpart."""
    waiting = replace(BUSY, items=10, python_us=60, item_at_end=False)
    trace = simulate(waiting)
    utilisation = breakdown(trace).device_shares()["compute"]
    causes = idle(trace).shares()
    used = flops(trace).achieved_tflop_per_s / SimulatedGpu().tflop_per_s
    gain = what_if(waiting)["sync"]
    return Outcome(
        holds=utilisation > 0.85 and used < 0.1 and max(causes, key=lambda c: causes[c]) == "sync",
        figures={
            "utilisation": Figure(100 * utilisation, "%", kind="simulated"),
            "hidden_flops_share": Figure(100 * used, "%", kind="simulated"),
            "sync_idle": Figure(100 * causes["sync"], "%", kind="simulated"),
            "gain_without_waits": Figure(gain, "×", kind="simulated"),
        },
        headline="utilisation",
        sentence=f"A simulated step with ten waits has a utilisation of {100 * utilisation:.0f} % "
        f"and uses {100 * used:.1f} % of the achievable FLOP/s; without the waits it is "
        f"{gain:.2f}× as fast.",
    )


@experiment("B5", lesson=_LESSON, title="collected losses: the graph, the value, the detached one")
def kept_losses(context: Context) -> Outcome:
    batch = _Batch(context, n=1)
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
        waits[way] = batch.waits(step)
    kept.clear()
    after_backward = _growth(partial(training, "loss"))
    (nodes,) = nodes_of([one for one in kept[-1:] if isinstance(one, torch.Tensor)])
    kept.clear()
    resident = _resident_growth(context.device)
    whole, value = grows["loss"], grows["detach"]
    return Outcome(
        holds=whole > 1000 * value
        and grows["item"] == 0
        and waits == {"loss": 0, "item": 1, "detach": 0},
        figures={
            "graph_bytes": Figure(round(whole), "B", kind="exact"),
            "after_backward_bytes": Figure(round(after_backward), "B", kind="exact"),
            "after_backward_nodes": Figure(nodes, "1", kind="exact"),
            "after_backward_resident": Figure(round(resident), "B"),
            "detached_bytes": Figure(round(value), "B", kind="exact"),
            "item_bytes": Figure(round(grows["item"]), "B", kind="exact"),
            "item_waits": Figure(waits["item"], "1", kind="predicted"),
            "detached_waits": Figure(waits["detach"], "1", kind="predicted"),
        },
        headline="graph_bytes",
        sentence=f"A kept loss holds {round(whole):,} B of tensors where nothing calls backward, "
        f"and {round(after_backward)} B after it, where the nodes of its graph stay: about "
        f"{resident / 1e3:.0f} kB of resident memory a loss of {_RESIDENT_BLOCKS} blocks; .item() "
        f"keeps nothing and waits, .detach() keeps {round(value)} B and does not wait.",
    )


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


@experiment("B6", lesson=_LESSON, title="a mask fetched for its sum, against the sum fetched")
def fetched_masks(context: Context) -> Outcome:
    far = far_device()
    logits = torch.empty(_N, CLASSES, _SIDE, _SIDE, device=far)
    target = torch.zeros(_N, _SIDE, _SIDE, dtype=torch.int64, device=far)
    fetched = crossings(lambda: (logits.argmax(1) == target).cpu()).to_host_bytes
    summed = crossings(lambda: (logits.argmax(1) == target).sum().cpu()).to_host_bytes
    batch = _Batch(context)

    def fetching() -> None:
        (batch.logits().argmax(1) == batch.target).cpu().sum()

    def summing() -> None:
        (batch.logits().argmax(1) == batch.target).sum()

    waits = batch.waits(fetching), batch.waits(summing)
    figures = {
        "fetched_bytes": Figure(fetched, "B", kind="exact"),
        "summed_bytes": Figure(summed, "B", kind="exact"),
        "fetched_waits": Figure(waits[0], "1", kind="predicted"),
        "summed_waits": Figure(waits[1], "1", kind="predicted"),
    }
    if context.device == "cuda":
        timed = compare(
            fetching,
            summing,
            names=("fetching", "summing there"),
            budget_s=context.budget_s,
            seed=context.seed,
        )
        # lesson 06 has a step_ratio of this claim
        figures["fetch_ratio"] = Figure.of(timed)
    return Outcome(
        holds=fetched > summed and waits == (1, 0),
        figures=figures,
        headline="fetched_bytes",
        sentence=f"Fetching a mask for its sum sends {fetched:,} B and waits; summed on the device "
        f"it is {summed} B, and nobody waits before it is read.",
    )
