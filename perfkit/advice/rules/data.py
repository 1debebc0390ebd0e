"""Waiting for data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules import rule
from perfkit.base.words import fmt_bound, fmt_ms, fmt_share, plural
from perfkit.measure.loader_cause import loader_cause
from perfkit.trace.read.columns import Category
from perfkit.trace.read.events import FETCH
from perfkit.trace.read.steps import WHOLE

# Workers cost processes, memory and start-up: a smaller gain is not worth it.
_LEAST_GAIN = 1.1
# Handing over a batch from a worker costs some 0.1 ms (pickling, a pipe, a thread): data already in
# memory arrives sooner without workers.
_LEAST_WAIT_MS = 0.3
# Workers to propose if the number of cores is unknown, and at most: each is a process.
_USUAL_WORKERS, _MOST_WORKERS = 4, 8
# The training process needs one core, and so does each busy worker.
_FEW_CORES = 2
# Do not name a line for fewer samples than this.
_LEAST_SAMPLES = 5

#: Why a loader is slow → the rule: what helps, and what is learned about it, differs.
RULE_OF_CAUSE = {
    "disk": "dataloader-slow-disk",
    "code": "dataloader-slow-code",
    "workers": "dataloader-few-workers",
    "elsewhere": "dataloader-blocked",
}


@rule
def dataloader(case: Case) -> Iterator[Finding]:
    """The step waits for the DataLoader: there are no workers, or they are too slow."""
    lost, share = case.lost_to("data wait"), case.shares["data wait"]
    if case.ms_per_step(share) < _LEAST_WAIT_MS:
        return
    waits = case.rows(Category.ANNOTATION, Category.OP) & case.trace.begins(FETCH)
    names = {case.trace.names[i] for i in case.trace.name_id[waits]}
    alone = any("_SingleProcessDataLoaderIter" in name for name in names)
    evidence = [
        f"{fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) pass in the "
        f"DataLoader's __next__ ({', '.join(sorted(n.partition('#')[2] for n in names))})"
    ]
    of = "the line samples" if alone else "the workers' time"
    lines = (case.lines if alone else case.worker_lines).by_line()
    top = next((x for x in lines if x.in_data_wait or not alone), None)
    line = None
    if top is not None and top.n_samples >= _LEAST_SAMPLES:
        line = top.shown
        evidence.append(f"{fmt_share(top.share)} of {of} {'are' if alone else 'is'} at {top.where}")
    of_function: dict[str, float] = {}
    for one in lines:
        is_loop = one.is_framework or one.source.startswith("for ")  # over batches
        if (one.in_data_wait or not alone) and not is_loop:
            of_function[one.function] = of_function.get(one.function, 0.0) + one.share
    gain, formula = amdahl(lost)
    cores = case.facts.n_cores
    n = min(cores or _USUAL_WORKERS, _MOST_WORKERS)
    seen = case.worker_lines.n_samples >= _LEAST_SAMPLES
    loads = sum(of_function.values()) if seen else 1.0
    cause = None if alone else loader_cause(case.facts.loading, lost=lost, loads=loads)
    if cause is None and case.on_device:
        idle = f"idle for {fmt_share(case.idle['data'])} of each step"
        evidence.insert(1, f"meanwhile the device is {idle}")
    if cause is not None:
        name, title, what_to_do = RULE_OF_CAUSE[cause.kind], cause.title, cause.what_to_do
        evidence += (*cause.evidence, *cause.doubts)
        gain, formula = cause.gain_at_most, cause.formula
    elif alone:
        name = "dataloader-no-workers"
        title = "The DataLoader has no workers: loading and the model take turns"
        what_to_do = (
            f"loader = DataLoader(dataset, ..., num_workers={n}, persistent_workers=True)\n"
            "# then try more and fewer: measure"
        )
        name_of, most = max(of_function.items(), key=lambda one: one[1], default=("", 0.0))
        if most >= share / 2 and not name_of.startswith(("__", "<")):
            what_to_do += (
                f"\n# {fmt_share(most)} of the time is in {name_of}(): what is the same there for "
                "each\n# example, make once (in __init__; lru_cache(8))"
            )
        if cores is not None and cores <= _FEW_CORES:
            evidence.append(
                f"{plural(cores, 'core')} for this process: each worker needs one to spare, so do "
                "less work for each sample first"
            )
        # workers load that many batches at once, alongside the rest of the step, which is
        # unchanged: the longer of the two is the new step
        gain = 1.0 / max(share / n, 1.0 - lost)
        formula = (
            f"at most 1 / max({share:.2f} / {n}, {1.0 - lost:.2f}) = {fmt_bound(gain)}, with "
            f"{plural(n, 'worker')} loading alongside the rest of the step"
        )
    else:
        name, title = "dataloader-slow-workers", "The DataLoader's workers do not keep up"
        what_to_do = (
            f"loader = DataLoader(dataset, ..., num_workers={n}, prefetch_factor=4)\n"
            "# then make __getitem__ cheaper; small samples that are in memory: num_workers=0"
        )
        if case.steps.how_found == WHOLE and np.count_nonzero(waits) == 1:
            # nothing says that another one came before: workers are processes that have to start
            title = "The one batch that was fetched came late: perhaps its workers started then"
            what_to_do = (
                "loader = DataLoader(dataset, ..., num_workers=0)  # for a few batches\n"
                "# for many, record more of them: workers start once with persistent_workers=True"
            )
    if gain >= _LEAST_GAIN:
        yield Finding(
            name, title, tuple(evidence), what_to_do, gain, formula, cures=("data",), line=line
        )
