"""A rule fires a little above its threshold and is silent a little below it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from simulated_traces import SINGLE, WORKERS, Simulated, cpu_training, gpu_training

from perfkit.advice import Diagnosis, Finding
from perfkit.advice.case import Case
from perfkit.advice.diagnose import diagnose
from perfkit.base.compiling import CompileReport, Recompilation
from perfkit.base.machine.dataloader_stats import DataLoaderStats, ProcessUse
from perfkit.measure.summary import summarize
from perfkit.trace import Line, LineSamples, breakdown, find_steps, load
from perfkit.trace.read.events import shows_training
from perfkit.trace.record.facts import Facts, OptimizerFacts
from perfkit.trace.record.lines import NO_LINES

V100 = {"name": "Tesla V100", "computeMajor": 7, "computeMinor": 0, "warpSize": 32}
A100 = {"name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0, "warpSize": 32}
CARD = {"name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0, "totalGlobalMem": 40 * 2**30}
ADAMW = Facts((OptimizerFacts("AdamW", 4, ("float32",)),), 2, 2)

_MADE = Simulated | tuple[Simulated, dict[str, Any]]


def diagnosed(made: _MADE) -> Diagnosis:
    """What is found; beside a trace may stand its device and facts about the program."""
    sim, known = made if isinstance(made, tuple) else (made, {})
    whole = json.loads(sim.json())
    if "device" in known:
        whole["deviceProperties"] = [known["device"]]
    trace = load(json.dumps(whole).encode())
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    lines = known.get("lines", NO_LINES)
    is_file = known.get("is_file", False)
    case = Case(trace, steps, split, lines, known.get("facts", ADAMW), is_file=is_file)
    return diagnose(case, summarize(split.wall_ms), "simulated")


def fired(made: _MADE) -> set[str]:
    return {one.rule for one in diagnosed(made).findings}


def finding(made: _MADE, rule: str) -> Finding:
    (found,) = (one for one in diagnosed(made).findings if one.rule == rule)
    return found


def said(made: _MADE, rule: str) -> str:
    """All that a finding tells."""
    found = finding(made, rule)
    return "\n".join((found.title, *found.evidence, found.what_to_do))


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


def many(n: int, each: float) -> Simulated:
    """Two steps of ``n`` operators of ``each`` µs, hardly anything between them."""
    sim, begins = _steps(2, n * (each + 0.2))
    for at in begins:
        for k in range(n):
            sim.host("aten::sub", at + k * (each + 0.2), each)
    return sim


def half_tiny(share: float) -> Simulated:
    """Steps of 20 ms, of which 2,500 operators of 8 µs at most take this share."""
    sim, begins = _steps(2, 20_000)
    each = 20_000 * share / 2_500
    for at in begins:
        for k in range(2_500):
            sim.host("aten::sub", at + k * each, each - 0.01)
        rest = at + 2_500 * each
        sim.host("aten::conv2d", rest, at + 20_000 - rest)
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


def products_on_a_device_that_is_busy(share: float) -> Simulated:
    """All products have a side that is no multiple of 8; the device idles between them."""
    sim = products(30)
    for event in (e for e in sim.events if e["cat"] == "kernel"):
        event["dur"] = 96 * share
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


def mixed(n_short: float) -> Simulated:
    """Steps with one gap of 320 µs and so many of 40 µs."""
    sim, begins = _steps(4, 320 + 90 * n_short)
    for at in begins:
        for k in range(int(n_short)):
            sim.host("aten::mm", at + 320 + 90 * k, 50)
    return sim


def longer(python: float) -> Simulated:
    """Steps whose gaps between operators are long enough to be one piece of work."""
    return cpu_training(6, python=python, forward=900, backward=1_500)


def waiting(us: float) -> Simulated:
    return cpu_training(6, wait=us, loader=SINGLE, forward=3_000, backward=5_000, optimizer=500)


def averaging(n: float, of: int = 40) -> _MADE:
    """Of so many samples in the forward pass, a third of the step, ``n`` are in an average."""
    sim = cpu_training(6)
    trace = load(sim.json())
    steps = find_steps(trace)
    forward = Case(trace, steps, breakdown(trace, steps)).in_forward
    at = int(forward.start[0] + forward.end[0]) // 2
    counts = {"model_ema.update(model)": int(n), "y = model(x)": of - int(n)}
    lines = tuple(
        Line("a.py", i, f"a.py:{i}", "step", text, count, count / of, False, "__main__")
        for i, (text, count) in enumerate(counts.items())
    )
    taken = tuple((at, i) for i, line in enumerate(lines) for _ in range(line.n_samples))
    return sim, {"lines": LineSamples(lines, of, taken=taken)}


def sampled(n: float, *, of: int = 10, **line: Any) -> LineSamples:
    """``n`` of the line samples fall on one line, the others on none that is known."""
    known = {"text": "x", "in_data_wait": False, "library": "__main__", "library_function": ""}
    known |= line
    one = Line(
        "data.py", 9, "data.py:9", "f", known["text"], int(n), int(n) / of,
        known["in_data_wait"], known["library"], known["library_function"],
    )  # fmt: skip
    return LineSamples((one,), of)


def images(n: float, of: int = 10, called: str = "PIL.ImageFile.load") -> _MADE:
    """In a wait of half the step, this many samples are in a function of PIL."""
    sim = cpu_training(6, wait=870, loader=SINGLE)
    return sim, {
        "lines": sampled(n, of=of, in_data_wait=True, library="PIL", library_function=called)
    }


def working(us: float, name: str, card: dict[str, Any], **args: Any) -> _MADE:
    """A device that works for ``us`` of each 100 µs, in kernels of this name."""
    sim = gpu_training(4, n_kernels=30, kernel=us, every=100)
    for event in [e for e in sim.events if e["cat"] == "kernel"]:
        event["name"] = name
        event["args"] |= args
    return sim, {"device": card}


FLOATS = Facts((OptimizerFacts("SGD", 4, ("float32",)),))
TF32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckcrs_nchw"
HALF = "vectorized_elementwise_kernel<BFloat16>"


def dense(us: float) -> _MADE:
    """A device that works for ``us`` of each 100 µs, in products in TF32."""
    sim, known = working(us, TF32, A100)  # type: ignore[misc]
    return sim, known | {"facts": FLOATS}


def narrow(n: int, name: str = "softmax", dense: int = 10) -> _MADE:
    """Of 30 kernels ``dense`` are products in TF32, ``n`` are called so."""
    sim = gpu_training(4, n_kernels=30, every=96)
    for i, event in enumerate(e for e in sim.events if e["cat"] == "kernel"):
        event["name"] = TF32 if i % 30 < dense else name if i % 30 < dense + n else "softmax"
    return sim, {"device": A100, "facts": FLOATS}


def doubles(n: int) -> Simulated:
    return kernels(n, "cutlass_80_tensorop_d884gemm_64x64")


def exchanging(us: float) -> Simulated:
    """Steps of 1 ms; for so long nothing but a collective on the host runs."""
    sim, begins = _steps(6)
    for at in begins:
        sim.host("aten::mm", at, 1_000 - us)
        sim.label("gloo:all_reduce", at + 1_000 - us, us, tid=101)
    return sim


def long_operators(us: float, n_threads: int = 1) -> _MADE:
    """Steps of operators of this length and of nothing else."""
    sim, begins = _steps(2, 10 * us)
    for at in begins:
        for k in range(10):
            sim.host("aten::conv2d", at + k * us, us)
    return sim, {"facts": changed(n_threads=n_threads, n_cores=4 if n_threads == 1 else 2)}


def first_steps(us: float) -> Simulated:
    """One step, whose first convolution takes so long; the others take 80 µs."""
    sim = Simulated()
    sim.step(0, 0, 30_000)
    for i in range(10):
        at = 0 if i == 0 else us + i * 90
        op = sim.host("aten::conv2d", at, us if i == 0 else 80)
        sim.device("gemm", at + 60, 30, sim.call("cudaLaunchKernel", at + 50, 5, op))
    return sim


def syncing(us: float) -> Simulated:
    return gpu_training(6, n_kernels=5, item=True, restart=us)


def allocating_in(n: float) -> Simulated:
    """``n`` of four steps ask the driver for memory."""
    sim = gpu_training(4, n_kernels=5, python=400)
    marks = [e for e in sim.events if e["name"].startswith("ProfilerStep")]
    for event in marks[: int(n)]:
        sim.call("cudaMalloc", event["ts"] + 10, 300)
    return sim


def changed(**changes: Any) -> Facts:
    return dataclasses.replace(ADAMW, **changes)


DOUBLE = Facts((OptimizerFacts("AdamW", 4, ("float64",)),), 2, 2)

#: rule, what is made of a figure, a figure below the threshold, one above it
BRACKETS: list[tuple[str, Callable[[float], _MADE], float, float]] = [
    ("optimizer-loop", lambda us: update(50, us), 85, 115),
    ("optimizer-loop", lambda n: update(int(n), 200), 36, 44),
    ("optimizer-share", lambda us: update(1, us, "aten::_fused_adamw_"), 215, 285),
    ("tiny-ops", lambda n: many(int(n), 5), 450, 550),
    ("tiny-ops", lambda us: many(800, us), 11.5, 8.5),
    ("tiny-ops", half_tiny, 0.13, 0.17),
    ("launch-bound", launching, 0.88, 0.82),
    ("tensor-cores-unused", lambda n: (kernels(int(n), "volta_sgemm"), {"device": V100}), 2, 4),
    ("small-kernels", lambda n: kernels(int(n), **{"blocks per SM": 0.1}), 2, 5),
    ("communication", lambda n: kernels(int(n), "ncclDevKernel_AllReduce_Sum_f32"), 2, 4),
    ("kernel-gaps", lambda us: gpu_training(4, n_kernels=30, kernel=us, every=100), 93, 87),
    ("matmul-alignment", lambda n: products(int(n)), 1, 2),
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
    ("small-calls", mixed, 9, 11),
    ("host-python", lambda us: between(us, n_gaps=3), 270, 330),
    ("host-python", longer, 350, 520),
    ("beside-the-model", averaging, 4, 8),
    ("beside-the-model", lambda n: averaging(n, 10), 4, 5),
    ("dataloader-no-workers", waiting, 690, 1_020),
    ("image-decode", images, 4, 5),
    ("image-decode", lambda n: images(n, 100), 9, 11),
    ("tensor-cores-unused", lambda us: working(us, "volta_sgemm", V100), 47, 53),
    ("tf32-off", lambda us: working(us, "ampere_sgemm", A100), 47, 53),
    ("small-kernels", lambda us: working(us, "softmax", A100, **{"blocks per SM": 0.1}), 47, 55),
    ("32-bits", lambda n: narrow(0, dense=int(n)), 2, 4),
    ("32-bits", dense, 47, 53),
    ("matmul-alignment", products_on_a_device_that_is_busy, 0.47, 0.53),
    ("32-bits", lambda n: narrow(int(n), HALF), 4, 2),
    ("32-bits", lambda n: narrow(int(n), "ampere_sgemm"), 4, 2),
    ("float64", lambda n: doubles(int(n)), 4, 6),
    ("host-collectives", exchanging, 90, 115),
    ("one-thread", long_operators, 90, 110),
    ("too-many-threads", lambda us: long_operators(us, 8), 90, 110),
    ("start-up", first_steps, 4_000, 5_000),
    ("sync", syncing, 5, 30),
    ("device-allocations", allocating_in, 3, 4),
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


# --- what a finding tells -----------------------------------------------------------------


def waiting_at(n: float) -> _MADE:
    sim = cpu_training(6, wait=870, loader=SINGLE)
    return sim, {"lines": sampled(n, of=100, text="return parse(path)", in_data_wait=True)}


def tf32_and_host(us: float) -> _MADE:
    """Steps of 1 ms on a device that always computes; the host works for so long of each."""
    sim, begins = _steps()
    for at in begins:
        op = sim.host("aten::conv2d", at, us)
        sim.device(TF32, at + 10, 985, sim.call("cudaLaunchKernel", at + 1, 5, op))
        sim.call("cudaStreamSynchronize", at + us, 995 - us)
    return sim, {"device": A100, "facts": FLOATS}


def gaps_of(us: float) -> Simulated:
    """Operators of 50 µs, after each of which Python takes so long."""
    sim, begins = _steps(4, 10 * (50 + us))
    for at in begins:
        for k in range(10):
            sim.host("aten::relu", at + k * (50 + us), 50)
    return sim


def talking(n: float, rest: str = "ncclDevKernel_AllReduce_Sum_f32") -> Simulated:
    """Of the ten collectives in each of three steps, ``n`` send from each rank to each."""
    sim = gpu_training(3, n_kernels=10)
    for i, event in enumerate(e for e in sim.events if e["cat"] == "kernel"):
        event["name"] = "ncclDevKernel_SendRecv" if i % 10 < n else rest
    return sim


def held(us: float) -> Simulated:
    """In each of four steps the host sits so long in a copy, with a kernel queued that waits."""
    sim, begins = _steps(4, 2 * us)
    for at in begins:
        sim.kernel("aten::mm", at, at + 10, 40)
        launch = sim.call("hipLaunchKernel", at + 70, 10, sim.host("aten::relu", at + 60, 30))
        sim.device("relu", at + us + 150, 40, launch)
        op = sim.host("aten::copy_", at + 100, us + 20)
        copied = sim.call("hipMemcpyWithStream", at + 101, us, op)
        sim.device("Memcpy DtoH (Device -> Host)", at + us + 195, 5, copied, "gpu_memcpy", bytes=1)
        sim.kernel("aten::mm", at + us + 300, at + us + 310, us - 320)
    return sim


def compiled_again(attempt: float) -> Simulated:
    sim = compiling(600)
    for event in (e for e in sim.events if e["name"].startswith("Torch-Compiled")):
        event["name"] = f"Torch-Compiled Region: 0/{int(attempt)}"
    return sim


def all_reduce_on_the_host(quickest_us: float) -> Simulated:
    """Steps of 1 ms, in each 400 µs of a collective; in the first it takes only so long."""
    sim, begins = _steps(6)
    for at in begins:
        took = quickest_us if at == 0 else 400
        sim.host("aten::mm", at, 1_000 - took)
        sim.label("gloo:all_reduce", at + 1_000 - took, took, tid=101)
    return sim


#: rule, what it says, what is made of a figure, a figure at which it does not, one at which it does
WORDS: list[tuple[str, str, Callable[[float], _MADE], float, float]] = [
    ("dataloader-no-workers", "of the line samples are at data.py:9", waiting_at, 4, 5),
    ("small-calls", "Python between operators", gaps_of, 45, 55),
    ("communication", "(all-to-all)", talking, 4, 6),
    ("recompiles", "one region was compiled", compiled_again, 0, 1),
]


@pytest.mark.parametrize(
    ("rule", "words", "make", "without", "with_them"),
    WORDS,
    ids=[f"{words}-{below:g}-{above:g}" for _, words, _, below, above in WORDS],
)
def test_what_a_finding_tells_begins_at_a_threshold(
    rule: str, words: str, make: Callable[[float], _MADE], without: float, with_them: float
) -> None:
    found = diagnosed(make(without)).findings
    told = "\n".join(
        text for one in found if one.rule == rule for text in (one.title, *one.evidence)
    )
    assert words not in told
    assert words in said(make(with_them), rule)


def test_the_last_three_failed_checks_are_told() -> None:
    checks = tuple(Recompilation(f"a.py:{i}", f"self.n == {i}") for i in range(5))
    report = CompileReport(n_graphs=1, breaks=(), recompilations=checks, compile_s=1.0)
    told = said((compiling(600), {"facts": changed(compiled=report)}), "recompiles")
    assert [f"self.n == {i}" in told for i in range(5)] == [False, False, True, True, True]


def compiling_in(n: int) -> Simulated:
    """``n`` of four steps compile."""
    sim = compiling(3_000)
    compiles = [e for e in sim.events if e["name"] == "entire_frame_compile"]
    sim.events = [e for e in sim.events if e not in compiles[n:]]
    return sim


def test_one_compilation_takes_its_time_and_two_take_theirs() -> None:
    one, two = (said(compiling_in(n), "recompiles") for n in (1, 2))
    assert "compiling in 1 of 4 steps takes 3.00 ms" in one
    assert "compiling in 2 of 4 steps takes 6.00 ms" in two


def rounds(n: int) -> Simulated:
    """A step of 20 ms with 600 tiny operators, and ``n`` of 100 µs."""
    sim, begins = _steps(2, 20_000)
    for at in begins:
        for k in range(600):
            sim.host("aten::sub", at + 8 * k, 7.9)
        for k in range(n):
            sim.host("aten::mm", at + 5_000 + 100 * k, 99.9)
        rest = at + 5_000 + 100 * n
        sim.host("aten::conv2d", rest, at + 20_000 - rest)
    return sim


def test_a_bound_counts_what_is_called_as_often_as_the_tiny_operations() -> None:
    """Fifty times a step is a loop, which goes with them; forty times is not."""
    few, many = (finding(rounds(n), "tiny-ops").gain_at_most for n in (40, 60))
    assert few == pytest.approx(20 / (20 - 4.8), rel=0.03)
    assert many == pytest.approx(20 / (20 - 4.8 - 6.0), rel=0.03)


def test_a_bound_counts_each_tiny_operation_however_seldom_one_name_is_called() -> None:
    sim, begins = _steps(2, 10_000)
    for at in begins:
        for k in range(600):
            sim.host(f"aten::op{k % 30}", at + 8 * k, 7.9)
        sim.host("aten::conv2d", at + 4_800, 5_199)
    assert finding(sim, "tiny-ops").gain_at_most == pytest.approx(1 / (1 - 0.48), rel=0.02)


def test_gains_that_a_tensor_core_and_an_aligned_product_bring_at_most() -> None:
    """Eight times on what it can do, and four times, by the data sheets and NVIDIA's guide."""
    found = finding((kernels(30, "volta_sgemm"), {"device": V100}), "tensor-cores-unused")
    assert "became 8 times as fast" in found.formula
    assert "became 4 times as fast" in finding(products(30), "matmul-alignment").formula
    half = finding(update(1, 500, "aten::_fused_adamw_"), "optimizer-share")
    assert "became 4 times as fast" in half.formula
    double = finding(computing(600, DOUBLE), "float64")
    assert "became 2 times as fast" in double.formula


