"""Which source lines the time goes to, by sampling.

Of each stack that :mod:`perfkit.base.line_sampler` has seen, the innermost line of *user* code
counts: not torch, not an installed package, not the standard library, not perfkit. Below a
framework (``trainer.fit()``) all of the user's time is one line; so the innermost line of an
installed package that says something is noted too, and such a line is split by it. And where most
of a line's samples were taken in one function of a library, that function is named with it.

Lines are sampled from the start of the region to its end, and recorded or not, steps alike count:
which samples are of what is a matter of times, decided when the result is read.
"""

from __future__ import annotations

import bisect
import functools
import math
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from perfkit.base.line_sampler import Frame, Look, Stack
from perfkit.base.source import shown_line, statement
from perfkit.base.user_code import is_user_code, package_path, tells_something, where
from perfkit.base.words import most_often

# A user line that runs so much of the region, through so many lines of a package, is a framework.
_FRAMEWORK_SHARE = 0.5
_FRAMEWORK_LINES = 4
# What samples have in common is a line that so many of them run below.
_SHARED = 0.7
# One that so many of the usual samples run below is around everything, and says nothing.
_EVERYWHERE = 0.9
# One below which fewer of them run is no call of ordinary steps.
_SELDOM = 0.1
# Beyond the usual ones so many lines are told, each with so many samples and such a share.
_MOST_LINES, _LEAST_OF_A_LINE, _LEAST_BEYOND = 2, 2, 0.1
# A library's function in which so many of a line's samples were taken is named with it.
_MOSTLY = 0.5
# Wrappers say nothing about what runs inside of them.
_SAYS_NOTHING = re.compile(r"^(_?wrap(ped|per)?(_.*)?|inner|_fn|decorate_.*|_?call_.*|__call__)$")
_PASSES_ON = re.compile(
    r"^(__\w+__|_wrapped_call_impl|_engine_run_backward|_use_grad|profile_hook_step|<\w+>)$"
)
_TORCH = re.compile(r"[/\\]torch[/\\]")
_Z95 = 1.96
# Fewer samples show no share.
_LEAST_SAMPLES = 5


@dataclass(frozen=True)
class Line:
    """One line of user code.

    Attributes:
        where: what to call it: ``cell [3], line 7`` or ``train.py:12``.
        text: the statement that begins there (see :mod:`perfkit.base.source`); empty where
            there is no source.
        n_samples: in how many samples it was the innermost line of user code.
        in_data_wait: it ran inside a DataLoader's ``__next__`` (data loading without workers).
        library: the package in which the sample was really taken: ``PIL``, ``torch`` …
        library_function: the Python function there: ``PIL.ImageFile.load``; that of most samples
            where lines are merged.
        inner: the innermost line of an installed package that it called and that says something:
            ``transformers/trainer.py:2501``; empty where there is none.
        is_framework: it runs a whole training (``trainer.fit()``), and only ``inner`` shows
            which part of it.
        mostly: the innermost function of a library in which most of this line's samples were
            taken: ``format_stack (torch/fx/traceback.py)``; empty where none says more.
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
    n_of: int = 0
    mostly: str = ""
    mostly_share: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Within which its share is, with 95 % confidence."""
        return wilson(self.n_samples, self.n_of or round(self.n_samples / (self.share or 1.0)))

    @property
    def is_inside(self) -> bool:
        """Whether a package's line, below the user's, is the one that says where it is."""
        return self.is_framework and bool(self.inner)

    @property
    def is_innermost(self) -> bool:
        """Whether no Python function below the line was running."""
        return self.library_function.rpartition(".")[2] == self.function

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

    @property
    def shown(self) -> str:
        """Place and source: ``train.py:12: img = Image.open(path)``."""
        return f"{self.place}: {self.source}" if self.source else self.place


