"""Where the time of a step goes: Kineto traces, just recorded or from a file, as columns.

Pure functions over columns, one question a file; recording stands beside them.
"""

from __future__ import annotations

from perfkit.scrub import scrub
from perfkit.trace.breakdown import Breakdown, StepBreakdown, breakdown
from perfkit.trace.columns import Category, Trace
from perfkit.trace.communication import Communication, communication
from perfkit.trace.copies import Copies, copies
from perfkit.trace.cost import Cost
from perfkit.trace.critical_path import CriticalPath, critical_path
from perfkit.trace.diff import Diff, diff
from perfkit.trace.export import export
from perfkit.trace.flops import Flops, flops
from perfkit.trace.idle import Idle, idle
from perfkit.trace.kernels import Kernels, kernels
from perfkit.trace.lines import Line, LineSamples
from perfkit.trace.load import load
from perfkit.trace.memory_curve import MemoryCurve, memory_curve
from perfkit.trace.modules import Modules, SourceLines, modules, source_lines
from perfkit.trace.operators import Operator, operators
from perfkit.trace.queue import LaunchQueue, launch_queue
from perfkit.trace.ranks import Ranks, ranks
from perfkit.trace.record import Recorder, Recording
from perfkit.trace.sequences import Sequences, sequences
from perfkit.trace.steps import Steps, find_steps
from perfkit.trace.syncs import Sync, syncs

__all__ = [
    "Breakdown",
    "Category",
    "Communication",
    "Copies",
    "Cost",
    "CriticalPath",
    "Diff",
    "Flops",
    "Idle",
    "Kernels",
    "LaunchQueue",
    "Line",
    "LineSamples",
    "MemoryCurve",
    "Modules",
    "Operator",
    "Ranks",
    "Recorder",
    "Recording",
    "Sequences",
    "SourceLines",
    "StepBreakdown",
    "Steps",
    "Sync",
    "Trace",
    "breakdown",
    "communication",
    "copies",
    "critical_path",
    "diff",
    "export",
    "find_steps",
    "flops",
    "idle",
    "kernels",
    "launch_queue",
    "load",
    "memory_curve",
    "modules",
    "operators",
    "ranks",
    "scrub",
    "sequences",
    "source_lines",
    "syncs",
]
