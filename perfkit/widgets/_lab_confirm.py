"""Confirm: an interleaved A/B of two runs of a Lab, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfkit.experiment._cancel import Cancelled, cancellable

if TYPE_CHECKING:
    from perfkit.experiment.ab import ABResult
    from perfkit.experiment.portable import Packed
    from perfkit.experiment.result import RunResult
    from perfkit.experiment.settings import Setting

# A block starts two fresh processes and takes 2 to 4 s with a small workload: this many give an
# interval of some percent.
BUDGET_S = 30.0


class Confirmation:
    """One A/B, from its start to its answer.

    Args:
        packed: the workload, as the runs ran it.
        base, other: the pinned run and the one that is compared with it.
        say: takes a line of progress, from this thread.
        ended: is called at the end, from this thread; see :attr:`answer` and :attr:`error`.
    """

    def __init__(
        self,
        packed: Packed,
        settings: Sequence[Setting],
        base: RunResult,
        other: RunResult,
        *,
        budget_s: float,
        say: Callable[[str], None],
        ended: Callable[[Confirmation], None],
    ) -> None:
        self.base, self.other = base.run_id, other.run_id
        self.answer: ABResult | None = None
        self.error: BaseException | None = None
        self.stopped = threading.Event()
        self._arms = (dict(base.values), dict(other.values))
        self._packed, self._settings, self._budget_s = packed, settings, budget_s
        self._say, self._ended = say, ended
        self._thread = threading.Thread(target=self._work, name="perfkit-lab-confirm", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End it within about a second, without an answer; waits for that."""
        self.stopped.set()
        self.wait()

    def wait(self) -> None:
        """Until it has ended and has told so."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        from perfkit.experiment.ab import ab

        try:
            with cancellable(self.stopped):
                self.answer = ab(
                    self._packed,
                    *self._arms,
                    settings=self._settings,
                    budget_s=self._budget_s,
                    names=(f"run {self.base}", f"run {self.other}"),
                    say=self._progress,
                )
        except Cancelled:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._ended(self)

    def _progress(self, line: str) -> None:
        self._say(line.partition(": ")[2] or line)
