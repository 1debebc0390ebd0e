"""Lesson 14: three puzzles, and the exercise on made-up machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from perfkit.base.words import plural
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle

# ---- three puzzles of one line -----------------------------------------------------------


def _check_share(answer: Answer) -> list[str]:
    for cores, processes, wanted in ((8, 2, 4), (8, 3, 2), (16, 16, 1), (7, 2, 3), (2, 4, 1)):
        given = number(answer(cores, processes))
        if given != int(given):
            raise NotYet(f"a process has a whole number of threads, not {given:g}")
        if given == wanted:
            continue
        if given < 1:
            raise NotYet(
                f"{processes} processes on {cores} cores: {given:g} threads compute nothing"
            )
        why = (
            f"{plural(given * processes, 'thread')} for {cores} cores"
            if given > wanted
            else f"{plural(cores - given * processes, 'core is', 'cores are')} left over"
        )
        each = f"{plural(given, 'thread')} each"
        raise NotYet(f"{processes} processes on {cores} cores, {each}: {why}")
    return ["no more threads than cores, and none without a thread, in five cases"]


def _check_faults(answer: Answer) -> list[str]:
    for nbytes, page in ((64 << 20, 4096), (4097, 4096), (1, 4096), (0, 4096), (10**7, 16_384)):
        given, wanted = number(answer(nbytes, page)), math.ceil(nbytes / page)
        if given != int(given):
            raise NotYet(f"the system gives whole pages, not {given:g}")
        if given != wanted:
            raise NotYet(f"{nbytes:,} bytes in pages of {page:,} are {wanted:,}, not {given:,.0f}")
    return ["one fault for each page, begun ones too, in five cases"]


def _check_quota(answer: Answer) -> list[str]:
    for text, cores, wanted in (
        ("200000 100000", 64, 2.0),
        ("max 100000", 8, 8.0),
        ("150000 100000", 4, 1.5),
        ("100000 50000", 16, 2.0),
        ("1600000 100000", 8, 8.0),
        ("50000 100000", 2, 0.5),
    ):
        given = number(answer(text, cores))
        if not math.isclose(given, wanted):
            raise NotYet(
                f'cpu.max holds "{text}" on a machine of {cores} cores: it can keep {wanted:g} '
                f"busy, not {given:g}"
            )
    return ["the cores that a container can keep busy, in six cases"]


#: The first puzzle: the threads of one of several processes.
share_of_cores = puzzle(
    "the threads of one of several processes",
    hints=(
        "The cores, divided among the processes, rounded down. What if there are more processes?",
        "max(1, cores // processes)",
    ),
    check=_check_share,
)
#: The second puzzle: how many pages a new tensor takes.
faults_of = puzzle(
    "the pages of a new tensor",
    hints=(
        "Divide, and round up: a page that is begun is given as a whole.",
        "-(-nbytes // page), or math.ceil(nbytes / page)",
    ),
    check=_check_faults,
)
#: The third puzzle: what a container's quota says.
quota_of = puzzle(
    "what a quota says",
    hints=(
        'The file holds two words: a quota and a period, both in µs. "max" means no quota.',
        "quota / period is a number of cores. More than the machine has is no use.",
        'quota, period = text.split(); cores if quota == "max" else min(cores, int(quota) / '
        "int(period))",
    ),
    check=_check_quota,
)

# ---- the exercise ------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A made-up machine, and what is trained on it.

    Attributes:
        name: what it is.
        cpu_count: what ``os.cpu_count()`` says there.
        allowed: the cores of ``os.sched_getaffinity(0)``, for all ranks together.
        quota: cores that the container may keep busy, for all ranks together; None for no limit.
        ranks: processes that train on it, alike.
        step_ms: a step with one thread. With t threads it takes a t-th of that.
        load_ms: a batch, prepared by one worker or, without workers, by the training itself.
    """

    name: str
    cpu_count: int
    allowed: tuple[int, ...]
    quota: float | None
    ranks: int
    step_ms: float
    load_ms: float


def _host(
    name: str,
    cpu_count: int,
    step_ms: float,
    load_ms: float,
    *,
    allowed: Sequence[int] | None = None,
    quota: float | None = None,
    ranks: int = 1,
) -> Host:
    cores = tuple(range(cpu_count)) if allowed is None else tuple(allowed)
    return Host(name, cpu_count, cores, quota, ranks, step_ms, load_ms)


