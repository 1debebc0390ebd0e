"""Which step an activity of the device belongs to, and which call is around another."""

from __future__ import annotations

import numpy as np
from simulated_traces import Simulated

from perfkit.trace import load
from perfkit.trace.read.columns import Category
from perfkit.trace.read.events import device_rows, enclosing
from perfkit.trace.read.steps import find_steps


def test_an_activity_belongs_to_the_step_that_launched_it() -> None:
    sim = Simulated()
    sim.device("before", 1_500, 10, sim.call("cudaLaunchKernel", 500, 5))  # the first row
    sim.step(0, 1_000, 1_000)
    sim.device("late", 2_100, 10, sim.call("cudaLaunchKernel", 1_900, 5))
    sim.step(1, 2_000, 1_000)
    sim.device("unknown", 2_500, 10, 77)  # no such call: it counts where it starts
    trace = load(sim.json())
    rows, step = device_rows(trace, find_steps(trace), Category.KERNEL)
    names = [trace.names[i] for i in trace.name_id[rows]]
    assert dict(zip(names, step.tolist(), strict=True)) == {"late": 0, "unknown": 1}


def test_the_innermost_call_around_another_one_is_found() -> None:
    sim = Simulated()
    outer, inner, alone = (0, 100), (10, 80), (200, 10)
    for name, (start, dur) in (("outer", outer), ("inner", inner), ("alone", alone)):
        sim.host(name, start, dur)
    # the second is in the first, and the fourth in the third
    for start, dur in ((-20, 10), (-15, 5), (20, 30), (30, 5), (95, 3), (150, 5)):
        sim.call("asked", start, dur)
    trace = load(sim.json())
    by_name = {name: np.flatnonzero(trace.name_id == i) for i, name in enumerate(trace.names)}
    candidates = np.sort(np.concatenate([by_name[name] for name in ("outer", "inner", "alone")]))
    found = enclosing(trace, candidates, by_name["asked"])
    said = [trace.names[trace.name_id[row]] if row >= 0 else "" for row in found]
    assert said == ["", "", "inner", "inner", "outer", ""]