@dataclass(frozen=True)
class LineSamples:
    """Lines by share of the samples; the module's docstring describes the bias.

    Attributes:
        lines: most frequent first; one line may appear once per library function it called.
        n_samples: all samples of the step's thread, also those outside of user code.
        taken: each sample's time in ns after the trace's origin, and its index in ``lines`` (-1
            where no user code ran); empty where the times are not known.
        stacks: the frames of user code, innermost first, whether in a wait for data, and how many
            samples saw them; empty where only lines are known.
    """

    lines: tuple[Line, ...]
    n_samples: int
    taken: tuple[tuple[int, int], ...] = ()
    stacks: tuple[tuple[tuple[Frame, ...], bool, int], ...] = ()

    def by_line(self) -> tuple[Line, ...]:
        """One entry per source line, or per line of the framework that it runs; by frequency."""
        merged: dict[tuple[str, int, str], Line] = {}
        for line in self.lines:
            key = (line.file, line.line, line.inner if line.is_framework else "")
            if (first := merged.get(key)) is not None:
                n, share = first.n_samples + line.n_samples, first.share + line.share
                line = replace(first, n_samples=n, share=share)
            merged[key] = line
        return tuple(sorted(merged.values(), key=lambda x: -x.n_samples))

    def share_of(self, is_one: Callable[[Line], bool]) -> float:
        """The share of the samples that are of such lines, 0 to 1; 0 where they are too few."""
        if self.n_samples < _LEAST_SAMPLES:
            return 0.0
        return sum(x.n_samples for x in self.lines if is_one(x)) / self.n_samples

    def to_dict(self) -> list[dict[str, object]]:
        return [{**asdict(x), "interval": x.interval} for x in self.lines]

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
        return LineSamples(tuple(lines), n, moved)


NO_LINES = LineSamples((), 0)


class _Key(NamedTuple):
    """What a sample saw.

    Attributes:
        called: the innermost function of all, with its module.
        inner: the innermost line of an installed package that says something, below the user's.
        chain: every frame of user code or of an installed package that says something, innermost
            first, up to the outermost one of user code.
        below: what the user's line called, innermost first.
    """

    frame: Frame
    in_data_wait: bool = False
    called: str = ""
    inner: Frame | None = None
    chain: tuple[Frame, ...] = ()
    below: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One look at the step's thread, at a time of ``time.perf_counter``."""

    at_s: float
    key: _Key | None


def samples_of(looks: Sequence[Look]) -> tuple[Sample, ...]:
    """What was seen, told by lines of user code."""
    keys = {id(look.stack): look.stack for look in looks}
    told = {key: user_line(stack) for key, stack in keys.items()}
    return tuple(Sample(look.at_s, told[id(look.stack)]) for look in looks)


def inside(spans: Sequence[tuple[float, float]], samples: Sequence[Sample]) -> list[Sample]:
    times = [sample.at_s for sample in samples]
    found: list[Sample] = []
    for begin, end in spans:
        found += samples[bisect.bisect_left(times, begin) : bisect.bisect_right(times, end)]
    return found


def lines_of(samples: Sequence[Sample]) -> LineSamples:
    n = len(samples)
    counts = Counter(s.key for s in samples if s.key is not None)
    frameworks = _frameworks(counts, n)
    mostly = _mostly(counts)
    merged: dict[tuple[object, ...], Line] = {}
    identity = {}
    for key, count in counts.items():
        is_framework = key.frame.place in frameworks
        line = _line(key, count, n, is_framework, mostly.get(key.frame, ("", 0.0)))
        identity[key] = same = (
            line.file, line.line, line.function, line.in_data_wait, line.library_function,
            line.inner,
        )  # fmt: skip
        first = merged.get(same)
        if first is not None:
            line = replace(first, n_samples=first.n_samples + count, share=first.share + count / n)
        merged[same] = line
    order = sorted(merged, key=lambda same: -merged[same].n_samples)
    at = {same: index for index, same in enumerate(order)}
    taken = tuple(
        (round(s.at_s * 1e9), -1 if s.key is None else at[identity[s.key]]) for s in samples
    )
    stacks = Counter[tuple[tuple[Frame, ...], bool]]()
    for key, count in counts.items():
        users = tuple(frame for frame in key.chain if is_user_code(frame.file))
        stacks[users, key.in_data_wait] += count
    seen = tuple((users, waits, count) for (users, waits), count in stacks.items() if users)
    return LineSamples(tuple(merged[x] for x in order), n, taken, seen)


def child_lines(looks: Sequence[Look]) -> tuple[LineSamples, LineSamples]:
    """What a DataLoader's workers do, and what other processes do, as shares of their time.

    Of a worker the innermost line of user code counts, and of a library's data set the innermost of
    its own. Some of the time they wait to be asked. Of others only user code counts.
    """
    keys = {id(look.stack): look.stack for look in looks}
    told = {key: _child_line(stack) for key, stack in keys.items()}
    workers: list[Sample] = []
    others: list[Sample] = []
    for look in looks:
        is_worker, key = told[id(look.stack)]
        if is_worker:
            workers.append(Sample(look.at_s, key))
        elif key is not None:  # multiprocessing has processes of its own
            others.append(Sample(look.at_s, key))
    return lines_of(workers), lines_of(others)


