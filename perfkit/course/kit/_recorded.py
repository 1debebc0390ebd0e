"""Where recorded results are stored, and which claims the course teaches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from perfkit.base.errors import MissingError
from perfkit.course.kit._places import clone_folder, data_folder, lessons, shipped_course

__all__ = ["recorded_folder", "recorded_folders", "taught_claims"]


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
    try:
        paths = lessons()
    except MissingError:
        shipped = shipped_course()
        if shipped is None:
            return None
        paths = sorted((shipped / "notebooks").glob("[0-9][0-9]-*.ipynb"))
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
