"""Which source lines the step's time goes to, by sampling.

A thread looks at the step's thread about 100 times a second while steps are recorded, and 20
times a second for the rest of the region. It notes the innermost line of *user* code: not torch,
not an installed package, not the standard library, not perfkit. Below a framework
(``trainer.fit()``) all of the user's time is one line; so the innermost line of an installed
package that says something is noted too, and such a line is split by it.

Bias: the sampler needs the interpreter lock. Where torch or a decoder has released it the
sample comes at once; where the step holds it (pure Python) the sampler waits for Python's
switch interval. At the usual 5 ms most samples would be taken at the next line that releases
the lock by itself: a loop of 2 ms before a torch call was never seen. So the switch interval
is 0.5 ms while steps are recorded, and is set back after; lines that release the lock are still
seen a little too often, and steps of a few ms get few samples. It finds the lines that
matter; it is no stopwatch.

Only the sampling thread adds samples, and it adds them to a list with their time: what is to be
forgotten or counted is a matter of times, decided when the result is read.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType

from perfkit.base.heap import heap_bytes
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.resident import peak_resident_bytes, resident_bytes
from perfkit.base.stack import Level, levels_of, stack_of
from perfkit.base.statement import statement
from perfkit.base.user_code import cell_names, is_user_code, package_path, where
from perfkit.base.words import most_often

SAMPLES_PER_S = 100.0
BACKGROUND_PER_S = 20.0
_SWITCH_S = 0.0005  # see the bias above
_TOO_FEW = 20
_LOOK_EVERY_S = 0.25  # at deadline and memory
_JOIN_S = 2.0  # the thread may be waiting for a place in the interpreter's queue of calls
# Half an hour at the background rate; then every other sample is dropped, and every other taken.
_MOST_BACKGROUND = 36_000
# A user line that runs so much of the region, through so many lines of a package, is a framework.
_FRAMEWORK_SHARE = 0.5
_FRAMEWORK_LINES = 4
# What samples have in common is a line that so many of them run below.
_SHARED = 0.7
# Fewer ordinary samples do not show which lines these run.
_FEWEST_ORDINARY = 5
# A line that so many of the ordinary samples run below is no news.
_USUAL = 0.1
# One that so many of them run below is around everything.
_EVERYWHERE = 0.9
# Wrappers say nothing about what runs inside of them.
_SAYS_NOTHING = re.compile(r"^(_?wrap(ped|per)?(_.*)?|inner|_fn|decorate_.*|_?call_.*|__call__)$")
_TORCH = re.compile(r"[/\\]torch[/\\]")


@dataclass(frozen=True)
class Line:
    """One line of user code.

    Attributes:
        file: the file name under which Python knows the code.
        line: line number in it.
        where: what to call it: ``cell [3], line 7`` or ``train.py:12``.
        function: the function it is in.
        text: the statement that begins there (see :mod:`perfkit.base.statement`); empty where
            there is no source.
        n_samples: in how many samples it was the innermost line of user code.
        share: the same as a share of all samples of the step's thread.
        in_data_wait: it ran inside a DataLoader's ``__next__`` (data loading without workers).
        library: the package in which the sample was really taken: ``PIL``, ``torch`` …
        library_function: the Python function there: ``PIL.ImageFile.load``; that of most samples
            where lines are merged.
        inner: the innermost line of an installed package that it called and that says something:
            ``transformers/trainer.py:2501``; empty where there is none.
        inner_function: the function of that line, with its class: ``Trainer._save_checkpoint``.
        inner_text: the source of that line.
        is_framework: it runs a whole training (``trainer.fit()``), and only ``inner`` shows
            which part of it.
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
    inner: str = ""
    inner_function: str = ""
    inner_text: str = ""
    is_framework: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether a package's line, below the user's, is the one that says where it is."""
        return self.is_framework and bool(self.inner)

    @property
    def place(self) -> str:
        """What to call it: a framework's own line with the user's, else the user's."""
        if self.is_inside:
            return f"{self.inner} in {self.inner_function} (called from {self.where})"
        return self.where

    @property
    def source(self) -> str:
        """The source of the line that :attr:`place` names."""
        return self.inner_text if self.is_inside else self.text


