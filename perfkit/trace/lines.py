"""Which source lines the step's time goes to, by sampling.

A thread looks at the step's thread about 100 times a second, only while steps are recorded,
and counts the innermost line of *user* code: not torch, not an installed package, not the
standard library, not perfkit.

Bias: the sampler needs the interpreter lock. Where torch or a decoder has released it the
sample comes at once; where the step holds it (pure Python) the sampler waits for Python's
switch interval. At the usual 5 ms most samples would be taken at the next line that releases
the lock by itself: a loop of 2 ms before a torch call was never seen. So the switch interval
is 0.5 ms while samples are taken, and set back after; lines that release the lock are still
seen a little too often, and steps of a few ms get few samples. It finds the lines that
matter; it is no stopwatch.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from perfkit._user_code import cell_names, is_user_code, where

SAMPLES_PER_S = 100.0
_SWITCH_S = 0.0005  # see the bias above
_TOO_FEW = 20
_LOOK_EVERY_S = 0.25  # at deadline and memory
_JOIN_S = 2.0  # the thread may be waiting for a place in the interpreter's queue of calls


@dataclass(frozen=True)
class Line:
    """One line of user code.

    Attributes:
        file: the file name under which Python knows the code.
        line: line number in it.
        where: how to name it to a person: ``cell [3], line 7`` or ``train.py:12``.
        function: the function it stands in.
        text: the source line, stripped; empty where it cannot be found.
        n_samples: in how many samples it was the innermost line of user code.
        share: the same as a share of all samples of the step's thread.
        in_data_wait: it ran inside a DataLoader's ``__next__`` (data loading without workers).
        library: the package in which the sample was really taken: ``PIL``, ``torch`` …
        library_function: the Python function there: ``PIL.ImageFile.load``; that of most samples
            where lines are merged.
    """

    file: str
    line: int
    where: str
    function: str
    text: str
    n_samples: int
    share: float
    in_data_wait: bool
    library: str
    library_function: str = ""


@dataclass(frozen=True)
class LineSamples:
    """Lines by share of the samples; the module's docstring tells the bias.

    Attributes:
        lines: most frequent first; one line may appear once per library function it called.
        n_samples: all samples of the step's thread, also those outside of user code.
        samples_per_s: how often was sampled.
        warnings: what is doubtful.
    """

    lines: tuple[Line, ...]
    n_samples: int
    samples_per_s: float = SAMPLES_PER_S
    warnings: tuple[str, ...] = ()

    def by_line(self) -> tuple[Line, ...]:
        """One entry per source line, whatever library it called; most frequent first."""
        merged: dict[tuple[str, int], Line] = {}
        for line in self.lines:
            key = (line.file, line.line)
            first = merged.get(key)
            if first is None:
                merged[key] = line
            else:
                merged[key] = Line(
                    **{
                        **{f: getattr(first, f) for f in Line.__dataclass_fields__},
                        "n_samples": first.n_samples + line.n_samples,
                        "share": first.share + line.share,
                    }
                )
        return tuple(sorted(merged.values(), key=lambda x: -x.n_samples))


NO_LINES = LineSamples((), 0)

_Key = tuple[CodeType, int, bool, str, str]


class Sampler:
    """Samples one thread from another one, and watches a deadline meanwhile.

    Args:
        thread_id: of the thread to sample.
        enabled: take samples at all (the deadline is watched in any case).
        samples_per_s: rate.
        on_deadline: called in the sampler's thread when the deadline has passed or the memory
            limit is reached, once for each deadline.
        memory_limit_bytes: how much this process may grow after :meth:`set_deadline`.
    """

    def __init__(
        self,
        thread_id: int,
        *,
        enabled: bool = True,
        samples_per_s: float = SAMPLES_PER_S,
        on_deadline: Callable[[], None] | None = None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._thread_id = thread_id
        self._enabled = enabled
        self._pause_s = 1.0 / samples_per_s
        self._rate = samples_per_s
        self._on_deadline = on_deadline
        self._memory_limit_bytes = memory_limit_bytes
        self._memory_ceiling_bytes: int | None = None
        self._counts: Counter[_Key | None] = Counter()
        self._forgotten: Counter[_Key | None] = Counter()
        self._sampling = False
        self._switch_s_before: float | None = None
        self._deadline_s: float | None = None
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="perfkit-lines", daemon=True)

    def start(self) -> None:
        """Start the thread; it takes no sample before :meth:`resume`."""
        self._thread.start()

    def set_deadline(self, monotonic_s: float | None) -> None:
        """Call ``on_deadline`` at this time of ``time.monotonic``; None calls it off."""
        resident = resident_bytes() if self._memory_limit_bytes is not None else None
        self._memory_ceiling_bytes = (
            resident + self._memory_limit_bytes
            if resident is not None and self._memory_limit_bytes is not None
            else None
        )
        self._deadline_s = monotonic_s
        self._wake.set()

    def resume(self, *, forget: bool) -> None:
        """Take samples from now on; ``forget`` drops those so far."""
        if forget:
            self._forgotten, self._counts = self._forgotten + self._counts, Counter()
        self._sampling = self._enabled
        if self._enabled and self._switch_s_before is None:
            self._switch_s_before = sys.getswitchinterval()
            sys.setswitchinterval(min(self._switch_s_before, _SWITCH_S))
        self._wake.set()

    def pause(self) -> None:
        """Take no samples for now."""
        self._sampling = False
        before, self._switch_s_before = self._switch_s_before, None
        if before is not None:
            sys.setswitchinterval(before)

    def close(self) -> None:
        """End the thread; the samples stay."""
        self._closed = True
        self.pause()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=_JOIN_S)

    def _run(self) -> None:
        next_look_s = 0.0
        while not self._closed:
            if self._wake.wait(self._wait_s()):
                self._wake.clear()
                continue
            if self._sampling:
                self._sample()
            if self._deadline_s is None or (now_s := time.monotonic()) < next_look_s:
                continue
            next_look_s = min(now_s + _LOOK_EVERY_S, self._deadline_s)
            if now_s >= self._deadline_s or self._memory_is_full():
                self._deadline_s = None
                if self._on_deadline is not None:
                    self._on_deadline()

    def _wait_s(self) -> float | None:
        if self._sampling:
            return self._pause_s
        if self._deadline_s is None:
            return None
        return min(max(self._deadline_s - time.monotonic(), 0.0), _LOOK_EVERY_S)

    def _memory_is_full(self) -> bool:
        if self._memory_ceiling_bytes is None:
            return False
        resident = resident_bytes()
        return resident is not None and resident > self._memory_ceiling_bytes

    def _sample(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        if frame is not None:
            key = _innermost_user_line(frame)
            if self._sampling:  # not told to stop meanwhile
                self._counts[key] += 1

    def result(self, *, with_forgotten: bool = False) -> LineSamples:
        """What was seen; with what was forgotten where nothing better was seen."""
        counts = self._counts + self._forgotten if with_forgotten else self._counts
        n = sum(counts.values())
        seen = sorted(
            ((key, count) for key, count in counts.items() if key is not None),
            key=lambda item: -item[1],
        )
        merged: Counter[tuple[str, int, str, bool, str, str]] = Counter()
        for (code, line, in_data_wait, library, called), count in seen:
            merged[(code.co_filename, line, code.co_name, in_data_wait, library, called)] += count
        cells = cell_names()
        lines = tuple(
            Line(
                file=file,
                line=number,
                where=where(file, number, cells),
                function=function,
                text=linecache.getline(file, number).strip(),
                n_samples=count,
                share=count / n,
                in_data_wait=in_data_wait,
                library=library,
                library_function=called,
            )
            for (file, number, function, in_data_wait, library, called), count in (
                merged.most_common()
            )
        )
        warnings = (
            (f"only {n} line sample{'s' * (n > 1)}: the ranking of lines is rough",)
            if 0 < n < _TOO_FEW
            else ()
        )
        return LineSamples(lines, n, self._rate, warnings)


def resident_bytes() -> int | None:
    """Memory of this process; None where the system does not tell cheaply."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _innermost_user_line(leaf: FrameType) -> _Key | None:
    """The innermost line of user code on the stack, and whether a DataLoader called it."""
    found: tuple[CodeType, int] | None = None
    in_data_wait = False
    frame: FrameType | None = leaf
    while frame is not None:
        code = frame.f_code
        if found is None and is_user_code(code.co_filename):
            found = code, frame.f_lineno
        if code.co_name == "__next__" and code.co_filename.endswith("dataloader.py"):
            in_data_wait = True
            if found is not None:
                break
        frame = frame.f_back
    if found is None:
        return None
    module = str(leaf.f_globals.get("__name__", ""))
    called = f"{module}.{leaf.f_code.co_name}"
    return found[0], found[1] or 0, in_data_wait, module.partition(".")[0], called
