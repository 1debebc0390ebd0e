"""Was the machine busy? From made-up counters, so no test depends on this machine's load."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfkit.base.machine import cpu_contention
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention, _Counters
from perfkit.base.machine.throttling import HostThrottling, PagesRead

QUIET = CpuContention(
    wall_s=2.0,
    n_cores=2,
    process_s=2.0,
    waited_s=0.02,
    others_s=0.1,
    stolen_s=0.0,
    throttled_s=0.0,
)


def test_a_quiet_machine_says_nothing():
    assert not QUIET.is_busy
    assert QUIET.sentence() == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"waited_s": 1.5, "others_s": 3.4}, "other programs used 1.7 of 2 cores"),
        ({"waited_s": 1.5, "others_s": 3.4}, "had no core for 75 % of the time"),
        ({"stolen_s": 0.8}, "the hypervisor took 20 % of the cores' time away"),
        ({"throttled_s": 0.5}, "quota stopped it for 25 % of the time"),
        ({"throttled_s": 1.5}, "quota stopped it for 75 % of the time"),
        ({"throttled_s": 3.0}, "quota stopped it for 100 % of the time"),
        ({"waited_s": 3.0, "others_s": 3.4}, "had no core for 100 % of the time"),
        ({"waited_s": 1.5, "others_s": 1.8, "n_cores": 1}, "used 0.9 of 1 core, and"),
        ({"waited_s": 0.3, "others_s": 2.2}, "so times are up to 18 % too long."),
        ({"waited_s": None, "others_s": 2.0}, "other programs used 1.0 of 2 cores"),
    ],
)
def test_what_slowed_it_down_is_said(change: dict[str, float], said: str):
    seen = replace(QUIET, **change)
    assert seen.is_busy
    assert said in seen.sentence()
    assert seen.to_dict()["is_busy"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"others_s": 2.0},  # the other core was used; ours was there
        {"waited_s": 1.5},  # its own threads and workers are too many: nobody else is to blame
        {"waited_s": None, "others_s": None},  # nothing is known
        {"wall_s": 0.05, "waited_s": 0.04, "others_s": 0.1},  # too short to know
    ],
)
def test_what_did_not_slow_it_down_is_no_excuse(change: dict[str, float]):
    assert not replace(QUIET, **change).is_busy


@pytest.mark.parametrize(
    ("low", "high"),
    [
        # a tenth of the time without a core
        ({"waited_s": 0.19, "others_s": 1.0}, {"waited_s": 0.21, "others_s": 1.0}),
        # a quarter of a core for others
        ({"waited_s": 1.0, "others_s": 0.48}, {"waited_s": 1.0, "others_s": 0.52}),
        # where nobody tells who waited: the cores are full
        ({"waited_s": None, "others_s": 1.75}, {"waited_s": None, "others_s": 1.85}),
        # a twentieth of the time of both cores, or of the process
        ({"stolen_s": 0.19}, {"stolen_s": 0.21}),
        ({"throttled_s": 0.09}, {"throttled_s": 0.11}),
        # 0.2 s
        ({"wall_s": 0.19, "throttled_s": 0.1}, {"wall_s": 0.21, "throttled_s": 0.1}),
    ],
)
def test_what_is_too_little_to_matter_is_no_excuse(low: dict[str, float], high: dict[str, float]):
    assert not replace(QUIET, **low).is_busy
    assert replace(QUIET, **high).is_busy


def test_a_fifth_of_the_time_spoils_the_figures():
    assert not replace(QUIET, throttled_s=0.39).spoils
    assert replace(QUIET, throttled_s=0.41).spoils


@pytest.mark.parametrize(
    ("change", "lost", "spoils"),
    [
        ({"stolen_s": 0.216}, 0.108, False),  # 5.4 % of two cores, all of it may be ours
        ({"waited_s": 0.3, "others_s": 2.2}, 0.15, False),
        ({"throttled_s": 0.5}, 0.25, True),
        ({"waited_s": 1.5, "others_s": 3.4}, 0.75, True),
        ({"waited_s": None, "others_s": 2.0}, 0.5, True),
        ({"throttled_s": 1.9, "stolen_s": 0.8}, 1.0, True),
        ({}, 0.0, False),
    ],
)
def test_how_much_was_lost_decides_how_far_the_times_count(
    change: dict[str, float], lost: float, spoils: bool
):
    seen = replace(QUIET, **change)
    assert seen.lost == pytest.approx(lost)
    assert seen.spoils is spoils
    assert ("up to" in seen.sentence()) == (lost > 0 and not spoils)


def test_a_mark_compares_two_readings(monkeypatch: pytest.MonkeyPatch):
    readings = iter(
        [
            _Counters(10.0, 100.0, 1.0, {}, {1: 1.0, 2: 3.0}, PagesRead(1)),
            _Counters(11.0, 104.0, 1.0, {}, {1: 2.5, 2: 3.0, 3: 0.25}, PagesRead(9)),
        ]
    )
    monkeypatch.setattr(_Counters, "read", staticmethod(lambda thread_id: next(readings)))
    seen = ContentionMark().until_now()
    assert (seen.process_s, seen.others_s, seen.waited_s) == (1.0, 3.0, 1.5)
    assert (seen.stolen_s, seen.throttled_s) == (0.0, None)
    assert seen.host is not None
    assert seen.host.major_faults == 8
    assert seen.to_dict()["host"]["sentences"] == list(seen.held_back_by())


def test_where_the_system_tells_nothing_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_contention.sys, "platform", "darwin")
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [])

    class Process:
        def cpu_times(self) -> SimpleNamespace:
            return SimpleNamespace(user=1.0, system=0.0)

        def children(self, recursive: bool) -> list[object]:
            raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "Process", Process)
    seen = ContentionMark().until_now()
    assert (seen.waited_s, seen.others_s, seen.stolen_s) == (None,) * 3
    assert not seen.is_busy


def test_the_kernels_account_of_a_thread_is_in_ns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_contention.sys, "platform", "linux")
    monkeypatch.setattr(cpu_contention, "_PROC", tmp_path)
    account = tmp_path / "self/task/5/schedstat"
    account.parent.mkdir(parents=True)
    account.write_text("9000000000 1500000000 77\n")  # ran, waited, how often
    mark = ContentionMark(5)
    account.write_text("9900000000 2250000000 80\n")
    assert mark.until_now().waited_s == 0.75


def test_it_reads_this_machine():
    seen = ContentionMark(threading.get_native_id()).until_now()
    assert seen.n_cores >= 1
    assert seen.process_s >= 0


def test_the_other_ranks_of_a_torchrun_are_no_other_programs(monkeypatch: pytest.MonkeyPatch):
    class Process:
        pid = 1

        def __init__(self, pid: int = 1, seconds: float = 1.0) -> None:
            self.pid, self.seconds = pid, seconds

        def cpu_times(self) -> SimpleNamespace:
            ended = {"children_user": 0.5, "children_system": 0.125}
            return SimpleNamespace(user=self.seconds, system=0.25, **ended)

        def parent(self) -> Agent:
            return Agent(0)

        def children(self, recursive: bool) -> list[Process]:
            return []

    class Agent(Process):
        def children(self, recursive: bool) -> list[Process]:
            return [Process(1), Process(2, 5.0)]

    monkeypatch.setattr(psutil, "Process", Process)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert cpu_contention._process_s() == 1.875
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert cpu_contention._process_s() == 1.875 + 5.875


def test_two_measurements_add_up_and_what_is_unknown_stays_unknown() -> None:
    short, long = HostThrottling(1.0), HostThrottling(9.0)
    disturbed = CpuContention(1.0, 2, 0.5, waited_s=0.6, others_s=1.4, stolen_s=0.1, host=short)
    quiet = CpuContention(9.0, 2, 9.0, waited_s=0.25, others_s=0.5, host=long)
    both = disturbed.and_then(quiet)
    assert both.host is quiet.and_then(disturbed).host is long
    assert (both.wall_s, both.process_s, both.waited_s, both.others_s) == (10.0, 9.5, 0.85, 1.9)
    assert both.stolen_s is None
    assert disturbed.spoils
    assert not both.spoils
