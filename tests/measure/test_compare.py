from __future__ import annotations

import functools
import gc
import json
import math
import re
import sys
import time

import numpy as np
import pytest

from perfkit.base.errors import UsageError
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention
from perfkit.base.words import fmt_share
from perfkit.measure.compare import compare, doubts, sentence
from perfkit.measure.paired import Interval, ratio_interval


@pytest.fixture(autouse=True)
def _quiet(quiet_machine) -> None:
    """These tests ignore this machine's load."""


def steady(clock, slow_ms: float = 20.0, fast_ms: float = 10.0, **options):
    return compare(
        lambda: clock.advance_ms(slow_ms),
        lambda: clock.advance_ms(fast_ms),
        clock=clock,
        **options,
    )


def test_ratio_with_its_parts(clock) -> None:
    c = steady(clock, names=("naive", "batched"))
    assert c.ratio == pytest.approx(2)
    assert c.a.median / c.b.median == 2
    assert (c.low, c.high) == pytest.approx((2, 2))
    assert c.different
    assert c.stopped == "interval tight"
    assert c.n_blocks == 6
    assert c.a.n == 2 * c.n_blocks
    assert c.sentence.startswith("'batched' is 2.00× as fast as 'naive'")
    assert c.faster == "batched"
    assert c.provenance.kind == "measured here"
    assert c.provenance.seed == 0
    assert c.provenance.command == "perfkit.compare(naive, batched)"


def test_the_sentence_says_which_one_is_faster(clock) -> None:
    c = steady(clock, slow_ms=10, fast_ms=30, names=("old", "new"))
    assert c.ratio == pytest.approx(1 / 3)
    assert "'old' is 3.00× as fast as 'new' (95 % interval [" in c.sentence
    assert c.faster == "old"
    assert c.high < 1


def test_no_difference_seen(clock) -> None:
    c = steady(clock, fast_ms=20)
    assert not c.different
    assert c.sentence.startswith("No difference seen between 'first' and 'second'")
    random = np.random.default_rng(0)
    noisy = [lambda: clock.advance_ms(50 * random.lognormal(0, 0.02)) for _ in "ab"]
    c = compare(*noisy, clock=clock, budget_s=4)
    least = f"A difference of {fmt_share(c.detectable)} would have been seen with 80 %"
    assert least in c.sentence


@pytest.mark.parametrize(
    ("ends", "said", "says_least"),
    [
        ((0.97, 1.04), "No difference seen between 'a' and 'b': the ratio is 1.01×", True),
        ((0.7, 1.4), "Too unsteady to tell which of 'a' and 'b' is faster: the ratio", True),
        ((0.03, 246.0), "Too unsteady to tell which of 'a' and 'b' is faster: the ratio", False),
    ],
)
def test_an_interval_with_room_for_a_difference_is_not_called_none(ends, said, says_least) -> None:
    """A Lab on a busy machine said: no difference seen, 2.33× [0.0326, 246], 26,024 % …"""
    told = sentence(("a", "b"), Interval(1.01, *ends, 0.95, 8))
    assert told.startswith(said)
    assert told.endswith("would have been seen with 80 % probability.") is says_least


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (
            Interval(1.5, 1.4, 1.6, 0.95, 8),
            "'b' is 1.50× as fast as 'a' (95 % interval [1.40, 1.60]).",
        ),
        (
            Interval(0.8, 0.7, 0.9, 0.95, 8),
            "'a' is 1.25× as fast as 'b' (95 % interval [1.11, 1.43]).",
        ),
        (Interval(1.5, 0.0, math.inf, 0.95, 1), "1 block with a ratio of 1.50×, and no interval."),
        (Interval(1.5, 0.0, math.inf, 0.95, 2), "2 blocks with a ratio of 1.50×, and no interval."),
    ],
)
def test_the_answer_in_words(interval: Interval, said: str) -> None:
    assert sentence(("a", "b"), interval).endswith(said)


