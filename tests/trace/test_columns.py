"""Intermediate results shared by several answers are computed once and cannot be modified."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_traces import gpu_training

from perfkit.trace import breakdown, find_steps, load
from perfkit.trace.read.columns import Category
from perfkit.trace.read.events import runtime_calls


def test_an_answer_is_kept_and_cannot_be_written_to() -> None:
    trace = load(gpu_training(3).json())
    ops = trace.is_a(Category.OP)
    assert trace.is_a(Category.OP) is ops
    assert trace.is_a(Category.OP, Category.KERNEL).sum() > ops.sum()
    with pytest.raises(ValueError, match="read-only"):
        ops &= False
    steps = find_steps(trace)
    assert runtime_calls(trace, steps) is runtime_calls(trace, steps)


def test_a_changed_trace_has_answers_of_its_own() -> None:
    trace = load(gpu_training(3).json())
    before = breakdown(trace).shares()
    longer = replace(trace, category=trace.category.copy())
    longer.category[:] = Category.OTHER
    assert trace.is_a(Category.OP).any()
    assert not longer.is_a(Category.OP).any()
    assert breakdown(trace).shares() == before
