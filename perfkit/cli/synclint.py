"""``perfkit synclint SCRIPT``: the lines of a script that would make it wait for a GPU."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from perfkit.base.errors import PerfkitError
from perfkit.base.program import show_error_as_its_own
from perfkit.cli.output import add_command, add_json, say


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    synclint = add_command(
        commands,
        "synclint",
        run,
        help="list the lines of a training script that would make it wait for a GPU; needs no GPU",
        description="Runs the script for a few optimizer steps, then stops it.",
    )
    add_json(synclint)
    synclint.add_argument("--steps", type=int, default=2, metavar="N", help="default: 2")
    synclint.add_argument("--strict", action="store_true", help="exit with 1 if any line is found")
    synclint.add_argument("script", help="the script, as you would give it to python")
    synclint.add_argument("args", nargs=argparse.REMAINDER, help="its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Watch the script; return 0, or 1 with ``--strict`` and a line found."""
    from perfkit.synclint.find import NOT_SEEN
    from perfkit.synclint.script import run_script

    argv = arguments.args[1:] if arguments.args[:1] == ["--"] else arguments.args
    # with --json the script's own output goes to stderr: standard output is one JSON object
    with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        try:
            found = run_script(arguments.script, argv, steps=arguments.steps)
        except PerfkitError:
            raise
        except BaseException:
            show_error_as_its_own()
            raise
    say(found, as_json=arguments.json)
    return int(arguments.strict and len(found) > len(found.of(NOT_SEEN)))
