"""Traces of which a part is missing: the verdict claims no more than they show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from simulated_traces import Simulated, cpu_training, gpu_training, product_on_gpu

from perfkit import show
from perfkit.advice import Profile
from perfkit.advice.profile import explain
from perfkit.trace import critical_path, idle, load, waterfall


def _explained(sim: Simulated) -> Profile:
    return explain(load(sim.json()))


def _rules(profile: Profile) -> list[str]:
    return [f.rule for f in profile.diagnosis.findings]


def _capture(captured_us: float, *, marks: bool = True) -> Simulated:
    """Some kernels of 40 µs, and then operators whose launches go into a graph."""
    sim = Simulated()
    for i in range(20):
        sim.kernel("aten::mm", 50 * i, 50 * i + 10, 40)
    begin = 1_100
    if marks:
        sim.call("cudaStreamBeginCapture", begin, 3)
    for i in range(int(captured_us / 100)):
        external = sim.host("aten::linear", begin + 10 + 100 * i, 90)
        sim.call("cudaLaunchKernel", begin + 20 + 100 * i, 5, external)
    if marks:
        sim.call("cudaStreamEndCapture", begin + captured_us + 20, 10)
    sim.host("aten::empty", begin + captured_us + 40, 10)
    return sim


@pytest.mark.parametrize(
    ("name", "category", "needs_one"),
    [
        ("nccl:all_to_all", "user_annotation", True),
        ("aten::record_stream", "cpu_op", True),
        ("aten::cudnn_convolution", "cpu_op", True),
        ("aten::cudnn_is_acceptable", "cpu_op", False),  # an LSTM on the CPU only asks
        ("aten::miopen_batch_norm", "cpu_op", True),
        ("gloo:all_reduce", "user_annotation", False),
        ("aten::mkldnn_convolution", "cpu_op", False),
    ],
)
def test_what_needs_a_device_shows_that_one_was_in_use(
    name: str, category: str, *, needs_one: bool
) -> None:
    """Recorded without the device and without the calls that give it work: 59 % were the host's."""
    sim = cpu_training(4, python=1_500)
    for mark in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
        sim.host(name, mark["ts"] + 1_530, 50, category)
    profile = _explained(sim)
    told = profile.diagnosis.sentence
    assert told.startswith("What takes the time is not known" if needs_one else "Host-bound")
    assert (f"such as {name}" in told) is needs_one
    assert ("host-python" in _rules(profile)) is not needs_one


def test_work_outside_of_operators_is_only_python_where_some_was_recorded() -> None:
    """As in a predictor in C++."""
    sim = Simulated()
    for i in range(4):
        sim.host("aten::linear", 10_000 * i, 100)
    headline = "Host-bound: 99 % of that time is "
    assert _explained(sim).diagnosis.verdict == f"{headline}outside of torch's operators."
    sim.host("loop.py(3): step", 1, 30_000, "python_function")
    assert _explained(sim).diagnosis.verdict == f"{headline}Python and other host work."


def test_capturing_a_graph_is_not_launching_too_slowly() -> None:
    """As in traces of vLLM and SGLang: 428 launches into a graph, and CUDA graphs were advised."""
    profile = _explained(_capture(20_000))
    assert profile.diagnosis.bound_by == "host"
    assert "capturing a CUDA graph takes" in profile.diagnosis.sentence
    assert _rules(profile) == []
    found = idle(profile.trace)
    assert found.total_us["capture"] == pytest.approx(20_000, rel=0.01)
    assert found.total_us["launch"] + found.total_us["driver"] < 300
    assert ": capturing a CUDA graph." in show.text(found).splitlines()[0]
    assert waterfall(profile.trace).ms_of("capture") == pytest.approx(20, rel=0.01)
    assert "graph capture" in show.html(profile)  # the legend of the step's strip
    # without the marks nothing tells these launches from slow ones
    assert _rules(_explained(_capture(20_000, marks=False)))[0] == "launch-bound"


def test_a_short_capture_is_not_the_verdict() -> None:
    profile = _explained(_capture(100))
    assert profile.diagnosis.bound_by == "compute"
    assert "graph" not in profile.diagnosis.sentence


