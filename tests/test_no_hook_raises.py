"""Whatever of perfkit fails while your step runs, the step gives the same values.

Each tool runs a small training step twice. The first run lists the functions of perfkit that run
between the step's begin and end: hooks, modes, callbacks, iterators and all that they call. Then
the step is run once for each of them, and that function raises instead of starting. So a hook that
is added without its guard fails here, also if nobody thinks of adding it to a list.

Those that a hook calls itself are tried here; PERFKIT_TEST_LONG=1 tries what they call, too.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from IPython.display import DisplayHandle
from torch import nn

import perfkit
from perfkit.base import torch_compat
from perfkit.base.errors import MeasurementError
from perfkit.base.stand_in import Listeners
from perfkit.measure.run import WatchedRun
from perfkit.memory.account import Accountant
from perfkit.memory.crossings import crossings
from perfkit.script.options import Options
from perfkit.script.run_watch import RunWatch
from perfkit.synclint import reality
from perfkit.synclint.watch import SyncWatch
from perfkit.trace import Recorder
from perfkit.widgets.watch import _Line, _Plot
from tests.left_running import assert_events_are_recorded_once

ROOT = str(Path(perfkit.__file__).parent)
EVERY = bool(os.environ.get("PERFKIT_TEST_LONG"))
FAULT = "put in by this test"


class Training:
    """A few steps with something for every hook."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.values: list[Any] = []

    def step(self, x: torch.Tensor) -> None:
        y = self.net(x)
        y.register_hook(lambda grad: self.values.append(grad.sum().item()))
        loss = y[y > 0].sum() + y[[0, 1]].square().mean() + y.prod()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        torch.cuda.synchronize()
        host = y.detach().to("cpu")
        self.values.append((loss.item(), host.tolist(), str(host.sum())))
        torch.tensor([1.0], device=y.device) * torch.arange(2.0).to(y.device)
        torch.nn.functional.one_hot(torch.tensor([1, 2]))
        torch.ones(4).untyped_storage().resize_(32)
        self.values.append(len(torch.unique(x)))
        gc.collect(0)
        thread = threading.Thread(target=str)
        thread.start()
        thread.join()

    def run(self, batches: Any = None) -> None:
        for x in batches if batches is not None else [torch.ones(4, 3)] * 3:
            self.step(x)


Tool = Callable[[Training], "str"]


def with_account(training: Training) -> str:
    with Accountant() as accountant:
        training.run()
    return " ".join(accountant.result.warnings)


def with_crossings(training: Training) -> str:
    return str(crossings(training.run))


def with_a_gpu_traced(training: Training) -> str:
    """As on a GPU: the sync lint with its tracer."""
    begin = SyncWatch.__init__

    def saw_gpu(self: SyncWatch, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.saw_gpu = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyncWatch, "saw_gpu", True, raising=False)
        patch.setattr(SyncWatch, "__init__", saw_gpu)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        loader = torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=4)
        result = reality.lint(lambda: training.run(loader))
    return " ".join(result.warnings)


def with_recorder(training: Training) -> str:
    recorder = Recorder(steps=2, warmup=1)
    with recorder:
        training.run()
    try:
        return " ".join(recorder.recording.warnings)
    except MeasurementError as error:
        return str(error)


def with_run(training: Training) -> str:
    loader = torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=4)
    watch = RunWatch("train.py", Options(steps=1, warmup=1), on_update=lambda update: None)
    watch.start()
    training.run(loader)
    watch.stop()
    said = watch.result("finished")
    doubts = (*said.warnings, *(said.profile.warnings if said.profile is not None else ()))
    return " ".join((str(said.n_steps), said.sentence.partition(":")[0], *doubts))


def with_watch(training: Training) -> str:
    loader = torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=4)
    watched = perfkit.watch(loader, live=False, update_hz=10)
    training.run(watched)
    return " ".join(watched.summary.warnings)


def with_shown_watch(training: Training) -> str:
    """As in a terminal: what shows the run works between two steps, too."""
    loader = torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=4)
    watched = WatchedRun(loader, observer=_Line(), hz=10)
    training.run(watched)
    return " ".join(watched.summary.warnings)


