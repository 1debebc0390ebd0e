"""How many calls make a letter, and what finding that out may cost, from both sides of each number.

The clock is made: what is asserted are counts of calls.
"""

from __future__ import annotations

import pytest

from perfkit.measure.compare import _per_call_ms, _repeats, compare

from .conftest import FakeClock


def calls_made(clock: FakeClock, took_ms: float, enough_after: int = 10_000) -> int:
    """How many calls it takes to find out how long one takes."""
    made = 0

    def call() -> None:
        nonlocal made
        clock.advance_ms(took_ms)
        made += 1

    _per_call_ms(call, clock, lambda: made >= enough_after)
    return made


@pytest.mark.parametrize(
    ("took_ms", "n"),
    [
        (0.5, 3),  # a tenth of a letter: the shortest of three
        (99.0, 3),
        (100.0, 1),  # no interruption takes so long
    ],
)
def test_long_calls_are_tried_less_often(clock: FakeClock, took_ms: float, n: int) -> None:
    assert calls_made(clock, took_ms) == n


def test_trials_end_where_there_is_no_time_for_them(clock: FakeClock) -> None:
    assert calls_made(clock, 0.5, enough_after=2) == 2


def test_short_calls_are_tried_in_groups_of_at_most_ten_times_as_many(clock: FakeClock) -> None:
    """A tenth of a letter is the goal, and a fifth beyond it the aim."""
    assert calls_made(clock, 0.05) == 1 + 3 * 10
    assert calls_made(clock, 0.005) == 1 + 10 + 3 * 100
    assert calls_made(clock, 0.045) == 1 + 10 + 3 * 14  # ten take 0.45 ms: 10 · 1.2 / 0.9
    assert calls_made(clock, 0.495) == 1 + 3 * 2


def test_an_interrupted_trial_does_not_count(clock: FakeClock) -> None:
    made = iter([5.0, 1.0, 5.0])

    def call() -> None:
        clock.advance_ms(next(made, 5.0))

    assert _per_call_ms(call, clock, lambda: False) == 1.0


def repeats_of(
    clock: FakeClock, a_ms: float, b_ms: float, known_ms: tuple[float, float] = (0.0, 0.0)
) -> tuple[int, int]:
    return _repeats(
        lambda: clock.advance_ms(a_ms), lambda: clock.advance_ms(b_ms), clock, known_ms,
        lambda: False,
    )  # fmt: skip


@pytest.mark.parametrize(("b_ms", "n"), [(1.99, 5), (2.0, 5), (2.1, 3)])
def test_arms_have_the_same_number_of_calls_up_to_twice_the_time(
    clock: FakeClock, b_ms: float, n: int
) -> None:
    assert repeats_of(clock, 1.0, b_ms) == (5, n)
    assert repeats_of(clock, b_ms, 1.0) == (n, 5)


@pytest.mark.parametrize(("known_ms", "is_tried"), [((100, 100), False), ((99, 100), True)])
def test_calls_of_twenty_letters_are_not_tried_again(
    clock: FakeClock, known_ms: tuple[float, float], is_tried: bool
) -> None:
    before = clock.ns
    assert repeats_of(clock, 100.0, 100.0, known_ms) == (1, 1)
    assert (clock.ns > before) is is_tried


def test_a_clock_that_stands_still_ends_with_the_most_repeats(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.measure.compare._time", lambda function, count, clock: 0.0)
    assert repeats_of(clock, 1.0, 1.0) == (10_000_000, 10_000_000)


def test_warming_up_ends_at_a_quarter_of_the_budget_and_finding_the_repeats_at_35_percent(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 s of calls of 10 ms, a pair at a time."""
    ended_s = []

    def found(a: object, b: object, clock: FakeClock, calls_ms: object, enough) -> tuple[int, int]:
        ended_s.append(clock.ns / 1e9)
        while not enough():
            clock.advance_ms(10)
        ended_s.append(clock.ns / 1e9)
        return 1, 1

    monkeypatch.setattr("perfkit.measure.compare._repeats", found)
    began_s = clock.ns / 1e9
    compare(
        lambda: clock.advance_ms(10), lambda: clock.advance_ms(10),
        clock=clock, budget_s=10, warmup=10_000,
    )  # fmt: skip
    assert [s - began_s for s in ended_s] == pytest.approx([2.5, 3.5], abs=0.05)