@pytest.mark.parametrize(("half", "is_said"), [(1.6, True), (1.8, False)])
def test_a_difference_that_would_have_been_seen_is_below_twice_the_time(half, is_said) -> None:
    told = sentence(("a", "b"), Interval(1.0, 1 / half, half, 0.95, 8))
    assert ("would have been seen" in told) is is_said


@pytest.mark.parametrize(("n_apart", "is_unsteady"), [(8, False), (12, True)])
def test_the_middle_half_of_the_blocks_tells_how_steady_they_are(n_apart, is_unsteady) -> None:
    """Of 40 blocks as many are far below as far above: a fifth, then three tenths."""
    ratios = np.array([0.5] * n_apart + [1.0] * (40 - 2 * n_apart) + [1.5] * n_apart)
    a, b = np.repeat(ratios[:, None], 2, axis=1), np.ones((40, 2))
    found = " ".join(doubts(a, b, Interval(1.0, 0.99, 1.01, 0.95, 40)))
    assert ("unsteady" in found) is is_unsteady


def test_the_fewest_and_the_most_blocks_may_be_two(clock) -> None:
    assert steady(clock, min_blocks=2, max_blocks=2).n_blocks == 2


class Model:
    def forward(self) -> None: ...

    def fused(self) -> None: ...


def test_functions_are_called_by_their_own_names(clock) -> None:
    def naive() -> None:
        clock.advance_ms(20)

    def batched() -> None:
        clock.advance_ms(10)

    assert compare(naive, batched, clock=clock).names == ("naive", "batched")
    for arms in ((naive, naive), (lambda: naive(), batched), (functools.partial(naive), batched)):
        assert compare(*arms, clock=clock).names == ("first", "second")
    assert compare(naive, batched, names=("a", "b"), clock=clock).names == ("a", "b")
    model = Model()
    assert compare(model.forward, model.fused, budget_s=0.1).names == ("forward", "fused")


def test_what_a_terminal_would_obey_does_not_reach_it(clock) -> None:
    c = steady(clock, names=("a\nb\x1b[31m", "c" * 1000))
    assert c.names[0] == "a�b�[31m"
    assert len(c.names[1]) == 60
    assert "\x1b" not in str(c) + c._repr_html_()


def test_order_is_balanced_within_each_block_and_seeded(clock) -> None:
    def order(seed: int) -> str:
        calls: list[str] = []

        def arm(name: str, took_ms: float) -> None:
            calls.append(name)
            clock.advance_ms(took_ms)

        compare(
            functools.partial(arm, "a", 20), functools.partial(arm, "b", 10),
            warmup=1, clock=clock, seed=seed, min_blocks=12,
        )  # fmt: skip
        return "".join(calls[8:])  # 1 warm-up call and 3 to find the repeats, of each

    letters = order(3)
    blocks = [letters[i : i + 4] for i in range(0, len(letters), 4)]
    assert set(blocks) == {"abba", "baab"}
    assert order(3) == letters


def test_what_queues_up_while_garbage_is_collected_shortens_no_letter(clock, monkeypatch) -> None:
    ready = 0  # batches of a loader, of which one comes every 50 ms

    def collect() -> None:
        nonlocal ready
        ready = 2

    def four_batches() -> None:
        nonlocal ready
        clock.advance_ms(50 * (4 - ready))
        ready = 0

    monkeypatch.setattr(gc, "collect", collect)
    found = compare(lambda: four_batches(), lambda: four_batches(), clock=clock, budget_s=5)
    assert (found.low, found.high) == pytest.approx((1, 1))


def test_slow_linear_drift_cancels(clock) -> None:
    def arm(base_ms: float) -> None:
        clock.advance_ms(base_ms * (1 + clock.ns / 20e9))  # 5 % slower per second

    c = compare(
        lambda: arm(40), lambda: arm(40), clock=clock, budget_s=15, min_blocks=20, max_blocks=40
    )
    assert not c.different
    assert c.ratio == pytest.approx(1, abs=0.01)
    assert any("slower while measured" in w for w in c.warnings)