def with_plotted_watch(training: Training) -> str:
    """As in a notebook, with the live plot; its messages go nowhere, for there is no kernel."""
    loader = torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=4)
    watched = WatchedRun(loader, observer=_Plot(), hz=10)
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            DisplayHandle, "update", lambda _, data, **__: shown.append(data["text/plain"])
        )
        training.run(watched)
    failed = re.findall(r"Note: the picture .+", "\n".join(shown))
    return " ".join((*watched.summary.warnings, *failed))


TOOLS: dict[str, Tool] = {
    "account": with_account,
    "crossings": with_crossings,
    "find_syncs on a GPU": with_a_gpu_traced,
    "Recorder": with_recorder,
    "run": with_run,
    "watch": with_watch,
    "watch with its line": with_shown_watch,
    "watch with its plot": with_plotted_watch,
}

_Function = tuple[str, str]  # file and qualified name

# Failing here leaves torch's profiler running; tests/trace/test_hooks_never_raise.py looks at that.
GUARDS = {("/trace/record/record.py", "Recorder._stop_recording")}
GUARDS |= {("/trace/record/profiler.py", f"TorchProfiler.{x}") for x in ("end", "give_way")}
GUARDS |= {("/base/torch_compat.py", "profiler_runs_here")}
GUARDS |= {("/measure/tracker.py", "StepTracker.tell")}
# The guards themselves, around which nothing stands, and two that only make or drop one entry.
GUARDS |= {
    ("/memory/crossings.py", "_Seen.note"),
    ("/memory/crossings.py", "_modes.<locals>.Dispatch.__torch_dispatch__"),
    ("/base/stand_in.py", "Listeners._begin_all"),
    ("/base/stand_in.py", "Listeners._begin_all.<locals>.end_all"),
    ("/base/stand_in.py", "Calls.around.<locals>.call"),
    ("/base/stand_in.py", "stand_in.<locals>.put_back"),
    ("/base/torch_compat.py", "_install_compiled_listeners.<locals>.install.<locals>.__call__"),
    ("/base/torch_compat.py", "_install_loader_listeners.<locals>.__iter__"),
    ("/base/torch_compat.py", "_install_loader_listeners.<locals>.__next__"),
    ("/measure/phases.py", "Phases._event.<locals>.event"),
    ("/base/backward_passes.py", "BackwardPasses._begins"),
    ("/base/backward_passes.py", "BackwardPasses._ended"),
    ("/measure/live.py", "_safe.<locals>.safe"),
    ("/measure/outer_calls.py", "OuterCalls.start.<locals>.before"),
    ("/measure/outer_calls.py", "OuterCalls._module_begins"),
    ("/measure/outer_calls.py", "OuterCalls._module_ended"),
    ("/base/torch_compat.py", "_AtTheEnd.__call__"),
    ("/experiment/process/loader_wait.py", "LoaderWait._begins"),
    ("/experiment/process/loader_wait.py", "LoaderWait._ended"),
    ("/base/collector.py", "_back_on"),
    ("/synclint/watch.py", "SyncWatch.__enter__"),
    ("/synclint/watch.py", "SyncWatch._start.<locals>.<lambda>"),
    ("/trace/record/record.py", "Recorder.start"),
    ("/trace/record/record.py", "Recorder._begin"),
    ("/trace/record/record.py", "Recorder._end"),
    # what the handlers of the user's signals raise is his, and passes through all of these
    ("/base/uninterrupted.py", "surely"),
    ("/base/uninterrupted.py", "Uninterrupted.__enter__"),
    ("/base/uninterrupted.py", "Uninterrupted.__exit__"),
    ("/base/uninterrupted.py", "_put_back"),
    ("/base/uninterrupted.py", "_raise"),
    ("/base/uninterrupted.py", "_Held.__init__"),
    ("/measure/tracker.py", "StepTracker.unhook"),
    ("/measure/tracker.py", "StepTracker._unhook"),
    ("/measure/run.py", "WatchedRun.__iter__.<locals>.<lambda>"),
    ("/measure/run.py", "WatchedRun._loop_ended"),
    ("/memory/account.py", "Accountant._end"),
    ("/memory/tracker.py", "Tracker._stop"),
    ("/synclint/watch.py", "SyncWatch._end"),
    ("/synclint/watch.py", "_ApiMode.__torch_function__"),
    ("/synclint/watch.py", "_OpMode.__torch_dispatch__"),
}