def test_a_gain_of_less_than_five_per_cent_is_not_shown() -> None:
    def made_on_the_host(us: float) -> Simulated:
        sim, begins = _steps()
        for at in begins:
            sim.host("aten::randn", at + 10, us)
            sim.host("aten::to", at + 11 + us, 10)
            sim.copy("HtoD (Pageable -> Device)", at + 14 + us, 5, at + 16 + us, 2)
            op = sim.host("aten::linear", at + 40 + us, 900 - us)
            call = sim.call("cudaLaunchKernel", at + 41 + us, 2, op)
            sim.device("gemm", at + 44 + us, 950 - us, call)
        return sim

    assert "made-on-host" not in fired(made_on_the_host(25))
    sim = made_on_the_host(60)
    assert "made-on-host" in fired(sim)
    for event in (e for e in sim.events if e["name"] == "aten::randn"):
        event["name"] = "aten::mul"  # of what came from elsewhere
    assert "made-on-host" not in fired(sim)


# --- conditions that are no figures -------------------------------------------------------


def buckets(*steps: tuple[float, ...]) -> Simulated:
    """Steps of 2 ms with collectives of these lengths, whose sizes the trace doesn't tell."""
    sim, begins = _steps(len(steps), 2_000)
    for at, lengths in zip(begins, steps, strict=True):
        op = sim.host("aten::linear", at, 1_990)
        sim.device("gemm", at + 10, 500, sim.call("cudaLaunchKernel", at + 1, 5, op))
        start = at + 520
        for k, us in enumerate(lengths):
            call = sim.call("cudaLaunchKernel", at + 8 + 6 * k, 5, op)
            sim.device("ncclDevKernel_AllReduce_Sum_f32", start, us, call)
            start += us + 5
    return sim


