"""What is said of traces is true: kinds of false statements found on real ones, each made small."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from simulated_traces import WORKERS, Simulated

import perfkit
from perfkit.advice.open_trace import OpenTrace
from perfkit.advice.trace_report import trace_report

TRACES = Path(__file__).parents[1] / "golden" / "traces"


def _open(name: str) -> OpenTrace:
    return perfkit.open_trace(TRACES / f"{name}.json.gz")


def _found(opened: OpenTrace) -> dict[str, Any]:
    """Rule → finding."""
    return {one["rule"]: one for one in opened.to_dict()["findings"]}


@pytest.mark.parametrize(
    "name", ["inductor_bf16", "cutlass_fp8", "deepgemm", "vllm_fp8", "triton_tutorial"]
)
def test_a_name_without_a_word_of_tensor_cores_is_no_proof_of_float32(name: str) -> None:
    opened = _open(f"gemm_{name}")
    assert not {"tf32-off", "tensor-cores-unused", "32-bits"} & _found(opened).keys()
    kernels = opened.ask("kernels")
    assert (kernels.tensor_core_share, kernels.untold_share) == (None, 1.0)
    assert "precision unknown for" in str(kernels).splitlines()[0]


def test_names_that_say_float32_still_prove_it() -> None:
    assert "tf32-off" in _found(_open("h200_tf32_off"))


@pytest.mark.parametrize("name", ["final_sync_late", "final_sync_ontime"])
def test_a_region_that_ends_before_its_last_wait_returns_computes(name: str) -> None:
    path = _open(name).ask("critical-path")
    assert path.bound_by == "compute"
    assert path.by_class_us["device: compute"] > 0.99 * path.wall_us


def test_one_launch_that_took_long_is_start_up_and_no_pace_of_launching() -> None:
    """It loaded code: the others take 10 µs."""
    for name in ("first_launch_once", "first_launch_once_nostep"):
        opened = _open(name)
        assert _found(opened).keys() == {"start-up"}
        assert (
            "start-up: cudaLaunchKernel in aten::index_select took 320 ms"
            in opened.profile.diagnosis.headline
        )
        assert opened.ask("idle").shares()["launch"] < 0.01
        assert opened.ask("critical-path").bound_by == "setup"


def test_start_up_launches_and_other_work_are_each_counted_once() -> None:
    opened = _open("host_sum")
    idle = opened.ask("idle").shares()
    assert idle["setup"] == pytest.approx(0.18, abs=0.01)
    assert idle["launch"] == pytest.approx(0.4, abs=0.01)
    assert idle["host"] == pytest.approx(0.4, abs=0.01)
    assert "40 % of each step" in opened.profile.diagnosis.headline


def test_start_up_is_what_later_steps_lack() -> None:
    """cuDNN searched anew for each new shape, in every step."""
    opened = _open("h200_cudnn_benchmark_shapes")
    found = _found(opened)
    assert found.keys() == {"algorithm-search"}
    assert "cudnn.benchmark = False" in found["algorithm-search"]["what_to_do"]
    headline = opened.profile.diagnosis.headline
    assert "start-up" not in headline
    assert "search for their fastest algorithm, in every step" in headline


@pytest.mark.parametrize("name", ["context_cudafree", "context_cudafree_no_ops"])
def test_the_one_call_that_makes_the_context_is_start_up(name: str) -> None:
    assert _found(_open(name)).keys() - {"unfused-kernels"} == {"start-up"}


def test_a_driver_outside_of_operators_is_named_in_headline_and_path() -> None:
    opened = _open("cudafree_outside_ops")
    assert "device waits for cudaFree" in opened.profile.diagnosis.verdict
    assert "Python" not in opened.profile.diagnosis.headline
    assert opened.ask("critical-path").bound_by == "driver"
    alone = _open("cudafree_outside_ops_nokernels")
    assert alone.profile.diagnosis.verdict == "84 % of that time is in cudaFree."
    assert "the device's work was not recorded" in alone.profile.diagnosis.headline


def test_two_streams_fill_the_device_together() -> None:
    """112 and 20 blocks on 132 multiprocessors; and DeepEP's kernels are communication."""
    opened = _open("overlap_two_streams")
    assert "small-kernels" not in _found(opened)
    assert opened.ask("communication").busy_us > 0
    assert not any("known as communication" in said for said in opened.profile.warnings)


