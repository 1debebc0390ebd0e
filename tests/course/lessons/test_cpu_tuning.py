"""Lesson 14: the exercise and its puzzles, trainings side by side, the picture, and its claim."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy
import pytest
import torch

from perfkit.base.errors import MeasurementError, UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_14_cpu_tuning import _training_program
from perfkit.course.lessons.lesson_14_cpu_tuning.lesson import (
    MACHINES,
    Host,
    choose_for,
    faults_of,
    quota_of,
    share_of_cores,
)
from perfkit.course.lessons.lesson_14_cpu_tuning.measured import (
    Ran,
    Together,
    cores_here,
    mallocs_here,
    pinned,
)
from perfkit.course.lessons.lesson_14_cpu_tuning.pictures import draw_threads
from perfkit.measure.paired import Interval

NOTEBOOK = Path(__file__).resolve().parents[3] / "notebooks" / "14-cpu-tuning.ipynb"

Pair = tuple[int, int]

# ---- right answers


def _cores(host: Host) -> int:
    cores = len(host.allowed)
    if host.quota is not None:
        cores = min(cores, math.floor(host.quota))
    return max(1, cores // host.ranks)


def _time(host: Host, threads: int, workers: int) -> float:
    computing = host.step_ms / threads
    return max(computing, host.load_ms / workers) if workers else computing + host.load_ms


def _tries_all(host: Host) -> Pair:
    cores = _cores(host)
    pairs = [(t, w) for t in range(1, cores + 1) for w in range(cores - t + 1)]
    return min(pairs, key=lambda pair: _time(host, *pair))


def _one_loop(host: Host) -> list[int]:
    """All cores in use, and the last of equal ones; a list."""
    cores, best = _cores(host), (math.inf, [1, 0])
    for threads in range(1, cores + 1):
        found = _time(host, threads, cores - threads)
        if found <= best[0]:
            best = (found, [threads, cores - threads])
    return best[1]


def _fewest(host: Host) -> Pair:
    """Of equal ones the pair that needs fewest cores."""
    cores = _cores(host)
    pairs = [(t, w) for t in range(1, cores + 1) for w in range(cores - t + 1)]
    return min(pairs, key=lambda pair: (_time(host, *pair), sum(pair)))


def _adds_workers(host: Host) -> Pair:
    """From all threads, one core after the other to the workers."""
    pair = (_cores(host), 0)
    for workers in range(1, _cores(host)):
        other = (_cores(host) - workers, workers)
        if _time(host, *other) < _time(host, *pair):
            pair = other
    return pair


def _arrays(host: Host) -> Any:
    """NumPy's whole numbers are whole numbers."""
    return tuple(numpy.array(_tries_all(host)))


def _as_fractions(host: Host) -> Pair:
    def time(pair: Pair) -> Fraction:
        threads, workers = pair
        computing = Fraction(int(host.step_ms), threads)
        loading = Fraction(int(host.load_ms), workers or 1)
        return max(computing, loading) if workers else computing + loading

    cores = _cores(host)
    return min(((t, w) for t in range(1, cores + 1) for w in range(cores - t + 1)), key=time)


def _pairs_of_a_product(host: Host) -> Pair:
    cores = _cores(host)
    pairs = itertools.product(range(1, cores + 1), range(cores))
    return min((p for p in pairs if sum(p) <= cores), key=lambda pair: _time(host, *pair))


# ---- wrong ones


def _in_proportion(rounded: Callable[[float], int]) -> Callable[[Host], Pair]:
    """The cores shared in the ratio of the two times: plausible, and not the best."""

    def choose(host: Host) -> Pair:
        cores = _cores(host)
        threads = rounded(cores * host.step_ms / (host.step_ms + host.load_ms))
        threads = max(1, min(cores, threads))
        return threads, cores - threads

    return choose


def _not_at_the_same_time(host: Host) -> Pair:
    """Loading added to computing, although workers load beside it."""
    cores = _cores(host)
    pairs = [(t, w) for t in range(1, cores + 1) for w in range(cores - t + 1)]
    return min(pairs, key=lambda p: host.step_ms / p[0] + host.load_ms / (p[1] or 1))


