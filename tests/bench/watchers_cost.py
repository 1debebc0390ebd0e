"""What it costs to have a whole run watched: perfkit beside TraceML and gpuprof, on one loop.

Each run is a process of its own: a loop of 10 ms steps that times itself (the median of the steps
after the first fifty), bare or watched. Rounds run all arms, forwards and backwards in turn; the
ratio to the bare loop of the same round, with a 95 % interval over rounds. Peers that are not
installed are left out, and the result says so. Run it as

    python tests/bench/watchers_cost.py build/bench/watchers.json --rounds 6
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.base.machine import stamp
from perfkit.measure.paired import ratio_interval

_HERE = Path(__file__).resolve().parent
_PEERS = {"TraceML": "traceml_ai", "gpuprof": "gpuprof"}
# the same products in each run: what calibrates itself would hide what it is to show
_CHILD = """
import contextlib, json, statistics, sys, time
import torch
from phases_cost import Loop

arm, n, products = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
loop = Loop(10.0) if not products else Loop.__new__(Loop)
if products:
    Loop.prepare(loop)
    loop.n_products = products
times = []
around = lambda model: contextlib.nullcontext()
whole = contextlib.nullcontext()
steps = range(n)
if arm == "TraceML":
    import traceml_ai
    traceml_ai.init(mode="auto")
    around = traceml_ai.trace_step
elif arm == "gpuprof":
    import gpuprof
    whole = gpuprof.profile("bench", summary=False)
elif arm == "perfkit.watch":
    import perfkit
    steps = perfkit.watch(steps)
with whole:
    for _ in steps:
        began = time.perf_counter()
        with around(loop.model):
            loop.step()
        times.append(1e3 * (time.perf_counter() - began))
print("FOUND", json.dumps([statistics.median(times[50:]), loop.n_products]))
"""


def one(arm: str, n: int, products: int) -> tuple[float, int]:
    """Median step of one run in ms, from its own timer, and its number of products a step."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "loop.py"
        program.write_text(_CHILD)
        before = [sys.executable]
        if arm == "perfkit run":
            before += ["-m", "perfkit", "run", "--quiet"]
        elif arm == "TraceML":
            before += ["-m", "traceml_ai.launcher.cli", "run"]
        after = [arm, str(n), str(products)]
        if arm == "TraceML":
            after = ["--args", *after]
        paths = [str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [*before, str(program), *after],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
    for line in done.stdout.splitlines():
        if "FOUND" in line:
            ms, used = json.loads(line.partition("FOUND")[2])
            return float(ms), int(used)
    raise SystemExit(f"{arm} did not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="build/bench/watchers.json", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    missing = [peer for peer, module in _PEERS.items() if find_spec(module) is None]
    arms = ["bare", "perfkit.watch", "perfkit run", *(p for p in _PEERS if p not in missing)]
    _, products = one("bare", 60, 0)
    found: list[dict[str, float]] = []
    for number in range(options.rounds):
        order = arms if number % 2 else arms[::-1]
        found.append({arm: one(arm, options.steps, products)[0] for arm in order})
    bare = np.array([[one_round["bare"]] for one_round in found])
    rows: list[dict[str, Any]] = []
    for arm in arms[1:]:
        mine = np.array([[one_round[arm]] for one_round in found])
        ratio = ratio_interval(mine, bare)
        extra_ms = float(np.median(mine - bare))
        rows.append(
            {
                "name": arm,
                "ratio": ratio.ratio,
                "low": ratio.low,
                "high": ratio.high,
                "extra_ms": extra_ms,
            }
        )
    result = {
        "what": "median step of a watched loop over that of the bare one, each a process",
        "bare_step_ms": float(np.median(bare)),
        "rounds": options.rounds,
        "steps": options.steps,
        "rows": rows,
        "not_measured": dict.fromkeys(missing, "not installed"),
        "provenance": stamp(command="python tests/bench/watchers_cost.py").to_dict(),
    }
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"On a step of {result['bare_step_ms']:.1f} ms, {options.rounds} rounds, 95 % intervals")
    for row in rows:
        ratio, low, high = (100 * (row[k] - 1) for k in ("ratio", "low", "high"))
        print(
            f"{row['name']:16} {ratio:+6.2f} % ({low:+.2f} … {high:+.2f}), {row['extra_ms']:.3f} ms"
        )
    for peer in missing:
        print(f"{peer:16} not measured: not installed")
    print(f"written to {options.path}")


if __name__ == "__main__":
    main()