def test_ranks_whose_exchange_has_no_known_name_are_told() -> None:
    raw = gzip.decompress((TRACES / "overlap_two_streams.json.gz").read_bytes())
    opened = perfkit.open_trace(raw.replace(b"ep::internode::combine", b"mine::swap"))
    assert any("64 ranks ran, and no kernel is known" in said for said in opened.profile.warnings)


@pytest.mark.parametrize("name", ["bare_inf", "python_nan"])
def test_a_value_that_is_no_number_does_not_take_its_kernel_away(name: str) -> None:
    opened = _open(name)
    assert sum(k.count for k in opened.ask("kernels").kernels) == 200
    assert opened.profile.breakdown.has_device


def test_a_large_trace_keeps_its_kernels_too() -> None:
    """Read in pieces."""
    raw = gzip.decompress((TRACES / "bare_inf.json.gz").read_bytes())
    head, events = raw.split(b'"traceEvents": [', 1)
    events, tail = events.rsplit(b"]", 1)
    many = head + b'"traceEvents": [' + b", ".join([events] * 10) + b"]" + tail
    opened = perfkit.open_trace(many)
    assert len(many) > 2**20
    assert sum(k.count for k in opened.ask("kernels").kernels) == 2000


def test_operators_that_were_not_recorded_are_not_python() -> None:
    opened = _open("no_cpu_ops")
    said = opened.profile.diagnosis
    assert "no operator was recorded" in said.headline
    assert not said.findings
    assert "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in said.no_cure


def test_a_device_that_was_asked_for_is_not_to_be_asked_for_again() -> None:
    said = _open("cuda_asked_no_kernels").profile.diagnosis
    assert "delivered none" in said.no_cure
    assert "activities=" not in said.no_cure


def test_beside_the_other_ranks_no_wait_is_guessed() -> None:
    files = [TRACES / f"tworanks_r{rank}.json.gz" for rank in (0, 1)]
    text = trace_report(files).to_text()
    assert "may be waiting" not in text
    assert "0 ms of that is waiting for a later rank" in text
    assert "may be waiting" in _open("tworanks_r0").to_text()  # alone, it is not known


def test_the_costliest_operator_is_named_beside_findings() -> None:
    opened = _open("slow_conv_cpu")
    assert opened.profile.diagnosis.findings
    assert str(opened).startswith(
        "Compute-bound: 96 % of that time is spent in aten::_slow_conv2d_forward. "
    )
    assert "Costliest operator: aten::_slow_conv2d_forward, 97 %" in " ".join(
        opened.to_text().split()
    )


@pytest.mark.parametrize("program", ["metrics_cpu", "scaler_clip"])
def test_a_hook_of_the_optimizer_is_no_update(program: str) -> None:
    """Told as slow launches, and to be cured by fewer updates."""
    opened = _open(f"h200_{program}")
    found = _found(opened)
    assert opened.profile.diagnosis.bound_by == "host"
    assert next(iter(found)) == "host-python"
    assert "hook of the optimizer" in found["host-python"]["sentence"]
    assert "optimizer._optimizer_step_post_hooks" in found["host-python"]["what_to_do"]
    assert not any("one update for four" in one["what_to_do"] for one in found.values())
    # it was the profiler's own: without it a graph brings 6 times as much
    assert {one["gain_at_most"] for one in found.values()} == {None}


@pytest.mark.parametrize(("slow", "told"), [({0, 1, 2, 3}, True), ({1}, False)])
def test_what_follows_one_update_of_several_is_no_hook(
    slow: set[int], told: bool, tmp_path: Path
) -> None:
    """Seen on a busy machine: another program had the core meanwhile."""
    sim, at = Simulated(), 1_000
    for n in range(4):
        tail = 20_000 if n in slow else 20
        sim.host(f"ProfilerStep#{n}", at, 5_000 + tail, "user_annotation")
        sim.host("aten::mm", at + 10, 4_000, "cpu_op")
        sim.host("Optimizer.step#SGD.step", at + 4_050, 900 + tail, "user_annotation")
        sim.host("aten::add_", at + 4_060, 800, "cpu_op")
        at += 5_000 + tail
    file = tmp_path / "trace.json"
    file.write_bytes(sim.json())
    assert ("hook of the optimizer" in perfkit.open_trace(file).to_text()) == told