def test_compiling_within_a_capture_is_not_taken_off_the_launches_outside_of_it() -> None:
    sim = Simulated()
    sim.step(0, 0, 20_000)
    for at in range(0, 9_900, 100):
        op = sim.host("aten::mm", at, 95)
        sim.device("gemm", at + 60, 5, sim.call("cudaLaunchKernel", at + 50, 5, op))
    sim.call("cudaStreamBeginCapture", 10_000, 3)
    sim.host("entire_frame_compile", 10_010, 9_000)
    sim.call("cudaStreamEndCapture", 19_980, 10)
    assert "launch-bound" in _rules(_explained(sim))


def _with(sim: Simulated, *events: dict[str, Any]) -> Simulated:
    sim.events.extend(events)
    return sim


def _of_another_device(cat: str, count: int) -> list[dict[str, Any]]:
    event = {"ph": "X", "cat": cat, "name": "pe_exe", "pid": 9, "tid": 1, "dur": 50.0}
    return [{**event, "ts": 100.0 * i} for i in range(count)]


@pytest.mark.parametrize("python_us", [0, 870])
def test_a_device_that_perfkit_cannot_read_leaves_the_verdict_open(python_us: int) -> None:
    """As in traces of Meta's MTIA, of which it said: compute-bound, in torch's operators."""
    sim = _with(cpu_training(3, python=python_us), *_of_another_device("mtia_ccp_events", 7))
    profile = _explained(sim)
    said = profile.diagnosis.headline
    assert said.startswith("What takes the time is not known")
    assert "perfkit cannot read 7 events of mtia_ccp_events" in said
    assert "-bound" not in said
    assert _rules(profile) == []
    text = show.text(profile)
    assert "perfkit cannot read 7 events of mtia_ccp_events" in text.splitlines()[0]
    assert "No rule can tell what to change without this device's work." in text
    assert "no device activity" not in text
    assert "Compute the same in another way" not in text


def test_launches_without_any_kernel_leave_the_verdict_open() -> None:
    sim = cpu_training(3)
    for i in range(9):
        sim.call("cudaLaunchKernel", 300.0 * i, 5)
    profile = _explained(sim)
    assert profile.diagnosis.headline.startswith("What takes the time is not known")
    assert "9 calls gave it work, and none was recorded" in profile.diagnosis.headline
    assert "was asked for, and its tracer" in profile.diagnosis.no_cure


def test_what_is_known_without_the_device_is_still_said() -> None:
    plain = _explained(cpu_training(6, wait=870))
    sim = _with(cpu_training(6, wait=870), *_of_another_device("mtia_ccp_events", 7))
    assert _explained(sim).diagnosis.bound_by == plain.diagnosis.bound_by == "data"
    assert _explained(sim).diagnosis.sentence == plain.diagnosis.sentence
    assert _rules(_explained(sim)) == _rules(plain)
    assert _explained(cpu_training(3)).diagnosis.bound_by == "compute"
    assert not _explained(cpu_training(3)).diagnosis.is_one_sided


def test_a_device_alone_does_not_blame_the_host() -> None:
    sim = Simulated()
    for i in range(10):
        sim.device("gemm", 1_000 * i, 300, -1)
    profile = _explained(sim)
    assert "nothing of the host was recorded" in profile.diagnosis.sentence
    assert "the host does other work" not in profile.diagnosis.sentence
    assert _rules(profile) == []
    assert "record the host's operators, too" in profile.diagnosis.no_cure
    assert any("nothing of the host" in w for w in idle(load(sim.json())).warnings)


def test_a_recording_without_operators_says_how_to_save_one() -> None:
    mark = {"name": "Record Window End", "ph": "i", "s": "g", "ts": 74.0, "pid": "", "tid": ""}
    span = {"name": "PyTorch Profiler (0)", "cat": "Trace", "ph": "X", "ts": 0.0, "dur": 73.7}
    file = {"traceEvents": [{**span, "pid": "Spans", "tid": "PyTorch Profiler"}, mark]}
    profile = explain(load(json.dumps(file).encode()))
    assert "nothing that torch's profiler records is in here" in profile.diagnosis.sentence
    assert "save the trace in on_trace_ready" in profile.diagnosis.no_cure
    assert "host's work" not in profile.diagnosis.no_cure


