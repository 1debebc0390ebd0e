"""What malloc has handed out, exact where the resident set is not; and what it need not keep."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


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
def _mallinfo2() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = _MallInfo2
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
    function = _mallinfo2()
    if function is None:
        return None
    info = function()
    return int(info.uordblks + info.hblkhd), int(info.fordblks)


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def give_back() -> None:
    """Hand the free pages of glibc's malloc back to the system; nothing elsewhere.

    It keeps what was freed below a block in use: a million events that are read leave gigabytes.
    About 1 ms in a process that has loaded torch.
    """
    function = _malloc_trim()
    if function is not None:
        function(0)