def test_waits_that_a_graph_cannot_hold_are_named_beside_it() -> None:
    """Three kinds, none of which idles the device for long beside slow launches."""
    advised = _found(_open("h200_metrics_cpu"))["launch-bound"]["what_to_do"]
    for kind in (".cpu(), .tolist()", ".item(), float()", "nonzero, boolean index"):
        assert re.search(rf"#   [\d.]+ times? a step, [\d.]+ µs each: .*{re.escape(kind)}", advised)
    assert " a step, " not in _found(_open("h200_gpt_launch"))["launch-bound"]["what_to_do"]


def test_training_mode_without_training_is_told() -> None:
    found = _found(_open("train_mode_inference"))["train-mode"]
    assert found["what_to_do"].startswith("model.eval()")
    raw = gzip.decompress((TRACES / "train_mode_inference.json.gz").read_bytes())
    evaluated = perfkit.open_trace(raw.replace(b'"True", "0.1"', b'"False", "0.1"'))
    assert "train-mode" not in _found(evaluated)


def test_an_export_of_the_old_profiler_is_called_so() -> None:
    said = _open("old_autograd_profiler").profile.diagnosis
    assert "the old torch.autograd.profiler" in said.headline
    assert "record it again, with torch.profiler.profile" in said.no_cure


@pytest.mark.parametrize("name", ["bare_inf", "no_cpu_ops", "cudafree_outside_ops"])
def test_the_first_line_tells_no_part_of_the_idle_time_as_all_of_it(name: str) -> None:
    """It said 32, 48 and 84 % above a picture with 60, 60 and 94 %."""
    profile = _open(name).profile
    idle = f"In {profile.breakdown.device_shares()['idle']:.0%}".replace("%", " %")
    assert (
        "the device idles" not in profile.diagnosis.verdict
    ) or idle in profile.diagnosis.verdict


def test_sending_to_another_rank_is_no_computation() -> None:
    """The thread that begins it has it for an operator, until its end."""
    sim = Simulated()
    for i in range(6):
        at = 1_000.0 * i
        sim.step(i, at, 1_000)
        sim.host("aten::mm", at, 100)
        sim.host("gloo:send", at + 110, 850)
        sim.host("gloo:recv", at + 150, 600)
        sim.host("aten::add_", at + 760, 100)
    opened = perfkit.open_trace(sim.json())
    assert opened.profile.diagnosis.bound_by == "communication"
    assert opened.profile.breakdown.shares()["communication"] == pytest.approx(0.75)
    assert opened.profile.breakdown.shares()["forward"] == pytest.approx(0.2)
    assert _found(opened).keys() == {"host-collectives"}


def test_one_batch_does_not_show_that_workers_are_slow() -> None:
    def first(n: int) -> dict[str, Any]:
        sim = Simulated()
        for i in range(n):
            sim.label(WORKERS, i * 10_000, 9_000)
            sim.host("aten::mm", i * 10_000 + 9_000, 1_000)
        return _found(perfkit.open_trace(sim.json()))["dataloader-slow-workers"]

    assert "perhaps its workers started then" in first(1)["sentence"]
    assert "prefetch_factor" not in first(1)["what_to_do"]
    assert "do not keep up" in first(6)["sentence"]


def test_filling_tensors_on_the_host_is_no_launching() -> None:
    """A graph launches sooner, and still has to wait for the host's random numbers."""
    sim = Simulated()
    for i in range(4):
        at = 10_000.0 * i
        sim.step(i, at, 10_000)
        sim.host("aten::randn", at + 10, 7_000)
        sim.host("aten::to", at + 7_020, 500)
        sim.copy("HtoD (Pageable -> Device)", at + 7_030, 450, at + 7_040, 400)
        sim.kernel("aten::mm", at + 7_600, at + 7_650, 2_300)
    assert next(iter(found := _found(perfkit.open_trace(sim.json())))) == "made-on-host"
    assert "launch-bound" not in found
