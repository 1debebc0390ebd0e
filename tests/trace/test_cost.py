"""The cost of profiling is told beside the result, and not at all if steps differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfkit.trace.record.recording import Cost


def _sentence(profiled_ms: float, unprofiled_ms: float) -> str:
    return Cost(profiled_ms, unprofiled_ms, 6, 5, 0.1, 0.2, 1000).sentence()


def test_words() -> None:
    said = _sentence(12.0, 10.1)
    assert "a profiled step took 12.0 ms (n=6), one after recording" in said
    assert "which still has perfkit's hooks, 10.1 ms (n=5);" in said
    assert "the cost is unknown" in _sentence(3.0, 10.0)  # a profiler makes nothing faster
    assert "the cost is unknown" in _sentence(1000.0, 10.0)  # they compile, say


@pytest.mark.parametrize(
    ("profiled", "later", "plain"), [(12.0, 10.0, 10.0), (40.0, 10.0, None), (10.0, 18.0, None)]
)
def test_later_steps_count_where_they_are_the_same_but_for_the_profiler(
    profiled: float, later: float, plain: float | None
) -> None:
    assert Cost(profiled, later, 6, 3, 0.1, 0.2, 10).plain_step_ms == plain


def test_what_stays_slower_afterwards_is_said() -> None:
    known = Cost(None, None, 0, 0, 0.1, 0.2, 10)
    assert "restart" not in known.sentence()
    assert "CUPTI stays attached" in replace(known, stays_attached=True).sentence()
