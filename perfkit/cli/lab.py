"""``perfkit lab``: JupyterLab on a lesson, in the reader's own copy."""

from __future__ import annotations

import argparse
from typing import Any

from perfkit.cli.output import add_command, say_line


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    lab = add_command(
        commands, "lab", run, help="open JupyterLab on a lesson, the first by default"
    )
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


def run(arguments: argparse.Namespace) -> int:
    """Serve until the reader stops it; return 0."""
    from perfkit.course.kit._places import lesson_path
    from perfkit.course.kit.server import check_port, serve
    from perfkit.course.kit.tutorial import own_copy

    path = lesson_path(arguments.lesson)
    check_port(arguments.port)  # before a copy is made
    if not arguments.in_place:
        path = own_copy(path, say_line)
    serve(path, port=arguments.port, browser=arguments.browser, say=say_line)
    return 0
