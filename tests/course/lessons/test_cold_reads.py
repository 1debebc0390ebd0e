"""Files are read from disk and not from the page cache, or there is no figure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfkit.course.lessons.lesson_03_storage_and_formats.cold_reads import cold_reads_ms


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"{n}.bin" for n in range(4)]
    for n, path in enumerate(made):
        path.write_bytes(bytes([n]) * 100_000)
    return made


def _disk_gave(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    left = list(counts)

    class Process:
        def io_counters(self) -> SimpleNamespace:
            return SimpleNamespace(read_bytes=left.pop(0))

    monkeypatch.setattr(psutil, "Process", Process)


def test_a_time_for_each_file_where_the_disk_gave_their_bytes(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _disk_gave(monkeypatch, 1000, 1000 + 400_000)
    times = cold_reads_ms(files)
    assert times is not None
    assert len(times) == 4
    assert min(times) > 0


def test_nothing_where_the_cache_kept_them(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _disk_gave(monkeypatch, 1000, 1000 + 100_000)
    assert cold_reads_ms(files) is None


def test_nothing_of_nothing() -> None:
    assert cold_reads_ms([]) is None
