"""Memory of this process: its resident set, and what malloc has handed out and need not keep.

This is the one place that reads either.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from perfkit.base.device import in_use
from perfkit.base.machine._host import memory_bytes


@functools.cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGESIZE")


def resident_bytes() -> int:
    """The RAM pages of this process now, in bytes, shared ones included.

    About 10 µs on Linux; elsewhere psutil is asked. No file stays open: a forked process would read
    its parent's.
    """
    return _pages()[0]


def private_bytes() -> int:
    """The same without pages of files and of memory that several processes share.

    What grows in these is a data set's file that is read, or a batch from a worker.
    """
    resident, shared = _pages()
    return resident - shared


def _pages() -> tuple[int, int]:
    """Bytes of resident pages, and of those among them that others may have, too."""
    try:
        # without Python's file objects, which take several times as long as the reading
        file = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            # second and third field: resident pages, shared ones (proc(5), /proc/pid/statm)
            resident, shared = os.read(file, 128).split()[1:3]
            return int(resident) * _page_bytes(), int(shared) * _page_bytes()
        finally:
            os.close(file)
    except (OSError, ValueError):
        import psutil

        info = psutil.Process().memory_info()
        return int(info.rss), int(getattr(info, "shared", 0))


def peak_resident_bytes() -> int | None:
    """The largest resident set of this process so far, in bytes; None where no system call says it.

    On Linux from the start, or since somebody wrote 5 to ``/proc/self/clear_refs``. About 50 µs.
    """
    if sys.platform == "linux":
        try:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except (OSError, IndexError, ValueError):
            pass
    import psutil

    # only Windows reports it
    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0)) or None


class _MallInfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc (since 2.33); see mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


@functools.cache
def _of_libc(name: str, result: Any) -> Any:
    """A function of the C library, which returns that; None where it has none of this name."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = result
    return function


def heap_bytes() -> int | None:
    """What glibc's malloc has handed out and not got back, in bytes; None elsewhere.

    Exact where the resident set is not: an object that takes the place of a freed one makes no
    page resident. CPU tensors and nodes of autograd graphs are in it, Python's small objects and
    what another allocator hands out are not.
    """
    use = heap_use()
    return None if use is None else use[0]


def heap_use() -> tuple[int, int] | None:
    """The same, and what malloc has got back and not given to the system.

    The latter is often hundreds of MiB: a block of 2 MiB that is asked for aligned, as torch does,
    does not fit where one of the same size was freed.
    """
    function = _of_libc("mallinfo2", _MallInfo2)
    if function is None:
        return None
    info = function()
    return int(info.uordblks + info.hblkhd), int(info.fordblks)


def give_back(least_bytes: int = 0) -> None:
    """Hand the free pages of glibc's malloc back to the system; nothing elsewhere.

    It keeps what was freed below a block in use: a million events that are read leave gigabytes.
    About 1 ms in a process that has loaded torch.

    Args:
        least_bytes: only where so much is free.
    """
    function = _of_libc("malloc_trim", ctypes.c_int)
    use = heap_use() if least_bytes else None
    if function is not None and (use is None or use[1] >= least_bytes):
        function(0)


def peak_of_memory() -> tuple[int, int] | None:
    """The most bytes that this process has held, and how many there are.

    Of the device that is fullest where one is in use; None if that does not say.
    """
    device = in_use()
    at = [] if device.is_cpu else device.devices()
    peaks = [(device.peak_allocated(i), device.total_bytes(i)) for i in at]
    used = [(peak, total) for peak, total in peaks if peak]
    if not used:  # a process may have used the GPU and train on the CPU now
        return peak_resident_bytes() or resident_bytes(), memory_bytes()
    known = [(peak, total) for peak, total in used if total]
    return max(known, key=lambda one: one[0] / one[1], default=None)