#: The machines that the reader sees; the check has six more.
MACHINES = (
    _host("a laptop", 8, 80, 240),
    _host("a container", 64, 60, 60, quota=4),
    _host("a share of a cluster's node", 32, 100, 20, allowed=range(8, 14)),
    _host("four ranks", 16, 30, 90, ranks=4),
    _host("half a core", 4, 50, 50, quota=0.5),
)
_UNSEEN = (
    _host("light data", 2, 80, 1),
    _host("a quota larger than its cores", 16, 40, 200, allowed=range(6), quota=10),
    _host("more ranks than cores", 4, 20, 20, ranks=8),
    # not to be rounded up; and cores shared in the ratio of the times, rounded down, are slow
    _host("a quota with a fraction", 8, 70, 30, quota=4.6),
    # shared in that ratio and rounded to the nearest, no core is left for a worker
    _host("light data on four cores", 4, 100, 10),
    # 15 cores for four ranks: the share of a rank is not to be rounded up, either
    _host("four ranks in a container", 96, 90, 60, allowed=range(48), quota=15, ranks=4),
)


def _cores(host: Host) -> int:
    """Cores of one rank."""
    cores = len(host.allowed)
    if host.quota is not None:
        cores = min(cores, int(host.quota))
    return max(1, cores // host.ranks)


def _batch_ms(host: Host, threads: int, workers: int) -> float:
    computing = host.step_ms / threads
    if not workers:
        return computing + host.load_ms
    return max(computing, host.load_ms / workers)


def _best_ms(host: Host) -> float:
    cores = _cores(host)
    return min(
        _batch_ms(host, threads, workers)
        for threads in range(1, cores + 1)
        for workers in range(cores - threads + 1)
    )


def _pair(given: Any) -> tuple[int, int]:
    if given is None:
        raise NotYet("your function returns nothing yet: return (threads, workers)")
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise NotYet(f"return a pair, (threads, workers), not {given!r:.60}")
    for one in given:
        if isinstance(one, bool) or not isinstance(one, Integral):
            raise NotYet(f"threads and workers are whole numbers, not {one!r:.60}")
    threads, workers = map(int, given)
    if threads < 1:
        raise NotYet(f"with {threads} threads nothing computes")
    if workers < 0:
        raise NotYet(f"{workers} workers are not possible")
    return threads, workers


def _cores_words(host: Host) -> str:
    quota = "" if host.quota is None else f", a quota of {host.quota:g}"
    ranks = "" if host.ranks == 1 else f", {host.ranks} ranks"
    return f"{host.cpu_count} cores, {len(host.allowed)} allowed{quota}{ranks}"


def _judge(host: Host, answer: Answer) -> float:
    """The time of a batch; raise if it is not the best that this machine can do."""
    try:
        threads, workers = _pair(answer(host))
    except Exception as error:
        error.add_note(f"The machine: {host.name} ({_cores_words(host)})")
        raise
    cores = _cores(host)
    if threads + workers > cores:
        has = "it has" if host.ranks == 1 else "each rank has"
        raise NotYet(
            f"{host.name} ({_cores_words(host)}): {plural(threads, 'thread')} and "
            f"{plural(workers, 'worker')}, but {has} only {plural(cores, 'core')} for them"
        )
    found, best = _batch_ms(host, threads, workers), _best_ms(host)
    if found > best * (1 + 1e-9):
        raise NotYet(
            f"{host.name} ({_cores_words(host)}): with {plural(threads, 'thread')} and "
            f"{plural(workers, 'worker')} a batch takes {found:.4g} ms; another pair takes "
            f"{best:.4g} ms"
        )
    return found


def _show(answer: Answer) -> Message:
    items = []
    for host in MACHINES:
        threads, workers = _pair(answer(host))
        items.append(
            f"{host.name} ({_cores_words(host)}): {plural(threads, 'thread')}, "
            f"{plural(workers, 'worker')}; a batch takes "
            f"{_batch_ms(host, threads, workers):.4g} ms if each has its core"
        )
    return Message("Five machines", items=tuple(items))


def _check(answer: Answer) -> list[str]:
    for host in (*MACHINES, *_UNSEEN):
        _judge(host, answer)
    return [
        "on five machines that you know and six that you do not, no other pair is faster",
        "never more threads and workers than cores",
    ]


choose_for = Exercise(
    "threads and workers for a machine",
    spec=(
        "choose(host) returns (threads, workers), for each of host.ranks processes.",
        "The ranks share the cores alike: those in host.allowed, or as many as host.quota, rounded "
        "down, if that is less. A rank has at least one.",
        "threads + workers is not more than the cores of a rank; threads is at least 1.",
        "A batch takes the longer of host.step_ms / threads and host.load_ms / workers; without "
        "workers, host.step_ms / threads + host.load_ms. No other pair may be faster.",
    ),
    hints=(
        "First the cores of a rank: len(host.allowed), int(host.quota) unless it is None, "
        "host.ranks. Then try all pairs.",
        "cores = max(1, cores // host.ranks). Pairs: for threads in range(1, cores + 1), for "
        "workers in range(cores - threads + 1).",
        "min(pairs, key=…) with a function of the pair that returns the time of a batch; mind "
        "workers == 0.",
    ),
    show=_show,
    check=_check,
)