def _child_line(stack: Stack) -> tuple[bool, _Key | None]:
    """Whether a worker loads there, and the line."""
    starts = [n for n, frame in enumerate(stack) if frame.function.endswith("Process._bootstrap")]
    # what is further out is of the process that it was forked from
    inside = stack[: starts[0]] if starts else stack
    loops = [n for n, frame in enumerate(inside) if frame.function == "_worker_loop"]
    if not loops:
        return False, user_line(inside)
    inside = inside[: loops[0]]
    key = user_line(inside)
    if key is not None or not any(f.function.endswith("Fetcher.fetch") for f in inside):
        return True, key
    says = [n for n, frame in enumerate(inside) if tells_something(frame.file)]
    collates = [n for n, frame in enumerate(inside) if "collate" in frame.function]
    at = next(iter(says or collates[-1:] or [len(inside) - 1]))
    called = f"{_module(stack[0].file)}.{stack[0].function.rpartition('.')[2]}"
    return True, _Key(inside[at], called=called, chain=inside[at : at + 1], below=inside[:at])


def wilson(n: int, n_of: int) -> tuple[float, float]:
    """The 95 % interval of a share by n of so many samples (Wilson 1927)."""
    if not n_of:
        return 0.0, 1.0
    share, z2 = n / n_of, _Z95**2 / n_of
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z95 * math.sqrt(share * (1 - share) / n_of + z2 / n_of / 4) / (1 + z2)
    return (middle - half if n else 0.0), (middle + half if n < n_of else 1.0)


@dataclass(frozen=True)
class Around:
    """The innermost frame that most of some samples have in common; its fields are a stretch's.

    Attributes:
        below: the outermost line that these have in common and the usual ones do not, if that is
            another line: ``train.py:31: evaluate(model)``.
        inside, mostly: as of :class:`~perfkit.trace.record.elsewhere.Stretch`.
    """

    place: str
    source: str
    share: float
    below: str = ""
    inside: tuple[tuple[str, str, float], ...] = ()
    mostly: str = ""


def around(
    samples: Sequence[Sample], usual: Sequence[Sample] = (), times: float = 0.0
) -> Around | None:
    """The innermost line below which most of the samples ran, beyond usual ones; None if none.

    A loop that evaluates runs many lines, none of them for long: what they have in common is the
    call of it.

    Args:
        usual: samples of what is not to be named.
        times: the usual ones are in ``samples``, too, so many times.
    """
    more: Counter[Frame] = Counter()
    depth: dict[Frame, int] = {}
    callers: dict[Frame, Counter[Frame]] = {}
    for sample in samples:
        user: Frame | None = None
        chain = () if sample.key is None else sample.key.chain
        for level, frame in enumerate(reversed(chain)):
            depth[frame] = max(depth.get(frame, 0), level)
            if is_user_code(frame.file):
                user = frame
            elif user is not None:
                callers.setdefault(frame, Counter())[user] += 1
        more.update(set(chain))
    n_usual = Counter(frame for s in usual if s.key is not None for frame in set(s.key.chain))
    whole = len(samples) - times * len(usual)
    beyond = {frame: n - times * n_usual[frame] for frame, n in more.items()}
    shared = [
        frame
        for frame, n in beyond.items()
        if n >= _SHARED * whole and not (usual and n_usual[frame] >= _EVERYWHERE * len(usual))
    ]
    if whole <= 0 or not shared:
        return None
    deepest = max(shared, key=lambda frame: (depth[frame], beyond[frame]))
    seldom = [frame for frame in shared if n_usual[frame] <= _SELDOM * len(usual)]
    outermost = min(seldom or [deepest], key=lambda frame: depth[frame])
    place = where(*deepest.place)
    if deepest in callers:
        named: Counter[str] = Counter()
        for caller, count in callers[deepest].items():
            named[where(*caller.place)] += count
        place = (
            f"{package_path(deepest.file)}:{deepest.line} in {_function(deepest)} (called from "
            f"{most_often(named, 'line')})"
        )
    source, below = statement(deepest.file, deepest.line), shown_line(*outermost.place)
    # a comprehension has a frame of its own, on the same line
    is_other = outermost.place != deepest.place and usual
    return Around(place, source, min(beyond[deepest] / whole, 1.0), below if is_other else "")


