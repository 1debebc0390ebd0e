"""What the commands share: a parser with a long help, and a result as text or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.base.display import Shown

Run = Callable[[argparse.Namespace], int]


def add_command(commands: Any, name: str, run: Run, **given: Any) -> argparse.ArgumentParser:
    """Add a command whose description and epilog are shown as they are written.

    Args:
        commands: of ``perfkit``'s parser.
        name: as it is typed.
        run: takes the arguments, returns the exit code.
        **given: more for the parser: ``help``, ``epilog`` …
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(name, formatter_class=raw, **given)
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``, for :func:`say`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def say(result: Shown, *, as_json: bool, verbose: bool = True, scrub: bool = False) -> None:
    """Print a result: as JSON, or as text with all its tables or only the first ones."""
    if as_json:
        print(json_of(result, scrub=scrub))
        return
    from perfkit.show._ink import printed_on

    with printed_on(sys.stdout):
        print(result.to_text() if verbose else result)


def json_of(result: Shown, *, scrub: bool) -> str:
    """A result as JSON; private data are removed where that is asked for."""
    from perfkit.base.plain import plain

    data = plain(result)
    if scrub:
        from perfkit.base.scrub import scrub as scrubbed

        data = scrubbed(data)
    return json.dumps(data, indent=1, allow_nan=False)


def say_line(line: str) -> None:
    """Print progress at once, also into a pipe."""
    from perfkit.base.printable import printable

    print(printable(line, lines=True), flush=True)


def folder(text: str) -> Path:
    """The type of an argument that names a folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give the name of a folder")
    return Path(text)
