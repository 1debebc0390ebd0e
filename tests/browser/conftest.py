"""A real JupyterLab in a headless Chromium, for tests that must see what a reader sees.

Fixtures: ``jupyter`` (one server for all tests, isolated from the user's own configuration) and
``open_notebook(notebook)``, which takes a path or a list of code cells and gives a
:class:`NotebookPage`. Pages and, but for tests that ask for a fresh one, the kernel serve one test
after the other: to load JupyterLab and torch takes longer than most tests. Kernels are forked with
torch loaded (:mod:`tests.browser.forking_server`), but for tests of what a kernel starts and ends
with: those ask for a program. There must be no request beyond loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.browser import forking_server

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"

# The browser itself must not call home either, so that every request is the page's.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CLOSE_ALL = "() => [...jupyterapp.shell.widgets('main')].forEach(one => one.dispose())"
FORKED, PROGRAM = "python3", "program"  # kernels
UNUSED = "no-notebook.ipynb"  # whose session holds the kernel for the next one
# Run between two notebooks. The process that a Lab prepares stays for the next Lab: it has torch.
EMPTY = """
import ipywidgets
if "lab" in globals():
    from perfkit.experiment.process import _process
    if not hasattr(_process, "stays"):
        _process.shared.acquire()
        _process.stays = True
    lab.close()
