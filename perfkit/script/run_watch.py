"""Watch a program from its start to its end: what ``perfkit run`` puts around a script.

Before the program imports torch, nothing but the standard library is loaded and nothing is hooked:
what a program sets for torch or numpy before it imports them (threads, visible devices) still
works. Once torch is there, the :class:`~perfkit.trace.record.record.Recorder` finds the steps; it
starts the profiler only after the warm-up, when the program has set up its devices itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfkit.base.instrument import Instrument
from perfkit.base.when_imported import when_imported
from perfkit.script.options import Options
from perfkit.script.ranks.heartbeat import Snapshot

if TYPE_CHECKING:
    from perfkit.measure.tracker import Update
    from perfkit.script._torch_watch import TorchWatch
    from perfkit.script.whole_run import WholeRun


class RunWatch:
    """Watches this process from :meth:`start` to :meth:`stop`; then :meth:`result` explains it.

    Args:
        on_update: called a few times a second with what happened, between two steps of the
            program, in its thread; if it raises, it is called no more.

    Nothing of it raises into the program: what fails switches itself off, and the result says so.
    """

    def __init__(
        self,
        name: str,
        options: Options | None = None,
        on_update: Callable[[Update], None] | None = None,
    ) -> None:
        self.name = name
        self.options = options or Options()
        self._on_update = on_update
        self._instrument = Instrument("perfkit run")
        #: what has been seen since torch was imported; None if it was not
        self.seen: TorchWatch | None = None
        self._wait_no_more: Callable[[], None] = lambda: None
        self._pid = 0
        self._thread_id = 0
        self._began_s = self._torch_s = self._ended_s = 0.0
        self._torch_elsewhere = False

    @property
    def is_here(self) -> bool:
        """Whether this is the process that is watched, and not one that it forked."""
        return os.getpid() == self._pid

    @property
    def left_torch_half_loaded(self) -> bool:
        """The program ended, or ends now, within its ``import torch``: what uses it then fails."""
        if self.seen is not None:
            return False
        torch = sys.modules.get("torch")
        if torch is None:
            return "torch._C" in sys.modules
        return bool(getattr(torch.__spec__, "_initializing", False))

    def snapshot(self) -> Snapshot:
        """What the program is doing right now; may be called in any thread."""
        seen = self.seen
        if seen is None:
            return Snapshot(0, time.perf_counter() - self._began_s, None)
        meter = seen.meter
        return Snapshot(
            n_steps=meter.n,
            in_step_s=time.perf_counter() - (seen.recorder.log.last_s or self._began_s),
            step_ms=meter.usual_ns() / 1e6 or None,
        )

    def start(self) -> None:
        """Begin to watch, in the thread that will run the program; once."""
        self._pid = os.getpid()
        self._thread_id = threading.get_ident()
        _watches.add(self)
        self._began_s = time.perf_counter()
        with self._instrument.guard("starting"):
            self._wait_no_more = when_imported("torch", self._instrument.hook(self._torch_is_there))

    def _torch_is_there(self) -> None:
        if not self.is_here:
            return
        if threading.get_ident() != self._thread_id:
            self._torch_elsewhere = True
            return
        # loads numpy and more, so only now
        from perfkit.script._torch_watch import TorchWatch

        self._torch_s = time.perf_counter()
        self.seen = TorchWatch(self.options, self._on_update)
        self.seen.start()

    def stop(self, error: BaseException | None = None, *, hangs: bool = False) -> None:
        """End: leave no hook, thread or profiler. Does not raise.

        Where the program ``hangs``, this is another thread, and the process ends next: a profiler
        that runs is left as it is.
        """
        if self._ended_s or not self.is_here:
            return
        self._ended_s = time.perf_counter()
        with self._instrument.guard("ending"):
            self._wait_no_more()
            if self.seen is not None:
                self.seen.stop(error, hangs=hangs)

    def result(self, ended: str, *, rank: int | None = None) -> WholeRun:
        """Explain the run, after it ended as these words say: ``"raised ValueError"``."""
        from perfkit.script.whole_run import Times, whole_run

        return whole_run(
            self.name,
            ended,
            Times(self._began_s, self._torch_s or None, self._ended_s, self._torch_elsewhere),
            self.options,
            self.seen,
            rank=rank,
            failure=self._instrument.failure,
        )


_watches: weakref.WeakSet[RunWatch] = weakref.WeakSet()


def n_steps_seen() -> int:
    """Steps so far of the program that this process watches."""
    seen = [watch.seen for watch in list(_watches)]
    return max((one.recorder.n_steps_seen for one in seen if one is not None), default=0)


def _after_fork() -> None:
    for watch in list(_watches):
        with watch._instrument.guard("forgetting in a forked process"):
            watch._wait_no_more()
            if watch.seen is not None:
                watch.seen.forget()
                watch.seen = None
    _watches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
