"""`perfkit run`: the script is its own, and the report is of the whole run, however it ended."""

from __future__ import annotations

import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.cli import run_command

PERFKIT = [sys.executable, "-m", "perfkit", "run"]
SECONDS = 240
# a child imports torch, which takes long on a loaded machine
pytestmark = pytest.mark.timeout(600)

# 20 steps, an evaluation after every tenth; what it does at the end is its first argument.
TRAIN = """\
import atexit, os, pickle, signal, sys, time
os.environ["OMP_NUM_THREADS"] = "1"

class Note:
    def __init__(self, text):
        self.text = text

def in_child(note):
    print("child", type(note).__module__, note.text)

def train():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters())
    loader = DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4, num_workers=N_WORKERS)
    for step, (x,) in enumerate(loader, 1):
        loss = net(x).square().mean()
        if loss.item() < 0:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 15 and end == "stop":
            print("ready", flush=True)
            time.sleep(600)
        if step == 15 and end == "memory":
            raise MemoryError("made up")
        if step == 3 and end == "few":
            break
    return loss.item()

N_WORKERS = 2 if "workers" in sys.argv else 0
end = sys.argv[1]
if __name__ == "__main__":
    atexit.register(print, "at exit", __name__)
    print(sys.argv, os.environ.get("OMP_NUM_THREADS"))
    print("loss", train())
    if end == "spawn":
        import multiprocessing
        for kind in ("spawn", "fork"):
            process = multiprocessing.get_context(kind).Process(target=in_child, args=(Note(kind),))
            process.start()
            process.join()
            print("child ended with", process.exitcode)
    if end == "raise":
        raise ValueError("bad \\u2026 value")
"""
NO_STEP = """\
import torch
net = torch.nn.Linear(4, 2)
with torch.no_grad():
    print(net(torch.zeros(3, 4)).shape)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "no_step.py").write_text(NO_STEP)
    (tmp_path / "no_torch.py").write_text("import sys\nprint('torch' in sys.modules)\n")
    return tmp_path


def _run(folder: Path, *typed: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFKIT, *typed], cwd=folder, capture_output=True, text=True, timeout=SECONDS,
        env={**os.environ, **more},
    )  # fmt: skip


def _said(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return said


def _adds_up(said: dict[str, Any]) -> bool:
    """The parts are the whole, but for those too small to be named."""
    parts = sum(part["seconds"] for part in said["parts"])
    return bool(0.98 * said["wall_s"] <= parts <= 1.0001 * said["wall_s"])


@pytest.mark.slow
def test_a_run_is_explained_and_the_script_is_as_under_python(folder: Path) -> None:
    files = ["--html", "r.html", "--json", "r.json", "--trace", "t.json.gz"]
    typed = ["train.py", "spawn", "--steps", "9", "--", "x"]
    ours = _run(folder, "-n", "4", "--memory", "--synclint", *files, *typed)
    assert ours.returncode == 0, ours.stderr
    argv, _, *children = ours.stdout.splitlines()
    assert argv == "['train.py', 'spawn', '--steps', '9', '--', 'x'] 1"
    assert children == [
        "child __mp_main__ spawn",
        "child ended with 0",
        "child __main__ fork",
        "child ended with 0",
        "at exit __main__",
    ]
    assert "train.py finished after" in ours.stderr
    assert "More with perfkit run -v: " in ours.stderr
    assert ours.stderr.count("and 20 steps. measured here") == 1  # not in a child, too
    said = _said(folder / "r.json")
    assert (said["program"], said["ended"], said["n_steps"]) == ("train.py", "finished", 20)
    assert (said["type"], said["rank"]) == ("run", None)
    # counted: 2, watched for waits: 2 after them, warm-up: 5
    coverage = said["profile"]["coverage"]
    assert (coverage["first_step"], coverage["last_step"]) == (11, 14)
    assert _adds_up(said)
    assert [s["code"] for s in said["synclint"]["syncs"]] == ["if loss.item() < 0:"]
    assert said["synclint"]["syncs"][0]["count"] == 2
    memory = said["memory"]
    assert memory["n_steps"] == 2
    # Adam's two moments of 8·16 + 16 + 16·2 + 2 parameters, and a counter for each of 4 tensors
    assert memory["devices"][0]["at_end_bytes"]["optimizer state"] == 4 * (2 * 178 + 4)
    assert said["steps"]["wait_share"] is not None
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "Where the run&#39;s time went" in page or "Where the run's time went" in page
    assert len(perfkit.open_trace(folder / "t.json.gz").breakdown().steps) == 4
    left = {p.name for p in folder.iterdir()} - {"__pycache__"}
    assert left == {"train.py", "no_step.py", "no_torch.py", "r.html", "r.json", "t.json.gz"}


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize(
    ("end", "code", "ended"),
    [
        ("raise", 1, "raised ValueError"),
        ("memory", 1, "ran out of memory (MemoryError)"),
    ],
)
def test_a_run_that_fails_leaves_its_report(folder: Path, end: str, code: int, ended: str) -> None:
    done = _run(folder, "--memory", "--json", "r.json", "train.py", end)
    assert done.returncode == code
    said = _said(folder / "r.json")
    assert said["ended"] == ended
    assert said["n_steps"] == (15 if end == "memory" else 20)
    assert said["profile"]["coverage"]["first_step"] == 9
    assert done.stdout.endswith("at exit __main__\n")
    trace = done.stderr[done.stderr.index("Traceback") :]
    assert "perfkit" not in trace
    assert 'train.py", line' in trace
    if end == "memory":
        assert any("--memory-steps 16" in warning for warning in said["warnings"])


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_report(folder: Path, number: signal.Signals) -> None:
    typed = ["--json", "r.json", "train.py", "stop", "workers"]
    process = subprocess.Popen(
        [*PERFKIT, *typed], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -number
    said = _said(folder / "r.json")
    assert said["n_steps"] == 15
    assert said["profile"]["coverage"]["first_step"] == 6
    assert err.count("and 15 steps. measured here") == 1
    if number == signal.SIGINT:
        assert said["ended"] == "was interrupted (Ctrl-C)"
        assert out == "at exit __main__\n"
        assert err.rstrip().endswith("KeyboardInterrupt")
    else:
        assert said["ended"] == "was ended by SIGTERM"
        assert "Traceback" not in err


_KEEPS_ITS_HANDLER = """\
import atexit, os, signal, sys
signal.signal(signal.SIGINT, lambda *_: print("handled"))
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("last", ["", "del sys.argv\n", "sys.argv = None\n"])
def test_its_handlers_and_arguments_are_its_own_to_the_very_end(folder: Path, last: str) -> None:
    """Where it was given arguments, SIGINT ended it once it was over."""
    (folder / "ends.py").write_text(_KEEPS_ITS_HANDLER + last)
    done = _run(folder, "ends.py", "resnet50")
    assert (done.returncode, done.stdout) == (0, "handled\n")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_a_program_leaves_behind_takes_no_report_away(folder: Path) -> None:
    """A small limit of recursion, builtins of its own, and an end that Python does not see."""
    (folder / "ends.py").write_text(
        "import builtins, os, sys\nsys.setrecursionlimit(60)\n"
        "builtins.isinstance = builtins.len = None\nos._exit(3)\n"
    )
    done = _run(folder, "ends.py")
    assert done.returncode == 3
    assert "no report" not in done.stderr
    assert "ends.py ended with os._exit(3)" in done.stderr


