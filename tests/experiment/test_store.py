"""Runs in a file: whole lines, a lock, and the right workload."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from perfkit.base.errors import StoreError
from perfkit.base.machine import stamp
from perfkit.experiment.compare._identity import Identity, identity
from perfkit.experiment.compare._saved import SavedRun, saved
from perfkit.experiment.compare.store import SCHEMA, Store, read
from perfkit.experiment.process import result as results
from perfkit.measure.summary import summarize

ME = Identity("train", "0123", "a machine", "none", "2.9.0")


def run(run_id=1, n=10, **changes):
    step_ms = np.linspace(1.0, 2.0, n)
    flags = np.arange(n) >= 3
    made = {
        "run_id": run_id,
        "values": {"num_workers": 2, "uint8": True, "collate": "pad", "x": None},
        "state": "done",
        "message": "",
        "step": summarize(step_ms[flags], unit="ms") if n else None,
        "wait_share": 0.25,
        "samples_per_s": 1000.0,
        "peak_bytes": 2**20,
        "peak_kind": "resident set",
        "n_steps": n,
        "n_quiet": n,
        "n_counted": int(flags.sum()),
        "provenance": stamp(seed=0, device="cpu"),
        "index": np.arange(n),
        "step_ms": step_ms,
        "wait_ms": step_ms / 4,
        "memory_bytes": np.full(n, 2**20),
        "quiet": flags,
        "counted": flags,
        "loss": np.where(np.arange(n) == 1, np.inf, np.nan),
        "page_faults": np.full(n, 7),
        "output": "said",
        "warnings": ("doubtful",),
    }
    return results.RunResult(**(made | changes))


def test_a_run_comes_back_as_it_was(tmp_path):
    before = run()
    with Store(tmp_path / "s.jsonl", ME) as store:
        store.append(before, {"kind": "sweep", "round": 0})
    lines, notes = read(tmp_path / "s.jsonl")
    assert notes == ()
    (line,) = lines
    assert line.part == {"kind": "sweep", "round": 0}
    assert line.identity == ME.to_dict()
    after = line.run
    for name in ("run_id", "values", "state", "message", "wait_share", "peak_bytes", "n_counted"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.step == before.step
    assert after.warnings == before.warnings
    assert after.provenance == before.provenance
    assert after.mean_ms == pytest.approx(before.mean_ms)
    assert np.array_equal(after.counted, before.counted)
    assert np.isnan(after.loss).all(), "JSON has no infinity"
    assert after.faults_per_step == before.faults_per_step == 7
    text = (tmp_path / "s.jsonl").read_text()
    assert text.count("\n") == 1
    assert json.loads(text)["schema"] == SCHEMA


def test_a_run_of_before_page_faults_were_counted_is_read():
    line = saved(run())
    del line["curve"]["page_faults"]
    after = msgspec.json.decode(json.dumps(line), type=SavedRun).run()
    assert after.faults_per_step is None
    assert after.mean_ms == pytest.approx(run().mean_ms)


def test_a_failed_run_without_a_step_comes_back(tmp_path):
    empty = run(n=0, state="out of memory", message="no", wait_share=None)
    again = msgspec.json.decode(json.dumps(saved(empty)), type=SavedRun).run()
    assert again.state == "out of memory"
    assert again.step is None
    assert len(again.index) == 0


def test_a_long_curve_is_thinned_and_its_mean_stays():
    before = run(n=100_000)
    text = json.dumps(saved(before), allow_nan=False)
    assert len(text) < 300_000
    after = msgspec.json.decode(text, type=SavedRun).run()
    assert after.n_steps == 100_000
    assert after.mean_ms == pytest.approx(before.mean_ms, rel=1e-3)
    assert after.step == before.step


def test_a_torn_last_line_is_reported_and_removed(tmp_path):
    path = tmp_path / "s.jsonl"
    with Store(path, ME) as store:
        store.append(run(1), {"round": 0})
        store.append(run(2), {"round": 1})
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for length in (1, 20, (len(whole) - second) // 2, len(whole) - second - 2):
        path.write_bytes(whole[: second + length])
        lines, notes = read(path)
        assert [line.run.run_id for line in lines] == [1]
        assert f"cut off while it was written ({length} bytes)" in notes[0]
        assert path.stat().st_size == second + length, "reading changes nothing"
        with Store(path, ME) as store:
            assert [line.run.run_id for line in store.lines] == [1]
            assert "cut off while it was written" in store.notes[0]
            assert "removed" in store.notes[0]
            store.append(run(2), {"round": 1})
        assert [line.run.run_id for line in read(path)[0]] == [1, 2]


def test_a_last_line_that_lacks_only_its_end_is_whole(tmp_path):
    path = tmp_path / "s.jsonl"
    with Store(path, ME) as store:
        store.append(run(1), {})
    path.write_bytes(path.read_bytes()[:-1])
    with Store(path, ME) as store:
        assert store.notes == []
        store.append(run(2), {})
    Store(path, ME).close()
    assert [line.run.run_id for line in read(path)[0]] == [1, 2]
    assert path.read_bytes().count(b"\n") == 2, "a line for each run, and no other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json\n{}\n", "line 1 is not a run"),
        ('{"a": 1}\n', "line 1 is not a run"),
        ('{"schema": "perfkit.run/99"}\n', "has the schema 'perfkit.run/99', this perfkit reads"),
        ('{"schema": "perfkit.run/1", "run": 3, "part": {}}\n', "line 1 is damaged"),
        ("[1]\n", "line 1 is not a run"),
    ],
)
def test_what_is_no_store_is_refused_and_left_alone(tmp_path, text, words):
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    for use in (read, lambda p: Store(p, ME)):
        with pytest.raises(StoreError, match=words):
            use(path)
    assert path.read_text() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.jsonl"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, "runs of the workload 'train', not of 'other'"),
        ({"digest": "4567"}, "'train' as it was before: its code, or a value in it, has changed"),
        ({"machine": "another"}, "made with machine 'a machine', not 'another'"),
        ({"gpu": "NVIDIA H200"}, "made with gpu 'none', not 'NVIDIA H200'"),
        ({"torch": "3.0"}, "made with torch '2.9.0', not '3.0'"),
    ],
)
def test_runs_of_something_else_are_refused(tmp_path, change, words):
    path = tmp_path / "s.jsonl"
    with Store(path, ME) as store:
        store.append(run(), {})
    other = Identity(**(vars(ME) | change))
    with pytest.raises(StoreError, match=words):
        Store(path, other)
    Store(path, ME).close()


def test_one_process_at_a_time_and_the_holder_is_named(tmp_path):
    path = tmp_path / "s.jsonl"
    first = Store(path, ME)
    with pytest.raises(StoreError, match=rf"in use by process {os.getpid()} on "):
        Store(path, ME)
    program = (
        "import sys\n"
        "from perfkit.experiment.compare._identity import Identity\n"
        "from perfkit.experiment.compare.store import Store\n"
        f"Store(sys.argv[1], Identity{(ME.name, ME.digest, ME.machine, ME.gpu, ME.torch)!r})\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert other.returncode == 1
    assert f"in use by process {os.getpid()} on " in other.stderr
    first.close()
    Store(path, ME).close()
    assert not path.with_name("s.jsonl.lock").exists()


def test_a_lock_dies_with_its_holder(tmp_path):
    path = tmp_path / "s.jsonl"
    program = (
        "import os, sys\n"
        "from perfkit.experiment.compare._identity import Identity\n"
        "from perfkit.experiment.compare.store import Store\n"
        f"Store(sys.argv[1], Identity{(ME.name, ME.digest, ME.machine, ME.gpu, ME.torch)!r})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert ended.returncode == -9
    assert path.with_name("s.jsonl.lock").exists(), "its word stays, the lock does not"
    Store(path, ME).close()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    store = Store(path, ME)
    store.append(run(1), {})
    before = path.read_bytes()
    real = os.write
    written = []

    def full(fd, data):
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(real(fd, bytes(data[:100])))
        return 100

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"cannot append .*No space left on device"):
        store.append(run(2), {})
    monkeypatch.undo()
    assert written == [100], "some of it was written"
    assert path.read_bytes() == before
    store.append(run(2), {})
    store.close()
    assert [line.run.run_id for line in read(path)[0]] == [1, 2]


def test_a_place_that_cannot_be_is_told(tmp_path):
    with pytest.raises(StoreError, match="cannot write next to the store"):
        Store(tmp_path / "missing" / "s.jsonl", ME)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="not a regular file"):
        Store(tmp_path / "folder", ME)
    with pytest.raises(StoreError, match="cannot read"):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("run", "values", "num_workers"), float("inf")),
        (("run", "samples_per_s"), "fast"),
        (("run", "samples_per_s"), -1.0),
        (("run", "state"), "well"),
        (("run", "n_steps"), 10**400),
        (("run", "summary", "median"), "short"),
        (("run", "curve", "counted"), ["x"] * 10),
        (("run", "curve", "step_ms"), None),
        (("run", "curve", "index"), [10**30] * 10),
        (("part", "round"), "second"),
    ],
)
def test_a_line_with_a_part_that_cannot_be_is_named_as_damaged(tmp_path, where, value):
    place = tmp_path / "s.jsonl"
    with Store(place, ME) as store:
        store.append(run(), {"kind": "sweep", "round": 0})
    line = json.loads(place.read_text())
    within = line
    for name in where[:-1]:
        within = within[name]
    within[where[-1]] = value
    place.write_text(json.dumps(line) + "\n")
    with pytest.raises(StoreError, match="line 1 is damaged") as caught:
        read(place)
    assert str(place) in str(caught.value)
    assert "remove that line" in str(caught.value)
    if value != float("inf"):  # that is no JSON: only its place in the line is known
        field = "curve" if where[-2] == "curve" else where[-1]
        assert field in str(caught.value)


def test_a_line_nested_without_end_is_no_run(tmp_path):
    place = tmp_path / "s.jsonl"
    place.write_text("[" * 200_000 + "\n")
    with pytest.raises(StoreError, match="line 1 is not a run"):
        read(place)
    place.write_text("[" * 200_000)
    assert "cut off" in read(place)[1][0]


@pytest.mark.parametrize("name", ["", "/", "a\0b", None, 5, b"x", ["x"]])
def test_what_cannot_be_the_name_of_a_file_is_refused(name):
    with pytest.raises(StoreError, match="not a file name"):
        Store(name, ME)
    with pytest.raises(StoreError, match="not a file name"):
        read(name)


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_a_link_to_a_store_has_its_lock(tmp_path):
    (tmp_path / "link.jsonl").symlink_to("s.jsonl")
    with Store(tmp_path / "link.jsonl", ME) as store:
        with pytest.raises(StoreError, match="in use"):
            Store(tmp_path / "s.jsonl", ME)
        store.append(run(), {})
    assert {p.name for p in tmp_path.iterdir()} == {"link.jsonl", "s.jsonl"}
    assert len(read(tmp_path / "s.jsonl")[0]) == 1


# --- is it the same workload? -------------------------------------------------------------------


def make(code, **names):
    namespace = {"__name__": "__main__", **names}
    exec(code, namespace)
    return namespace["train"]


class Size:
    def __init__(self, n):
        self.n = n


ONE = "def train(s):\n    yield helper(s)\n\ndef helper(s):\n    return s + {}\n"


def test_the_digest_follows_code_and_values_however_deep():
    def digest(workload):
        return identity(workload).digest

    assert digest(make(ONE.format(1))) == digest(make(ONE.format(1)))
    assert digest(make(ONE.format(1))) != digest(make(ONE.format(2))), "a helper's constant"
    reads = "def train(s):\n    yield SIZE\n"
    assert digest(make(reads, SIZE=1)) == digest(make(reads, SIZE=1))
    assert digest(make(reads, SIZE=1)) != digest(make(reads, SIZE=2)), "a global"
    assert digest(make(reads, SIZE={1, 2, 3})) == digest(make(reads, SIZE={3, 2, 1}))
    assert digest(make(reads, SIZE=Size(1))) == digest(make(reads, SIZE=Size(1)))
    assert digest(make(reads, SIZE=Size(1))) != digest(make(reads, SIZE=Size(2))), "its attribute"
    train = make(reads, SIZE=1)
    assert digest(functools.partial(train, s=1)) != digest(functools.partial(train, s=2))


PROGRAM = """
from perfkit.experiment.compare._identity import identity
class Pictures:
    side = 3
    def get(self, i):
        return {"a", "b", "c", str(i)}
NAMES = {"x", "y", "z"}
def train(settings):
    import torch
    yield Pictures().get(0) | NAMES, torch.nn.Linear
print(identity(train).digest)
"""


def test_the_digest_is_the_same_in_another_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = set()
    for hash_seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, str(program)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(ended.stdout)
    assert len(found) == 1
