"""Faults during a sweep: nothing is lost, nothing is done twice, nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from perfkit.base.errors import StoreError
from perfkit.experiment import setting
from perfkit.experiment.compare.store import read
from perfkit.experiment.compare.sweep import sweep
from perfkit.experiment.compare.tune import tune

pytestmark = pytest.mark.slow

SHORT = {"seconds": 0.1, "say": False}


def by_value(function):
    """As from a notebook: not to be imported by name in the child."""
    function.__module__ = "__main__"
    return function


@by_value
def ticking(s):
    import time

    while True:
        time.sleep(0.002)
        yield 1


def states(found):
    return {next(iter(point.values.values())): point.state for point in found.points}


def test_a_worker_that_is_killed_is_a_result_and_the_sweep_goes_on():
    @by_value
    def workload(s):
        import os
        import time

        for i in range(10**9):
            if s.x == 2 and i == 5:
                os.kill(os.getpid(), 9)
            time.sleep(0.002)
            yield 1

    found = sweep(workload, {"x": [1, 2, 3]}, rounds=3, **SHORT)
    assert states(found) == {1: "measured", 2: "killed", 3: "measured"}
    assert [len(point.runs) for point in found.points] == [3, 1, 3], "it is not tried again"
    assert [w for w in found.warnings if w.startswith("x 2: killed: killed (SIGKILL)")]
    assert found.best.values["x"] in (1, 3)
    row = found.table()[1]
    assert row["state"] == "killed"
    assert row["ratio"] is None
    assert row["message"].startswith("killed (SIGKILL)")


def test_out_of_memory_in_the_middle_of_a_sweep():
    @by_value
    def workload(s):
        import resource
        import time

        import torch

        held = torch.zeros(1)
        used = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
        while True:
            held = torch.zeros(s.mib, 1 << 18)  # a simulated limit of 1 GiB
            time.sleep(0.002)
            yield int(held.numel() > 0)

    found = sweep(workload, {"mib": [1, 4096, 2]}, rounds=2, **SHORT)
    assert states(found) == {1: "measured", 4096: "out of memory", 2: "measured"}
    assert "out of memory" in found.points[1].message
    assert [len(point.runs) for point in found.points] == [2, 1, 2]


def test_a_workload_that_hangs_is_ended_after_its_time_and_the_sweep_goes_on():
    @by_value
    def workload(s):
        import time

        for i in range(10**9):
            time.sleep(1000 if s.x == 2 and i == 5 else 0.002)
            yield 1

    found = sweep(workload, {"x": [1, 2]}, rounds=2, step_timeout_s=0.8, **SHORT)
    assert states(found) == {1: "measured", 2: "hung"}
    assert "no step within 0.8 s" in found.points[1].message


def test_a_loader_worker_that_dies():
    @by_value
    def workload(s):
        import os

        import torch

        class Pictures(torch.utils.data.Dataset):
            def __len__(self):
                return 1000

            def __getitem__(self, i):
                if s.num_workers == 1 and i == 30:
                    os.kill(os.getpid(), 9)
                return torch.zeros(4)

        while True:
            for _ in torch.utils.data.DataLoader(Pictures(), 4, num_workers=s.num_workers):
                yield

    found = sweep(workload, {"num_workers": [0, 1]}, rounds=2, **SHORT)
    assert states(found) == {0: "measured", 1: "failed"}
    assert "a DataLoader worker died" in found.points[1].message


def test_children_that_a_workload_forks_are_gone_afterwards(tmp_path):
    place = str(tmp_path / "pids")

    @by_value
    def workload(s):
        import os
        import subprocess
        import sys
        import time

        own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        apart = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True
        )
        forked = os.fork()
        if forked == 0:
            time.sleep(1000)
        with Path(s.place).open("a") as pids:
            pids.write(f"{own.pid} {apart.pid} {forked}\n")
        while True:
            time.sleep(0.002)
            yield 1

    settings = [setting("place", [place])]
    found = sweep(workload, {"x": [1, 2]}, settings=settings, rounds=1, **SHORT)
    assert set(states(found).values()) == {"measured"}
    pids = [int(pid) for pid in Path(place).read_text().split()]
    assert len(pids) == 6
    for pid in pids:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_disk_that_fills_ends_the_sweep_and_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    real, written = os.write, []

    def full(fd, data):
        if bytes(data[:10]) == b'{"schema":':
            if len(written) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(fd)
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    found = sweep(ticking, {"x": [1, 2]}, rounds=3, store=path, **SHORT)
    monkeypatch.undo()
    assert found.stopped == "the store cannot be written"
    assert len(found.runs) == 4, "the run that was not written is returned, too"
    assert [w for w in found.warnings if "No space left on device" in w]
    assert len(read(path)[0]) == 3
    again = sweep(ticking, {"x": [1, 2]}, rounds=3, store=path, **SHORT)
    assert again.n_resumed == 3
    assert len(again.runs) == len(read(path)[0]) == 6


def test_a_real_limit_on_the_file_size_is_told(tmp_path):
    program = """
        import json, resource, signal, sys
        from perfkit.experiment.compare.sweep import sweep

        def workload(s):
            import time
            while True:
                time.sleep(0.002)
                yield 1

        if __name__ == "__main__":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            found = sweep(
                workload, {"x": [1, 2]}, rounds=9, seconds=0.1, store=sys.argv[1], say=False
            )
            print(json.dumps([found.stopped, len(found.runs), list(found.warnings)]))
    """
    path = tmp_path / "s.jsonl"
    ended = run(tmp_path, program, path)
    stopped, n_runs, warnings = json.loads(ended.stdout)
    assert stopped == "the store cannot be written"
    lines, notes = read(path)
    assert notes == (), "no half-written line is left"
    assert n_runs == len(lines) + 1 > 1
    assert "File too large" in warnings[-1] or "File too large" in " ".join(warnings)


def test_two_sweeps_on_one_store(tmp_path):
    path = tmp_path / "s.jsonl"
    inside = []

    def say(line):
        if not inside:
            with pytest.raises(StoreError, match=f"in use by process {os.getpid()} "):
                sweep(ticking, {"x": [1]}, rounds=1, store=path, **SHORT)
            inside.append(line)

    found = sweep(ticking, {"x": [1, 2]}, rounds=1, store=path, seconds=0.1, say=say)
    assert inside
    assert found.stopped == "every round asked for"


def test_another_workloads_store_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "s.jsonl"
    sweep(ticking, {"x": [1]}, rounds=1, store=path, **SHORT)
    before = path.read_bytes()

    @by_value
    def another(s):
        yield 1

    with pytest.raises(StoreError, match="runs of the workload 'ticking', not of 'another'"):
        sweep(another, {"x": [1]}, rounds=1, store=path, **SHORT)
    assert path.read_bytes() == before


def test_a_torn_last_line_is_told_and_its_run_is_made_again(tmp_path):
    path = tmp_path / "s.jsonl"
    sweep(ticking, {"x": [1, 2]}, rounds=2, store=path, **SHORT)
    path.write_bytes(path.read_bytes()[:-100])
    found = sweep(ticking, {"x": [1, 2]}, rounds=2, store=path, **SHORT)
    assert found.n_resumed == 3
    assert [w for w in found.warnings if "cut off while it was written" in w]
    assert len(read(path)[0]) == 4


def test_a_failed_point_is_not_run_again_by_a_second_call(tmp_path):
    counted = tmp_path / "count"

    @by_value
    def workload(s):
        with Path(s.counted).open("a") as file:
            file.write("x")
        raise ValueError("never")
        yield

    options = {"settings": [setting("counted", [str(counted)])], "store": tmp_path / "s.jsonl"}
    for _ in range(2):
        found = sweep(workload, {"x": [1, 2]}, rounds=3, **options, **SHORT)
        assert states(found) == {1: "failed", 2: "failed"}
        assert found.best is None
        assert found.stopped == "nothing left to run"
    assert counted.read_text() == "xx"
    assert found.n_resumed == 2


# --- kernels that end in the middle --------------------------------------------------------------

# Lesson 00's trainer, with tiny pictures: decode, resize, a small network.
TRAINER = """
    import io, json, os, sys, time
    from pathlib import Path
    import numpy as np
    import perfkit

    COUNT = Path(sys.argv[2])

    def jpegs():
        from PIL import Image
        rng = np.random.default_rng(0)
        found = []
        for _ in range(32):
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8)).save(file, "JPEG")
            found.append(file.getvalue())
        return found

    def trainer(settings):
        import torch
        from PIL import Image
        from torch import nn

        with COUNT.open("a") as file:
            file.write(f"{settings.num_workers} {settings.uint8}\\n")
        files = jpegs()

        class Pictures(torch.utils.data.Dataset):
            def __len__(self):
                return len(files)

            def __getitem__(self, i):
                with Image.open(io.BytesIO(files[i])) as picture:
                    pixels = np.array(picture.convert("RGB").resize((16, 16)))
                tensor = torch.from_numpy(pixels).permute(2, 0, 1)
                return (tensor if settings.uint8 else tensor.float() / 255), i % 4

        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
        model(torch.zeros(1, 3, 16, 16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        while True:
            loader = torch.utils.data.DataLoader(
                Pictures(), batch_size=8, **settings.loader_kwargs()
            )
            for pictures, labels in loader:
                if settings.uint8:
                    pictures = pictures.float() / 255
                loss = nn.functional.cross_entropy(model(pictures), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield loss

    if __name__ == "__main__":
        FOUND = perfkit.sweep(
            trainer, {"num_workers": [0, 1], "uint8": [False, True]}, rounds=2,
            seconds=0.15, store=sys.argv[1],
        )
"""


def started(tmp_path, program, *arguments):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(tmp_path, program, *arguments):
    process = started(tmp_path, program, *arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return subprocess.CompletedProcess(process.args, 0, out, err)


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_cut_off_half_way_goes_on_where_it_was(tmp_path, monkeypatch, how):
    store, count = tmp_path / "s.jsonl", tmp_path / "count"
    process = started(tmp_path, TRAINER, store, count)
    try:
        deadline = time.monotonic() + 100
        while lines_of(store) < 5:  # the head and four runs
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(how)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (-int(how), 1, 130)
    if how == signal.SIGINT:
        assert "KeyboardInterrupt" in err
    done = [key_of(line) for line in read(store)[0]]
    assert 4 <= len(done) < 8
    begun = count.read_text().splitlines()
    assert len(begun) - len(done) in (0, 1), "at most the run that was cut off had begun"

    program = tmp_path / "program.py"
    found = found_by(program, monkeypatch, store, count)
    assert [point.state for point in found.points] == ["measured"] * 4
    assert len(found.runs) == 8
    assert found.n_resumed == len(done), "no run that was made is lost"
    lines, notes = read(store)
    assert notes == ()
    keys = [key_of(line) for line in lines]
    assert keys[: len(done)] == done
    assert sorted(Counter(keys).values()) == [1] * 8, "none is made twice"
    begun_later = count.read_text().splitlines()[len(begun) :]
    assert len(begun_later) == 8 - len(done)

    again = found_by(program, monkeypatch, store, count)
    assert again.n_resumed == 8
    assert len(count.read_text().splitlines()) == len(begun) + 8 - len(done), "nothing ran"


def found_by(script, monkeypatch, *arguments):
    """The script's sweep, in this process, which has torch, and goes on where another ended."""
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    names = {"__name__": "__main__"}
    exec(compile(script.read_text(), script, "exec"), names)
    return names["FOUND"]


def key_of(line):
    values = line.part["point"]
    return line.part["round"], values["num_workers"], values["uint8"]


def test_a_tuning_that_is_cut_off_goes_on_where_it_was(tmp_path):
    store, count = tmp_path / "s.jsonl", tmp_path / "count"

    @by_value
    def workload(s):
        import time

        with Path(s.counted).open("a") as file:
            file.write("x")
        while True:
            time.sleep(0.002 if s.quick else 0.02)
            yield 1

    settings = [setting("quick", [False, True]), setting("counted", [str(count)])]
    said = []

    def stop(line):
        said.append(line)
        if "blocks" in line:
            raise KeyboardInterrupt

    options = {"budget_s": 24.0, "seconds": 0.2, "store": store}
    with pytest.raises(KeyboardInterrupt):
        tune(workload, settings, say=stop, **options)
    before, kept = len(count.read_text()), len(read(store)[0])
    assert before == kept, "each run that was made is in the store"
    found = tune(workload, settings, say=False, **options)
    assert found.proposed["quick"] is True
    later = len(count.read_text()) - before
    assert len(read(store)[0]) == kept + later, "what was in the store is not run again"
    assert len(found.verified.runs) < kept + later
