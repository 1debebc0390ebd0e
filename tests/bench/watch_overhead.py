"""What watching costs a training loop with 10 ms steps: perfkit.watch beside its peers.

One run, one real IPython kernel whose messages are read and dropped (no browser draws, so this is
the kernel's share alone). Every arm is a loop that stays alive and whose clock stands still while
others run. A round is 100 steps of every arm, in turns of 10 steps, forwards and backwards through
the arms; each arm is compared with the bare loop of the same rounds. Ratios with 95 % intervals,
resampled over rounds. Run it as

    python tests/bench/watch_overhead.py build/bench/watch.json
"""

from __future__ import annotations

import argparse
import json
import queue
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
from jupyter_client.manager import KernelManager

from perfkit.base.machine import stamp
from perfkit.measure.paired import ratio_interval

_MARK = "perfkit-bench:"
# 10 turns of 10 steps: a round is a second of each arm, a whole number of everybody's updates.
_TURNS, _STEPS = 10, 10

# Runs in the kernel. Each maker returns an endless iterator that yields once a step.
_ARMS = '''
import itertools, json, time, warnings
import torch

torch.set_num_threads(1)
batch = torch.randn(32, 256)

def make_work(goal_ms):
    """A callable of about goal_ms of CPU work in torch."""
    a = torch.randn(192, 192)
    def work(n):
        for _ in range(n):
            torch.mm(a, a)
    n = 8
    while True:
        times = []
        for _ in range(7):
            t = time.thread_time(); work(n); times.append(time.thread_time() - t)
        took_ms = 1e3 * sorted(times)[3]
        if took_ms >= 0.8 * goal_ms:
            break
        n *= 2
    n = max(1, round(n * goal_ms / took_ms))
    return lambda: work(n)

class Clock:
    """Runs only while its arm does, so that each arm keeps its rate of updates."""

    def __init__(self):
        self.gone_ns = 0
        self.left_ns = time.perf_counter_ns()
        self.leaves = lambda: None  # called as its arm's turn ends
        self.comes = lambda gone_ns: None  # called as the next one begins
    def __call__(self):
        return (self.left_ns or time.perf_counter_ns()) - self.gone_ns
    def leave(self):
        self.leaves()
        self.left_ns = time.perf_counter_ns()
    def come_back(self):
        gone_ns = time.perf_counter_ns() - self.left_ns
        self.gone_ns += gone_ns
        self.left_ns = 0
        self.comes(gone_ns)
    def s(self):
        return self() / 1e9

work = make_work(10.0)
sent = {}
own = []  # of each update of perfkit.watch: its wall time, its thread's CPU time, parts of it; ns

class Parts:
    """CPU time of this thread in the parts of one update; what a part calls is not in it."""

    def __init__(self):
        self.spent = {}
        self.inner = 0
    def of(self, owner, name, key):
        call = getattr(owner, name)
        def timed(*args, **kwargs):
            outer, self.inner = self.inner, 0
            began = time.thread_time_ns()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.thread_time_ns() - began
                self.spent[key] = self.spent.get(key, 0) + took - self.inner
                self.inner = outer + took
        setattr(owner, name, timed)
    def take(self):
        spent, self.spent = self.spent, {}
        return spent

def bare(clock):
    yield from itertools.repeat(batch)

def watch(clock):
    import perfkit
    run = perfkit.watch(itertools.repeat(batch))
    tracker = run.tracker
    # It reads the clock that users have (one in Python would cost each step three more calls), so
    # what it has noted comes along.
    def comes(gone_ns):
        for one, names in (
            (run, ("_asked_ns", "_came_ns", "_began_ns")),
            (tracker, ("_began_ns", "_due_ns", "_epoch_began_ns", "_marked_ns")),
            (tracker.phases, ("_since",)),
        ):
            for name in names:
                setattr(one, name, getattr(one, name) + gone_ns)
    clock.comes = comes
    update = tracker._update
    parts = Parts()
    plot = run._observer
    import perfkit.widgets.live_plot as live
    import perfkit.widgets.watch as shows
    parts.of(tracker, "_read_memory", "memory")
    parts.of(type(tracker.meter), "points", "points")
    parts.of(tracker.sampler, "learns", "sampler")
    parts.of(tracker, "_look_at_machine", "machine")
    parts.of(plot, "update", "curve")
    parts.of(shows, "status", "words")
    # to hand it over: it is made in the thread IOPub
    parts.of(live, "send_in_turn", "message")
    def timed(now_ns):
        parts.take()
        parts.inner = 0
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        update(now_ns)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        own.append((wall, cpu, {**parts.take(), "rest": cpu - parts.inner}))
    tracker._update = timed
    def leaves():  # else the sampler looks in the turn of another arm
        tracker.sampler._step = 0, 0
    clock.leaves = leaves
    sent["perfkit.watch"] = lambda: tracker._n_updates
    globals()["run"] = run
    yield from run

def label(clock, hz=10):
    """What tqdm.notebook does: a text and a progress bar, ten times a second."""
    import ipywidgets
    from IPython.display import display
    text, bar = ipywidgets.Label(), ipywidgets.IntProgress(max=100_000)
    display(ipywidgets.HBox([text, bar]))
    count = [0]
    sent["label and progress bar, 10 Hz"] = lambda: count[0]
    due = clock.s() + 1 / hz
    began = last = clock.s()
    for n in itertools.count(1):
        yield batch
        now = clock.s()
        if now >= due:
            text.value, bar.value = f"{n} [{now - began:.1f} s, {1e3 * (now - last):.1f} ms]", n
            count[0] += 1
            due = clock.s() + 1 / hz
        last = now

def plotly(clock, hz=5):
    import plotly.graph_objects as go
    from IPython.display import display
    figure = go.FigureWidget([go.Scatter(name="step"), go.Scatter(name="wait")])
    display(figure)
    count = [0]
    sent["plotly FigureWidget, 5 Hz"] = lambda: count[0]
    xs, steps, waits = [], [], []
    last = clock.s(); due = last + 1 / hz
    for n in itertools.count(1):
        yield batch
        now = clock.s()
        xs.append(n); steps.append(1e3 * (now - last)); waits.append(0.0)
        if now >= due:
            with figure.batch_update():
                for trace, y in zip(figure.data, (steps, waits)):
                    trace.x, trace.y = xs[-500:], y[-500:]
            count[0] += 1
            due = clock.s() + 1 / hz
        last = clock.s()

def livelossplot(clock, every=50):
    from livelossplot import PlotLosses
    from livelossplot.outputs import MatplotlibPlot
    plot = PlotLosses(outputs=[MatplotlibPlot()])
    count = [0]
    sent["livelossplot (matplotlib inline), every 50 steps"] = lambda: count[0]
    last = clock.s()
    for n in itertools.count(1):
        yield batch
        now = clock.s()
        if n % every == 0:
            plot.update({"step": 1e3 * (now - last), "val_step": 0.0})
            plot.send()
            count[0] += 1
        last = clock.s()

makers = {
    "bare loop": bare,
    "perfkit.watch": watch,
    "label and progress bar, 10 Hz": label,
    "plotly FigureWidget, 5 Hz": plotly,
    "livelossplot (matplotlib inline), every 50 steps": livelossplot,
}

def turn(arm, steps):
    """Wall and CPU time of some steps in ns, and how long each waited for its batch."""
    clock, loop = arm
    clock.come_back()
    asked = []
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(steps):
        began = time.perf_counter_ns()
        next(loop)
        asked.append(time.perf_counter_ns() - began)
        work()
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    clock.leave()
    return wall, cpu, asked

arms, broken = {}, {}
for name, make in list(makers.items())[:N_ARMS]:
    clock = Clock()
    try:
        arm = clock, make(clock)
        turn(arm, 150)  # beyond the watch's quick first updates
        arms[name] = arm
    except Exception as error:
        broken[name] = f"{type(error).__name__}: {error}"
'''

