"""When the claims of lesson 04 hold."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.base.machine import facts
from perfkit.course.ledger.criteria import criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_04_dataloader.lesson import Ahead
from perfkit.experiment.compare.knee import Knee
from perfkit.measure.compare import Comparison

_LESSON = "04-dataloader"
# One batch of the source: 32 pictures of 512 × 512 as float32, masks as int64.
_BATCH_BYTES = 32 * 512 * 512 * (3 * 4 + 8)


@criterion(
    "A8",
    lesson=_LESSON,
    title="batches that workers hold, predicted and measured",
    holds_if="idle workers hold workers × prefetch_factor batches, in each arrangement",
)
def memory_of_workers(held: Mapping[tuple[int, int], Ahead]) -> Outcome:
    """Judge what is held by (workers, prefetch_factor), ``(1, 2)`` and ``(2, 4)`` among them."""
    figures = {
        "batch_bytes": Figure.exact(_BATCH_BYTES, "B"),
        "batches_per_worker": Figure.exact(held[1, 2].batches),
        "eight_workers_bytes": Figure(8 * 2 * _BATCH_BYTES, "B", kind="predicted"),
        "source_bytes": Figure(8 * _BATCH_BYTES, "B", kind="predicted"),
    }
    shared = held[2, 4].shared_bytes
    if shared is not None:
        figures["shared_ratio"] = Figure(shared / held[2, 4].nbytes, "×")
    return Outcome(
        holds=all(w * p == ahead.batches for (w, p), ahead in held.items()),
        figures=figures,
        headline="batches_per_worker",
        sentence="Workers hold workers × prefetch_factor batches (counted). The source counts one "
        f"batch a worker: its 1,336 MB for 8 workers are {8 * 2 * _BATCH_BYTES / 1e6:,.0f} MB with "
        "the usual prefetch_factor of 2 (predicted).",
    )


@criterion(
    "A10",
    lesson=_LESSON,
    title="the number of workers by measurement",
    holds_if="the knee of a sweep over num_workers is above 0, and it is certain that no worker at "
    "all is slower",
)
def by_measurement(knee: Knee) -> Outcome:
    """Judge the knee of ``num_workers``."""
    holds: bool | None = knee.value > 0
    if 0 in knee.undecided or (not holds and not knee.sure):
        holds = None
    return Outcome(
        holds=holds,
        figures={"knee": Figure(knee.value, "1"), "best": Figure(knee.best, "1")},
        headline="knee",
        sentence=f"{knee.sentence} It depends on sample, step and cores.",
    )


@criterion(
    "B1",
    lesson=_LESSON,
    title="a DataLoader against a loop by hand",
    holds_if="a DataLoader with two workers, which decode beside the step, is faster than a loop "
    "by hand",
)
def by_hand(no_workers: Comparison, two_workers: Comparison) -> Outcome:
    """Judge a loop by hand against a DataLoader without workers, and against one with two."""
    return Outcome(
        holds=faster(two_workers),
        figures={"no_workers_ratio": Figure.of(no_workers), "time_ratio": Figure.of(two_workers)},
        headline="time_ratio",
        sentence=f"Against a loop by hand, a DataLoader without workers is {no_workers.ratio:.2f}× "
        f"as fast, and with two workers, which decode beside the step, {two_workers.ratio:.2f}×.",
    )


@criterion(
    "B2",
    lesson=_LESSON,
    title="two workers against none",
    holds_if="two workers that decode beside the step are faster than none",
)
def with_workers(timed: Comparison) -> Outcome:
    """Judge an epoch without workers against one with two."""
    return Outcome(
        holds=faster(timed),
        figures={"time_ratio": Figure.of(timed)},
        headline="time_ratio",
        sentence=f"Two workers that decode beside the step make it {timed.ratio:.2f}× as fast "
        f"on {facts().cores} cores.",
    )


@criterion(
    "C5",
    lesson=_LESSON,
    title="decoding beside the step, and how far ahead",
    holds_if="one worker that decodes beside the step is faster than decoding in it",
)
def asynchronously(beside: Comparison, depth: Comparison) -> Outcome:
    """Judge decoding in the step against beside it, which is measured; ``depth`` compares queues
    before late samples, which sleep.
    """
    return Outcome(
        holds=faster(beside),
        figures={
            "time_ratio": Figure.of(beside),
            "depth_ratio": Figure.of(depth, kind="simulated"),
        },
        headline="time_ratio",
        sentence=f"Decoding in one worker beside the step makes it {beside.ratio:.2f}× as fast; "
        f"simulated late samples: 8 batches ahead are {depth.ratio:.2f}× as fast as 1.",
    )


@criterion(
    "D5",
    lesson=_LESSON,
    title="threads against processes for pure Python",
    holds_if="two workers run pure Python faster than two threads of one interpreter",
)
def threads_or_processes(threads: Comparison, processes: Comparison, beside: Comparison) -> Outcome:
    """Judge one thread against two, one against two workers, and two threads against those."""
    return Outcome(
        holds=faster(beside),
        figures={
            "threads_ratio": Figure.of(threads),
            "processes_ratio": Figure.of(processes),
            "processes_to_threads_ratio": Figure.of(beside),
            "cores": Figure.exact(facts().cores),
        },
        headline="processes_ratio",
        sentence=f"Two processes run pure Python {processes.ratio:.2f}× as fast as one thread "
        f"does, two threads of one interpreter {threads.ratio:.2f}×.",
    )


@criterion(
    "D6",
    lesson=_LESSON,
    title="an IterableDataset read by several workers",
    holds_if="two ranks with two workers each read every sample four times, and once if each reads "
    "its share",
)
def duplicates(without: Mapping[int, int], shared: Mapping[int, int]) -> Outcome:
    """Judge how often each sample is read, without shares and with them."""
    return Outcome(
        holds=set(without.values()) == {4} and set(shared.values()) == {1},
        figures={
            "times_read": Figure.exact(max(without.values())),
            "times_read_shared": Figure.exact(max(shared.values())),
        },
        headline="times_read",
        sentence="Without shares, two ranks with two workers each read every sample "
        f"{max(without.values())} times.",
    )