def line_beyond(seen: Sequence[Sample], usual: Sequence[Sample], times: float) -> Around | None:
    """As :func:`around`; where no line is around most of them, the one seen most often."""
    lines = _most_beyond(seen, usual, times)
    found = around(seen, usual, times)
    if found is None:  # one line may be all of the usual ones, too
        return Around(*lines[0], inside=tuple(lines[1:])) if lines else None
    first = next(iter(lines_of(seen).by_line()), None)
    inside = tuple(one for one in lines if one[0] != found.place)
    return replace(found, inside=inside, mostly="" if first is None else first.mostly)


def _most_beyond(
    seen: Sequence[Sample], usual: Sequence[Sample], times: float
) -> list[tuple[str, str, float]]:
    """The lines seen most often beyond so many usual ones: place, source, share of these."""
    n_usual = {(x.place, x.text): times * x.n_samples for x in lines_of(usual).by_line()}
    whole = len(seen) - times * len(usual)
    if whole <= 0:
        return []
    beyond = [
        ((x.n_samples - n_usual.get((x.place, x.text), 0.0)) / whole, x)
        for x in lines_of(seen).by_line()
        if x.n_samples >= _LEAST_OF_A_LINE
    ]
    beyond.sort(key=lambda one: -one[0])
    return [
        (x.place, x.source, share) for share, x in beyond[:_MOST_LINES] if share >= _LEAST_BEYOND
    ]


def _function(frame: Frame) -> str:
    return frame.function.replace(".<locals>", "")


def _frameworks(counts: Counter[_Key], n: int) -> frozenset[tuple[str, int]]:
    """Lines that take most samples but waits for data, through several lines of packages."""
    n -= sum(count for key, count in counts.items() if key.in_data_wait)
    total: Counter[tuple[str, int]] = Counter()
    inner: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for key, count in counts.items():
        if key.in_data_wait:
            continue
        line = key.frame.place
        total[line] += count
        if key.inner is not None:
            inner.setdefault(line, set()).add(key.inner.place)
    return frozenset(
        line
        for line, count in total.items()
        if count >= _FRAMEWORK_SHARE * n and len(inner.get(line, ())) >= _FRAMEWORK_LINES
    )


def _mostly(counts: Counter[_Key]) -> dict[Frame, tuple[str, float]]:
    """Of each user line: the innermost library function that most of its samples are in."""
    total: Counter[Frame] = Counter()
    inside: dict[Frame, Counter[tuple[str, str]]] = {}
    depth: dict[tuple[str, str], int] = {}
    for key, count in counts.items():
        total[key.frame] += count
        functions = {(x.file, x.function): n for n, x in enumerate(reversed(key.below))}
        for function, n in functions.items():
            depth[function] = max(depth.get(function, 0), n)
            inside.setdefault(key.frame, Counter())[function] += count
    found = {}
    for frame, functions_of in inside.items():
        text = statement(frame.file, frame.line)
        most = [
            (depth[function], n, function)
            for function, n in functions_of.items()
            if n >= _MOSTLY * total[frame] and _says_more(*function, text)
        ]
        if most:
            _, n, (file, name) = max(most)
            called = f"{name.rpartition('.')[2]} ({_module_path(file)})"
            found[frame] = called, n / total[frame]
    return found


def _says_more(file: str, function: str, text: str) -> bool:
    """Whether a library's function is not what the line itself says that it calls."""
    name = function.rpartition(".")[2]
    if not package_path(file) or _whose(file, function) == _STOP or _PASSES_ON.match(name):
        return False
    return not _SAYS_NOTHING.match(name) and not re.search(rf"\b{re.escape(name)}\b", text)


def _line(key: _Key, count: int, n: int, is_framework: bool, mostly: tuple[str, float]) -> Line:
    file, number, inner = key.frame.file, key.frame.line, key.inner
    return Line(
        file=file,
        line=number,
        where=where(file, number),
        function=key.frame.function.rpartition(".")[2],
        text=statement(file, number),
        n_samples=count,
        share=count / n,
        in_data_wait=key.in_data_wait,
        library=key.called.partition(".")[0] if key.below else "",
        library_function=key.called,
        inner="" if inner is None else f"{package_path(inner.file)}:{inner.line}",
        inner_function="" if inner is None else _function(inner),
        inner_text="" if inner is None else statement(inner.file, inner.line),
        is_framework=is_framework,
        n_of=n,
        mostly=mostly[0],
        mostly_share=mostly[1],
    )