def test_very_short_callables_are_repeated(clock) -> None:
    c = steady(clock, slow_ms=0.002, fast_ms=0.001)
    assert c.repeats[0] * 0.002 >= 5
    assert c.repeats[1] * 0.001 >= 5
    assert (c.a.median, c.b.median) == pytest.approx((0.002, 0.001))


@pytest.mark.parametrize("slow_ms", [0.0002, 0.3, 2e4])
def test_times_are_in_milliseconds_however_long_they_are(clock, slow_ms: float) -> None:
    """Whoever computes with them need not ask (a lesson did not, and said 8 ms of 8 µs)."""
    c = steady(clock, slow_ms=slow_ms, fast_ms=slow_ms / 2, budget_s=1e3)
    assert (c.a.unit, c.b.unit) == ("ms", "ms")
    assert (c.a.median, c.b.median) == pytest.approx((slow_ms, slow_ms / 2), rel=0.01)


def test_arms_that_take_about_as_long_get_the_same_number_of_calls(clock) -> None:
    assert len(set(steady(clock, slow_ms=0.0018, fast_ms=0.001).repeats)) == 1
    apart = steady(clock, slow_ms=0.004, fast_ms=0.001)
    assert apart.repeats[1] == pytest.approx(4 * apart.repeats[0], rel=0.01)


@pytest.mark.parametrize("interrupted", [{2}, {2, 3}, {3, 4}, set(range(100, 400, 7))])
def test_what_interrupts_the_first_trials_does_not_decide_how_often_an_arm_is_called(
    clock, interrupted: set[int]
) -> None:
    calls = 0

    def hit_at_first() -> None:
        nonlocal calls
        calls += 1
        clock.advance_ms(0.01 + 7 * (calls in interrupted))

    c = compare(hit_at_first, lambda: clock.advance_ms(0.01), warmup=1, clock=clock)
    assert c.repeats[0] == c.repeats[1]
    assert c.repeats[0] * 0.01 >= 5


def test_the_budget_ends_it(clock) -> None:
    random = np.random.default_rng(0)

    def noisy() -> None:
        clock.advance_ms(1000 * float(random.lognormal(0, 0.5)))

    c = compare(noisy, noisy, clock=clock, budget_s=60)
    assert c.stopped == "time budget"
    assert 6 <= c.n_blocks <= 15
    assert c.duration_s < 63  # the last block may take longer than the mean one
    c = compare(noisy, noisy, clock=clock, budget_s=1000, max_blocks=12)
    assert (c.n_blocks, c.stopped) == (12, "most blocks")
    assert any("raise budget_s" in w for w in c.warnings)


@pytest.mark.parametrize("call_s", [0.2, 0.5, 1.0, 3.0])
def test_the_budget_is_kept_where_calls_turn_out_long(clock, call_s: float) -> None:
    """On a busy machine six blocks of calls that took 3 s overran 8 s to 85 s."""
    c = steady(clock, slow_ms=1000 * call_s, fast_ms=900 * call_s, budget_s=8)
    assert c.duration_s <= max(8, 4 * call_s)
    if c.n_blocks < 3:
        assert not c.different
        assert (c.low, c.high) == (0, math.inf)
        assert c.sentence.startswith("Too little was measured")
    assert c.different == (call_s < 1.0)


def test_calls_longer_than_the_budget_are_made_twice_each(clock) -> None:
    c = steady(clock, slow_ms=30_000, fast_ms=20_000, budget_s=8)
    assert c.a.n == c.b.n == 1
    assert c.n_blocks == 1
    assert len(c.warnings) == 1
    assert "two calls of each took 100 s, more than the budget of 8 s" in c.warnings[0]
    assert "raise budget_s" in c.warnings[0]
    # neither of the calls has an interval, nor has their ratio
    assert str(c).count(" – ") == 3
    assert json.loads(json.dumps(c.to_dict()))["high"] is None


