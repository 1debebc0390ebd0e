"""An object store on the loopback interface, slow on purpose: lesson 05's remote data.

::

    with Store(folder, latency_ms=10) as store:
        fsspec.filesystem("http").cat_file(store.url("00000.bin"))
        store.counts()        # requests: 1, bytes: …

A process of its own serves the folder (``_store_program.py``), so that it does
not share the trainer's interpreter. It ends with the ``Store``, and also when this process dies.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.base.extras import is_here, remedy
from perfkit.base.line_child import EndedError, LineChild
from perfkit.base.words import fmt_bytes, fmt_count

#: ``"refuse"`` answers 503; ``"cut"`` announces a file, sends half of it and disconnects.
Failure = Literal["refuse", "cut"]


@dataclass(frozen=True, repr=False)
class Counts:
    """Exact counts of a store's requests.

    Attributes:
        requests: all requests, including failed ones.
        bytes: bytes of bodies sent, without headers.
        failed: requests that failed on demand.
    """

    requests: int
    bytes: int
    failed: int = 0

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            self.requests - earlier.requests,
            self.bytes - earlier.bytes,
            self.failed - earlier.failed,
        )

    def __repr__(self) -> str:
        words = f"requests: {fmt_count(self.requests)}, bytes: {fmt_bytes(self.bytes)}"
        return f"{words}, failed: {fmt_count(self.failed)}" if self.failed else words


class Store:
    """Serves a folder over HTTP on 127.0.0.1 and a free port, with a latency per request.

    Args:
        folder: its file names are the store's keys.
        latency_ms: latency of each request.

    Raises:
        UsageError: there is no such folder, or the latency is invalid.
        MissingError: aiohttp is not installed.
        MeasurementError: its process did not start; the message has its last output.
    """

    def __init__(self, folder: Path | str, *, latency_ms: float = 10.0) -> None:
        if not is_here("aiohttp"):
            raise MissingError(f"the store needs aiohttp, not installed here: {remedy('aiohttp')}")
        if not Path(folder).is_dir():
            raise UsageError(f"no folder {str(folder)!r}: make it before its store")
        options = {"folder": str(folder), "latency_ms": _milliseconds(latency_ms)}
        self.latency_ms = options["latency_ms"]
        self._lock = threading.Lock()
        program = "perfkit.course.lessons.lesson_05_remote_data._store_program"
        # own_group: the kernel's Ctrl-C is not meant for it
        self._child = LineChild("-m", program, json.dumps(options), own_group=True)
        self.address = f"http://127.0.0.1:{self._heard(self._child.hear)['port']}"

    @property
    def pid(self) -> int:
        """Process id of its server."""
        return self._child.pid

    def url(self, key: str) -> str:
        """The URL of a key."""
        return f"{self.address}/{quote(key)}"

    def counts(self) -> Counts:
        """All requests so far, and the bytes of their responses."""
        return self._tell()

    def count(self, work: Callable[[], object]) -> Counts:
        """Call ``work()`` and return the requests made meanwhile."""
        before = self.counts()
        work()
        return self.counts() - before

    def set_latency(self, milliseconds: float) -> None:
        """Set the latency of each request from now on.

        Raises:
            UsageError: the number of milliseconds is invalid.
        """
        self.latency_ms = _milliseconds(milliseconds)
        self._tell(latency_ms=self.latency_ms)

    def fail(self, times: int, *, after: int = 0, how: Failure = "refuse") -> None:
        """Make requests fail: the next ``after`` succeed, then ``times`` fail.

        A second call replaces the first; ``fail(0)`` ends it.

        Raises:
            UsageError: a number is negative, or ``how`` is unknown.
        """
        if times < 0 or after < 0:
            raise UsageError(f"times and after count requests, got {times!r} and {after!r}")
        if how not in ("refuse", "cut"):
            raise UsageError(f'a store cannot fail by {how!r}: take "refuse" or "cut"')
        self._tell(fail_times=times, fail_after=after, how=how)

    def close(self) -> None:
        """End its process; a second call does nothing."""
        self._child.end()

    def _tell(self, **command: Any) -> Counts:
        with self._lock:
            if not self._child.is_open:
                raise UsageError("this store is closed: make a new one")
            told = self._heard(lambda: self._child.ask(command))
        return Counts(told["requests"], told["bytes"], told["failed"])

    def _heard(self, hear: Callable[[], Any]) -> dict[str, Any]:
        try:
            return dict(hear())
        except EndedError as error:
            raise MeasurementError(f"the store's process ended: {error}") from None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._child.is_open:
            return "<Store, closed>"
        return f"<Store at {self.address}, {self.latency_ms:g} ms added to each request>"


def _milliseconds(given: float) -> float:
    # a minute is longer than any reader or fsspec waits
    if not (math.isfinite(given) and 0 <= given <= 60_000):
        raise UsageError(f"a latency is 0 to 60,000 ms, not {given!r}")
    return float(given)
