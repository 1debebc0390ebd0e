"""What must not be done within a backward pass, and waits for its end.

As a pass ends, torch gives its thread back what that had at the beginning, the profiler's callbacks
among it (``ThreadLocalStateGuard`` in ``torch/csrc/autograd/engine.cpp``). So a profiler that was
stopped in between counts as running for ever, and torch refuses every later one; one that only
paused counts each operator twice from then on; and one that began is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from perfkit.base import torch_compat
from perfkit.base.instrument import Instrument


class BackwardPasses:
    """The backward passes that the thread which makes this runs from now on, until ``close``.

    Attributes:
        depth: how many of them run; where the end of one was not seen, too many.

    Args:
        instrument: what fails here is its failure. What waits is called after it, too.
        on_end: called when a pass that is within no other one has ended, until it returns False.
    """

    def __init__(self, instrument: Instrument, on_end: Callable[[], bool] | None = None) -> None:
        self._thread_id = threading.get_ident()
        self._task = torch_compat.graph_task_id_reader()
        self.depth = 0
        self._waiting: list[Callable[[], object]] = []
        self._call_waiting = instrument.hook(self._ended_outermost, even_off=True)
        self._on_end = on_end
        self._tell = instrument.hook(self._tell_of_the_end)
        self._unwatch = torch_compat.watch_backward(self._begins)

    @property
    def inside(self) -> bool:
        """Whether the thread is within a pass that began since."""
        if not self.depth:
            return False
        # the depth may be too large: this thread is asked, if it is that
        return threading.get_ident() != self._thread_id or self._task() >= 0

    def after(self, function: Callable[[], object]) -> None:
        """Call it as soon as the thread is in no pass: perhaps at once."""
        if self.inside:
            self._waiting.append(function)
        else:
            function()

    def close(self) -> None:
        """See no more passes; within one, after its end, when all that still waits is called."""
        self.after(self._unwatch)

    def _begins(self, roots: object) -> Callable[[object], None] | None:
        if threading.get_ident() != self._thread_id:
            return None
        self.depth += 1
        return self._ended

    def _ended(self, result: object) -> None:
        self.depth -= 1
        if self._waiting:
            self._call_waiting()
        if self._on_end is not None:
            self._tell()

    def _tell_of_the_end(self) -> None:
        if self._on_end is not None and not self.inside and not self._on_end():
            self._on_end = None

    def _ended_outermost(self) -> None:
        if not self.inside:
            waiting, self._waiting = self._waiting, []
            for function in waiting:
                function()
