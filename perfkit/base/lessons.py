"""Which lesson teaches a rule or a setting, where a course is installed.

The toolkit knows no lesson. A course says which of its lessons explains what, by a function under
the entry point group ``perfkit.lessons``, called with ``"rule"`` or ``"setting"`` and its name::

    [project.entry-points."perfkit.lessons"]
    mine = "my_course:lesson_of"    # def lesson_of(kind: str, name: str) -> str | None
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Literal

GROUP = "perfkit.lessons"

_Course = Callable[[str, str], str | None]


def lesson_of(kind: Literal["rule", "setting"], name: str) -> str | None:
    """The id of a lesson about it that is here, e.g. ``04-dataloader``; None without one."""
    for course in _courses():
        try:
            found = course(kind, name)
        except Exception:  # a course must not spoil a report
            continue
        if found:
            return found
    return None


@functools.cache
def _courses() -> tuple[_Course, ...]:
    found = []
    for entry in entry_points(group=GROUP):
        try:
            found.append(entry.load())
        except Exception:  # the course is of another version, or half removed
            continue
    return tuple(found)