ipywidgets.Widget.close_all()
%reset -f
"""
VIEWPORT: Any = {"width": 1200, "height": 1000}
INSIDE = {"data", "blob", "attachment"}  # parts of the page or of the notebook itself
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name)
        if found:
            return found
    pytest.fail("the browser tests need Chromium: apt-get install chromium", pytrace=False)


@dataclass
class Jupyter:
    """A running server, its token, and the folder that it serves."""

    url: str
    token: str
    root: Path

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def session(self, name: str) -> Any:
        """The session of a notebook; None where it has no kernel."""
        return next((one for one in self.api("sessions") if one["path"] == name), None)

    def lend_kernel(self, name: str) -> None:
        """Give a notebook the kernel that notebooks use one after the other."""
        if (warm := self.session(UNUSED)) is None:
            made = {"path": name, "name": name, "type": "notebook", "kernel": {"name": FORKED}}
            self.api("sessions", "POST", made)
        else:
            self.api(f"sessions/{warm['id']}", "PATCH", {"path": name, "name": name})

    def end_session(self, name: str, *, keep_kernel: bool) -> None:
        """End a notebook's session, or put its kernel aside for the next one."""
        if (found := self.session(name)) is None:
            return
        if keep_kernel and self.session(UNUSED) is None:
            self.api(f"sessions/{found['id']}", "PATCH", {"path": UNUSED, "name": UNUSED})
        else:
            self.api(f"sessions/{found['id']}", "DELETE")

    def add(self, notebook: Path | Sequence[str], name: str, kernel: str) -> str:
        """Put a notebook (a path, or code cells) into the server's folder; return its name."""
        if isinstance(notebook, Path):
            document = nbformat.read(notebook, as_version=4)
        else:
            cells = [nbformat.v4.new_code_cell(source) for source in notebook]
            document = nbformat.v4.new_notebook(cells=cells)
        # without a kernel's name JupyterLab asks for one
        document.metadata["kernelspec"] = {"name": kernel, "display_name": "Python 3"}
        nbformat.write(document, self.root / f"{name}.ipynb")
        return f"{name}.ipynb"


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    home = tmp_path_factory.mktemp("jupyter")
    root = home / "notebooks"
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    root.mkdir()
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = home / "jupyter_data_dir" / "kernels" / PROGRAM
    program.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "env": {forking_server.OWN_PROGRAM: "yes"},
        "display_name": "A program",
        "language": "python",
    }
    (program / "kernel.json").write_text(json.dumps(spec))
    token = secrets.token_hex(16)
    env = os.environ | {
        name: str(home / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    env |= {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTER_PREFER_ENV_PATH": "1"}
    env |= {"JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces")}
    log = home / "server.log"
    command = [
        *(sys.executable, forking_server.__file__, "--no-browser", "--allow-root"),
        *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"),
        "--LabApp.expose_app_in_browser=True",
    ]
    with log.open("w") as out:
        server = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
    here = Jupyter(f"http://127.0.0.1:{port}", token, root)
    deadline = time.monotonic() + 240  # on a loaded machine it has taken more than 60 s
    while True:
        try:
            here.api("status")
            break
        except (OSError, urllib.error.URLError):
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                server.wait()
                pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}", pytrace=False)
            time.sleep(0.1)
    yield here
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(5)


Started = tuple[Browser, asyncio.AbstractEventLoop]


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    """One Chromium, and the event loop through which it is driven."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        loop = asyncio.get_running_loop()
        yield running, loop
        asyncio._set_running_loop(loop)
        running.close()
    asyncio._set_running_loop(None)


@pytest.fixture
def browser(started: Started) -> Iterator[Browser]:
    """The Chromium of all tests.

    Playwright leaves its loop marked as running between two calls. Other tests of this process
    run loops of their own, so the mark is there only as long as a test uses the browser.
    """
    running, loop = started
    asyncio._set_running_loop(loop)
    yield running
    asyncio._set_running_loop(None)


@dataclass
class NotebookPage:
    """An open notebook, and what a test does with it."""

    page: Page
    jupyter: Jupyter
    name: str
    is_fresh: bool = True  # its kernel is its own
    was_reloaded: bool = False  # JupyterLab then brings its notebook back, at a moment of its own
    listeners: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)  # requests that left the loopback addresses
    errors: list[str] = field(default_factory=list)  # uncaught errors of the page's scripts
    console: list[str] = field(default_factory=list)  # errors logged by the page

    def listen(self) -> None:
        """Notice requests that leave this machine, and errors."""

        def seen(url: str) -> None:
            parts = urllib.parse.urlsplit(url)
            if parts.scheme not in INSIDE and parts.hostname not in LOOPBACK:
                self.outside.append(url)

        def logged(message: Any) -> None:
            if message.type == "error":
                self.console.append(message.text)

        self.listeners = {
            "request": lambda request: seen(request.url),
            "websocket": lambda socket_: seen(socket_.url),
            "console": logged,
            "pageerror": lambda error: self.errors.append(str(error)),
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)  # type: ignore[call-overload]

    def release(self) -> bool:
        """Close the notebook; return whether the page can show another one."""
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        if self.was_reloaded or self.page.locator(".jp-Dialog").count():
            return False
        if not self.is_fresh:
            self.page.evaluate(
                "async code => { const { kernel } ="
                " jupyterapp.shell.currentWidget.sessionContext.session;"
                " await kernel.requestExecute({ code, store_history: false }).done; }",
                EMPTY,
            )
        self.page.evaluate(CLOSE_ALL)
        return True

    def open(self) -> None:
        """Open it in a page that has JupyterLab; loading that takes seconds."""
        self.page.set_viewport_size(VIEWPORT)
        self.page.evaluate(
            "path => jupyterapp.commands.execute('docmanager:open', { path })", self.name
        )
        self.wait_for_kernel()

    def go(self) -> None:
        self.page.goto(f"{self.jupyter.url}/lab/tree/{self.name}?token={self.jupyter.token}&reset")
        self.wait_for_kernel()
        self.page.evaluate("() => { jupyterapp.shell.collapseLeft(); }")

    def reload(self) -> None:
        self.page.wait_for_url(f"**/{self.name}*")
        self.was_reloaded = True
        self.page.reload()
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        try:
            self.page.wait_for_function(
                "path => { const here = window.jupyterapp?.shell.currentWidget;"
                " return here?.context?.path === path"
                " && here.sessionContext?.session?.kernel?.status === 'idle'; }",
                arg=self.name,
            )
        except PlaywrightTimeout as error:
            seen = self.page.evaluate(
                "() => { const here = window.jupyterapp?.shell.currentWidget;"
                " const kernel = here?.sessionContext?.session?.kernel;"
                " return { open: here?.context?.path, kernel: kernel?.id, status: kernel?.status,"
                " connection: kernel?.connectionStatus,"
                " dialog: document.querySelector('.jp-Dialog')?.innerText }; }"
            )
            self.screenshot(f"no-kernel-{self.name.removesuffix('.ipynb')}")
            told = {"page": seen, "server": self.jupyter.api("sessions")}
            raise AssertionError(f"no idle kernel: {json.dumps(told)}") from error

    def run_all(self) -> None:
        """Run every cell and wait until the kernel is idle again; a cell's error fails the test."""
        # playwright waits for the promise, which resolves when the last cell has run
        self.page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
        self.wait_for_kernel()
        raised = [out for out in self.outputs() if out["output_type"] == "error"]
        assert raised == [], "\n".join(raised[0]["traceback"])

    def outputs(self) -> list[dict[str, Any]]:
        """All current outputs of all cells."""
        cells = self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.content.model.toJSON().cells"
        )
        return [out for cell in cells for out in cell.get("outputs", [])]

    def save(self) -> Any:
        """Save, and return the notebook as it is on disk."""
        self.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.jupyter.root / self.name, as_version=4)

    def theme(self, name: str) -> None:
        """``light`` or ``dark``."""
        label = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[name]
        self.page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', { theme })", label
        )
        self.page.wait_for_function(
            "theme => document.body.dataset.jpThemeName === theme", arg=label
        )
        self.page.wait_for_timeout(300)  # style sheet and redraw

    def screenshot(self, name: str, selector: str | None = None) -> Path:
        """Save to build/screenshots, for people to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        target = self.page.locator(selector).first if selector else self.page
        target.screenshot(path=path)
        return path

    def wait_data(self, selector: str, condition: str, timeout_s: float = 120) -> None:
        """Wait until ``condition`` holds for the element's dataset ``d``."""
        self.page.wait_for_function(
            "([selector, condition]) => { const e = document.querySelector(selector);"
            " return e !== null && new Function('d', `return ${condition}`)(e.dataset); }",
            arg=[selector, condition],
            timeout=timeout_s * 1000,
        )

    def press(self, selector: str, key: str) -> None:
        """Press a key on it. JupyterLab moves the focus to the notebook some time after a run."""
        target, tries = self.page.locator(selector), 20
        target.focus()
        self.page.wait_for_timeout(200)
        while not target.evaluate("e => e === document.activeElement"):
            tries -= 1
            assert tries, f"the focus does not stay on {selector}"
            target.focus()
            self.page.wait_for_timeout(200)
        self.page.keyboard.press(key)

    def click(self, selector: str, tries: int = 20) -> None:
        """Click until it is heard: what moves between press and release takes a click away."""
        target = self.page.locator(selector)
        target.evaluate(
            "e => { window.wasClicked = false;"
            " e.addEventListener('click', () => { window.wasClicked = true; }, { once: true }); }"
        )
        target.click()
        while not self.page.evaluate("() => window.wasClicked"):
            tries -= 1
            assert tries, f"{selector} hears no click"
            target.click()

    def download(self, selector: str, tries: int = 4) -> Path:
        """What a button saves."""
        for left in range(tries)[::-1]:
            try:
                with self.page.expect_download(timeout=20_000) as download:
                    self.click(selector)
                return Path(download.value.path())
            except PlaywrightTimeout:
                if not left:
                    raise
        raise AssertionError("unreachable")


