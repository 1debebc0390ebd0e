"""Where the time of a step goes: Kineto traces, just recorded or from a file, as columns.

Pure functions over columns, one question a file; recording stands beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.base.extras import found_when_asked

if TYPE_CHECKING:
    from perfkit.base.scrub import scrub
    from perfkit.trace.ask.breakdown import Breakdown, StepBreakdown, breakdown
    from perfkit.trace.ask.communication import Communication, communication
    from perfkit.trace.ask.compiled import Compiled, compiled
    from perfkit.trace.ask.copies import Copies, copies
    from perfkit.trace.ask.critical_path import CriticalPath, critical_path
    from perfkit.trace.ask.diff import Diff, diff
    from perfkit.trace.ask.flops import Flops, flops
    from perfkit.trace.ask.idle import Idle, idle
    from perfkit.trace.ask.kernels import Kernels, kernels
    from perfkit.trace.ask.limit import Limit, limit
    from perfkit.trace.ask.memory_curve import MemoryCurve, memory_curve
    from perfkit.trace.ask.modules import Modules, SourceLines, modules, source_lines
    from perfkit.trace.ask.operators import Operator, operators
    from perfkit.trace.ask.queue import LaunchQueue, launch_queue
    from perfkit.trace.ask.ranks import Ranks, ranks
    from perfkit.trace.ask.sequences import Sequences, sequences
    from perfkit.trace.ask.syncs import Sync, syncs
    from perfkit.trace.ask.waterfall import Waterfall, WaterfallChange, waterfall
    from perfkit.trace.read.columns import Category, Trace
    from perfkit.trace.read.load import load
    from perfkit.trace.read.save import save
    from perfkit.trace.read.steps import Steps, find_steps
    from perfkit.trace.record.lines import Line, LineSamples
    from perfkit.trace.record.record import Recorder
    from perfkit.trace.record.recording import Cost, Recording

__all__ = [
    "Breakdown",
    "Category",
    "Communication",
    "Compiled",
    "Copies",
    "Cost",
    "CriticalPath",
    "Diff",
    "Flops",
    "Idle",
    "Kernels",
    "LaunchQueue",
    "Limit",
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
    "Waterfall",
    "WaterfallChange",
    "breakdown",
    "communication",
    "compiled",
    "copies",
    "critical_path",
    "diff",
    "find_steps",
    "flops",
    "idle",
    "kernels",
    "launch_queue",
    "limit",
    "load",
    "memory_curve",
    "modules",
    "operators",
    "ranks",
    "save",
    "scrub",
    "sequences",
    "source_lines",
    "syncs",
    "waterfall",
]

# module -> the names that it defines; imported on first use, because a profile asks few of them
_DEFINED_IN = {
    "perfkit.base.scrub": "scrub",
    "perfkit.trace.ask.breakdown": "Breakdown StepBreakdown breakdown",
    "perfkit.trace.ask.communication": "Communication communication",
    "perfkit.trace.ask.compiled": "Compiled compiled",
    "perfkit.trace.ask.copies": "Copies copies",
    "perfkit.trace.ask.critical_path": "CriticalPath critical_path",
    "perfkit.trace.ask.diff": "Diff diff",
    "perfkit.trace.ask.flops": "Flops flops",
    "perfkit.trace.ask.idle": "Idle idle",
    "perfkit.trace.ask.kernels": "Kernels kernels",
    "perfkit.trace.ask.limit": "Limit limit",
    "perfkit.trace.ask.memory_curve": "MemoryCurve memory_curve",
    "perfkit.trace.ask.modules": "Modules SourceLines modules source_lines",
    "perfkit.trace.ask.operators": "Operator operators",
    "perfkit.trace.ask.queue": "LaunchQueue launch_queue",
    "perfkit.trace.ask.ranks": "Ranks ranks",
    "perfkit.trace.ask.sequences": "Sequences sequences",
    "perfkit.trace.ask.syncs": "Sync syncs",
    "perfkit.trace.ask.waterfall": "Waterfall WaterfallChange waterfall",
    "perfkit.trace.read.columns": "Category Trace",
    "perfkit.trace.read.load": "load",
    "perfkit.trace.read.save": "save",
    "perfkit.trace.read.steps": "Steps find_steps",
    "perfkit.trace.record.lines": "Line LineSamples",
    "perfkit.trace.record.record": "Recorder",
    "perfkit.trace.record.recording": "Cost Recording",
}

if not TYPE_CHECKING:  # there, a misspelt name is an error
    __getattr__ = found_when_asked(
        globals(), {name: home for home, names in _DEFINED_IN.items() for name in names.split()}
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
