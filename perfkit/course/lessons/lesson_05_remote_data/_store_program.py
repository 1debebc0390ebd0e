"""A small object store over HTTP: the files of a folder, each response delayed by a latency.

Started by ``store.py`` as a program; its argument is the options as JSON.
It listens on 127.0.0.1 only, on a free port. Its first line on standard output tells the port;
after that each line of standard input is a command and gets one line back. It ends when standard
input does, which happens however its parent ends, or when it has another parent than at first.

Files and byte ranges use aiohttp's ``FileResponse``. Each request sleeps for the latency on its
own: requests that arrive together wait together, and bandwidth is not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from aiohttp import web

_LOOK_FOR_PARENT_S = 0.5


class _Store:
    """What is served, with which latency, which requests fail, and the counters."""

    def __init__(self, folder: Path, latency_ms: float) -> None:
        self.folder = folder.resolve()
        self.latency_ms = latency_ms
        self.n_requests = self.n_bytes = self.n_failed = 0
        self._fail_after = self._fail_times = 0
        self._how = "refuse"

    def command(self, told: dict[str, Any]) -> dict[str, Any]:
        """Execute a command from standard input; return the counters."""
        if "latency_ms" in told:
            self.latency_ms = float(told["latency_ms"])
        if "fail_times" in told:
            self._fail_after = int(told["fail_after"])
            self._fail_times = int(told["fail_times"])
            self._how = told["how"]
        return {"requests": self.n_requests, "bytes": self.n_bytes, "failed": self.n_failed}

    def _fails_now(self) -> bool:
        if not self._fail_times:
            return False
        if self._fail_after:
            self._fail_after -= 1
            return False
        self._fail_times -= 1
        self.n_failed += 1
        return True

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """GET or HEAD of one file or a range of it."""
        self.n_requests += 1
        fails = self._fails_now()
        await asyncio.sleep(self.latency_ms / 1e3)
        if fails and self._how == "refuse":
            return web.Response(status=503, text="told to fail")
        file = (self.folder / request.match_info["key"]).resolve()
        if not file.is_relative_to(self.folder) or not file.is_file():
            return web.Response(status=404, text="no such key")
        if fails:
            return await self._cut(request, file)
        return web.FileResponse(file)

    async def _cut(self, request: web.Request, file: Path) -> web.StreamResponse:
        """Announce the whole file, send half of it, and close the connection."""
        data = file.read_bytes()
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        half = data[: len(data) // 2]
        self.n_bytes += len(half) - len(data)  # the signal below counted the whole file
        await response.write(half)
        if request.transport is not None:
            request.transport.close()  # sends what is already written first
        return response

    async def count(self, request: web.Request, response: web.StreamResponse) -> None:
        """Called when the headers are complete, before the first byte of the body is sent."""
        if response.status in (200, 206) and request.method != "HEAD":
            self.n_bytes += response.content_length or 0


async def _serve(options: dict[str, Any]) -> None:
    store = _Store(Path(options["folder"]), options["latency_ms"])
    app = web.Application()
    app.router.add_get("/{key:.+}", store.answer)  # includes HEAD
    app.on_response_prepare.append(store.count)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _say({"port": runner.addresses[0][1]})

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # a daemon thread, so that a blocked read does not keep the program alive
    threading.Thread(target=_listen, args=(store, loop, ended), daemon=True).start()
    parent = os.getppid()
    while not ended.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_FOR_PARENT_S)


def _listen(store: _Store, loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Commands run in the loop's thread, between requests, so counters are consistent."""

    async def do(told: dict[str, Any]) -> dict[str, Any]:
        return store.command(told)

    for line in sys.stdin:
        _say(asyncio.run_coroutine_threadsafe(do(json.loads(line)), loop).result())
    loop.call_soon_threadsafe(ended.set)


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
    # no graceful close for clients that are still connected
    os._exit(0)