@dataclass(frozen=True)
class LineSamples:
    """Lines by share of the samples; the module's docstring describes the bias.

    Attributes:
        lines: most frequent first; one line may appear once per library function it called.
        n_samples: all samples of the step's thread, also those outside of user code.
        samples_per_s: how often was sampled.
        warnings: what is doubtful.
        taken: each sample's time in ns after the trace's origin, and its index in ``lines`` (-1
            where no user code ran); empty where the times are not known.
    """

    lines: tuple[Line, ...]
    n_samples: int
    samples_per_s: float = SAMPLES_PER_S
    warnings: tuple[str, ...] = ()
    taken: tuple[tuple[int, int], ...] = ()

    def by_line(self) -> tuple[Line, ...]:
        """One entry per source line, whatever library it called; most frequent first.

        A line that runs a framework has one entry per line of the framework.
        """
        merged: dict[tuple[str, int, str], Line] = {}
        for line in self.lines:
            key = (line.file, line.line, line.inner if line.is_framework else "")
            first = merged.get(key)
            merged[key] = (
                line
                if first is None
                else replace(
                    first,
                    n_samples=first.n_samples + line.n_samples,
                    share=first.share + line.share,
                )
            )
        return tuple(sorted(merged.values(), key=lambda x: -x.n_samples))

    def chosen(self, keep: Sequence[bool]) -> LineSamples:
        """These samples alone, their shares being of them; ``keep`` goes with ``taken``."""
        taken = tuple(t for t, kept in zip(self.taken, keep, strict=True) if kept)
        counts = Counter(index for _, index in taken)
        n = len(taken)
        at: dict[int, int] = {}
        lines: list[Line] = []
        for index, count in counts.most_common():
            if index >= 0:
                at[index] = len(lines)
                lines.append(replace(self.lines[index], n_samples=count, share=count / n))
        moved = tuple((when, at.get(index, -1)) for when, index in taken)
        return LineSamples(tuple(lines), n, self.samples_per_s, (), moved)


NO_LINES = LineSamples((), 0)


@dataclass(frozen=True)
class _Key:
    """What a sample saw."""

    code: CodeType
    line: int
    in_data_wait: bool
    called: str
    inner: CodeType | None
    inner_line: int
    # every frame of user code or of an installed package that says something, innermost first,
    # up to the outermost one of user code
    chain: tuple[tuple[CodeType, int], ...] = ()


@dataclass(frozen=True)
class Sample:
    """One look at the step's thread, at a time of ``time.perf_counter``."""

    at_s: float
    key: _Key | None


