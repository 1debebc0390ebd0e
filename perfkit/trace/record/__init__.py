"""From a running profiler to columns."""
