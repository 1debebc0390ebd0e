"""A process that is forked after torch's profiler has run can end.

Kineto, which that profiler is built on, keeps a thread from its first use on. A forked process does
not have that thread, but its ``exit`` runs a destructor that waits for it: the process finished its
work and then hung for ever (torch 2.13, also without perfkit).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Any


@functools.cache
def let_forks_exit() -> None:
    """From now on, a forked process ends without C++'s destructors, once Python has ended in it.

    Its files are written out and its exit code stays. Processes that end by ``os._exit``, as those
    of multiprocessing do, never ran them.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no glibc: no such wait either
        libc: Any = ctypes.CDLL(None)
        last = [ctypes.cast(f, ctypes.c_void_p) for f in (libc._exit, libc.fcloseall)]
        libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

        def in_child() -> None:
            for function in last:  # they are called in the reverse order, before all earlier ones
                libc.on_exit(function, None)

        os.register_at_fork(after_in_child=in_child)