class Sampler:
    """Samples one thread from another one, and watches a deadline meanwhile.

    It cannot raise into the sampled code; where it fails it stops, and :attr:`failure` says why.

    Args:
        thread_id: of the thread to sample.
        enabled: take samples at all (the deadline is watched in any case).
        samples_per_s: rate while steps are recorded; else it is ``BACKGROUND_PER_S``.
        on_deadline: called in the sampler's thread when the deadline has passed or the memory
            limit is reached, once for each deadline.
        memory_limit_bytes: how much this process may grow, see :meth:`allow_memory`.
        kept_limit_bytes: how much of that may stay at the end of a step, see :meth:`steps_grew`.
    """

    def __init__(
        self,
        thread_id: int,
        *,
        enabled: bool = True,
        samples_per_s: float = SAMPLES_PER_S,
        on_deadline: Callable[[], None] | None = None,
        memory_limit_bytes: int | None = None,
        kept_limit_bytes: int | None = None,
    ) -> None:
        self._thread_id = thread_id
        self._enabled = enabled
        self._pause_s = 1.0 / samples_per_s
        self._background_s = 1.0 / BACKGROUND_PER_S
        self._rate = samples_per_s
        self._on_deadline = on_deadline
        self._memory_limit_bytes = memory_limit_bytes
        self._kept_limit_bytes = kept_limit_bytes
        self._memory_ceiling_bytes: int | None = None
        self._highest_bytes = 0  # of the looks so far
        self._step_end_bytes: int | None = None
        self.kept_bytes = 0  # by the last step, more than at the first look at a step's end
        self._samples: list[Sample] = []
        self._background: list[Sample] = []
        self._since_s = 0.0  # samples taken before are forgotten
        self._frameworks: set[tuple[CodeType, int]] = set()
        self._sampling = False
        self._watching = False
        self._switch_s_before: float | None = None
        self._deadline_s: float | None = None
        self._wake = threading.Event()
        self._closed = False
        self.memory_was_full = False  # … at a deadline, which then came early
        self._instrument = Instrument("the line sampler", switch_off=self._failed)
        self._thread = threading.Thread(
            target=self._instrument.hook(self._run), name="perfkit-lines", daemon=True
        )

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._instrument.failure

    def start(self) -> None:
        """Start the thread; it takes no sample before :meth:`resume` or :meth:`watch`."""
        self._thread.start()

    def set_deadline(self, monotonic_s: float | None) -> None:
        """Call ``on_deadline`` at this time of ``time.monotonic``; None calls it off."""
        self._deadline_s = monotonic_s
        self._wake.set()

    def allow_memory(self, *, at_step_end: bool = False) -> None:
        """From now on this process may grow by ``memory_limit_bytes`` until the deadline comes.

        Events are not all that grows: the tensors of a step come and go. So what counts is what is
        above the most that the process has had before, and what :meth:`steps_grew` sees.
        """
        self.memory_was_full = False
        self._step_end_bytes = _used_bytes() if at_step_end else None
        if self._memory_limit_bytes is not None:
            known = max(resident_bytes(), peak_resident_bytes() or self._highest_bytes)
            self._memory_ceiling_bytes = known + self._memory_limit_bytes

    def steps_grew(self) -> bool:
        """At the end of a step: whether steps have left ``kept_limit_bytes`` behind.

        By then the tensors of the step are freed, and a process that was larger once may take more
        events than it should.
        """
        if self._kept_limit_bytes is None:
            return False
        now = _used_bytes()
        if self._step_end_bytes is None:
            self._step_end_bytes = now
        self.kept_bytes = now - self._step_end_bytes
        grew = self.kept_bytes > self._kept_limit_bytes
        self.memory_was_full |= grew
        return grew

    def resume(self, *, forget: bool) -> None:
        """Take samples at the full rate from now on; ``forget`` drops those so far."""
        if forget:
            self._since_s = time.perf_counter()
        self._sampling = self._enabled and self.failure is None
        if self._sampling and self._switch_s_before is None:
            self._switch_s_before = sys.getswitchinterval()
            sys.setswitchinterval(min(self._switch_s_before, _SWITCH_S))
        self._wake.set()

    def pause(self) -> None:
        """Back to the background's rate, or to no samples where none are taken there."""
        self._sampling = False
        before, self._switch_s_before = self._switch_s_before, None
        if before is not None:
            sys.setswitchinterval(before)
        self._wake.set()

    def watch(self) -> None:
        """Take samples at the background's rate whenever none are taken at the full one."""
        self._watching = self._enabled and self.failure is None
        self._wake.set()

    def step_ended(self, frame: FrameType | None) -> None:
        """A step has ended below this frame: shows whether the loop is a framework's."""
        if frame is not None and self._enabled:
            key = _look(levels_of(frame))
            if key is not None and key.inner is not None:
                self._frameworks.add((key.code, key.line))

    def close(self) -> None:
        """End the thread; the samples stay."""
        self._end()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=_JOIN_S)
        self._on_deadline = None  # mostly a method of its owner's: no cycle stays

    def _end(self) -> None:
        self._closed = True
        self._watching = False
        self.pause()

    def _failed(self) -> None:
        """Nobody watches the deadline any more, so it is over now."""
        self._end()
        if self._deadline_s is not None and self._on_deadline is not None:
            self._on_deadline()

    def _run(self) -> None:
        next_look_s = 0.0
        while not self._closed:
            if self._wake.wait(self._wait_s()):
                self._wake.clear()
                continue
            if self._sampling or self._watching:
                self._sample()
            if self._deadline_s is None or (now_s := time.monotonic()) < next_look_s:
                continue
            next_look_s = min(now_s + _LOOK_EVERY_S, self._deadline_s)
            full = self._memory_is_full()
            if now_s >= self._deadline_s or full:
                self.memory_was_full |= full
                self._deadline_s = None
                if self._on_deadline is not None:
                    self._on_deadline()

    def _wait_s(self) -> float | None:
        if self._sampling:
            return self._pause_s
        left_s = None
        if self._deadline_s is not None:
            left_s = min(max(self._deadline_s - time.monotonic(), 0.0), _LOOK_EVERY_S)
        if self._watching:
            return self._background_s if left_s is None else min(self._background_s, left_s)
        return left_s

    def _memory_is_full(self) -> bool:
        if self._memory_ceiling_bytes is None:
            return False
        now = resident_bytes()
        self._highest_bytes = max(self._highest_bytes, now)
        return now > self._memory_ceiling_bytes

    def _sample(self) -> None:
        stack = stack_of(self._thread_id)
        if not stack:
            return
        sample = Sample(time.perf_counter(), _look(stack))
        if self._sampling:
            self._samples.append(sample)
        elif self._watching:
            self._background.append(sample)
            if len(self._background) >= _MOST_BACKGROUND:
                self._background = self._background[::2]
                self._background_s *= 2

    def result(self, *, with_forgotten: bool = False) -> LineSamples:
        """What was seen at the full rate; with what was forgotten where nothing better was."""
        samples = [s for s in self._samples if with_forgotten or s.at_s >= self._since_s]
        return self._lines(samples)

    def region(self) -> tuple[Sample, ...]:
        """All samples of the region at either rate, by time."""
        return tuple(sorted([*self._samples, *self._background], key=lambda s: s.at_s))

    def lines_of(self, samples: Iterable[Sample]) -> LineSamples:
        """Some of :meth:`region`'s samples as lines."""
        return self._lines(list(samples))

    def _lines(self, samples: list[Sample]) -> LineSamples:
        n = len(samples)
        cells = cell_names()
        counts = Counter(s.key for s in samples if s.key is not None)
        frameworks = self._frameworks | _frameworks_by_share(counts, n)
        merged: dict[tuple[object, ...], Line] = {}
        identity = {}
        for key, count in counts.items():
            line = _line(key, count, n, cells, (key.code, key.line) in frameworks)
            identity[key] = same = (
                line.file, line.line, line.function, line.in_data_wait, line.library_function,
                line.inner,
            )  # fmt: skip
            first = merged.get(same)
            if first is not None:
                line = replace(
                    first, n_samples=first.n_samples + count, share=first.share + count / n
                )
            merged[same] = line
        order = sorted(merged, key=lambda same: -merged[same].n_samples)
        at = {same: index for index, same in enumerate(order)}
        taken = tuple(
            (round(s.at_s * 1e9), -1 if s.key is None else at[identity[s.key]]) for s in samples
        )
        warnings = (
            (f"only {n} line sample{'s' * (n > 1)}: the ranking of lines is rough",)
            if 0 < n < _TOO_FEW
            else ()
        )
        return LineSamples(tuple(merged[x] for x in order), n, self._rate, warnings, taken)


