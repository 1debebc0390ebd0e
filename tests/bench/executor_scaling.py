"""Rounds of a sweep on a pool of 1 and of 2 processes: how much sooner it ends, and at what price.

The workload keeps one core busy with one thread, so two rounds fit on two cores. The peer is the
sweep without an executor, in this process. Pools take turns. What rounds on one machine do to each
other shows in the step: its ratio is that of the medians with 2 processes over those with 1. Run it
as

    python tests/bench/executor_scaling.py build/bench/executors.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from perfkit.base.machine import stamp
from perfkit.experiment.compare.sweep import Sweep, sweep


def busy(s: Any) -> Iterator[int]:
    import torch

    torch.set_num_threads(1)
    a = torch.randn(256, 256)
    while True:
        for _ in range(s.products):
            torch.mm(a, a)
        yield 1


busy.__module__ = "__main__"  # travels by value


def swept(n_processes: int, rounds: int, seconds: float) -> Sweep:
    """The sweep on a pool of its own; on none for 0 processes."""
    how: dict[str, Any] = {"rounds": rounds, "seconds": seconds, "say": False}
    grid = {"products": [4, 8]}
    if not n_processes:
        return sweep(busy, grid, **how)
    with ProcessPoolExecutor(n_processes) as pool:
        return sweep(busy, grid, executor=pool, **how)


def step_ms(found: Sweep) -> float:
    """The median step over all runs of the first point."""
    return statistics.median(
        run.step.median for run in found.points[0].runs.values() if run.step is not None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="build/bench/executors.json", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    took: dict[int, list[float]] = {0: [], 1: [], 2: []}
    steps: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for turn in range(options.turns):
        for n in (0, 1, 2) if turn % 2 == 0 else (2, 1, 0):
            began = time.perf_counter()
            found = swept(n, options.rounds, options.seconds)
            took[n].append(time.perf_counter() - began)
            steps[n].append(step_ms(found))
    median_s = {n: statistics.median(each) for n, each in took.items()}
    result = {
        "what": f"a sweep of 2 points in {options.rounds} rounds of {options.seconds} s a run",
        "took_s": {str(n): each for n, each in took.items()},
        "sooner_with_2_than_with_1": median_s[1] / median_s[2],
        "sooner_with_1_than_without": median_s[0] / median_s[1],
        "step_with_2_over_1": statistics.median(steps[2]) / statistics.median(steps[1]),
        "provenance": stamp(command="python tests/bench/executor_scaling.py").to_dict(),
    }
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(json.dumps(result, indent=2) + "\n")
    for n, each in took.items():
        name = f"{n} processes" if n else "no executor"
        print(f"{name:12} {min(each):.1f} … {max(each):.1f} s, median {median_s[n]:.1f} s")
    print(f"2 processes end {result['sooner_with_2_than_with_1']:.2f} times as soon as 1")
    print(f"a step takes {result['step_with_2_over_1']:.2f} times as long beside another")
    print(f"written to {options.path}")


if __name__ == "__main__":
    main()
