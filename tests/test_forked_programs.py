"""A forked program gets what a started one would, with torch loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("programs_are_forked"),
    pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans, as Linux can"),
]

TELLS = """
import json, os, sys
torch = sys.modules.get("torch")
print(json.dumps({
    "main": __name__, "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(),
    "told": os.environ.get("TOLD"), "read": sys.stdin.read(), "parent": os.getppid(),
    "leads": os.getsid(0) == os.getpid(), "perfkit": "perfkit" in sys.modules,
    "threads": torch and torch.get_num_threads(),
}))
print("a warning", file=sys.stderr)
sys.exit(3)
"""


def _told(typed: list[str], folder: Path, **more: Any) -> dict[str, Any]:
    env = {**os.environ, "TOLD": "yes", "OMP_NUM_THREADS": "1", **more.pop("env", {})}
    done = subprocess.run(
        [sys.executable, *typed, "a", "b"], cwd=folder, env=env, input="typed", text=True,
        capture_output=True, **more,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "a warning\n")
    said: dict[str, Any] = json.loads(done.stdout)
    assert said.pop("parent") == os.getpid()
    same = {"main": "__main__", "cwd": str(folder), "told": "yes", "read": "typed"}
    assert {name: said.pop(name) for name in same} == same
    return said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path = tmp_path.resolve()
    (tmp_path / "tells.py").write_text(TELLS)
    return tmp_path


def test_it_is_that_program_with_torch_loaded(folder: Path) -> None:
    path = str(folder / "tells.py")
    loaded = {"leads": False, "perfkit": False, "threads": 1}
    here = str(folder)
    assert _told(["-m", "tells"], folder) == {"argv": [path, "a", "b"], "path": here, **loaded}
    own = _told(["-u", "tells.py"], folder, start_new_session=True)
    assert own == {"argv": ["tells.py", "a", "b"], "path": here, **loaded, "leads": True}
    assert _told(["-c", TELLS], folder) == {"argv": ["-c", "a", "b"], "path": "", **loaded}


def test_who_changes_what_is_read_once_is_started(folder: Path) -> None:
    assert _told(["tells.py"], folder, env={"MALLOC_ARENA_MAX": "1"})["threads"] is None


def test_what_libraries_leave_in_the_environment_keeps_nothing_from_being_forked(
    folder: Path,
) -> None:
    left = {"LD_LIBRARY_PATH": "/of/cv2:", "TORCHINDUCTOR_CACHE_DIR": "/of/the/compiler"}
    assert _told(["tells.py"], folder, env=left)["threads"] == 1


def test_modules_come_from_its_own_folders(folder: Path) -> None:
    (folder / "apart").mkdir()
    (folder / "tells.py").rename(folder / "apart" / "tells.py")
    code = "import runpy; runpy.run_module('tells', run_name='__main__')"
    found = _told(["-P", "-c", code], folder, env={"PYTHONPATH": str(folder / "apart")})
    assert found["path"] == str(folder / "apart")


def test_how_it_ends_reaches_who_started_it(folder: Path) -> None:
    raises = [sys.executable, "-c", "raise ValueError('made up')"]
    done = subprocess.run(raises, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: made up")
    sleeps = [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(600)"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(sleeps, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"on\n"
            process.send_signal(number)
            assert process.wait() == -number
