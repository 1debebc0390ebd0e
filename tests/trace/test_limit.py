"""How far a step is from the lower bound: by hand, on real steps, and where nothing is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_traces import Simulated, cpu_training, product_on_gpu
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

import perfkit
from perfkit import show
from perfkit.advice.profile import explain
from perfkit.base.device import of
from perfkit.base.errors import UsageError
from perfkit.base.machine import stamp
from perfkit.cli import main
from perfkit.limit import kept
from perfkit.limit.peaks import MemoryRate, Peaks, ProductRate, Rate
from perfkit.show.limit import limit_sentence
from perfkit.trace import Limit, limit, load
from perfkit.trace.ask.breakdown import device_step_us
from perfkit.trace.read.steps import find_steps


def test_a_step_beside_the_data_sheet() -> None:
    found = limit(load(product_on_gpu()))
    product, added = found.ops
    assert (product.op, product.family, product.form) == ("aten::mm", "matrix product", "bfloat16")
    assert product.flops == 2 * 2 * 4096**3
    assert product.least_us == pytest.approx(2 * 2 * 4096**3 / 989.5e6)
    assert product.measured_us == 400
    assert product.bound == "arithmetic"
    moved = 3 * 4096**2 * 2
    assert (added.n_bytes, added.bound) == (2 * moved, "memory")
    assert added.least_us == pytest.approx(2 * moved / 3.35e6)
    assert [(u.op, u.count, u.measured_us) for u in found.unknown] == [("aten::sort", 2, 60)]
    assert found.host_copies_us == 100
    assert found.counted_share == pytest.approx(600 / 660)
    assert (found.device, found.kind, found.is_other) == ("H100 SXM", "predicted", False)
    assert found.n_bytes == 2 * moved
    least_us = 2 * 4096**3 / 989.5e6 + moved / 3.35e6
    assert found.least_us == pytest.approx(least_us)
    assert found.ratio == pytest.approx(1_000 / least_us)
    assert found.mfu == found.hfu == pytest.approx(2 * 4096**3 / 989.5e6 / 1_000)
    assert product.intensity == product.flops / product.n_bytes
    assert product.ratio == product.measured_us / (product.least_us or 0)
    assert replace(product, least_us=None).ratio is replace(product, measured_us=0).ratio is None
    said = found.summary()
    assert (said["kind"], said["step_ms"], said["least_ms"]) == ("predicted", 1, least_us / 1e3)
    assert replace(found, ops=(added,)).hfu is None  # no product


def test_an_attentions_backward_pass_computes_one_of_its_five_products_again() -> None:
    """The scores, which the forward pass did not keep: work of the hardware, not of the model."""
    whole = json.loads(product_on_gpu())
    for event in (e for e in whole["traceEvents"] if e["name"] == "aten::mm"):
        event["name"] = "aten::_scaled_dot_product_flash_attention_backward"
        event["args"]["Input Dims"] = [[2, 8, 512, 64]] * 4
        event["args"]["Input type"] = ["c10::BFloat16"] * 4
    found = limit(load(json.dumps(whole).encode()))
    assert found.ops[0].family == "attention"
    assert found.ops[0].flops == 2 * 5 * (2 * 2 * 8 * 512 * 512 * 64)
    assert found.ops[0].recomputed_flops == pytest.approx(found.ops[0].flops / 5)
    assert found.mfu == pytest.approx(0.8 * (found.hfu or 0))


def test_what_is_above_the_least_time_adds_up_to_the_step() -> None:
    found = limit(load(product_on_gpu()))
    rest = found.rest_us()
    assert found.least_us + sum(rest.values()) == pytest.approx(1_000)
    assert rest["the device idles"] == pytest.approx(1_000 - 200 - 100 - 50 - 30)
    assert rest["copies between host and device"] == 50
    assert rest["operators whose work is unknown"] == 30
    said = " ".join(found.to_text().split())
    assert "By its data sheet, an H100 SXM needs at least" in said
    assert "of the rest is time in which the device idles" in said
    assert "predicted: rates of H100 SXM" in said
    # 620 of 1000 µs idle: without that 2.6 times as fast at most
    assert "the device idles 620 µs 62 % 2.6×" in said
    assert "sort" in said


def _on_the_host(*calls: tuple[str, Any, list[str]]) -> Limit:
    """One step of these operators, each with its shapes and dtypes."""
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for at, (name, dims, types) in enumerate(calls):
        sim.host(name, 100 * at, 50, **{"Input Dims": dims, "Input type": types})
    return limit(load(sim.json()))


_X, _WEIGHT, _OUT = [8, 3, 32, 32], [16, 3, 3, 3], [8, 16, 30, 30]
_FORWARD = ("aten::convolution", [_X, _WEIGHT, []], ["float", "float", ""])


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::convolution_backward", [_OUT, _X, _WEIGHT]),
        ("aten::cudnn_convolution_backward", [_X, _OUT, _WEIGHT]),
    ],
)
def test_the_output_of_an_older_traces_convolution_is_that_of_its_backward_pass(
    name: str, dims: list[list[int]]
) -> None:
    """Its stride is not recorded."""
    found = _on_the_host(_FORWARD, (name, dims, ["float"] * 3))
    assert found.unknown == ()
    (forward,) = (o for o in found.ops if o.op == "aten::convolution")
    assert forward.flops == 2 * (8 * 30 * 30) * (16 * 3 * 3 * 3)
    assert not any(o.recomputed_flops for o in found.ops)
    other = json.loads(json.dumps(dims).replace("30, 30", "15, 15"))
    twice = (_FORWARD, (name, dims, ["float"] * 3), (name, other, ["float"] * 3))
    for calls in ((_FORWARD,), twice):  # of two outputs nobody says which
        (unknown,) = _on_the_host(*calls).unknown
        assert unknown.why == "its shapes do not say"


def test_lists_of_an_optimizer_have_the_dtype_in_which_gradients_are_accumulated() -> None:
    scaled = ("aten::_foreach_mul_", [[[1000], [500]], []], ["TensorList", "Scalar"])
    half, single = (
        ("torch::autograd::AccumulateGrad", [[1000]], [dtype]) for dtype in ("c10::Half", "float")
    )
    assert [o.n_bytes for o in _on_the_host(half, scaled).ops] == [2 * 2 * 1500]
    nothing = ("torch::autograd::AccumulateGrad", [[]], ["Scalar"])
    assert len(_on_the_host(nothing, half, scaled).ops) == 1
    adam = ("aten::_fused_adam_", [[[8]], [[8]], [[8]], [[8], [8]]], ["TensorList"] * 4)
    (unknown,) = _on_the_host(half, adam).unknown
    assert unknown.why == "its shapes do not say"
    # what only calls others, or is no operator, is no unknown work
    assert _on_the_host(("aten::linear", [], []), ("relu", [], []), half).unknown == ()
    with_none = ("aten::_foreach_mul_", [[[1000]], []], ["TensorList", "TensorList"])
    for calls in ((scaled,), (with_none,), (half, single, scaled)):
        (unknown,) = _on_the_host(*calls).unknown
        assert unknown.why == "the profiler writes no dtypes of lists"


def test_a_kernel_of_unknown_launch_is_nobodys() -> None:
    sim = Simulated()
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    sim.step(0, 0, 1_000)
    sim.device("stray", 100, 300, -1)
    for at in (10, 500):
        op = sim.host("aten::mm", at, 100, **shapes)
        sim.device("gemm", at + 20, 10, sim.call("cudaLaunchKernel", at + 5, 5, op))
    sim.host("aten::mm", 900, 50, **shapes)
    found = limit(load(sim.json()))
    assert [o.measured_us for o in found.ops] == [20]
    assert found.unknown == ()
    op = sim.host("aten::bmm", 700, 50, **shapes)  # no batch
    for at in (710, 720):
        sim.device("gemm", at + 20, 5, sim.call("cudaLaunchKernel", at, 5, op))
    (unknown,) = limit(load(sim.json())).unknown
    assert (unknown.op, unknown.count, unknown.measured_us) == ("aten::bmm", 2, 10)


def test_collectives_are_no_unknown_work() -> None:
    """Only what of them no other work hides is a part of the step."""
    sim = Simulated()
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    for i in range(2):
        at = 1_000 * i
        sim.step(i, at, 1_000)
        op = sim.host("aten::mm", at, 20, **shapes)
        sim.device("gemm", at + 100, 300, sim.call("cudaLaunchKernel", at + 10, 5, op))
        op = sim.host("nccl:all_reduce", at + 30, 20)
        talk = sim.call("cudaLaunchKernel", at + 40, 5, op)
        sim.device("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at + 300, 300, talk, stream=20)
    whole = json.loads(sim.json())
    whole["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    found = limit(load(json.dumps(whole).encode()))
    assert found.unknown == ()
    assert found.counted_share == 1
    assert found.communication_us == 2 * 200
    rest = found.rest_us()
    assert rest["communication that nothing hides"] == 200
    assert rest["the device idles"] == pytest.approx(1_000 - 300 - 200)
    assert found.least_us + sum(rest.values()) == pytest.approx(1_000)


def test_kernels_tell_which_products_are_tf32() -> None:
    plain = limit(load(product_on_gpu(dtype="float")))
    assert plain.ops[0].form == "float32"
    tf32 = limit(
        load(product_on_gpu(dtype="float", kernel="cutlass_80_tensorop_s1688gemm_128x128"))
    )
    assert tf32.ops[0].form == "tf32"
    assert tf32.ops[0].least_us is not None
    assert plain.ops[0].least_us == pytest.approx(tf32.ops[0].least_us * 494.5 / 67)


def test_a_format_without_a_rate_and_a_memory_of_no_sheet_are_told() -> None:
    found = limit(load(product_on_gpu(dtype="double", name="Tesla T4")))
    assert "no rate is known for products in float64" in found.warnings
    assert limit(load(product_on_gpu(name="Tesla T4"))).kind == "predicted"
    assert limit(load(product_on_gpu(name="NVIDIA A100-SXM4"))).kind == ""  # of 80 GB: two are so
    die = limit(load(product_on_gpu(name="AMD Instinct MI250X")))
    assert any("rates of one die" in w for w in die.warnings)


def test_another_device_is_a_prediction_without_a_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = limit(load(product_on_gpu()), device="A100 80GB SXM")
    assert (found.is_other, found.ratio, found.mfu) == (True, None, None)
    assert found.to_text().startswith("A100 80GB SXM: at least 490 µs")
    assert not limit(load(product_on_gpu()), device="h100").is_other
    path = tmp_path / "trace.json"
    path.write_bytes(product_on_gpu())
    assert main(["trace", str(path), "--as", "H200"]) == 0
    assert "H200: at least" in capsys.readouterr().out
    assert main(["trace", str(path), "--as", "H200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "predicted"
    assert main(["trace", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"]["device"] == "H100 SXM"
    assert main(["trace", str(path), "--as", "Z9000"]) == 2
    assert "there are: V100 SXM2" in capsys.readouterr().err
    assert main(["trace", str(path), "--as", "H200", "--ask", "idle"]) == 2
    assert "--as is for the limit" in capsys.readouterr().err


def test_unknown_devices_have_work_but_no_least_time() -> None:
    found = limit(load(product_on_gpu(name="A Device")))
    assert (found.kind, found.least_us, found.ratio, found.mfu) == ("", 0, None, None)
    assert found.summary()["kind"] is found.summary()["least_ms"] is None
    assert not found.is_known
    assert found.flops == 2 * 4096**3
    assert "how fast that could be is not known" in " ".join(found.to_text().split())
    with pytest.raises(UsageError, match="no picture"):
        found.figure()
    with pytest.raises(UsageError, match="no data sheet of 'nope'"):
        limit(load(product_on_gpu()), device="nope")


@pytest.mark.parametrize("odd", [[], {}, "x", [3], {"0": 1}, [{"name": 5}], [{}]])
def test_properties_of_devices_that_are_none_name_no_device(odd: Any) -> None:
    whole = json.loads(product_on_gpu())
    whole["deviceProperties"] = odd
    found = limit(load(json.dumps(whole).encode()))
    assert (found.recorded_on, found.kind) == ("a device", "")
    whole["deviceProperties"] = [{"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": "80"}]
    assert limit(load(json.dumps(whole).encode())).device == "H100 SXM"


def test_without_shapes_nothing_is_counted() -> None:
    found = limit(load(cpu_training(2).json()))
    assert (found.ops, found.recorded_on) == ((), "cpu")
    assert any("record_shapes" in w for w in found.warnings)
    assert "not recorded" in found.to_text()


def test_a_cpu_trace_from_a_file_is_of_an_unknown_machine(kept_here: Peaks) -> None:
    sim = Simulated()
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    for at in (0, 1_000):
        sim.step(at // 1_000, at, 1_000)
        sim.host("aten::mm", at + 10, 100, **shapes)
    trace = load(sim.json())
    assert limit(trace).kind == ""
    found = limit(trace, device="here")
    assert found.kind == "measured here"
    rest = found.rest_us()
    assert set(rest) == {"matrix product above its lower bound", "the host between operators"}
    assert rest["the host between operators"] == 900
    assert found.least_us + sum(rest.values()) == pytest.approx(1_000)


@pytest.fixture
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peaks:
    """Peaks of this CPU that no machine reaches, so that no step is faster than its lower bound."""
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "home"))

    def rate(best: float) -> Rate:
        return Rate(best, best, best, 5)

    found = Peaks(
        device="cpu", place="cpu", device_memory_bytes=0, threads=torch.get_num_threads(),
        products=(ProductRate("float32", 1024, rate(1e13)),),
        memory=(MemoryRate("copy", 2**20, rate(1e12)),), copies={}, disk=None, disk_where="",
        launch_us=rate(1.0), round_trip_us=None, seconds=1.0, busy="", is_spoiled=False,
        provenance=replace(stamp(device="cpu"), kind="measured here"),
    )  # fmt: skip
    kept._keep(found)
    return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(50, 32), nn.Linear(32, 96)
        self.norm, self.out, self.head = nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 50)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(4, 16, 3, 2, 16).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(found.transpose(1, 2).reshape(4, 16, 32))

    def forward(self, tokens: torch.Tensor, *, again: bool = False) -> torch.Tensor:
        x = self.embed(tokens)
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = checkpoint(self.body, x, use_reentrant=False) if again else self.body(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


# of a step's scaled_dot_product_attention, forward and backward: torch's counter has no formula
# for the CPU's own
_SCORES = 2 * 4 * 2 * 16 * 16 * 16
_ATTENTION, _ATTENTION_BACK = 2 * _SCORES, 5 * _SCORES


def profiled(
    *, again: bool = False, shapes: bool = True, **options: Any
) -> tuple[perfkit.advice.profile.Profile, int]:
    """A profile of real steps, and the FLOPs of one as torch counts them."""
    torch.manual_seed(0)
    model, tokens = Block(), torch.randint(0, 50, (4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, again=again).backward()
        optimizer.step()

    step()
    counter = FlopCounterMode(display=False)
    with counter:
        step()
    found = perfkit.profile(step, steps=2, shapes=shapes)
    attention = (2 if again else 1) * _ATTENTION + _ATTENTION_BACK if has_flash(found) else 0
    return found, counter.get_total_flops() + attention


def has_flash(profile: perfkit.advice.profile.Profile) -> bool:
    """Whether attention is one operator; in some builds it is matrix products and a softmax."""
    return any("_flash_attention_for_cpu" in o.name for o in profile.operators)


def test_a_real_step_is_counted_as_torch_counts_it(kept_here: Peaks) -> None:
    profile, flops = profiled()
    found = profile.limit
    assert isinstance(found, Limit)
    assert found.flops == flops
    assert found.kind == "measured here"
    assert found.unknown == () or not has_flash(profile)
    assert found.ratio is not None
    assert found.ratio > 1
    families = {"matrix product", "convolution", "normalization", "embedding"}
    assert families | ({"attention"} if has_flash(profile) else set()) <= set(found.families())
    assert found.mfu is not None
    assert found.hfu is not None
    assert found.mfu > 0
    if has_flash(profile):  # the attention's backward pass computes the scores again
        assert found.mfu < (1 - 1e-6) * found.hfu
    else:
        assert found.mfu == pytest.approx(found.hfu)
    assert show.html(found).count('<i style="left:') >= 3
    assert found.figure().get_axes()[0].get_xscale() == "log"
    if profile.busy is None or not profile.busy.spoils:
        assert "The lower bound of this step on this machine is" in " ".join(
            profile.to_text().split()
        )
    assert profile.to_dict()["limit"]["flops"] == flops


def test_checkpointing_counts_for_hfu_and_not_for_mfu(kept_here: Peaks) -> None:
    with set_checkpoint_early_stop(False):  # whether its last operator counts is torch's secret
        plain, plain_flops = profiled()
        again, flops = profiled(again=True)
    assert plain.limit is not None
    assert again.limit is not None
    assert flops > plain_flops
    assert again.limit.flops == flops

    def repeated(found: Limit) -> float:
        return sum(o.recomputed_flops for o in found.ops) / found.n_steps

    # of a step without checkpoints only the scores, which the attention's backward pass needs again
    assert repeated(plain.limit) == pytest.approx(_SCORES if has_flash(plain) else 0)
    assert repeated(again.limit) - repeated(plain.limit) == flops - plain_flops


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}])
def test_optimizers_of_lists_move_what_they_must(
    kept_here: Peaks, options: dict[str, bool]
) -> None:
    profile, _ = profiled(**options)
    assert profile.limit is not None
    parameters = sum(p.numel() for p in Block().parameters())
    kind = "_fused_" if "fused" in options else "_foreach_"
    lists = [o for o in profile.limit.ops if kind in o.op]
    moved = sum(o.n_bytes for o in lists) / profile.limit.n_steps
    # fused: reads four and writes three; one after another: much more
    assert moved >= 7 * 4 * parameters
    assert (moved == 7 * 4 * parameters) == ("fused" in options)


def test_a_profile_is_silent_where_no_peaks_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "nothing"))
    profile, _ = profiled(shapes=False)
    assert profile.limit is None
    assert (profile.trace.dims_id < 0).all()
    assert "The lower bound of" not in profile.to_text()
    shaped = perfkit.profile(lambda: torch.rand(64, 64) @ torch.rand(64, 64), shapes=True, steps=2)
    assert shaped.limit is not None
    assert not shaped.limit.is_known
    assert "The least" not in shaped.to_text()


def test_shapes_are_recorded_where_the_peaks_are_known(
    kept_here: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as in a process that uses no GPU; other tests of this one may
    monkeypatch.setattr("perfkit.limit.kept.in_use", lambda: of("cpu"))
    profile, _ = profiled(shapes=False)
    assert profile.limit is not None
    assert profile.limit.is_known


def test_a_trace_that_cannot_be_counted_costs_no_report(
    kept_here: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Limit:
        raise ZeroDivisionError

    monkeypatch.setattr("perfkit.trace.ask.limit.limit", broken)
    profile, _ = profiled()
    assert profile.limit is None
    assert any("could not be counted (ZeroDivisionError)" in w for w in profile.warnings)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("ampere_sgemm_128x64_nn", "held against 67.0 TFLOP/s in float32: no kernel of its float32 "
         "products computes in TF32, which would be 494 TFLOP/s "
         '(`torch.set_float32_matmul_precision("high")`)'),
        ("nvjet_sss_tf32_128x256_TNT", "held against 494 TFLOP/s in TF32: the kernels of its "
         "float32 products compute in TF32."),
    ],
)  # fmt: skip
def test_float32_products_say_which_peak_was_taken_and_why(kernel: str, said: str) -> None:
    found = limit(load(product_on_gpu(dtype="float", kernel=kernel)))
    assert said in " ".join(found.to_text().split())


def test_a_device_without_tf32_computes_in_float32() -> None:
    trace = load(product_on_gpu(dtype="float", kernel="sm80_xmma_gemm_f32f32_tf32f32_f32_nn"))
    found = limit(trace, device="V100 SXM2")
    assert found.ops[0].form == "float32"
    assert not found.warnings


def behind() -> bytes:
    """Two steps of 1 ms on the host, whose products take the device 5 ms each."""
    sim = Simulated()
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    for i in range(2):
        sim.step(i, i * 1_000, 1_000)
        op = sim.host("aten::mm", i * 1_000 + 10, 100, **shapes)
        call = sim.call("cudaLaunchKernel", i * 1_000 + 20, 10, op)
        sim.device("gemm", 100 + i * 5_000, 5_000, call)
    whole = json.loads(sim.json())
    whole["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    return json.dumps(whole).encode()


def test_where_the_host_ran_ahead_a_step_takes_what_the_device_works_on_it() -> None:
    trace = load(behind())
    found = limit(trace)
    assert found.measured_step_us == pytest.approx(5_000)
    assert found.mfu == pytest.approx(2 * 4096**3 / 989.5e12 / 5e-3, rel=1e-3)
    assert "it took 5.00 ms" in " ".join(found.to_text().split())
    assert device_step_us(load(product_on_gpu()), find_steps(load(product_on_gpu()))) is None
    said = " ".join(perfkit.open_trace(trace).ask("waterfall").to_text().split())
    assert "step takes 5.00 ms" in said
    assert found.rest_us()["the device idles"] == pytest.approx(0)


@pytest.mark.parametrize(("work_us", "told_us"), [(1_040, None), (1_060, 1_060)])
def test_the_host_ran_ahead_where_the_devices_work_is_a_twentieth_longer_than_the_steps(
    work_us: float, told_us: float | None
) -> None:
    """The last kernels of a step may end after it though the host waits in each."""
    sim = Simulated()
    for i in range(10):
        sim.step(i, i * 1_000, 1_000)
        sim.kernel("aten::mm", i * 1_000 + 10, i * work_us + 50, work_us)
    trace = load(sim.json())
    assert device_step_us(trace, find_steps(trace)) == told_us


def test_the_headline_names_the_devices_time_where_the_host_ran_ahead() -> None:
    said = " ".join(explain(load(behind())).to_text().split())
    assert "5.00 ms a step, by the device: the host ran ahead" in said


def test_where_the_host_ran_ahead_all_that_the_device_works_on_the_steps_is_shared_out() -> None:
    """As of one rank of several: 70 % were exchanges until the host's end, and 66 % of all."""
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 1_000, 1_000)
        sim.kernel("aten::mm", i * 1_000 + 10, i * 5_000 + 50, 2_000)
        call = sim.call("cudaLaunchKernel", i * 1_000 + 500, 5)
        sim.device("ncclDevKernel_AllReduce_Sum_f32_RING_LL", i * 5_000 + 2_050, 3_000, call)
    shares = explain(load(sim.json())).device_shares
    assert shares["communication"] == pytest.approx(0.6)
    assert shares["compute"] == pytest.approx(0.4)


def test_what_the_profiler_adds_is_no_idle_time_of_the_device() -> None:
    found = replace(limit(load(product_on_gpu())), step_us=500.0, is_unprofiled=True)
    said = " ".join(found.to_text().split())
    assert "it took 500 µs without the profiler" in said
    assert "From the lower bound to the step without the profiler" in said
    # 380 µs of work a step
    assert found.rest_us()["the device idles"] == pytest.approx(120)


@pytest.mark.parametrize(("times", "is_less"), [(0.98, True), (1.0, False), (1.02, False)])
def test_a_step_below_its_least_time_names_what_the_shapes_do_not_tell(
    times: float, is_less: bool
) -> None:
    """An expanded gradient counts as large as its shape, and nothing said so."""
    found = limit(load(product_on_gpu()))
    sentence = limit_sentence(replace(found, step_us=times * found.least_us))
    assert ("less than that" in sentence) is is_less
    assert ("expanded from less" in sentence) is is_less
