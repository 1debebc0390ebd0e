"""A real shell per test, and what it showed."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


@dataclass(frozen=True)
class Shown:
    """What one cell showed and how it ended."""

    out: str
    err: str
    bundles: tuple[dict[str, Any], ...]  # display() calls, by mime type
    result: Any  # IPython's ExecutionResult

    @property
    def error(self) -> BaseException | None:
        return self.result.error_in_exec or self.result.error_before_exec


class Notebook:
    """A shell that runs cells the way a notebook does and captures their output."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.ns = shell.user_ns

    def run(self, cell: str) -> Shown:
        with capture_output() as captured:
            result = self.shell.run_cell(cell, store_history=True)
        bundles = tuple(dict(output.data) for output in captured.outputs)
        return Shown(captured.stdout, captured.stderr, bundles, result)


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    yield Notebook(shell)
    shell.restore_sys_module_state()
    # else the shell lives to the end of the process, and with it every tensor of its cells
    atexit.unregister(shell.atexit_operations)
    shell.user_ns.clear()
    InteractiveShell.clear_instance()
