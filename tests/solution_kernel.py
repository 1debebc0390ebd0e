"""The kernel that the solutions' notebooks share in a worker. Imports nbval."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from nbval.plugin import IPyNbFile

__all__ = ["Solution", "shared_kernel"]


def shared_kernel(found: list[Any], path: Path, parent: Any) -> list[Any]:
    """What was collected of a solution, as a :class:`Solution` if nbval collected it."""
    if any(type(one) is IPyNbFile for one in found):
        return [Solution.from_parent(parent, path=path)]
    return found


class Solution(IPyNbFile):  # type: ignore[misc] # nbval has no types
    """A solution is a few cells: to start a kernel and load torch takes longer than most of them.

    So they share one in each worker. It forgets all names in between, as a fresh one has none.
    """

    shared: Any = None

    def setup(self) -> None:
        kernel = Solution.shared
        if kernel is None or not kernel.is_alive():
            super().setup()
            Solution.shared = self.kernel
            return
        self.kernel = kernel
        try:
            message = kernel.execute_cell_input("%reset -f", allow_stdin=False)
            kernel.await_reply(message, timeout=30)
            kernel.await_idle(message, timeout=30)
        except queue.Empty:
            self.end()
            super().setup()
            Solution.shared = self.kernel
        else:
            self.setup_sanitize_files()

    def teardown(self) -> None:
        if self.timed_out:
            self.end()

    @classmethod
    def end(cls) -> None:
        """End the kernel, if there is one."""
        kernel, cls.shared = cls.shared, None
        if kernel is not None and kernel.is_alive():
            kernel.stop()
