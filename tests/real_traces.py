"""Traces that others recorded. They are not part of the project, so a test finds them or skips."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ABOVE = (parent / "shared" / "traces" for parent in Path(__file__).parents)
BESIDE = next((folder for folder in _ABOVE if folder.is_dir()), None)  # beside the repository


def _folder() -> Path | None:
    """``PERFKIT_TRACES``, or the folder beside the repository; an empty variable means none."""
    named = os.environ.get("PERFKIT_TRACES")
    if named is not None:
        return Path(named) if named else None
    return BESIDE


FOLDER = _folder()
FILES = sorted(FOLDER.glob("*.json*")) if FOLDER else []
needs_traces = pytest.mark.skipif(
    not FILES, reason="no traces: neither PERFKIT_TRACES nor ../shared/traces holds any"
)
each_trace = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
