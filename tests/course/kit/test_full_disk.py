"""A full disk is told before lessons run for minutes: an empty file can still be made on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import resource, sys
from perfkit.cli import main

# as on a full disk: a file can be made, and nothing can be written into it
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits of a file's size")
@pytest.mark.parametrize("command", ["tour", "record"])
def test_a_full_disk_is_told_before_a_lesson_runs(command: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PROGRAM, command, "06", "--out", str(out)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert str(out) in done.stderr
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(out.iterdir()) == []
