"""What held the machine itself back, from made figures: no test depends on this one."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfkit.base.machine import throttling
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.machine.throttling import HostThrottling, PagesRead, Throttled, read_quota

CALM = HostThrottling(
    wall_s=10.0,
    process_s=10.0,
    clock_mhz=3000.0,
    max_mhz=3800.0,
    major_faults=3,
    swapped_in_bytes=0,
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _clocks(*mhz: tuple[float, float]) -> list[SimpleNamespace]:
    return [SimpleNamespace(current=now, max=most) for now, most in mhz]


def test_the_clock_is_that_of_the_fastest_core_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(
        psutil, "cpu_freq", lambda percpu: _clocks((1000, 3800), (2000, 3900), (3000, 4000))
    )
    monkeypatch.setattr(throttling.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    seen = HostThrottling.between(PagesRead(5, 100), PagesRead(9, 400), wall_s=4.0, process_s=2.0)
    assert (seen.clock_mhz, seen.max_mhz) == (2000, 3900)
    assert (seen.major_faults, seen.swapped_in_bytes) == (4, 300)


@pytest.mark.parametrize("clocks", [[], _clocks((2445.0, 0.0))])
def test_a_system_that_tells_nothing_claims_nothing(
    clocks: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch
):
    """As a virtual machine, which knows no highest clock."""
    monkeypatch.setattr(psutil, "cpu_freq", lambda percpu: clocks)
    for before, now in ((PagesRead(), PagesRead(9, 9)), (PagesRead(9, 9), PagesRead())):
        seen = HostThrottling.between(before, now, wall_s=10.0, process_s=10.0)
        assert seen == HostThrottling(10.0, 10.0)
        assert seen.sentences() == ()


def test_it_reads_this_machine():
    seen = PagesRead.read()
    assert seen.major_faults is None or seen.major_faults >= 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clock_mhz": 2000.0}, "ran at 2.00 GHz of at most 3.80 GHz"),
        ({"major_faults": 5000}, "5,000 pages of mapped files came from the disk"),
        ({"major_faults": 5000}, "at least 500 ms, at 0.1 ms a page from an SSD"),
        ({"major_faults": 5000, "swapped_in_bytes": 20 * 2**20}, "swapped 20.0 MiB in"),
    ],
)
def test_what_explains_lost_time_is_said(change: dict[str, float], said: str):
    (sentence,) = replace(CALM, **change).sentences()
    assert said in sentence


@pytest.mark.parametrize(
    ("low", "high"),
    [
        # half of a core is work enough for a high clock
        ({"clock_mhz": 1200.0, "process_s": 4.9}, {"clock_mhz": 1200.0, "process_s": 5.1}),
        ({"clock_mhz": 2300.0}, {"clock_mhz": 2260.0}),  # 60 % of the highest one
        ({"major_faults": 1990}, {"major_faults": 2010}),  # 2 % of the time
        ({"wall_s": 0.19, "major_faults": 99}, {"wall_s": 0.21, "major_faults": 99}),
        # what others swapped in
        ({"swapped_in_bytes": 2**30}, {"swapped_in_bytes": 2**30, "major_faults": 5000}),
    ],
)
def test_what_costs_too_little_is_not_said(low: dict[str, float], high: dict[str, float]):
    assert replace(CALM, **low).sentences() == ()
    assert len(replace(CALM, **high).sentences()) == 1


def test_memory_was_short_where_a_tenth_of_the_pages_was_swapped_out_before():
    for pages, short in ((490, False), (510, True)):
        swapped = pages * mmap.PAGESIZE
        (said,) = replace(CALM, major_faults=5000, swapped_in_bytes=swapped).sentences()
        assert ("Memory was short" in said) is short


V2 = "usage_usec 9\nnr_periods {0}\nnr_throttled {1}\nthrottled_usec {2}\n"


def quota(root: Path, n: int, throttled: int, summed_s: float) -> Path:
    return write(
        root,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/outer/cpu.stat": V2.format(n, throttled, round(summed_s * 1e6)),
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
            "sys/fs/cgroup/outer/inner/cpu.stat": V2.format(n, 0, 0),
        },
    )


def test_a_quota_of_an_outer_group_stops_it_too(tmp_path: Path):
    before = read_quota(quota(tmp_path, 10, 1, 0.1))
    now = read_quota(quota(tmp_path, 110, 81, 16.1))
    seen = Throttled.between(before, now)
    # 4 threads, a quota of 2 CPUs: each of the 80 periods is over after 50 of its 100 ms, and four
    # queues are stopped for the rest, which adds up to 80 · 4 · 50 ms = 16 s
    assert seen is not None
    assert seen.stopped_s == pytest.approx(4.0)
    assert (seen.cpus, seen.n_periods, seen.n_throttled) == (2.0, 100, 80)
    busy = CpuContention(10.0, 4, 20.0, throttled_s=seen.stopped_s, throttled=seen)
    assert (
        "the container's CPU quota stopped it for 40 % of the time "
        "(the quota of 2.00 CPUs was used up in 80 of 100 periods)"
    ) in busy.sentence()
    assert busy.to_dict()["throttled"]["n_throttled"] == 80


def test_a_quota_of_version_1(tmp_path: Path):
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
    }
    before = read_quota(write(tmp_path, files))
    stat = "nr_periods 40\nnr_throttled 20\nthrottled_time 1000000000\n"
    now = read_quota(write(tmp_path, {"sys/fs/cgroup/cpu/cpu.stat": stat}))
    # 20 periods of 50 ms, 1 CPU: two queues stopped for half of each add up to 1 s
    seen = Throttled.between(before, now)
    assert seen is not None
    assert seen.stopped_s == pytest.approx(0.5)


def test_without_a_known_quota_no_more_is_lost_than_the_periods_that_it_stopped(tmp_path: Path):
    """The sum is one of several cores: 5 s of 10 periods, which the kernel makes 0.1 s long."""
    stat = "sys/fs/cgroup/cpu.stat"
    before = read_quota(write(tmp_path, {stat: V2.format(0, 0, 0)}))
    now = read_quota(write(tmp_path, {stat: V2.format(100, 10, 5_000_000)}))
    seen = Throttled.between(before, now)
    assert seen == Throttled(pytest.approx(1.0), None, 100, 10)


def test_a_group_without_a_quota_is_never_stopped(tmp_path: Path):
    assert read_quota(tmp_path) == {}
    assert Throttled.between({}, {}) is None
    counters = read_quota(quota(tmp_path, 5, 0, 0.0))
    seen = Throttled.between(counters, counters)
    assert seen is not None
    assert seen.stopped_s == 0


def test_the_verdict_of_a_watched_run_says_it():
    from perfkit.measure.run import WatchedRun

    class Mark:
        def until_now(self) -> CpuContention:
            return CpuContention(10.0, 2, 10.0, host=replace(CALM, clock_mhz=1200.0))

    watched = WatchedRun([1] * 12)
    for _ in watched:
        watched.tracker._mark = watched.tracker._mark or Mark()  # type: ignore[assignment]
    assert watched.summary.sentence.startswith(
        "The fastest core ran at 1.20 GHz of at most 3.80 GHz"
    )
    assert "waits for the loader" in watched.summary.sentence
