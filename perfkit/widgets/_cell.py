"""Which notebook cell is being executed, and which execution it is."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Execution(NamedTuple):
    """One execution of one cell.

    Attributes:
        cell: the same for every execution of a cell.
        number: different for each execution.
    """

    cell: str
    number: str


def execution(caller_file: str) -> Execution | None:
    """The current execution; None outside a kernel.

    JupyterLab, Notebook and VS Code give the cell an id. Otherwise its text identifies it, from
    which ipykernel makes a file name.

    Args:
        caller_file: the file name of the calling code.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    parent: Any = getattr(shell, "get_parent", dict)()
    message = parent.get("header", {}).get("msg_id") if isinstance(parent, dict) else None
    if not message:
        return None
    cell = parent.get("metadata", {}).get("cellId") or caller_file
    return Execution(str(cell), str(message))