def test_a_collective_that_began_before_the_steps_is_no_collective_of_theirs() -> None:
    sim = Simulated()
    op = sim.host("aten::linear", 0, 900)
    call = sim.call("cudaLaunchKernel", 1, 5, op)
    sim.device("ncclDevKernel_AllReduce_Sum_f32", 900, 600, call)
    sim.step(0, 1_000, 1_000)
    op = sim.host("aten::linear", 1_000, 990)
    sim.device("gemm", 1_510, 480, sim.call("cudaLaunchKernel", 1_005, 5, op))
    assert "communication" not in fired(sim)


def test_launches_are_named_where_the_trace_shows_them() -> None:
    sim = launching(0.7)
    known = finding((sim, {"is_file": True}), "launch-bound")
    assert "waits for launches" in known.title
    assert known.has_bound
    for event in (e for e in sim.events if e["cat"] == "kernel"):
        event["args"]["correlation"] += 10**6  # the calls that launched them are not in the trace
    unknown = diagnosed(sim)
    assert "does not say which calls launched" in unknown.sentence
    assert unknown.findings == ()
    assert "record the launches, too" in unknown.no_cure


@pytest.mark.parametrize("dims", [[[64, 1001], 5], [[64, "1001"], [1001, 8]], [[[64, 1001]], []]])
def test_what_a_file_gives_as_no_tensors_sizes_is_passed_over(dims: list[Any]) -> None:
    sim = products(30)
    assert "matmul-alignment" in fired(sim)
    for event in (e for e in sim.events if e["name"] == "aten::mm"):
        event["args"]["Input Dims"] = dims
    diagnosed(sim)  # no odd file ends the report


