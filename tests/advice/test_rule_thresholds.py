"""A rule fires a little above its threshold and is silent a little below it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from simulated_traces import SINGLE, Simulated, cpu_training, gpu_training

from perfkit.advice.case import Case
from perfkit.advice.diagnose import diagnose
from perfkit.measure.summary import summarize
from perfkit.trace import Line, LineSamples, breakdown, find_steps, load
from perfkit.trace.record.facts import Facts, OptimizerFacts
from perfkit.trace.record.lines import NO_LINES

V100 = {"name": "Tesla V100", "computeMajor": 7, "computeMinor": 0, "warpSize": 32}
CARD = {"name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0, "totalGlobalMem": 40 * 2**30}
ADAMW = Facts((OptimizerFacts("AdamW", 4, ("float32",), ("cpu",)),), 2, 2)

_MADE = Simulated | tuple[Simulated, dict[str, Any]]


def fired(made: _MADE) -> set[str]:
    """The rules that fire; beside a trace may stand its device and facts about the program."""
    sim, known = made if isinstance(made, tuple) else (made, {})
    whole = json.loads(sim.json())
    if "device" in known:
        whole["deviceProperties"] = [known["device"]]
    trace = load(json.dumps(whole).encode())
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    lines = known.get("lines", NO_LINES)
    case = Case(trace, steps, split, lines, known.get("facts", ADAMW))
    return {one.rule for one in diagnose(case, summarize(split.wall_ms), "simulated").findings}


def _steps(n: int = 4, length: float = 1_000) -> tuple[Simulated, list[float]]:
    sim = Simulated()
    for i in range(n):
        sim.step(i, i * length, length)
    return sim, [i * length for i in range(n)]


def update(n: int, whole_us: float, op: str = "aten::addcmul_") -> Simulated:
    """Steps of 1 ms that end with an update of ``n`` operators."""
    sim, begins = _steps()
    for at in begins:
        begin = at + 1_000 - whole_us
        sim.host("aten::conv2d", at, begin - at)
        sim.label("Optimizer.step#AdamW.step", begin, whole_us)
        for k in range(n):
            sim.host(op, begin + k * whole_us / n, 0.8 * whole_us / n)
    return sim


def zeroing(us: float) -> Simulated:
    sim, begins = _steps()
    for at in begins:
        sim.label("Optimizer.zero_grad#AdamW.zero_grad", at, us)
        sim.host("aten::zero_", at, us)
        sim.host("aten::conv2d", at + us, 1_000 - us)
    return sim


def many(n: int, each: float) -> Simulated:
    """Two steps of ``n`` operators of ``each`` µs, hardly anything between them."""
    sim, begins = _steps(2, n * (each + 0.2))
    for at in begins:
        for k in range(n):
            sim.host("aten::sub", at + k * (each + 0.2), each)
    return sim


def loop(n: int, each: float) -> Simulated:
    """In steps of 10 ms a loop of ``n`` rounds, each a select and an operator of ``each`` µs."""
    sim, begins = _steps(2, 10_000)
    for at in begins:
        sim.host("aten::conv2d", at + 10, 3_000)
        for i in range(n):
            sim.host("aten::select", at + 3_100 + i * 2 * each, 0.9 * each)
            sim.host("aten::fill_", at + 3_100 + (2 * i + 1) * each, 0.9 * each)
        begin = at + 3_110 + 2 * n * each
        sim.host("autograd::engine::evaluate_function: X", begin, at + 9_990 - begin)
    return sim


def launching(busy: float) -> Simulated:
    """A device that works for this share of each step, always a little after its launches."""
    sim, begins = _steps()
    for step in begins:
        for k in range(10):
            at = step + k * 100
            external = sim.host("aten::linear", at, 98)
            call = sim.call("cudaLaunchKernel", at + 1, 5, external)
            sim.device("gemm", at + 8, 100 * busy, call)
    return sim


def kernels(n: int, name: str = "softmax", **args: Any) -> Simulated:
    """A busy device; ``n`` of the 30 kernels of a step are called so."""
    sim = gpu_training(4, n_kernels=30, every=96)
    for i, event in enumerate(e for e in sim.events if e["cat"] == "kernel"):
        event["name"] = name if i % 30 < n else "softmax"
        event["args"] |= args if i % 30 < n else {}
    return sim


def products(n: int) -> Simulated:
    """``n`` of the 30 products of a step have a side that is no multiple of 8."""
    sim = gpu_training(4, n_kernels=30, every=96)
    for i, event in enumerate(e for e in sim.events if e["name"] == "aten::linear"):
        side, dtype = 1001 if i % 30 < n else 1008, "c10::BFloat16"
        event["name"] = "aten::mm"
        event["args"] |= {"Input Dims": [[64, side], [side, 128]], "Input type": [dtype, dtype]}
    return sim


def reserved(gib: float) -> _MADE:
    sim = gpu_training(4, n_kernels=30, every=96)
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 1}
    args |= {"Total Allocated": 2**30, "Total Reserved": int(gib * 2**30)}
    event = {"ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": 1_100.0, "s": "t"}
    sim.events.append(event | {"args": args})
    return sim, {"device": CARD}


def validating(us: float) -> Simulated:
    sim, begins = _steps(4, 10_000)
    for at in begins:
        sim.host("aten::conv2d", at, 2_000, **{"Sequence number": 1})
        sim.host("autograd::engine::evaluate_function: X", at + 2_000, 7_900 - us)
        for i in range(10):
            sim.host("aten::conv2d", at + 9_950 - us + i * us / 10, us / 10 - 1)
    return sim


def compiling(us: float) -> Simulated:
    sim, begins = _steps(4, 10_000)
    for at in begins:
        sim.host("entire_frame_compile", at + 10, us)
        sim.host("Torch-Compiled Region: 0/1", at + us + 20, 4_000)
        sim.host(
            "autograd::engine::evaluate_function: CompiledFunctionBackward",
            at + us + 4_030,
            5_900 - us,
        )
    return sim


def breaking(us: float) -> Simulated:
    """Two compiled regions with this much between them, in steps of 10 ms."""
    sim, begins = _steps(4, 10_000)
    for at in begins:
        sim.host("Torch-Compiled Region: 0/0", at + 10, 2_000)
        sim.host("Torch-Compiled Region: 1/0", at + 2_010 + us, 2_000)
        rest = at + 4_020 + us
        name = "autograd::engine::evaluate_function: CompiledFunctionBackward"
        sim.host(name, rest, at + 9_990 - rest)
    return sim


def computing(operators_us: float, facts: Facts) -> _MADE:
    """Steps of 1 ms with one operator; the rest is Python."""
    sim, begins = _steps()
    for at in begins:
        sim.host("aten::conv2d", at, operators_us)
    return sim, {"facts": facts}


def allocating(us: float) -> Simulated:
    sim = gpu_training(4, n_kernels=5, python=400)
    for event in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        sim.call("cudaMalloc", event["ts"] + 10, us)
    return sim


def between(us: float, n_gaps: int) -> Simulated:
    """Steps with 850 µs of operators, and as many gaps of ``us`` µs before each of them."""
    sim, at = Simulated(), 1_000.0
    for i in range(6):
        begin = at
        for _ in range(int(n_gaps)):
            sim.host("aten::mm", at + us, 850 / n_gaps)
            at += us + 850 / n_gaps
        sim.step(i, begin, at - begin)
    return sim


def longer(python: float) -> Simulated:
    """Steps whose gaps between operators are long enough to be one piece of work."""
    return cpu_training(6, python=python, forward=900, backward=1_500)


def waiting(us: float) -> Simulated:
    return cpu_training(6, wait=us, loader=SINGLE, forward=3_000, backward=5_000, optimizer=500)


def averaging(n: float) -> _MADE:
    """Of 40 samples in the forward pass, a third of the step, ``n`` are in a moving average."""
    sim = cpu_training(6)
    trace = load(sim.json())
    steps = find_steps(trace)
    forward = Case(trace, steps, breakdown(trace, steps)).in_forward
    at = int(forward.start[0] + forward.end[0]) // 2
    counts = {"model_ema.update(model)": int(n), "y = model(x)": 40 - int(n)}
    lines = tuple(
        Line("a.py", i, f"a.py:{i}", "step", text, count, count / 40, False, "__main__")
        for i, (text, count) in enumerate(counts.items())
    )
    taken = tuple((at, i) for i, line in enumerate(lines) for _ in range(line.n_samples))
    return sim, {"lines": LineSamples(lines, 40, taken=taken)}


def changed(**changes: Any) -> Facts:
    return dataclasses.replace(ADAMW, **changes)


DOUBLE = Facts((OptimizerFacts("AdamW", 4, ("float64",), ("cpu",)),), 2, 2)

#: rule, what is made of a figure, a figure below the threshold, one above it
BRACKETS: list[tuple[str, Callable[[float], _MADE], float, float]] = [
    ("optimizer-loop", lambda us: update(50, us), 85, 115),
    ("optimizer-loop", lambda n: update(int(n), 200), 36, 44),
    ("optimizer-share", lambda us: update(1, us, "aten::_fused_adamw_"), 215, 285),
    ("zero-grad", zeroing, 42, 58),
    ("tiny-ops", lambda n: many(int(n), 5), 450, 550),
    ("tiny-ops", lambda us: many(800, us), 11.5, 8.5),
    ("loop-indexing", lambda n: loop(int(n), 40), 9, 12),
    ("loop-indexing", lambda us: loop(12, us), 16, 25),
    ("loop-indexing", lambda us: loop(12, us), 130, 90),
    ("launch-bound", launching, 0.88, 0.82),
    ("tensor-cores-unused", lambda n: (kernels(int(n), "volta_sgemm"), {"device": V100}), 2, 4),
    ("small-kernels", lambda n: kernels(int(n), **{"blocks per SM": 0.1}), 2, 5),
    ("communication", lambda n: kernels(int(n), "ncclDevKernel_AllReduce_Sum_f32"), 2, 4),
    ("kernel-gaps", lambda us: gpu_training(4, n_kernels=30, kernel=us, every=100), 93, 87),
    ("matmul-alignment", lambda n: products(int(n)), 1, 2),
    ("memory-nearly-full", reserved, 35, 37),
    ("validation-in-step", validating, 1_300, 1_700),
    ("recompiles", compiling, 420, 600),
    ("graph-breaks", breaking, 420, 600),
    ("gc-pauses", lambda ms: (cpu_training(6), {"facts": Facts(gc_pauses_ms=(ms,))}), 0.2, 0.35),
    ("float64", lambda us: computing(us, DOUBLE), 130, 170),
    ("too-many-threads", lambda us: computing(us, changed(n_threads=8, n_cores=2)), 130, 170),
    ("one-thread", lambda us: computing(us, changed(n_threads=1, n_cores=4)), 450, 550),
    (
        "pageable-copy",
        lambda us: gpu_training(6, n_kernels=5, copy="HtoD (Pageable -> Device)", copy_call=us),
        20,
        40,
    ),
    ("device-allocations", allocating, 35, 60),
    ("held-device", lambda us: gpu_training(4, n_kernels=30, kernel=us, every=us + 60), 700, 420),
    ("small-calls", lambda us: between(us / 5, n_gaps=5), 120, 185),
    ("small-calls", lambda us: between(us, n_gaps=3), 330, 270),
    ("small-calls", lambda n_gaps: between(250, n_gaps), 1, 2),
    ("host-python", lambda us: between(us, n_gaps=3), 270, 330),
    ("host-python", longer, 350, 520),
    ("beside-the-model", averaging, 4, 8),
    ("dataloader-no-workers", waiting, 690, 1_020),
    ("dataloader-no-workers", lambda us: cpu_training(6, wait=us, loader=SINGLE), 250, 350),
]


@pytest.mark.parametrize(
    ("rule", "make", "below", "above"),
    BRACKETS,
    ids=[f"{rule}-{below:g}-{above:g}" for rule, _, below, above in BRACKETS],
)
def test_a_rule_begins_at_its_threshold(
    rule: str, make: Callable[[float], _MADE], below: float, above: float
) -> None:
    assert rule not in fired(make(below))
    assert rule in fired(make(above))
