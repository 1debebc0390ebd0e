"""How a run failed, in one line: from the child's exception, or from how it ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_bytes

if TYPE_CHECKING:
    from perfkit.experiment.process.events import State

_MIB = 2**20
_SHM = Path("/dev/shm")
# What torch, the C library and the kernel say when /dev/shm is full.
_SHM_WORDS = (
    "unable to allocate shared memory",
    "insufficient shared memory",
    "unable to write to file </torch",
    "unable to mmap",
    "bus error",
)
_MEMORY_WORDS = (
    "not enough memory: you tried to allocate",
    "out of memory",
    "cannot allocate memory",
    # cuBLAS and cuDNN, when they cannot create a handle or a workspace
    "status_alloc_failed",
)
# torch/csrc/DataLoader.cpp and torch/utils/data/dataloader.py
_WORKER_DIED = re.compile(r"DataLoader worker.*(exited unexpectedly|is killed by signal).*")
# A process last seen holding this share of the machine's memory was probably killed for it.
_LARGE_SHARE = 0.5
_LONGEST = 300
_STDLIB = str(Path(os.__file__).parent) + os.sep
_PERFKIT = str(Path(__file__).parents[2]) + os.sep


@dataclass(frozen=True)
class Failure:
    """A final state and its one-line message."""

    state: State
    message: str
    traceback_text: str = ""

    def with_more(self, sentence: str, text: str) -> Failure:
        """This failure with a sentence added to its message and a text to its traceback."""
        below = f"{self.traceback_text.rstrip()}\n\n{text}\n"
        return Failure(self.state, f"{self.message}; {sentence}", below)


def of_exception(error: BaseException, own_files: frozenset[str]) -> Failure:
    """The failure for an exception of the workload; frames of ``own_files`` are left out."""
    tb = _from_user(error.__traceback__, own_files)
    text = "".join(traceback.format_exception(type(error), error, tb))
    if shared_memory_is_full(text):
        return Failure("out of memory", shared_memory_message(), text)
    message = _headline(error, tb)
    if _is_memory(error):
        return Failure("out of memory", f"out of memory: {message}", text)
    return Failure("failed", message, text)


def of_exit(code: int, *, output: str, last_bytes: int, ram_bytes: int, oom_kills: int) -> Failure:
    """The failure of a child that ended without reporting anything.

    Args:
        code: its exit code, or minus the number of the signal that ended it.
        output: the end of what it printed, including a crash dump.
        last_bytes: its last reported resident set.
        ram_bytes: how much of the machine's memory this process may use.
        oom_kills: how many processes the out-of-memory killer has killed here meanwhile.
    """
    if code >= 0:
        line = _last_line(output)
        # the loader raises it from a signal handler, possibly where nothing can catch it
        died = _WORKER_DIED.search(line)
        if died is not None:
            if shared_memory_is_full(line):
                return Failure("out of memory", shared_memory_message(), output)
            return Failure("failed", f"a DataLoader worker died: {died[0]}", output)
        said = f"; it last printed: {line}" if line else ""
        return Failure("failed", f"its process ended by itself with exit code {code}{said}", output)
    name = _signal_name(-code)
    if name == "SIGKILL":
        if oom_kills:
            return Failure(
                "out of memory",
                "killed (SIGKILL: out of memory): the system's out-of-memory killer ended it; "
                "take a smaller batch or fewer workers",
            )
        if last_bytes >= _LARGE_SHARE * ram_bytes:
            held = f"{fmt_bytes(last_bytes)} of {fmt_bytes(ram_bytes)}"
            return Failure("killed", f"killed (SIGKILL: out of memory?); it last held {held}")
        return Failure(
            "killed",
            "killed (SIGKILL): by the workload itself, by another process, or by the system "
            "because memory ran out; which of these is not known",
        )
    if name == "SIGBUS" and shared_memory_is_full("bus error"):
        return Failure("out of memory", shared_memory_message(), output)
    where = innermost(output)
    return Failure("killed", f"crashed ({name}){f' at {where}' if where else ''}", output)


def shared_memory_is_full(text: str) -> bool:
    """Whether an error's text says so; if the text is vague, whether it really is full."""
    lower = text.lower()
    if any(words in lower for words in _SHM_WORDS[:3]):
        return True
    nearly = _shm_free_share() < 0.1
    disk_full = "no space left on device" in lower and ("torch_" in lower or "shm" in lower)
    return disk_full or (nearly and any(words in lower for words in _SHM_WORDS))