def _with_quota(rounded: Callable[[float], int]) -> Callable[[Host], Pair]:
    """The quota rounded in another way than the system's."""

    def count(host: Host) -> int:
        allowed = len(host.allowed)
        return min(allowed, rounded(host.quota or allowed)) // host.ranks

    return _of(count)


def _no_rank_without(host: Host) -> Pair:
    """More ranks than cores: nothing is left to choose from."""
    cores = min(len(host.allowed), int(host.quota or 99)) // host.ranks
    pairs = [(t, w) for t in range(1, cores + 1) for w in range(cores - t + 1)]
    return min(pairs, key=lambda pair: _time(host, *pair))


def _of(count: Callable[[Host], int]) -> Callable[[Host], Pair]:
    """The best pair for another number of cores."""

    def choose(host: Host) -> Pair:
        cores = max(1, count(host))
        pairs = [(t, w) for t in range(1, cores + 1) for w in range(cores - t + 1)]
        return min(pairs, key=lambda pair: (_time(host, *pair), -sum(pair)))

    return choose


@pytest.mark.parametrize(
    "answer",
    [
        _tries_all,
        _one_loop,
        _fewest,
        _adds_workers,
        _arrays,
        _as_fractions,
        _pairs_of_a_product,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(choose_for.check(answer))
    assert said.startswith("Done"), said
    assert "no other pair is faster" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda host: None, "returns nothing yet"),
        (lambda host: 4, "return a pair, (threads, workers), not 4"),
        (lambda host: (2.0, 2), "whole numbers, not 2.0"),
        (lambda host: (0, 2), "with 0 threads nothing computes"),
        (lambda host: (1, -1), "-1 workers are not possible"),
        (
            lambda host: (host.cpu_count, host.cpu_count),
            "8 threads and 8 workers, but it has only 8 cores for them",
        ),
        (lambda host: (1, 0), "a laptop (8 cores, 8 allowed): with 1 thread and 0 workers"),
        (lambda host: (_cores(host), 0), "another pair takes 40 ms"),
        (_of(lambda host: host.cpu_count), "a container (64 cores, 64 allowed, a quota of 4)"),
        (
            _of(lambda host: int(min(host.cpu_count, host.quota or 999))),
            "a share of a cluster's node (32 cores, 6 allowed)",
        ),
        (
            _of(lambda host: int(min(len(host.allowed), host.quota or 999))),
            "four ranks (16 cores, 16 allowed, 4 ranks)",
        ),
        (
            _of(lambda host: int(host.quota or len(host.allowed)) // host.ranks),
            "a quota larger than its cores",
        ),
        (
            lambda host: (1, 1) if _cores(host) == 1 else _tries_all(host),
            "half a core (4 cores, 4 allowed, a quota of 0.5): 1 thread and 1 worker",
        ),
        (
            lambda host: (1, 1) if _cores(host) == 2 and host.load_ms == 1 else _tries_all(host),
            "light data (2 cores, 2 allowed): with 1 thread and 1 worker a batch takes 80 ms; "
            "another pair takes 41 ms",
        ),
        (_in_proportion(round), "light data on four cores (4 cores, 4 allowed): with 4 threads"),
        (_in_proportion(math.ceil), "light data on four cores"),
        (_in_proportion(math.floor), "light data (2 cores"),
        (_not_at_the_same_time, "with 3 threads and 5 workers a batch takes 48 ms"),
        (_with_quota(math.ceil), "a quota of 4.6): 3 threads and 2 workers, but it has only 4"),
        (_with_quota(round), "a quota with a fraction"),
        (
            _of(lambda host: -(-int(min(len(host.allowed), host.quota or 99)) // host.ranks)),
            "four ranks in a container (96 cores, 48 allowed, a quota of 15, 4 ranks)",
        ),
        (lambda host: (_cores(host) // 2, _cores(host) // 2), "another pair takes 40 ms"),
        (lambda host: {"threads": 1, "workers": 1}, "return a pair"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(choose_for.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_an_error_says_with_which_machine() -> None:
    said = " ".join(repr(choose_for.check(_no_rank_without)).split())
    assert "stopped with an error ValueError" in said
    assert "The machine: half a core (4 cores, 4 allowed, a quota of 0.5)" in said


def _no_thread_on_half_a_core(host: Host) -> Pair:
    return _tries_all(host) if (host.quota or 1) >= 1 else (0, 1)


def test_a_refused_pair_says_of_which_machine() -> None:
    said = " ".join(repr(choose_for.check(_no_thread_on_half_a_core)).split())
    assert said.startswith("Not yet"), said
    assert "with 0 threads nothing computes" in said
    assert "The machine: half a core (4 cores, 4 allowed, a quota of 0.5)" in said


def test_show_goes_through_the_machines_that_the_reader_knows() -> None:
    said = " ".join(repr(choose_for.show(_fewest)).split())
    for host in MACHINES:
        assert host.name in said
    assert "a laptop (8 cores, 8 allowed): 2 threads, 6 workers; a batch takes 40 ms" in said
    assert "Nothing to see yet" in repr(choose_for.show(lambda host: None))


def _by_word(text: str, cores: int) -> float:
    quota, period = text.split()
    return cores if quota == "max" else min(cores, int(quota) / int(period))


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (share_of_cores, lambda cores, processes: max(1, cores // processes), "Done"),
        (share_of_cores, lambda cores, processes: cores // processes or 1, "Done"),
        (share_of_cores, lambda cores, n: max(1, math.floor(cores / n)), "Done"),
        (share_of_cores, lambda cores, n: 1 if n > cores else (cores - cores % n) // n, "Done"),
        (share_of_cores, lambda *_: None, "returns nothing yet"),
        (share_of_cores, lambda cores, n: cores, "16 threads for 8 cores"),
        (share_of_cores, lambda cores, n: 1, "6 cores are left over"),
        (share_of_cores, lambda cores, n: cores // n, "0 threads compute nothing"),
        (share_of_cores, lambda cores, n: cores / n, "a whole number of threads"),
        (share_of_cores, lambda cores, n: -(-cores // n), "9 threads for 8 cores"),
        (faults_of, lambda nbytes, page: -(-nbytes // page), "Done"),
        (faults_of, lambda nbytes, page: math.ceil(nbytes / page), "Done"),
        (faults_of, lambda nbytes, page: (nbytes + page - 1) // page, "Done"),
        (faults_of, lambda nbytes, page: nbytes // page + (nbytes % page > 0), "Done"),
        (faults_of, lambda *_: None, "returns nothing yet"),
        (faults_of, lambda nbytes, page: nbytes // page, "are 2, not 1"),
        (faults_of, lambda nbytes, page: nbytes / page, "whole pages"),
        (faults_of, lambda nbytes, page: nbytes // page + 1, "are 16,384, not 16,385"),
        (faults_of, lambda nbytes, page: -(-nbytes // 4096), "in pages of 16,384"),
        (faults_of, lambda nbytes, page: "4", "got str"),
        (quota_of, _by_word, "Done"),
        (
            quota_of,
            lambda text, cores: min(
                cores, float(text.split()[0].replace("max", "inf")) / int(text.split()[1])
            ),
            "Done",
        ),
        (
            quota_of,
            lambda text, cores: (
                cores
                if text.startswith("max")
                else min(cores, int(text.split()[0]) / int(text.split()[1]))
            ),
            "Done",
        ),
        (
            quota_of,
            lambda text, cores: min(
                [cores, *(int(a) / int(b) for a, b in [text.split()] if a.isdecimal())]
            ),
            "Done",
        ),
        (quota_of, lambda *_: None, "returns nothing yet"),
        (quota_of, lambda text, cores: cores, "it can keep 2 busy, not 64"),
        (quota_of, lambda text, cores: int(text.split()[0]) / 100_000, "invalid literal"),
        (
            quota_of,
            lambda text, cores: cores if "max" in text else int(text.split()[0]) / 100_000,
            '"100000 50000" on a machine of 16 cores: it can keep 2 busy, not 1',
        ),
        (
            quota_of,
            lambda text, cores: cores if "max" in text else int(_by_word(text, cores)),
            "it can keep 1.5 busy, not 1",
        ),
        (
            quota_of,
            lambda text, cores: (
                cores if "max" in text else int(text.split()[0]) / int(text.split()[1])
            ),
            "it can keep 8 busy, not 16",
        ),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said


def test_a_puzzle_has_no_show() -> None:
    assert "only .check(answer)" in repr(share_of_cores.show(lambda *_: 1))


# ---- trainings side by side


def _counting(number: int) -> Callable[[], object]:
    """A step without torch's work: it remembers how often it was called, and what it may use."""
    import torch

    print("a print must not get between the answers")
    kept: list[Any] = []

    def step() -> None:
        kept.append(torch.ones(number + 1))

    return step


def _notes_that_it_ran(folder: str, number: int) -> Callable[[], object]:
    """A step that leaves a file; the three steps of the warm-up leave none."""
    from pathlib import Path

    calls: list[int] = []

    def step() -> None:
        calls.append(number)
        if len(calls) > 3:
            (Path(folder) / str(number)).touch()

    return step


# as if they came from a notebook: such functions travel by value
_counting.__module__ = "__main__"
_notes_that_it_ran.__module__ = "__main__"


def _fails(number: int) -> Callable[[], object]:
    raise ValueError("no training today")


def _sees_its_cores(number: int) -> Callable[[], object]:
    import os

    if len(os.sched_getaffinity(0)) != 1:
        raise ValueError("it may run on several cores")
    return lambda: None


_fails.__module__ = "__main__"
_sees_its_cores.__module__ = "__main__"


# one story: each process takes seconds to load torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_they_train_side_by_side_stay_ready_and_say_why_they_end(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    here = cores_here()  # empty where processes cannot be pinned
    core, make = (here[-1], _sees_its_cores) if here else (None, _counting)
    both = Together(make, 2, threads=1, core=core)
    try:
        assert (both.n, both.threads, both.all_threads) == (2, 1, 2)
        both.change(_counting)
        ran = both.run(3)
        assert ran.seconds > 0
        assert ran.peak_bytes == 0 or ran.peak_bytes >= ran.resident_bytes > 0
        with both.training():
            pass
        again = both.run(2)  # "stop" was no order to answer
        assert isinstance(again, Ran)
        both.change(partial(_notes_that_it_ran, str(notes)))
        both.run(1, processes=1)
        assert len(list(notes.iterdir())) == 1
        both.run(1)
        assert len(list(notes.iterdir())) == 2
        both.change(_fails)
        with pytest.raises(MeasurementError, match="no training today"):
            both.run(1)
    finally:
        both.end()
    both.end()  # twice is once


@pytest.mark.skipif(sys.platform == "win32", reason="select takes no pipes")
def test_an_order_to_stop_that_is_there_already_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read along with the order to train, and a core computed for a minute."""
    orders = [
        {"threads": None, "core": None},
        {"make": "", "number": 0},
        {"until_called_s": 60},
        "stop",
        {"steps": 2},
    ]
    answers = io.StringIO()
    monkeypatch.setattr(sys, "stdout", answers)
    monkeypatch.setattr(
        _training_program.cloudpickle, "loads", lambda _: lambda number: list
    )  # a step
    read, write = os.pipe()
    with os.fdopen(write, "w") as told:
        told.writelines(json.dumps(one) + "\n" for one in orders)
    with os.fdopen(read, "rb", buffering=0) as hears:
        _training_program._main(hears)
    said = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [one.get("steps") for one in said] == [None, 1, 2]


@pytest.mark.skipif(not cores_here(), reason="processes cannot be pinned here")
def test_this_thread_is_pinned_and_only_then() -> None:
    before = cores_here()
    with pinned(before[0]):
        assert cores_here() == before[:1]
    assert cores_here() == before
    with pytest.raises(UsageError, match="may not run on core 99999"):
        Together(_sees_its_cores, 1, core=99_999)


def test_what_cannot_be_started_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Together(_counting, 0)
    lacking = {"keep", "jemalloc", "tcmalloc"} - set(mallocs_here())
    for name in lacking:
        with pytest.raises(UsageError, match=f"malloc='{name}' is not available"):
            Together(_counting, 1, malloc=name)
    assert mallocs_here()[0] == "system"


def _new_memory(number: int) -> Callable[[], object]:
    import torch

    return lambda: torch.ones(12_000_000)  # 48 MB: glibc returns that much at once


_new_memory.__module__ = "__main__"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_default_is_torchs_own_and_a_malloc_that_keeps_has_next_to_no_page_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # told to this process, not to theirs
    with contextlib.ExitStack() as stack:
        names = ["system", *({"keep"} & set(mallocs_here()))]  # the second one needs glibc
        made = [stack.enter_context(Together(_new_memory, 1, malloc=name)) for name in names]
        assert made[0].threads != 3 or (os.cpu_count() or 1) == 3
        if len(made) == 1:
            return
        system, keep = made
        found = system.run(4)
        # on a machine that is short of memory the first steps may fault
        kept = min((keep.run(4) for _ in range(3)), key=lambda ran: ran.faults)
    assert found.faults >= 48_000_000 / 2**21 - 1  # the fewest, with huge pages
    assert kept.faults < found.faults / 10
    assert kept.resident_bytes >= 48_000_000


# ---- the picture


def test_the_picture_says_what_it_shows() -> None:
    figure, words = draw_threads(
        {"small": {2: Interval(1, 0.9, 1.1, 0.95)}, "large": {2: Interval(1.6, 1.5, 1.7, 0.95)}},
        cores=2,
        source="measured here",
    )
    assert len(figure.axes) == 1
    assert words == (
        "Speed by number of threads (measured here). small: 1 → 1.00×, 2 → 1.00×; large: "
        "1 → 1.00×, 2 → 1.60×."
    )


# ---- the claim


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=math.sqrt(low * high), low=low, high=high)


def _ran(faults: float, peak_mb: int) -> Ran:
    return Ran(1.0, 2.0, faults, 1.0, peak_mb * 10**6, peak_mb * 10**6)


RAN = {"system": _ran(90_000, 500), "keep": _ran(0, 600), "jemalloc": _ran(120_000, 450)}


@pytest.mark.parametrize(
    ("against", "verdict"),
    [
        ({"keep": _ratio(1.5, 2)}, "holds here"),
        ({"keep": _ratio(1.5, 2), "jemalloc": _ratio(0.7, 0.8)}, "holds here"),
        ({"keep": _ratio(0.9, 1.1)}, "not decided"),
        ({"keep": _ratio(0.8, 0.9), "jemalloc": _ratio(0.7, 0.8)}, "does not hold here"),
        ({}, "not decided"),
    ],
)
def test_c15_needs_one_that_is_faster(against: dict[str, Any], verdict: str) -> None:
    settled = claim("C15").settle(against, RAN)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["system_faults"].value == 90_000
    assert "90,000 page faults a step, peak 500 MB" in settled.outcome.sentence
    if "keep" in against:
        assert "glibc told to keep memory" in settled.outcome.sentence


# ---- its cells on other machines


class _Played:
    """In place of a training in another process: steps that take no time and no page fault."""

    malloc = "system"
    ended = False

    def change(self, make: Callable[..., Any]) -> None:
        make(0)()

    def run(self, steps: int) -> Ran:
        return _ran(0, 500)

    def end(self) -> None:
        self.ended = True


def test_where_there_is_no_other_malloc_the_null_result_is_not_compared_with_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (source,) = [cell.source for cell in cells if cell.id == "nothing"]
    only = _Played()
    exec(source, {"torch": torch, "under": {"system": only}})  # the cell as it stands
    assert capsys.readouterr().out.splitlines() == [
        "page faults a step: 0 and 0",
        "there is no other malloc here to compare it with",
    ]
    assert only.ended
