"""What counting memory costs a training step, beside torch's own MemTracker.

    python tests/bench/bench_memory.py --out out.json

Plain steps, steps under ``perfkit.account`` and steps under ``MemTracker`` take turns in
chunks, so that whatever else the machine does hits all three; one thread, and the processor
time of this process, for the same reason. A region's two looks
at all objects of the process are told apart from the cost per step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from perfkit.base.machine import stamp
from perfkit.memory.account import Accountant

ROUNDS, CHUNK = 12, 8
WANTED_MS = (3.0, 30.0)
AT_MOST = {3.0: 3.0, 30.0: 1.3}  # times a plain step


def small_cnn(batch: int) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters())
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def step() -> None:
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return net, optimizer, step


def mem_tracker(net: nn.Module, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(net, optimizer)
    return tracker


def step_ms(step: Callable[[], None], n: int = CHUNK, between: Any = None) -> float:
    times = []
    for _ in range(n):
        if between is not None:
            between()
        began = time.process_time()
        step()
        times.append(1e3 * (time.process_time() - began))
    return statistics.median(times[1:] or times)


def batch_for(wanted_ms: float) -> int:
    """The batch whose plain step takes about so long here."""
    batch = 1
    while batch < 4096:
        _, _, step = small_cnn(batch)
        step()
        if step_ms(step) >= 0.85 * wanted_ms:
            break
        batch = max(batch + 1, int(batch * 1.3))
    return batch


def measure(wanted_ms: float) -> dict[str, Any]:
    batch = batch_for(wanted_ms)
    net, optimizer, step = small_cnn(batch)
    step()
    arms: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": nullcontext,
        "perfkit": Accountant,
        "MemTracker": lambda: mem_tracker(net, optimizer),
    }
    chunks: dict[str, list[float]] = {name: [] for name in arms}
    ends: list[float] = []
    for _ in range(ROUNDS):
        for name, arm in arms.items():
            began = time.perf_counter()
            with arm() as mode:
                inside = time.perf_counter()
                # MemTracker refuses a second step without this
                between = getattr(mode, "reset_mod_stats", None)
                chunks[name].append(step_ms(step, between=between))
                left = time.perf_counter()
            if name == "perfkit":
                ends.append(1e3 * (inside - began + time.perf_counter() - left))
    ratios = {
        name: sorted(t / p for p, t in zip(chunks["plain"], chunks[name], strict=True))
        for name in ("perfkit", "MemTracker")
    }
    return {
        "batch": batch,
        "wanted_ms": wanted_ms,
        "plain_ms": statistics.median(chunks["plain"]),
        "perfkit_ms": statistics.median(chunks["perfkit"]),
        "mem_tracker_ms": statistics.median(chunks["MemTracker"]),
        "ratio": statistics.median(ratios["perfkit"]),
        "ratio_low": ratios["perfkit"][ROUNDS // 4],
        "ratio_high": ratios["perfkit"][-1 - ROUNDS // 4],
        "mem_tracker_ratio": statistics.median(ratios["MemTracker"]),
        "once_per_region_ms": statistics.median(ends),
        "at_most": AT_MOST[wanted_ms],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure(ms) for ms in WANTED_MS]
    report = {"results": results, "provenance": stamp(seed=0).to_dict()}
    path = args.path
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for r in results:
        print(
            f"plain {r['plain_ms']:.1f} ms (batch {r['batch']}); perfkit {r['perfkit_ms']:.1f} ms, "
            f"{r['ratio']:.2f}× (quartiles {r['ratio_low']:.2f} … {r['ratio_high']:.2f}, at most "
            f"{r['at_most']}); MemTracker {r['mem_tracker_ms']:.1f} ms, "
            f"{r['mem_tracker_ratio']:.1f}×; once a region {r['once_per_region_ms']:.0f} ms"
        )
    return int(any(r["ratio"] > r["at_most"] for r in results))


if __name__ == "__main__":
    sys.exit(main())