@pytest.mark.parametrize(("name", "fires"), [("Scatter", True), ("Scattered", False)])
def test_data_parallel_is_told_by_its_parts_too(name: str, fires: bool) -> None:
    sim = on_two_devices()
    for event in (e for e in sim.events if e["name"] == "DataParallel.forward"):
        event |= {"name": name, "cat": "cpu_op", "dur": 8}
    assert ("data-parallel" in fired(sim)) is fires


def test_what_has_no_place_shows_no_code() -> None:
    """Thousands of operators may be a loss, a metric or a moving average: only a line tells."""
    told = finding((many(550, 5), {"facts": ADAMW}), "tiny-ops")
    assert (told.line, told.what_to_do) == (None, "")


def test_lines_of_the_loader_are_not_named_for_other_time() -> None:
    """As the samples taken while a loader is made, before it is first asked for a batch."""

    def lines(at_ns: int, text: str) -> LineSamples:
        loads = Line("a.py", 1, "a.py:1", "f", text, 20, 20 / 26, True, "__main__")
        other = Line("a.py", 2, "a.py:2", "f", text, 6, 6 / 26, False, "__main__")
        return LineSamples((loads, other), 26, taken=((at_ns, 0),) * 20 + ((at_ns, 1),) * 6)

    sim = longer(520)
    python = finding((sim, {"lines": lines(100_000, "x = tokens[:9]")}), "host-python")
    assert python.line == "a.py:2: x = tokens[:9]"
    averages = {"lines": lines(620_000, "model_ema.update(model)")}
    beside = finding((sim, averages), "beside-the-model")
    assert beside.line == "a.py:2: model_ema.update(model)"
    assert beside.evidence[0].startswith("6 line samples")


def test_only_tensors_of_an_optimizer_that_can_do_better_are_counted() -> None:
    both = (*ADAMW.optimizers, OptimizerFacts("LBFGS", 9, ("float32",)))
    told = said((update(50, 200), {"facts": changed(optimizers=both)}), "optimizer-loop")
    assert "for 4 parameter tensors" in told


def test_calls_of_a_driver_alone_are_no_device() -> None:
    """A program that asks for memory and computes on the CPU: no device is known to idle."""
    sim = cpu_training(6)
    for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        sim.call("cudaMalloc", mark["ts"] + 10, 300)
        sim.call("cudaLaunchKernel", mark["ts"] + 400, 5)
    assert "device-allocations" not in fired(sim)
    assert diagnosed(sim).sentence.startswith("Compute-bound")
    # in a file there may have been one
    assert diagnosed((sim, {"is_file": True})).is_one_sided


def test_a_device_that_does_nothing_in_these_steps_is_not_said_to_wait_for_launches() -> None:
    sim = cpu_training(4)
    sim.device("gemm", -500, 50, sim.call("cudaLaunchKernel", -520, 5))
    told = diagnosed(sim)
    assert told.is_one_sided
    assert "the device idles, and the trace does not say which calls" in told.sentence


def test_copies_that_block_are_no_syncs_and_pinned_ones_are_not_pageable() -> None:
    sim = asking_to_wait()
    for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        for kind, at, us in (("Pageable", 5_000, 900), ("Pinned", 6_000, 8)):
            begin = mark["ts"] + at
            sim.copy(f"HtoD ({kind} -> Device)", begin, us, begin + us - 6, 5)
        sim.item(mark["ts"] + 8_600, 5)  # a copy to the host
    assert "2 syncs per step, most costly in cudaDeviceSynchronize" in said(sim, "sync")
    assert "1 copy a step, 4.00 KiB" in said(sim, "pageable-copy")
    pinned = gpu_training(
        6, n_kernels=5, copy="HtoD (Pinned -> Device)", copy_call=300, item=True, restart=200
    )
    assert "pageable-copy" not in fired(pinned)
    for event in (e for e in pinned.events if e["name"] == "cudaMemcpyAsync"):
        event["name"] = "cudaMemcpy"  # which blocks all the same
    assert "pageable-copy" not in fired(pinned)