def test_without_correlation_nothing_is_said_of_slow_launches_or_of_the_path() -> None:
    sim = Simulated()
    external = sim.host("aten::conv2d", 0, 1_000)
    sim.device("conv", 300, 600, sim.call("cudaLaunchKernel", 290, 5, external))
    whole = json.loads(sim.json())
    for event in whole["traceEvents"]:
        event["args"].pop("correlation", None)
    profile = explain(load(json.dumps(whole).encode()))
    assert "does not say which calls launched its work" in profile.diagnosis.sentence
    assert "critical path" not in profile.diagnosis.sentence
    assert _rules(profile) == []


def test_launches_outside_of_operators_are_no_python_on_the_path() -> None:
    sim = Simulated()
    for i in range(4):
        sim.device("gemm", 1_420 + 1_500 * i, 5, sim.call("cudaLaunchKernel", 1_500 * i, 1_410))
    path = critical_path(load(sim.json()))
    assert path.bound_by == "launch"
    assert "critical path" not in _explained(sim).diagnosis.sentence


def test_a_file_that_shows_no_python_is_not_told_as_python() -> None:
    sim = Simulated()
    for i in range(3):
        sim.step(i, 10_000 * i, 10_000)
        sim.kernel("aten::mm", 10_000 * i, 10_000 * i + 10, 40)
    titles = [f.title for f in _explained(sim).diagnosis.findings if f.rule == "host-python"]
    assert titles == ["What runs outside of torch takes much of the step"]
    for i in range(3):
        sim.host("train.py(3): step", 10_000 * i, 9_000, "python_function")
    titles = [f.title for f in _explained(sim).diagnosis.findings if f.rule == "host-python"]
    assert titles == ["Python outside of torch takes much of the step"]


def test_a_step_of_over_100_000_times_its_least_time_is_not_compared_with_it() -> None:
    """An MI300X that captured a graph was told: 11,200,000,000× the lower bound of 0.003 ns."""
    assert "By its data sheet" in show.text(explain(load(product_on_gpu(size=4096))))
    assert "By its data sheet" not in show.text(explain(load(product_on_gpu(size=8))))


def test_a_trace_with_nothing_of_torch_in_it_has_no_verdict() -> None:
    sim = Simulated()
    for i in range(4):
        sim.host("X", 13 * i, 13, "PREF")
    profile = _explained(sim)
    assert profile.diagnosis.sentence.startswith("What takes the time is not known: nothing that")
    assert _rules(profile) == []


@pytest.mark.parametrize(("n_joined", "is_said"), [(4, False), (5, True)])
def test_the_path_is_told_where_most_launches_are_known(n_joined: int, is_said: bool) -> None:
    """As in a sampled trace: 2 of 18 launches were left, and gaps of unknown cause were queued."""
    sim = Simulated()
    sim.step(0, 0, 10_000)
    sim.host("aten::mm", 0, 9_990)
    for i in range(10):
        at = 1_000 * i
        known = i >= 10 - n_joined
        launch = sim.call("cudaLaunchKernel", at + 1, 5) if known else -1
        sim.device("gemm", at + 10, 100, launch)
    sentence = _explained(sim).diagnosis.sentence
    assert ("-bound" in sentence) is is_said
    assert ("the trace does not say which calls launched its work" in sentence) is not is_said


def test_where_no_line_is_known_the_advice_speaks_of_none() -> None:
    sim = gpu_training(4, n_kernels=5, python=2_000)
    (found,) = (f for f in _explained(sim).diagnosis.findings if f.rule == "host-python")
    assert found.line is None
    assert "this line" not in found.what_to_do
    assert "with_stack=True" in found.what_to_do
    assert "train" not in found.what_to_do  # the steps may be an inference's
    sim.host("train.py(7): load", 1_000, 2_000, "python_function")
    (found,) = (f for f in _explained(sim).diagnosis.findings if f.rule == "host-python")
    assert "with_stack" not in found.what_to_do  # the trace has it
    assert "Timeline" in found.what_to_do


def test_unknown_launches_support_no_cure_for_launching() -> None:
    sim = Simulated()
    for i in range(4):
        sim.step(i, 1_000 * i, 1_000)
        sim.host("aten::conv2d", 1_000 * i, 950)
        sim.device("conv", 1_000 * i + 600, 350, -1)
    profile = _explained(sim)
    assert "the trace does not say which calls launched its work" in profile.diagnosis.sentence
    assert _rules(profile) == []
    assert "record the launches, too" in profile.diagnosis.no_cure
