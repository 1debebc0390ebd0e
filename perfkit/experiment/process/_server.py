"""The prepared process (Linux): it has torch loaded and forks a new child for every run.

::

    kernel ── starts ──> server (torch imported, one thread, no CUDA)
                            └─ forks ──> guard, one per run
                                           └─ forks ──> the child that runs the workload
                                                          └─ its DataLoader workers, …

The guard is the child's parent and adopts its orphans (``PR_SET_CHILD_SUBREAPER``). It watches the
kernel and the child through pid file descriptors; when either ends, even by ``kill -9``, it kills
all its descendants, inside and outside the child's process group. As a safeguard against the guard
being killed, the child has ``PR_SET_PDEATHSIG``, and the server adopts what the guard would have.
The server itself ends with the kernel. It cannot use ``PR_SET_PDEATHSIG``, which fires when the
*thread* that started the process ends.

Signals to a run go through the guard: as the parent it knows whether the child's pid is still the
child's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

from perfkit.base import collector
from perfkit.experiment.process._descendants import children, descendants
from perfkit.experiment.process._orders import CONTINUE, KILL, STOP, WHERE, WHERE_SIGNAL

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_N_FDS = 4
# Polling interval if there are no pid file descriptors (kernel < 5.3, seccomp).
_LOOK_EVERY_S = 0.2
# Changing a setting in a running Lab stops its run and starts the next within this time.
# Killing takes milliseconds; a process inside a system call may take longer.
_REAP_WITHIN_S = 4.0
# A run's result comes milliseconds before the end of its process.
_GONE_WITHIN_S = 0.1


class Alive:
    """Tells when a process has ended, whether it is a child or not."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._gone = False
        self.fd: int | None = None
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
        except OSError:
            self.fd = None

    def gone(self) -> bool:
        """Whether it has ended (with pid file descriptors, a zombie has)."""
        if self._gone or self.fd is not None:
            return self._gone or bool(_wait([self.fd], 0))
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def close(self) -> None:
        """Stop watching."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def main() -> None:
    """Serve until the kernel ends or closes the connection; arguments are JSON."""
    options = json.loads(sys.argv[1])
    connection = socket.socket(fileno=options["fd"])
    connection.set_inheritable(False)
    kernel = Alive(options["kernel_pid"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_NAME, b"perfkit-server")
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guards: dict[int, Alive] = {}
    loading: list[list[str]] = options["preload"]

    def load_next() -> None:
        _load(loading.pop(0), kernel)
        if not loading:
            connection.sendall(b"R")

    load_next()  # every run needs these
    served = False
    while True:
        # Imports would disturb a run, and the first one may wait already. The next one waits for
        # them: each run would import this itself, and a sweep has many.
        if loading and not guards and (served or not _wait([connection.fileno(), kernel.fd], 0.0)):
            load_next()
        else:
            _wait([connection.fileno(), kernel.fd, *(guard.fd for guard in guards.values())])
        if kernel.gone():
            os._exit(0)
        _sweep(guards)
        if not _wait([connection.fileno()], 0.0):
            continue
        request, fds, _flags, _address = socket.recv_fds(connection, 1, _N_FDS)
        if not request:
            os._exit(0)
        while loading and served and _all_gone(guards):
            load_next()
        guard_pid = os.fork()
        if guard_pid == 0:
            connection.close()
            for guard in guards.values():
                guard.close()
            _guard(options["kernel_pid"], *fds)
        served = True
        guards[guard_pid] = Alive(guard_pid)
        for fd in fds:
            os.close(fd)


def _sweep(guards: dict[int, Alive]) -> None:
    """Forget the guards that have ended; kill what a killed guard left behind."""
    ended = [pid for pid in guards if _ended(pid)]
    for pid in ended:
        guards.pop(pid).close()
    deadline = time.monotonic() + _REAP_WITHIN_S
    while ended and time.monotonic() < deadline:
        for pid in ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        orphans = [pid for pid in children() if pid not in guards and pid not in ended]
        if not orphans:
            return
        _kill_all(orphans)


def _all_gone(guards: dict[int, Alive]) -> bool:
    """Whether no run is left; that of the last result may be a moment from its end."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while guards and (rest_s := deadline - time.monotonic()) > 0:
        _wait([guard.fd for guard in guards.values()], min(rest_s, _LOOK_EVERY_S))
        _sweep(guards)
    return not guards