_MEASURE = """
import os
import threading

def threads_ns():
    # CPU time of all other threads, by name (Linux; proc_pid_schedstat)
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().native_id
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            folder = "/proc/self/task/" + thread
            with open(folder + "/comm") as file:
                name = names.get(int(thread), file.read().strip())
            with open(folder + "/schedstat") as file:
                spent = int(file.read().split()[0])
        except OSError:
            continue
        if int(thread) != main:
            found[name] = found.get(name, 0) + spent
    return found

threads = threads_ns()
before = {name: count() for name, count in sent.items()}
n_first = len(own)
rounds = []
nexts = {name: [] for name in arms}  # what next() took, in each step
end = time.monotonic() + BUDGET_S
while time.monotonic() < end or len(rounds) < 4:
    sums = {name: [0, 0] for name in arms}
    for visit in range(TURNS):
        for name in arms if visit % 2 else reversed(arms):
            wall, cpu, asked = turn(arms[name], STEPS)
            nexts[name] += asked
            sums[name][0] += wall / (TURNS * STEPS) / 1e6
            sums[name][1] += cpu / (TURNS * STEPS) / 1e6
    rounds.append(sums)
steps = TURNS * STEPS * len(rounds)
watched_s = sum(r["perfkit.watch"][0] for r in rounds) * TURNS * STEPS / 1e3
threads = {name: (ns - threads.get(name, 0)) / 1e3 for name, ns in threads_ns().items()}
updates = {name: (count() - before[name]) / steps * 100 for name, count in sent.items()}

def usual_us(found):
    # without the hundredth that took longest: updates, and where another program ran
    found = sorted(found)[: -len(found) // 100]
    return {"median": found[len(found) // 2] / 1e3, "mean": sum(found) / len(found) / 1e3}

print("MARK" + json.dumps({"rounds": rounds, "updates": updates, "broken": broken,
                           "next_us": {name: usual_us(found) for name, found in nexts.items()},
                           "threads_us": threads, "watched_s": watched_s,
                           "own": {"first_ms": [wall / 1e6 for wall, _, _ in own[:n_first]],
                                   "wall_ms": [wall / 1e6 for wall, _, _ in own[n_first:]],
                                   "cpu_ms": [cpu / 1e6 for _, cpu, _ in own[n_first:]],
                                   "parts_ns": [parts for _, _, parts in own[n_first:]],
                                   "share": run.summary.update_share}}))
"""

