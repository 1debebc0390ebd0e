"""What is read from a trace, in every form in which traces come, and what is refused."""

from __future__ import annotations

import gc
import gzip
import importlib
import io
import json
import os
import random
import sys
import threading
import types
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from simulated_traces import HOST, SINGLE, Simulated, cpu_training, gpu_training

from perfkit.base.errors import MissingError, TraceError
from perfkit.trace import Category, Trace, breakdown, load


def _rows(trace: Trace) -> list[tuple[str, int, float, float]]:
    return [
        (trace.names[n], int(c), float(s) + trace.origin_us, float(d))
        for n, c, s, d in zip(
            trace.name_id, trace.category, trace.start_us, trace.dur_us, strict=True
        )
    ]


def test_columns_hold_what_the_events_say() -> None:
    sim = Simulated()
    sim.step(3, 1_000, 500)
    external = sim.host("aten::mm", 1_010, 20, **{"Sequence number": 9})
    correlation = sim.call("cudaLaunchKernel", 1_012, 5, external)
    sim.device("gemm", 1_020, 40, correlation, grid=[1, 2, 3])
    sim.copy("HtoD (Pinned -> Device)", 1_100, 4, 1_105, 30, n_bytes=4096)
    trace = load(sim.json())

    op = trace.names.index("aten::mm")
    row = int(np.flatnonzero(trace.name_id == op)[0])
    assert trace.origin_us == 1_000
    assert (trace.start_us[row], trace.dur_us[row]) == (10.0, 20.0)
    assert trace.external_id[row] == external
    assert trace.sequence[row] == 9
    assert trace.correlation[row] == -1
    assert trace.threads[trace.thread[row]].tid == HOST
    kernel = int(np.flatnonzero(trace.category == Category.KERNEL)[0])
    assert (trace.correlation[kernel], trace.device[kernel], trace.stream[kernel]) == (
        correlation,
        0,
        7,
    )
    memcpy = int(np.flatnonzero(trace.category == Category.MEMCPY)[0])
    assert trace.n_bytes[memcpy] == 4096
    assert (np.diff(trace.start_us) >= 0).all()
    assert trace.warnings == ()


@pytest.mark.parametrize("form", ["object", "list", "gzip", "path", "memoryview", "two members"])
def test_every_form_reads_the_same(form: str, tmp_path: Path) -> None:
    sim = gpu_training(2)
    expected = _rows(load(sim.json()))
    if form == "path":
        path = tmp_path / "named.whatever"
        path.write_bytes(sim.gz())
        assert _rows(load(path)) == expected
        assert _rows(load(str(path))) == expected
        return
    whole = sim.json()
    data = {
        "object": whole,
        "list": sim.json("list"),
        "gzip": sim.gz(),
        "memoryview": memoryview(whole),
        "two members": gzip.compress(whole[:500]) + gzip.compress(whole[500:]),
    }[form]
    trace = load(data)
    assert _rows(trace) == expected
    assert trace.warnings == ()


def test_traces_of_2021_mean_the_same() -> None:
    new = gpu_training(3, wait=200, copy="HtoD (Pageable -> Device)", copy_call=50)
    old = json.loads(new.json("list"))
    names = {
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "cuda_runtime": "Runtime",
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
    }
    for event in old:
        event["cat"] = names[event["cat"]]
        event["tid"] = f"stream {event['tid']}" if event["pid"] == 0 else str(event["tid"])
        if "External id" in event["args"] and event["cat"] == "Runtime":
            event["args"]["external id"] = event["args"].pop("External id")
    a, b = breakdown(load(new.json())), breakdown(load(json.dumps(old).encode()))
    assert a.steps == b.steps
    assert a.steps[0].host_ns["copy"] == 50_000
    assert a.steps[0].host_ns["data wait"] == 200_000


def test_a_thread_is_one_thread_whether_its_id_is_a_number_or_a_string() -> None:
    sim = Simulated()
    sim.host("aten::mm", 0, 1, tid=5)
    sim.host("aten::mm", 5, 1, tid="5")
    sim.host("aten::mm", 9, 1, tid="main")
    assert [t.tid for t in load(sim.json()).threads] == [5, "main"]


