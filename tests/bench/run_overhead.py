"""What `perfkit run` costs a script with 10 ms steps, beside plain `python`.

Two arms, each a process that is started once and waits between blocks: `python loop.py` and
`perfkit run loop.py`, past its recorded steps. Blocks of both (ABBA or BAAB, drawn at random) are
timed by the loop itself. Ratio of wall and of CPU time with 95 % intervals, resampled over blocks.
Then what a step without work costs: the hooks alone. Starting a process for each block would take
most of the time, because each has to import torch. Run it as

    python tests/bench/run_overhead.py build/bench/run.json
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from perfkit.base.machine import stamp
from perfkit.measure.paired import ratio_interval

# Each line on standard input is a block: how much work a step has, and how many steps.
_LOOP = """\
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
a = torch.randn(192, 192)
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
batches = iter(DataLoader(TensorDataset(torch.zeros(800_000, 4)), batch_size=4))
for line in sys.stdin:
    n_products, n_steps = map(int, line.split())
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(n_steps):
        (x,) = next(batches)
        for _ in range(n_products):
            torch.mm(a, a)
        weight.grad = x[0]
        optimizer.step()
    print(json.dumps([(time.perf_counter_ns() - wall) / n_steps / 1e6,
                      (time.process_time_ns() - cpu) / n_steps / 1e6]), flush=True)
"""
_PLAIN = [sys.executable]
_RUN = [sys.executable, "-m", "perfkit", "run", "-q"]
_WARM_UP = 40  # warm-up and recorded steps
_EMPTY = 10_000  # steps without work in a block
_EMPTY_BLOCKS = 3


class _Arm:
    """A process with the loop in it."""

    def __init__(self, command: Sequence[str], script: Path) -> None:
        self._process = subprocess.Popen(
            [*command, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ms(self, n_products: int, n_steps: int) -> list[float]:
        """Wall and CPU time of a step, in ms."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{n_products} {n_steps}\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()  # the report at its end is not what is measured
        self._process.communicate()


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("build/bench/run.json"))
    parser.add_argument("--seconds", type=float, default=20.0, help="for the blocks with work")
    parser.add_argument("--steps", type=int, default=20, help="of each arm's turn")
    parser.add_argument("--ms", type=float, default=10.0, help="of a step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    plain: list[list[list[float]]] = []
    run: list[list[list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "loop.py")
        script.write_text(_LOOP)
        with _Arm(_PLAIN, script) as bare, _Arm(_RUN, script) as ours:
            for arm in (bare, ours):
                arm.ms(20, _WARM_UP)
            n_products = max(round(20 * options.ms / bare.ms(20, 100)[1]), 1)
            until_s = time.monotonic() + options.seconds
            while time.monotonic() < until_s or len(run) < 6:
                turns: dict[_Arm, list[list[float]]] = {bare: [], ours: []}
                first, second = draw.sample([bare, ours], 2)
                for arm in (first, second, second, first):
                    turns[arm].append(arm.ms(n_products, options.steps))
                plain.append(turns[bare])
                run.append(turns[ours])
            empty = [
                [1e3 * arm.ms(0, _EMPTY)[0] for _ in range(_EMPTY_BLOCKS)] for arm in (bare, ours)
            ]
    bare_ms, our_ms = np.array(plain), np.array(run)  # blocks × turns × (wall, CPU)
    result: dict[str, Any] = {
        "what": "a step under `perfkit run` over one under `python`, one torch thread",
        "bare_step_ms": float(np.median(bare_ms[..., 0])),
        "blocks": len(run),
        "steps_per_turn": options.steps,
        "provenance": stamp(command="python tests/bench/run_overhead.py").to_dict(),
    }
    for column, kind in enumerate(("wall", "cpu")):
        found = ratio_interval(our_ms[..., column], bare_ms[..., column])
        result[kind] = {"ratio": found.ratio, "low": found.low, "high": found.high}
    result["us_per_empty_step"] = {"python": empty[0], "perfkit run": empty[1]}
    result["us_per_step"] = float(np.median(empty[1]) - np.median(empty[0]))
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"perfkit run on a step of {result['bare_step_ms']:.1f} ms, {len(run)} ABBA blocks of "
        f"{options.steps} steps a turn, 95 % intervals"
    )
    for kind in ("wall", "cpu"):
        ratio, low, high = (100 * (result[kind][k] - 1) for k in ("ratio", "low", "high"))
        print(f"  {kind:4} {ratio:+.2f} % ({low:+.2f} … {high:+.2f})")
    print(f"  the hooks alone, on empty steps: {result['us_per_step']:.1f} µs a step")
    print(f"written to {options.path}")


if __name__ == "__main__":
    main()
