"""Which notebook cell is being executed, and in which execution."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Execution(NamedTuple):
    """One execution of one cell.

    Attributes:
        cell: the same for every execution of the cell.
        number: another one for each execution.
    """

    cell: str
    number: str


def execution(caller_file: str) -> Execution | None:
    """The execution that is going on; None outside of a kernel.

    The front end names the cell (JupyterLab, Notebook and VS Code do). Where it does not, the
    cell is told by its text, which ipykernel makes a file name of.

    Args:
        caller_file: the file name of the code that asks.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    parent: Any = getattr(shell, "get_parent", dict)()
    message = parent.get("header", {}).get("msg_id") if isinstance(parent, dict) else None
    if not message:
        return None
    cell = parent.get("metadata", {}).get("cellId") or caller_file
    return Execution(str(cell), str(message))
