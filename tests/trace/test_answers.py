"""Every question has an answer, or says that it was not recorded, on any trace.

Traces that others recorded, simulated ones of every kind, and damaged ones.
"""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_traces import FILES, each_trace, needs_traces
from simulated_traces import SINGLE, Simulated, cpu_training, gpu_training

import perfkit.trace as pt
from perfkit import show
from perfkit.base.errors import TraceError

QUESTIONS: tuple[Callable[[pt.Trace, pt.Steps], Any], ...] = (
    pt.breakdown, pt.idle, pt.copies, pt.kernels, pt.launch_queue, pt.communication, pt.flops,
    pt.limit, pt.critical_path, pt.sequences, pt.memory_curve, pt.modules, pt.source_lines,
    pt.operators, pt.syncs, pt.waterfall,
)  # fmt: skip


def ask_everything(trace: pt.Trace) -> dict[str, Any]:
    """All answers; those that have to add up are held to it."""
    steps = pt.find_steps(trace)
    answers = {q.__name__: q(trace, steps) for q in QUESTIONS}
    split, idle = answers["breakdown"], answers["idle"]
    for step in split.steps:
        assert sum(step.host_ns.values()) == step.wall_ns
        assert not step.device_ns or sum(step.device_ns.values()) == step.wall_ns
    for step, causes in zip(split.steps, idle.steps, strict=bool(idle.steps)):
        assert sum(causes.values()) == step.device_ns["idle"]
    if any(s.wall_ns for s in split.steps):
        assert sum(split.shares().values()) == pytest.approx(1, abs=1e-3)
    path = answers["critical_path"]
    assert sum(path.by_class_us.values()) == pytest.approx(path.wall_us, rel=1e-6, abs=0.01)
    falls = answers["waterfall"]
    for order in ("outside_in_ms", "inside_out_ms"):
        each = [getattr(part, order) for part in falls.parts]
        assert all(ms >= 0 for ms in each)
        assert sum(each) + falls.floor_ms == pytest.approx(falls.step_ms, rel=1e-9, abs=1e-9)
    kernels = answers["kernels"].kernels
    if any(k.total_us for k in kernels):
        assert sum(k.share for k in kernels) == pytest.approx(1, abs=1e-3)
    for copy in answers["copies"].kinds:
        assert 0 <= copy.overlapped_us <= copy.busy_us
    talk = answers["communication"]
    assert 0 <= talk.overlapped_us <= talk.busy_us
    for memory in answers["memory_curve"].devices:
        parts = memory.by_phase_bytes
        assert not parts or sum(parts.values()) == memory.peak_bytes
    return answers


@needs_traces
@each_trace
def test_every_recorded_trace_has_every_answer(path: Path) -> None:
    trace = pt.load(path)
    answers = ask_everything(trace)
    for name, answer in answers.items():
        if name in ("operators", "syncs"):
            continue
        shown = str(answer)
        assert max(map(len, shown.splitlines())) <= 100, name
        assert show.html(answer).startswith("<div")
    assert {c.status for c in pt.diff(trace, trace).changes} <= {"same"}


@needs_traces
def test_recorded_ranks_are_compared() -> None:
    paths = [p for p in FILES if p.name.startswith("rank")]
    if len(paths) < 2:
        pytest.skip("there are no two ranks in the folder")
    found = pt.ranks(paths)
    assert len(found.ranks) == len(paths)
    assert found.n_collectives > 0


def _variants() -> dict[str, bytes]:
    gpu = gpu_training(2, wait=50, item=True, restart=20, copy="HtoD (Pageable -> Device)")
    no_steps = [e for e in gpu.events if not e["name"].startswith("ProfilerStep")]
    no_correlation = json.loads(gpu.json("list"))
    rocm = json.loads(gpu.json("list"))
    for event in no_correlation:
        event["args"].pop("correlation", None)
    for event in rocm:
        event["name"] = event["name"].replace("cuda", "hip")
        if event["args"].get("stream"):
            event["args"]["stream"] = "0x2"
    only_device = [e for e in gpu.events if e["cat"] in ("kernel", "gpu_memcpy")]
    only_calls = [e for e in gpu.events if e["cat"] == "cuda_runtime"]
    strings = [{**e, "tid": f"thread {e['tid']}", "pid": str(e["pid"])} for e in gpu.events]
    no_args = [{k: v for k, v in e.items() if k != "args"} for e in gpu.events]
    events = {
        "as it is": gpu.events, "no steps": no_steps, "no correlation": no_correlation,
        "rocm": rocm, "only the device": only_device, "only calls": only_calls,
        "string threads": strings, "no args": no_args, "one event": gpu.events[:1],
        "cpu": cpu_training(2, wait=100, loader=SINGLE).events,
    }  # fmt: skip
    return {name: json.dumps(e).encode() for name, e in events.items()}


