"""Which of the user's lines waited for the GPU, from a trace of the run that is watched.

torch's debug mode knows only waits of torch's own, and tells those of the backward pass where it
was started. The profiler records every runtime call with its duration. So each operator runs
under a label that stands for a line, in the backward pass for the line of the forward pass that
it belongs to, and a runtime call that waited inside a label is a wait of that line.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Self

from perfkit.base import torch_compat
from perfkit.base.backward_passes import BackwardPasses
from perfkit.base.device import profiler_names
from perfkit.base.errors import ProfilerBusyError, TraceError
from perfkit.base.instrument import Instrument
from perfkit.synclint.sites import Site
from perfkit.trace.ask.waits import Wait, waits_under
from perfkit.trace.read.columns import Category
from perfkit.trace.read.load import load
from perfkit.trace.record.profiler import raw_trace, start_alone, stop_quietly

_LABEL = "perfkit line "
_BEGIN = f"{_LABEL}begin"
_END = f"{_LABEL}end"
# An operator under its label takes some KB in torch, and one training step has thousands.
_MOST_OPERATORS = 200_000


class TracedWait(NamedTuple):
    """A wait, and the line that it belongs to.

    Attributes:
        site: the user's line; None where the host waited outside of torch's operators.
        called_at: in the backward pass, the line that started it; else None.
        after: where ``site`` is None: the line of the last operator before.
        wait: what the trace says of it.
    """

    site: Site | None
    called_at: Site | None
    after: Site | None
    wait: Wait


class Tracer:
    """Context manager around the watched run; afterwards :meth:`waits` says which lines waited.

    It does without where torch cannot profile: then ``complete`` is false and ``warnings`` says
    why.

    Attributes:
        complete: whether all of the run was traced, with the calls of the CUDA runtime.
        warnings: what is missing, in words.
        pause: a context in which the watch does not look; the watch sets it.
    """

    def __init__(self) -> None:
        self.complete = False
        self.warnings: list[str] = []
        self.pause: Callable[[], AbstractContextManager[None]] = nullcontext
        self._profile: Any = None
        self._running = self._profiler_is_on = False
        self._thread_id = 0
        self._unwatch: Callable[[], None] | None = None
        self._passes: BackwardPasses | None = None
        self._numbers: dict[tuple[Site | None, Site | None], int] = {}
        self._count = itertools.count()
        self._n_operators = 0
        # a refusal to profile beside another profiler is meant for the user
        self.instrument = Instrument(
            "the tracer of waits", switch_off=self._switch_off, let_pass=(ProfilerBusyError,)
        )

    def __enter__(self) -> Self:
        with self.instrument.guard("starting"):
            self._start()
        return self

    def _start(self) -> None:
        import torch

        kinds = torch.profiler.ProfilerActivity
        wanted = {kinds.CPU, *(getattr(kinds, names.activity) for names in profiler_names())}
        supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        profile = torch.profiler.profile(activities=wanted & supported)
        try:
            start_alone(profile)
        except ProfilerBusyError as error:
            self.warnings.append(
                f"not traced, these waits are those that torch itself reported: {error}"
            )
            return
        self._profile = profile
        self._running = self._profiler_is_on = True
        self._thread_id = threading.get_ident()
        self._passes = BackwardPasses(self.instrument)
        guarded = self.instrument.hook(self._other_profiler_starts)
        self._unwatch = torch_compat.watch_profiler_starts(guarded)
        self.complete = True
        self.forget()

    def __exit__(self, *error: object) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
        passes, self._passes = self._passes, None
        if passes is not None:
            passes.close()
        with self.instrument.guard("ending"):
            self._stop()
        self._stop_profiler()

    def _switch_off(self) -> None:
        assert self.instrument.failure is not None
        self.complete = False
        self.warnings.append(self.instrument.failure.sentence())
        self._stop()

    @contextmanager
    def around(self, site: Site | None, called_at: Site | None = None) -> Iterator[None]:
        """Run one operator of this line."""
        if not self._running:
            yield
            return
        self._n_operators += 1
        if self._n_operators > _MOST_OPERATORS and threading.get_ident() == self._thread_id:
            self._cut(f"only the first {_MOST_OPERATORS:,} operators were traced")
            yield
            return
        number = self._numbers.get((site, called_at))
        if number is None:  # two backward threads may ask at once: none gets the other's number
            number = self._numbers.setdefault((site, called_at), next(self._count))
        with torch_compat.profiler_label(f"{_LABEL}{number}"):
            yield

    def forget(self) -> None:
        """Do not count what has happened so far."""
        if self._running:
            with torch_compat.profiler_label(_BEGIN):
                pass

    def waits(self) -> tuple[TracedWait, ...]:
        """The waits in the order in which they happened; empty where nothing was traced.

        Call it after the block; ``complete`` and ``warnings`` may change.
        """
        profile, self._profile = self._profile, None
        if profile is None:
            return ()
        try:
            trace = load(raw_trace(profile))
        except (TraceError, OSError) as error:
            self._missing(f"the trace of this run cannot be read ({error})")
            return ()
        if not trace.is_a(Category.RUNTIME).any():
            self._missing(
                "the profiler recorded no calls of the CUDA runtime (CUPTI is missing, or this "
                "user may not use it)"
            )
            return ()
        begin = trace.start_ns[trace.named(lambda name: name == _BEGIN)]
        end = trace.start_ns[trace.named(lambda name: name == _END)]
        # what comes before is forgotten, and what comes after is the profiler's own
        first, last = begin.max(initial=0), end.min(initial=trace.end_ns.max())
        lines = {f"{_LABEL}{number}": line for line, number in self._numbers.items()}
        nowhere = None, None
        return tuple(
            TracedWait(*lines.get(wait.label, nowhere), lines.get(wait.before, nowhere)[0], wait)
            for wait in waits_under(trace, lambda name: name.startswith(_LABEL))
            if first <= wait.start_ns < last
        )

    # --- the profiler -----------------------------------------------------------------------

    def _other_profiler_starts(self) -> None:
        """The run starts a profiler of its own: end ours first, two at once crash."""
        if not self._running:
            return
        if threading.get_ident() != self._thread_id:
            raise ProfilerBusyError(
                "perfkit is tracing this code from another thread, and torch runs one profiler at "
                "a time: start this profiler in the thread that perfkit watches, or without perfkit"
            )
        self._cut("this code started a torch profiler of its own: the rest was not traced")

    def _cut(self, why: str) -> None:
        self._missing(why)
        with self.pause():
            self._stop()

    def _missing(self, why: str) -> None:
        self.complete = False
        self.warnings.append(f"{why}: other waits are those that torch itself reported")

    def _stop(self) -> None:
        if not self._running:
            return
        self._running = False
        try:
            with torch_compat.profiler_label(_END):
                pass
        finally:  # whatever fails: a profiler left running would refuse the next one
            if self._passes is None:
                self._stop_profiler()
            else:
                self._passes.after(self._stop_profiler)

    def _stop_profiler(self) -> None:
        if self._profiler_is_on:
            with self.instrument.guard("ending"):
                stop_quietly(self._profile)
                self._profiler_is_on = False
