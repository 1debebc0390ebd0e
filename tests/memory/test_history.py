"""The allocator's history, from a hand-made snapshot (simulated) as torch documents it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit.base.errors import MissingError, UsageError
from perfkit.base.machine import stamp
from perfkit.memory import history as history_module
from perfkit.memory.history import AllocatorHistory, history_of, load, record

MIB = 2**20


def _entry(action: str, size: int) -> dict[str, Any]:
    return {"action": action, "addr": 0, "size": size, "stream": 0, "frames": []}


def _snapshot() -> dict[str, Any]:
    def block(size: int, state: str) -> dict[str, Any]:
        return {"size": size, "requested_size": size, "address": 0, "state": state, "frames": []}

    return {
        "segments": [
            {
                "device": 0,
                "address": 0,
                "total_size": 20 * MIB,
                "stream": 0,
                "segment_type": "large",
                "allocated_size": 12 * MIB,
                "active_size": 12 * MIB,
                "blocks": [
                    block(6 * MIB, "active_allocated"),
                    block(5 * MIB, "inactive"),
                    block(6 * MIB, "active_allocated"),
                    block(3 * MIB, "inactive"),
                ],
            },
            {
                "device": 0,
                "total_size": 2 * MIB,
                "segment_type": "small",
                "allocated_size": 0,
                "active_size": 0,
                "blocks": [block(2 * MIB, "inactive")],
            },
            {
                "device": 1,
                "total_size": 999,
                "allocated_size": 999,
                "requested_size": 999,
                "blocks": [],
            },
        ],
        "device_traces": [
            [
                _entry("segment_alloc", 40 * MIB),
                _entry("alloc", 30 * MIB),
                _entry("free_requested", 30 * MIB),
                _entry("free_completed", 30 * MIB),
                _entry("oom", 90 * MIB),
                _entry("segment_free", 40 * MIB),
                _entry("segment_alloc", 20 * MIB),
                _entry("alloc", 6 * MIB),
                _entry("alloc", 6 * MIB),
                _entry("snapshot", 0),
            ],
            [],
        ],
    }


def _history() -> AllocatorHistory:
    simulated = stamp("simulated", device="NVIDIA <Test>")
    return history_of(_snapshot(), n_retries=1, provenance=simulated)


def test_the_curve_ends_at_the_segments_and_begins_before_the_entries() -> None:
    history = _history()
    # 2 MiB were reserved before the first entry
    assert history.reserved_bytes[0] == 2 * MIB
    assert history.allocated_bytes[0] == 0
    assert history.peak_reserved_bytes == 42 * MIB
    assert history.peak_allocated_bytes == 30 * MIB
    assert (history.allocated_bytes[-1], history.reserved_bytes[-1]) == (12 * MIB, 22 * MIB)
    assert history.warnings == ()


def _rounded() -> dict[str, Any]:
    """As torch makes it: blocks are rounded, entries are not; a freed one is still in use."""
    blocks = [
        {"size": 512, "requested_size": 4, "state": "active_allocated"},
        {"size": 3 * MIB, "requested_size": 2 * MIB + 7, "state": "active_allocated"},
        {"size": MIB, "requested_size": 1000, "state": "active_pending_free"},
        {"size": 16 * MIB, "requested_size": 0, "state": "inactive"},
    ]
    segment = {
        "device": 0,
        "total_size": 20 * MIB,
        "segment_type": "large",
        "allocated_size": 3 * MIB + 512,
        "active_size": 4 * MIB + 512,
        "requested_size": 4 + 2 * MIB + 7 + 1000,
        "blocks": blocks,
    }
    trace = [
        _entry("segment_alloc", 20 * MIB),
        _entry("alloc", 4),
        _entry("alloc", 1000),
        _entry("free_requested", 1000),
        _entry("alloc", 2 * MIB + 7),
    ]
    return {"segments": [segment], "device_traces": [trace]}


@pytest.mark.parametrize("with_sum", [True, False])
def test_what_the_allocator_rounds_up_was_not_there_before(with_sum: bool) -> None:
    snapshot = _rounded()
    if not with_sum:
        del snapshot["segments"][0]["requested_size"]
    history = history_of(snapshot)
    assert history.allocated_bytes[0] == 0
    assert history.allocated_bytes[-1] == 4 + 1000 + 2 * MIB + 7
    assert history.warnings == ()


def test_calls_and_fragmentation_are_counted() -> None:
    history = _history()
    assert (history.n_cuda_mallocs, history.n_cuda_frees) == (2, 1)
    assert (history.n_allocs, history.n_frees, history.n_ooms) == (3, 1, 1)
    # 5 and 3 MiB in a segment that is in use; the empty one can go back to the device
    assert history.fragmented_bytes == 8 * MIB
    large, small = history.segments
    assert (large.largest_free_bytes, large.n_blocks, large.kind) == (5 * MIB, 4, "large")
    assert small.total_bytes == 2 * MIB


def test_long_histories_are_thinned_and_keep_their_highest() -> None:
    snapshot = _snapshot()
    moves = [_entry("segment_alloc", MIB), _entry("segment_free", MIB)] * 2000
    moves[3001:3001] = [_entry("segment_alloc", 77 * MIB), _entry("segment_free", 77 * MIB)]
    snapshot["device_traces"][0][:0] = moves
    history = history_of(snapshot)
    assert len(history.index) <= history_module.MAX_POINTS
    assert history.peak_reserved_bytes == 2 * MIB + MIB + 77 * MIB


def test_the_most_that_tensors_held_is_kept_where_less_was_reserved_then() -> None:
    snapshot = _snapshot()
    moves = [_entry("segment_alloc", MIB), _entry("segment_free", MIB)] * 2000
    moves[3000:3000] = [_entry("alloc", 500), _entry("free_completed", 500)]
    snapshot["device_traces"][0] = moves
    peak = history_of(snapshot).peak_allocated_bytes
    snapshot["device_traces"][0] = moves[2998:3004]
    assert peak == history_of(snapshot).peak_allocated_bytes


def test_it_is_shown_offline_with_words_for_the_picture() -> None:
    history = _history()
    words, page = history.to_text(), history._repr_html_().replace("\xa0", " ")
    assert words.startswith("cuda:0: at most 42.0 MiB reserved for 30.0 MiB of tensors")
    for said in ("1 retry, ", "simulated", "8.00 MiB free in segments partly in use"):
        assert said in words
        assert said in page
    assert "<svg" in page
    assert "aria-label" in page
    assert "<script" not in page
    assert "http" not in page
    assert "<Test>" not in page


def test_it_is_written_and_read_as_json(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    history = _history()
    history.save(path)
    assert load(path) == history


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "memory"}, "type: "),
        ({"format": 2}, "format: "),
        ({"index": ["a"]}, r"index\[0\]: expected `int`, got `str`"),
        ({"index": []}, "not of one length"),
        ({"segments": [{"kind": "small"}]}, "total_bytes"),
        ({"provenance": None}, "provenance: expected `object`, got `null`"),
    ],
)
def test_a_history_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = tmp_path / "history.json"
    _history().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=f"not an allocator history: .*{says}") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_no_history_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(UsageError, match="not an allocator history: JSON is malformed"):
        load(tmp_path / "text.json")


@pytest.mark.parametrize("action", ["alloc", "segment_alloc"])
def test_entries_that_do_not_lead_to_the_segments_are_told(action: str) -> None:
    snapshot = _snapshot()
    snapshot["device_traces"][0] = [_entry(action, 999 * MIB)]
    (said,) = history_of(snapshot).warnings
    assert said.startswith("entries and segments do not add up")


def test_an_empty_snapshot_is_no_crash() -> None:
    history = history_of({"segments": [], "device_traces": []})
    assert history.peak_reserved_bytes == 0
    assert "0 B reserved" in history.to_text()
    assert history._repr_html_()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_what_to_do() -> None:
    with pytest.raises(MissingError, match=r"needs a CUDA device .*%gpumem"), record():
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})


@pytest.mark.usefixtures("device")
def test_an_allocator_without_history_says_which_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object, **options: object) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory. If you need it, …")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", refuses)
    with pytest.raises(MissingError, match=r"cudaMallocAsync does not .*torch's own does"):  # noqa: SIM117
        with record():
            pytest.fail("nothing is recorded")


@pytest.mark.usefixtures("device")
def test_what_somebody_else_recorded_before_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleared: list[bool] = []

    def start_or_stop(
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = 0,
        clear_history: bool = False,
    ) -> None:
        cleared.append(clear_history)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "simulated")
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", start_or_stop)
    monkeypatch.setattr(history_module.torch_compat, "allocator_snapshot", _snapshot)
    with record():
        pass
    assert cleared == [True, False]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("wanted", "told"), [(None, "cuda:1"), (0, "cuda:0")])
def test_of_several_devices_the_one_that_did_most_is_told(
    wanted: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = _snapshot()
    snapshot["device_traces"][1] = [_entry("alloc", 1)] * 50
    compat = history_module.torch_compat
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "simulated")
    monkeypatch.setattr(compat, "start_allocator_history", lambda n: None)
    monkeypatch.setattr(compat, "stop_allocator_history", lambda: None)
    monkeypatch.setattr(compat, "allocator_snapshot", lambda: snapshot)
    with record(wanted) as recorded:
        pass
    assert recorded.history is not None
    assert recorded.history.device == told


def test_the_recording_ends_and_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    compat = history_module.torch_compat
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": len(calls)}
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "simulated")
    monkeypatch.setattr(compat, "start_allocator_history", lambda n: calls.append("start"))
    monkeypatch.setattr(compat, "stop_allocator_history", lambda: calls.append("stop"))
    monkeypatch.setattr(compat, "allocator_snapshot", _snapshot)
    with pytest.raises(KeyboardInterrupt), record() as recorded:
        raise KeyboardInterrupt
    assert calls == ["start", "stop"]
    assert recorded.history is not None
    assert recorded.history.n_cuda_mallocs == 2
    assert recorded.history.n_retries == 2
