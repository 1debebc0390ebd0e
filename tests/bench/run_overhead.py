"""What `perfkit run` costs a script with 10 ms steps, beside plain `python`.

Two arms, each a process of its own, in turns (ABBA): `python loop.py` and `perfkit run loop.py`,
both timed by the loop itself, after the recorded steps. Ratio of wall and of CPU time with 95 %
intervals, resampled over rounds. Then, in one process, what a step costs without work: the hooks
alone. Run it as

    python tests/bench/run_overhead.py build/bench/run.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.base.machine import stamp
from perfkit.measure.paired import ratio_interval

_LOOP = """\
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
n_products, n_steps, n_left_out = map(int, sys.argv[1:])
a = torch.randn(192, 192)
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
loader = DataLoader(TensorDataset(torch.zeros(4 * (n_left_out + n_steps), 4)), batch_size=4)
wall = cpu = 0
for step, (x,) in enumerate(loader):
    if step == n_left_out:
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(n_products):
        torch.mm(a, a)
    weight.grad = x[0]
    optimizer.step()
print(json.dumps([(time.perf_counter_ns() - wall) / n_steps / 1e6,
                  (time.process_time_ns() - cpu) / n_steps / 1e6]))
"""
_PLAIN = [sys.executable]
_RUN = [sys.executable, "-m", "perfkit.cli", "run", "-q"]
_LEFT_OUT = 40  # warm-up and recorded steps


def _ms(arm: list[str], script: Path, n_products: int, n_steps: int) -> list[float]:
    """Wall and CPU time of a step, in ms."""
    typed = [*arm, str(script), str(n_products), str(n_steps), str(_LEFT_OUT)]
    done = subprocess.run(typed, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("build/bench/run.json"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ms", type=float, default=10.0, help="of a step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "loop.py")
        script.write_text(_LOOP)
        (_, cpu_ms) = _ms(_PLAIN, script, 20, 100)
        n_products = max(round(20 * options.ms / cpu_ms), 1)
        plain, run = [], []
        for number in range(options.rounds):
            arms = [(_PLAIN, plain), (_RUN, run)]
            for arm, found in arms if number % 2 == 0 else reversed(arms):
                found.append(_ms(arm, script, n_products, options.steps))
        empty = [[1e3 * _ms(arm, script, 0, 20_000)[0] for _ in range(3)] for arm in (_PLAIN, _RUN)]
    bare, ours = np.array(plain), np.array(run)
    result: dict[str, Any] = {
        "what": "a step under `perfkit run` over one under `python`, one torch thread",
        "bare_step_ms": float(np.median(bare[:, 0])),
        "rounds": options.rounds,
        "steps_per_round": options.steps,
        "provenance": stamp(command="python tests/bench/run_overhead.py").to_dict(),
    }
    for kind, column in (("wall", slice(0, 1)), ("cpu", slice(1, 2))):
        found = ratio_interval(ours[:, column], bare[:, column])
        result[kind] = {"ratio": found.ratio, "low": found.low, "high": found.high}
    result["us_per_empty_step"] = {"python": empty[0], "perfkit run": empty[1]}
    result["us_per_step"] = float(np.median(empty[1]) - np.median(empty[0]))
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"perfkit run on a step of {result['bare_step_ms']:.1f} ms, {options.rounds} rounds of "
        f"{options.steps} steps an arm, 95 % intervals"
    )
    for kind in ("wall", "cpu"):
        ratio, low, high = (100 * (result[kind][k] - 1) for k in ("ratio", "low", "high"))
        print(f"  {kind:4} {ratio:+.2f} % ({low:+.2f} … {high:+.2f})")
    print(f"  the hooks alone, on empty steps: {result['us_per_step']:.1f} µs a step")
    print(f"written to {options.path}")


if __name__ == "__main__":
    main()
