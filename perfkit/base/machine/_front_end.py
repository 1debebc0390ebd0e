"""The program that shows a notebook: what it lacks for widgets, where it runs in another
environment than the kernel.

A kernel can create a widget that its JupyterLab cannot show: "model not found" is all that a reader
sees then. The page asks the server for the widgets' code, so the server's environment has to have
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

_NEEDED = ("anywidget", "@jupyter-widgets/jupyterlab-manager")


def front_end_lacks() -> tuple[str, str]:
    """Why this kernel's widgets cannot be shown, and the command that helps; empty if they can.

    Empty, too, where nobody knows: outside of a kernel, or with a server that is not
    JupyterLab of this machine.
    """
    python = _server_python()
    if python is None:
        return "", ""
    # not resolved: the python of a virtual environment is a link to another one
    prefix = python.parent.parent
    if prefix == Path(sys.prefix) or not (prefix / "share" / "jupyter" / "lab").is_dir():
        return "", ""
    folders = [folder / "labextensions" for folder in _data_folders(prefix)]
    missing = [name for name in _NEEDED if not any((one / name).is_dir() for one in folders)]
    if not missing:
        return "", ""
    return (
        f"JupyterLab runs in {prefix}, another environment than this kernel, and has no "
        f"{' and no '.join(missing)}",
        f"{python} -m pip install anywidget, then reload the page",
    )


def _server_python() -> Path | None:
    import psutil

    try:
        # set by the server that starts a kernel; on Windows it is no process id
        if os.name != "posix":
            return None
        python, *_ = psutil.Process(int(os.environ["JPY_PARENT_PID"])).cmdline()
    except (KeyError, ValueError, psutil.Error):
        return None
    is_python = Path(python).is_absolute() and "python" in Path(python).name
    return Path(python) if is_python else None


def _data_folders(prefix: Path) -> Iterator[Path]:
    """Where a JupyterLab of this environment looks for what extends it."""
    yield prefix / "share" / "jupyter"
    yield from map(Path, filter(None, os.environ.get("JUPYTER_PATH", "").split(os.pathsep)))
    yield Path(os.environ.get("JUPYTER_DATA_DIR") or Path.home() / ".local" / "share" / "jupyter")
    yield Path.home() / "Library" / "Jupyter"
    yield from (Path("/usr/local/share/jupyter"), Path("/usr/share/jupyter"))
