"""Cells of notebooks as tests (nbval): where their kernels come from, and who shares one."""

from __future__ import annotations

import os
import queue
from pathlib import Path
from typing import Any

import pytest
from forked_kernels import Prepared
from jupyter_client.provisioning import local_provisioner
from nbval.plugin import IPyNbFile


def with_prepared_kernel(
    found: list[Any], path: Path, parent: Any, *, is_solution: bool
) -> list[Any]:
    """What was collected of a notebook, with a forked kernel if nbval collected it."""
    if any(type(one) is IPyNbFile for one in found):
        return [(Solution if is_solution else Lesson).from_parent(parent, path=path)]
    return found


class Lesson(IPyNbFile):  # type: ignore[misc] # nbval has no types
    """A notebook; where there are pid descriptors, its kernel is forked (:mod:`forked_kernels`)."""

    prepared = Prepared()

    def setup(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if hasattr(os, "pidfd_open"):
                patch.setattr(local_provisioner, "launch_kernel", Lesson.prepared.kernel)
            super().setup()


class Solution(Lesson):
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


def end() -> None:
    """End all kernels and what they were forked from."""
    Solution.end()
    Lesson.prepared.end()
