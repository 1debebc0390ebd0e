"""If a hook of perfkit fails inside a training step, the step does not."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from perfkit.base.collector import CollectorTime
from perfkit.base.errors import MeasurementError
from perfkit.base.line_sampler import LineSampler
from perfkit.trace import Recorder
from perfkit.trace.record import record as record_module
from perfkit.trace.record.deadline import Deadline
from perfkit.trace.record.profiler import TorchProfiler
from perfkit.trace.record.step_ends import StepEnds
from tests.left_running import assert_nothing_runs


def train(n: int = 12) -> list[float]:
    """A region in which every hook of the recorder has something to do."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for index in range(n):
        loss = model(torch.ones(2, 8)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        time.sleep(0.02)
        if index == 4:
            gc.collect()
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
        if index == n - 3:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                torch.ones(3).sum()
    return losses


def broken(*_: object, **__: object) -> Any:
    raise RuntimeError("dictionary changed size during iteration")


# Every function of perfkit.trace that torch, Python or another thread calls while the region runs.
HOOKS: dict[str, tuple[Any, str]] = {
    "optimizer hook": (StepEnds, "_stepped"),
    "end of a step": (Recorder, "_step_ended"),
    "activation": (Recorder, "_activate"),
    "another profiler starts": (Recorder, "_other_profiler_starts"),
    "deadline": (Recorder, "_deadline_passed"),
    "enough": (Recorder, "_enough"),
    "sampler thread": (LineSampler, "_run"),
    "look": (LineSampler, "_look"),
    "end of sampling": (LineSampler, "_told"),
    "deadline thread": (Deadline, "_run"),
    "more time": (Deadline, "set"),
    "gc callback": (CollectorTime, "_collected"),
}


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_does_not_reach_the_step(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train()
    owner, name = HOOKS[hook]
    seen: list[int] = []

    def fail(*_: object, **__: object) -> Any:
        seen.append(1)
        broken()

    limit_s = 0.05 if hook in ("deadline", "enough") else 10
    if hook == "more time":  # the first one is start's own, before the region
        recorder = Recorder(max_seconds=limit_s)
        recorder.start()
        monkeypatch.setattr(owner, name, fail)
    else:
        monkeypatch.setattr(owner, name, fail)
        recorder = Recorder(max_seconds=limit_s)
        recorder.start()
    try:
        losses = train()
    finally:
        recorder.stop()
    assert losses == expected
    assert seen, "the hook was never called: this test shows nothing"
    assert recorder.failure is not None
    assert "dictionary changed size" in recorder.failure.error
    assert_nothing_runs()
    try:
        warnings = recorder.recording.warnings
    except MeasurementError as error:
        warnings = (str(error),)
    assert any("was switched off" in w and "dictionary changed size" in w for w in warnings)


def test_the_list_of_hooks_is_complete() -> None:
    """Everything passed to torch, Python or a thread is guarded: checked in the source."""
    import ast
    from pathlib import Path

    folder = Path(record_module.__file__).parent
    handed = {
        "register_optimizer_step_post_hook", "watch_profiler_starts", "watch_loader_iterators",
        "call_in_main_thread", "Thread",
    }  # fmt: skip
    found = 0
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in handed:
                continue
            given = [*node.args, *(k.value for k in node.keywords if k.arg == "target")]
            text = " ".join(ast.unparse(x) for x in given[:1])
            found += 1
            is_guarded = "guarded(" in text or ".hook(" in text or text.startswith("lambda: bool(")
            assert is_guarded, f"{path.name}: {name}({text})"
    assert found >= 5


_ENDED_BY_ANOTHER = """
import torch
from perfkit.base.errors import MeasurementError
from perfkit.trace import Recorder
m = torch.nn.Linear(4, 2); o = torch.optim.SGD(m.parameters(), lr=.1)
def step():
    m(torch.randn(3, 4)).sum().backward(); o.step(); o.zero_grad()
end = {
    "named": lambda: torch.autograd._disable_profiler(),
    "core": lambda: torch._C._autograd._disable_profiler(),
    "kept": kept,
}[HOW]
for before in (0, 1, 5, 20):
    with Recorder() as recorder:
        for _ in range(before):
            step()
        if torch.autograd._profiler_enabled():
            end()
        with torch.profiler.profile() as theirs:
            step()
        step()
    try:
        recording = recorder.recording
        print("read", recording.n_steps_profiled)
    except MeasurementError as error:
        assert "this code runs a torch profiler of its own" in str(error)
        print("lost")
    assert recorder.n_steps_seen == before + 2
    assert any(e.name == "Optimizer.step#SGD.step" for e in theirs.events())
print("alive")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("how", ["named", "core", "kept"])
def test_code_that_ends_our_profiler_does_not_end_the_process(how: str) -> None:
    """As Lightning's PyTorchProfiler does: the events are then not ours to read."""
    program = _ENDED_BY_ANOTHER.replace("HOW", repr(how))
    program = program.replace("import torch\n", "import torch\nkept = None\n", 1)
    if how == "kept":  # a reference from before perfkit: nothing tells of the call
        program = program.replace("kept = None", "kept = torch._C._autograd._disable_profiler", 1)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "alive"
    assert lines[:4] == ["lost", "lost", "lost", "read 6"]


def test_a_failure_of_stop_itself_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchProfiler, "end", broken)
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError), recorder:
        train(4 // (torch.get_num_threads() * 0))
    assert recorder.failure is not None
    if recorder._profiler.profile is not None:  # left running by the fault that was put in
        recorder._profiler.profile.stop()
