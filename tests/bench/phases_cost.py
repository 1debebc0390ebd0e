"""What watching the phases costs a training step: none, the phases alone, all of a callback; peers.

One process and one loop of 10 ms steps (a small model, a DataLoader, AdamW). Arms take turns in
blocks, forwards and backwards; each is compared with the bare loop of the same round. Ratios with
95 % intervals, resampled over rounds. Then what the hooks take by themselves, in a step that does
nothing. Peers that are not installed are left out, and the result says so. Run it as

    python tests/bench/phases_cost.py build/bench/phases.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from perfkit.base.machine import stamp
from perfkit.integrations import TrainerRun
from perfkit.measure.paired import ratio_interval
from perfkit.measure.phases import Phases

_STEPS = 20  # in a block of the hooks alone
# A block of the loop is half a second: one update of whoever draws or logs twice a second. The
# steps before it are not timed: they hold the first update and the start of the sampler, which
# come once a run.
_BLOCK, _FIRST = 50, 3
_PEERS = ("traceml", "gpuprof")


class Loop:
    """Steps of about ``goal_ms``: thin layers and a product that fills the time."""

    def __init__(self, goal_ms: float) -> None:
        self.prepare()
        self.n_products = 0
        self.step()
        bare_ms = self._median_ms()
        self.n_products = 20
        each_ms = max(self._median_ms() - bare_ms, 1e-3) / 20
        self.n_products = max(round((goal_ms - bare_ms) / each_ms), 0)

    def prepare(self) -> None:
        """Model, optimizer and data; the time of a step is not fitted yet."""
        self.model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(20)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        data = torch.utils.data.TensorDataset(torch.zeros(1_000_000, 32))
        self.batches = iter(torch.utils.data.DataLoader(data, batch_size=4))
        self.a = torch.randn(192, 192)

    def _median_ms(self) -> float:
        times = []
        for _ in range(30):
            began = time.perf_counter()
            self.step()
            times.append(1e3 * (time.perf_counter() - began))
        return statistics.median(times)

    def step(self) -> None:
        (x,) = next(self.batches)
        for _ in range(self.n_products):
            torch.mm(self.a, self.a)
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()


Arm = tuple[Callable[[], None], Callable[[], object], Callable[[], None]]
"""What begins before a block, what comes after each step, what ends behind the block."""


def nothing() -> None:
    pass


def phases_alone() -> Arm:
    phases = Phases()
    return phases.start, phases.take, phases.stop


def callback() -> Arm:
    run = TrainerRun(live=False, log=lambda metrics: None)
    return lambda: run.begin("bench"), run.step, lambda: run.end("finished")


def block(loop: Loop, arm: Arm, n: int) -> tuple[float, float]:
    """Wall and CPU time of a step, in ms; begin and end of the watching are no part of it."""
    begin, after_step, end = arm
    begin()
    for _ in range(_FIRST):
        loop.step()
        after_step()
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(n):
        loop.step()
        after_step()
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    end()
    return wall / n / 1e6, cpu / n / 1e6


def measure(budget_s: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    loop = Loop(10.0)

    arms: dict[str, Arm] = {
        "bare loop": (nothing, nothing, nothing),
        "phases": phases_alone(),
        "callback with log=": callback(),
    }
    rounds = []
    end = time.monotonic() + budget_s
    while time.monotonic() < end or len(rounds) < 6:
        names = list(arms) if len(rounds) % 2 else list(reversed(arms))
        rounds.append({name: block(loop, arms[name], _BLOCK) for name in names})
    base = np.array([r["bare loop"] for r in rounds])
    rows = []
    for name in arms:
        if name == "bare loop":
            continue
        mine = np.array([r[name] for r in rounds])
        row: dict[str, Any] = {"name": name}
        for i, kind in enumerate(("wall", "cpu")):
            found = ratio_interval(mine[:, i : i + 1], base[:, i : i + 1])
            row |= {
                f"{kind}_ratio": found.ratio, f"{kind}_low": found.low, f"{kind}_high": found.high,
            }  # fmt: skip
        rows.append(row)
    return {
        "what": "a step with the phases watched over a step of the bare loop, one torch thread",
        "bare_step_ms": float(np.median(base[:, 0])),
        "rounds": len(rounds),
        "steps_per_arm": len(rounds) * _BLOCK,
        "rows": rows,
        "hooks_us": {
            "phases, again and again": hooks_us(cold=False),
            "phases, after other work": hooks_us(cold=True),
            "one module, after other work": hooks_us(cold=True, only_a_module=True),
            "callback, after other work": hooks_us(cold=True, arm=callback),
        },
        "not_measured": {
            peer: "not installed" if find_spec(peer) is None else "no arm is written for it"
            for peer in _PEERS
        },
        "provenance": stamp(command="python tests/bench/phases_cost.py").to_dict(),
    }


def hooks_us(
    *, cold: bool, arm: Callable[[], Arm] = phases_alone, only_a_module: bool = False
) -> dict[str, float]:
    """What the hooks of a step take; the step does nothing.

    Steps with and without them take turns in blocks. Median over the steps, with the interval of
    the medians of single blocks.

    Args:
        cold: there is a millisecond of other work before each step, which is not timed: what the
            hooks need has left the caches, as it has in a real step.
        arm: what is watched.
        only_a_module: the step is one call of a module, and its end is not timed.
    """

    class Nothing(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            pass

    module = nn.Identity()
    optimizer = Nothing([nn.Parameter(torch.zeros(1))], {})
    batches = torch.utils.data.DataLoader(range(10**9), batch_size=None)
    iterator = iter(batches)
    loss = torch.zeros((), requires_grad=True)
    a = torch.randn(192, 192)

    def us(end: Callable[[], object]) -> list[float]:
        found = []
        for _ in range(_STEPS + 2):
            if cold:
                for _ in range(8):
                    torch.mm(a, a)
            began = time.perf_counter_ns()
            if only_a_module:
                module(1)
            else:
                next(iterator)
                module(1)
                loss.backward()
                optimizer.step()
                end()
            found.append((time.perf_counter_ns() - began) / 1e3)
        return found[2:]

    plain, watched = [], []
    for _ in range(60):
        plain.append(us(nothing))
        begin, after_step, stop = arm()
        begin()
        watched.append(us(after_step))
        stop()
    each = np.median(np.array(watched), axis=1) - np.median(np.array(plain), axis=1)
    low, high = np.percentile(each, [2.5, 97.5])
    whole = float(np.median(np.array(watched)) - np.median(np.array(plain)))
    return {"median": whole, "low": float(low), "high": float(high)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="build/bench/phases.json", type=Path)
    parser.add_argument("--budget-s", type=float, default=45.0, help="seconds for the rounds")
    options = parser.parse_args()
    result = measure(options.budget_s)
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"On a step of {result['bare_step_ms']:.1f} ms, {result['rounds']} rounds, 95 % intervals"
    )
    for row in result["rows"]:
        for kind in ("wall", "cpu"):
            ratio, low, high = (100 * (row[f"{kind}_{k}"] - 1) for k in ("ratio", "low", "high"))
            print(f"{row['name']:22}{kind:5} {ratio:+6.2f} % ({low:+.2f} … {high:+.2f})")
    print("the hooks by themselves, in µs a step (and 95 % of the blocks of steps)")
    for name, us in result["hooks_us"].items():
        print(f"{name:28}{us['median']:6.1f} ({us['low']:.1f} … {us['high']:.1f})")
    for peer, why in result["not_measured"].items():
        print(f"{peer:22}not measured: {why}")
    print(json.dumps(brief(result)))
    print(f"written to {options.path}")


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """What the phases cost, in one line of JSON: ratios with their intervals, and microseconds."""
    return {
        "step_ms": round(result["bare_step_ms"], 2),
        "rounds": result["rounds"],
        **{
            row["name"]: {key: round(value, 4) for key, value in row.items() if key != "name"}
            for row in result["rows"]
        },
        "hooks_us": {name: round(us["median"], 1) for name, us in result["hooks_us"].items()},
    }


if __name__ == "__main__":
    main()
