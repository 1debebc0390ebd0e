"""The ``perfkit`` command: thin subcommands over the library."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfkit._version import __version__
from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.printable import printable
from perfkit.cli import claims, compare_runs, doctor, record, run_command, trace, tutorial

__all__ = ["main"]

# in the order of the help
_COMMANDS = (run_command, trace, claims, compare_runs, record, tutorial)
_OWN_FILES = (__file__, doctor.__file__, *(command.__file__ for command in _COMMANDS))


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
    print(f"perfkit: {error}", file=sys.stderr)
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

    doctor.add(commands)

    lab = commands.add_parser("lab", help="open JupyterLab on a lesson, the first by default")
    lab.add_argument("--port", type=int, help="default: the first free port from 8888 up")
    lab.add_argument(
        "--browser",
        action=argparse.BooleanOptionalAction,
        help="open a browser (default: if there is a screen, and not over ssh)",
    )
    lab.add_argument(
        "--in-place",
        action="store_true",
        help="open the clone's own notebooks, to edit the course (default: your copy, my-course)",
    )
    lab.add_argument("lesson", nargs="?", default="00", help="e.g. 00 (the default)")
    lab.set_defaults(run=_lab)

    tour = commands.add_parser(
        "tour",
        help="run lessons without a browser and print what they found and measured",
        epilog="Writes one site (index.html and a page for each lesson) and summary.json. A lesson "
        "that fails does not end the tour; the exit code is then 1.",
    )
    tour.add_argument("lesson", nargs="*", help="e.g. 00 06; default: all, a minute or so each")
    tour.add_argument(
        "--out", type=_folder, default=Path("build", "tour"), help="default: build/tour"
    )
    tour.add_argument(
        "--save", action="store_true", help="write the outputs back into the notebooks"
    )
    tour.set_defaults(run=_tour)

    for command in _COMMANDS:
        command.add(commands)

    synclint = commands.add_parser(
        "synclint",
        help="list the lines of a training script that would make it wait for a GPU; needs no GPU",
        description="Runs the script for a few optimizer steps, then stops it.",
    )
    synclint.add_argument("--json", action="store_true", help="print JSON instead of text")
    synclint.add_argument("--steps", type=int, default=2, metavar="N", help="default: 2")
    synclint.add_argument("--strict", action="store_true", help="exit with 1 if any line is found")
    synclint.add_argument("script", help="the script, as you would give it to python")
    synclint.add_argument("args", nargs=argparse.REMAINDER, help="its arguments, after --")
    synclint.set_defaults(run=_synclint)
    return parser


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give the name of a folder")
    return Path(text)


def _lab(arguments: argparse.Namespace) -> int:
    from perfkit.course.kit._places import lesson_path
    from perfkit.course.kit.server import serve
    from perfkit.course.kit.tutorial import own_copy

    path = lesson_path(arguments.lesson)
    if not arguments.in_place:
        path = own_copy(path, _say)
    serve(path, port=arguments.port, browser=arguments.browser, say=_say)
    return 0


def _tour(arguments: argparse.Namespace) -> int:
    from perfkit.course.kit.tour import tour

    tour(arguments.lesson, arguments.out, _say, save=arguments.save)
    return 0


def _synclint(arguments: argparse.Namespace) -> int:
    from perfkit.synclint.script import run_script

    argv = arguments.args[1:] if arguments.args[:1] == ["--"] else arguments.args
    # with --json the script's own output goes to stderr: standard output is one JSON object
    with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        result = run_script(arguments.script, argv, steps=arguments.steps)
    found = result.to_dict()
    print(json.dumps(found, indent=1) if arguments.json else result)
    return int(arguments.strict and bool(found["syncs"]))


def _say(line: str) -> None:
    print(printable(line, lines=True), flush=True)


if __name__ == "__main__":
    sys.exit(main())
