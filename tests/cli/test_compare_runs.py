"""``perfkit compare-runs``: stores written by the store itself, with known times."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from perfkit.base import files
from perfkit.base.errors import StoreError, UsageError
from perfkit.base.machine import stamp
from perfkit.base.plain import fields
from perfkit.cli import main
from perfkit.experiment.compare import store
from perfkit.experiment.compare._identity import identity
from perfkit.experiment.compare.compare_runs import Matched, _verdict, _welch, compare_runs
from perfkit.experiment.process.result import RunResult
from perfkit.measure.summary import summarize
from perfkit.show import html


def workload(settings):
    yield


def a_run(values, ms, *, seed=0, noise=0.01, samples=32, state="done", **more) -> RunResult:
    n = 60
    steps = ms * np.random.default_rng(seed).lognormal(0, noise, n)
    good = state == "done"
    return RunResult(
        run_id=1,
        values=values,
        state=state,
        message="" if good else "something <b>bad</b>",
        step=summarize(steps, unit="ms") if good else None,
        wait_share=0.1,
        samples_per_s=samples / steps.mean() * 1e3 if good else None,
        peak_bytes=1,
        peak_kind="resident",
        n_steps=n if good else 0,
        n_quiet=n,
        provenance=more.pop("provenance", stamp(device="cpu")),
        n_counted=n,
        index=np.arange(n if good else 0),
        step_ms=steps if good else np.empty(0),
        wait_ms=np.zeros(n if good else 0),
        memory_bytes=np.zeros(n if good else 0, np.int64),
        quiet=np.ones(n if good else 0, bool),
        counted=np.ones(n if good else 0, bool),
        loss=np.full(n if good else 0, np.nan),
    )


@pytest.fixture
def stored(tmp_path):
    def write(name, runs):
        path = tmp_path / name
        with store.Store(path, identity(workload)) as into:
            for number, run in enumerate(runs):
                into.append(run, {"kind": "test", "number": number})
        return str(path)

    return write


def several(values, ms, *, n=4, seed=0, between=0.01, **more):
    luck = np.random.default_rng(seed).lognormal(0, between, n)
    return [a_run(values, ms * luck[i], seed=seed + i, **more) for i in range(n)]


def test_a_regression_beyond_the_margin_is_exit_code_1(stored, capsys) -> None:
    slow, fast = {"workers": 0}, {"workers": 2}
    a = stored("a.jsonl", several(slow, 20, seed=1) + several(fast, 10, seed=2))
    b = stored("b.jsonl", several(slow, 20, seed=3) + several(fast, 12, seed=4))
    assert main(["compare-runs", a, b]) == 1
    said = capsys.readouterr().out
    assert "1 of 2 configurations slower beyond 5 %" in said
    assert "as fast as before [0.8" in " ".join(said.split()), "below 1 is slower, everywhere"
    assert "workers 2" in said
    # 20 % slower is within a margin of 50 %, and the other way round it is a gain
    assert main(["compare-runs", a, b, "--margin", "50%"]) == 0
    assert main(["compare-runs", b, a]) == 0
    assert "faster" in capsys.readouterr().out


def test_the_near_end_of_the_interval_decides(stored) -> None:
    """10 % slower on average, but the runs of a configuration differ by 20 %: unclear."""
    a = stored("a.jsonl", several({"x": 1}, 10, seed=1, between=0.2))
    b = stored("b.jsonl", several({"x": 1}, 11, seed=2, between=0.2))
    found = compare_runs(a, b)
    assert [one.verdict for one in found.matched] == ["unclear"]
    assert not found.regressions
    assert found.sentence == "Too noisy to tell whether 1 configuration got slower beyond 5 %."


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.7, 0.79, "slower"),
        (0.7, 0.8, "unclear"),  # as slow as the margin of 25 % allows, perhaps
        (0.8, 1.25, "within the margin"),
        (0.79, 1.0, "unclear"),
        (1.0, 1.26, "unclear"),
        (1.25, 1.5, "unclear"),
        (1.26, 1.5, "faster"),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, verdict: str) -> None:
    assert _verdict(low, high, 0.25) == verdict


def test_an_infinite_end_is_null_in_json() -> None:
    known = (10.0, 10.0, 1.0, 0.5)
    ends = {
        high: Matched({}, *known, high, 1, 1, "step", "unclear") for high in (np.inf, 2.0, None)
    }
    assert {high: fields(one)["high"] for high, one in ends.items()} == {
        np.inf: None,
        2.0: 2.0,
        None: None,
    }


def test_welchs_interval_by_hand() -> None:
    """Of the logarithms 5 and 7, and of four times 1 and 7: the table of t has the rest."""
    before, after = np.exp([5.0, 7.0]), np.exp([1.0, 1.0, 1.0, 1.0, 7.0, 7.0, 7.0, 7.0])
    parts = 2 / 2, (72 / 7) / 8
    error = np.sqrt(sum(parts))
    freedom = int(sum(parts) ** 2 / (parts[0] ** 2 / 1 + parts[1] ** 2 / 7))
    found = np.log(_welch(list(before), list(after), 0.95))
    t = {1: 12.706, 2: 4.3027, 3: 3.1824, 4: 2.7764}[freedom]
    assert found == pytest.approx([2.0, 2 - t * error, 2 + t * error], abs=1e-3)
    assert _welch([2.0, 2.0], [1.0, 1.0, 1.0], 0.95) == (2.0, 2.0, 2.0)


@pytest.mark.slow
def test_equal_stores_raise_hardly_any_alarm(stored) -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for trial in range(40):
        parts = []
        for side in (0, 1):
            luck = random.lognormal(0, 0.05, 3)
            parts.append([a_run({"x": 1}, 10 * f, seed=trial + side) for f in luck])
        a, b = (stored(f"{trial}-{i}.jsonl", runs) for i, runs in enumerate(parts))
        found = compare_runs(a, b, margin=0.0)
        alarms += bool(found.regressions)
    assert alarms <= 3, "2.5 % are expected on this side, of 40"


def test_configurations_are_matched_by_values_and_the_rest_is_listed(stored, capsys) -> None:
    a = stored("a.jsonl", several({"x": 1, "y": True}, 10) + several({"x": 2, "y": True}, 10))
    b = stored("b.jsonl", several({"y": True, "x": 1}, 10) + several({"x": 3, "y": True}, 10))
    assert main(["compare-runs", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "perfkit.compare-runs/2"
    assert [one["values"] for one in found["matched"]] == [{"x": 1, "y": True}]
    assert found["only_before"] == [{"x": 2, "y": True}]
    assert found["only_after"] == [{"x": 3, "y": True}]
    assert main(["compare-runs", a, b]) == 0
    said = capsys.readouterr().out
    assert "only in" in said
    assert "x 3, y on" in " ".join(said.split())


def test_a_configuration_that_fails_now_is_a_regression(stored, capsys) -> None:
    good, bad = several({"x": 1}, 10), [a_run({"x": 1}, 10, state="out of memory")]
    a, b = stored("a.jsonl", good), stored("b.jsonl", bad)
    assert main(["compare-runs", a, b]) == 1
    assert "fails now" in capsys.readouterr().out
    assert main(["compare-runs", b, a]) == 0
    assert "<b>bad" not in html(compare_runs(a, b))


def test_a_single_run_is_compared_by_its_steps_with_a_warning(stored) -> None:
    a = stored("a.jsonl", [a_run({"x": 1}, 10, seed=1)])
    b = stored("b.jsonl", [a_run({"x": 1}, 13, seed=2)])
    found = compare_runs(a, b)
    assert [one.verdict for one in found.matched] == ["slower"]
    assert found.matched[0].low < found.matched[0].ratio < found.matched[0].high < 1
    assert found.matched[0].ratio == pytest.approx(10 / 13, rel=0.05)
    assert any("process to process" in w for w in found.warnings)
    assert found.warnings[-1].startswith("a single run of x 1: what differs")


def test_other_batches_are_compared_by_the_sample(stored) -> None:
    a = stored("a.jsonl", several({"x": 1}, 10, samples=32))
    b = stored("b.jsonl", several({"x": 1}, 20, samples=64))
    (one,) = compare_runs(a, b).matched
    assert one.per == "sample"
    assert one.ratio == pytest.approx(1.0, abs=0.05)


def test_intervals_are_wider_where_more_are_compared(stored) -> None:
    """All of them together have 95 %."""
    runs = [several({"x": x}, 10, seed=x) for x in (1, 2)]
    alone = [stored(f"{side}.jsonl", runs[0]) for side in "ab"]
    both = [stored(f"{side}.jsonl", runs[0] + runs[1]) for side in "cd"]
    for pair, each in ((alone, 0.95), (both, 0.975)):
        found = compare_runs(*pair)
        assert (found.confidence, found.margin) == (0.95, 0.05)
        one = next(m for m in found.matched if m.values == {"x": 1})
        times = [run.mean_ms for run in runs[0]]
        assert (one.ratio, one.low, one.high) == pytest.approx(_welch(times, times, each))


@pytest.mark.parametrize(("samples", "per"), [(38, "step"), (39, "sample"), (26, "sample")])
def test_batches_a_fifth_apart_are_compared_by_the_sample(stored, samples, per) -> None:
    a = stored("a.jsonl", [a_run({"x": 1}, 10, samples=32)])
    b = stored("b.jsonl", [a_run({"x": 1}, 10, samples=samples)])
    assert [one.per for one in compare_runs(a, b).matched] == [per]


def test_regressions_come_first_and_failures_before_them(stored) -> None:
    now = {0: 10, 1: 20, 2: 30, 3: 10}  # ms, of 10 ms before
    a = stored("a.jsonl", [a_run({"x": x}, 10, seed=x) for x in (*now, 4)])
    bad = a_run({"x": 4}, 10, state="out of memory")
    b = stored("b.jsonl", [*(a_run({"x": x}, ms, seed=9 + x) for x, ms in now.items()), bad])
    found = compare_runs(a, b)
    assert [one.values["x"] for one in found.matched][:3] == [4, 2, 1]
    assert found.sentence.startswith("3 of 5 configurations got worse: x 4 fails now: out of memo")
    (told,) = (w for w in found.warnings if w.startswith("a single run of "))
    assert told.startswith("a single run of x 0, x 1, x 2, …: what differs")
    again = compare_runs(b, a)
    assert [one.verdict for one in again.matched if one.values["x"] == 4] == ["runs again"]
    assert not again.regressions


def test_all_of_three_single_runs_are_named(stored) -> None:
    pair = [
        stored(f"{side}.jsonl", [a_run({"x": x}, 10, seed=x) for x in range(3)]) for side in "ab"
    ]
    (told,) = compare_runs(*pair).warnings
    assert told.startswith("a single run of x 0, x 1, x 2: what differs")


def test_another_workload_is_told(stored, tmp_path) -> None:
    def other(settings):
        yield

    a = stored("a.jsonl", several({"x": 1}, 10))
    with store.Store(tmp_path / "b.jsonl", identity(other)) as into:
        for number, run in enumerate(several({"x": 1}, 10)):
            into.append(run, {"kind": "test", "number": number})
    assert compare_runs(a, a).warnings == ()
    (told,) = compare_runs(a, tmp_path / "b.jsonl").warnings
    assert told.startswith("different workloads: ")


def test_one_failure_among_several_runs_counts_where_none_failed_before(stored) -> None:
    good, bad = several({"x": 1}, 10), a_run({"x": 1}, 10, state="failed")
    a, b = stored("a.jsonl", good), stored("b.jsonl", [*good[:3], bad])
    c = stored("c.jsonl", [*good[:2], bad])
    assert [one.verdict for one in compare_runs(a, b).matched] == ["fails now"]
    assert [one.verdict for one in compare_runs(c, b).matched] != ["fails now"]
    never = [stored(f"{name}.jsonl", [bad]) for name in "de"]
    assert [one.verdict for one in compare_runs(*never).matched] == ["unclear"]


def test_other_machines_and_versions_are_told(stored) -> None:
    here = stamp(device="cpu")
    there = dataclasses.replace(here, machine="Other <CPU>", versions={"torch": "1.0"})
    a = stored("a.jsonl", several({"x": 1}, 10))
    # the store takes the runs of one machine; these come from another machine's file
    b = stored("b.jsonl", [a_run({"x": 1}, 10, seed=i, provenance=there) for i in range(3)])
    found = compare_runs(a, b)
    assert any(w.startswith("different machines") for w in found.warnings)
    assert any("torch" in w and "1.0" in w for w in found.warnings)
    assert "Other <CPU>" not in html(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"", "no run"),
        (b"not json\n", ""),
        (b'{"schema": "perfkit.run/999"}\n', ""),
        (b"[1, 2]\n", ""),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(stored, tmp_path, capsys, content, words) -> None:
    a = stored("a.jsonl", several({"x": 1}, 10))
    bad = tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_bytes(content)
    for pair in ([a, str(bad)], [str(bad), a]):
        assert main(["compare-runs", *pair]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.startswith("perfkit: ")
        assert len(said.err.splitlines()) == 1, said.err
        assert words in said.err


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("folder", "Is a directory"),
        ("pipe without a writer", "nothing came through this pipe"),
        ("pipe without an end", "the pipe holds more than"),
        ("device", "it is a device"),
        ("larger than memory", "it is larger than 1.00 GiB"),
        ("cut in its only line", "cut off while it was written"),
        ("not text", "is not a run"),
        ("compressed", "is not a run"),
    ],
)
def test_what_is_no_store_ends_in_one_line_and_at_once(
    stored, tmp_path, capsys, monkeypatch, kind, words
) -> None:
    a = stored("a.jsonl", several({"x": 1}, 10))
    odd = tmp_path / "odd.jsonl"
    monkeypatch.setattr(files, "SILENT_PIPE_S", 0.2)
    writer = None
    if kind == "folder":
        odd.mkdir()
    elif kind == "device":
        odd = Path("/dev/zero")
    elif kind.startswith("pipe"):
        os.mkfifo(odd)
        if kind == "pipe without an end":
            monkeypatch.setattr(store, "_MOST_BYTES", 2**20)
            writer = threading.Thread(target=_write_on, args=(odd,), daemon=True)
            writer.start()
    else:
        whole = Path(a).read_bytes()
        odd.write_bytes(
            {
                "larger than memory": b"",
                "cut in its only line": whole[: whole.index(b"\n") // 2],
                "not text": bytes(range(256)) * 40 + b"\n",
                "compressed": gzip.compress(whole) + b"\n",
            }[kind]
        )
        if kind == "larger than memory":
            os.truncate(odd, 2**42)  # a hole: it takes no room on the disk
    try:
        assert main(["compare-runs", a, str(odd)]) == 2
    finally:
        if writer is not None:
            writer.join()
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("perfkit: ")
    assert words in said.err


def _write_on(pipe: Path) -> None:
    """Write into a pipe until nobody reads it any more."""
    with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as end:
        while True:
            end.write(b"{}\n" * 4096)


def test_a_store_through_a_pipe_is_read(stored, tmp_path) -> None:
    a = stored("a.jsonl", several({"x": 1}, 10))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(Path(a).read_bytes()))
    writer.start()
    try:
        assert compare_runs(a, pipe).matched[0].n_after == 4
    finally:
        writer.join()


def test_nothing_in_common_and_a_wrong_margin_are_bad_input(stored, capsys) -> None:
    a, b = stored("a.jsonl", several({"x": 1}, 10)), stored("b.jsonl", several({"x": 2}, 10))
    assert main(["compare-runs", a, b]) == 2
    assert "no configuration in common" in capsys.readouterr().err
    for margin in ("five", "5", "-1%", "nan", "1e9%"):
        assert main(["compare-runs", a, a, f"--margin={margin}"]) == 2
        assert "--margin" in capsys.readouterr().err
    assert main(["compare-runs", a, a, "--margin", "0.1"]) == 0
    for share in (float("nan"), "5%", None, [], 1j, True, 10**400):
        with pytest.raises(UsageError, match="margin"):
            compare_runs(a, a, margin=share)
    for path in (5, None, b"x", ""):
        with pytest.raises(StoreError, match="not a file name"):
            compare_runs(path, a)


def test_a_torn_last_line_is_told_and_the_rest_compared(stored) -> None:
    a = stored("a.jsonl", several({"x": 1}, 10))
    with open(a, "ab") as file:  # noqa: PTH123
        file.write(b'{"schema": "perfk')
    found = compare_runs(a, stored("b.jsonl", several({"x": 1}, 10, seed=9)))
    assert found.matched[0].n_before == 4
    assert any("a.jsonl" in w for w in found.warnings)


def test_the_exit_code_reaches_the_shell(stored, tmp_path) -> None:
    a, b = stored("a.jsonl", several({"x": 1}, 10)), stored("b.jsonl", several({"x": 1}, 20))
    out = tmp_path / "table.md"
    done = subprocess.run(
        [sys.executable, "-m", "perfkit.cli", "compare-runs", a, b, "--markdown", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "| slower |" in out.read_text()
