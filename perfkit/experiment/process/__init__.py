"""The process in which a workload runs, and what comes of a run."""
