"""Where the time of a step goes: Kineto traces, just recorded or from a file, as columns.

Pure functions over columns, one question a file; recording stands beside them.
"""

from __future__ import annotations

from perfkit.trace.breakdown import Breakdown, StepBreakdown, breakdown
from perfkit.trace.columns import Category, Trace
from perfkit.trace.load import load
from perfkit.trace.steps import Steps, find_steps

__all__ = [
    "Breakdown",
    "Category",
    "StepBreakdown",
    "Steps",
    "Trace",
    "breakdown",
    "find_steps",
    "load",
]
