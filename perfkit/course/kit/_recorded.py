"""Where recorded results are stored, and which claims the course teaches."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit._places import clone_folder, data_folder, lessons, shipped_course
from perfkit.course.ledger.notebook import code_hash, read_notebook


def recorded_folder() -> Path:
    """The folder for new records: ``data/recorded`` of the clone, else the user's data folder."""
    clone = clone_folder()
    return clone / "data" / "recorded" if clone is not None else data_folder() / "recorded"


def recorded_folders() -> list[Path]:
    """The folders to search for records: the clone's, the user's, else the wheel's."""
    own = data_folder() / "recorded"
    here = recorded_folder()
    places = [here, own]
    shipped = shipped_course()
    # a copy of the course has the same records, which would count twice
    if shipped is not None and clone_folder() is None:
        places.append(shipped / "data" / "recorded")
    return [folder for folder in dict.fromkeys(places) if folder.is_dir()]


def taught_claims() -> Mapping[str, tuple[str, ...]] | None:
    """Claim id → lessons that list it in their notebook's metadata.

    An unreadable notebook teaches nothing. ``None`` if there are no notebooks.
    """
    paths = _notebooks()
    if paths is None:
        return None
    taught: dict[str, tuple[str, ...]] = {}
    for path in paths:
        try:
            listed = json.loads(path.read_bytes())["metadata"]["perfkit"]["claims"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        for claim in listed if isinstance(listed, list) else ():
            if not isinstance(claim, str):
                continue
            taught[claim] = (*taught.get(claim, ()), path.stem)
    return taught


def lesson_hashes() -> Mapping[str, str]:
    """File name of a lesson's notebook → hash of its code; unreadable ones are left out."""
    found = {}
    for path in _notebooks() or ():
        with contextlib.suppress(UsageError):
            found[path.name] = code_hash(read_notebook(path))
    return found


def _notebooks() -> list[Path] | None:
    try:
        return lessons()
    except MissingError:
        shipped = shipped_course()
        if shipped is None:
            return None
        return sorted((shipped / "notebooks").glob("[0-9][0-9]-*.ipynb"))


def lesson_notebook(number: str) -> Path:
    """The notebook of a lesson by its two digits: the clone's, else the one shipped.

    Raises:
        MissingError: there is none.
    """
    for path in _notebooks() or ():
        if path.name.startswith(f"{number}-"):
            return path
    raise MissingError(f"the notebook of lesson {number} is not here: `perfkit tutorial DIR`")