_PRESSED_AT_THE_REPORT = """\
import os, signal, sys, threading, time

def press():
    while True:
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            if frame.f_code.co_name == "_report":
                os.kill(os.getpid(), signal.SIGINT)
                return
            frame = frame.f_back
        time.sleep(0.0002)

import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.rand(2, 4)).sum().backward()
    optimizer.step()
threading.Thread(target=press, daemon=True).start()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
def test_ctrl_c_while_it_reports_ends_the_shells_loop_too(folder: Path) -> None:
    """It ended with 0, and said "interrupted again" of the first Ctrl-C."""
    (folder / "ends.py").write_text(_PRESSED_AT_THE_REPORT)
    done = _run(folder, "ends.py")
    assert done.returncode == 130
    assert done.stderr.endswith("perfkit: no report: interrupted\n")
    assert "Traceback" not in done.stderr


_ENDS_WITHIN_TORCH = """\
import signal, sys
class Ends:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch.nn":
            sys.meta_path.remove(Ends)
            signal.raise_signal({number})
sys.meta_path.insert(0, Ends)
import torch
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_ends_within_its_import_of_torch_is_one_line(
    folder: Path, number: signal.Signals
) -> None:
    """The report imported torch once more, and that failed in ways of its own."""
    (folder / "train.py").write_text(_ENDS_WITHIN_TORCH.format(number=int(number)))
    (folder / "r.json").write_text("old")
    done = _run(folder, "--json", "r.json", "train.py")
    assert done.returncode == -number
    ended = {"INT": "was interrupted (Ctrl-C)", "TERM": "was ended by SIGTERM"}[number.name[3:]]
    ours = [line for line in done.stderr.splitlines() if line.startswith("perfkit")]
    assert ours == [f"perfkit: no report: train.py {ended} as it imported torch"]
    assert (folder / "r.json").read_text() == "old"


