"""Small programs after patterns in public projects: every marked line is found, and no other."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

from perfkit.synclint.find import find_syncs

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def marked(path: Path, mark: str = "sync") -> set[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {n for n, text in enumerate(lines, 1) if re.search(rf"# {mark}$", text)}


def reported(path: Path) -> dict[str, set[int]]:
    step = runpy.run_path(str(path))["step"]
    with contextlib.redirect_stdout(io.StringIO()):
        syncs = find_syncs(step)
    assert {sync.file for sync in syncs} <= {str(path)}
    return {kind: {sync.line for sync in syncs if sync.kind == kind} for kind in ("value", "copy")}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_every_marked_line_is_found_and_no_other(path: Path) -> None:
    assert reported(path) == {"value": marked(path), "copy": marked(path, "copy")}


def test_half_of_the_programs_are_clean() -> None:
    clean = [path for path in PROGRAMS if not marked(path)]
    assert len(PROGRAMS) >= 20
    assert len(clean) == len(PROGRAMS) // 2