def test_what_is_waited_for_is_named_by_the_operator_that_the_user_wrote() -> None:
    """``unique`` copies the number of values to the host, in an operator of its own."""
    sim = gpu_training(6, n_kernels=5, item=True, restart=200)
    for event in sim.events:
        names = {"aten::item": "aten::_unique2", "aten::_local_scalar_dense": "aten::copy_"}
        event["name"] = names.get(event["name"], event["name"])
    told = said(sim, "sync")
    assert "most costly in aten::copy_: the host must know the number of distinct" in told


def test_without_operators_a_wait_is_not_said_to_be_asked_for() -> None:
    sim = asking_to_wait()
    assert "the code, or a library, asks to wait" in said(sim, "sync")
    sim.events = [e for e in sim.events if e.get("cat") != "cpu_op"]
    assert "the host waits for a result (.cpu(), .tolist(), synchronize)" in said(sim, "sync")
    sim = asking_to_wait()  # and, by something that is no operator, it copies to the host
    for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        copies = sim.call("cudaMemcpyAsync", mark["ts"] + 4_000, 4_000)
        sim.device("Memcpy DtoH (Device -> Pageable)", mark["ts"] + 7_990, 5, copies, "gpu_memcpy")
    assert "most costly in cudaMemcpyAsync: the host waits for a result" in said(sim, "sync")


def test_many_workers_gain_little_from_one_more() -> None:
    """A seventeenth worker brings at most 6 %: nothing to advise."""

    def rules(n: int) -> set[str]:
        worker = ProcessUse(10.0, 9.6, 0.1, 0)
        loading = DataLoaderStats(10.0, 32, (worker,) * n, 1.2)
        return fired(
            (cpu_training(6, wait=870 * 4, loader=WORKERS), {"facts": changed(loading=loading)})
        )

    assert rules(16) == set()
    assert rules(4) == {"dataloader-few-workers"}


# --- data -----------------------------------------------------------------------------------


def asking(us: float, loader: str = WORKERS) -> Simulated:
    """Steps of a millisecond or two that wait so long for data."""
    return cpu_training(6, wait=us, loader=loader)


def waiting_on_a_device(us: float) -> Simulated:
    return gpu_training(6, n_kernels=10, wait=us, loader=WORKERS)


def test_slow_workers_are_told_from_a_gain_of_a_tenth_on() -> None:
    """A wait of 300 µs or more, which in long steps is too little to gain anything."""

    def rules(forward: float) -> set[str]:
        return fired(cpu_training(6, wait=400, forward=forward, loader=WORKERS))

    assert "dataloader-slow-workers" in rules(2_700)
    assert "dataloader-slow-workers" not in rules(3_800)


def test_a_loader_without_workers_beside_one_with_them_is_the_one_to_change() -> None:
    sim = asking(870, SINGLE)
    for event in [e for e in sim.events if e["name"] == SINGLE]:
        sim.label(WORKERS, event["ts"] + event["dur"] + 1, 5)
    assert fired(sim) == {"dataloader-no-workers"}


def test_an_idle_device_is_told_beside_a_wait_for_data_only_where_there_is_a_device() -> None:
    there = said(waiting_on_a_device(900), "dataloader-slow-workers")
    assert "meanwhile the device is idle for" in there
    assert "the device" not in said(asking(900), "dataloader-slow-workers")


@pytest.mark.parametrize(
    ("n_cores", "words"),
    [
        (1, "1 core for this process: each worker needs one"),
        (2, "2 cores for this process: each worker needs one"),
        (3, None),
        (None, None),
    ],
)
def test_few_cores_are_told_to_who_has_no_workers(n_cores: int | None, words: str | None) -> None:
    known = {"facts": changed(n_cores=n_cores)}
    found = finding((asking(3_500, SINGLE), known), "dataloader-no-workers")
    assert any("for this process" in one for one in found.evidence) == (words is not None)
    assert words is None or any(one.startswith(words) for one in found.evidence)
    proposed = {None: 4, 1: 1, 2: 2, 3: 3}[n_cores]
    assert f"num_workers={proposed}," in found.what_to_do
    assert f"with {proposed} worker{'s' * (proposed > 1)} loading alongside" in found.formula


def test_at_most_eight_workers_are_proposed() -> None:
    known = {"facts": changed(n_cores=64)}
    told = said((asking(3_500, SINGLE), known), "dataloader-no-workers")
    assert "num_workers=8," in told


@pytest.mark.parametrize(
    ("n_cores", "n"),
    [(2, 2), (8, 8), (64, 8), (None, 4)],
)
def test_workers_are_as_many_as_cores_only_where_these_are_known(
    n_cores: int | None, n: int
) -> None:
    known = {"facts": changed(n_cores=n_cores)}
    told = finding((asking(3_500), known), "dataloader-slow-workers").what_to_do
    assert "in memory: num_workers=0" in told  # a hand-over may cost more than the loading
    assert f"num_workers={n}," in told


def test_what_other_workers_do_is_not_said_of_a_loader_without_any() -> None:
    """The busy workers may be another loader's."""
    worker = ProcessUse(10.0, 9.6, 0.1, 0)
    loading = DataLoaderStats(10.0, 8, (worker,) * 2, 0.2)
    known = {"facts": changed(loading=loading)}
    assert fired((asking(3_500, SINGLE), known)) == {"dataloader-no-workers"}
    assert fired((asking(3_500), known)) == {"dataloader-slow-code"}


