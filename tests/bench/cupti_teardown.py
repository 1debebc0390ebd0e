"""Do launches stay slower after a profiler has run? Unprofiled, profiled, and with CUPTI let go.

Each run is a process of its own: the host's time of a launch, before and after a profiled stretch,
as a ratio; arms in turn. ``unprofiled`` is the peer: what its ratio is off 1 is noise. Needs a CUDA
device, and says so where there is none. Run it as

    python tests/bench/cupti_teardown.py build/bench/cupti.json --rounds 8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from perfkit.base.machine import stamp

ARMS = {"unprofiled": None, "stays attached": "0", "let go": "1"}
_CHILD = """
import statistics, sys, time
import torch
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
numbers = [torch.zeros(64, device="cuda") for _ in range(20)]


def launch_us(n=60):
    times = []
    for _ in range(n):
        began_s = time.perf_counter()
        for _ in range(3):
            for one in numbers:
                one.add_(1).mul_(0.5)
        times.append((time.perf_counter() - began_s) * 1e6 / (3 * 2 * len(numbers)))
        torch.cuda.synchronize()
    return statistics.median(times)


def settled_us():
    for _ in range(3):
        launch_us()
    return statistics.median(launch_us() for _ in range(7))


before_us = settled_us()
if sys.argv[1] == "unprofiled":
    time.sleep(0.5)
else:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        launch_us(3)
    p.events()
print(before_us, settled_us())
"""


def one(arm: str) -> float:
    """Launches after over before, in a new process."""
    environment = {k: v for k, v in os.environ.items() if k != "TEARDOWN_CUPTI"}
    if ARMS[arm] is not None:
        environment["TEARDOWN_CUPTI"] = str(ARMS[arm])
    said = subprocess.run(
        [sys.executable, "-c", _CHILD, arm],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    before_us, after_us = map(float, said.stdout.split()[-2:])
    return after_us / before_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="build/bench/cupti.json", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing is timed")
        return
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(options.rounds):
        for arm in list(ARMS) if number % 2 else list(ARMS)[::-1]:
            found[arm].append(one(arm))
    for arm, ratios in found.items():
        print(
            f"{arm:15} {statistics.median(ratios):.2f} times as long after "
            f"({min(ratios):.2f} … {max(ratios):.2f}, {len(ratios)} processes)"
        )
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(
        json.dumps(
            {
                "ratios": found,
                "provenance": stamp(command="python tests/bench/cupti_teardown.py").to_dict(),
            },
            indent=1,
        )
    )
    print(f"written to {options.path}")


if __name__ == "__main__":
    main()