class Opener:
    """Opens notebooks, in pages that have JupyterLab where there are some."""

    def __init__(self, jupyter: Jupyter, browser: Browser, free: list[Page]) -> None:
        self._jupyter, self._browser, self._free = jupyter, browser, free
        self._opened: list[NotebookPage] = []

    def __call__(
        self,
        notebook: Path | Sequence[str],
        name: str,
        *,
        fresh: bool = False,
        program: bool = False,
    ) -> NotebookPage:
        """Open it.

        A kernel that is not ``fresh`` has served other notebooks and is empty again. A ``program``
        is fresh and starts as a reader's does.
        """
        fresh = fresh or program
        is_free = bool(self._free)
        page = self._free.pop() if is_free else self._browser.new_page(viewport=VIEWPORT)
        page.set_default_timeout(60_000)
        added = self._jupyter.add(notebook, name, PROGRAM if program else FORKED)
        here = NotebookPage(page, self._jupyter, added, fresh)
        if not fresh:
            self._jupyter.lend_kernel(here.name)
        here.listen()
        self._opened.append(here)
        here.open() if is_free else here.go()
        if page.evaluate("() => document.body.dataset.jpThemeName") != "JupyterLab Light":
            here.theme("light")  # JupyterLab keeps what the test before chose
        return here

    def close(self) -> None:
        """Close the notebooks and end their kernels; what their pages saw is checked."""
        for here in self._opened:
            try:
                can_be_used_again = here.release()
            except PlaywrightError:
                can_be_used_again = False
            if can_be_used_again:
                self._free.append(here.page)
            else:
                here.page.close()
            keep = can_be_used_again and not here.is_fresh
            here.jupyter.end_session(here.name, keep_kernel=keep)
        for here in self._opened:
            assert here.outside == [], "requests left this machine"
            assert here.errors == [], "errors in the page"


@pytest.fixture(scope="session")
def free_pages() -> list[Page]:
    """Pages with JupyterLab and no notebook."""
    return []


@pytest.fixture
def open_notebook(jupyter: Jupyter, browser: Browser, free_pages: list[Page]) -> Iterator[Opener]:
    opener = Opener(jupyter, browser, free_pages)
    yield opener
    opener.close()


@pytest.fixture(scope="module")
def open_for_all(jupyter: Jupyter, started: Started, free_pages: list[Page]) -> Iterator[Opener]:
    """As ``open_notebook``, for one page that serves all tests of a file."""
    browser, loop = started
    opener = Opener(jupyter, browser, free_pages)
    asyncio._set_running_loop(loop)
    yield opener
    asyncio._set_running_loop(loop)
    opener.close()
    asyncio._set_running_loop(None)
