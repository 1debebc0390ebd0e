"""LivePlot without a browser: messages, the bounded curve behind them, and honest folding."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfkit.base.errors import MissingError, UsageError
from perfkit.widgets import _frontend, live_plot
from perfkit.widgets._history import CAPACITY, History, planar
from perfkit.widgets.live_plot import LivePlot, Series

TWO = (Series("step", "ms", "step time"), Series("memory", "MiB", "memory", axis="right"))


@pytest.fixture
def plot() -> Any:
    made = LivePlot(TWO, title="training", total=10)
    yield made
    made.close()


def test_push_sends_one_binary_message(plot: LivePlot, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[dict[str, Any], list[Any]]] = []
    monkeypatch.setattr(plot, "send", lambda content, buffers: sent.append((content, buffers)))
    plot.push([0, 1], [[40, 300], [41, 301]])
    plot.push(2, [[42, np.nan]])
    assert [content["first"] for content, _ in sent] == [0, 2]
    (content, (buffer,)) = sent[0]
    assert content == {"type": "points", "first": 0, "rows": 2}
    assert np.frombuffer(buffer, np.float32).tolist() == [0, 1, 40, 41, 300, 301]


def test_columns_are_the_message_that_push_sends(
    plot: LivePlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[dict[str, Any], list[Any]]] = []
    monkeypatch.setattr(plot, "send", lambda content, buffers: sent.append((content, buffers)))
    plot.push([1, 2, 3], [[40, 300], [41, 300], [np.nan, 300]], ("three steps", 0.3))
    plot.push_columns([4, 5, 6], ([40.0, 41.0, float("nan")], 300.0), ("three steps", 0.3))
    plot.push_columns([], ([], 300.0), ("nothing", 0.3))
    (pushed, (values,)), (columns, (quick,)) = sent
    assert columns == pushed | {"first": 3}
    assert np.frombuffer(quick, np.float32)[3:].tobytes() == values[3 * 4 :]
    kept = plot._kept.rows()
    assert kept[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(kept[:3, 1:], kept[3:, 1:], equal_nan=True)


def test_a_status_goes_with_the_points(plot: LivePlot, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    states: list[object] = []
    monkeypatch.setattr(plot, "send", lambda content, buffers: sent.append(content))
    monkeypatch.setattr(plot, "send_state", lambda key=None: states.append(key))
    plot.push([0], [[40, 300]], ("41 ms a step", 0.5))
    assert sent[0]["status"] == {"text": "41 ms a step", "progress": 0.5, "state": "running"}
    assert plot.status == sent[0]["status"]  # what a page that is opened later gets
    assert states == []  # not sent twice


def test_an_update_is_one_message_of_the_same_size_however_long_the_run(
    plot: LivePlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    changed: list[str] = []

    class Comm:
        kernel = None

        def send(self, data: Any, buffers: Any) -> None:
            n_bytes = len(json.dumps(data["content"])) + sum(map(len, buffers))
            sent.append(n_bytes)

    monkeypatch.setattr(plot, "_send", lambda msg, buffers: Comm().send(msg, buffers))
    plot.observe(lambda change: changed.append(change["name"]))
    # numbers of as many digits, so that the text is as long
    for start in range(10_000, 90_000, 50):
        numbers = np.arange(start, start + 50)
        plot.push(numbers, np.ones((50, 2)), ("41 ms a step", 0.5))
    assert len(sent) == 1600  # one each
    # `first` grows from 0 to 79950: its digits are all that may differ
    assert max(sent) - min(sent) == len("79950") - len("0")
    assert min(sent) >= 50 * 3 * 4  # float32: only the new points
    assert changed == []  # a trait that changes is validated, compared and told about
    assert plot.status["text"] == "41 ms a step"


def test_a_message_made_in_the_thread_that_sends_is_ipykernel_s_own_and_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is scheduled there twice came behind the line of the end, and undid it."""
    comms = pytest.importorskip("ipykernel.comm.comm")
    sent: list[tuple[Any, ...]] = []
    turns: list[Callable[[], object]] = []

    def send(socket: Any, kind: str, content: Any, **more: Any) -> None:
        if socket is not thread.socket:  # ipykernel's stand-in for it, used in another thread
            turns.append(lambda: send(thread.socket, kind, content, **more))
            return
        assert more.pop("metadata", None) in (None, {})
        sent.append((kind, content, more))

    thread = SimpleNamespace(socket=object(), schedule=turns.append)
    kernel = SimpleNamespace(
        iopub_socket=SimpleNamespace(io_thread=thread),
        session=SimpleNamespace(send=send),
        get_parent=lambda: {"header": {"msg_id": "of this cell"}},
    )
    monkeypatch.setattr(comms.Kernel, "initialized", lambda: True)
    comm = comms.BaseComm(comm_id="7", primary=False)
    comm.kernel = kernel
    content, heard = {"type": "points"}, []
    assert _frontend.send_in_turn(comm, content, [b"1"], heard.append)
    comm.send({"method": "custom", "content": content}, buffers=[b"1"])
    assert (sent, heard) == ([], [])
    turns.pop(0)()
    assert (len(sent), heard) == (1, [None])
    turns.pop(0)()
    assert sent[0] == sent[1]
    assert not turns
    kernel.session.send = None
    _frontend.send_in_turn(comm, content, [], heard.append)
    turns.pop(0)()
    assert isinstance(heard[1], TypeError)
    assert not _frontend.send_in_turn(SimpleNamespace(), content, [], heard.append)


