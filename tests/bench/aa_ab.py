"""Do ``perfkit.compare`` and ``perfkit.ab`` see differences that are not there, and those that are?

    python tests/bench/aa_ab.py out.json --minutes 3
    python tests/bench/aa_ab.py out.json --minutes 3 --load 2
    python tests/bench/aa_ab.py out.json --table

Both arms are training steps of a small network, 100 of them to a call (about 20 ms); one arm makes
0, 3, 5 or 10 more. With 0 (A/A) a difference that is seen is a false alarm, of which a 95 %
interval may show 5 in 100. If scipy is installed, its signed-rank test on the same blocks is shown
beside perfkit's answer.

It can be stopped and started again: each comparison is written at once, and every condition gets
its next comparison in turn. Measure on a quiet machine, or with ``--load``, which starts so many
processes that never pause.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import perfkit
from perfkit.base.machine import stamp
from perfkit.measure import compare as compare_module

STEPS = 100
EFFECTS = (0, 3, 5, 10)
BUDGETS_S = (2, 5, 10)
# Starting processes takes so long that fewer seconds give no blocks.
AB_BUDGETS_S = (30,)


def steps(settings: Any) -> Iterator[int]:
    """Yields after each call's worth of steps."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(32, 64)
    while True:
        for _ in range(settings["n"] if isinstance(settings, dict) else settings.n):
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        yield 32


def by_compare(effect: int, budget_s: float, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    kept: list[Any] = []
    made = compare_module._comparison

    def keep(names: Any, slow: Any, fast: Any, **options: Any) -> Any:
        kept.extend((slow, fast))
        return made(names, slow, fast, **options)

    first, other = steps({"n": STEPS + effect}), steps({"n": STEPS})
    next(first), next(other)  # importing torch is no part of a call
    compare_module._comparison = keep
    try:
        found = perfkit.compare(
            lambda: next(first),
            lambda: next(other),
            names=("first", "other"),
            budget_s=budget_s,
            seed=seed,
        )
    finally:
        compare_module._comparison = made
    return found, kept[0], kept[1]


def by_ab(effect: int, budget_s: float, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    found = perfkit.ab(
        steps,
        {"n": STEPS + effect},
        {"n": STEPS},
        budget_s=budget_s,
        names=("first", "other"),
        seed=seed,
        say=False,
    )
    blocks = found.blocks
    return (
        found,
        np.array([[b.a_ms] for b in blocks]),
        np.array([[b.b_ms] for b in blocks]),
    )


def signed_rank(slow: np.ndarray, fast: np.ndarray) -> bool | None:
    """Whether scipy's test sees a difference in the blocks' log ratios; None without scipy."""
    try:
        from scipy.stats import wilcoxon
    except ImportError:
        return None
    own = np.log(slow).mean(axis=1) - np.log(fast).mean(axis=1)
    return bool(len(own) >= 2 and wilcoxon(own).pvalue < 0.05)


def one(tool: str, load: int, effect: int, budget_s: float, seed: int) -> dict[str, Any]:
    measure: Callable[..., Any] = {"compare": by_compare, "ab": by_ab}[tool]
    began = time.monotonic()
    found, slow, fast = measure(effect, budget_s, seed)
    return {
        "tool": tool,
        "load": load,
        "effect": effect,
        "budget_s": budget_s,
        "seed": seed,
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high if math.isfinite(found.high) else None,
        "signed_rank": signed_rank(slow, fast),
        "n_blocks": len(slow),
        "stopped": found.stopped,
        "detectable": found.detectable,
        "took_s": time.monotonic() - began,
        "call_ms": float(np.median(fast)),
    }


def seen(record: dict[str, Any]) -> bool:
    high = math.inf if record["high"] is None else record["high"]
    return not record["low"] <= 1 <= high


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| tool | load | budget | true | n | seen | scipy | blocks | ± half width | took |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = sorted({(r["tool"], r["load"], r["budget_s"], r["effect"]) for r in records})
    for key in keys:
        these = [r for r in records if (r["tool"], r["load"], r["budget_s"], r["effect"]) == key]
        halves = [math.sqrt(r["high"] / r["low"]) - 1 for r in these if r["high"] and r["low"]]
        tests = [r["signed_rank"] for r in these if r["signed_rank"] is not None]
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]} s | {key[3]} % | {len(these)} | "
            f"{sum(map(seen, these))} | {sum(tests) if tests else '–'} | "
            f"{statistics.median(r['n_blocks'] for r in these):.0f} | "
            f"{100 * statistics.median(halves) if halves else math.nan:.1f} % | "
            f"{statistics.median(r['took_s'] for r in these):.1f} s |"
        )
    return "\n".join(lines)


def never_pause() -> None:
    import torch

    torch.set_num_threads(1)
    x = torch.randn(200, 200)
    measuring = os.getppid()
    while os.getppid() == measuring:  # a daemon outlives a parent that is killed
        x = x @ x
        x = x / x.norm()


@contextmanager
def loaded(n: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=never_pause, daemon=True) for _ in range(n)]
    for process in processes:
        process.start()
    try:
        if processes:
            time.sleep(4)  # until they run
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0, help="stop after this long")
    parser.add_argument("--load", type=int, default=0, help="processes that never pause")
    parser.add_argument("--tool", choices=["compare", "ab"], default="compare")
    parser.add_argument("--most", type=int, default=60, help="comparisons of each condition")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()
    told = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {"records": []}
    records = told["records"]
    until = time.monotonic() + 60 * options.minutes
    budgets = BUDGETS_S if options.tool == "compare" else AB_BUDGETS_S
    conditions = [(effect, budget) for budget in budgets for effect in EFFECTS]

    def done(effect: int, budget: float) -> int:
        key = (options.tool, options.load, effect, budget)
        return sum((r["tool"], r["load"], r["effect"], r["budget_s"]) == key for r in records)

    with loaded(0 if options.table else options.load):
        while not options.table:
            effect, budget = min(conditions, key=lambda c: done(*c))
            n = done(effect, budget)
            if n >= options.most or time.monotonic() + budget > until:
                break
            records.append(one(options.tool, options.load, effect, budget, seed=n))
            told["provenance"] = stamp(command="tests/bench/aa_ab.py", device="cpu").to_dict()
            options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(records))


if __name__ == "__main__":
    main()