def _used_bytes() -> int:
    heap = heap_bytes()
    return resident_bytes() if heap is None else heap


@dataclass(frozen=True)
class Around:
    """The innermost frame that most of some samples have in common.

    Attributes:
        place: what to call its line.
        source: the line's source.
        share: how many of the samples ran below it.
        below: the source of the outermost line that these samples have in common and ordinary
            ones do not, if that is another line: ``evaluate(model)``.
        is_everywhere: whether ordinary samples run below the line too, nearly all of them: it says
            nothing, as the call of ``main()``.
    """

    place: str
    source: str
    share: float
    below: str = ""
    is_everywhere: bool = False


def common_frame(
    samples: Sequence[Sample], ordinary: Sequence[Sample] = (), n_beyond: float | None = None
) -> Around | None:
    """The innermost line below which at least 70 % of the samples ran; None if there is none.

    A loop that evaluates runs many lines, none of them for long: what they have in common is the
    call of it. Lines that ordinary samples run as well say nothing, where there are others.

    Args:
        samples: what has something in common.
        ordinary: samples of what is not to be named.
        n_beyond: so many of the samples are beyond an ordinary piece that is among them; a line
            that ordinary samples do not run is measured against these alone.
    """
    counts: Counter[tuple[CodeType, int]] = Counter()
    depth: dict[tuple[CodeType, int], int] = {}
    callers: dict[tuple[CodeType, int], Counter[tuple[CodeType, int]]] = {}
    for sample in samples:
        if sample.key is None:
            continue
        user: tuple[CodeType, int] | None = None
        for level, line in enumerate(reversed(sample.key.chain)):
            if is_user_code(line[0].co_filename):
                user = line
            elif user is not None:
                callers.setdefault(line, Counter())[user] += 1
            depth[line] = max(depth.get(line, 0), level)
        counts.update(set(sample.key.chain))
    knows = n_beyond is not None and len(ordinary) >= _FEWEST_ORDINARY
    n_own = n_beyond if knows and n_beyond is not None else float(len(samples))
    shared = [line for line, count in counts.items() if count >= _SHARED * len(samples)]
    most = {line for line, count in counts.items() if count >= _SHARED * n_own}
    usual = Counter(line for s in ordinary if s.key is not None for line in set(s.key.chain) & most)
    own = [line for line in most if usual[line] <= _USUAL * len(ordinary)]
    if not shared and not own:
        return None
    deepest = max(own or shared, key=lambda line: (depth[line], counts[line]))
    outermost = min(own, key=lambda line: depth[line], default=deepest)
    code, number = deepest
    cells = cell_names()
    if deepest in callers:
        named: Counter[str] = Counter()
        for (caller, at), count in callers[deepest].items():
            named[where(caller.co_filename, at, cells)] += count
        place = (
            f"{package_path(code.co_filename)}:{number} in {_function(code)} (called from "
            f"{most_often(named, 'line')})"
        )
    else:
        place = where(code.co_filename, number, cells)
    return Around(
        place,
        _source(deepest),
        min(counts[deepest] / (n_own if own else len(samples)), 1.0),
        # a comprehension has a frame of its own, on the same line
        _source(outermost) if not _on_one_line(outermost, deepest) and ordinary else "",
        is_everywhere=bool(ordinary) and usual[deepest] >= _EVERYWHERE * len(ordinary),
    )