# The cost of a step without any update: next() of the watched loader alone. After other work, what
# it needs has left the nearest caches, as in a real step.
_PER_STEP = """
from perfkit.measure.run import WatchedRun

a = torch.randn(192, 192)
NOTHING, WORK = 0, 8

def block_us(loader, products):
    iterator = iter(loader)
    found = []
    for n in range(50):
        for _ in range(products):
            torch.mm(a, a)
        began = time.perf_counter_ns()
        next(iterator)
        found.append((time.perf_counter_ns() - began) / 1e3)
    return sorted(found[10:])[len(found[10:]) // 2]

def per_step(products):
    found = []
    for _ in range(60):
        plain = block_us(itertools.repeat(batch), products)
        # not shown, and no update within so few steps
        found.append(block_us(WatchedRun(itertools.repeat(batch), hz=0.01), products) - plain)
    return found

print("MARK" + json.dumps({"again": per_step(NOTHING), "after_work": per_step(WORK)}))
"""


def run_cell(client: Any, code: str, timeout_s: float) -> dict[str, Any]:
    """Run a cell, drop what it displays, return what it printed behind the mark."""
    asked = client.execute(textwrap.dedent(code).replace("MARK", _MARK))
    found: dict[str, Any] = {}
    printed = ""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            message = client.get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.1))
        except queue.Empty:
            raise SystemExit(f"the kernel did not answer within {timeout_s:.0f} s") from None
        if message["parent_header"].get("msg_id") != asked:
            continue
        content = message["content"]
        if message["msg_type"] == "error":
            raise SystemExit("\n".join(content["traceback"]))
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            printed += content["text"]
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            break
    for line in printed.splitlines():
        if line.startswith(_MARK):
            found = json.loads(line.removeprefix(_MARK))
    return found


