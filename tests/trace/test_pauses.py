"""Garbage collections in one thread are recorded, from start to stop."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest

from perfkit.trace.record.facts import GcPauses


def test_long_collections_are_noted_and_short_ones_are_not() -> None:
    pauses = GcPauses()
    pauses.start()
    try:
        keep = [[i] for i in range(200_000)]
        gc.collect()
        assert len(pauses.pauses_ms) >= 1
        assert min(pauses.pauses_ms) >= 0.1
        pauses.pauses_ms.clear()
    finally:
        pauses.stop()
    gc.collect()
    assert pauses.pauses_ms == []
    pauses.stop()
    del keep


def test_pauses_of_a_tenth_of_a_millisecond_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = GcPauses()
    pauses.start()
    pauses.stop()
    for took_ms in (0.09, 0.11):
        clock = iter((0.0, took_ms / 1e3))
        told = SimpleNamespace(perf_counter=clock.__next__)
        monkeypatch.setattr("perfkit.trace.record.facts.time", told)
        for phase in ("start", "stop"):
            pauses._collected(phase, {})
    assert pauses.pauses_ms == pytest.approx([0.11])


def test_collections_of_other_threads_are_theirs() -> None:
    pauses = GcPauses()
    thread = threading.Thread(target=pauses.start)
    thread.start()
    thread.join()
    keep = [[i] for i in range(200_000)]
    gc.collect()
    pauses.stop()
    assert pauses.pauses_ms == []
    del keep
