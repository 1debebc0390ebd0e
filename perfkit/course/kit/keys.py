"""The right answer to each lesson's guess, and the measurement that shows it.

The keys are in the lessons' folders, ``guess.py``, so that no notebook gives one away: its last
cell is just ``guess.score()``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass

_LESSONS = "perfkit.course.lessons"


@dataclass(frozen=True)
class Key:
    """The answer to one guess.

    Attributes:
        right: the letter of the right answer.
        because: what the lesson measured; empty if the lesson's own figures show it.
    """

    right: str
    because: str = ""


@functools.cache
def key_of(lesson: str) -> Key | None:
    """The key of a lesson such as ``"00"``: ``KEY`` in ``guess.py`` of its folder; None without."""
    package = importlib.import_module(_LESSONS)
    for found in pkgutil.iter_modules(package.__path__):
        if found.name.startswith(f"lesson_{lesson}_"):
            inside = importlib.import_module(f"{_LESSONS}.{found.name}")
            if any(one.name == "guess" for one in pkgutil.iter_modules(inside.__path__)):
                key: Key = importlib.import_module(f"{inside.__name__}.guess").KEY
                return key
    return None