def _function(code: CodeType) -> _Function:
    return code.co_filename.removeprefix(ROOT), code.co_qualname


def _is_guard(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    file, name = _function(frame.f_code)
    return file == "/base/instrument.py" or (file, name) in GUARDS


def _ours(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(ROOT)


class Faults:
    """Lists the calls within perfkit while the step runs; raises in one of them, if told to."""

    def __init__(self, target: _Function | None = None) -> None:
        self.target = target
        self.seen: dict[_Function, None] = {}
        self.raised = False
        self.inside = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not _ours(frame) or self.raised:
            return
        code = frame.f_code
        # of a generator this would be each time that it goes on
        if code.co_flags & inspect.CO_GENERATOR or not self._is_called(frame):
            return
        function = _function(code)
        if _is_guard(frame):
            return
        if self.target is None:
            self.seen[function] = None
        elif function == self.target:
            self.raised = True
            raise RuntimeError(FAULT)

    def _is_called(self, frame: FrameType) -> bool:
        """By perfkit, during the step or while perfkit gets ready for it."""
        caller = frame.f_back
        if not _ours(caller):
            return False
        assert caller is not None
        if self.inside:
            # what calls it is called by torch, Python, the step or a guard
            return EVERY or not _ours(caller.f_back) or _is_guard(caller.f_back)
        return caller.f_code.co_name in {"__enter__", "_start", "start"}

    @contextmanager
    def during(self, training: Training) -> Iterator[None]:
        run = training.run

        def watched(*batches: Any) -> None:
            self.inside = True
            try:
                run(*batches)
            finally:
                self.inside = False

        training.run = watched  # type: ignore[method-assign]
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What Python printed instead of raising: in finalisers, and in threads of perfkit."""
    found: list[str] = []
    others = list(gc.callbacks)  # of a test before, which are not of these tools
    gc.callbacks.clear()
    monkeypatch.setattr(sys, "unraisablehook", lambda x: found.append(repr(x.exc_value)))
    monkeypatch.setattr(threading, "excepthook", lambda x: found.append(repr(x.exc_value)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    yield found
    gc.callbacks[:] = others


def plain_values() -> list[Any]:
    training = Training()
    training.run()
    return training.values


@pytest.mark.slow
@pytest.mark.parametrize("name", TOOLS)
def test_whatever_fails_in_the_step_the_step_gives_the_same_values(
    name: str, unraised: list[str]
) -> None:
    tool, expected = TOOLS[name], plain_values()
    usual = tool(Training())
    listed, training = Faults(), Training()
    with listed.during(training):
        tool(training)
    assert training.values == expected
    n_failed = 0
    for target in listed.seen:
        fault, training = Faults(target), Training()
        before = list(gc.callbacks)
        with fault.during(training):
            said = tool(training)
        gc.callbacks[:] = before  # the fault may have been in taking ours away
        if target[0] == "/base/stand_in.py":
            for one in vars(torch_compat).values():
                if isinstance(one, Listeners):
                    one._listen(())  # or in taking a listener away
        assert training.values == expected, target
        if fault.raised:  # some are called by the clock
            # a batch that cannot be counted has no samples per second, which is no fault
            assert target[0] == "/measure/batch.py" or said != usual, (
                f"{target} failed, and the result does not say so"
            )
            n_failed += 1
        assert not unraised, target
        assert_events_are_recorded_once()
    assert n_failed >= LEAST[name]


# the fewest functions of perfkit that run within the step
LEAST = {
    "account": 10,
    "crossings": 0,
    "find_syncs on a GPU": 10,
    "Recorder": 6,
    "run": 8,
    "watch": 6,
    "watch with its line": 8,
    "watch with its plot": 8,
}