def test_a_known_cause_takes_the_place_of_what_the_lines_suggest() -> None:
    worker = ProcessUse(10.0, 9.6, 0.1, 0)
    loading = DataLoaderStats(10.0, 8, (worker,) * 2, 0.2)
    lines = sampled(6, of=10, text="return read(path)", in_data_wait=True)
    known = {"facts": changed(loading=loading), "lines": lines}
    found = finding((waiting_on_a_device(2_000), known), "dataloader-slow-code")
    assert found.line is None  # the workers' lines are not sampled
    assert not any("meanwhile" in one for one in found.evidence)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ({"text": "x = read(p)", "library": "imageio", "library_function": "imageio.v3.imread"},
         "image-decode"),
        ({"text": "x = cv2.imread(p)"}, "image-decode"),
        ({"text": "x = read(p)", "library": "cv2"}, "image-decode"),
        ({"text": "", "library": "PIL", "library_function": "PIL.Image.resize"}, "image-decode"),
        ({"text": "x = parse(p)"}, None),
    ],
)  # fmt: skip
def test_which_lines_work_on_images(line: dict[str, Any], rule: str | None) -> None:
    sim, of_images = asking(870, SINGLE), {"image-decode"}
    within = {"lines": sampled(6, in_data_wait=True, **line)}
    assert fired((sim, within)) & of_images == ({rule} if rule else set())
    if rule:
        text = f": {line['text']}" if line["text"] else ""
        assert finding((sim, within), rule).line == f"data.py:9{text}"
    # the same elsewhere in the step is no wait for data
    assert not fired((sim, {"lines": sampled(6, in_data_wait=False, **line)})) & of_images


# --- the optimizer --------------------------------------------------------------------------


# --- the device -----------------------------------------------------------------------------

P100 = {"name": "Tesla P100", "computeMajor": 6, "computeMinor": 0, "warpSize": 32}


def test_a_gpu_without_tensor_cores_leaves_none_unused() -> None:
    assert "tensor-cores-unused" in fired((kernels(30, "volta_sgemm"), {"device": V100}))
    assert "tensor-cores-unused" not in fired((kernels(30, "volta_sgemm"), {"device": P100}))


@pytest.mark.parametrize(
    ("name", "could"),
    [
        ("volta_sgemm", True),
        ("volta_s884gemm_64x64", False),  # on tensor cores
        ("void gemv2T_kernel_val<float>", False),  # a product with a vector
        ("void conv_depthwise2d_forward_kernel<float>", False),
        ("void cudnn::nchwToNhwcKernel<float>", False),  # only a layout
        ("volta_dgemm_64x64", False),
        ("void gemm_kernel<__half>", False),  # on 16 bits already
        ("void softmax<float>", False),  # no product
    ],
)
def test_which_kernels_could_use_tensor_cores(name: str, could: bool) -> None:
    found = fired((kernels(30, name), {"device": V100}))
    assert ("tensor-cores-unused" in found) == could


@pytest.mark.parametrize(
    ("dtypes", "advised"),
    [
        ((("float32",),), True),
        ((("bfloat16",),), False),
        ((("bfloat16",), ("float32",)), True),
        ((), False),
    ],
)
def test_16_bits_are_advised_to_who_trains_in_32(
    dtypes: tuple[tuple[str, ...], ...], advised: bool
) -> None:
    sim, known = narrow(0)  # type: ignore[misc]
    optimizers = tuple(OptimizerFacts("SGD", 4, one) for one in dtypes)
    assert ("32-bits" in fired((sim, known | {"facts": Facts(optimizers)}))) == advised


def test_of_a_file_the_kernels_alone_say_that_it_trains_in_32_bits() -> None:
    sim, known = narrow(0)  # type: ignore[misc]
    assert "32-bits" in fired((sim, known | {"facts": Facts(), "is_file": True}))


def test_products_in_float64_on_tensor_cores_are_not_on_32_bits() -> None:
    """A file of an A100 that trains in float64 was told that it computes in TF32."""
    made = (doubles(30), {"device": A100, "facts": Facts(), "is_file": True})
    assert "float64" in fired(made)
    assert "32-bits" not in fired(made)


def test_a_product_outside_of_tensor_cores_does_not_say_how_torch_is_set() -> None:
    """TF32 may be on, as for the other products here."""
    sim, known = narrow(20, "ampere_sgemm")  # type: ignore[misc]
    title = finding((sim, known), "tf32-off").title
    assert title == "Matrix products run in full float32, not in TF32"


def test_only_products_on_tensor_cores_have_another_rate_on_16_bits() -> None:
    known = {"device": A100, "facts": FLOATS}
    assert "32-bits" in fired((kernels(30, TF32), known))
    assert "32-bits" not in fired((kernels(30, "void gemv2T_kernel_val<float>"), known))
    assert "32-bits" not in fired((kernels(30, "elementwise_kernel_tf32"), known))


@pytest.mark.parametrize(
    ("name", "n_narrowed"),
    [
        ("vectorized_elementwise_kernel<float>", 20),
        ("vectorized_elementwise_kernel<double>", 10),
        ("indexSelectLargeIndex<float>", 10),  # its bytes are mostly an index
    ],
)
def test_what_may_move_half_the_bytes(name: str, n_narrowed: int) -> None:
    sim, known = narrow(10, name)  # type: ignore[misc]
    for event in [e for e in sim.events if e["cat"] == "kernel" and e["name"] == "softmax"]:
        event["name"] = "indexSelectLargeIndex<float>"
    found = finding((sim, known), "32-bits")
    share = 95 * n_narrowed / (30 * 96)
    assert f"{100 * share:.0f} % of each step may move half the bytes" in "".join(found.evidence)


@pytest.mark.parametrize(
    ("blocks", "told"), [(0.1, True), (0.7, True), (1.0, False), (1.5, False), (None, False)]
)
def test_fewer_blocks_than_multiprocessors_make_a_small_kernel(
    blocks: float | None, told: bool
) -> None:
    args = {} if blocks is None else {"blocks per SM": blocks}
    assert ("small-kernels" in fired(kernels(30, **args))) == told


def test_large_kernels_make_up_for_no_small_one() -> None:
    sim = kernels(15, **{"blocks per SM": 0.5})
    for event in (e for e in sim.events if e["cat"] == "kernel"):
        event["args"].setdefault("blocks per SM", 1.5)
    assert "amount to 25 % of each step" in said(sim, "small-kernels")


def test_the_length_of_a_gap_is_told() -> None:
    found = finding(gpu_training(4, n_kernels=30, kernel=80, every=100), "kernel-gaps")
    assert "for each of its 30 kernels" in found.evidence[0]
    assert "19.3 µs for each" in found.evidence[0]  # 29 gaps of 20 µs


# --- what does not belong in a step ---------------------------------------------------------


def inferring(n_layers: int = 3, **more: float) -> Simulated:
    """Forward passes alone, each layer with a number of its own; ``more``: name → length."""
    sim, begins = _steps(4, 10_000)
    for step, at in enumerate(begins):
        for i in range(n_layers):
            numbered = {"Sequence number": 10 * step + i}
            sim.host("aten::linear", at + 1_000 * i, 900, **numbered)
    for name, length in more.items():
        sim.host(name, 9_000, length)
    return sim


