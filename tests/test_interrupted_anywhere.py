"""Ctrl-C at any line of perfkit's own code: no profiler, hook, mode or thread stays behind."""

from __future__ import annotations

import gc
import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.synclint.watch import SyncWatch
from tests.left_running import assert_events_are_recorded_once, replaced

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("python_handles_ctrl_c"),
]

_HERE = str(Path(perfkit.__file__).parent)
_MODEL = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
_OPTIMIZER = torch.optim.SGD(_MODEL.parameters(), lr=0.01)
_BATCH = torch.rand(4, 8)
_MOST_POINTS = 40
# the callback of a weak reference: whatever it raises, Python prints and drops
_SWALLOWED_BY_PYTHON = {"free"}


def _step() -> None:
    _OPTIMIZER.zero_grad()
    _MODEL(_BATCH).sum().backward()
    _OPTIMIZER.step()


def _profile() -> None:
    perfkit.profile(_step, steps=2, warmup=1)


def _watch() -> None:
    for (batch,) in perfkit.watch(DataLoader(TensorDataset(torch.rand(16, 8)), batch_size=4)):
        _OPTIMIZER.zero_grad()
        _MODEL(batch).sum().backward()
        _OPTIMIZER.step()


# what runs, and the files whose lines put something in place or take it away
_RUNS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "profile": (
        _profile,
        (
            "record/record.py",
            "record/deadline.py",
            "record/facts.py",
            "record/profiler.py",
            "record/region_lines.py",
            "record/step_ends.py",
            "base/line_sampler.py",
            "base/stand_in.py",
        ),
    ),
    "account": (lambda: perfkit.account(_step), ("memory/tracker.py", "memory/account.py")),
    "find_leaks": (lambda: perfkit.find_leaks(_step, steps=8), ("memory/leaks.py",)),
    "find_syncs": (lambda: perfkit.find_syncs(_step), ("synclint/watch.py", "torch_compat.py")),
    "watch": (_watch, ("measure/run.py", "measure/phases.py", "base/stand_in.py")),
}


class _Lines:
    """Sees the lines of some files of perfkit as they run, and interrupts at one of them."""

    def __init__(self, files: tuple[str, ...], at: tuple[str, int] | None = None) -> None:
        self._files = files
        self._at = at
        self.seen: list[tuple[str, int]] = []
        self.came = False

    def _frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        return self._line if file.startswith(_HERE) and file.endswith(self._files) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not _is_too_early(frame):
            place = frame.f_code.co_filename, frame.f_lineno
            if self._at is None:
                self.seen.append(place)
            elif place == self._at:
                sys.settrace(None)
                frame.f_trace = None
                self.came = True
                signal.raise_signal(signal.SIGINT)
        return self._line

    def __enter__(self) -> _Lines:
        sys.settrace(self._frame)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)


def _is_too_early(frame: FrameType) -> bool:
    """Where nothing can be done: the moment before `surely` is within its `try`."""
    if frame.f_code.co_name in _SWALLOWED_BY_PYTHON:
        return True
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    # Python looks for signals after calls and at jumps, not on the way out, nor at a `try:`, which
    # is no instruction, and what is raised there is in no block
    return line == "try:" or line.startswith(("surely(", "return self"))


def _left() -> dict[str, int]:
    from torch.nn.modules import module
    from torch.optim import optimizer

    deadline_s = time.monotonic() + 2
    while threads := [t for t in threading.enumerate() if t.name.startswith("perfkit")]:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.01)
    found = {
        "threads": len(threads),
        "profiler": int(torch._C._autograd._profiler_enabled()),
        "optimizer hooks": len(optimizer._global_optimizer_post_hooks)
        + len(optimizer._global_optimizer_pre_hooks),
        "module hooks": len(module._global_forward_pre_hooks) + len(module._global_forward_hooks),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "listeners of the collector": sum("perfkit" in repr(c) for c in gc.callbacks),
        "collector off": int(not gc.isenabled()),
        "a watch": int(SyncWatch._active is not None),
        "patches": len(replaced()),
    }
    return {what: n for what, n in found.items() if n}


@pytest.mark.parametrize("name", _RUNS)
def test_ctrl_c_at_any_line_leaves_nothing(name: str) -> None:
    run, files = _RUNS[name]
    run()  # what it imports
    with _Lines(files) as lines:
        run()
    places = list(dict.fromkeys(lines.seen))
    assert len(places) > 10
    places = places[:: -(-len(places) // _MOST_POINTS)]
    for place in places:
        interrupted = False
        with _Lines(files, place) as lines:
            try:
                run()
            except KeyboardInterrupt:
                interrupted = True
        assert interrupted or not lines.came, place  # it is never swallowed
        assert not _left(), place
        assert_events_are_recorded_once()
    run()  # and the next one works
