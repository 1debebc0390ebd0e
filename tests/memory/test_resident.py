"""The resident set: reported with its label, or as unknown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfkit.base.process_memory import resident_bytes
from perfkit.memory.resident import Resident, ResidentMeter


def _proc(folder: Path, mark_kib: int) -> Path:
    (folder / "status").write_text(f"Name:\tpython\nVmHWM:\t  {mark_kib} kB\nVmRSS:\t 1 kB\n")
    return folder


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_this_process_has_one() -> None:
    # an interpreter with torch takes more than 50 MB, and less than what 64 bits address
    assert 50e6 < resident_bytes() < 2**48


def test_before_and_after_are_read_and_labelled() -> None:
    meter = ResidentMeter()
    meter.start()
    result = meter.stop()
    assert result.before_bytes > 0
    assert result.after_bytes > 0
    assert "not tensor memory" in result.to_dict()["label"]
    assert (result.peak_bytes is None) == bool(result.why_no_peak)
    if result.peak_bytes is not None:
        assert result.peak_bytes >= max(result.before_bytes, result.after_bytes)


@linux
def test_the_mark_is_set_back_and_read(tmp_path: Path) -> None:
    meter = ResidentMeter(_proc(tmp_path, mark_kib=1))
    meter.start()
    assert (tmp_path / "clear_refs").read_bytes() == b"5"
    _proc(tmp_path, mark_kib=2**40)
    assert meter.stop().peak_bytes == 2**50


@linux
def test_a_nested_meter_does_not_take_the_peak_of_the_outer(tmp_path: Path) -> None:
    outer, inner = ResidentMeter(_proc(tmp_path, 1)), ResidentMeter(tmp_path)
    outer.start()
    _proc(tmp_path, 2**40)
    inner.start()
    _proc(tmp_path, 2**39)  # set back, and climbed less
    assert inner.stop().peak_bytes == 2**49
    assert outer.stop().peak_bytes == 2**50


@linux
def test_a_refused_reset_makes_the_peak_unavailable(tmp_path: Path) -> None:
    folder = _proc(tmp_path, 1)
    (folder / "clear_refs").mkdir()  # cannot be written to, even by root
    meter = ResidentMeter(folder)
    meter.start()
    result = meter.stop()
    assert result.peak_bytes is None
    assert "cannot be set back" in result.why_no_peak


@linux
def test_a_kernel_without_the_mark_is_said_so(tmp_path: Path) -> None:
    meter = ResidentMeter(tmp_path)
    meter.start()
    assert "VmHWM" in meter.stop().why_no_peak


def test_elsewhere_than_on_linux_the_peak_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    meter = ResidentMeter(_proc(tmp_path, 1))
    meter.start()
    assert "darwin" in meter.stop().why_no_peak
    assert Resident.LABEL == "resident set of the process (not tensor memory)"