def test_a_graph_that_no_backward_pass_uses() -> None:
    told = finding((inferring(), {"facts": Facts()}), "kept-graph")
    assert told.evidence[0].startswith("3 layers per step record")
    assert told.gain_at_most == 1.0
    # an optimizer or a backward pass, recorded or known, will use it
    assert "kept-graph" not in fired((inferring(), {"facts": ADAMW}))
    for name in ("autograd::engine::evaluate_function: X", "Optimizer.step#AdamW.step"):
        assert "kept-graph" not in fired((inferring(**{name: 500}), {"facts": Facts()}))
    # one number a step: the counter rests while nothing is recorded
    assert "kept-graph" not in fired((inferring(1), {"facts": Facts()}))


@pytest.mark.parametrize(("us", "title"), [(45, "Calling small"), (55, "etween operators")])
@pytest.mark.parametrize("has_functions", [False, True])
def test_a_file_without_functions_of_python_is_not_said_to_be_pythons(
    us: float, title: str, *, has_functions: bool
) -> None:
    sim = gaps_of(us)
    if has_functions:
        sim.host("loop.py(3): step", 1, 999, "python_function")
    told = finding((sim, {"is_file": True}), "small-calls")
    assert title in told.title
    assert ("Python" in " ".join((told.title, *told.evidence))) is has_functions
    assert ("Calling small operators" in told.title) is (us < 50)


# --- ranks ----------------------------------------------------------------------------------


def test_how_long_collectives_take_is_told() -> None:
    told = finding(buckets((100, 300), (100, 300), (100, 300), (100, 600)), "communication")
    assert "2 collectives per step" in told.evidence[0]
    assert "longest 600 µs, median 200 µs" in told.evidence[1]


def test_how_often_ranks_meet_on_the_host_is_told() -> None:
    told = finding(all_reduce_on_the_host(300), "host-collectives")
    assert "1 collective per step" in told.evidence[0]
    on_a_gpu = gpu_training(4, n_kernels=5, python=500)
    for event in [e for e in on_a_gpu.events if e["name"].startswith("ProfilerStep")]:
        on_a_gpu.label("gloo:all_reduce", event["ts"] + 10, 400)
    assert "host-collectives" not in fired(on_a_gpu)


@pytest.mark.parametrize(
    ("name", "option"),
    [("SGD", "fused=True"), ("RMSprop", "foreach=True"), ("LBFGS", None), ("Lion", None)],
)
def test_an_option_is_advised_to_optimizers_that_take_it(name: str, option: str | None) -> None:
    """Known by the program, or read off the label in a trace of somebody else's."""
    known = Facts((OptimizerFacts(name, 4, ("float32",)),), 2, 2)
    labelled = update(50, 200)
    for event in labelled.events:
        event["name"] = event["name"].replace("AdamW", name)
    for made in ((update(50, 200), {"facts": known}), (labelled, {"facts": Facts()})):
        if option is None:
            assert "optimizer-loop" not in fired(made)
            continue
        found = finding(made, "optimizer-loop")
        # the line of a test file that has been imported here may stand in it
        assert re.search(rf"torch\.optim\.{name}\(.*, {option}\)", found.what_to_do)
        assert found.evidence[0].startswith("50 operations per step")
        assert ("for 4 parameter tensors" in found.evidence[0]) == (made[1]["facts"] == known)


def test_an_update_that_loops_is_told_once() -> None:
    assert {"optimizer-loop"} == {r for r in fired(update(50, 400)) if r.startswith("optimizer")}
    assert {"optimizer-share"} == {r for r in fired(update(9, 400)) if r.startswith("optimizer")}


# --- memory, threads, graphs ----------------------------------------------------------------


def test_the_first_steps_fill_the_cache() -> None:
    first, later = first_steps(5_000), first_steps(80)
    for sim in (first, later):
        sim.call("cudaMalloc", 20_000, 3_500)
    assert fired(first) & {"start-up", "device-allocations"} == {"start-up"}
    assert fired(later) & {"start-up", "device-allocations"} == {"device-allocations"}


def test_on_a_cpu_a_long_first_call_is_the_codes_own() -> None:
    sim = first_steps(5_000)
    assert "start-up" in fired(sim)
    sim.events = [e for e in sim.events if e.get("cat") not in ("kernel", "cuda_runtime")]
    assert "start-up" not in fired(sim)


@pytest.mark.parametrize(
    ("n_threads", "n_cores", "rules"),
    [
        (1, 1, set()),
        (1, 2, {"one-thread"}),
        (2, 2, set()),
        (3, 2, {"too-many-threads"}),
        (None, 2, set()),
        (1, None, set()),
        (3, None, set()),
    ],
)
def test_threads_are_held_against_cores(
    n_threads: int | None, n_cores: int | None, rules: set[str]
) -> None:
    sim, _ = long_operators(200)  # type: ignore[misc]
    found = fired((sim, {"facts": changed(n_threads=n_threads, n_cores=n_cores)}))
    assert found & {"one-thread", "too-many-threads"} == rules


@pytest.mark.parametrize(("n_threads", "n_cores"), [(1, 4), (8, 2)])
def test_threads_do_not_matter_beside_a_device(n_threads: int, n_cores: int) -> None:
    facts = changed(n_threads=n_threads, n_cores=n_cores)
    rules = {"one-thread", "too-many-threads"}
    assert rules & fired(computing(900, facts))
    assert not rules & fired((tf32_and_host(900)[0], {"facts": facts}))  # type: ignore[index]


def test_one_core_is_one_core() -> None:
    sim, _ = long_operators(200)  # type: ignore[misc]
    found = finding((sim, {"facts": changed(n_threads=3, n_cores=1)}), "too-many-threads")
    assert found.title == "torch computes with 3 threads on 1 core"
    found = finding((sim, {"facts": changed(n_threads=1, n_cores=4)}), "one-thread")
    assert found.formula.endswith("if that part became 4 times as fast")


def test_a_program_that_replays_a_graph_is_not_told_to_use_one() -> None:
    sim = launching(0.7)
    assert "reduce-overhead" in finding(sim, "launch-bound").what_to_do
    for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        sim.call("cudaGraphLaunch", mark["ts"] + 950, 2)
    assert "outside of the CUDA graph: capture more" in finding(sim, "launch-bound").what_to_do
    assert "reduce-overhead" not in finding(sim, "launch-bound").what_to_do


