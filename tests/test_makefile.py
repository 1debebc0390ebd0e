"""What `make` says before it downloads anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent / "Makefile"
# `make test` runs these tests: its own make must not tell ours what to do
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
NEEDS = ("pyproject.toml", "constraints.txt", "hatch_build.py", "perfkit/_version.py")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
@pytest.mark.parametrize("python", ["", "true", "no-such-python", "/", "echo"])
def test_a_python_that_is_none_is_one_clear_line(python: str, tmp_path: Path) -> None:
    shutil.copy(MAKEFILE, tmp_path / "Makefile")
    (tmp_path / "perfkit").mkdir()
    for name in NEEDS:
        (tmp_path / name).write_text("")
    ran = subprocess.run(
        ["make", "install", f"PYTHON={python}"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 2
    assert ran.stdout == (
        f"perfkit needs Python 3.11 or newer; PYTHON='{python}' is not. "
        "Try: make PYTHON=python3.12 install\n"
    )
    assert not (tmp_path / ".venv").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_a_python_that_is_new_enough_goes_on(tmp_path: Path) -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "install", f"PYTHON={sys.executable}"],
        cwd=MAKEFILE.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    check = next(line for line in planned.splitlines() if line.startswith("test "))
    condition = check.removesuffix("\\").removesuffix(" || ")
    assert subprocess.run(["sh", "-c", condition], timeout=60).returncode == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
@pytest.mark.parametrize(
    ("given", "command"),
    [([], "perfkit tour --out"), (["LESSONS=00 06"], "perfkit tour 00 06 --out")],
)
def test_which_lessons_a_tour_runs(given: list[str], command: str) -> None:
    planned = _planned("tour", *given)
    assert command in " ".join(planned.split())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_the_phases_run_every_test_once_and_remember_their_own_failures() -> None:
    planned = _planned("test")
    parallel, *others = re.findall(r"\s-m (browser|serial|'.+?')\s", planned)
    assert parallel == "'not (serial or browser)'"
    assert others == ["browser", "serial"]
    caches = re.findall(r"cache_dir=(\S+)", planned)
    assert len(set(caches)) == 3
    again = _planned("test-parallel", "test-browser", "test-serial", "AGAIN=yes")
    assert re.findall(r"cache_dir=(\S+)", again) == caches
    assert again.count("--last-failed ") == 3
    assert "--numprocesses" not in again


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    """Make starts a line with $(MAKE) even then: one of them collected all tests."""
    pytest_ = tmp_path / "bin" / "pytest"
    pytest_.parent.mkdir()
    pytest_.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    pytest_.chmod(0o755)
    assert "/bin/mypy" in _planned("test", f"VENV={tmp_path}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_each_phase_has_all_files_with_its_tests() -> None:
    root = MAKEFILE.parent
    (command,) = [line for line in _planned("test-serial").splitlines() if " -m serial" in line]
    named = {word for word in command.split() if word.startswith("tests/")}
    # by other words than those that the Makefile looks for
    marked = {
        path.relative_to(root).as_posix()
        for path in (root / "tests").rglob("test_*.py")
        if re.search(r"^\s*@.*\bserial\b|^pytestmark\b[^]]*?\bserial\b", path.read_text(), re.M)
    }
    assert named == marked
    # the other phases pass over this folder: whatever is in it belongs to the browser's
    for path in sorted((root / "tests" / "browser").glob("test_*.py")):
        source = path.read_text()
        marks = re.search(r"^pytestmark = (\[[^]]*\]|.*)", source, re.M)
        assert marks is not None, path
        assert "mark.browser" in marks[0], path
        assert "mark.serial" not in source, path


def _planned(*arguments: str) -> str:
    return subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=MAKEFILE.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