def test_a_call_that_is_long_only_at_first_costs_few_blocks(clock) -> None:
    calls = 0

    def compiled() -> None:
        nonlocal calls
        calls += 1
        clock.advance_ms(3000 if calls == 1 else 10)

    c = compare(compiled, lambda: clock.advance_ms(10), clock=clock, budget_s=4)
    assert c.n_blocks >= 6
    assert c.ratio == pytest.approx(1)


def test_the_budget_goes_into_blocks(clock) -> None:
    """2 s of 20 ms calls: 25 blocks fit if nothing else were done."""
    random = np.random.default_rng(0)

    def step() -> None:
        clock.advance_ms(20 * float(random.lognormal(0, 0.1)))

    c = compare(step, step, clock=clock, budget_s=2, max_blocks=30)
    assert c.stopped == "time budget"
    assert c.n_blocks >= 22


def test_warming_up_takes_a_quarter_of_the_budget_at_most(clock) -> None:
    """10 s of 100 ms calls: 15 blocks of four fit beside it; beside half a budget it were 11."""
    random = np.random.default_rng(0)

    def step() -> None:
        clock.advance_ms(100 * float(random.lognormal(0, 0.3)))

    c = compare(step, step, clock=clock, budget_s=10, warmup=1_000)
    assert c.stopped == "time budget"
    assert c.n_blocks >= 14


def test_a_busy_machine_is_the_first_thing_said_and_the_doubts_are_one_sentence(
    clock, monkeypatch
) -> None:
    busy = CpuContention(20.0, 2, 10.0, waited_s=9.0, others_s=25.0)
    monkeypatch.setattr(ContentionMark, "until_now", lambda self: busy)
    random = np.random.default_rng(0)

    def noisy() -> None:
        clock.advance_ms(1000 * float(random.lognormal(0, 0.5)))

    c = compare(noisy, noisy, clock=clock, budget_s=20)
    (only,) = c.warnings
    assert only.startswith("The machine was busy: other programs used 1.2 of 2 cores")
    assert only.endswith("measure again on a quiet machine")
    assert "raise budget_s" not in only
    assert str(c).splitlines()[1] == "! machine was busy"
    assert c.to_text().count("Note:") == 1


def test_unsteady_ratio_is_told(clock) -> None:
    random = np.random.default_rng(0)

    def noisy() -> None:
        clock.advance_ms(100 * float(random.lognormal(0, 0.5)))

    c = compare(noisy, noisy, clock=clock, budget_s=20)
    assert any("unsteady" in w for w in c.warnings)


def test_the_device_is_settled_around_each_letter(clock) -> None:
    c = steady(clock)
    # two settles a letter, four letters a block, one each to warm up, three to find the repeats
    assert clock.settled == 2 * (4 * c.n_blocks + 2 + 6)


def test_to_dict_is_json_and_the_notebook_bundle_carries_it(clock) -> None:
    c = steady(clock)
    data = json.loads(json.dumps(c.to_dict()))
    assert data["ratio"] == pytest.approx(2)
    assert data["provenance"]["kind"] == "measured here"
    bundle = c._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "application/vnd.perfkit.result+json"}
    assert bundle["application/vnd.perfkit.result+json"] == {**c.to_dict(), "type": "comparison"}


def test_real_clock_sees_three_times_the_work() -> None:
    c = compare(lambda: sum(range(6000)), lambda: sum(range(2000)), budget_s=4.0)
    assert c.different
    assert c.low > 1.5  # loose: the machine may be busy


def generator():
    yield 1


async def coroutine() -> None: ...