def user_line(stack: Stack) -> _Key | None:
    """The innermost line of user code on the stack, what it called, and who called it."""
    chain: list[Frame] = []
    found = inner = None
    n_chain = n_below = 0  # up to the outermost user frame; up to the innermost one
    in_data_wait = False
    for n, frame in enumerate(stack):
        whose = _whose(frame.file, frame.function)
        if whose == _STOP and found is not None:
            break  # what runs the user's code: the notebook, or perfkit
        if whose in (_USERS, _PACKAGES):
            chain.append(frame)
            if whose == _USERS:
                n_chain = len(chain)
                if found is None:
                    found, n_below = frame, n
            elif found is None and inner is None:
                inner = frame
        elif frame.function.endswith("__next__") and frame.file.endswith("dataloader.py"):
            in_data_wait = True
    if found is None:
        return None
    called = f"{_module(stack[0].file)}.{stack[0].function.rpartition('.')[2]}"
    return _Key(found, in_data_wait, called, inner, tuple(chain[:n_chain]), stack[:n_below])


_NOBODYS, _USERS, _PACKAGES, _STOP = 0, 1, 2, 3
_RUNS_CODE = re.compile(r"[/\\](IPython|ipykernel|nbclient)[/\\]")
_PERFKIT = str(Path(__file__).parents[2]) + os.sep


@functools.cache
def _whose(file: str, function: str) -> int:
    """The user's, an installed package's that says something (not torch's, no wrapper), or none."""
    if is_user_code(file):
        return _USERS
    if function.startswith("watch_items."):  # between a loader and its data set
        return _NOBODYS
    if _RUNS_CODE.search(file) or file.startswith(_PERFKIT):
        return _STOP
    name = function.rpartition(".")[2]
    says = "-packages" in file and not _TORCH.search(file) and not _SAYS_NOTHING.match(name)
    return _PACKAGES if says else _NOBODYS


@functools.cache
def _module_path(file: str) -> str:
    """The path of a file from its package on: ``torch/nn/functional.py``, ``threading.py``."""
    library = sysconfig.get_paths()["stdlib"] + os.sep
    return package_path(file) or file.removeprefix(library)


def _module(file: str) -> str:
    """The name of the module in this file, as far as the file tells."""
    if is_user_code(file):
        return Path(file).stem
    path = _module_path(file).removesuffix(".py").removesuffix("/__init__")
    return path.removeprefix("<frozen ").removesuffix(">").replace("/", ".")


# Python's own functions that wait for another thread, a process or a connection are few: these are
# innermost then. A wait in C has no frame, so the line of user code is innermost: its text tells.
_FUNCTIONS = re.compile(
    r"^(?:"
    r"threading\.(?:_wait_for_tstate_lock|_join_os_thread|join|wait|acquire|__enter__)"
    r"|multiprocessing\.popen_\w+\.(?:poll|wait)"
    r"|multiprocessing\.connection\.(?:_recv|_recv_bytes|_poll|wait|_exhaustive_wait|accept)"
    r"|multiprocessing\.synchronize\.(?:__enter__|wait)"
    r"|subprocess\.(?:_try_wait|_wait|wait|communicate|_communicate)"
    r"|selectors\.(?:select|_select)"
    r"|socket\.(?:readinto|accept|create_connection)"
    r"|ssl\.(?:read|recv|recv_into|do_handshake)"
    r")$"
)
# A call that can only wait: ", ".join(parts) and settings.get("a") have an argument.
_NO_ITEM = r"\((?:\s*|\s*(?:timeout|block)\s*=[^()]*|\s*[\d.]+\s*)\)"
_SLEEPS = re.compile(r"\bsleep\(")
_CALLS = re.compile(
    rf"\.(?:join|get|result){_NO_ITEM}"
    r"|\.(?:wait|communicate|acquire|recv|recv_into|recvfrom|recv_bytes|accept)\("
    r"|\bselect\.select\(|\bos\.wait(?:pid|id|3|4)?\(|\bwait\("
    r"|\bsubprocess\.(?:run|call|check_call|check_output)\(|\bos\.system\("
    r"|\b(?:mp|multiprocessing)\.spawn\("
)


def is_wait(line: Line) -> bool:
    """Whether the samples of this line were taken while the thread waited for others."""
    if _FUNCTIONS.match(line.library_function):
        return True
    return line.is_innermost and is_wait_by_text(line.source)


def is_sleep(line: Line) -> bool:
    """Whether they were taken in a sleep: ``subprocess.run("sleep 1")`` waits for that program."""
    return line.is_innermost and is_sleep_by_text(line.source)


def is_wait_by_text(text: str) -> bool:
    """Whether a line waits for others if it takes long, from its text alone."""
    return _CALLS.search(text) is not None


def is_sleep_by_text(text: str) -> bool:
    return _SLEEPS.search(text) is not None