def _on_one_line(one: tuple[CodeType, int], other: tuple[CodeType, int]) -> bool:
    return (one[0].co_filename, one[1]) == (other[0].co_filename, other[1])


def _source(line: tuple[CodeType, int]) -> str:
    return statement(line[0].co_filename, line[1])


def _function(code: CodeType) -> str:
    return code.co_qualname.replace(".<locals>", "")


def _frameworks_by_share(counts: Counter[_Key], n: int) -> set[tuple[CodeType, int]]:
    """Lines that take most of the samples through several lines of installed packages."""
    total: Counter[tuple[CodeType, int]] = Counter()
    inner: dict[tuple[CodeType, int], set[tuple[str, int]]] = {}
    for key, count in counts.items():
        if key.in_data_wait:
            continue
        total[(key.code, key.line)] += count
        if key.inner is not None:
            inside = inner.setdefault((key.code, key.line), set())
            inside.add((key.inner.co_filename, key.inner_line))
    return {
        line
        for line, count in total.items()
        if count >= _FRAMEWORK_SHARE * n and len(inner.get(line, ())) >= _FRAMEWORK_LINES
    }


def _line(key: _Key, count: int, n: int, cells: object, is_framework: bool) -> Line:
    file, inner = key.code.co_filename, key.inner
    return Line(
        file=file,
        line=key.line,
        where=where(file, key.line, cells),  # type: ignore[arg-type]
        function=key.code.co_name,
        text=statement(file, key.line),
        n_samples=count,
        share=count / n,
        in_data_wait=key.in_data_wait,
        library=key.called.partition(".")[0],
        library_function=key.called,
        inner="" if inner is None else f"{package_path(inner.co_filename)}:{key.inner_line}",
        inner_function="" if inner is None else _function(inner),
        inner_text="" if inner is None else statement(inner.co_filename, key.inner_line),
        is_framework=is_framework,
    )


def _look(stack: Sequence[Level]) -> _Key | None:
    """The innermost line of user code on the stack, what it called, and who called it."""
    chain: list[tuple[CodeType, int]] = []
    found = inner = None
    n_chain = 0  # up to the outermost user frame
    in_data_wait = False
    for code, line, _ in stack:
        whose = _whose.get(code)
        if whose is None:
            whose = _whose[code] = _whose_code(code)
        if whose == _STOP and found is not None:
            break  # what runs the user's code: the notebook, or perfkit
        if whose in (_USERS, _PACKAGES):
            chain.append((code, line or 0))
            if whose == _USERS:
                n_chain = len(chain)
                found = found or chain[-1]
            elif found is None and inner is None:
                inner = chain[-1]
        elif code.co_name == "__next__" and code.co_filename.endswith("dataloader.py"):
            in_data_wait = True
    if found is None:
        return None
    called = f"{stack[0].names.get('__name__', '')}.{stack[0].code.co_name}"
    return _Key(
        found[0],
        found[1],
        in_data_wait,
        called,
        None if inner is None else inner[0],
        0 if inner is None else inner[1],
        tuple(chain[:n_chain]),
    )


_NOBODYS, _USERS, _PACKAGES, _STOP = 0, 1, 2, 3
_RUNS_CODE = re.compile(r"[/\\](IPython|ipykernel|nbclient)[/\\]")
_PERFKIT = str(Path(__file__).parents[2]) + os.sep
_whose: dict[CodeType, int] = {}


def _whose_code(code: CodeType) -> int:
    """The user's, an installed package's that says something (not torch's, no wrapper), or none."""
    file = code.co_filename
    if is_user_code(file):
        return _USERS
    if _RUNS_CODE.search(file) or file.startswith(_PERFKIT):
        return _STOP
    says = "-packages" in file and not _TORCH.search(file) and not _SAYS_NOTHING.match(code.co_name)
    return _PACKAGES if says else _NOBODYS
