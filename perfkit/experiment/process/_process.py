"""The kernel's side of a child process: start it, talk to it, end it.

On Linux a child is forked from a prepared server (:mod:`perfkit.experiment.process._server`),
shared by all
sessions of this process, or from its own server if it needs another environment. Elsewhere it is a
new program (:mod:`perfkit.experiment.process._spawned`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

from perfkit.base.errors import MissingError
from perfkit.base.uninterrupted import Uninterrupted
from perfkit.experiment.process import _frames, _orders

#: What a child sends: a message, printed bytes, its exit code, or junk.
News = tuple[str, Any]

# In this order: after the first, a run can begin; after the second, it begins at once (creating an
# optimizer imports torch._dynamo, which takes a second).
_NEEDED = ("torch.utils.data", "cloudpickle", "perfkit.experiment.process._serve")
_PRELOAD = (_NEEDED, ("torch._dynamo",))
# Slow to import and harmless before a fork; preloaded if the kernel already uses them.
_PRELOAD_IF_USED = ("torchvision", "PIL.Image")
_READ_BYTES = 1 << 20
# Merely asking the CUDA runtime for the number of GPUs makes a process unfit to fork children that
# use them, and an import may ask. With this, torch asks the driver library instead. Runs get the
# kernel's own environment.
_FORKABLE = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class Child(Protocol):
    """The process of one run, with all its children."""

    pid: int | None

    def send(self, message: dict[str, Any]) -> None:
        """Say something to the child; nothing happens where it is gone."""

    def news(self, timeout_s: float) -> list[News]:
        """``("message", dict)``, ``("output", bytes)``, ``("exit", code)``; [] at time-out.

        ``("junk", words)`` if anything but the worker wrote into its pipe.
        """

    def kill(self) -> None:
        """End all its processes at once."""

    def pause(self) -> None:
        """Stop all its processes where they are."""

    def resume(self) -> None:
        """Let them go on."""

    def ask_where(self) -> None:
        """Make it print where it is, if possible."""

    def wake(self) -> None:
        """Let :meth:`news` return early."""

    def close(self) -> None:
        """Let go of everything."""


class ForkedChild:
    """A child with a guard process (Linux)."""

    def __init__(self, server: Server, *, own_server: bool) -> None:
        self._own_server = server if own_server else None
        self.pid: int | None = None
        self._ended = False
        self._close_lock = threading.Lock()
        self._closed = False
        self._told = b""
        self._outbox = bytearray()
        self._waits_to_write = False
        self._frames = _frames.Frames()
        commands_read, self._commands = os.pipe()
        self._events, events_write = os.pipe()
        self._output, output_write = os.pipe()
        self._control, theirs = socket.socketpair()
        self._wake_read, self._wake_write = os.pipe()
        try:
            server.fork([commands_read, events_write, output_write, theirs.fileno()])
        except BaseException:
            self._close_own()
            raise
        finally:
            for fd in (commands_read, events_write, output_write):
                os.close(fd)
            theirs.close()
        self._selector = selectors.DefaultSelector()
        os.set_blocking(self._commands, False)
        for fd in (self._events, self._output, self._control.fileno(), self._wake_read):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; :meth:`news` writes what does not fit into the pipe yet."""
        self._outbox += _frames.encode(message)
        self._write()

    def _write(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(self._commands, self._outbox[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # it is gone, as its exit will show
            self._outbox.clear()
        if bool(self._outbox) != self._waits_to_write:
            self._waits_to_write = bool(self._outbox)
            if self._waits_to_write:
                self._selector.register(self._commands, selectors.EVENT_WRITE)
            else:
                self._selector.unregister(self._commands)

    def news(self, timeout_s: float) -> list[News]:
        """What came; see :class:`Child`."""
        found: list[News] = []
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            if key.fd == self._commands:
                self._write()
            elif key.fd == self._wake_read:
                os.read(self._wake_read, 64)
            elif key.fd == self._control.fileno():
                found += self._control_news()
            else:
                found += self._pipe_news(key.fd)
        # the exit comes last, after all the child's messages
        exits = [n for n in found if n[0] == "exit"]
        if exits:
            for fd in (self._events, self._output):
                while more := self._pipe_news(fd):
                    found += more
        return [n for n in found if n[0] != "exit"] + exits

    def _pipe_news(self, fd: int) -> list[News]:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            self._ignore(fd)
            return []
        if fd == self._output:
            return [("output", data)]
        try:
            messages: list[News] = [("message", m) for m in self._frames.feed(data)]
        except _frames.NotAMessageError as error:
            self._ignore(fd)
            return [("junk", str(error))]
        return messages or [("part", None)]  # part of a large message

    def _ignore(self, fd: int) -> None:
        """Stop waiting for this pipe; the rest of it is read when the child has ended."""
        with contextlib.suppress(KeyError):  # its end may be seen twice
            self._selector.unregister(fd)

    def _control_news(self) -> list[News]:
        try:
            data = self._control.recv(256)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        found: list[News] = []
        *lines, self._told = (self._told + data).split(b"\n")
        for line in lines:
            if line.startswith(b"P"):
                self.pid = int(line[1:])
                found.append(("pid", self.pid))
            elif line.startswith(b"E") and not self._ended:
                self._ended = True
                found.append(("exit", int(line[1:])))
        if not data:
            self._selector.unregister(self._control.fileno())
            if not self._ended:  # server or guard was killed; the child dies with its guard
                self._ended = True
                if self.pid is not None:
                    with contextlib.suppress(OSError):
                        os.killpg(self.pid, signal.SIGKILL)
                found.append(("exit", -int(signal.SIGKILL)))
        return found

    def _command(self, command: bytes) -> None:
        with self._close_lock, contextlib.suppress(OSError):
            if not self._closed:
                self._control.send(command)

    def kill(self) -> None:
        """End all its processes at once."""
        self._command(_orders.KILL)

    def pause(self) -> None:
        """Stop all its processes where they are."""
        self._command(_orders.STOP)

    def resume(self) -> None:
        """Let them go on."""
        self._command(_orders.CONTINUE)

    def ask_where(self) -> None:
        """Make it print where it is."""
        self._command(_orders.WHERE)

    def wake(self) -> None:
        """Let :meth:`news` return early."""
        with self._close_lock, contextlib.suppress(OSError):
            if not self._closed:
                os.write(self._wake_write, b"w")

    def close(self) -> None:
        """Release everything; a guard that is still running kills its child."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            self._selector.close()
            self._close_own()
        if self._own_server is not None:
            self._own_server.close()

    def _close_own(self) -> None:
        for fd in (self._commands, self._events, self._output, self._wake_read, self._wake_write):
            os.close(fd)
        self._control.close()


class Server:
    """The kernel's view of the prepared process. Starting it returns at once."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        preload: tuple[tuple[str, ...], ...] = _PRELOAD,
    ) -> None:
        self._lock = threading.Lock()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._connection, theirs = socket.socketpair()
        used = tuple(name for name in _PRELOAD_IF_USED if name in sys.modules)
        options = {"fd": theirs.fileno(), "kernel_pid": os.getpid(), "preload": [*preload, used]}
        try:
            self._process = subprocess.Popen(
                _program("_server", json.dumps(options)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env={**os.environ, **_FORKABLE, **(environment or {})},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the kernel must not reach it
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it has loaded everything; return whether it did so within this time."""
        readable = selectors.DefaultSelector()
        with readable:
            readable.register(self._connection, selectors.EVENT_READ)
            if not readable.select(timeout_s):
                return False
        return self._connection.recv(1, socket.MSG_PEEK) == b"R"

    def fork(self, fds: list[int]) -> None:
        """Ask for a child with these file descriptors.

        Raises:
            OSError: the server is gone.
        """
        with self._lock:
            socket.send_fds(self._connection, [b"F"], fds)

    def last_words(self) -> str:
        """What it printed to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End it; the children that it forked have their own guards."""
        with self._lock:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._errors.close()


class _Shared:
    """The server shared by all sessions of this process; it ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._owner_pid = 0
        self._users = 0

    def acquire(self) -> None:
        """Register a session; start the server in the background."""
        with self._lock:
            self._users += 1
            self._started()

    def release(self) -> None:
        """Unregister a session."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            if self._users == 0:
                self._end()

    def child(self) -> ForkedChild:
        """A new child, from a new server if the old one is gone."""
        with self._lock:
            try:
                return ForkedChild(self._started(), own_server=False)
            except OSError:
                self._end()
                return ForkedChild(self._started(), own_server=False)

    def server(self) -> Server | None:
        """The server, if one is running."""
        return self._server

    def _started(self) -> Server:
        if self._server is not None and (
            self._owner_pid != os.getpid() or not self._server.alive()
        ):
            self._end()
        if self._server is None:
            self._server = Server()
            self._owner_pid = os.getpid()
        return self._server

    def _end(self) -> None:
        server, self._server = self._server, None
        # a fork of the kernel must not end the server
        if server is not None and self._owner_pid == os.getpid():
            server.close()

    def end_at_exit(self) -> None:
        """End the server when the interpreter exits; Ctrl-C then has nothing more to end."""
        with contextlib.suppress(KeyboardInterrupt), Uninterrupted(), self._lock:
            self._end()


shared = _Shared()
atexit.register(shared.end_at_exit)


class SpawnedChild:
    """A child that is a new program, with threads that read its pipes (macOS, Windows)."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._write_lock = threading.Lock()
        self._process = subprocess.Popen(
            _program("_spawned"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self.pid: int | None = self._process.pid
        self._readers = [
            threading.Thread(target=target, name=f"perfkit-{what}", daemon=True)
            for what, target in (("events", self._read_events), ("output", self._read_output))
        ]
        for reader in self._readers:
            reader.start()
        self._waiter = threading.Thread(target=self._wait, name="perfkit-exit", daemon=True)
        self._waiter.start()

    def _read_events(self) -> None:
        frames = _frames.Frames()
        stream: Any = self._process.stdout
        while data := stream.read1(_READ_BYTES):
            try:
                messages = frames.feed(data)
            except _frames.NotAMessageError as error:
                self._news.put(("junk", str(error)))
                return
            for message in messages:
                self._news.put(("message", message))

    def _read_output(self) -> None:
        stream: Any = self._process.stderr
        while data := stream.read1(_READ_BYTES):
            self._news.put(("output", data))

    def _wait(self) -> None:
        code = self._process.wait()
        self._kill_rest()
        for reader in self._readers:
            reader.join(timeout=2.0)
        self._news.put(("exit", code))

    def _below(self) -> list[psutil.Process]:
        try:
            return [
                *psutil.Process(self._process.pid).children(recursive=True),
                psutil.Process(self._process.pid),
            ]
        except psutil.Error:
            return []

    def _kill_rest(self) -> None:
        # its process group outlives it, and contains its loader workers
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def send(self, message: dict[str, Any]) -> None:
        """Say something to the child; nothing happens where it is gone."""
        stream: Any = self._process.stdin
        with self._write_lock, contextlib.suppress(OSError, ValueError):
            stream.write(_frames.encode(message))
            stream.flush()

    def news(self, timeout_s: float) -> list[News]:
        """What came; see :class:`Child`."""
        try:
            found = [self._news.get(timeout=max(timeout_s, 0.001))]
        except queue.Empty:
            return []
        while not self._news.empty():
            found.append(self._news.get())
        return [n for n in found if n[0] != "wake"]

    def kill(self) -> None:
        """End all its processes at once."""
        for process in self._below():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._kill_rest()

    def pause(self) -> None:
        """Stop all its processes where they are."""
        for process in reversed(self._below()):
            with contextlib.suppress(psutil.Error):
                process.suspend()

    def resume(self) -> None:
        """Let them go on."""
        for process in self._below():
            with contextlib.suppress(psutil.Error):
                process.resume()

    def ask_where(self) -> None:
        """Make it print where it is, if the system has a signal for that."""
        if _orders.WHERE_SIGNAL is not None:
            with contextlib.suppress(OSError):
                self._process.send_signal(_orders.WHERE_SIGNAL)

    def wake(self) -> None:
        """Let :meth:`news` return early."""
        self._news.put(("wake", None))

    def close(self) -> None:
        """Let go of everything."""
        if self._process.poll() is None:
            self.kill()
        self._waiter.join(timeout=5.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def can_prepare() -> bool:
    """Whether children on this system are forked from a prepared process."""
    return sys.platform == "linux"


def new_child(environment: Mapping[str, str]) -> Child:
    """A child for one run; ``environment`` is added to this process's environment.

    Raises:
        MissingError: no process can be started.
    """
    try:
        if not can_prepare():
            return SpawnedChild(environment)
        if environment:
            return ForkedChild(Server(environment, (_NEEDED,)), own_server=True)
        return shared.child()
    except OSError as error:
        raise MissingError(
            f"no process can be started for the workload: {error}; close other programs and Labs"
        ) from error


def why_no_child() -> str:
    """The message for a child that could not be started."""
    server = shared.server()
    words = "" if server is None else server.last_words()
    said = f": {words.splitlines()[-1]}" if words else ""
    return f"its process could not be started{said}; run it again, and see `perfkit doctor`"


def await_ready(timeout_s: float) -> bool:
    """Whether the prepared process is ready within this time; True at once if there is none."""
    deadline = time.monotonic() + timeout_s
    server = shared.server()
    if server is None:
        return not can_prepare()
    return server.wait_ready(max(deadline - time.monotonic(), 0.0))


@contextlib.contextmanager
def prepared_process(timeout_s: float) -> Iterator[None]:
    """Wait until the prepared process is ready, and keep it for all sessions within.

    Otherwise its imports would disturb the first runs, and those would import modules that later
    runs find loaded.
    """
    if not can_prepare():
        yield
        return
    shared.acquire()
    try:
        await_ready(timeout_s)
        yield
    finally:
        shared.release()


def _program(module: str, *arguments: str) -> list[str]:
    """Command of a new program with this perfkit and this process's import path.

    It has -P and no working directory, so that a file torch.py beside the notebook is not imported.
    """
    package = Path(__file__).resolve().parents[2]
    here = ["", "."]
    with contextlib.suppress(OSError):  # it may have been deleted
        here.append(os.getcwd())  # noqa: PTH109 - compared as text
    path = [one for one in sys.path if isinstance(one, str) and one not in here]
    start = (
        "import sys, importlib.util as util; "
        f"sys.path[:] = {path!r}; "
        f"spec = util.spec_from_file_location('perfkit', {str(package / '__init__.py')!r}, "
        f"submodule_search_locations=[{str(package)!r}]); "
        "sys.modules['perfkit'] = module = util.module_from_spec(spec); "
        "spec.loader.exec_module(module); "
        f"from perfkit.experiment.process.{module} import main; main()"
    )
    return [sys.executable, "-P", "-c", start, *arguments]
