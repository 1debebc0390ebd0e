"""A device that works asynchronously, simulated by a thread that sleeps for each job.

It computes nothing, but it behaves like a GPU in the one respect that matters to a stopwatch:
``launch()`` returns at once, and only ``synchronize()`` shows that the work is done.
"""

from __future__ import annotations

import threading
import time

from perfkit.base.errors import UsageError


class SimulatedDevice:
    """Jobs that take ``work_ms`` each, one after the other, in the background.

    Args:
        work_ms: minimum milliseconds per job.

    Raises:
        UsageError: ``work_ms`` is not positive.
    """

    name = "simulated device"

    def __init__(self, work_ms: float = 10.0) -> None:
        if not work_ms > 0:
            raise UsageError(f"a job must take some time, not {work_ms!r} ms")
        self.work_ms = work_ms
        self._jobs = 0
        self._changed = threading.Condition()

    def launch(self) -> None:
        with self._changed:
            self._jobs += 1
            if self._jobs == 1:  # no thread is running: it ends when no job is left
                threading.Thread(
                    target=self._work, name="perfkit-simulated-device", daemon=True
                ).start()

    def pending(self) -> bool:
        return self._jobs > 0

    def synchronize(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs == 0)

    def _work(self) -> None:
        left = 1
        while left:
            time.sleep(self.work_ms / 1e3)
            with self._changed:
                self._jobs -= 1
                left = self._jobs
                self._changed.notify_all()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.work_ms:g} ms a job>"