class GeneratorObject:
    def __call__(self):
        yield 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (3, "is 3; give a function"),
        (generator, "only makes a generator"),
        (functools.partial(generator), "only makes a generator"),
        (GeneratorObject(), "only makes a generator"),
        (coroutine, "only makes a coroutine"),
        (lambda: generator(), "only makes a generator"),
        (lambda: coroutine(), "only makes a coroutine"),
        (lambda x: x, "without arguments"),
        (len, "without arguments"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_what_would_measure_nothing_is_refused_by_name(clock, bad, said: str, place: int) -> None:
    arms = [lambda: clock.advance_ms(1)] * 2
    arms[place] = bad
    with pytest.raises(UsageError, match=said) as caught:
        compare(arms[0], arms[1], names=("first", "second"), clock=clock)
    assert re.search((r"\bfirst\b|^a is", r"\bsecond\b|^b is")[place], str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"names": ("a", "a")},
        {"names": "ab"},
        {"names": ("a", "b", "c")},
        {"budget_s": 0},
        {"budget_s": -1},
        {"budget_s": math.nan},
        {"min_blocks": 1},
        {"max_blocks": 9, "min_blocks": 10},
        {"warmup": -1},
        {"budget_s": "a"},
        {"budget_s": None},
        {"budget_s": [1]},
        {"budget_s": True},
        {"names": 5},
        {"names": (1, 2)},
        {"names": ("a", 2)},
        {"min_blocks": 6.5},
        {"max_blocks": "many"},
        {"warmup": None},
        {"seed": "x"},
        {"seed": -1},
    ],
)
def test_absurd_options_are_refused(clock, options) -> None:
    with pytest.raises(UsageError, match=next(iter(options))) as caught:
        steady(clock, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, StopIteration])
def test_exceptions_come_through_unchanged(clock, error: type[BaseException]) -> None:
    mine = error("mine")
    calls = 0

    def fails_late() -> None:
        nonlocal calls
        calls += 1
        clock.advance_ms(10)
        if calls == 9:
            raise mine

    with pytest.raises(error) as caught:
        compare(fails_late, lambda: clock.advance_ms(10), clock=clock, min_blocks=10)
    assert caught.value is mine


def test_a_clock_that_goes_backwards_gives_no_negative_time(clock) -> None:
    times = iter([20, 20] + [20, 20, -5, 20] * 200)
    c = compare(
        lambda: clock.advance_ms(next(times)), lambda: clock.advance_ms(20),
        clock=clock, max_blocks=20,
    )  # fmt: skip
    assert c.a.minimum == 0
    assert c.a.median == 20


@pytest.mark.serial
def test_default_clock_is_the_hosts() -> None:
    began = time.monotonic()
    c = compare(lambda: time.sleep(0.002), lambda: time.sleep(0.001), budget_s=0.3)
    assert c.a.median >= 2
    assert time.monotonic() - began < 5


def test_the_variable_scales_the_budget(clock, monkeypatch) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "0.25")
    random = np.random.default_rng(0)  # so wide that the interval is never tight
    c = compare(
        lambda: clock.advance_ms(random.uniform(20, 180)), lambda: clock.advance_ms(100),
        clock=clock, budget_s=40,
    )  # fmt: skip
    assert c.stopped == "time budget"
    assert 8 < c.duration_s <= 10


def test_few_geometrically_spaced_looks_decide_when_to_stop(clock, monkeypatch) -> None:
    """Each look may be lucky: one after every block would stop too early, and too sure."""
    looks = []

    def looked(slow, fast):
        looks.append(len(slow))
        return ratio_interval(slow, fast)

    monkeypatch.setattr(sys.modules[compare.__module__], "ratio_interval", looked)
    random = np.random.default_rng(0)  # so wide that the interval is never tight
    compare(
        lambda: clock.advance_ms(random.uniform(20, 180)), lambda: clock.advance_ms(100),
        clock=clock, budget_s=1e4, max_blocks=60,
    )  # fmt: skip
    assert looks[:6] == [6, 9, 14, 21, 32, 48]
    assert set(looks[6:]) <= {60}  # the result
