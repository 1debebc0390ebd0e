"""Exports: what is written can be read again, by perfkit and by the formats' own rules."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.base.errors import MissingError, UsageError
from perfkit.base.files import write_atomically
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.load import load
from perfkit.trace.read.save import COLUMNS, save
from tests.simulated_traces import STREAM, Simulated, cpu_training, gpu_training

TEXTS = {
    "stack_id": "stacks",
    "types_id": "input_types",
    "dims_id": "input_dims",
    "concrete_id": "concrete_inputs",
    "name_id": "names",
    "collective_id": "collectives",
    "thread": "threads",
}


def _rich() -> Trace:
    """Something of everything that a trace can hold."""
    sim = gpu_training(3, wait=100, copy="HtoD (Pinned -> Device)", copy_call=30, item=True)
    sim.host(
        "aten::conv2d", 1_500, 3,
        **{"Input Dims": [[8, 3, 32, 32], [], [2]], "Input type": ["float", "", "long int"],
           "Call stack": "a.py(1): f;b.py(2): g", "Sequence number": 7,
           "Concrete Inputs": ["", "", "[1, 1]"]},
    )  # fmt: skip
    sim.device(
        "ncclDevKernel_AllReduce", 1_700, 40, 77_777,
        **{"est. achieved occupancy %": 37.0, "blocks per SM": 1.5,
           "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1024,
           "Out msg nelems": 1024, "Group size": 2},
    )  # fmt: skip
    sim.events += [
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "main ü"}},
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}},
        {"ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": 1_600, "s": "t",
         "args": {"Bytes": -512, "Addr": 99, "Total Allocated": 2048, "Total Reserved": 4096,
                  "Device Type": 1, "Device Id": 0}},
    ]  # fmt: skip
    top = json.loads(sim.json())
    top["deviceProperties"] = [{"id": 0, "name": "a GPU"}]
    return load(json.dumps(top).encode())


def _same(a: Trace, b: Trace) -> None:
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name in TEXTS:
            texts = getattr(a, TEXTS[field.name]), getattr(b, TEXTS[field.name])
            assert [None if i < 0 else texts[0][i] for i in x] == [
                None if i < 0 else texts[1][i] for i in y
            ], field.name
        elif isinstance(x, np.ndarray):
            np.testing.assert_array_equal(x, y, field.name)
    for name in type(a.memory).__slots__:
        if name != "thread":
            np.testing.assert_array_equal(getattr(a.memory, name), getattr(b.memory, name))
    assert a.origin_us == b.origin_us


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_chrome_trace_reads_back_the_same(tmp_path: Path, ending: str) -> None:
    trace = _rich()
    path = save(trace, tmp_path / f"out{ending}")
    again = load(path)
    _same(trace, again)
    assert again.metadata["deviceProperties"] == [{"id": 0, "name": "a GPU"}]
    assert again.threads[0].name == "main ü"
    assert not again.warnings


def test_arrows_join_what_perfetto_needs(tmp_path: Path) -> None:
    trace = load(gpu_training(2, n_kernels=4).json())
    events = json.loads(save(trace, tmp_path / "t.json").read_bytes())["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == len(ends) == 8
    assert starts.keys() == ends.keys()
    assert all(ends[i]["tid"] == STREAM and ends[i]["bp"] == "e" for i in ends)
    assert all(ends[i]["ts"] >= starts[i]["ts"] for i in ends)


def test_speedscope_events_open_and_close_in_order(tmp_path: Path) -> None:
    sim = cpu_training(3)
    sim.host("overlaps", 1_050, 10_000)  # ends after what is around it
    trace = load(sim.json())
    file = json.loads(save(trace, tmp_path / "t.speedscope.json").read_bytes())
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = [f["name"] for f in file["shared"]["frames"]]
    assert "aten::conv2d" in frames
    opened = 0
    for profile in file["profiles"]:
        stack: list[int] = []
        last = profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= last
            last = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
                opened += 1
            else:
                assert stack.pop() == event["frame"]
        assert not stack
        assert last <= profile["endValue"]
    assert opened == len(trace)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_csv_has_a_line_per_event(tmp_path: Path, ending: str) -> None:
    sim = cpu_training(2)
    odd = '=cmd|"quoted", with\nnewline'
    sim.host(odd, 1_010, 5)
    trace = load(sim.json())
    data = save(trace, tmp_path / f"t{ending}").read_bytes()
    text = (gzip.decompress(data) if ending.endswith("gz") else data).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(trace)
    assert [float(r["start_us"]) for r in rows] == trace.start_us.tolist()
    assert sum(float(r["dur_us"]) for r in rows) == pytest.approx(trace.dur_us.sum())
    assert {r["correlation"] for r in rows} == {""}
    names = [r["name"] for r in rows]
    assert "aten::conv2d" in names
    assert f"'{odd}" in names  # a spreadsheet must not run it


def test_the_same_trace_gives_the_same_file(tmp_path: Path) -> None:
    trace = load(gpu_training(2).json())
    for ending in (".json.gz", ".csv.gz", ".speedscope.json"):
        one = save(trace, tmp_path / f"a{ending}").read_bytes()
        assert one == save(trace, tmp_path / f"b{ending}").read_bytes()


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    trace = _rich()
    table = parquet.read_table(save(trace, tmp_path / "t.parquet"))
    assert tuple(table.column_names) == COLUMNS
    assert table.column("dur_us").to_pylist() == trace.dur_us.tolist()


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"writing Parquet needs pyarrow.*\[lab\]"):
        save(load(cpu_training(1).json()), tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["t.txt", "t", "t.json.bz2"])
def test_other_endings(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"end it in \.json"):
        save(load(cpu_training(1).json()), tmp_path / name)


def test_a_failed_export_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")

    def fails(part: Path) -> Any:
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="No space left"):
        write_atomically(path, fails)
    assert path.read_text() == "old"
    assert [x.name for x in tmp_path.iterdir()] == ["kept.json"]
    with pytest.raises(UsageError, match="cannot write"):
        save(load(cpu_training(1).json()), tmp_path / "no" / "t.json")


def test_scrubbed_on_request(tmp_path: Path) -> None:
    sim = Simulated()
    sim.host(
        "/home/alice/model.py(3): step", 10, 5, **{"Call stack": "/home/alice/model.py(3): step"}
    )
    trace = load(sim.json())
    assert b"alice" in save(trace, tmp_path / "a.json").read_bytes()
    assert b"alice" not in save(trace, tmp_path / "b.json", scrub=True).read_bytes()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name another file"):
        write_atomically(tmp_path / name, lambda part: part.write_text(""))