def test_a_message_that_could_not_be_sent_is_told_at_the_next_one(
    plot: LivePlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Exception | None] = [ValueError("made up"), None]

    def sends(comm: Any, content: Any, buffers: Any, then: Callable[..., object]) -> bool:
        then(outcomes.pop(0))
        return True

    monkeypatch.setattr(live_plot, "send_in_turn", sends)
    plot.push([0], [[40, 300]])
    with pytest.raises(ValueError, match="made up"):
        plot.push([1], [[40, 300]])
    plot.push([1], [[40, 300]])
    assert plot._kept.total == 2


def test_history_is_made_when_asked_for(plot: LivePlot) -> None:
    plot.push([0, 1], [[40, 300], [41, 301]])
    kept = plot.get_state("history")["history"]
    assert (kept["total"], kept["rows"], kept["folded"]) == (2, 2, False)
    assert kept["data"] == planar(np.array([[0, 40, 300], [1, 41, 301]]))


def test_states(plot: LivePlot) -> None:
    assert plot.status["state"] == "waiting"
    plot.push([5], [[40, 300]])
    assert plot.status == {"text": "", "progress": 0.5, "state": "running"}
    plot.set_status("41 ms a step", 2.0)
    assert plot.status["progress"] == 1.0
    plot.set_status("41 ms a step", float("nan"))
    assert plot.status["progress"] is None
    plot.finish("100 steps, median 41 ms")
    assert plot.status == {"text": "100 steps, median 41 ms", "progress": None, "state": "done"}


def test_pushing_nothing_does_nothing(plot: LivePlot) -> None:
    plot.push([], np.empty((0, 2)))
    assert plot.status["state"] == "waiting"


@pytest.mark.parametrize("values", [[1.0], [[1.0]], [[1.0, 2.0, 3.0]], [[1.0, 2.0]] * 2])
def test_values_that_do_not_fit_the_series(plot: LivePlot, values: Any) -> None:
    with pytest.raises(UsageError, match=r"values of shape \(k, 2\)"):
        plot.push([0], values)


@pytest.mark.parametrize("names", [[], ["a", "a"], list("abcdef")])
def test_series_that_cannot_be(names: list[str]) -> None:
    with pytest.raises(UsageError, match="1 to 5 series"):
        LivePlot([Series(name, "ms", name) for name in names], title="no")


def test_repr_is_stable(plot: LivePlot) -> None:
    assert repr(plot) == "LivePlot('training', ['step', 'memory'])"


def test_no_kernel_here() -> None:
    assert _frontend.has_front_end() is False


def test_a_missing_bundle_says_how_to_build_it() -> None:
    with pytest.raises(MissingError, match=r"nothing\.js.*hatch_build\.py"):
        _frontend.bundle("nothing.js")


def test_history_is_bounded_and_counts_everything() -> None:
    history = History(2)
    for start in range(0, 5 * CAPACITY, 700):
        x = np.arange(start, min(start + 700, 5 * CAPACITY))
        history.append(np.column_stack([x, x]))
    rows = history.rows()
    assert history.total == 5 * CAPACITY
    assert len(rows) <= CAPACITY
    assert (np.diff(rows[:, 0]) > 0).all()
    assert rows[-1, 0] == 5 * CAPACITY - 1


def test_what_is_appended_later_is_the_same_and_does_not_pile_up() -> None:
    at_once, later = History(3), History(3)
    rng = np.random.default_rng(0)
    for k in rng.integers(1, 60, 400):
        rows = rng.normal(40, 1, (k, 3)).astype(np.float32)
        assert later.append_later(k, planar(rows)) == at_once.append(rows)
        later.take_in_many()
        assert later._n_waiting < 1000
    assert later.snapshot() == at_once.snapshot()
    assert later._n_waiting == 0
    later.append_later(1, planar(np.ones((1, 3))))
    assert later.append(np.zeros((1, 3))) == at_once.total + 1  # in their order
    assert later.rows()[-2:].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_folding_keeps_the_extremes_and_the_newest_points() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(40, 1, 3 * CAPACITY).astype(np.float32)
    values[1234], values[2345] = 900, 3
    history = History(2)
    history.append(np.column_stack([np.arange(len(values)), values]))
    rows = history.rows()
    assert (rows[:, 1].max(), rows[:, 1].min()) == (900, 3)
    newest = CAPACITY // 4
    assert rows[-newest:, 1].tolist() == values[-newest:].tolist()
    assert history.snapshot()["folded"] is True


def test_folding_passes_over_what_was_not_measured() -> None:
    history = History(2)
    values = np.full(CAPACITY + 1, np.nan)
    values[0:4] = [np.nan, 7, 9, np.nan]
    history.append(np.column_stack([np.arange(len(values)), values]))
    rows = history.rows()
    assert rows[:2].tolist() == [[0, 7], [2, 9]]
    assert np.isnan(rows[2, 1])


def test_appending_tells_how_many_came_before() -> None:
    history = History(1)
    assert [history.append(np.zeros((k, 1))) for k in (3, 0, 2)] == [0, 3, 3]
