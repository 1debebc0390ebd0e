"""What a recorder must not leave behind."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch.optim import optimizer
from torch.profiler import ProfilerActivity, profile, record_function

import perfkit
from perfkit.base import torch_compat
from perfkit.measure.live import COUNTED

_PERFKIT = str(Path(perfkit.__file__).parent) + os.sep
# What perfkit replaces for a while, of functions that others call: module, and path in it.
_REPLACED = (
    *COUNTED,
    ("sys", "displayhook"),
    ("torch", "UntypedStorage.resize_"),
    ("torch", "autocast.__enter__"),
    ("torch", "ctc_loss"),
    ("torch", "save"),
    ("torch._dynamo.eval_frame", "OptimizedModule.__call__"),
    ("torch.autograd", "_engine_run_backward"),
    ("torch.autograd.profiler", "_enable_profiler"),
    ("torch.autograd.profiler", "_prepare_profiler"),
    ("torch.autograd.profiler_legacy", "_enable_profiler_legacy"),
    ("torch.distributed.checkpoint", "async_save"),
    ("torch.distributed.checkpoint", "save"),
    ("torch.utils", "swap_tensors"),
    ("torch.utils.data.dataloader", "DataLoader.__iter__"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"),
)


def n_optimizer_step_hooks() -> int:
    """Number of registered global optimizer-step hooks."""
    return len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks)


def assert_events_are_recorded_once() -> None:
    """Raise AssertionError if a profiler has left its callback: each event then comes twice.

    Nothing else shows it: such a profiler does not count as enabled.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("one"):
        pass
    n = sum(event.name == "one" for event in profiler.events() or ())
    if n != 1:
        raise AssertionError(f"each event is recorded {n} times: a profiler has left its callback")


def replaced() -> list[str]:
    """Functions of others in whose place one of perfkit's is."""
    found = []
    for module, path in _REPLACED:
        one: Any = sys.modules.get(module)
        for name in path.split("."):
            one = getattr(one, name, None)
        if getattr(getattr(one, "__code__", None), "co_filename", "").startswith(_PERFKIT):
            found.append(f"{module}.{path}")
    return found


def _readers() -> list[str]:
    """Processes that read this one's frames."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if str(os.getpid()) in words and any("stack_reader" in word for word in words):
                found.append("a reader of frames")
    return found


def assert_nothing_runs() -> None:
    """Raise AssertionError if a profiler, a global optimizer hook or a sampler is left running."""
    left = []
    if torch_compat.profiler_is_on():
        left.append("a profiler")
    if hooks := n_optimizer_step_hooks():
        left.append(f"{hooks} global optimizer hooks")
    ours = ("perfkit-lines", "perfkit-deadline")
    left += [t.name for t in threading.enumerate() if t.name.startswith(ours)]
    end = time.monotonic() + 5  # a reader ends with its input, a moment later
    while (readers := _readers()) and time.monotonic() < end:
        time.sleep(0.01)
    left += readers
    if left:
        raise AssertionError(f"left running: {', '.join(left)}")
