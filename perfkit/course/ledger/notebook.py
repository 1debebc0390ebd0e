"""A lesson's notebook as an experiment: which cells count, their hash, and running them headless.

Recorded are the code cells up to the last one that settles a claim, except those with the tag
``not-recorded``: the reader's guess and exercise, Labs, and what else no claim depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.base.extras import needs
from perfkit.course.ledger.notebook_signals import signals_as_before
from perfkit.show import RESULT_MIME

#: The tag of a code cell that ``perfkit record`` does not run.
NOT_RECORDED = "not-recorded"
_SETTLES = re.compile(r"""\bclaim\(\s*["']([A-Z][0-9]{1,2})["'][^)]*\)\s*\.settle\(""")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class CellRun:
    """One executed cell.

    Attributes:
        index: its position in the notebook.
        seconds: how long it took.
        results: the JSON of each result of perfkit that it displayed.
        error: name and message of what it raised; empty if nothing.
        error_name: the exception's class.
        traceback: of the error.
    """

    index: int
    seconds: float
    results: tuple[Mapping[str, Any], ...]
    error: str = ""
    error_name: str = ""
    traceback: str = ""


def read_notebook(path: Path) -> dict[str, Any]:
    """A notebook as plain JSON types.

    Raises:
        UsageError: it cannot be read, or is not a notebook.
    """
    try:
        found = json.loads(path.read_bytes())
        cells = [(cell["cell_type"], _source(cell), _tags(cell)) for cell in found["cells"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UsageError(f"{path} cannot be read as a notebook: {reason}") from None
    if not all(isinstance(source, str) for _, source, _ in cells):
        raise UsageError(f"{path} cannot be read as a notebook: a cell has no source")
    return dict(found)


def settling_cells(notebook: Mapping[str, Any]) -> dict[str, int]:
    """Claim → index of the last cell that settles it."""
    found: dict[str, int] = {}
    for index, cell in enumerate(notebook["cells"]):
        if _counts(cell):
            found |= dict.fromkeys(_SETTLES.findall(_source(cell)), index)
    return found


def code_hash(notebook: Mapping[str, Any]) -> str:
    """``"sha256:…"`` of the code that is recorded; outputs, text and other cells do not matter."""
    last = max(settling_cells(notebook).values(), default=-1)
    cells = notebook["cells"][: last + 1]
    code = ["\n".join(map(str.rstrip, _source(c).splitlines())) for c in cells if _counts(c)]
    return "sha256:" + hashlib.sha256(json.dumps(code).encode()).hexdigest()


def check_client() -> None:
    """Raise now what :func:`execute` would raise for each lesson.

    Raises:
        MissingError: nbclient or nbformat is not installed.
    """
    with needs("running a lesson"):
        import nbclient  # noqa: F401
        import nbformat  # noqa: F401


def execute(
    notebook: Mapping[str, Any],
    last: int,
    *,
    folder: Path,
    environment: Mapping[str, str],
    cell_limit_s: float,
    after: Callable[[CellRun], None],
) -> str:
    """Run the recorded cells up to this one, in a kernel of their own; the notebook stays as it is.

    A cell that raises or takes too long does not end the run: what the others settle counts.

    Args:
        notebook: from :func:`read_notebook`.
        last: index of the last cell to run.
        folder: the kernel's working directory.
        environment: the kernel's whole environment.
        cell_limit_s: a cell that takes longer is interrupted.
        after: takes each cell that has run.

    Returns:
        How it ended early: no kernel started, or it died. Empty if it did not.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    import nbclient
    import nbclient.exceptions
    import nbformat

    kept = nbformat.reads(json.dumps({**notebook, "cells": notebook["cells"][: last + 1]}), 4)
    began_s = time.monotonic()
    running = -1

    def starts(cell: Any, cell_index: int) -> None:
        nonlocal began_s, running
        began_s, running = time.monotonic(), cell_index

    def ran(cell: Any, cell_index: int, execute_reply: Mapping[str, Any]) -> None:
        after(_ran(cell, cell_index, execute_reply["content"], time.monotonic() - began_s))

    client = nbclient.NotebookClient(
        kept,
        timeout=cell_limit_s,
        kernel_name="python3",
        allow_errors=True,
        interrupt_on_timeout=True,
        error_on_timeout={
            "ename": "TimeoutError",
            "evalue": f"no end after {cell_limit_s:g} s",
            "traceback": [],
        },
        skip_cells_with_tag=NOT_RECORDED,
        store_widget_state=False,
        on_cell_execute=starts,
        on_cell_executed=ran,
        extra_arguments=["--log-level=CRITICAL"],
    )
    try:
        with signals_as_before(client):
            client.execute(env=dict(environment), cwd=str(folder))
    except nbclient.exceptions.DeadKernelError:
        return f"cell {running + 1}: its process was killed; the machine may be out of memory"
    except (RuntimeError, KeyError) as error:
        return f"no Python kernel could be started ({error})"
    finally:
        manager = client.km
        if manager is not None and manager.has_kernel:
            with contextlib.suppress(Exception):
                nbclient.util.run_sync(manager.shutdown_kernel)(now=True)
    return ""


def _ran(cell: Any, index: int, reply: Mapping[str, Any], seconds: float) -> CellRun:
    results = tuple(
        dict(output["data"][RESULT_MIME])
        for output in cell["outputs"]
        if isinstance(output.get("data", {}).get(RESULT_MIME), dict)
    )
    if reply.get("status") != "error":
        return CellRun(index, seconds, results)
    name = str(reply.get("ename", "error"))
    said = f"{name}: {reply.get('evalue', '')}".strip().removesuffix(":")
    trace = _ANSI.sub("", "\n".join(reply.get("traceback", ())))
    return CellRun(index, seconds, results, said, name, trace)


def _counts(cell: Mapping[str, Any]) -> bool:
    return cell["cell_type"] == "code" and NOT_RECORDED not in _tags(cell)


def _source(cell: Mapping[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _tags(cell: Mapping[str, Any]) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", ()))
