"""More rules: each fires when it must, and stays silent on similar cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated_traces import Simulated, cpu_training, gpu_training

from perfkit.advice import Diagnosis, Finding
from perfkit.advice.case import Case
from perfkit.advice.diagnose import diagnose
from perfkit.base.compiling import CompileReport, GraphBreak, Recompilation
from perfkit.measure.summary import summarize
from perfkit.trace import LineSamples, breakdown, find_steps, load
from perfkit.trace.record.facts import Facts, OptimizerFacts
from perfkit.trace.record.lines import NO_LINES

V100 = {"name": "Tesla V100", "computeMajor": 7, "computeMinor": 0, "warpSize": 32}
A100 = {"name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0, "warpSize": 32}
SGD = Facts((OptimizerFacts("SGD", 4, ("float32",)),))
MI250 = {"name": "AMD Instinct MI250X", "computeMajor": 9, "computeMinor": 0, "warpSize": 64}


def _diagnosis(
    sim: Simulated,
    *,
    device: dict[str, Any] | None = None,
    facts: Facts | None = None,
    lines: LineSamples = NO_LINES,
    **metadata: Any,
) -> Diagnosis:
    whole = json.loads(sim.json()) | metadata
    if device:
        whole["deviceProperties"] = [device]
    trace = load(json.dumps(whole).encode())
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    case = Case(trace, steps, split, lines, facts or Facts())
    return diagnose(case, summarize(split.wall_ms), "simulated")


def _rules(sim: Simulated, **known: Any) -> set[str]:
    return {f.rule for f in _diagnosis(sim, **known).findings}


def _finding(sim: Simulated, rule: str, **known: Any) -> Finding:
    found = [f for f in _diagnosis(sim, **known).findings if f.rule == rule]
    assert found, f"{rule} did not fire"
    (finding,) = found
    assert finding.evidence
    assert all(any(c.isdigit() for c in e) for e in finding.evidence)
    compile(finding.what_to_do.replace("...", "**kwargs"), rule, "exec")
    return finding


def _busy_gpu(kernel: str = "sgemm", **kernel_args: Any) -> Simulated:
    """A device that computes nearly all the time."""
    sim = gpu_training(4, n_kernels=30, every=96)
    for event in sim.events:
        if event["cat"] == "kernel":
            event["name"] = kernel
            event["args"] |= kernel_args
    return sim


# --- the device ---------------------------------------------------------------------------


def test_float32_products_beside_tensor_cores() -> None:
    sim = _busy_gpu("volta_sgemm_128x64_nn")
    finding = _finding(sim, "tensor-cores-unused", device=V100, facts=SGD)
    assert "GradScaler" in finding.what_to_do
    assert finding.gain_at_most < 8
    finding = _finding(_busy_gpu("ampere_sgemm_128x64_nn"), "tf32-off", device=A100)
    assert 'set_float32_matmul_precision("high")' in finding.what_to_do


def test_arithmetic_on_32_bits_beside_cores_for_16() -> None:
    tf32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckcrs_nchw"
    finding = _finding(_busy_gpu(tf32), "32-bits", device=A100, facts=SGD)
    assert "bfloat16" in finding.what_to_do
    assert finding.gain_at_most <= 2
    assert finding.cures == ("compute",)
    half = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_nn>"
    assert "32-bits" not in _rules(_busy_gpu(half), device=A100, facts=SGD)
    for types in ("tst", "hsh", "qqtst"):  # cuBLAS 12.8 on Hopper and later: bfloat16, float16
        name = f"nvjet_{types}_128x256_64x4_1x2_h_bz_coopA_TNT"
        assert "32-bits" not in _rules(_busy_gpu(name), device=A100, facts=SGD)
    name = "nvjet_sm90_sss_128x256_64x4_1x2_h_bz_coopA_TNT"
    assert "32-bits" in _rules(_busy_gpu(name), device=A100, facts=SGD)
    assert "32-bits" not in _rules(_busy_gpu("softmax"), device=A100, facts=SGD)
    assert "32-bits" not in _rules(_busy_gpu(tf32), device=V100, facts=SGD)  # knows no bfloat16


@pytest.mark.parametrize(
    ("kernel", "device"),
    [
        ("volta_fp16_s884gemm_fp16_128x64", V100),
        ("ampere_s1688gemm_tf32_128x64", A100),
        ("void at::native::vectorized_elementwise_kernel<4>", A100),
        ("volta_sgemm_128x64_nn", {**V100, "computeMajor": 6}),
        ("Cijk_Ailk_Bljk_SB_MT64x64", MI250),
        ("volta_sgemm_128x64_nn", None),
        # neither float32 nor a product of matrices: TF32 would change nothing
        ("void at::native::conv_depthwise2d_forward_kernel<3, float>", A100),
        ("void gemv2T_kernel_val<int, int, float, 128, 16>", A100),
        ("turing_fp16_sgemm_fp16_128x64_nn", A100),
    ],
)
def test_tensor_cores_in_use_or_of_no_use(kernel: str, device: dict[str, Any] | None) -> None:
    assert _rules(_busy_gpu(kernel), device=device) <= {"unfused-kernels"}


def test_faster_kernels_do_not_help_an_idle_device() -> None:
    sim = gpu_training(4, n_kernels=5, python=2_000)
    assert "tensor-cores-unused" not in _rules(sim, device=V100)


def test_kernels_too_small_for_the_gpu() -> None:
    finding = _finding(_busy_gpu("softmax", **{"blocks per SM": 0.25}), "small-kernels")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.75), rel=0.1)
    for blocks in (8.0, 0.95):
        assert "small-kernels" not in _rules(_busy_gpu("softmax", **{"blocks per SM": blocks}))


def test_memory_bound_kernels_one_after_another_are_to_be_fused() -> None:
    finding = _finding(_busy_gpu("batch_norm_backward"), "unfused-kernels")
    assert "torch.compile(model)" in finding.what_to_do
    assert _rules(_busy_gpu("triton_poi_fused_add_relu_0")) == set()


def test_gaps_between_queued_kernels() -> None:
    finding = _finding(gpu_training(4, n_kernels=30, kernel=70, every=100), "kernel-gaps")
    assert "for each of its 30 kernels" in finding.evidence[0]
    assert "kernel-gaps" not in _rules(gpu_training(4, n_kernels=30, kernel=97, every=100))


def test_long_gaps_between_queued_kernels_have_no_known_cause() -> None:
    sim = gpu_training(4, n_kernels=30, kernel=70, every=300)
    rules = _rules(sim)
    assert "held-device" in rules
    assert "kernel-gaps" not in rules
    assert "held-device" not in _rules(gpu_training(4, n_kernels=30, kernel=70, every=100))
    assert "the trace does not show" in _diagnosis(sim).sentence

    def advised(device: dict[str, Any] | None) -> str:
        (found,) = (f for f in _diagnosis(sim, device=device).findings if f.rule == "held-device")
        compile(found.what_to_do, "held-device", "exec")
        return found.what_to_do

    nvidia = advised(A100)
    assert "nvidia-smi" in nvidia
    for event in sim.events:
        event["name"] = event["name"].replace("cudaLaunch", "hipLaunch")
    amd = advised(None)
    assert "rocm-smi" in amd
    assert "nvidia" not in amd


def test_first_steps_are_told_from_slow_launches() -> None:
    def trace(first: float) -> Simulated:
        sim = Simulated()
        sim.step(0, 0, first + 1_000)
        for i in range(10):
            at = 0 if i == 0 else first + i * 90
            op = sim.host("aten::conv2d", at, first if i == 0 else 80)
            sim.device("gemm", at + 60, 30, sim.call("cudaLaunchKernel", at + 50, 5, op))
        return sim

    diagnosis = _diagnosis(trace(50_000))
    assert diagnosis.bound_by == "host"
    assert "% of the profiled time is start-up" in diagnosis.sentence  # of an inference, too
    assert "train" not in _finding(trace(50_000), "start-up").what_to_do
    assert "launch-bound" not in {f.rule for f in diagnosis.findings}
    assert "aten::conv2d 50.0 ms" in _finding(trace(50_000), "start-up").evidence[0]
    assert "start-up" not in _rules(trace(80))
    assert _diagnosis(trace(80)).bound_by == "launch"


def test_what_a_first_call_calls_in_every_step_is_no_start_up() -> None:
    """As where torch.randn fills on the host: 30 % were told, of which two thirds come again."""
    sim = Simulated()
    for i in range(3):
        at, first = 30_000.0 * i, 15_000 * (i == 0)
        sim.step(i, at, 30_000)
        sim.host("aten::randn", at + 10, first + 7_020)
        sim.host("aten::normal_", at + 20 + first, 7_000)
        op = sim.host("aten::add", at + 22_100, 20)
        sim.device("add", at + 22_120, 7_000, sim.call("cudaLaunchKernel", at + 22_110, 5, op))
    told = _finding(sim, "start-up").evidence[0]
    assert told.startswith("first calls take 17 % of the profiled time (aten::randn 15.0 ms)")


def test_the_first_launch_of_a_trace_without_operators_is_no_slow_launch() -> None:
    sim = Simulated()
    for i in range(4):
        at = i and 1_400 + i * 60
        launch = sim.call("cudaLaunchKernel", at, 12 if i else 1_400)
        sim.device("gemm", at + 14, 5, launch)
    diagnosis = _diagnosis(sim)
    assert "% of the profiled time is start-up" in diagnosis.sentence
    assert diagnosis.findings[0].rule == "start-up"
    assert "launch-bound" not in _rules(sim)


# --- memory -------------------------------------------------------------------------------


def test_memory_from_the_driver_in_every_step() -> None:
    def trace(name: str) -> Simulated:
        sim = gpu_training(4, n_kernels=5, python=400)
        for event in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
            sim.call(name, event["ts"] + 10, 300)
        return sim

    assert "4.0" not in _finding(trace("cudaMalloc"), "device-allocations").evidence[0]
    assert "1 call" in _finding(trace("cudaFree"), "device-allocations").evidence[0]
    assert "expandable_segments" in _finding(trace("hipFree"), "device-allocations").what_to_do
    # it was advised where it was on; of a trace from a file that is not known
    for is_on in (None, False, True):
        told = _finding(
            trace("hipFree"), "device-allocations", facts=Facts(expandable_segments=is_on)
        ).what_to_do
        assert ("expandable_segments" in told) is not (is_on is True)
    assert "of hipFree per step" in _finding(trace("hipFree"), "device-allocations").evidence[0]
    # taken and given back for every tensor: segments that expand are no cure for a missing cache
    for n_pairs, is_off in ((4, False), (6, True)):  # for 50 kernels
        sim = gpu_training(4, n_kernels=50, python=700)
        for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
            for i in range(n_pairs):
                sim.call("cudaMalloc", mark["ts"] + 10 + 100 * i, 40)
                sim.call("cudaFree", mark["ts"] + 60 + 100 * i, 40)
        found = _finding(sim, "device-allocations")
        assert ("expandable_segments" in found.what_to_do) is not is_off
        assert ("PYTORCH_NO_CUDA_MEMORY_CACHING" in found.what_to_do) is is_off
    assert "device-allocations" not in _rules(trace("cudaFreeHost"))
    assert "device-allocations" not in _rules(trace("cudaGetDevice"))


# --- several devices ----------------------------------------------------------------------


def _two_devices(mark: str) -> Simulated:
    sim = gpu_training(4, n_kernels=30, every=96)
    kernels = [e for e in sim.events if e["cat"] == "kernel"]
    for event in kernels[::2]:
        event["args"]["device"] = event["pid"] = 1
    for event in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        sim.label(mark, event["ts"] + 1, event["dur"] - 2)
    return sim


def test_data_parallel() -> None:
    finding = _finding(_two_devices("DataParallel.forward"), "data-parallel")
    assert "2 devices in one process" in finding.evidence[0]
    assert 1.8 < finding.gain_at_most < 2.2
    assert finding.formula.startswith("all 2 devices together idle for 51 %: at most 1 / (1 - 0.5")
    hardly_busy = _two_devices("DataParallel.forward")
    alone = _two_devices("DataParallel.forward")
    for event in (e for e in hardly_busy.events if e["cat"] == "kernel"):
        event["dur"] = 5
    for event in (e for e in alone.events if e["cat"] == "kernel"):
        event["args"]["device"] = event["pid"] = 0
    finding = _finding(hardly_busy, "data-parallel")
    assert finding.gain_at_most == 10.0
    assert "over 10× at best" in finding.formula  # and no quotient that is another number
    assert "data-parallel" not in _rules(alone)
    assert "data-parallel" not in _rules(_two_devices("DistributedDataParallel.forward"))
    assert "data-parallel" not in _rules(_two_devices("Pipeline.forward"))


def test_exposed_communication() -> None:
    def trace(n_talks: int) -> Simulated:
        sim = gpu_training(4, n_kernels=30, every=96)
        for i, event in enumerate(e for e in sim.events if e["cat"] == "kernel"):
            if i % 30 < n_talks:
                event["name"] = "ncclDevKernel_AllReduce_Sum_f32"
        return sim

    finding = _finding(trace(6), "communication")
    assert "6 collectives per step" in finding.evidence[0]
    assert "communication" not in _rules(trace(2))


def _exchange(kernel: str, *labels: str) -> Simulated:
    sim = gpu_training(3, n_kernels=10)
    kernels = [e for e in sim.events if e["cat"] == "kernel"]
    for number, event in enumerate(kernels):
        if number % 10 >= 6:
            event["name"] = kernel
    for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        for number, label in enumerate(labels):
            sim.label(label, mark["ts"] + 5 + 160 * number, 150)
    return sim


def test_gradients_that_are_exchanged() -> None:
    sim = _exchange("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    finding = _finding(sim, "communication", facts=SGD)
    assert "no_sync" in finding.what_to_do
    assert "all-to-all" not in " ".join([finding.title, *finding.evidence])


_SEND = "ncclDevKernel_SendRecv(ncclDevComm*)"


def test_any_other_all_to_all() -> None:
    finding = _finding(_exchange(_SEND), "communication")
    assert finding.title.startswith("Ranks send each other data (all-to-all)")
    assert "torchrec" not in finding.what_to_do
    assert "async_op=True" in finding.what_to_do


# --- loops and tensors on the wrong side ---------------------------------------------------


def _made(move_kind: str, *, made_on_device: bool = False) -> Simulated:
    sim = gpu_training(4, n_kernels=5, python=600)
    for event in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        at = event["ts"] + 5
        op = sim.host("aten::randn", at, 200)
        sim.host("aten::normal_", at + 20, 25)
        if made_on_device:
            sim.device("normal", at + 60, 3, sim.call("cudaLaunchKernel", at + 50, 5, op))
        sim.host("aten::to", at + 210, 300)
        sim.copy(move_kind, at + 220, 250, at + 400, 40)
    return sim


def test_a_tensor_made_on_the_host() -> None:
    finding = _finding(_made("HtoD (Pageable -> Device)"), "made-on-host")
    assert finding.evidence[0].startswith("1 time per step, first with torch.randn, right before")
    assert "made-on-host" not in _rules(_made("HtoD (Pageable -> Device)", made_on_device=True))
    assert "made-on-host" not in _rules(_made("DtoH (Device -> Pageable)"))


# --- compiling ----------------------------------------------------------------------------


def _compiled(*, compile_us: float = 0, between: float = 0, regions: int = 2) -> Simulated:
    sim = Simulated()
    for step in range(4):
        at = step * 10_000.0
        sim.step(step, at, 10_000)
        if compile_us:
            sim.host("entire_frame_compile", at + 10, compile_us)
        at += compile_us + 20
        for i in range(regions):
            sim.host(f"Torch-Compiled Region: {i}/{1 if compile_us else 0}", at, 1_000)
            at += 1_000 + between
        sim.host("autograd::engine::evaluate_function: CompiledFunctionBackward", at + 10, 2_000)
    return sim


def test_recompiling_in_the_steps() -> None:
    sim = _compiled(compile_us=3_000)
    finding = _finding(sim, "recompiles")
    assert "compiling in 4 of 4 steps takes 12.0 ms, 30 %" in finding.evidence[0]
    assert "compiled 2 times" in finding.evidence[1]
    assert _diagnosis(_compiled(compile_us=7_000, regions=1)).bound_by == "host"
    assert "recompiles" not in _rules(_compiled())


@pytest.mark.parametrize(("attempt", "said"), [(1, "its inputs changed"), (2, "keep changing")])
def test_what_a_region_that_was_compiled_again_tells(attempt: int, said: str) -> None:
    sim = _compiled(compile_us=3_000)
    for event in sim.events:
        event["name"] = event["name"].replace("0/1", f"0/{attempt}")
    finding = _finding(sim, "recompiles")
    assert finding.title.endswith("keeps recompiling")
    assert finding.evidence[1].endswith(said)


@pytest.mark.parametrize(
    ("attempt", "title"),
    [
        (0, "compiles inside the profiled steps"),
        (
            1,
            "compiles inside the profiled steps",
        ),  # for all sizes, after the first other one: that ends
        (2, "keeps recompiling"),
    ],
)
def test_one_compilation_says_how_often_its_region_was_compiled(attempt: int, title: str) -> None:
    sim = Simulated()
    for step in range(4):
        sim.step(step, step * 10_000.0, 10_000)
        if step == 2:
            sim.host("entire_frame_compile", step * 10_000.0 + 10, 9_000)
        n = attempt if step >= 2 else 0
        sim.host(f"Torch-Compiled Region: 0/{n}", step * 10_000.0 + 9_100, 800)
    assert _finding(sim, "recompiles").title.endswith(title)


@pytest.mark.parametrize(("n", "is_again"), [(2, False), (3, True)])
def test_pieces_compiled_late_are_no_recompiling(n: int, is_again: bool) -> None:
    """Two of four steps compile, each something else: that ends with the first epoch."""
    sim = Simulated()
    for step in range(4):
        sim.step(step, step * 10_000.0, 10_000)
        if step < n:
            sim.host("entire_frame_compile", step * 10_000.0 + 10, 3_000)
        sim.host("Torch-Compiled Region: 0/0", step * 10_000.0 + 3_100, 4_000)
    assert ("keeps" in _finding(sim, "recompiles").title) is is_again


def test_a_single_compilation_in_a_single_step() -> None:
    """One step is not most of several, and without a region nothing was compiled again."""
    sim = Simulated()
    sim.step(0, 0, 10_000)
    sim.host("entire_frame_compile", 10, 3_000)
    sim.host("aten::linear", 3_100, 6_000)
    finding = _finding(sim, "recompiles")
    assert finding.title.endswith("compiles inside the profiled steps")
    assert len(finding.evidence) == 1
    assert finding.evidence[0].startswith("compiling in 1 of 1 step takes 3.00 ms")


def test_compiling_between_two_regions_is_no_break() -> None:
    sim = _compiled(between=1_500)
    assert "graph-breaks" in _rules(sim)
    for event in [e for e in sim.events if e["name"] == "Torch-Compiled Region: 0/0"]:
        sim.host("entire_frame_compile", event["ts"] + 1_010, 1_480)
    assert "graph-breaks" not in _rules(sim)


def _log(**known: Any) -> Facts:
    return Facts(
        compiled=CompileReport(
            **{"n_graphs": 3, "breaks": (), "recompilations": (), "compile_s": 1.0} | known
        )
    )


def test_recompiling_is_told_with_the_check_and_a_cure_for_it() -> None:
    sim = _compiled(compile_us=3_000)
    size = Recompilation("train.py:9", "tensor 'x' size mismatch at index 0. expected 4, actual 5")
    value = Recompilation("train.py:20", "self.n == 3")
    finding = _finding(sim, "recompiles", facts=_log(recompilations=(size,)))
    # torch's log says how many graphs: stretches of compiling are not as many
    assert (
        finding.evidence[0] == "compiling in 4 of 4 steps takes 12.0 ms, 30 % of all profiled time"
    )
    assert any("train.py:9: the check tensor 'x' size" in said for said in finding.evidence)
    assert "dynamic=True" in finding.what_to_do
    assert "register_buffer" not in finding.what_to_do
    finding = _finding(sim, "recompiles", facts=_log(recompilations=(value,)))
    assert "dynamic=True" not in finding.what_to_do  # it does not help against a value
    assert "register_buffer" in finding.what_to_do
    finding = _finding(sim, "recompiles", facts=_log(recompilations=(value, size)))
    assert "dynamic=True" in finding.what_to_do
    assert "register_buffer" in finding.what_to_do
    assert "TORCH_LOGS" in _finding(sim, "recompiles").what_to_do


@pytest.mark.parametrize(("number", "told"), [("n", True), ("self.n", False)])
def test_of_dynamic_false_it_says_to_leave_it_out_unless_the_number_is_a_module_s(
    number: str, told: bool
) -> None:
    check = Recompilation("train.py:20", f"{number} == 7", is_static=True)
    finding = _finding(_compiled(), "compile-gave-up", facts=_log(given_up=(check,)))
    assert ("without dynamic=False" in finding.what_to_do) is told
    assert ("register_buffer" in finding.what_to_do) is not told


def test_code_that_torch_no_longer_compiles() -> None:
    again = [Recompilation("train.py:20", f"self.n == {n}") for n in range(7)]
    facts = _log(
        recompilations=tuple(again), given_up=(Recompilation("train.py:20", "self.n == 7"),)
    )
    finding = _finding(_compiled(), "compile-gave-up", facts=facts)
    assert "train.py:20 was compiled again 7 times" in finding.evidence[0]
    assert "self.n == 7" in finding.evidence[0]
    assert not finding.has_bound
    assert finding.gain_at_most == 1.0  # it promises nothing
    assert "compile-gave-up" not in _rules(_compiled(), facts=_log(recompilations=tuple(again)))
    assert "compile-gave-up" not in _rules(_compiled())


def _replays(new: tuple[int, ...], how: str = "captured") -> Simulated:
    """Six steps of 10 ms that replay a CUDA graph of 4 ms; those of a new size make one first."""
    sim = Simulated()
    compiled = "by hand" not in how
    for step in range(6):
        at = step * 10_000.0
        sim.step(step, at, 10_000)
        if compiled:
            took = 5_500 if step in new else 300
            sim.label("Torch-Compiled Region: 0/1", at + 40, took + 20)
            sim.host("## Call CompiledFxGraph f7 ##", at + 50, took)
        if step in new and how == "run once":
            sim.host("cudagraphify.get_container (dynamo_timed)", at + 60, 10)
            for k in range(50):
                sim.kernel("aten::mm", at + 100 + 100 * k, at + 120 + 100 * k, 20)
            continue
        if step in new:
            if compiled:
                sim.host("CUDAGraphNode.record (dynamo_timed)", at + 60, 5_000)
            sim.call("cudaStreamBeginCapture", at + 1_000, 5)
            sim.call("cudaLaunchKernel", at + 1_100, 5, sim.host("aten::mm", at + 1_050, 2_500))
            sim.call("cudaStreamEndCapture", at + 4_000, 5)
            sim.call("cudaGraphInstantiate", at + 4_100, 900)
        call = sim.call("cudaGraphLaunch", at + (5_200 if step in new else 100), 20)
        sim.device("gemm", at + 5_300, 4_000, call)
    return sim


@pytest.mark.parametrize("how", ["captured", "run once"])
def test_graphs_for_ever_new_sizes(how: str) -> None:
    """Case 27; "run once": a size that comes for the first time is not captured yet."""
    from torch._inductor import config

    labels = Path(config.__file__).with_name("cudagraph_trees.py").read_text()
    assert '"CUDAGraphNode.record"' in labels
    assert '"cudagraphify.get_container"' in labels
    sim = _replays((0, 2, 3, 5), how)
    finding = _finding(sim, "graphs-anew")
    assert finding.title == "CUDA graphs are made anew in 4 of 6 steps"
    assert "F.pad" in finding.what_to_do
    assert "config.triton.cudagraph_skip_dynamic_graphs = True" in finding.what_to_do
    assert config.triton.cudagraph_skip_dynamic_graphs is False
    assert finding.gain_at_most == pytest.approx(60 / (60 - 4 * 5.5), rel=0.01)
    assert "launch-bound" not in _rules(sim)  # whose cure would be more graphs


def test_a_graph_that_is_captured_by_hand_in_each_step() -> None:
    finding = _finding(_replays(tuple(range(6)), "by hand"), "graphs-anew")
    assert "captured once, before the loop" in finding.what_to_do


@pytest.mark.parametrize("new", [(), (0, 1), (0, 1, 2), (5,)])
def test_graphs_that_are_only_replayed_in_later_steps_are_fine(new: tuple[int, ...]) -> None:
    for how in ("captured", "run once", "by hand"):
        assert "graphs-anew" not in _rules(_replays(new, how))


def test_breaks_in_the_graph() -> None:
    broken = GraphBreak("train.py:12", "Unsupported Tensor.item() call", 2)
    told = _finding(_compiled(between=1_500), "graph-breaks", facts=_log(breaks=(broken,)))
    assert "train.py:12 ended a graph 2 times: Unsupported Tensor.item() call" in told.evidence
    finding = _finding(_compiled(between=1_500), "graph-breaks")
    assert finding.evidence[0].startswith("2 compiled regions per step; what runs between")
    assert "graph-breaks" not in _rules(_compiled(between=100))
    assert "graph-breaks" not in _rules(_compiled(between=1_500, regions=1))


# --- what does not belong in a step --------------------------------------------------------


def test_garbage_collection() -> None:
    finding = _finding(cpu_training(6), "gc-pauses", facts=Facts(gc_pauses_ms=(0.5, 1.0)))
    assert finding.evidence[0].startswith("2 collections in 6 steps took 1.50 ms (")
    assert "gc-pauses" not in _rules(cpu_training(6), facts=Facts(gc_pauses_ms=(0.1,)))


# --- shapes -------------------------------------------------------------------------------


def _products(n: int, dtype: str, rows: int = 64) -> Simulated:
    sim = gpu_training(4, n_kernels=30, every=96)
    for event in sim.events:
        if event["name"] == "aten::linear":
            event["name"] = "aten::mm"
            event["args"] |= {
                "Input Dims": [[rows, n], [n, 128]],
                "Input type": [dtype, dtype],
            }
    return sim


def test_products_that_do_not_fit_the_tensor_cores() -> None:
    finding = _finding(_products(1001, "c10::BFloat16"), "matmul-alignment")
    assert "[64, 1001] × [1001, 128]" in finding.evidence[0]
    assert finding.gain_at_most < 4
    assert _rules(_products(1008, "c10::BFloat16")) == set()
    assert _rules(_products(1001, "float")) == set()
    assert _rules(_products(1001, "c10::BFloat16", rows=33)) == {"matmul-alignment"}
    # a vector: padding x's last dimension leaves the one row as it is
    assert _rules(_products(1024, "c10::BFloat16", rows=1)) == set()
