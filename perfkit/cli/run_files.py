"""What ``perfkit run`` writes: its report on standard error, and the files that were asked for."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.files import why_not_writable, write_atomically
from perfkit.cli.output import json_of

if TYPE_CHECKING:
    from perfkit.script.ranks.joint import RankedRun
    from perfkit.script.whole_run import WholeRun


def save(flag: str, path: Path, result: WholeRun | RankedRun, *, scrub: bool) -> bool:
    """Write the file that ``--flag`` asks for; what prevents it is told on standard error.

    Returns:
        Whether it is there.
    """
    from perfkit.script.whole_run import WholeRun

    try:
        if flag == "html":
            from perfkit.show.files import write_page

            write_page(result, path, scrub=scrub)
        elif flag == "json":
            text = json_of(result, scrub=scrub) + "\n"
            write_atomically(path, lambda part: part.write_text(text, "utf-8"))
        elif not isinstance(result, WholeRun) or result.profile is None:
            raise UsageError(f"no trace in {path}: no step was recorded")
        else:
            result.profile.save(path, scrub=scrub)
    except PerfkitError as error:
        write(f"perfkit: {error}\n")
        return False
    return True


def text_of(result: WholeRun | RankedRun, *, verbose: bool) -> str:
    """The report for standard error."""
    from perfkit import show
    from perfkit.show._ink import printed_on

    with printed_on(sys.stderr, more="perfkit run -v"):
        return f"\n{show.text(result) if verbose else show.brief(result)}\n"


def write(text: str) -> None:
    """To standard error, whatever its state: also within a handler of a signal."""
    with contextlib.suppress(OSError):
        data = text.encode(getattr(sys.stderr, "encoding", None) or "utf-8", "backslashreplace")
        with contextlib.suppress(AttributeError, OSError, ValueError, RuntimeError):
            sys.stderr.flush()
        while data:
            data = data[os.write(2, data) :]


def file_of(flag: str, path: Path, rank: int | None) -> Path:
    """The absolute path (a program may change the directory), with the rank before its ending.

    Raises:
        UsageError: it could not be written.
    """
    if flag == "trace" and not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--trace {path}: the file's name must end in .json or .json.gz")
    if rank is not None:
        stem, dot, endings = path.name.partition(".")
        path = path.with_name(f"{stem}.rank{rank}{dot}{endings}")
    if why := why_not_writable(path):
        raise UsageError(f"--{flag} {path}: {why}")
    try:
        return path.absolute()
    except OSError as error:  # the current folder is gone
        raise UsageError(f"--{flag} {path}: no current folder: {error.strerror}") from None
