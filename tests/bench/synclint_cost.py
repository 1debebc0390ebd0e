"""What watching costs: a step of a small CNN under the sync lint against the plain step.

    python tests/bench/synclint_cost.py out.json

Watched and plain steps take turns, so that whatever else the machine does hits both. One
thread, and the processor time of this process, for the same reason; wall time stands beside.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

from perfkit.base.machine import stamp
from perfkit.synclint.find import find_syncs

ROUNDS = 25
AT_MOST = 6.0  # times a plain step


def small_cnn(batch: int):
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

    return step


def seconds(run) -> tuple[float, float]:
    """Processor seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(batch: int) -> dict[str, float]:
    step = small_cnn(batch)
    for _ in range(3):
        step()
        assert find_syncs(step) == []
    pairs = [(seconds(step), seconds(lambda: find_syncs(step))) for _ in range(ROUNDS)]
    ratios = sorted(watched[0] / plain[0] for plain, watched in pairs)
    return {
        "batch": batch,
        "plain_ms": 1e3 * statistics.median(p[0] for p, _ in pairs),
        "watched_ms": 1e3 * statistics.median(w[0] for _, w in pairs),
        "wall_ratio": statistics.median(w[1] / p[1] for p, w in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[ROUNDS // 4],
        "ratio_high": ratios[-1 - ROUNDS // 4],
    }


def main(path: str) -> int:
    torch.set_num_threads(1)
    results = [measure(batch) for batch in (1, 4, 32)]
    report = {"at_most": AT_MOST, "results": results, "provenance": stamp().to_dict()}
    Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for r in results:
        print(
            f"batch {r['batch']}: plain {r['plain_ms']:.1f} ms, watched {r['watched_ms']:.1f} ms, "
            f"ratio {r['ratio']:.2f} (quartiles {r['ratio_low']:.2f} … {r['ratio_high']:.2f}), "
            f"wall {r['wall_ratio']:.2f}"
        )
    return int(any(r["ratio"] > AT_MOST for r in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
