"""``perfkit trace``, as typed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from real_traces import each_trace, needs_traces
from simulated_traces import SINGLE, Simulated, cpu_training, gpu_training

from perfkit import cli
from perfkit.advice.diagnose import BOUNDS
from perfkit.cli import trace
from perfkit.trace import load


def _file(folder: Path, sim: Simulated, name: str = "trace.json", **metadata: Any) -> str:
    whole = json.loads(sim.json()) | metadata
    path = folder / name
    path.write_text(json.dumps(whole), encoding="utf-8")
    return str(path)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["trace", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _check(found: dict[str, Any]) -> None:
    assert found["bound_by"] in BOUNDS
    assert found["steps"]
    for step in found["steps"]:
        assert sum(step["host_us"].values()) == pytest.approx(step["wall_us"])
        if "device_us" in step:
            assert sum(step["device_us"].values()) == pytest.approx(step["wall_us"])
    whole = {"launch-bound", "optimizer-share", "unfused-kernels"}  # of the model: they wait
    gains = [f["gain_at_most"] for f in found["findings"] if f["rule"] not in whole]
    if found["device_shares"]:
        said = [round(gain, 1) for gain in gains]
        assert said == sorted(said, reverse=True)
        assert all(1 <= gain <= 10 for gain in gains)
    else:
        assert set(gains) <= {None}
    assert found["findings"] or found["no_cure"]
    for finding in found["findings"]:
        assert finding["rule"]
        assert finding["sentence"]
    for sync in found["syncs"]:
        assert {"op", "file", "line", "count", "cost_us"} <= set(sync)


def test_tables_are_printed_with_verbose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, cpu_training(6, wait=870, loader=SINGLE))
    assert cli.main(["trace", path]) == 0
    short = capsys.readouterr().out
    assert cli.main(["trace", "-v", path]) == 0
    whole = capsys.readouterr().out
    assert "\nTop operators" not in short
    assert "More with -v" in short
    assert len(short.splitlines()) <= 25
    assert "\nTop operators" in whole
    assert short.splitlines()[0] == whole.splitlines()[0]


def test_text_says_what_bounds_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, cpu_training(6, wait=870, loader=SINGLE))
    assert cli.main(["trace", path]) == 0
    said = capsys.readouterr()
    assert "Data-bound: 50 % of each step waits for the DataLoader" in said.out
    assert "num_workers" in said.out
    assert said.err == ""


def test_json_has_the_documented_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, _file(tmp_path, gpu_training(6, n_kernels=5, item=True, restart=200)))
    _check(found)
    assert found["schema"] == "perfkit.trace/1"
    assert found["bound_by"] == "sync"
    assert found["rank"] is None
    assert "device_us" in found["steps"][0]
    assert found["syncs"][0]["op"] == "aten::_local_scalar_dense"
    assert found["syncs"][0]["count"] == 6
    assert found["syncs"][0]["line"] is None
    for key in found:
        assert key in trace._EPILOG, f"{key} is not in `perfkit trace --help`"


def test_a_trace_of_a_cpu_has_no_device_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _json(capsys, _file(tmp_path, cpu_training(3)))
    _check(found)
    assert "device_us" not in found["steps"][0]


@pytest.mark.parametrize("as_functions", [False, True])
def test_a_sync_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_functions: bool
) -> None:
    sim = gpu_training(2, n_kernels=5, item=True, restart=200)
    if as_functions:
        for step in [e for e in sim.events if e["name"].startswith("ProfilerStep")]:
            sim.host("train.py(40): step", step["ts"], step["dur"] - 1, "python_function")
            sim.host("torch/x.py(7): f", step["ts"] + 1, step["dur"] - 3, "python_function")
    else:
        for event in sim.events:
            if event["name"] == "aten::_local_scalar_dense":
                event["args"]["Call stack"] = (
                    "/u/lib/python3.12/site-packages/torch/x.py(7): f;train.py(43): step"
                )
    sync = _json(capsys, _file(tmp_path, sim))["syncs"][0]
    assert sync["file"] == "train.py"
    assert sync["line"] == (40 if as_functions else 43)
    assert sync["line_is"] == ("def" if as_functions else "call")


def test_several_files_are_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late, early = gpu_training(4, n_kernels=20), gpu_training(4, n_kernels=20)
    for sim, talks in ((late, 2), (early, 8)):
        kernels = [e for e in sim.events if e["cat"] == "kernel"]
        for i, event in enumerate(kernels):
            if i % 20 >= 20 - talks:
                event["name"] = "ncclDevKernel_AllReduce_Sum_f32"
    paths = [
        _file(tmp_path, early, "b.json", distributedInfo={"rank": 1}),
        _file(tmp_path, late, "a.json", distributedInfo={"rank": 0}),
    ]
    found = _json(capsys, *paths)
    _check(found)
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert "stragglers" in found["rank_comparison"]
    for rank in found["ranks"]:
        _check(rank)
    # rank 0 waits least in collectives: it comes last, the other waits for it
    assert found["rank"] == 0
    assert cli.main(["trace", *paths]) == 0
    assert "2 ranks" in capsys.readouterr().out


@pytest.mark.slow
def test_each_of_several_files_is_read_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfkit.advice import trace_report
    from perfkit.trace.ask import rank_summary
    from perfkit.trace.ask.ranks import ranks

    paths = [
        _file(tmp_path, gpu_training(3), f"{i}.json", distributedInfo={"rank": i}) for i in range(3)
    ]
    alone = ranks(paths, at_once=1)
    read: list[str] = []

    def counting(path: str, **options: Any) -> Any:
        read.append(path)
        return load(path, **options)

    monkeypatch.setattr(trace_report, "load", counting)
    monkeypatch.setattr(rank_summary, "load", counting)
    monkeypatch.setattr(
        sys.modules["perfkit.trace.ask.ranks"], "_read", lambda *_: pytest.fail("read again")
    )
    found = _json(capsys, *paths)
    assert read == paths
    # and the comparison is the one that is made when each is read for it
    assert found["rank_comparison"]["imbalance"] == alone.imbalance
    assert found["rank_comparison"]["n_collectives"] == alone.n_collectives

    # of large files, read by other processes, only the explained one is read again, here
    read.clear()
    monkeypatch.setattr(trace_report, "_WORTH_A_PROCESS_BYTES", 0)
    monkeypatch.setattr(trace_report, "usable_cpus", lambda: 2)
    again = _json(capsys, *paths)
    assert read == [again["file"]]
    assert again == found


def test_diff_says_what_came_and_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = _file(tmp_path, cpu_training(6, wait=870, loader=SINGLE), "slow.json")
    fast = _file(tmp_path, cpu_training(6), "fast.json")
    found = _json(capsys, fast, "--diff", slow)
    _check(found)
    assert found["diff"]["ratio"] == pytest.approx(2, rel=0.01)
    before, after = found["diff"]["host_ms"]["data wait"]
    assert (before, after) == (pytest.approx(0.87), 0)
    assert cli.main(["trace", fast, "--diff", slow]) == 0
    assert "slow.json (before) to fast.json (after)" in capsys.readouterr().out


def test_json_is_scrubbed_unless_asked_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sim = gpu_training(2, n_kernels=5, item=True, restart=200)
    for event in sim.events:
        if event["name"] == "aten::_local_scalar_dense":
            event["args"]["Call stack"] = "/home/grace/code/train.py(43): step"
    path = _file(tmp_path, sim)
    scrubbed = _json(capsys, path)["syncs"][0]
    assert "grace" not in scrubbed["file"]
    assert scrubbed["file"].endswith("train.py")
    assert _json(capsys, path, "--no-scrub")["syncs"][0]["file"] == "/home/grace/code/train.py"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"hello", "plain text"),
        (b"\x89PNG\r\n", "a PNG picture"),
        (b'{"a": 1}', "no 'traceEvents'"),
        (b'{"traceEvents": []}', "empty trace"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert cli.main(["trace", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_no_such_file_a_folder_and_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, cpu_training(2))
    for arguments in (
        [str(tmp_path / "none.json")],
        [str(tmp_path)],
        [path, path, "--diff", path],
        [path, "--html", str(tmp_path / "no" / "where.html")],
    ):
        assert cli.main(["trace", *arguments]) == 2
        said = capsys.readouterr()
        assert said.err.startswith("perfkit: ")
        assert said.err.count("\n") == 1


def test_html_does_not_take_the_place_of_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = tmp_path / "device"
    os.mkfifo(device)
    path = _file(tmp_path, cpu_training(3))
    assert cli.main(["trace", path, "--html", str(device)]) == 2
    assert "not a regular file" in capsys.readouterr().err
    assert device.is_fifo()


def test_html_is_one_page_and_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = cpu_training(3)
    evil = '<img src=x onerror="alert(1)">'
    sim.host(evil, 1_100, 200)
    target = tmp_path / "out.html"
    assert cli.main(["trace", _file(tmp_path, sim, "<b>.json"), "--html", str(target)]) == 0
    page = target.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<img" not in page
    assert "<b>.json" not in page
    assert "&lt;img src=x" in page
    assert "<script" not in page
    assert "://" not in page
    capsys.readouterr()


@needs_traces
@each_trace
def test_traces_by_others(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, str(path))
    _check(found)
    if "resnet50_workers0" in path.name:
        assert found["bound_by"] == "data"
        assert "dataloader-no-workers" in {f["rule"] for f in found["findings"]}
    if "resnet50_workers4" in path.name:
        assert found["bound_by"] != "data"
        assert not any(f["rule"].startswith("dataloader") for f in found["findings"])


def test_steps_without_any_length_are_explained_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for sim in (gpu_training(3), cpu_training(3)):
        for event in sim.events:
            event["dur"] = 0
        sim.host("aten::mm", 0, 0)
        path = _file(tmp_path, sim)
        for arguments in ([path], [path, path], [path, "--json"]):
            assert cli.main(["trace", *arguments]) == 0
    capsys.readouterr()


def test_what_does_not_fit_into_memory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfkit.advice import trace_report

    def load(path: str, **options: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(trace_report, "load", load)
    path = _file(tmp_path, cpu_training(2))
    assert cli.main(["trace", path]) == 2
    assert capsys.readouterr().err == f"perfkit: not enough memory for {path}\n"


def test_a_packed_trace_has_a_limit_and_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(cpu_training(300).gz())
    assert cli.main(["trace", str(path)]) == 0
    capsys.readouterr()
    assert cli.main(["trace", str(path), "--unpack-at-most", "0.0001"]) == 2
    assert "--unpack-at-most" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["trace", str(path), "--unpack-at-most", "much"])


@pytest.mark.parametrize("command", ["trace", "compare-runs"])
def test_error_lines_obey_no_file_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    evil = str(tmp_path / "a\x1b[31m\nb.json")
    assert cli.main([command, evil, *([evil] if command == "compare-runs" else [])]) == 2
    with pytest.raises(SystemExit):
        cli.main([command, "--\x1b[31mno-such"])
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert said.splitlines()[0].startswith("perfkit: cannot read")
    assert "b.json" in said.splitlines()[0]


@pytest.mark.slow
def test_a_trace_through_standard_input(tmp_path: Path) -> None:
    import subprocess

    def explained(data: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "perfkit.cli", "trace", "/dev/stdin"],
            input=data,
            capture_output=True,
            check=False,
        )

    good, bad = explained(cpu_training(3).json()), explained(b"hello")
    assert good.returncode == 0
    assert b"Compute-bound" in good.stdout
    assert bad.returncode == 2
    assert bad.stderr.count(b"\n") == 1


def test_one_question_is_answered_as_text_json_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, gpu_training(4, wait=50, item=True))
    assert cli.main(["trace", path, "--ask", "critical-path"]) == 0
    assert capsys.readouterr().out.startswith("90 % of the critical path: computing")
    found = _json(capsys, path, "--ask", "critical-path")
    assert found["bound_by"] in BOUNDS
    assert sum(found["by_class_us"].values()) == pytest.approx(found["wall_us"])
    page = tmp_path / "path.html"
    assert cli.main(["trace", path, "--ask", "critical-path", "--html", str(page)]) == 0
    assert "critical path" in page.read_text(encoding="utf-8")


def test_all_questions_are_listed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "--ask", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("critical-path", "sequences", "memory-curve", "copies"))
    assert "ranks" in _json(capsys, "--ask", "list")["names"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["FILE", "--ask", "speed"], "no answer 'speed'; ask one of: breakdown, "),
        (["FILE", "FILE", "--ask", "copies"], "--ask copies is about one trace: give one file"),
        (["--ask", "copies"], "--ask copies is about one trace: give one file"),
        (["FILE", "--ask", "copies", "--diff", "FILE"], "--ask and --diff: give one of the two"),
        ([], "no trace to explain: give the path"),
    ],
)
def test_a_wrong_question_is_one_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, cpu_training(4))
    assert cli.main(["trace", *(path if a == "FILE" else a for a in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert len(said.err.splitlines()) == 1


def test_the_page_of_a_trace_has_all_answers(tmp_path: Path) -> None:
    path = _file(tmp_path, gpu_training(4, wait=50, item=True))
    page = tmp_path / "trace.html"
    assert cli.main(["trace", path, "--html", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert "More answers" in html
    assert " of the critical path: " in html