def test_process_and_thread_names_are_known() -> None:
    sim = cpu_training(1)
    meta = [
        {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": HOST, "tid": HOST, "args": {"name": "main"}},
    ]
    thread = load(json.dumps([*meta, *sim.events]).encode()).threads[0]
    assert (thread.process, thread.name) == ("python", "main")


def test_rocm_arguments_are_read() -> None:
    sim = Simulated()
    sim.call("hipMemcpyWithStream", 0, 5)
    sim.events[-1]["args"] |= {"stream": "0x2", "size": "2560", "kind": "1"}
    trace = load(sim.json())
    assert trace.stream[0] == 2


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.9, 0.999])
def test_a_torn_trace_is_read_as_far_as_it_goes(fraction: float) -> None:
    whole = gpu_training(5).json()
    everything = set(_rows(load(whole)))
    torn = load(whole[: int(len(whole) * fraction)])
    assert set(_rows(torn)) < everything
    assert len(torn) > 0.8 * fraction * len(everything)
    assert any("ends early" in w for w in torn.warnings)


def test_a_torn_gzip_is_read_as_far_as_it_goes() -> None:
    sim = gpu_training(50)
    torn = load(sim.gz()[: len(sim.gz()) * 2 // 3])
    assert 0 < len(torn) < len(sim.events)
    assert any("gzip" in w for w in torn.warnings)


def test_damage_in_the_middle_costs_only_the_damaged_events() -> None:
    sim = cpu_training(4)
    sim.events[3]["ts"] = {"no": "number"}
    sim.events[5]["args"] = ["no object"]
    trace = load(sim.json())
    assert len(trace) == len(sim.events) - 2
    assert any("left out: 2 events that could not be read" in w for w in trace.warnings)


def test_names_may_hold_anything() -> None:
    sim = Simulated()
    sim.host("PLACEHOLDER", 0, 5)
    sim.host("<img src=x onerror=alert(1)> \"'", 9, 5)
    raw = sim.json().replace(b"PLACEHOLDER", b"a\x01b\nc\xff\xfe")
    trace = load(raw)
    assert trace.names == ("a b c��", "<img src=x onerror=alert(1)> \"'")
    assert any("unprintable" in w for w in trace.warnings)


def test_paths_of_windows_with_single_backslashes_lose_no_event() -> None:
    sim = Simulated()
    for i, name in enumerate(["torch@optim@adam.py(283): step", "torch@nn@utils@rnn.py(9): pad"]):
        sim.host(name, 10 * i, 5)
    assert load(sim.json()).warnings == ()
    trace = load(sim.json().replace(b"@", b"\\"))
    assert trace.names == ("torch/optim/adam.py(283): step", "torch/nn/utils/rnn.py(9): pad")
    assert [w.split(":")[0] for w in trace.warnings] == ["what JSON does not allow was replaced"]
    assert load(sim.json().replace(b"@", b"\\\\")).names[1] == "torch\\nn\\utils\\rnn.py(9): pad"


def test_absurd_times_are_left_out_and_told() -> None:
    sim = cpu_training(3)
    good = len(sim.events)
    sim.host("aten::from_the_future", 1e300, 5)
    sim.host("aten::eternal", 1_000, 1e300)
    sim.host("aten::backwards", 1_100, -7)
    trace = load(sim.json())
    assert len(trace) == good + 1
    assert trace.dur_us.min() == 0
    assert sum("left out" in w or "negative" in w for w in trace.warnings) == 2


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b"hello, this is a log file\n", "plain text"),
        (b"\x89PNG\r\n\x1a\n....", "PNG"),
        (b"PK\x03\x04....", "zip"),
        (b"\x80\x04\x95....", "pickle"),
        (b"SQLite format 3\x00", "Nsight"),
        (b"<!doctype html><p>no", "HTML"),
        (b'{"name": 1, "cells": []}', "'cells'"),
        (b"[1, 2, 3]", "3 items"),
        (b'{"traceEvents": []}', "no event"),
        (b'[{"a": 1}]', "no timed event"),
        (b"42", "JSON int"),
        (b'{"broken', "broken JSON"),
        (b"\x00\x9f\x12\xff" * 50, "binary"),
        (b"[" * 5_000, "broken JSON"),
        (gzip.compress(b"not json", mtime=0), "plain text"),
        (b"\x1f\x8b\x08\x00broken", "gzip"),
    ],
)
def test_what_is_no_trace_is_named(data: bytes, looks: str) -> None:
    with pytest.raises(TraceError, match=looks) as error:
        load(data)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.json"):
        load(tmp_path / "nothing.json")


def test_zstd_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zstandard", "compression", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingError, match="pip install zstandard"):
        load(b"\x28\xb5\x2f\xfd....")


