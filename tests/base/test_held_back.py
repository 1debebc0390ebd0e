"""What held the machine itself back, from made files and counters: no test depends on this one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from perfkit.base.machine.busy import Busy, BusyMark
from perfkit.base.machine.held_back import HeldBack, HostReading
from perfkit.base.machine.quota import Throttled, read_quota

CALM = HeldBack(
    wall_s=10.0,
    process_s=10.0,
    clock_mhz=3000.0,
    base_mhz=2100.0,
    max_mhz=3800.0,
    governor="powersave",
    hot_s=0.0,
    n_hot=0,
    major_faults=3,
    swapped_in_bytes=0,
    swapped_out_bytes=0,
    memory_stalled_s=0.0,
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, **said: str) -> Path:
    """A made /proc and /sys, with the first core that this process may use."""
    core = f"sys/devices/system/cpu/cpu{min(os.sched_getaffinity(0))}"
    files = {
        f"{core}/cpufreq/scaling_cur_freq": "3000000\n",
        f"{core}/cpufreq/base_frequency": "2100000\n",
        f"{core}/cpufreq/cpuinfo_max_freq": "3800000\n",
        f"{core}/cpufreq/scaling_governor": "powersave\n",
        f"{core}/thermal_throttle/core_throttle_total_time_ms": "100\n",
        f"{core}/thermal_throttle/core_throttle_count": "7\n",
        "proc/self/stat": f"12 (a (b) c) {' '.join(['0'] * 9)} 20 5 {' '.join(['0'] * 30)}\n",
        "proc/vmstat": "nr_free_pages 1\npswpin 10\npswpout 20\n",
        "proc/pressure/memory": "some avg10=0.00 total=1500000\nfull avg10=0.00 total=1\n",
    }
    by_ending = {name: next(n for n in files if n.endswith(name)) for name in said}
    return write(root, files | {by_ending[name]: text for name, text in said.items()})


linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="reads Linux's files")


@linux
def test_one_reading_of_made_files(tmp_path: Path):
    page = os.sysconf("SC_PAGE_SIZE")
    assert HostReading.read(machine(tmp_path)) == HostReading(
        clock_mhz=3000.0,
        base_mhz=2100.0,
        max_mhz=3800.0,
        governor="powersave",
        hot_s=(0.1,),
        n_hot=7,
        major_faults=25,
        swapped_in_bytes=10 * page,
        swapped_out_bytes=20 * page,
        memory_stalled_s=1.5,
    )


def test_the_clock_is_that_of_the_fastest_core_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3}, raising=False)
    for core, mhz, governor in ((0, 900, "a"), (1, 5000, "b"), (2, 3100, "c"), (3, 1200, "d")):
        folder = f"sys/devices/system/cpu/cpu{core}/cpufreq"
        files = {f"{folder}/scaling_cur_freq": f"{mhz}000", f"{folder}/scaling_governor": governor}
        write(tmp_path, files)
    seen = HostReading.read(tmp_path)
    assert (seen.clock_mhz, seen.governor) == (3100.0, "c")


@linux
@pytest.mark.parametrize(
    "broken",
    [
        {"scaling_cur_freq": "<unknown>", "stat": "", "memory": "", "vmstat": "pswpin x"},
        {"stat": "12 (name) S", "memory": "some avg10=0.00", "core_throttle_count": "\n"},
    ],
)
def test_odd_files_are_unknown_and_raise_nothing(tmp_path: Path, broken: dict[str, str]):
    seen = HostReading.read(machine(tmp_path, **broken))
    assert (seen.major_faults, seen.memory_stalled_s) == (None, None)


def test_a_system_that_tells_nothing_claims_nothing(tmp_path: Path):
    seen = HostReading.read(tmp_path)
    assert seen == HostReading()
    assert HeldBack.between(seen, seen, wall_s=10, process_s=10).sentences() == ()


def test_two_readings_give_what_happened_between_them():
    before = HostReading(
        hot_s=(9.0, 1.0), n_hot=4, major_faults=10, swapped_in_bytes=100, memory_stalled_s=1.0
    )
    now = HostReading(
        hot_s=(9.0, 3.0), n_hot=6, major_faults=30, swapped_in_bytes=400, memory_stalled_s=1.5
    )
    seen = HeldBack.between(before, now, wall_s=4.0, process_s=2.0)
    # of the core that was throttled longest, which is not the one with the longest history
    assert (seen.hot_s, seen.n_hot, seen.major_faults) == (2.0, 2, 20)
    assert (seen.swapped_in_bytes, seen.swapped_out_bytes, seen.memory_stalled_s) == (
        300,
        None,
        0.5,
    )


def test_what_only_one_of_two_readings_knows_is_unknown():
    known = HostReading(
        hot_s=(1.0,), n_hot=1, major_faults=9, swapped_in_bytes=9, memory_stalled_s=1.0
    )
    for before, now in ((HostReading(), known), (known, HostReading())):
        seen = HeldBack.between(before, now, wall_s=4.0, process_s=2.0)
        assert (seen.hot_s, seen.n_hot, seen.major_faults) == (None, None, None)
        assert (seen.swapped_in_bytes, seen.memory_stalled_s) == (None, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hot_s": 1.5, "n_hot": 12}, "throttled itself for heat for 15 % of the time, 12 times"),
        ({"hot_s": 6.0}, "for heat for 60 % of the time:"),
        ({"hot_s": 12.0}, "for heat for 100 % of the time:"),
        ({"clock_mhz": 1200.0}, "ran at 1.20 GHz of at most 3.80 GHz"),
        ({"clock_mhz": 1200.0}, "below its base clock of 2.10 GHz"),
        ({"clock_mhz": 1200.0}, "(governor: powersave)"),
        ({"clock_mhz": 2000.0, "base_mhz": None}, "ran at 2.00 GHz of at most 3.80 GHz"),
        ({"major_faults": 5000}, "5,000 pages of mapped files came from the disk"),
        ({"major_faults": 5000}, "at least 500 ms, at 0.1 ms a page from an SSD"),
        (
            {"major_faults": 5000, "swapped_in_bytes": 20 * 2**20, "swapped_out_bytes": 2**30},
            "swapped 20.0 MiB in and 1.00 GiB out",
        ),
        ({"memory_stalled_s": 6.0}, "programs waited for it for 60 % of the time"),
        ({"memory_stalled_s": 12.0}, "programs waited for it for 100 % of the time"),
    ],
)
def test_what_explains_lost_time_is_said(change: dict[str, float], said: str):
    sentences = replace(CALM, **change).sentences()
    assert len(sentences) == 1
    assert said in sentences[0]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"hot_s": 0.1},  # 1 % of the time
        {"clock_mhz": 2500.0},  # all cores at work: below the highest clock, above the base clock
        {"clock_mhz": 1200.0, "process_s": 1.0},  # it had little to do: a low clock is right
        {"clock_mhz": 2400.0, "base_mhz": None},  # 63 % of the highest: usual with all cores
        {"max_mhz": None, "clock_mhz": 800.0, "base_mhz": None},
        {"major_faults": 1900},  # 190 ms of 10 s
        {"swapped_in_bytes": 2**30, "swapped_out_bytes": 2**30},  # of others: nothing here waited
        {"memory_stalled_s": 0.4},
        {"wall_s": 0.1, "major_faults": 5000, "hot_s": 0.1},  # too short to know
    ],
)
def test_what_explains_nothing_is_not_said(change: dict[str, float]):
    assert replace(CALM, **change).sentences() == ()


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"hot_s": 0.19}, {"hot_s": 0.21}),  # 2 % of the time
        # half of a core is work enough for a high clock
        ({"clock_mhz": 1200.0, "process_s": 4.9}, {"clock_mhz": 1200.0, "process_s": 5.1}),
        ({"clock_mhz": 2110.0}, {"clock_mhz": 2090.0}),  # the base clock
        # 60 % of the highest one
        ({"clock_mhz": 2300.0, "base_mhz": None}, {"clock_mhz": 2260.0, "base_mhz": None}),
        ({"major_faults": 1990}, {"major_faults": 2010}),  # 2 % of the time
        ({"memory_stalled_s": 0.49}, {"memory_stalled_s": 0.51}),  # 5 %
        ({"wall_s": 0.19, "hot_s": 0.1}, {"wall_s": 0.21, "hot_s": 0.1}),
    ],
)
def test_what_costs_too_little_is_not_said(low: dict[str, float], high: dict[str, float]):
    assert replace(CALM, **low).sentences() == ()
    assert len(replace(CALM, **high).sentences()) == 1


def test_memory_was_short_where_a_tenth_of_the_pages_was_swapped_out_before():
    page = os.sysconf("SC_PAGE_SIZE")
    for pages, short in ((490, False), (510, True)):
        (said,) = replace(CALM, major_faults=5000, swapped_in_bytes=pages * page).sentences()
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
    busy = Busy(10.0, 4, 20.0, throttled_s=seen.stopped_s, throttled=seen)
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


def test_a_mark_has_both(monkeypatch: pytest.MonkeyPatch):
    readings = iter([HostReading(major_faults=1), HostReading(major_faults=9)])
    monkeypatch.setattr(HostReading, "read", classmethod(lambda cls: next(readings)))
    seen = BusyMark().until_now()
    assert seen.held_back is not None
    assert seen.held_back.major_faults == 8
    assert seen.to_dict()["held_back"]["sentences"] == list(seen.held_back_by())


def test_the_verdict_of_a_watched_run_says_it():
    from perfkit.measure.run import WatchedRun

    class Mark:
        def until_now(self) -> Busy:
            return Busy(10.0, 2, 10.0, held_back=replace(CALM, hot_s=3.0))

    watched = WatchedRun([1] * 12)
    for _ in watched:
        watched._mark = watched._mark or Mark()  # type: ignore[assignment]
    assert watched.summary.sentence.startswith("The processor throttled itself for heat for 30 %")
    assert "waits for the loader" in watched.summary.sentence
