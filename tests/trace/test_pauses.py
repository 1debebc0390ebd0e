"""Garbage collections in one thread are recorded, from start to stop."""

from __future__ import annotations

import gc
import threading

from perfkit.trace.record.pauses import GcPauses


def test_long_collections_are_noted_and_short_ones_are_not() -> None:
    pauses = GcPauses(threading.get_ident())
    pauses.start()
    try:
        keep = [[i] for i in range(200_000)]
        gc.collect()
        assert len(pauses.pauses_ms) >= 1
        assert min(pauses.pauses_ms) >= 0.1
        pauses.forget()
        assert pauses.pauses_ms == ()
    finally:
        pauses.stop()
    gc.collect()
    assert pauses.pauses_ms == ()
    pauses.stop()
    del keep


def test_collections_of_other_threads_are_theirs() -> None:
    pauses = GcPauses(threading.get_ident() + 1)
    pauses.start()
    keep = [[i] for i in range(200_000)]
    gc.collect()
    pauses.stop()
    assert pauses.pauses_ms == ()
    del keep
