"""``perfkit.open_trace``: a recorded trace, and every question that perfkit can ask it."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from perfkit.advice.profile import Profile, explain
from perfkit.base.arguments import shown
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.trace.ask import Question, questions
from perfkit.trace.ask.diff import Diff, diff
from perfkit.trace.ask.ranks import Ranks, ranks
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.load import UNPACK_AT_MOST, load
from perfkit.trace.read.steps import Steps, find_steps

if TYPE_CHECKING:
    from perfkit.trace.ask.breakdown import Breakdown
    from perfkit.trace.ask.communication import Communication
    from perfkit.trace.ask.compiled import Compiled
    from perfkit.trace.ask.copies import Copies
    from perfkit.trace.ask.critical_path import CriticalPath
    from perfkit.trace.ask.flops import Flops
    from perfkit.trace.ask.idle import Idle
    from perfkit.trace.ask.kernels import Kernels
    from perfkit.trace.ask.limit import Limit
    from perfkit.trace.ask.memory_curve import MemoryCurve
    from perfkit.trace.ask.modules import Modules, SourceLines
    from perfkit.trace.ask.operators import Operators
    from perfkit.trace.ask.queue import LaunchQueue
    from perfkit.trace.ask.sequences import Sequences
    from perfkit.trace.ask.syncs import Syncs
    from perfkit.trace.ask.waterfall import Waterfall


@dataclass(frozen=True)
class Questions(Shown):
    """What can be asked of a trace: ``names`` for ``ask`` and ``--ask``, in words, with options."""

    names: tuple[str, ...]
    asks: tuple[str, ...]
    options: tuple[str, ...]

    @classmethod
    def all(cls) -> Questions:
        """Those that are registered, and ``ranks``, which takes several files."""
        rows = [
            (q.name, q.asks, ", ".join(str(p.replace(annotation=p.empty)) for p in q.options))
            for q in questions().values()
        ]
        rows.append(("ranks", "Which rank is slow, and who waits for whom? (several files)", ""))
        rows.sort()
        names, asks, options = zip(*rows, strict=True)
        return cls(names, asks, options)


def unknown_question(name: object) -> UsageError:
    """The error for a name that is no question."""
    known = ", ".join(questions())
    return UsageError(f"a trace has no answer {shown(name)}; ask one of: {known}")


class OpenTrace(Shown):
    """A trace and its answers; each is computed when first asked for, and kept.

    Printed, displayed or saved, it is the report of ``perfkit trace``. Every question is a method:
    ``t.critical_path()``, ``t.copies()``; ``t.questions`` lists them all, ``help(t.copies)``
    explains one.

    Attributes:
        file: the trace's file; empty if it was given as bytes or as a :class:`Trace`.
    """

    def __init__(self, trace: Trace, file: str = "") -> None:
        self.file = file
        self.trace: Trace = trace
        self.steps: Steps = find_steps(trace)
        self._answers: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def profile(self) -> Profile:
        """What bounds the steps, with findings: as ``perfkit.profile`` gives it."""
        return explain(self.trace)

    @property
    def questions(self) -> Questions:
        """What can be asked, as a table."""
        return Questions.all()

    def ask(self, name: str, **options: Any) -> Any:
        """The answer to a question.

        Args:
            name: one of ``questions.names``, e.g. ``"critical-path"``.
            options: those of the question, e.g. ``step=3``.

        Raises:
            UsageError: there is no such question, or it has no such option.
        """
        found = questions().get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown_question(name)
        return self._answer(found, **options)

    def ranks(self, *others: str | os.PathLike[str]) -> Ranks:
        """Compare with the traces of the other ranks of the run: who waits for whom.

        Raises:
            UsageError: no other file is given, or this trace has none itself.
            TraceError: a file cannot be read or is not a trace.
        """
        if not others or not self.file:
            raise UsageError("ranks compares files: open a file, and give those of the other ranks")
        return ranks([self.file, *others])

    def diff(self, before: str | os.PathLike[str] | Trace | OpenTrace) -> Diff:
        """What changed since another trace.

        Raises:
            TraceError: the file cannot be read or is not a trace.
        """
        other = before if isinstance(before, OpenTrace) else open_trace(before)
        return diff(other.trace, self.trace, other.steps, self.steps)

    def _answer(self, asked: Question, **options: Any) -> Any:
        known = [p.name for p in asked.options]
        wrong = [name for name in options if name not in known]
        if wrong:
            has = f"its options are: {', '.join(known)}" if known else "it has no options"
            raise UsageError(f"{asked.name} has no option {wrong[0]!r}; {has}")
        key = (asked.name, *sorted(options.items()))
        if key not in self._answers:
            self._answers[key] = asked.answer(self.trace, self.steps, **options)
        return self._answers[key]

    if TYPE_CHECKING:  # for editors and type checkers, to which the questions are unknown

        def breakdown(self) -> Breakdown: ...
        def communication(self) -> Communication: ...
        def compiled(self) -> Compiled: ...
        def copies(self) -> Copies: ...
        def critical_path(self, *, step: int | None = None) -> CriticalPath: ...
        def flops(self) -> Flops: ...
        def idle(self) -> Idle: ...
        def kernels(self) -> Kernels: ...
        def limit(self, *, device: str | None = None) -> Limit: ...
        def lines(self) -> SourceLines: ...
        def memory_curve(self) -> MemoryCurve: ...
        def modules(self) -> Modules: ...
        def operators(self) -> Operators: ...
        def queue(self) -> LaunchQueue: ...
        def sequences(self, *, top: int = 20) -> Sequences: ...
        def syncs(self) -> Syncs: ...
        def waterfall(self, *, device: str | None = None) -> Waterfall: ...

    else:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            found = None if name.startswith("_") else questions().get(name.replace("_", "-"))
            if found is None:
                raise AttributeError(
                    f"an open trace has no attribute {name!r}; `questions` lists what it answers"
                )
            asked = found

            @functools.wraps(asked.answer)
            def answer(**options: Any) -> Any:
                return self._answer(asked, **options)

            del answer.__wrapped__
            answer.__name__ = answer.__qualname__ = asked.attribute
            answer.__doc__ = asked.help
            answer.__signature__ = inspect.Signature(asked.options)  # type: ignore[attr-defined]
            return answer

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(q.attribute for q in questions().values())})

    def __repr__(self) -> str:
        return f"<OpenTrace of {self.file or 'a trace'}: {self.trace!r}>"

    def to_dict(self) -> dict[str, Any]:
        """As :meth:`Profile.to_dict`."""
        return self.profile.to_dict()


def open_trace(
    source: str | os.PathLike[str] | bytes | Trace | OpenTrace,
    *,
    unpack_at_most: int | None = UNPACK_AT_MOST,
) -> OpenTrace:
    """Open a trace of ``torch.profiler``, from any year, of CUDA, ROCm or a CPU.

    What it returns has every answer as a method, and prints as a report. (Why not
    ``perfkit.trace``: that is the package of the functions behind the answers.)

    Args:
        source: a file (``.json``, ``.json.gz``, ``.zst``), its content as bytes, or a trace that
            is loaded already, e.g. ``perfkit.profile(step).trace``.
        unpack_at_most: refuse a compressed trace that expands to more bytes than this; None for
            no limit.

    Returns:
        An :class:`OpenTrace`: ``questions`` lists what it answers, ``profile`` has the findings;
        ``diff`` and ``ranks`` compare it with other files.

    Raises:
        TraceError: the file cannot be read or is not a trace.
        UsageError: ``source`` is something else.

    Example::

        >>> with perfkit.profile() as prof:
        ...     for _ in range(4):
        ...         torch.rand(256, 256) @ torch.rand(256, 256)
        >>> trace = perfkit.open_trace(prof.result.trace)
        >>> print(trace.critical_path())
        >>> print(trace.questions)
    """
    if isinstance(source, OpenTrace):
        return source
    if isinstance(source, Trace):
        return OpenTrace(source)
    if not isinstance(source, str | bytes | os.PathLike):
        raise UsageError(
            f"source is {shown(source)}; give a trace file's path, its bytes, or a loaded trace"
        )
    file = "" if isinstance(source, bytes) else os.fspath(source)
    return OpenTrace(load(source, unpack_at_most=unpack_at_most), file)
