"""``perfkit tour [LESSON…]``: run lessons without a browser, and one site of what they found."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from perfkit.cli.output import add_command, folder, say_line

_EPILOG = """\
Writes one site (index.html and a page for each lesson) and summary.json. A lesson that fails does
not end the tour; the exit code is then 1.
"""


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    tour = add_command(
        commands,
        "tour",
        run,
        help="run lessons without a browser and print what they found and measured",
        epilog=_EPILOG,
    )
    tour.add_argument("lesson", nargs="*", help="e.g. 00 06; default: all, a minute or so each")
    tour.add_argument(
        "--out", type=folder, default=Path("build", "tour"), help="default: build/tour"
    )
    tour.add_argument(
        "--save", action="store_true", help="write the outputs back into the notebooks"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the lessons; return 0.

    Raises:
        LessonFailedError: at the end, if a lesson failed; the command then exits with 1.
    """
    from perfkit.course.kit.tour import tour

    tour(arguments.lesson, arguments.out, say_line, save=arguments.save)
    return 0