def measure(budget_s: float, *, alone: bool = False) -> dict[str, Any]:
    """Start a kernel, measure, and stop it."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        run_cell(client, _ARMS.replace("N_ARMS", "2" if alone else "None"), 90)
        code = _MEASURE.replace("BUDGET_S", repr(budget_s))
        code = code.replace("TURNS", str(_TURNS)).replace("STEPS", str(_STEPS))
        seen = run_cell(client, code, 3 * budget_s + 120)
        seen["per_step"] = run_cell(client, _PER_STEP, 60)
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="build/bench/watch.json", type=Path)
    parser.add_argument("--budget-s", type=float, default=80.0, help="seconds for the rounds")
    parser.add_argument(
        "--alone", action="store_true", help="without the peers: a narrower interval in that time"
    )
    options = parser.parse_args()
    seen = measure(options.budget_s, alone=options.alone)
    rounds = seen["rounds"]
    times = {name: np.array([r[name] for r in rounds]) for name in rounds[0]}
    bare = times.pop("bare loop")
    rows = []
    for name, arm in times.items():
        wall = ratio_interval(arm[:, :1], bare[:, :1])
        cpu = ratio_interval(arm[:, 1:], bare[:, 1:])
        rows.append(
            {
                "name": name,
                "wall_ratio": wall.ratio, "wall_low": wall.low, "wall_high": wall.high,
                "cpu_ratio": cpu.ratio, "cpu_low": cpu.low, "cpu_high": cpu.high,
                "updates_per_100_steps": seen["updates"].get(name),
            }
        )  # fmt: skip
    result = {
        "what": "a step with the display over a step of the bare loop, one torch thread, "
        "kernel without a browser",
        "bare_step_ms": float(np.median(bare[:, 0])),
        "rounds": len(rounds),
        "steps_per_arm": len(rounds) * _TURNS * _STEPS,
        "rows": rows,
        "not_measured": seen["broken"],
        "next_us": seen["next_us"],
        "watch_cost_per_step_us": {
            "what": "next() of a watched loader over next() of a bare one, without any update",
            "again and again": spread(seen["per_step"]["again"]),
            "after other work": spread(seen["per_step"]["after_work"]),
        },
        "watch_updates": of_updates(seen),
        "provenance": stamp(command="python tests/bench/watch_overhead.py").to_dict(),
    }
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(json.dumps(result, indent=2) + "\n")
    show(result)
    print(json.dumps(brief(result)))
    print(f"written to {options.path}")


def spread(values: list[float]) -> dict[str, float]:
    """Median, and where 95 % of them lie."""
    low, median, high = np.percentile(values, [2.5, 50, 97.5])
    return {"median": float(median), "low": float(low), "high": float(high)}


def of_updates(seen: dict[str, Any]) -> dict[str, Any]:
    """What one update takes in the loop's thread, by part, and what the kernel's other threads do.

    The quick first ones are apart: they import, and run code for the first time.
    """
    own = seen["own"]
    names = sorted({name for parts in own["parts_ns"] for name in parts})
    n_shown = max(len(own["wall_ms"]), 1)
    return {
        "n": len(own["wall_ms"]),
        "wall_ms": spread(own["wall_ms"]),
        "cpu_ms": spread(own["cpu_ms"]),
        "cpu_mean_ms": float(np.mean(own["cpu_ms"])),
        "parts_cpu_us": {
            name: spread([parts.get(name, 0) / 1e3 for parts in own["parts_ns"]]) for name in names
        },
        "n_first": len(own["first_ms"]),
        "first_ms": sum(own["first_ms"]),
        "share": own["share"],
        "other_threads_us_per_update": {
            name: us / n_shown
            for name, us in seen["threads_us"].items()
            if "slow-steps" not in name
        },
        "sampler_us_per_s": sum(
            us for name, us in seen["threads_us"].items() if "slow-steps" in name
        )
        / max(seen["watched_s"], 1e-9),
    }


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """What watch costs, in one line of JSON."""
    (row,) = (row for row in result["rows"] if row["name"].startswith("perfkit.watch"))
    updates = result["watch_updates"]
    return {
        "step_ms": round(result["bare_step_ms"], 2),
        "rounds": result["rounds"],
        **{key: round(row[key], 4) for key in row if key.startswith(("wall_", "cpu_"))},
        "update_cpu_ms": {key: round(value, 3) for key, value in updates["cpu_ms"].items()},
        "update_wall_ms": {key: round(value, 3) for key, value in updates["wall_ms"].items()},
        "update_parts_cpu_us": {
            name: round(us["median"], 1) for name, us in updates["parts_cpu_us"].items()
        },
        "n_updates": updates["n"],
        "step_us": {
            name: round(us["median"], 1)
            for name, us in result["watch_cost_per_step_us"].items()
            if name != "what"
        },
        "other_threads_us_per_update": {
            name: round(us, 1) for name, us in updates["other_threads_us_per_update"].items()
        },
        "sampler_us_per_s": round(updates["sampler_us_per_s"], 1),
        "next_us": {
            name: round(us["mean"], 1)
            for name, us in result["next_us"].items()
            if name in ("bare loop", row["name"])
        },
    }


def show(result: dict[str, Any]) -> None:
    """One table."""

    def percent(row: dict[str, Any], kind: str) -> str:
        ratio, low, high = (100 * (row[f"{kind}_{k}"] - 1) for k in ("ratio", "low", "high"))
        return f"{ratio:+6.1f} % ({low:+.1f} … {high:+.1f})"

    print(
        f"Overhead on a step of {result['bare_step_ms']:.1f} ms, {result['rounds']} rounds of "
        f"{result['steps_per_arm'] // result['rounds']} steps an arm, 95 % intervals"
    )
    print(f"{'':50}{'wall time':>26}{'CPU time of the kernel':>28}{'updates/100 steps':>19}")
    for row in result["rows"]:
        print(
            f"{row['name']:50}{percent(row, 'wall'):>26}{percent(row, 'cpu'):>28}"
            f"{row['updates_per_100_steps']:19.1f}"
        )
    for name, reason in result["not_measured"].items():
        print(f"{name:50} not measured: {reason}")
    for name, us in result["next_us"].items():
        print(f"next() in these loops: {name}: mean {us['mean']:.1f} µs, median {us['median']:.1f}")
    for when, us in result["watch_cost_per_step_us"].items():
        if when != "what":
            print(
                f"perfkit.watch without updates, {when}: {us['median']:.1f} µs a step "
                f"({us['low']:.1f} … {us['high']:.1f} in 95 % of the blocks)"
            )
    own = result["watch_updates"]
    wall, cpu = own["wall_ms"], own["cpu_ms"]
    print(
        f"an update of perfkit.watch, {own['n']} of them after the first {own['n_first']}: median "
        f"{wall['median']:.2f} ms ({wall['low']:.2f} … {wall['high']:.2f} in 95 % of them), of it "
        f"{cpu['median']:.2f} ms on a core ({cpu['low']:.2f} … {cpu['high']:.2f}); the first "
        f"{own['n_first']} took {own['first_ms']:.1f} ms together"
    )
    for name, us in own["parts_cpu_us"].items():
        print(f"    {name:10}{us['median']:7.0f} µs ({us['low']:.0f} … {us['high']:.0f})")
    for name, us in own["other_threads_us_per_update"].items():
        print(f"    in the thread {name}: {us:.0f} µs")
    print(
        f"the sampler of slow steps, in its own thread: {own['sampler_us_per_s']:.0f} µs a second"
    )
    print(f"perfkit.watch by its own account: {100 * own['share']:.2f} % of the loop")


if __name__ == "__main__":
    main()
