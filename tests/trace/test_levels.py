"""Levels of detail: every event is in a box, boxes are few, and merged ones say what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfkit.trace.ask.levels import KINDS, MAX_BOXES, Levels
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.load import load
from tests.simulated_traces import STREAM, Simulated, cpu_training, gpu_training


def _kind(levels: Levels, name: str) -> set[str]:
    rows = levels.find(name)
    return {KINDS[k] for k in levels.kind[rows]}


def _many(n: int, seed: int = 0) -> Trace:
    """Two threads, nested three deep, with gaps of all sizes."""
    rng = np.random.default_rng(seed)
    sim = Simulated()
    at = 1000.0
    for i in range(n):
        at += float(rng.exponential(30))
        dur = float(rng.exponential(20)) + 3
        sim.host(f"outer{i % 7}", at, dur, tid=100 + i % 2)
        sim.host("middle", at + 0.1, dur - 0.2, tid=100 + i % 2)
        sim.host("inner", at + 0.2, dur / 2, tid=100 + i % 2)
        at += dur
    return load(sim.json())


@pytest.fixture(scope="module")
def big() -> Levels:
    return Levels(_many(20_000))


@pytest.mark.slow
def test_rows_do_not_overlap_and_children_lie_below(big: Levels) -> None:
    trace = big.trace
    for row in range(big.n_rows):
        here = np.flatnonzero(big.row == row)
        assert (trace.start_ns[here][1:] >= trace.end_ns[here][:-1]).all()
    child = np.flatnonzero(big.parent >= 0)
    assert (big.row[child] == big.row[big.parent[child]] + 1).all()
    assert (trace.start_ns[child] >= trace.start_ns[big.parent[child]]).all()


@pytest.mark.parametrize("zoom", [1, 10, 100, 1_000, 10_000])
def test_every_event_in_view_is_in_exactly_one_box(big: Levels, zoom: int) -> None:
    trace = big.trace
    width = big.span_ns // zoom
    start = (big.span_ns - width) // 2
    boxes = big.boxes(start, start + width, pixels=1000)
    assert len(boxes) <= MAX_BOXES
    inside = np.flatnonzero((trace.start_ns < start + width) & (trace.end_ns > start))
    for row in range(big.n_rows):
        at = np.flatnonzero(boxes.row == row)
        assert (boxes.start_ns[at][1:] >= boxes.start_ns[at][:-1]).all()
        mine = inside[big.row[inside] == row]
        box = np.searchsorted(boxes.start_ns[at], trace.start_ns[mine], side="right") - 1
        assert (box >= 0).all()
        assert (trace.end_ns[mine] <= boxes.end_ns[at][box]).all()
        # boxes at the edges may hold events just outside
        assert boxes.count[at].sum() >= len(mine)
    whole = big.boxes(0, big.span_ns, pixels=1000)
    assert whole.count.sum() == len(trace)


@pytest.mark.slow
def test_what_is_wider_than_a_pixel_is_never_merged(big: Levels) -> None:
    boxes = big.boxes(0, big.span_ns // 5, pixels=1000)
    merged = boxes.count > 1
    assert merged.any()
    longest = (big.trace.end_ns - big.trace.start_ns)[boxes.event[merged]]
    assert (longest < boxes.merged_below_ns).all()
    single = ~merged
    assert (boxes.start_ns[single] == big.trace.start_ns[boxes.event[single]]).all()
    assert (boxes.end_ns[single] == big.trace.end_ns[boxes.event[single]]).all()


def test_what_is_narrower_than_a_pixel_is_merged(big: Levels) -> None:
    boxes = big.boxes(0, big.span_ns, pixels=100, rows=[0])
    assert int((big.row == 0).sum()) == 10_000
    assert len(boxes) <= 2 * 101  # in each pixel what is short, then what is longer than it


def test_a_merged_box_names_its_longest_event_and_its_density(big: Levels) -> None:
    trace = big.trace
    boxes = big.boxes(0, big.span_ns, pixels=300, rows=[0])
    dur = trace.end_ns - trace.start_ns
    for i in np.flatnonzero(boxes.count > 1)[:50]:
        held = np.flatnonzero(
            (big.row == 0)
            & (trace.start_ns >= boxes.start_ns[i])
            & (trace.end_ns <= boxes.end_ns[i])
        )
        assert len(held) == boxes.count[i]
        assert dur[boxes.event[i]] == dur[held].max()
        share = dur[held].sum() / (boxes.end_ns[i] - boxes.start_ns[i])
        assert boxes.fill[i] == pytest.approx(share)


def test_zoomed_in_every_event_is_itself(big: Levels) -> None:
    at = int(big.trace.start_ns[len(big.trace) // 2])
    boxes = big.boxes(at, at + 2_000_000, pixels=4000)
    assert (boxes.count == 1).all()


def test_only_the_rows_asked_for(big: Levels) -> None:
    boxes = big.boxes(0, big.span_ns, pixels=500, rows=[1, 4, 99, -1, 1])
    assert set(boxes.row.tolist()) == {1, 4}
    assert len(big.boxes(0, big.span_ns, pixels=500, rows=[])) == 0


@pytest.mark.parametrize(
    ("start", "end", "pixels"), [(0, 0, 1000), (-(10**9), -1, 10), (10**15, 10**16, 10), (5, 9, 0)]
)
def test_views_of_nothing(big: Levels, start: int, end: int, pixels: int) -> None:
    assert len(big.boxes(start, end, pixels=pixels)) <= big.n_rows


def test_more_rows_than_boxes() -> None:
    sim = Simulated()
    for tid in range(200):
        for i in range(50):
            sim.host("a", 1000 + 100 * i, 50, tid=tid)
    boxes = Levels(load(sim.json())).boxes(0, 5_000_000, pixels=1000, max_boxes=100)
    assert len(boxes) <= 100


def test_events_that_overlap_without_nesting_are_all_found() -> None:
    sim = Simulated()
    for i in range(50):
        sim.host("a", 1000 + 10 * i, 25)
    levels = Levels(load(sim.json()))
    boxes = levels.boxes(0, levels.span_ns, pixels=4000)
    assert boxes.count.sum() == 50
    late = levels.boxes(levels.span_ns - 1000, levels.span_ns, pixels=100)
    assert levels.trace.end_ns[late.event].max() == levels.span_ns


def test_lanes_begin_with_the_steps_thread_then_the_device() -> None:
    lanes = Levels(load(gpu_training(2).json())).lanes
    assert [lane.on_device for lane in lanes] == [False, True]
    assert lanes[0].label.endswith("runs the steps")
    assert lanes[1].label == f"device 0: stream {STREAM}"
    assert lanes[1].first_row == lanes[0].n_rows
    levels = Levels(load(gpu_training(2).json()))
    assert levels.lane_of(int(levels.find("sgemm")[0])) == lanes[1]
    assert levels.lane_of(int(levels.find("aten::linear")[-1])) == lanes[0]
    assert sum(lane.n_events for lane in lanes) == len(load(gpu_training(2).json()))


def test_kinds_are_those_of_the_breakdown() -> None:
    levels = Levels(load(cpu_training(2, wait=100).json()))
    assert _kind(levels, "aten::conv2d") == {"forward"}
    assert _kind(levels, "aten::convolution_backward") == {"backward"}
    assert _kind(levels, "aten::_fused_adamw_") == {"optimizer"}
    assert _kind(levels, "enumerate(DataLoader)") == {"data wait"}
    assert _kind(levels, "ProfilerStep") == {"label"}
    gpu = Levels(load(gpu_training(2, item=True).json()))
    assert _kind(gpu, "sgemm") == {"compute"}
    assert _kind(gpu, "Memcpy DtoH") == {"copy"}
    assert _kind(gpu, "cudaMemcpyAsync") == {"sync"}
    assert _kind(gpu, "cudaLaunchKernel") == {"runtime"}
    talk = Simulated()
    talk.kernel("c10d::allreduce_", 0, 20, 10, name="ncclDevKernel_AllReduce_Sum")
    assert _kind(Levels(load(talk.json())), "ncclDevKernel") == {"communication"}


def test_find_ignores_case_and_counts_all() -> None:
    levels = Levels(load(gpu_training(3, n_kernels=10).json()))
    assert len(levels.find("CUDALAUNCH")) == 30
    assert (np.diff(levels.trace.start_ns[levels.find("sgemm")]) > 0).all()
    assert len(levels.find("")) == len(levels.find("nothing of that name")) == 0


def test_flows_go_from_launch_to_kernel_and_back() -> None:
    levels = Levels(load(gpu_training(2, n_kernels=5).json()))
    trace = levels.trace
    for call in levels.find("cudaLaunchKernel"):
        (flow,) = levels.flows(int(call))
        assert flow.role == "launches"
        assert trace.correlation[flow.event] == trace.correlation[call]
        (back,) = levels.flows(flow.event)
        assert (back.role, back.event) == ("launched by", call)
    op = int(levels.find("aten::linear")[0])
    assert len(levels.flows(op)) == 1  # an op launches what its calls launch
    step = int(levels.find("ProfilerStep")[0])
    assert len(levels.flows(step)) == 5


def test_a_kernel_whose_launch_is_not_on_record_has_no_arrow() -> None:
    sim = Simulated()
    known = [sim.call("cudaLaunchKernel", at, 5) for at in (0, 10)]
    for at, correlation in enumerate((known[0], known[0] + 0.5, known[1] + 9)):
        sim.device("gemm", 100 + 50 * at, 20, int(2 * correlation))
    for event in sim.events[:2]:
        event["args"]["correlation"] *= 2
    levels = Levels(load(sim.json()))
    kernels = levels.find("gemm").tolist()
    assert [len(levels.flows(int(row))) for row in kernels] == [1, 0, 0]


def test_all_that_a_step_launched_counts_and_the_first_40_are_drawn() -> None:
    levels = Levels(load(gpu_training(1, n_kernels=50).json()))
    (step,) = levels.find("ProfilerStep")
    assert len(levels.launched(int(step))) == 50
    drawn = [flow.event for flow in levels.flows(int(step))]
    assert drawn == levels.launched(int(step))[:40].tolist()


def test_one_launch_of_a_graph_launches_all_of_its_kernels() -> None:
    sim = Simulated()
    graph = sim.call("cudaGraphLaunch", 10, 5)
    for at in (20, 30, 40):
        sim.device("sgemm", at, 5, graph)
    sim.device("other", 50, 5, sim.call("cudaLaunchKernel", 45, 2))
    levels = Levels(load(sim.json()))
    (launch,) = levels.find("cudaGraphLaunch")
    assert levels.launched(int(launch)).tolist() == levels.find("sgemm").tolist()


def _with(events: list[dict[str, Any]]) -> Levels:
    sim = Simulated()
    for e in events:
        sim.host(**e)
    return Levels(load(sim.json()))


def test_source_line_prefers_the_users_call_then_the_def() -> None:
    stack = "torch/nn/linear.py(5): forward;/home/me/train.py(41): step;lib/python3/a.py(1): b"
    recorded = _with([{"name": "aten::a", "start": 10, "dur": 5, "Call stack": stack}])
    assert recorded.source_line(0) == "/home/me/train.py(41): step"
    frames = _with(
        [
            {"name": "train.py(40): step", "start": 0, "dur": 100, "cat": "python_function"},
            {"name": "torch/nn/f.py(9): relu", "start": 1, "dur": 90, "cat": "python_function"},
            {"name": "aten::relu", "start": 2, "dur": 80},
        ]
    )
    op = int(frames.find("aten::relu")[0])
    of_torch = "torch/nn/linear.py(5): forward;torch/nn/module.py(7): call; "
    only = _with([{"name": "aten::a", "start": 10, "dur": 5, "Call stack": of_torch}])
    assert only.source_line(0) == "torch/nn/module.py(7): call"
    assert [lane.n_rows for lane in frames.lanes] == [1, 2]  # functions have a lane of their own
    assert frames.lanes[1].label.endswith(": Python")
    assert len(frames.ancestors(op)) == 2
    assert frames.source_line(op) == "train.py(40): step, line of the def"
    assert _with([{"name": "aten::a", "start": 10, "dur": 5}]).source_line(0) == ""


def test_the_users_function_is_found_above_a_deep_stack_of_a_library() -> None:
    frame = {"dur": 200, "cat": "python_function"}
    deep = [{"name": "torch/nn/m.py(9): call", "start": 1 + i, **frame} for i in range(30)]
    frames = _with(
        [
            {"name": "train.py(40): step", "start": 0, **frame},
            *({**e, "dur": 200 - 2 * e["start"]} for e in deep),
            {"name": "aten::relu", "start": 40, "dur": 80},
        ]
    )
    (op,) = frames.find("aten::relu")
    assert frames.source_line(int(op)) == "train.py(40): step, line of the def"


def test_labels_of_threads_are_printable() -> None:
    sim = cpu_training(1)
    assert Levels(load(sim.json())).lanes[0].label.startswith("thread ")
    sim.events.append(
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 100,
            "tid": 100,
            "args": {"name": "a\x1b[31m\u202e"},
        }
    )
    label = Levels(load(sim.json())).lanes[0].label
    assert "\x1b" not in label
    assert "\u202e" not in label
