"""Garbage collections in one thread are recorded, from start to stop."""

from __future__ import annotations

import gc
import re
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import perfkit
from perfkit.trace.record.facts import GcPauses


def test_long_collections_are_noted_and_short_ones_are_not() -> None:
    pauses = GcPauses()
    pauses.start()
    try:
        keep = [[i] for i in range(200_000)]
        gc.collect()
        assert len(pauses.pauses) >= 1
        assert min(ms for _, ms in pauses.pauses) >= 0.1
        pauses.pauses.clear()
    finally:
        pauses.stop()
    gc.collect()
    assert pauses.pauses == []
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
    assert [ms for _, ms in pauses.pauses] == pytest.approx([0.11])


def test_collections_of_other_threads_are_theirs() -> None:
    pauses = GcPauses()
    thread = threading.Thread(target=pauses.start)
    thread.start()
    thread.join()
    keep = [[i] for i in range(200_000)]
    gc.collect()
    pauses.stop()
    assert pauses.pauses == []
    del keep


def test_what_is_collected_after_the_time_limit_is_of_no_recorded_code() -> None:
    """The pauses of a whole minute were told as a share of its first ten seconds: 538 %."""
    with perfkit.profile(max_seconds=0.3) as profiling:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            torch.rand(8).sum()
            cycles: list[list[object]] = [[] for _ in range(60_000)]
            for one, other in pairwise(cycles):
                one.append(other)
    (found,) = (f for f in profiling.result.diagnosis.findings if f.rule == "gc-pauses")
    shown = re.search(r"\((\d+) %\)", found.evidence[0])
    assert shown
    assert int(shown[1]) <= 100
    assert "step" not in found.title + found.evidence[0]