def _shm_free_share() -> float:
    try:
        usage = shutil.disk_usage(_SHM)
    except OSError:
        return 1.0
    return usage.free / usage.total if usage.total else 1.0


def shared_memory_message() -> str:
    """Message with the place, its size, and what to do."""
    try:
        usage = shutil.disk_usage(_SHM)
        size = f" ({fmt_bytes(usage.free)} free of {fmt_bytes(usage.total)})"
    except OSError:
        size = ""
    return (
        f"/dev/shm is full{size}: DataLoader workers hand over their batches through it; take "
        "fewer workers, a smaller prefetch_factor or batch, or start the container with "
        "--shm-size=1g"
    )


def oom_kill_count() -> int:
    """How many processes of this control group the out-of-memory killer has killed so far."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].split(":")[-1]
        text = Path(f"/sys/fs/cgroup/{group.lstrip('/')}/memory.events").read_text()
    except (OSError, IndexError):  # no cgroup v2
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def innermost(dump: str) -> str:
    """Where the main thread is, from a faulthandler dump: the user's own line if there is one."""
    # each thread is listed innermost frame first, the main thread last
    blocks = re.split(r"(?m)^(?:Current thread|Thread) .*\(most recent call first\):\n", dump)
    if len(blocks) < 2:
        return ""
    frames = re.findall(r'File "(.+?)", line (\d+) in (\S+)', blocks[-1])
    if not frames:
        return ""
    # perfkit starts its processes by a command, which is no line of the notebook
    started_by = ("<string>", "<module>")
    users = [f for f in frames if not is_library(f[0]) and (f[0], f[2]) != started_by]
    file, line, function = (users or frames)[0]
    waits = any("dataloader.py" in f[0] for f in frames[:12])
    place = f"line {line} in {function} ({short_name(file)})"
    return f"{place}, waiting for the DataLoader" if waits else place


def _headline(error: BaseException, tb: TracebackType | None) -> str:
    """``ValueError: bad value (line 12 in workload)``; what a loader worker raised, unwrapped."""
    text = _words(error)
    if isinstance(error, KeyError) and "\\n" in text:
        text = str(error.args[0]).strip()  # its str() is the repr of its argument
    name = type(error).__name__
    if "in DataLoader worker process" in text:
        line = f"{text.splitlines()[-1]} (in a DataLoader worker)"
    elif _WORKER_DIED.search(text):
        line = f"a DataLoader worker died: {text.splitlines()[0]}"
    elif isinstance(error, ConnectionError | EOFError) and _in_loader(tb):
        # it died while handing over a batch
        line = f"a DataLoader worker died: {name}: {text}"
    else:
        first = text.splitlines()[0] if text else ""
        line = f"{name}: {first}" if first else name
    frames = [f for f in traceback.extract_tb(tb) if not is_library(f.filename)]
    if frames:
        line = f"{_cut(line)} (line {frames[-1].lineno} in {frames[-1].name})"
    return _cut(line)


def _words(error: BaseException | None) -> str:
    """The exception's message, even if its ``__str__`` is user code that raises."""
    try:
        return str(error).strip()
    except Exception as another:
        return f"(its message cannot be shown: its __str__ raised {type(another).__name__})"


def sayable(text: str) -> str:
    """Text made safe for a message: half a surrogate pair has no UTF-8 form."""
    return text.encode("utf-8", "backslashreplace").decode()


def _in_loader(tb: TracebackType | None) -> bool:
    places = (Path(frame.filename).parts[-3:] for frame in traceback.extract_tb(tb))
    return ("utils", "data", "dataloader.py") in places


def _is_memory(error: BaseException | None) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    words = _words(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(w in words for w in _MEMORY_WORDS)


def _from_user(tb: TracebackType | None, own_files: frozenset[str]) -> TracebackType | None:
    """The traceback from the first user frame on."""
    while tb is not None and tb.tb_frame.f_code.co_filename in own_files:
        tb = tb.tb_next
    return tb


def is_library(filename: str) -> bool:
    """Whether this is code of Python, an installed package or perfkit."""
    return (
        filename.startswith(("<frozen", _STDLIB, _PERFKIT))
        or "site-packages" in filename
        or "dist-packages" in filename
    )


def short_name(filename: str) -> str:
    """``notebook`` for a cell, otherwise the file name without its folder."""
    if "ipykernel_" in filename or filename.startswith("<"):
        return "notebook"
    return Path(filename).name


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return _cut(lines[-1].strip()) if lines else ""


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
