"""Which lesson a finding may send its reader to."""

from __future__ import annotations

from pathlib import Path

# The notebooks lie beside the package in a clone, and inside it in an installed wheel.
_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = _PACKAGE / "_course" / "notebooks"
_NOTEBOOKS = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE.parent / "notebooks"


def lesson_here(lesson: str | None) -> str:
    """The lesson's id, where its notebook is part of this installation; else empty."""
    return lesson if lesson and (_NOTEBOOKS / f"{lesson}.ipynb").is_file() else ""
