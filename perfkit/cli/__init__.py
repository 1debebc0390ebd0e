"""The ``perfkit`` command: thin subcommands over the library."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from perfkit._version import __version__
from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import write
from perfkit.cli import (
    claims,
    compare_runs,
    doctor,
    lab,
    output,
    record,
    run_command,
    synclint,
    tour,
    trace,
    tutorial,
)

__all__ = ["main"]

# in the order of the help
_COMMANDS = (
    *(doctor, lab, tour, run_command, trace, claims, compare_runs, record, tutorial),
    synclint,
)
_OWN_FILES = (__file__, *(one.__file__ for one in (output, *_COMMANDS)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C."""
    with _say_anything():
        arguments = _parser().parse_args(argv)
        if not hasattr(arguments, "is_the_program"):
            return _command(arguments)
    # `perfkit run`: standard output, exceptions and exit code are the script's own
    return int(arguments.run(arguments))


def _command(arguments: argparse.Namespace) -> int:
    try:
        code = int(arguments.run(arguments))
        if sys.stdout is not None:  # closed by the shell's >&-
            sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(error, 2)
    except PerfkitError as error:
        return _fail(error, 1)
    except BrokenPipeError:
        # The reader of our output is gone (``perfkit doctor | head``). That is not a failure, and
        # Python must not try to flush the rest at exit.
        _drop_output()
        return 0
    except OSError as error:
        if not _is_of_output(error):
            raise
        _drop_output()
        reason = error.strerror or str(error)
        return _fail(PerfkitError(f"the output could not be written: {reason}"), 1)
    except KeyboardInterrupt:
        return 130


@contextlib.contextmanager
def _say_anything() -> Iterator[None]:
    """Escape characters that the terminal's encoding lacks, instead of failing on them."""
    streams = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    try:
        for stream in streams:
            stream.reconfigure(errors="backslashreplace")
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                stream.reconfigure(errors=errors)


def _is_of_output(error: OSError) -> bool:
    """Whether one of our own lines raised it: the only file they touch is standard output."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename in _OWN_FILES


def _drop_output() -> None:
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: PerfkitError, code: int) -> int:
    write(f"perfkit: {error}\n")
    return code


class _Parser(argparse.ArgumentParser):
    """Echoes what was typed without letting it control the terminal."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable(message, lines=True), file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="perfkit",
        description="Find out why PyTorch training is slow, change it, and see that it helped.",
    )
    parser.add_argument("--version", action="version", version=f"perfkit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    for command in _COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
