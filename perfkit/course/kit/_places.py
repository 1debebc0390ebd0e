"""Where the course's notebooks and its generated data are."""

from __future__ import annotations

import os
from pathlib import Path

import perfkit
from perfkit.base.errors import MissingError
from perfkit.course.kit._course_files import SHIPPED

_START = "00-start-here.ipynb"


def clone_folder() -> Path | None:
    """The clone or copy of the course that contains the working directory or this package.

    The course inside an installed package does not count: nothing is written there.
    """
    package = Path(perfkit.__file__).resolve().parent
    try:
        here = [Path.cwd(), *Path.cwd().parents]
    except OSError:  # the working directory was deleted
        here = []
    for folder in (*here, package.parent):
        if folder != package / SHIPPED and (folder / "data" / "make_images.py").is_file():
            return folder
    return None


def shipped_course() -> Path | None:
    """The read-only course inside the installed package; None in a clone."""
    course = Path(perfkit.__file__).resolve().parent / SHIPPED
    return course if course.is_dir() else None


def data_folder() -> Path:
    """The folder of generated data: ``$PERFKIT_DATA``, else the clone's, else the user's cache."""
    told = os.environ.get("PERFKIT_DATA")
    if told:
        return Path(told).expanduser()
    clone = clone_folder()
    if clone is not None:
        return clone / "data" / "generated"
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(cache) if cache else Path.home() / ".cache") / "perfkit"


def notebooks_folder() -> Path:
    """The folder of the lessons.

    Raises:
        MissingError: there is none: perfkit was installed without its repository, and the working
            directory is not in a copy of the course.
    """
    clone = clone_folder()
    if clone is None or not (clone / "notebooks" / _START).is_file():
        raise MissingError(
            "the lessons are not here: copy them with `perfkit tutorial DIR`, then call this "
            "inside DIR"
        )
    return clone / "notebooks"


def lesson_path(name: str) -> Path:
    """The notebook of a lesson such as ``"00"`` or ``"00-start-here"``, or a path to a notebook.

    Raises:
        MissingError: there is no such lesson, or no lessons at all.
    """
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name).resolve()
    folder = notebooks_folder()
    stem = name.removesuffix(".ipynb")
    found = [p for p in lessons() if p.stem == stem or p.stem.split("-")[0] == stem]
    if len(found) != 1:
        known = ", ".join(p.stem for p in lessons())
        raise MissingError(f"no lesson {name!r} in {folder.name}/; there are: {known}")
    return found[0]


def lessons() -> list[Path]:
    """Every lesson's notebook, in the course's order."""
    return sorted(notebooks_folder().glob("[0-9][0-9]-*.ipynb"))