def test_zstd_is_unpacked_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package is optional and not installed for tests: a stand-in of the same interface.
    sim = cpu_training(2)

    class Decompressor:
        def stream_reader(self, packed: bytes, *, read_across_frames: bool) -> io.BytesIO:
            assert packed.startswith(b"\x28\xb5\x2f\xfd")
            return io.BytesIO(sim.json() if packed.endswith(b"packed") else b"")

    fake = types.ModuleType("zstandard")
    fake.ZstdError = ValueError  # type: ignore[attr-defined]
    fake.ZstdDecompressor = Decompressor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "compression", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "zstandard", fake)
    assert len(load(b"\x28\xb5\x2f\xfdpacked")) == len(sim.events)
    with pytest.raises(TraceError, match="expands to more than"):
        load(b"\x28\xb5\x2f\xfdpacked", unpack_at_most=100)
    with pytest.raises(TraceError, match="not a readable zstd file"):
        load(b"\x28\xb5\x2f\xfdbroken")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        load(cpu_training(1).json())
        assert gc.isenabled() is enabled
        with pytest.raises(TraceError):
            load(b"nonsense")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_mutated_traces_give_a_result_or_a_trace_error() -> None:
    rng = random.Random(0)
    bases = [
        gpu_training(2, wait=50, item=True, restart=20, copy="HtoD (Pageable -> Device)").json(),
        cpu_training(2, wait=100, loader=SINGLE).json("list"),
        gpu_training(1).gz(),
    ]
    read = refused = 0
    for _ in range(600):
        data = bytearray(rng.choice(bases))
        for _ in range(rng.randint(1, 12)):
            at = rng.randrange(len(data)) if data else 0
            kind = rng.randrange(4)
            if kind == 0 and data:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(1, 40)]
            elif kind == 2:
                data[at:at] = rng.choice([b"}", b"]", b'"', b"1e400", b"null", b"-", b"99" * 12])
            else:
                data = data[: max(at, 1)]
        try:
            split = breakdown(load(bytes(data)))
        except TraceError:
            refused += 1
        else:
            read += 1
            for step in split.steps:
                assert sum(step.host_ns.values()) == step.wall_ns
    assert read > 50
    assert refused > 5


# ---- large files, which are read in pieces -----------------------------------------------


def _same(a: Trace, b: Trace) -> None:
    assert a.names == b.names
    assert a.threads == b.threads
    assert a.metadata == b.metadata
    for column in fields(Trace):
        x, y = getattr(a, column.name), getattr(b, column.name)
        if isinstance(x, np.ndarray):
            np.testing.assert_array_equal(x, y, err_msg=column.name)


