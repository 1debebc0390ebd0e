"""``perfkit tutorial DIR``: the command's arguments and output."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Copies lessons, solutions and data makers into DIR, from a wheel or from a clone; nothing is
downloaded. Files that you changed there are not overwritten: the command names them and writes
nothing. Files that are as an earlier copy left them are renewed.
"""


def add(commands: Any) -> None:
    """Add the command to the parser of ``perfkit``."""
    tutorial = commands.add_parser(
        "tutorial",
        help="copy the course into a folder of your own",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tutorial.add_argument("folder", type=_folder, metavar="DIR", help="made where it is missing")
    tutorial.add_argument("--force", action="store_true", help="overwrite changed files, too")
    tutorial.set_defaults(run=_tutorial)


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("it is not a name; give the name of a folder")
    return Path(text).expanduser()


def _tutorial(arguments: argparse.Namespace) -> int:
    from perfkit.lessons.tutorial import copy_course

    copied = copy_course(arguments.folder, force=arguments.force)
    if copied.written:
        same = f", {copied.same} as they were" if copied.same else ""
        files = "1 file" if copied.written == 1 else f"{copied.written} files"
        print(f"{copied.lessons} lessons in {copied.folder}: {files} copied{same}")
    else:
        print(f"{copied.lessons} lessons in {copied.folder}: nothing to do, all is up to date")
    if copied.folder != Path():
        cd = shlex.quote(os.fspath(copied.folder))
        print(f"Next: cd {cd} && perfkit lab")
    return 0
