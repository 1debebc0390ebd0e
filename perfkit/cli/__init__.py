"""The ``perfkit`` command: thin subcommands over the library."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from perfkit._version import __version__
from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import write
from perfkit.base.uninterrupted import Uninterrupted
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
    """Run one command and return its exit code.

    0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
    """
    with _say_anything():
        try:
            arguments = _parser().parse_args(argv)
        except KeyboardInterrupt as error:
            return _interrupted(error)
        except OSError as error:  # --help or --version could not be written
            return _not_told(error)
        if not hasattr(arguments, "is_the_program"):
            return _command(arguments)
    # `perfkit run`: standard output, exceptions and exit code are the script's own
    return int(arguments.run(arguments))


def _command(arguments: argparse.Namespace) -> int:
    try:
        # a script that is run in this process has signals of its own
        with contextlib.nullcontext() if arguments.run is synclint.run else _sigterm_raises():
            code = int(arguments.run(arguments))
            if sys.stdout is not None:  # closed by the shell's >&-
                sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(error, 2)
    except PerfkitError as error:
        return _fail(error, 1)
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and not _is_of_output(error):
            raise
        return _not_told(error)
    except KeyboardInterrupt as error:
        return _interrupted(error)


class _Terminated(KeyboardInterrupt):
    """SIGTERM: what cleans up after Ctrl-C cleans up after it, too."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: no process and no half-written file is left."""

    def terminated(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupted(error: KeyboardInterrupt) -> int:
    with Uninterrupted():  # pressed again
        if isinstance(error, _Terminated):
            write("perfkit: ended by SIGTERM\n")
            return 143
        write("perfkit: interrupted\n")
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


def _not_told(error: OSError) -> int:
    """The exit code where standard output took no more; Python must not try again at exit."""
    _drop_output()
    if isinstance(error, BrokenPipeError):  # no failure: its reader is gone (`perfkit … | head`)
        return 0
    reason = error.strerror or str(error)
    return _fail(PerfkitError(f"the output could not be written: {reason}"), 1)


def _drop_output() -> None:
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: PerfkitError, code: int) -> int:
    write(f"perfkit: {error}\n")
    return code


class _Parser(argparse.ArgumentParser):
    """Its help has colour in a terminal; what was typed is echoed and controls none."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, lines=True))

    def print_help(self, file: Any = None) -> None:
        from perfkit.show._ink import help_text, printed_on

        file = sys.stdout if file is None else file
        with printed_on(file):
            self._print_message(help_text(self.format_help()), file)

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None or file is sys.stderr:
            write(message)
        else:  # argparse itself passes over what cannot be written
            file.write(message)
            file.flush()


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
