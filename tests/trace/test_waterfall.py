"""From the step to its lower bound: by hand, in two orders, and where one removal uncovers another.

Times of the simulated traces are µs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_traces import SINGLE, WORKERS, Simulated, cpu_training, gpu_training, product_on_gpu

import perfkit
from perfkit import show
from perfkit.base.errors import UsageError
from perfkit.cli import main
from perfkit.limit.roofs import Roofs
from perfkit.trace import find_steps, limit, load, waterfall
from perfkit.trace.ask.waterfall import (
    CAUSES,
    Waterfall,
    _full_queue,
    _low,
    change,
)
from perfkit.trace.read.columns import RECORDED_HERE


def parts(of: Waterfall, what: str = "outside_in_ms") -> dict[str, Any]:
    """Cause → µs."""
    return {p.cause: pytest.approx(1e3 * getattr(p, what)) for p in of.parts}


def adds_up(of: Waterfall) -> None:
    for order in ("outside_in_ms", "inside_out_ms"):
        each = [getattr(p, order) for p in of.parts]
        assert min(each, default=0) >= 0
        assert sum(each) + of.floor_ms == pytest.approx(of.step_ms, rel=1e-12)
    assert [p.cause for p in of.parts] == [c for c in CAUSES if c in {p.cause for p in of.parts}]


def test_the_wait_for_data_is_a_part_and_the_kernels_are_the_floor() -> None:
    found = waterfall(load(gpu_training(4, wait=500).json()))
    adds_up(found)
    assert parts(found)["data"] == 500
    assert found.least_ms == 0
    assert found.uncounted_ms == pytest.approx(0.95)
    assert found.step_ms == pytest.approx(1.51)
    assert found.gain_of("data") == pytest.approx(1510 / 1010)
    assert found.gain_of("sync") == 1
    assert "waiting for data, 500 µs (33 %)" in " ".join(found.to_text().split())
    assert "not known: record shapes" in " ".join(found.to_text().split())


def busy_host() -> bytes:
    """Two steps of 1 ms, all of it launching on the host, beside a product of 900 µs."""
    sim = Simulated()
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    for i in range(2):
        at = i * 1_000
        sim.step(i, at, 1_000)
        op = sim.host("aten::mm", at, 1_000, **shapes)
        sim.device("gemm", at + 100, 900, sim.call("cudaLaunchKernel", at + 90, 10, op))
    whole = json.loads(sim.json())
    whole["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    return json.dumps(whole).encode()


def test_the_step_is_the_one_without_the_profiler() -> None:
    """Recording slows the host, and not the device: what it adds is no gain of any fix."""
    trace = load(busy_host())
    found = waterfall(trace, plain_ms=0.94)
    adds_up(found)
    assert found.step_ms == pytest.approx(0.94)
    assert parts(found)["launch"] == 40
    assert found.gain_of("launch") == pytest.approx(940 / 900)
    assert "A step takes 940 µs and needs at least" in " ".join(found.to_text().split())
    # a step is never shorter than the device's work on it
    assert waterfall(trace, plain_ms=0.5).step_ms == pytest.approx(0.9)
    faster = change(waterfall(trace), found)
    assert faster.ratio == pytest.approx(1000 / 940)
    assert "took 1.00 ms before and 940 µs after" in " ".join(faster.to_text().split())
    assert faster.warnings == ("the step before is longer for being recorded; the other is not",)
    assert change(found, found).warnings == ()


def test_where_the_host_ran_ahead_the_step_is_the_devices() -> None:
    """The marks of four steps end before the device has begun with the second."""
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 100, 100)
        op = sim.host("aten::mm", i * 100, 90)
        launch = sim.call("cudaLaunchKernel", i * 100 + 10, 5, op)
        sim.device("gemm", 50 + i * 1_000, 1_000, launch)
    found = waterfall(load(sim.json()))
    adds_up(found)
    assert found.step_ms == pytest.approx(1.0, rel=0.06)
    assert found.gain_of("launch") < 1.06


def test_an_operator_that_calls_others_works_itself_too() -> None:
    """A convolution on a CPU asks for memory first, a pooling fills its result."""
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::mkldnn_convolution", 100, 300)
    sim.host("aten::empty", 110, 10)
    sim.host("aten::max_pool2d_with_indices_backward", 500, 200)
    sim.host("aten::zero_", 510, 60)
    sim.host("aten::fill_", 515, 50)
    found = waterfall(load(sim.json()))
    adds_up(found)
    assert parts(found)["host"] == 500
    assert found.uncounted_ms == pytest.approx(0.5)
    unknown = {u.op: u.measured_us for u in limit(load(sim.json())).unknown}
    assert unknown["aten::mkldnn_convolution"] == 300
    assert sum(unknown.values()) == 500


def test_faster_kernels_bring_nothing_while_the_host_is_busy_all_the_time() -> None:
    found = waterfall(load(busy_host()))
    adds_up(found)
    least_us = 2 * 4096**3 / 989.5e6
    assert found.least_ms == pytest.approx(least_us / 1e3, rel=1e-4)
    assert parts(found) == {"launch": 100, "above": 900 - 1e3 * found.least_ms}
    # the other way round the host's work is uncovered, and is all of the gain
    inside_out = parts(found, "inside_out_ms")
    assert inside_out == {"launch": 1_000 - 1e3 * found.least_ms, "above": 0}
    assert found.gain_of("above") == 1
    assert found.gain_of("launch") == pytest.approx(1_000 / 900)
    assert found.orders_differ
    assert found.steps_ms == (1.0, 1.0)
    assert found.working_above_ms == pytest.approx(0.9 - found.least_ms)
    assert found.summary()["least_ms"] == found.least_ms
    assert replace(found, least_ms=0.0).summary()["least_ms"] is None
    one = found.parts[0]
    for share, differ in ((0.004, False), (0.006, True)):  # of the step, for one of two parts
        other = replace(one, inside_out_ms=one.outside_in_ms + share * found.step_ms)
        same = replace(one, inside_out_ms=one.outside_in_ms)
        assert replace(found, parts=(same, other)).orders_differ is differ
    assert found.above_ms == {"matrix product": pytest.approx(found.ms_of("above"))}


def test_a_wait_for_the_device_is_no_work_of_the_host() -> None:
    # ahead of the device, then waiting for it: faster kernels bring what they take less
    sim = gpu_training(4, item=True)
    found = waterfall(load(sim.json()))
    adds_up(found)
    assert {"sync", "launch", "pauses"} >= set(parts(found)) - {"copy", "host"}
    assert found.uncounted_ms == pytest.approx(0.95)


def test_a_launch_that_waits_for_room_in_the_queue_is_no_work_of_the_host() -> None:
    sim = Simulated()
    for i in range(2):
        at = i * 1_000
        sim.step(i, at, 1_000)
        for k in range(8):
            op = sim.host("aten::relu", at + 10 * k, 9)
            call = sim.call("cudaLaunchKernel", at + 10 * k + 1, 5, op)
            sim.device("relu", at + 100 * k, 100, call)
        op = sim.host("aten::mm", at + 100, 900)  # all of it in the launch
        sim.device("gemm", at + 800, 200, sim.call("cudaLaunchKernel", at + 100, 900, op))
    found = waterfall(load(sim.json()))
    adds_up(found)
    assert found.host_ms == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("usual_us", "long_us", "is_full"),
    [(5, 95, False), (5, 105, True), (20, 190, False), (20, 210, True)],
)
def test_a_queue_is_full_where_a_launch_takes_ten_times_the_usual_and_a_tenth_of_a_millisecond(
    usual_us: float, long_us: float, is_full: bool
) -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for k in range(10):
        took = long_us if k == 9 else usual_us
        op = sim.host("aten::relu", 50 * k, took + 2)
        sim.device("relu", 50 * k + 400, 40, sim.call("cudaLaunchKernel", 50 * k + 1, took, op))
    trace = load(sim.json())
    assert len(_full_queue(trace, find_steps(trace))) == is_full


@pytest.mark.parametrize(("loader", "paced"), [(WORKERS, True), (SINGLE, False)])
def test_late_workers_hide_what_else_could_be_faster(loader: str, paced: bool) -> None:
    trace = load(cpu_training(4, wait=300, python=200, loader=loader).json())
    found = waterfall(replace(trace, source=RECORDED_HERE))
    adds_up(found)
    assert found.workers_set_the_pace == paced
    assert not found.on_device
    assert parts(found)["data"] == 300
    other = next(p for p in found.parts if p.cause == "host")
    assert (other.alone_ms == 0) == paced
    assert found.orders_differ == paced
    said = " ".join(found.to_text().split())
    assert ("workers set the pace" in said) == paced


@pytest.mark.parametrize(("share", "paced"), [(0.04, False), (0.06, True)])
def test_workers_set_the_pace_where_a_twentieth_of_the_steps_waits_for_them(
    share: float, paced: bool
) -> None:
    """Batches that are ready take some 100 µs to fetch, which is less of nearly any step."""
    steps = find_steps(load(cpu_training(21).json()))
    rest_us = float((steps.end_ns - steps.start_ns).mean()) / 1e3
    made = cpu_training(21, wait=rest_us * share / (1 - share), loader=WORKERS)
    trace = replace(load(made.json()), source=RECORDED_HERE)
    assert waterfall(trace).workers_set_the_pace is paced


def test_a_trace_file_without_a_device_divides_the_host_and_promises_nothing(
    tmp_path: Path,
) -> None:
    """If a GPU was in use, its work is not in it."""
    path = tmp_path / "trace.json"
    path.write_bytes(cpu_training(4, wait=300, python=200).json())
    found = perfkit.waterfall(path)
    adds_up(found)
    assert not found.gives_gains
    with pytest.raises(UsageError, match="no device activity"):
        found.gain_of("data")
    told = json.loads(found.to_json())
    assert {p["alone_ms"] for p in told["parts"]} == {None}
    assert told["gives_gains"] is False
    said = " ".join(found.to_text().split())
    assert "the trace has no device activity" in said
    assert "at most" not in said
    assert "brings" not in said
    assert "waiting for data 300 µs" in said
    here = waterfall(replace(load(path), source=RECORDED_HERE))
    assert here.gives_gains
    assert here.gain_of("data") > 1
    assert "alone: at most so many times as fast" in " ".join(here.to_text().split())


def test_workers_that_are_late_once_do_not_set_the_pace() -> None:
    sim = cpu_training(1, wait=300)
    for n in range(1, 5):
        sim.host("aten::mm", 5_000 + n * 1_000, 900)
        sim.step(n, 5_000 + n * 1_000, 1_000)
    assert not waterfall(load(sim.json())).workers_set_the_pace


def test_operators_of_the_data_set_are_the_wait_for_data() -> None:
    sim = Simulated()
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    for i in range(2):
        at = i * 1_000
        sim.step(i, at, 1_000)
        sim.label(SINGLE, at, 400)
        sim.host("aten::mm", at + 10, 380, **shapes)
        sim.host("aten::mm", at + 500, 300, **shapes)
    found = waterfall(load(sim.json()))
    adds_up(found)
    assert parts(found) == {"data": 400, "host": 300}
    assert found.uncounted_ms == pytest.approx(0.3)
    assert sum(o.measured_us for o in limit(load(sim.json())).ops) == pytest.approx(2 * 680)


def test_on_the_host_collectives_are_no_wait_for_data() -> None:
    sim = cpu_training(3, wait=100)
    for mark in [e for e in sim.events if "ProfilerStep" in e["name"]]:
        sim.label("gloo:all_reduce", mark["ts"] + 100, 15)  # before the forward pass
    found = waterfall(load(sim.json()))
    adds_up(found)
    assert (parts(found)["communication"], parts(found)["data"]) == (15, 100)


def test_it_ends_where_the_limit_does() -> None:
    trace = load(product_on_gpu())
    found = waterfall(trace)
    adds_up(found)
    assert 1e3 * found.least_ms == pytest.approx(limit(trace).least_us, rel=1e-5)
    assert found.uncounted_ms == pytest.approx(0.03)
    assert sum(found.above_ms.values()) == pytest.approx(found.ms_of("above"))
    assert (found.device, found.kind) == ("H100 SXM", "predicted")


@pytest.mark.parametrize(("took_us", "is_less"), [(300, False), (200, True)])
def test_on_the_host_too_an_operator_below_its_least_time_is_a_doubt(
    took_us: float, is_less: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    roofs = Roofs("cpu", {"float32": 1e12}, ((2**20, 1e12),), "measured here")
    monkeypatch.setattr("perfkit.trace.ask.limit._roofs", lambda trace, device: roofs)
    sim = Simulated()
    shapes = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}
    for i in range(2):
        sim.step(i, 1_000 * i, 1_000)
        sim.host("aten::mm", 1_000 * i + 100, took_us, **shapes)
    found = waterfall(load(sim.json()))
    adds_up(found)
    least_us = 2 * 512**3 / 1e6
    assert 1e3 * found.least_ms == pytest.approx(min(least_us, took_us))
    assert parts(found)["host"] == 1_000 - took_us
    assert found.ms_of("above") == pytest.approx(max(took_us - least_us, 0) / 1e3, rel=1e-5)
    assert any("took less than their lower bound" in w for w in found.warnings) is is_less


def test_kernels_at_the_same_time_share_it() -> None:
    """Beside a product a sort, of which nothing is known: both are all of the 200 µs."""
    whole = json.loads(product_on_gpu())
    for event in whole["traceEvents"]:
        if event["name"] == "sort" and event["cat"] == "kernel":
            event |= {"ts": event["ts"] - 400, "dur": 200, "tid": 99}
            event["args"]["stream"] = 99
    found = waterfall(load(json.dumps(whole).encode()))
    adds_up(found)
    above_ms = (
        sum(max(us - low, 0) for us, low in limit(load(product_on_gpu())).families().values()) / 1e3
    )
    room_ms = 0.3 - found.least_ms  # the product's time and the addition's
    assert found.uncounted_ms == pytest.approx(room_ms * 0.2 / (0.2 + above_ms), rel=1e-4)
    assert found.ms_of("above") == pytest.approx(room_ms * above_ms / (0.2 + above_ms), rel=1e-4)


def test_only_the_recorded_device_has_a_waterfall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="NVIDIA H100 80GB HBM3; for H200 ask `limit`"):
        waterfall(load(product_on_gpu()), device="H200")
    path = tmp_path / "trace.json"
    path.write_bytes(product_on_gpu())
    profile = perfkit.open_trace(path).profile
    block = perfkit.profile()
    vars(block)["result"] = profile
    for source in (path, profile, block):
        assert perfkit.waterfall(source, device="H100 SXM").step_ms == pytest.approx(1.0)
        with pytest.raises(UsageError, match="for H200 ask `limit`"):
            perfkit.waterfall(source, device="H200")
    assert main(["trace", str(path), "--ask", "waterfall"]) == 0
    assert capsys.readouterr().out.startswith(
        "52 % of the step could go: Python and other host work"
    )
    assert main(["trace", str(path), "--ask", "waterfall", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ms"] == pytest.approx(1.0)


def test_two_recordings_on_one_scale() -> None:
    slow, fast = (load(gpu_training(4, wait=wait).json()) for wait in (500, 50))
    found = perfkit.waterfall(slow, fast)
    assert found.ratio == pytest.approx(1510 / 1060)
    assert sum(found.changes_ms.values()) == pytest.approx(1.06 - 1.51)
    assert found.changes_ms["data"] == pytest.approx(-0.45)
    has = {p.cause for one in (found.before, found.after) for p in one.parts}
    assert list(found.changes_ms) == [*(c for c in CAUSES if c in has), "uncounted", "least"]
    said = " ".join(found.to_text().split())
    assert "waiting for data, from 500 µs to 50.0 µs" in said
    document = show.document(found)
    assert document is not None
    scales = {picture.scale_ms for picture in document.pictures}  # type: ignore[attr-defined]
    assert scales == {found.before.step_ms}
    assert len(found.figure().axes) == 2
    there = change(found.before, replace(found.after, recorded_on="H100"))
    assert there.warnings == (f"recorded on two devices: {found.before.recorded_on}, H100",)
    other = perfkit.waterfall(load(product_on_gpu()), load(product_on_gpu(size=2048)))
    assert any("lower bounds differ" in w for w in other.warnings)
    assert other.changes_ms["least"] < 0
    assert sum(other.changes_ms.values()) == pytest.approx(0, abs=1e-9)  # of steps of one length


@pytest.mark.parametrize(("factor", "differ"), [(1.04, False), (1.06, True), (1 / 1.06, True)])
def test_steps_whose_least_times_differ_by_a_twentieth_do_not_do_the_same_work(
    factor: float, *, differ: bool
) -> None:
    found = waterfall(load(product_on_gpu()))
    other = replace(found, least_ms=factor * found.least_ms)
    assert any("lower bounds differ" in w for w in change(found, other).warnings) is differ
    assert change(found, replace(found, least_ms=0.0)).warnings == ()  # of one it is not known


def test_operators_that_took_less_than_their_least_time_are_a_doubt() -> None:
    """A product of 8192 takes an H100 a millisecond at least, and this one took 200 µs."""
    said = "took less than their lower bound"
    assert not any(said in w for w in waterfall(load(product_on_gpu())).warnings)
    assert any(said in w for w in waterfall(load(product_on_gpu(size=8192))).warnings)


@pytest.mark.parametrize(("counted_us", "is_told"), [(198.5, False), (197.0, True)])
def test_a_least_time_that_is_a_hundredth_lower_is_rounding(
    counted_us: float, *, is_told: bool
) -> None:
    far: Any = SimpleNamespace(least_us=100.0, n_steps=2, is_known=True)
    assert bool(_low(far, counted_us)) is is_told


def test_it_takes_profiles_traces_and_files_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(product_on_gpu())
    one = perfkit.waterfall(str(path))
    assert one == perfkit.waterfall(perfkit.open_trace(path)) == perfkit.waterfall(path)
    wrong: Any
    for wrong in (3, None, [1]):
        with pytest.raises(UsageError, match=r"profile is .*; give a profile"):
            perfkit.waterfall(wrong)
    with pytest.raises(UsageError, match="after is 3"):
        perfkit.waterfall(path, 3)  # type: ignore[call-overload]


def test_a_profile_has_it_behind_the_first_screen() -> None:
    weight = torch.rand(64, 64)
    profile = perfkit.profile(lambda: weight @ weight, steps=3, warmup=1)
    found = profile.waterfall
    assert found is not None
    adds_up(found)
    assert found.n_steps == 3
    # its title depends on whether the peaks of this machine have been measured
    titles = ("From the step to its lower bound", "What the step consists of")
    assert sum(one in profile.to_text() for one in titles) == 1
    assert profile.to_dict()["waterfall"]["step_ms"] == found.step_ms
    assert perfkit.waterfall(profile).parts == found.parts
