"""Does ``perfkit.ab`` see differences that are not there, and those that are?

    python tests/bench/aa_ab.py out.json

A/A: both arms are the same training step of a small network; a difference that is seen is a
false alarm, of which a 95 % interval may show 5 in 100. A/B: one arm sleeps for 3 % of the step
besides. The same for ``perfkit.compare``, with the step as a function in this process.

``PERFKIT_AA_N`` sets how many comparisons of each kind (4 by default, which take about 2 minutes;
100 take about 45), ``PERFKIT_AA_BUDGET_S`` the seconds for one of ``ab`` (10).
Run it on a quiet machine: with other load the power falls, the false alarms should not rise.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfkit
from perfkit.machine import stamp

N = int(os.environ.get("PERFKIT_AA_N", "4"))
BUDGET_S = float(os.environ.get("PERFKIT_AA_BUDGET_S", "10"))
DELAY = 0.03


def workload(settings: Any) -> Any:
    import time

    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 256)
    while True:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        until = time.perf_counter() + settings.delay_s
        while time.perf_counter() < until:  # a sleep would take what the timer allows
            pass
        yield 64


def functions(delay_s: float) -> tuple[Callable[[], object], Callable[[], object]]:
    class Values:
        def __init__(self, delay: float) -> None:
            self.delay_s = delay

    slow, fast = workload(Values(delay_s)), workload(Values(0.0))
    return lambda: next(slow), lambda: next(fast)


def step_s() -> float:
    """What one step takes here: the delay is a share of it."""
    import torch

    threads = torch.get_num_threads()
    _, fast = functions(0.0)
    times = []
    for _ in range(300):
        began = time.perf_counter()
        fast()
        times.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return statistics.median(times[50:])


def by_ab(delay_s: float, seed: int) -> tuple[float, float, float]:
    found = perfkit.ab(
        workload,
        {"delay_s": delay_s},
        {"delay_s": 0.0},
        budget_s=BUDGET_S,
        names=("first", "other"),
        seed=seed,
        say=False,
    )
    return found.ratio.ratio, found.ratio.low, found.ratio.high


def by_compare(delay_s: float, seed: int) -> tuple[float, float, float]:
    found = perfkit.compare(
        *functions(delay_s), names=("first", "other"), budget_s=BUDGET_S / 4, seed=seed
    )
    return found.ratio, found.low, found.high


def counted(
    name: str, measure: Callable[[float, int], tuple[float, float, float]], delay_s: float
) -> dict[str, Any]:
    found = []
    for i in range(N):
        found.append(measure(delay_s, i))
        print(f"\r{name}: {i + 1} of {N}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    seen = sum(not low <= 1 <= high for _, low, high in found)
    right = sum(low > 1 for _, low, high in found)
    return {
        "kind": name,
        "n": N,
        "delay_share": DELAY if delay_s else 0.0,
        "different": seen,
        "in_the_right_direction": right if delay_s else None,
        "median_ratio": statistics.median(ratio for ratio, _, _ in found),
        "median_half_width": statistics.median(
            math.sqrt(high / low) - 1 if low > 0 and math.isfinite(high) else math.inf
            for _, low, high in found
        ),
        "found": [list(one) for one in found],
    }


def main() -> None:
    began = time.monotonic()
    delay_s = DELAY * step_s()
    rows = []
    for tool, measure in (("ab", by_ab), ("compare", by_compare)):
        rows.append(counted(f"{tool}, A/A", measure, 0.0))
        rows.append(counted(f"{tool}, {100 * DELAY:.0f} % slower", measure, delay_s))
    print(f"{'':<20}{'n':>5}{'seen':>7}{'ratio':>9}{'± half width':>15}")
    for row in rows:
        print(
            f"{row['kind']:<20}{row['n']:>5}{row['different']:>7}{row['median_ratio']:>9.4f}"
            f"{100 * row['median_half_width']:>13.2f} %"
        )
    provenance = stamp(command="tests/bench/aa_ab.py", device="cpu")
    print(provenance.sentence())
    told = {
        "rows": rows,
        "budget_s": {"ab": BUDGET_S, "compare": BUDGET_S / 4},
        "delay_ms": 1e3 * delay_s,
        "took_s": time.monotonic() - began,
        "provenance": provenance.to_dict(),
    }
    Path(sys.argv[1]).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
