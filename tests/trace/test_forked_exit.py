"""A process that a profiled program forks can end."""

from __future__ import annotations

import ctypes
import os
import time

import pytest
import torch

import perfkit
from perfkit.trace.record.profiler import let_forks_exit


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "on_exit"), reason="needs glibc")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this process has threads
def test_a_fork_ends_without_the_destructors_of_before() -> None:
    """Kineto's destructor waits for ever there, as this one does."""
    let_forks_exit()
    libc = ctypes.CDLL(None)
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    outer = os.fork()
    if outer == 0:
        libc.on_exit(ctypes.cast(libc.pause, ctypes.c_void_p), None)
        inner = os.fork()
        if inner == 0:
            ctypes.PyDLL(None).exit(4)  # with Python's lock: what is called at the end may need it
        os._exit(_code_within_10_s(inner))
    assert os.waitstatus_to_exitcode(os.waitpid(outer, 0)[1]) == 4


def _code_within_10_s(pid: int) -> int:
    for _ in range(1000):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    return 1


def test_a_profile_lets_forks_exit() -> None:
    let_forks_exit.cache_clear()
    perfkit.profile(lambda: torch.zeros(1).sum(), steps=1, warmup=0)
    assert let_forks_exit.cache_info().currsize == 1