def _kill_all(orphans: list[int]) -> None:
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.005)
    for pid in orphans:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _load(names: list[str], kernel: Alive) -> None:
    with collector.at_rest(), _ends_with(kernel):
        for name in names:
            # a run that needs the missing module will report it
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # children share these pages until someone writes to them


@contextlib.contextmanager
def _ends_with(kernel: Alive) -> Iterator[None]:
    """During the imports, end as soon as the kernel does. Leaves no thread for the forks."""
    awake, wake = os.pipe()

    def look() -> None:
        while not kernel.gone():
            if awake in _wait([awake, kernel.fd]):
                return
        os._exit(0)

    thread = threading.Thread(target=look, name="perfkit-server-watch")
    thread.start()
    try:
        yield
    finally:
        os.close(wake)
        thread.join()
        os.close(awake)


def _wait(fds: list[int | None], limit_s: float | None = None) -> list[int]:
    """The readable descriptors; returns soon if one is missing, so that the caller polls."""
    present = [fd for fd in fds if fd is not None]
    if limit_s is None and len(present) < len(fds):
        limit_s = _LOOK_EVERY_S
    return select.select(present, [], [], limit_s)[0]


def _guard(kernel_pid: int, commands: int, events: int, output: int, control_fd: int) -> None:
    """Own one child from its fork until all its processes are gone; never returns."""
    try:
        os.setsid()
        _prctl(_PR_SET_NAME, b"perfkit-guard")
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        control = socket.socket(fileno=control_fd)
        kernel = Alive(kernel_pid)
        # a stop may have arrived while the server was importing
        if kernel.gone() or select.select([control], [], [], 0)[0]:
            os._exit(0)
        guard_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            control.close()
            kernel.close()
            _child(guard_pid, commands, events, output)
        with contextlib.suppress(OSError):  # the child does it too; either may be first
            os.setpgid(pid, pid)
        for fd in (commands, events, output):
            os.close(fd)
        _tell(control, f"P{pid}\n")
        _watch(control, kernel, pid)
        status = _end(pid)
        _tell(control, f"E{os.waitstatus_to_exitcode(status)}\n")
    finally:
        os._exit(0)


def _watch(control: socket.socket, kernel: Alive, pid: int) -> None:
    """Return when the child has ended or must end."""
    child = Alive(pid)
    while not kernel.gone() and not _ended(pid):
        if control.fileno() not in _wait([control.fileno(), kernel.fd, child.fd]):
            continue
        try:
            received = control.recv(64)
        except OSError:
            return
        for i in range(len(received)):
            command = received[i : i + 1]
            if command == KILL:
                return
            with contextlib.suppress(ProcessLookupError):
                if command == STOP:
                    _signal_all(pid, signal.SIGSTOP)
                elif command == CONTINUE:
                    _signal_all(pid, signal.SIGCONT)
                elif command == WHERE and WHERE_SIGNAL is not None:
                    os.kill(pid, WHERE_SIGNAL)
        if not received:  # the kernel dropped this run
            return


def _signal_all(pid: int, number: int) -> None:
    """The child's group, and what has left it: torchrun's ranks have sessions of their own."""
    os.killpg(pid, number)
    for one in descendants(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(one) != pid:
                os.kill(one, number)


def _ended(pid: int) -> bool:
    """Whether the child has ended; it stays a zombie, so that its pid is not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(pid: int) -> int:
    """Kill the child, its group and every other descendant; return the child's wait status."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    status = 0
    deadline = time.monotonic() + _REAP_WITHIN_S
    while time.monotonic() < deadline:
        try:
            reaped, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if reaped == pid:
            status = how
        elif reaped == 0:
            for orphan in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.002)
    return status


def _child(guard_pid: int, commands: int, events: int, output: int) -> None:
    """Become the child: own group, own standard streams, then the worker. Never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard_pid:  # it had died before the line above
            os._exit(1)
        _prctl(_PR_SET_NAME, b"perfkit-run")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(empty)
        os.close(output)
        from perfkit.experiment.process import _serve

        code = _serve.serve(commands, events)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _tell(control: socket.socket, message: str) -> None:
    with contextlib.suppress(OSError):  # the kernel has ended
        control.sendall(message.encode())


def _prctl(option: int, value: int | bytes) -> None:
    # a failure is not an error: these are safeguards, or a name for ps
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
