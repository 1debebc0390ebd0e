"""When the claims of lesson 05 hold.

The distance is a sleep before each response of a server on this machine. Requests and bytes are
counted; all times are simulated, because the sleep sets them.
"""

from __future__ import annotations

from perfkit.advice.profile import Profile
from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_05_remote_data.store import Counts
from perfkit.measure.compare import Comparison

_LESSON = "05-remote-data"


@criterion(
    "A4",
    lesson=_LESSON,
    title="a device twice as fast before a slow store",
    holds_if="training from the store is bound by data and waits for it longer than training from "
    "the local disk, and the old (simulated) device with a local disk is faster than the new one "
    "before the store",
)
def faster_device(
    at_store: Comparison,
    at_disk: Comparison,
    swapped: Comparison,
    far: Profile,
    near: Profile,
    *,
    predicted: float,
    latency_ms: float,
) -> Outcome:
    """Judge old against new device at each place, and the new one at the store against the old one
    at the disk; ``far`` and ``near`` are a real training's profiles, ``predicted`` is the ratio at
    the store by arithmetic.
    """
    far_wait, near_wait = (one.breakdown.shares()["data wait"] for one in (far, near))
    return Outcome(
        holds=all_of(far.diagnosis.bound_by == "data" and near_wait < far_wait, faster(swapped)),
        figures={
            "store_ratio": Figure.of(at_store, kind="simulated"),
            "store_predicted_ratio": Figure(predicted, "×", kind="predicted"),
            "local_ratio": Figure.of(at_disk, kind="simulated"),
            "old_local_ratio": Figure.of(swapped, kind="simulated"),
            "store_wait_share": Figure(far_wait, "1", kind="simulated"),
            "local_wait_share": Figure(near_wait, "1", kind="simulated"),
        },
        headline="store_ratio",
        sentence=f"Simulated: a device twice as fast makes the loop {at_store.ratio:.2f}× as fast "
        f"before a store {_stated(latency_ms)}, and is {swapped.ratio:.1f}× as slow there as the "
        "old one with a local disk.",
    )


@criterion(
    "C3",
    lesson=_LESSON,
    title="a store against a copy on the local disk",
    holds_if="an epoch from the copy sends no request (counted), and reads faster than one from "
    "the store (simulated)",
)
def local_copy(
    copying: Counts, afterwards: Counts, read: Comparison, copied: Comparison, *, latency_ms: float
) -> Outcome:
    """Judge what is asked while copying and after; ``read`` compares reading from the store with
    reading the copy, ``copied`` with copying.
    """
    return Outcome(
        holds=all_of(afterwards.requests == 0, faster(read)),
        figures={
            "copy_requests": Figure.exact(copying.requests),
            "epoch_requests": Figure.exact(afterwards.requests),
            "epoch_ratio": Figure.of(read, kind="simulated"),
            "copy_ratio": Figure.of(copied, kind="simulated"),
        },
        headline="epoch_ratio",
        sentence=f"Simulated: a local copy is read {read.ratio:.0f}× as fast as a store "
        f"{_stated(latency_ms)}, and copying is {copied.ratio:.1f}× as fast as reading once, "
        "because a copy asks for several files at a time; the copy then asks the store for "
        f"{_times(afterwards)} (counted).",
    )


@criterion(
    "C4",
    lesson=_LESSON,
    title="a read-through cache before a store",
    holds_if="an epoch from the warm cache sends no request, a cold one at least as many as "
    "without a cache (counted), and the warm one is faster than no cache (simulated)",
)
def read_through_cache(
    uncached: Counts,
    cold: Counts,
    warm: Counts,
    in_shards: Counts,
    timed: Comparison,
    *,
    latency_ms: float,
) -> Outcome:
    """Judge what an epoch asks, each way; ``timed`` compares no cache with a warm one."""
    return Outcome(
        holds=all_of(warm.requests == 0 and cold.requests >= uncached.requests > 0, faster(timed)),
        figures={
            "warm_ratio": Figure.of(timed, kind="simulated"),
            "uncached_requests": Figure.exact(uncached.requests),
            "cold_requests": Figure.exact(cold.requests),
            "warm_requests": Figure.exact(warm.requests),
            "shard_requests": Figure.exact(in_shards.requests),
            "uncached_bytes": Figure.exact(uncached.bytes, "B"),
        },
        headline="warm_ratio",
        sentence=f"An epoch from a warm cache asks a store {_stated(latency_ms)} for "
        f"{_times(warm)} (counted) and is {timed.ratio:.0f}× as fast (simulated); a cold one asks "
        f"{cold.requests} times, without a cache it is {uncached.requests}.",
    )


def _stated(latency_ms: float) -> str:
    return f"with {latency_ms:g} ms added to each request"


def _times(asked: Counts) -> str:
    return f"{asked.requests} files" if asked.requests else "nothing"
