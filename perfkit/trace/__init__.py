"""Where the time of a step goes: Kineto traces, just recorded or from a file, as columns.

Pure functions over columns, one question a file; recording stands beside them.
"""

from __future__ import annotations

from perfkit.trace.breakdown import Breakdown, StepBreakdown, breakdown
from perfkit.trace.columns import Category, Trace
from perfkit.trace.cost import Cost
from perfkit.trace.lines import Line, LineSamples
from perfkit.trace.load import load
from perfkit.trace.operators import Operator, operators
from perfkit.trace.record import Recorder, Recording
from perfkit.trace.steps import Steps, find_steps
from perfkit.trace.syncs import Sync, syncs

__all__ = [
    "Breakdown",
    "Category",
    "Cost",
    "Line",
    "LineSamples",
    "Operator",
    "Recorder",
    "Recording",
    "StepBreakdown",
    "Steps",
    "Sync",
    "Trace",
    "breakdown",
    "find_steps",
    "load",
    "operators",
    "syncs",
]