def _half_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_signal_within_an_import_of_perfkits_leaves_no_half_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report failed with "partially initialized module", and asked to report a bug."""
    name = "perfkit.measure.verdict"
    # the new module would stay its package's, beside the one that all others have imported from
    monkeypatch.setattr(name, importlib.import_module(name))
    _half_loaded(name, monkeypatch)
    run_command._forget_half_loaded()
    assert importlib.import_module(name).DATA_BOUND_FROM
    assert "perfkit.cli.run_command" in sys.modules


def test_a_signal_within_an_import_of_the_programs_is_no_bug_of_perfkits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = _half_loaded("made_up", monkeypatch)
    failures: list[Exception] = []
    for code in ("from made_up import x", "half.x"):
        try:
            exec(code, {"half": half})
        except (ImportError, AttributeError) as failed:
            failures.append(failed)
    failures.append(ImportError("no x", name="gone"))
    said = [run_command._why(failed, "train.py was ended by SIGTERM") for failed in failures]
    assert said[:2] == ["train.py was ended by SIGTERM as it imported made_up"] * 2
    assert said[2] == "ImportError: no x; please report this as a bug in perfkit"


_HANGS = """\
import ctypes
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
libc.pthread_mutex_lock(mutex)
print("ready", flush=True)
libc.pthread_mutex_lock(mutex)  # no signal interrupts this call of C
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_sigterm_ends_a_program_that_hangs_in_c(folder: Path) -> None:
    (folder / "hangs.py").write_text(_HANGS)
    process = subprocess.Popen(
        [*PERFKIT, "hangs.py"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)  # it is in C by then
        process.terminate()
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGTERM
    assert "did not return to Python within 5 s" in err


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
def test_a_script_without_a_recorded_step_is_told_why(folder: Path) -> None:
    # why there is none at all: tests/script/test_run_watch.py
    done = _run(folder, "--json", "few.json", "train.py", "few")
    assert "made 3 steps, and the first 5 were let pass" in done.stderr.replace("\n", " ")
    said = _said(folder / "few.json")
    assert said["profile"] is None
    assert said["steps"]["step"]["n"] == 2


# Changes its weights itself; with an argument it makes an optimizer, which never steps.
BY_HAND = """\
import sys
import torch

net = torch.nn.Linear(4, 2)
if sys.argv[1:]:
    torch.optim.SGD(net.parameters(), 0.1)
for _ in range(20):
    net.zero_grad()
    net(torch.randn(3, 4)).square().mean().backward()
    for weight in net.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("made", ["", "an optimizer"])
def test_without_a_torch_optimizer_a_step_is_a_backward_pass(tmp_path: Path, made: str) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND, encoding="utf-8")
    run = _run(tmp_path, "-v", "--json", "r.json", "by_hand.py", *([made] * bool(made)))
    assert run.returncode == 0, run.stderr
    assert _said(tmp_path / "r.json")["n_steps"] == (0 if made else 20)
    said = " ".join(run.stderr.split())
    assert ("a step here is one backward pass" in said) == (not made)
    assert ("No step was seen" in said) == bool(made)


# Starts its two ranks itself; without steps where it is told "none".
DOUBLE = """\
import numpy as np
import torch

x = torch.from_numpy(np.random.randn(512, 512))
model = torch.nn.Linear(512, 512){made}
assert x.dtype == torch.float64  # and not torch.double
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(6):
    state = torch.zeros(512, 512, {dtype})
    (model(x) + state).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "dtype", "places"),
    [
        (".double()", "dtype=torch.double", ["train.py:5: model", "train.py:9: state"]),
        (".to(x.dtype)", "dtype=x.dtype", []),
    ],
)
def test_where_a_script_asks_for_float64_is_told_with_the_cure(
    made: str, dtype: str, places: list[str], tmp_path: Path
) -> None:
    """model.float() alone failed at the next product, with a state that was float64 still."""
    (tmp_path / "train.py").write_text(DOUBLE.format(made=made, dtype=dtype))
    run = _run(tmp_path, "--json", "run.json", "-n", "3", "-w", "2", "train.py")
    assert run.returncode == 0, run.stderr
    findings = _said(tmp_path / "run.json")["profile"]["findings"]
    (found,) = (one for one in findings if one["rule"] == "float64")
    named = [line for line in found["what_to_do"].splitlines() if line.startswith("# train.py")]
    assert [line.removeprefix("# ").partition(" =")[0] for line in named] == places
    assert (found["line"] or "").partition(" =")[0] == (places or [""])[0]
    assert "model = model.float()" in found["what_to_do"]


