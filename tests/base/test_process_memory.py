"""The resident set of this process."""

from __future__ import annotations

import mmap
import os
from typing import Any

import psutil
import pytest

from perfkit.base.process_memory import peak_resident_bytes, resident_bytes


def test_it_is_what_the_system_says() -> None:
    before = psutil.Process().memory_info().rss
    found = resident_bytes()
    after = psutil.Process().memory_info().rss
    assert min(before, after) - 2**24 < found < max(before, after) + 2**24


def test_without_proc_another_reader_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, flags: int, **_: Any) -> int:
        raise FileNotFoundError(path)

    known = resident_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        found = resident_bytes()
    assert abs(found - known) < 2**25


def test_the_peak_stays_when_memory_is_given_back() -> None:
    held = mmap.mmap(-1, 2**26)  # which malloc cannot keep
    held.write(b"x" * 2**26)
    with_it = resident_bytes()
    held.close()
    peak = peak_resident_bytes()
    if peak is None:
        pytest.skip("this kernel does not report VmHWM")
    assert peak > with_it - 2**24  # the kernel adds up pages per thread, so a few are missing
    assert resident_bytes() < with_it - 2**25
