"""Which lesson a finding may send its reader to."""

from __future__ import annotations

from pathlib import Path

# The notebooks lie beside the package in a clone; an installed wheel has none.
_NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def lesson_here(lesson: str | None) -> str:
    """The lesson's id, where its notebook is part of this installation; else empty."""
    return lesson if lesson and (_NOTEBOOKS / f"{lesson}.ipynb").is_file() else ""
