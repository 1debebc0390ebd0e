"""Reading the course in a clone does not change it: real git, a real save in JupyterLab."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as NotInTimeError

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]


def _git(clone: Path, *arguments: str) -> str:
    ran = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        cwd=clone,
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    (root / "notebooks").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "data" / "make_images.py").write_text("")
    shutil.copy(ROOT / ".gitignore", root)
    styled = '<div class="saved"><style>.saved { color: red }</style>a saved report</div>'
    saved = new_code_cell("1", outputs=[new_output("display_data", data={"text/html": styled})])
    notebook = new_notebook(cells=[new_code_cell("print('it', 'ran')"), saved])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, root / "notebooks" / "00-start-here.ipynb")
    _git(root, "init", "--quiet")
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", "course")
    return root


@pytest.fixture
def address(clone: Path, tmp_path: Path) -> Iterator[str]:
    """Of ``perfkit lab`` in that clone."""
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    env = os.environ | {f"JUPYTER_{name}": str(tmp_path / name) for name in names}
    env |= {"JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "w"), "JUPYTER_PREFER_ENV_PATH": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "perfkit.cli", "lab", "--no-browser"],
        cwd=clone,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert server.stdout is not None
    said, deadline = b"", time.monotonic() + 60
    while (found := re.search(rb"(http://\S+token=[0-9a-f]+)\s", said)) is None:
        assert server.poll() is None, said.decode()
        assert time.monotonic() < deadline, said.decode()
        if select.select([server.stdout], [], [], 0.5)[0]:
            said += os.read(server.stdout.fileno(), 65536)
    yield found.group(1).decode()
    server.send_signal(signal.SIGINT)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):  # a slow machine: killed below
            server.wait(60)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_saved_lesson_leaves_git_status_clean(
    clone: Path, address: str, browser: Browser
) -> None:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    # not the notebook's own indicator: where it is idle, JupyterLab may pass the cell without a run
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
    ran = page.locator(".jp-OutputArea-output", has_text="it ran")
    for _ in range(8):  # while JupyterLab is still setting up, a key can get lost
        with contextlib.suppress(NotInTimeError):
            if page.locator(".jp-Dialog").count():  # one that a slow start brings up
                page.keyboard.press("Escape")
            page.locator(".jp-CodeCell .cm-content").first.click(timeout=15_000)
            page.keyboard.press("Shift+Enter")
            ran.first.wait_for(timeout=15_000)
            break
    assert ran.count()
    # an untrusted notebook's outputs lose it
    assert page.locator(".jp-OutputArea-output .saved style").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    saved = clone / "my-course" / "notebooks" / "00-start-here.ipynb"
    deadline = time.monotonic() + 20
    while "it ran" not in saved.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    page.close()
    assert "it ran" in saved.read_text()
    assert _git(clone, "status", "--porcelain") == ""
