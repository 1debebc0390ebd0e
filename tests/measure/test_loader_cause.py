"""Why a loader is slow: four made loaders, and what is not claimed. All figures are given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfkit.base.instrument import Instrument
from perfkit.base.machine.dataloader_stats import DataLoaderStats, ProcessUse
from perfkit.base.plain import fields
from perfkit.measure.loader_cause import loader_cause

MB = 10**6
# one worker over ten seconds
BUSY = ProcessUse(
    seen_s=10.0,
    cpu_s=9.6,
    waited_s=0.1,
    disk_bytes=0,
)


def use(worker: ProcessUse = BUSY, n: int = 2, **facts: object) -> DataLoaderStats:
    made = DataLoaderStats(
        wall_s=10.0,
        n_cores=8,
        workers=(worker,) * n,
        spare_cores=0.4,
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def test_slow_code():
    cause = loader_cause(use(), lost=0.75)
    assert cause is not None
    assert cause.kind == "code"
    assert cause.title == "The workers' own code is slow, and no core is free for more workers"
    assert cause.evidence[0] == (
        "each of 2 workers computes for 96 % of the time, and 0.4 of 8 cores have nothing to do"
    )
    assert cause.gain_at_most == pytest.approx(4.0)
    assert cause.formula == "4.0× at most: 1 / max(0.00, 0.25), if loading took no time"


def test_too_few_workers():
    cause = loader_cause(use(spare_cores=4.3), lost=0.75)
    assert cause is not None
    assert cause.kind == "workers"
    assert "4.3 of 8 cores have nothing to do" in cause.evidence[0]
    assert cause.gain_at_most == pytest.approx(3.0)  # 2 of 6 workers; the rest of the step is 0.25
    assert cause.formula == "3.0× at most: 1 / max(0.33, 0.25), with 6 workers"
    assert "num_workers=6" in cause.what_to_do


def test_slow_disk():
    reads = replace(BUSY, cpu_s=2.0, disk_bytes=900 * MB)
    cause = loader_cause(use(reads), lost=0.9)
    assert cause is not None
    assert cause.kind == "disk"
    assert cause.evidence[0] == (
        "each of 2 workers is blocked for 79 % of the time, and together they read 172 MiB/s from "
        "it"
    )
    # the workers' other time stays: 0.21, which is more than the rest of the step
    assert cause.gain_at_most == pytest.approx(1 / 0.21)


def test_a_wait_for_something_else():
    sleeps = replace(BUSY, cpu_s=0.5, disk_bytes=1 * MB)
    cause = loader_cause(use(sleeps), lost=0.8)
    assert cause is not None
    assert cause.kind == "elsewhere"
    assert "a network, a lock or a sleep" in cause.evidence[0]
    assert cause.gain_at_most == pytest.approx(4.0)


def test_workers_without_a_core_are_said():
    starved = replace(BUSY, cpu_s=5.0, waited_s=4.8)
    cause = loader_cause(use(starved, spare_cores=0.1), lost=0.5)
    assert cause is not None
    assert cause.kind == "code"
    assert "each of 2 workers is ready without a core for 48 % of the time" in cause.evidence
    starved = replace(BUSY, cpu_s=2.0, waited_s=7.8)
    cause = loader_cause(use(starved, spare_cores=0.1), lost=0.9)
    assert cause is not None
    assert cause.title == "The workers have no core to run on"


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, 0.1),  # the loader is no bound
        ({"worker": replace(BUSY, seen_s=0.2, cpu_s=0.1)}, 0.9),  # too short
        ({"worker": replace(BUSY, waited_s=None)}, 0.9),
        # neither at work nor blocked for long: workers that keep up most of the time
        ({"worker": replace(BUSY, cpu_s=6.0)}, 0.3),
        # no permission to read /proc/PID/io: a disk cannot be told from a sleep
        ({"worker": replace(BUSY, cpu_s=2.0, disk_bytes=None)}, 0.9),
        ({"spare_cores": None}, 0.9),
        ({"n": 0}, 0.9),  # no workers
    ],
)
def test_where_evidence_is_thin_no_cause_is_named(facts: dict[str, object], lost: float):
    assert loader_cause(use(**facts), lost=lost) is None  # type: ignore[arg-type]


def test_nothing_seen_nothing_said():
    assert loader_cause(None, lost=0.9) is None
    said = loader_cause(use(doubts=("1 of 3 workers lived too short to be seen",)), lost=0.9)
    assert said is not None
    assert said.doubts == ("1 of 3 workers lived too short to be seen",)
    assert fields(said)["kind"] == "code"


def test_the_verdict_of_a_watched_run_names_the_cause():
    from perfkit.measure.run import WatchedRun

    clock = iter(range(0, 10**12, 50_000_000))  # each look at the clock is 50 ms later

    class Looks:
        instrument = Instrument("looks")

        def look(self, *, now: bool = False) -> None:
            pass

        def result(self) -> DataLoaderStats:
            return use(spare_cores=4.3)

    watched = WatchedRun([1] * 40, now=lambda: next(clock))
    watched.tracker.looks = Looks()  # type: ignore[assignment]
    for _ in watched:
        pass
    summary = watched.summary
    assert summary.why_waiting is not None
    assert summary.why_waiting.kind == "workers"
    assert summary.to_dict()["why_waiting"]["kind"] == "workers"
    assert "There are too few workers: each of 2 workers computes for 96 %" in summary.sentence
    assert watched._instrument.failure is None