SPAWNS = """\
import os, sys
import torch, torch.multiprocessing as mp

def work(rank, n_steps):
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    print("rank", rank, "of", __name__, os.getppid() != 1)

if __name__ == "__main__":
    mp.spawn(work, (0 if sys.argv[1:] == ["none"] else 20,), 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [20, 0])
def test_the_first_rank_that_a_script_spawns_is_watched(tmp_path: Path, n_steps: int) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS, encoding="utf-8")
    own = tmp_path / "own"
    own.mkdir()
    typed = ["--json", "r.json", "spawns.py", *(["none"] * (not n_steps))]
    run = _run(tmp_path, *typed, TMPDIR=str(own))
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == [f"rank {n} of __mp_main__ True" for n in (0, 1)]
    said = _said(tmp_path / "r.json")
    assert said["n_steps"] == n_steps
    assert (said["program"] == "spawns.py (rank 0)") == bool(n_steps)
    assert run.stderr.count("measured here") == 1  # one report, not one of each process
    assert ("No step was seen" in run.stderr) == (not n_steps)
    assert not list(own.glob("perfkit-*"))


@pytest.mark.slow
def test_a_script_without_torch_is_told_so(folder: Path) -> None:
    done = _run(folder, "--trace", "t.json", "no_torch.py")
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert "did not import torch" in done.stderr
    assert "no trace in " in done.stderr
    assert not (folder / "t.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits of a file's size")
@pytest.mark.parametrize(
    ("program", "code"), [("print()", 2), ("import sys; sys.exit()", 2), ("raise SystemExit(3)", 3)]
)
def test_a_file_that_the_disk_has_no_room_for_fails_a_script_that_did_not(
    folder: Path, program: str, code: int
) -> None:
    """It was said, and the exit code was 0; `perfkit trace --html` ended with 2."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10));"
    (folder / "short.py").write_text(full + program)
    for flag in ("--html", "--json"):
        done = _run(folder, flag, "report", "short.py")
        assert done.returncode == code, done.stderr
        assert "perfkit: cannot write" in done.stderr
        assert "Where the run's time went" in done.stderr
        assert not (folder / "report").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