@pytest.mark.parametrize("form", ["object", "indented", "list", "gzip"])
@pytest.mark.parametrize("piece", [1, 200, 5_000])
def test_in_pieces_reads_the_same_as_whole(
    form: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = gpu_training(4, wait=50, item=True, restart=20, copy="HtoD (Pageable -> Device)")
    sim.host('a name with }, {"ph": "X" in it', 1_020, 5, **{"Input Dims": [[1, 2], []]})
    data = {
        "object": sim.json(),
        "indented": json.dumps(json.loads(sim.json()), indent=2).encode(),
        "list": sim.json("list"),
        "gzip": sim.gz(),
    }[form]
    whole = load(data)
    reader = importlib.import_module("perfkit.trace.read.load")
    monkeypatch.setattr(reader, "_PIECE_BYTES", piece)
    monkeypatch.setattr(reader, "_decode", None)  # the road for whole files is not taken
    _same(load(data), whole)


def test_in_pieces_damage_and_torn_ends_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = gpu_training(20)
    whole = load(sim.json())
    monkeypatch.setattr(importlib.import_module("perfkit.trace.read.load"), "_PIECE_BYTES", 500)
    torn = load(sim.json()[:-700])
    assert 0 < len(torn) < len(whole)
    assert any("ends early" in w for w in torn.warnings)
    sim.events[3]["ts"] = {"no": "number"}
    damaged = load(sim.json())
    assert len(damaged) == len(whole) - 1
    assert any("left out: 1 event that could not be read" in w for w in damaged.warnings)
    named = load(sim.json().replace(b"aten::linear", b"aten::\x01linear"))
    assert "aten:: linear" in named.names


def test_in_pieces_a_list_inside_an_event_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where a cut falls into a nested list, the file is read whole.
    sim = cpu_training(3)
    nested = [{"ph": "X", "ts": 1, "dur": 2, "name": "inner", "cat": "kernel"}] * 40
    sim.host("outer", 1_010, 5, nested=nested)
    whole = load(sim.json())
    monkeypatch.setattr(importlib.import_module("perfkit.trace.read.load"), "_PIECE_BYTES", 100)
    _same(load(sim.json()), whole)
    assert "inner" not in whole.names


def test_what_float32_cannot_hold_is_not_known() -> None:
    sim = Simulated()
    for at, blocks in enumerate((0.5, 1e308, -1e39)):
        sim.device("gemm", 10 * at, 5, at, **{"blocks per SM": blocks})
    assert np.isnan(load(sim.json()).blocks_per_sm).tolist() == [False, True, True]


def test_shapes_occupancy_collectives_and_memory_are_columns() -> None:
    sim = Simulated()
    dims = {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}
    sim.host("aten::mm", 0, 5, **dims, **{"Concrete Inputs": ["", "1"]})
    sim.host("aten::conv2d", 10, 5, **dims, **{"Concrete Inputs": ["", "1"]})
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 9, "Group size": 2}
    sim.device("nccl", 20, 5, 1, **said, **{"est. achieved occupancy %": 25, "blocks per SM": 0.5})
    sim.events.append(
        {"ph": "i", "name": "[memory]", "pid": HOST, "tid": HOST, "ts": 3,
         "args": {"Bytes": -64, "Addr": 7, "Device Type": 1, "Device Id": 1,
                  "Total Allocated": 10, "Total Reserved": 20}}
    )  # fmt: skip
    trace = load(sim.json())
    assert [trace.input_dims[i] for i in trace.dims_id[:2]] == ["[[2,3],[]]"] * 2
    assert trace.input_types == ("float,Scalar",)
    assert trace.concrete_id.tolist() == [-1, 0, -1]  # kept where FLOPs need them
    assert trace.occupancy[2] == 25
    assert np.isnan(trace.occupancy[0])
    assert trace.blocks_per_sm[2] == 0.5
    what = trace.collectives[trace.collective_id[2]]
    assert (what.name, what.dtype, what.n_in, what.n_out, what.group_size) == (
        "allreduce", "Float", 9, -1, 2,
    )  # fmt: skip
    m = trace.memory
    assert (m.at_ns[0], m.n_bytes[0], m.address[0], m.allocated[0], m.reserved[0]) == (
        3_000, -64, 7, 10, 20,
    )  # fmt: skip
    assert (bool(m.on_device[0]), m.device[0], trace.threads[m.thread[0]].tid) == (True, 1, HOST)


def test_a_list_of_traces_is_loaded_as_a_list(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(cpu_training(2).json())
    first, second = load([path, cpu_training(3).json()])
    assert (first.source, second.source) == (str(path), "bytes")
    assert len(first) < len(second)
    assert load([]) == []


def test_progress_is_told_once_a_large_trace_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = importlib.import_module("perfkit.trace.read.load")
    path = tmp_path / "trace.json"
    path.write_bytes(gpu_training(40).json())
    monkeypatch.setattr(reader, "_PIECE_BYTES", 300)
    told: list[float] = []
    quick = load(path, progress=told.append)
    assert told == []
    now_s = iter(range(1_000_000))  # every look at the clock takes a second
    monkeypatch.setattr(reader, "time", types.SimpleNamespace(monotonic=lambda: next(now_s)))
    slow = load([path], progress=told.append)[0]
    assert len(told) > 10
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] == 1
    assert slow.start_us.tolist() == quick.start_us.tolist()


def test_a_packed_trace_expands_to_no_more_than_it_may() -> None:
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * 5_000_000)
    with pytest.raises(TraceError, match=r"expands to more than 1\.00 MiB.*--unpack-at-most"):
        load(bomb, unpack_at_most=2**20)
    whole = cpu_training(40).gz()
    assert len(load(whole, unpack_at_most=2**20)) == len(load(whole, unpack_at_most=None))
    two = gzip.compress(cpu_training(3).json()[:500]) + gzip.compress(cpu_training(3).json()[500:])
    assert len(load(two)) == len(load(cpu_training(3).json()))


def test_a_pipe_is_read_and_a_silent_one_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import perfkit.base.files

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    whole = cpu_training(3).gz()
    writer = threading.Thread(target=pipe.write_bytes, args=(whole,), daemon=True)
    writer.start()
    assert len(load(pipe)) == len(load(whole))
    writer.join()
    monkeypatch.setattr(perfkit.base.files, "SILENT_PIPE_S", 0.05)
    with pytest.raises(TraceError, match="nothing came through this pipe"):
        load(pipe)


def test_a_device_is_not_read() -> None:
    with pytest.raises(TraceError, match="a device or a socket"):
        load("/dev/zero")