@pytest.mark.parametrize("name", _variants())
def test_every_kind_of_trace_has_every_answer(name: str) -> None:
    answers = ask_everything(pt.load(_variants()[name]))
    for key, answer in answers.items():
        if key not in ("operators", "syncs"):
            assert "object at 0x" not in str(answer)
            assert "<table>" in show.html(answer) or "pk-verdict" in show.html(answer)


def test_names_are_escaped_in_html() -> None:
    sim = gpu_training(1)
    evil = "<img src=x onerror=alert(1)>"
    sim.device(f"gemm{evil}", 1_100, 500, 99, stream=3)
    sim.device(f"nccl{evil}", 1_100, 500, 98)
    sim.host(f"aten::mm{evil}", 1_010, 5, **{"Call stack": f"{evil}.py(3): f"})
    for name, answer in ask_everything(pt.load(sim.json())).items():
        if name not in ("operators", "syncs"):
            assert "<img" not in show.html(answer), name


def _bases() -> list[bytes]:
    gpu = gpu_training(2, wait=50, item=True, restart=20, copy="HtoD (Pageable -> Device)")
    rich = Simulated()
    rich.step(0, 0, 1_000)
    shapes = {"Input Dims": [[4, 3], [3, 5]], "Input type": ["float", "float"]}
    rich.host("aten::mm", 10, 50, **shapes, **{"Sequence number": 4})
    conv = {
        "Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], []],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0]", "1"],
    }
    external = rich.host("aten::convolution", 100, 50, **conv)
    correlation = rich.call("cudaLaunchKernel", 110, 5, external)
    rich.device("implicit_conv", 130, 60, correlation, **{"est. achieved occupancy %": 40})
    rich.host("nn.Module: Conv2d_0", 95, 60, "python_function")
    rich.host("train.py(3): step", 5, 300, "python_function")
    said = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
    rich.device("ncclDevKernel_AllReduce", 200, 60, 77, **said)
    for at, n in ((20, 64), (30, -64), (120, 128)):
        rich.events.append(
            {"ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": at,
             "args": {"Bytes": n, "Addr": 9, "Device Type": 1, "Device Id": 0,
                      "Total Allocated": 500 + n, "Total Reserved": 1_000}}
        )  # fmt: skip
    return [gpu.json(), rich.json(), rich.json("list"), cpu_training(2, wait=9).json(), gpu.gz()]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut, doubled, or replaced by what breaks parsers."""
    out = bytearray(data)
    odd = (
        b"}", b"]", b'"', b"1e400", b"null", b"-", b"99" * 12, b"[[[[", b"{}", b"true", b"\xff",
        b"-1", b'"x"', b"0.5", b"\\u0000", b"NaN", b",", b"9007199254740993",
    )  # fmt: skip
    for _ in range(rng.choice((1, 1, 2, 3, 8, 20))):
        at = rng.randrange(len(out)) if out else 0
        kind = rng.randrange(6)
        if kind == 0 and out:
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + rng.randrange(1, 40)]
        elif kind == 2:
            out[at:at] = rng.choice(odd)
        elif kind == 3:
            end = at + rng.randrange(1, 400)
            out[at:at] = out[at:end]
        elif kind == 4:  # replace a value: numbers are where arithmetic breaks
            colon = out.find(b": ", at)
            stop = min((i for i in (out.find(b",", colon), out.find(b"}", colon)) if i > 0),
                       default=-1)  # fmt: skip
            if 0 < colon < stop:
                out[colon + 2 : stop] = rng.choice(odd)
        elif rng.random() < 0.3:
            del out[max(at, 1) :]
    return bytes(out)


def fuzz(n: int, seed: int) -> tuple[int, int, float]:
    """Read, refused, and the longest processor time of one in s; anything else raises."""
    rng = random.Random(seed)
    bases = _bases()
    read = refused = 0
    longest_s = 0.0
    reader = importlib.import_module("perfkit.trace.read.load")
    usual = reader._PIECE_BYTES
    for i in range(n):
        # Large files are read in pieces: these are small, so every second one is cut smaller.
        reader._PIECE_BYTES = usual if i % 2 else 300
        data = mutate(rng, rng.choice(bases))
        begin = time.process_time()
        try:
            ask_everything(pt.load(data))
            read += 1
        except TraceError:
            refused += 1
        finally:
            reader._PIECE_BYTES = usual
        longest_s = max(longest_s, time.process_time() - begin)
    return read, refused, longest_s


@pytest.mark.slow
def test_mutated_traces_give_answers_or_a_trace_error() -> None:
    read, refused, longest_s = fuzz(300, seed=3)
    assert read > 100
    assert refused > 10
    assert longest_s < 5


if __name__ == "__main__":  # PYTHONPATH=tests python tests/trace/test_answers.py 10000
    import sys

    print(fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