def test_of_several_ranks_only_the_first_prints(folder: Path) -> None:
    typed = ["--json", "r.json", "--html", "r.x.html", "no_torch.py"]
    done = _run(folder, *typed, RANK="1")
    assert done.stderr == ""
    assert _said(folder / "r.rank1.json")["rank"] == 1
    assert (folder / "r.rank1.x.html").exists()


_CHATTY = """\
import sys, time
import torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(40):
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    if step == 20:
        print("in the middle of a row", end="", flush=True)
    elif step == 30:
        print(", and its end", flush=True)
    elif not 20 < step < 30:
        print("step", step, "is over", flush=True)
"""


def _on_terminal(data: bytes) -> list[str]:
    """The rows of a terminal to which this was written."""
    rows, row, column = [], [""] * 0, 0
    for character in data.decode():
        if character == "\n":
            rows.append("".join(row).rstrip())
            row, column = [], 0
        elif character == "\r":
            column = 0
        else:
            row[column : column + 1] = [character]
            column += 1
    return rows


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.skipif(sys.platform == "win32", reason="no pty")
def test_on_a_terminal_the_live_line_makes_room_for_what_the_script_prints(folder: Path) -> None:
    import pty

    (folder / "chatty.py").write_text(_CHATTY)
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*PERFKIT, "chatty.py"], cwd=folder, stdout=its, stderr=its, close_fds=True
    )
    os.close(its)
    data = b""
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            data += part
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"perfkit: step" in data
    rows = _on_terminal(data)
    told = [row for row in rows if "is over" in row or "row" in row.split() or "and its end" in row]
    whole = [f"step {i} is over" for i in range(40) if not 20 <= i <= 30]
    assert told[: len(whole) + 1] == [
        *whole[:20], "in the middle of a row, and its end", *whole[20:],
    ]  # fmt: skip


@pytest.mark.slow
def test_torchrun_starts_it_as_a_module(folder: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    typed = ["-m", "perfkit", "run", "--json", "r.json", "no_step.py"]
    done = subprocess.run(
        [sys.executable, *launch, *typed],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("torch.Size([3, 2])") == 2
    assert "No step was seen in no_step.py" in done.stderr
    assert [_said(folder / f"r.rank{i}.json")["rank"] for i in range(2)] == [0, 1]


def test_a_module_that_is_not_there_is_one_line_and_no_report(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "-m", "no.such"],
        cwd=folder, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("perfkit run: -m no.such: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ([], "what to run?"),
        (["absent.py"], "absent.py: there is no such script"),
        (["-m"], "-m needs the name of a module"),
        (["-m", "train.py"], "give a script without -m"),
        (["-n", "0", "train.py"], "steps is 0"),
        (["-w", "0", "train.py"], "warmup is 0"),
        (["--memory-steps", "0", "train.py"], "memory_steps is 0"),
        (["--html", "absent/r.html", "train.py"], "there is no directory 'absent'"),
        (["--json", ".", "train.py"], "--json .: is a directory"),
        (["--trace", "t.txt", "train.py"], "must end in .json or .json.gz"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    typed: list[str],
    told: str,
) -> None:
    from perfkit.cli import main

    monkeypatch.chdir(folder)
    assert main(["run", *typed]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("perfkit run: ")
    assert told in shown.err
    assert shown.err.count("\n") == 1


def test_every_key_of_the_json_is_documented() -> None:
    from perfkit.cli import run_command
    from perfkit.script.whole_run import WholeRun

    for name in WholeRun.__dataclass_fields__.keys() - {"uses_loader", "syncs"}:
        assert name in run_command._EPILOG, name