def test_how_many_kernels_a_step_launches_is_told() -> None:
    assert "10 kernels per step, half of them shorter than 70.0 µs" in said(
        launching(0.7), "launch-bound"
    )


def test_without_the_devices_side_only_data_and_what_averts_a_failure_is_advised() -> None:
    gave_up = (Recompilation("train.py:20", "self.n == 7"),)
    report = CompileReport(
        n_graphs=3, breaks=(), recompilations=(), compile_s=1.0, given_up=gave_up
    )
    facts = Facts(gc_pauses_ms=(20.0,), compiled=report)
    whole = (waiting(1_020), {"is_file": True, "facts": facts})
    always = {"dataloader-no-workers", "compile-gave-up"}
    assert fired(whole) == {*always, "gc-pauses"}
    half = waiting(1_020)
    half.call("cudaLaunchKernel", half.events[0]["ts"] + 2_000, 5)
    assert fired((half, whole[1])) == always


# --- advice on inference --------------------------------------------------------------------


def only_forward(sim: Simulated) -> Simulated:
    sim.events = [e for e in sim.events if "autograd::" not in e["name"]]
    return sim


def only_forward_of(made: _MADE) -> _MADE:
    sim, known = made  # type: ignore[misc]
    sim.events = [e for e in sim.events if "Optimizer" not in e["name"]]
    return only_forward(sim), known


def on_two_devices() -> Simulated:
    sim, begins = _steps()
    for at in begins:
        sim.label("DataParallel.forward", at + 1, 900)
        for device in (0, 1):
            op = sim.host("aten::linear", at + 10 + 450 * device, 400)
            call = sim.call("cudaLaunchKernel", at + 15 + 450 * device, 5, op)
            sim.device("gemm", at + 30 + 450 * device, 400, call, device=device)
    return sim


def asking_to_wait(n_launches: int | None = None, later_us: float = 0) -> Simulated:
    """The code asks to wait; then, if a number is given, it launches as much and captures.

    After that it may wait again, for ``later_us``.
    """
    sim, begins = _steps(3, 10_000)
    for at in begins:
        sim.kernel("aten::mm", at, at + 10, 100)
        sim.call("cudaDeviceSynchronize", at + 20, 3_000)
        if n_launches is not None:
            for k in range(n_launches):
                sim.kernel("aten::fill_", at + 3_030 + 20 * k, at + 3_040 + 20 * k, 5)
            sim.call("cudaStreamBeginCapture", at + 3_400, 5)
            sim.call("cudaLaunchKernel", at + 3_450, 5, sim.host("aten::mm", at + 3_410, 60))
            sim.call("cudaStreamEndCapture", at + 3_500, 5)
        if later_us:
            sim.call("cudaDeviceSynchronize", at + 4_000, later_us)
        sim.kernel("aten::mm", at + 8_500, at + 8_510, 900)
    return sim


_OF_TRAINING = re.compile(r"loss|backward\(|optimizer|\btrain|epoch|scaler|no_sync|step %|gradient")


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        ("tensor-cores-unused", lambda: (kernels(4, "volta_sgemm"), {"device": V100})),
        ("32-bits", lambda: narrow(0)),
        ("small-kernels", lambda: kernels(5, **{"blocks per SM": 0.1})),
        ("communication", lambda: kernels(4, "ncclDevKernel_AllReduce_Sum_f32")),
        ("communication", lambda: talking(10)),
        ("host-collectives", lambda: exchanging(115)),
        ("host-collectives", lambda: all_reduce_on_the_host(100)),
        ("data-parallel", on_two_devices),
        ("sync", lambda: syncing(200)),
        ("sync", asking_to_wait),
        (
            "pageable-copy",
            lambda: gpu_training(6, n_kernels=5, copy="HtoD (Pageable -> Device)", copy_call=300),
        ),
        ("tiny-ops", lambda: many(550, 5)),
        ("image-decode", lambda: only_forward_of(images(5))),
        ("start-up", lambda: first_steps(5_000)),
        ("dataloader-no-workers", lambda: gpu_training(6, wait=1_000, n_kernels=5)),
        ("host-python", lambda: between(330, n_gaps=3)),
        ("gc-pauses", lambda: (between(10, 3), {"facts": Facts(gc_pauses_ms=(5.0,))})),
        ("launch-bound", lambda: launching(0.5)),
        ("kernel-gaps", lambda: gpu_training(4, n_kernels=30, kernel=80, every=100)),
        ("held-device", lambda: held(1_200)),
        ("device-allocations", lambda: allocating(60)),
        ("recompiles", lambda: only_forward(compiling(600))),
        ("graph-breaks", lambda: only_forward(breaking(600))),
    ],
)
def test_advice_on_inference_has_no_training_code(rule: str, make: Callable[[], _MADE]) -> None:
    made = make()
    sim, known = made if isinstance(made, tuple) else (made, {})
    gc = known.get("facts", ADAMW).gc_pauses_ms
    inference = (sim, known | {"facts": Facts(gc_pauses_ms=gc), "is_file": not gc})
    told = said(inference, rule)
    assert not _OF_TRAINING.search(told), told
    compile(finding(inference, rule).what_to_do.replace("...", "**kwargs"), rule, "exec")


@pytest.mark.parametrize(
    ("name", "category", "trains"),
    [
        ("Optimizer.step#SGD.step", "user_annotation", True),
        ("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", True),
        ("torch/_tensor.py(433): backward", "python_function", True),
        ("torch/optim/adam.py(223): step", "python_function", True),
        ("torch/optim/lr_scheduler.py(9): get_lr", "python_function", False),
        ("loop.py(3): backward", "python_function", False),
        ("aten::linear", "cpu_op", False),
    ],
)
def test_what_shows_training(name: str, category: str, trains: bool) -> None:
    sim = gpu_training(2)
    sim.host(name, 1_001, 1, category)
    assert shows_training(load(sim.json())) is trains


def test_kernels_show_training_only_where_no_operator_does() -> None:
    """A transposed convolution is computed by kernels of a backward pass, also in inference."""

    def shown(name: str, *, with_operators: bool) -> bool:
        sim = kernels(1, name)
        if not with_operators:
            sim.events = [e for e in sim.events if e["cat"] != "cpu_op"]
        return shows_training(load(sim.json()))

    assert shown("cudnn::wgrad_alg0_engine", with_operators=False)
    assert not shown("cudnn::wgrad_alg0_engine", with_operators=True)
    assert not shown("cudnn::dgrad_engine", with_operators=False)
    assert not shown("flash_fwd_kernel", with_operators=False)
