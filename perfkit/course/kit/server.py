"""JupyterLab on the course's notebooks, for this user only, with its address printed.

The server listens on the loopback address with a fresh token, and does not fetch news, updates or
extension lists.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path

from perfkit.base.errors import UsageError
from perfkit.base.extras import needs

_LOOPBACK = "127.0.0.1"
_FIRST_PORT = 8888  # Jupyter's own default
_PORTS_TRIED = 50
_READY_TIMEOUT_S = 120.0

# An extra Jupyter configuration folder that suppresses the question about fetching news.
_CONFIG = Path(__file__).parent / "lab_config"


def serve(
    notebook: Path, *, port: int | None, browser: bool | None, say: Callable[[str], None]
) -> None:
    """Run JupyterLab until Ctrl-C, opened on ``notebook``.

    Args:
        notebook: the notebook to open; its folder is the root of the file browser.
        port: the port; ``None`` uses the first free one from 8888 up.
        browser: whether to open one; ``None`` opens one if there is a screen.
        say: called with each line to print.

    Raises:
        MissingError: JupyterLab is not installed.
        UsageError: the port is taken or invalid.
    """
    with needs("`perfkit lab`"):
        from jupyterlab.labapp import LabApp
    chosen, mark = _free_port(port)
    token = secrets.token_hex(24)
    others = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        [str(_CONFIG), *([others] if others else [])]
    )
    retries = _PORTS_TRIED if port is None else 0
    try:
        server = LabApp.initialize_server(argv=_arguments(notebook, chosen, token, retries))
        chosen = server.port  # another one if a stranger took ours while Jupyter was loading
        address = f"http://{_LOOPBACK}:{chosen}/lab/tree/{notebook.name}?token={token}"
        announcer = threading.Thread(
            target=_announce,
            args=(chosen, token, address, _has_screen() if browser is None else browser, say),
            name="perfkit-announce",
            daemon=True,
        )
        announcer.start()
        server.start()
    finally:
        _end_workers()
        if mark is not None:
            mark.close()


def _end_workers() -> None:
    """End the threads in which the server read files.

    anyio ends them as the server's loop does, but Ctrl-C stops that loop before; then they wait for
    work, and Python waits for them, for ever.
    """
    for thread in threading.enumerate():
        if thread.name == "AnyIO worker thread" and hasattr(thread, "stop"):
            with contextlib.suppress(Exception):
                thread.stop()


def _arguments(notebook: Path, port: int, token: str, retries: int) -> list[str]:
    arguments = [
        f"--ServerApp.root_dir={notebook.parent}",
        f"--ServerApp.ip={_LOOPBACK}",
        f"--ServerApp.port={port}",
        f"--ServerApp.port_retries={retries}",
        "--ServerApp.open_browser=False",
        "--ServerApp.answer_yes=True",  # Ctrl-C ends it without asking
        # Of the server and its extensions: a copied notebook is "not trusted" at each save, and a
        # ping's timeout is too long. Neither is news to somebody who opens a lesson.
        "--Application.log_level=ERROR",
        f"--LabApp.default_url=/lab/tree/{notebook.name}",
        # No requests to the outside: no news, no update check, no extension list.
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        # These arguments stay in this process, so the token is not in the process list.
        f"--IdentityProvider.token={token}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--ServerApp.allow_root=True")
    if _can_encrypt():
        # else each kernel warns in the terminal that its connection is in plain text
        arguments.append("--KernelManager.transport_encryption=auto")
    return arguments


def _can_encrypt() -> bool:
    """Whether the server can encrypt what it exchanges with kernels: older versions cannot."""
    import zmq
    from jupyter_client.manager import KernelManager

    return KernelManager.class_traits().get("transport_encryption") is not None and zmq.has("curve")


def check_port(wanted: int | None) -> None:
    """Whether there can be such a port.

    Raises:
        UsageError: there cannot.
    """
    if wanted is not None and not 1 <= wanted <= 65535:
        raise UsageError(f"a port is between 1 and 65535, not {wanted}")


def _free_port(wanted: int | None) -> tuple[int, socket.socket | None]:
    """A free port, and the mark that keeps other ``perfkit lab``s off it; none of a wanted port."""
    check_port(wanted)
    if wanted:
        if _is_free(wanted):
            return wanted, None
        raise UsageError(f"port {wanted} is taken; choose another, or give none")
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS_TRIED):
        if _is_free(port) and (mark := _marked(port)):
            return port, mark
    raise UsageError(
        f"ports {_FIRST_PORT} to {_FIRST_PORT + _PORTS_TRIED - 1} are all taken; choose one"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            # As the server itself does: a port in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def _marked(port: int) -> socket.socket | None:
    """A mark on a port which the server takes only seconds later, when it has loaded.

    A UDP port of the same number: nobody else can have it, and the system lets go of it when this
    process ends, however it ends.
    """
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind((_LOOPBACK, port))
    except OSError:
        mark.close()
        return None
    return mark


def _has_screen() -> bool:
    """Whether a browser opened here would be visible: not over ssh, not without a display."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _announce(
    port: int, token: str, address: str, browser: bool, say: Callable[[str], None]
) -> None:
    """Say the address as soon as the server answers."""
    status = f"http://{_LOOPBACK}:{port}/api/status?token={token}"
    # Bypass any proxy for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with opener.open(status, timeout=2):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    else:
        say(f"JupyterLab has not answered within {_READY_TIMEOUT_S:.0f} s")
        return
    say(
        f"JupyterLab runs. Open\n\n    {address}\n\n"
        f"From another machine, first: ssh -N -L {port}:{_LOOPBACK}:{port} <this machine>\n"
        "Ctrl-C ends it."
    )
    if browser:
        webbrowser.open(address)
