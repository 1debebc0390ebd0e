"""Timeline without a browser: its sources, its replies, and how much it sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfkit
from perfkit.advice.profile import explain
from perfkit.base.errors import TraceError, UsageError
from perfkit.trace.ask.levels import KINDS, MAX_BOXES
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.load import load
from perfkit.widgets.timeline import Timeline
from tests.simulated_traces import Simulated, cpu_training, gpu_training

HOSTILE = '<img src=x onerror=alert(1)> "quoted" \x07\u202e'
COLUMNS = (
    ("start", "<f4"),
    ("dur", "<f4"),
    ("event", "<u4"),
    ("count", "<u4"),
    ("name", "<u2"),
    ("row", "<u2"),
    ("kind", "u1"),
    ("fill", "u1"),
)


class Front:
    """Plays the browser."""

    def __init__(self, timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timeline = timeline
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        monkeypatch.setattr(
            timeline, "send", lambda content, buffers=(): self.sent.append((content, list(buffers)))
        )

    def ask(self, **content: Any) -> tuple[dict[str, Any], list[bytes]]:
        before = len(self.sent)
        self.timeline._on_message(self.timeline, {"id": "v1:1", **content}, [])
        assert self.timeline.problem == ""
        assert len(self.sent) == before + 1
        assert self.sent[-1][0]["id"] == "v1:1"
        return self.sent[-1]

    def boxes(self, **content: Any) -> dict[str, Any]:
        header, (data,) = self.ask(type="query", **content)
        return unpack(header, data)


def unpack(header: dict[str, Any], data: bytes) -> dict[str, Any]:
    """As boxes.js does."""
    at, columns = 0, {}
    for name, dtype in COLUMNS:
        columns[name] = np.frombuffer(data, dtype, header["n"], at)
        at += columns[name].nbytes
    assert at == len(data)
    return {**header, "columns": columns}


@pytest.fixture
def trace() -> Trace:
    sim = gpu_training(4, n_kernels=20)
    sim.host(HOSTILE, 1_100, 40, **{"Input Dims": [[8, 3]], "Input type": ["float"]})
    sim.host("aten::deep", 1_105, 4, **{"Call stack": "/x/torch/a.py(1): f;train.py(7): step"})
    return load(sim.json())


@pytest.fixture
def timeline(trace: Trace) -> Any:
    made = Timeline(trace)
    yield made
    made.close()


@pytest.fixture
def front(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> Front:
    return Front(timeline, monkeypatch)


def test_is_made_from_traces_paths_bytes_and_profiles(trace: Trace, tmp_path: Path) -> None:
    data = cpu_training(2).json()
    (tmp_path / "t.json").write_bytes(data)
    for source in (
        load(data),
        data,
        tmp_path / "t.json",
        str(tmp_path / "t.json"),
        explain(load(data)),
    ):
        made = perfkit.Timeline(source)
        assert made.span_us == load(data).end_ns.max() / 1e3
        made.close()


@pytest.mark.parametrize("source", [None, 3, {"trace": 1}, object()])
def test_is_not_made_from_anything_else(source: Any) -> None:
    with pytest.raises(UsageError, match="needs a trace, its path, or a profile"):
        Timeline(source)


def test_a_file_that_is_no_trace() -> None:
    with pytest.raises(TraceError):
        Timeline(b"hello")


def test_the_first_state_shows_the_whole_trace(timeline: Timeline, trace: Trace) -> None:
    shown = unpack(timeline.overview, timeline.overview["data"])
    assert shown["columns"]["count"].sum() == len(trace)
    assert len(timeline.steps) == 4
    assert [lane["device"] for lane in timeline.lanes] == [False, True]
    assert timeline.kinds == list(KINDS)


def test_a_query_gives_the_boxes_of_its_rows(front: Front, trace: Trace) -> None:
    shown = front.boxes(start=0, end=4_000, pixels=2000, rows=[0, 1])
    columns = shown["columns"]
    assert set(columns["row"].tolist()) == {0, 1}
    for i in np.flatnonzero(columns["count"] == 1):
        event = columns["event"][i]
        assert shown["start"] + columns["start"][i] == pytest.approx(
            trace.start_us[event], abs=0.01
        )
        assert columns["dur"][i] == pytest.approx(trace.dur_us[event], abs=0.01)
        name = trace.names[trace.name_id[event]]
        assert shown["names"][columns["name"][i]] == name or name == HOSTILE


@pytest.mark.parametrize(
    "content",
    [
        {"type": "query", "start": "x", "end": None, "pixels": 10, "rows": [-5, 10**6]},
        {"type": "query", "start": float("nan"), "end": float("inf"), "rows": list(range(5000))},
        {"type": "query", "start": 1e300, "end": -1e300, "pixels": 10**9},
    ],
)
def test_odd_queries_get_an_answer(front: Front, content: dict[str, Any]) -> None:
    header, _ = front.ask(**content)
    assert header["n"] <= MAX_BOXES


@pytest.mark.parametrize(
    "content", ["text", None, {}, {"type": "no"}, {"type": "details", "event": 10**9}]
)
def test_what_is_no_question_gets_none(front: Front, content: Any) -> None:
    front.timeline._on_message(front.timeline, content, [])
    assert front.sent == []
    assert front.timeline.problem == ""


def test_a_mistake_is_shown_under_the_widget(front: Front) -> None:
    front.timeline._on_message(front.timeline, {"type": "query", "pixels": "many"}, [])
    assert front.timeline.problem.startswith("ValueError")


def test_details_say_what_is_known(front: Front, trace: Trace) -> None:
    (row,) = np.flatnonzero(trace.named(lambda n: n == HOSTILE))
    details = front.ask(type="details", event=int(row))[0]["details"]
    facts = dict(details["facts"])
    assert facts["duration"] == "40.0 µs"
    assert facts["input shapes"] == "[[8,3]]"
    assert facts["input types"] == "float"
    assert facts["step"] == "ProfilerStep#0"
    assert details["name"].startswith("<img src=x")  # escaping is the page's: it is text there
    assert "\x07" not in details["name"]
    assert "\u202e" not in details["name"]
    (deep,) = np.flatnonzero(trace.named(lambda n: n == "aten::deep"))
    facts = dict(front.ask(type="details", event=int(deep))[0]["details"]["facts"])
    assert facts["source line"] == "train.py(7): step"


def test_details_of_a_kernel_lead_to_its_launch(front: Front, trace: Trace) -> None:
    kernel = int(np.flatnonzero(trace.named(lambda n: n == "sgemm"))[3])
    details = front.ask(type="details", event=kernel)[0]["details"]
    (flow,) = details["flows"]
    assert flow["role"] == "launched by"
    assert flow["name"] == "cudaLaunchKernel"
    facts = dict(details["facts"])
    assert facts["launched by"].startswith("cudaLaunchKernel ‹ aten::linear")
    back = front.ask(type="details", event=flow["event"])[0]["details"]
    assert [f["event"] for f in back["flows"]] == [kernel]


def test_details_of_a_step_count_all_that_it_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(load(gpu_training(1, n_kernels=50).json()))
    front = Front(timeline, monkeypatch)
    (step,) = np.flatnonzero(timeline._trace.named(lambda n: n.startswith("ProfilerStep")))
    details = front.ask(type="details", event=int(step))[0]["details"]
    assert dict(details["facts"])["launches"] == "50 on the device, 4.75 ms in all"
    assert len(details["flows"]) == 40
    timeline.close()


def test_search_goes_round(front: Front) -> None:
    found = front.ask(type="search", text="SGEMM", **{"from": 0})[0]
    assert (found["count"], found["index"]) == (80, 0)
    assert found["details"]["name"] == "sgemm"
    last = front.ask(type="search", text="SGEMM", index=79)[0]
    assert last["details"]["start"] > found["details"]["start"]
    assert front.ask(type="search", text="SGEMM", index=80)[0]["index"] == 0
    later = front.ask(type="search", text="SGEMM", **{"from": last["details"]["start"]})[0]
    assert later["index"] == 79
    assert front.ask(type="search", text="nowhere")[0]["count"] == 0


def test_show(timeline: Timeline) -> None:
    timeline.show(1.5, 2)
    assert timeline.shown_us == [1500, 2000]
    for start, end in ((2, 1), (1, 1), (float("nan"), 1)):
        with pytest.raises(UsageError, match="start before the end"):
            timeline.show(start, end)


def test_repr_and_what_stays_without_a_kernel(timeline: Timeline) -> None:
    assert repr(timeline) == "Timeline('bytes', 246 events, 2 lanes)"
    data = timeline._static_bundle()
    assert data["text/plain"].startswith(repr(timeline))
    assert "  Device |" in data["text/plain"]
    assert data["image/svg+xml"].startswith("<svg")
    assert "<svg" not in data["text/html"], "its letters would be left where nothing is trusted"
    assert "compute <b>" in data["text/html"]
    unknown = f".pk-static-{timeline.timeline_id}) .jupyter-widgets:not(:has(*))"
    assert unknown in data["text/html"], "the message about a widget without a kernel is hidden"


def test_without_a_front_end_it_is_text(timeline: Timeline, capsys: pytest.CaptureFixture) -> None:
    timeline._ipython_display_()
    shown = capsys.readouterr().out
    assert "  Host   |" in shown
    assert "<svg" not in shown


def test_a_trace_without_any_step_is_shown_too() -> None:
    sim = Simulated()
    sim.host("aten::a", 10, 0)
    made = Timeline(sim.json())
    assert made._static_bundle()["text/html"].count("no step was found.</h3>") == 1
    assert "image/svg+xml" not in made._static_bundle()
    made.close()


def test_a_long_trace_sends_little_and_looks_at_little() -> None:
    """A hundred thousand events here; the bench has a million."""
    sim = Simulated()
    for i in range(50_000):
        sim.host(f"aten::op{i % 300}", 1000 + 20 * i, 15)
        sim.host("inner", 1001 + 20 * i, 5)
    made = Timeline(sim.json())
    for zoom in (1, 7, 50, 900):
        answer = made._answer(
            {"type": "query", "start": 0, "end": made.span_us / zoom, "pixels": 2000,
             "rows": [0, 1]}
        )  # fmt: skip
        assert answer is not None
        header, (data,) = answer
        assert header["n"] <= MAX_BOXES
        assert len(data) == 22 * header["n"]
        assert len(data) + sum(map(len, header["names"])) < 150_000
    # the whole trace is drawn from some thousand merged boxes, not from its events
    assert len(made._levels._levels[-1]) < 10_000
    made.close()
