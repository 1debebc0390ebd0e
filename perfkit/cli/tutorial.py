"""``perfkit tutorial DIR``: arguments and output of the command."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from perfkit.cli.output import add_command

_DESCRIPTION = """\
Copies lessons, solutions and data makers into DIR, from a wheel or a clone; nothing is
downloaded. If you changed files there, the command names them and writes nothing. Files that you
have not changed since an earlier copy are updated.
"""


def add(commands: Any) -> None:
    """Add the command to the parser of ``perfkit``."""
    tutorial = add_command(
        commands, "tutorial", run, help="copy the course into a folder", description=_DESCRIPTION
    )
    tutorial.add_argument("folder", type=_folder, metavar="DIR", help="created if missing")
    tutorial.add_argument("--force", action="store_true", help="also overwrite changed files")


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("not a valid name; give the name of a folder")
    return Path(text).expanduser()


def run(arguments: argparse.Namespace) -> int:
    """Copy what is missing or older; return 0."""
    from perfkit.course.kit.tutorial import copy_course

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
