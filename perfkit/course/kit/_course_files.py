"""The files of the course: one list for building the wheel and for copying the course.

The build hook loads this file by path, before perfkit can be imported, so it uses only the standard
library.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

#: Where the wheel keeps the course, inside the package folder.
SHIPPED = "_course"

_FOLDERS = ("notebooks", "data")
_ENDINGS = (".ipynb", ".md", ".py", ".json")
# generated on the reader's disk, or pictures for the repository's README
_LEFT_OUT = ("generated", "pictures", "__pycache__")


def course_files(root: Path) -> list[PurePosixPath]:
    """Lessons, solutions, data makers and recorded results under ``root``, as relative paths."""
    found = []
    for folder in _FOLDERS:
        for path in (root / folder).rglob("*"):
            relative = PurePosixPath(path.relative_to(root).as_posix())
            hidden = any(part.startswith(".") for part in relative.parts)
            if hidden or any(part in _LEFT_OUT for part in relative.parts):
                continue
            if path.suffix in _ENDINGS and path.is_file():
                found.append(relative)
    return sorted(found)
