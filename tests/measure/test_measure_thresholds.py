"""What statistics say begins a little above their thresholds and not a little below."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from perfkit.base.machine.dataloader_stats import DataLoaderStats, ProcessUse
from perfkit.base.trend import trend
from perfkit.measure import paired
from perfkit.measure.compare import doubts
from perfkit.measure.loader_cause import loader_cause
from perfkit.measure.memory_looks import Footprint
from perfkit.measure.meter import Steps
from perfkit.measure.paired import FEWEST, Interval, _signed_rank, ratio_interval
from perfkit.measure.slow_steps import cause, first_epoch, growing_phase, stands_out
from perfkit.measure.summary import summarize
from perfkit.measure.verdict import RunFacts, RunSummary, summarize_run

from .test_slow_steps import Trainer

Ms = list[float]


def _told(values: Ms) -> str:
    return " ".join(summarize(values).warnings)


@pytest.mark.parametrize(
    ("words", "make", "below", "above"),
    [
        ("wide spread", lambda x: [10 - 5 * x, 10 + 5 * x] * 10, 0.22, 0.28),
        ("drift", lambda x: list(np.linspace(10, 10 + 10 * x, 60)), 0.042, 0.058),
        ("the first value", lambda x: [10 * x, *([10.0, 10.1] * 5)], 1.8, 2.3),
        ("measure at least 6", lambda x: [10.0] * int(x), 6, 5),
    ],
)
def test_doubts_about_values(
    words: str, make: Callable[[float], Ms], below: float, above: float
) -> None:
    assert words not in _told(make(below))
    assert words in _told(make(above))


def test_a_trend_needs_ten_points() -> None:
    assert trend(np.arange(9.0)) is None
    assert trend(np.arange(10.0)) is not None


def test_doubts_about_two_arms() -> None:
    sure = Interval(1.0, 0.99, 1.01, 0.95, 20)

    def told(words: str, spread: float = 0.0, interval: Interval = sure) -> bool:
        """Of half of the blocks the ratio is lower than 1, of the others higher."""
        ratios = np.tile([1 - spread / 2, 1 + spread / 2], 20)
        a, b = np.repeat(ratios[:, None], 2, axis=1), np.ones((40, 2))
        return words in " ".join(doubts(a, b, interval))

    wide = [Interval(1.0, 1 / (1 + half), 1 + half, 0.95, 20) for half in (0.09, 0.11)]
    assert [told("the ratio is known to", interval=one) for one in wide] == [False, True]
    assert [told("unsteady", spread) for spread in (0.23, 0.27)] == [False, True]


def test_an_interval_that_is_tight_enough_to_stop() -> None:
    def tight(ratio: float, width: float) -> bool:
        half = np.exp(width / 2)
        return Interval(ratio, ratio / half, ratio * half, 0.95).tight

    assert tight(1.0, 0.018)
    assert not tight(1.0, 0.023)
    # of a gain of 2× a tenth, in logarithms, is 7 %
    assert tight(2.0, 0.06)
    assert not tight(2.0, 0.08)


def test_the_fewest_blocks_are_those_that_ranks_need() -> None:
    """Five agree by chance in 6 % of cases, six in 3 %: from there on ranks decide."""
    assert _signed_rank(FEWEST - 1, 0.95) is None
    assert _signed_rank(FEWEST, 0.95) == 0
    assert ratio_interval([2.0] * 3, [1.0] * 3).known
    assert not ratio_interval([2.0] * 2, [1.0] * 2).known


# --- slow steps ---------------------------------------------------------------------------


def _with_slow(n_slow: int, slow_ms: float, n: int = 100, spread: float = 0.0) -> np.ndarray:
    step_ms = np.where(np.arange(n) % 2, 10 - spread, 10 + spread)
    step_ms[:n_slow] = slow_ms
    return step_ms


@pytest.mark.parametrize(
    ("below", "above"),
    [
        (_with_slow(4, 20), _with_slow(6, 20)),  # 3.8 and 5.7 % of the run
        (_with_slow(10, 16, spread=1), _with_slow(10, 18, spread=1)),  # 3 interquartile ranges: 17
        (_with_slow(3, 20, n=19), _with_slow(3, 20, n=20)),
    ],
)
def test_steps_that_stand_out(below: np.ndarray, above: np.ndarray) -> None:
    assert not stands_out(below, 10.0).any()
    assert stands_out(above, 10.0).any()


def _steps(
    step_ms: np.ndarray, forward_ms: np.ndarray | None = None, gc_ms: np.ndarray | None = None
) -> Steps:
    none = np.zeros(len(step_ms))
    phases = {} if forward_ms is None else {"forward": forward_ms, "other": none}
    return Steps(np.arange(len(step_ms)), step_ms, none, phases, none if gc_ms is None else gc_ms)


def _kind(n_slow: int, share: float, *, gc: bool = False) -> str | None:
    """Of slow steps that take 10 ms more, this share is in the forward pass, or collecting."""
    slow = np.arange(40) < n_slow
    step_ms, more = np.where(slow, 20.0, 10.0), np.where(slow, 10 * share, 0.0)
    none = np.zeros(40)
    found = cause(_steps(step_ms, none if gc else 3 + more, more if gc else none), slow)
    kinds = {"garbage collector": "gc", "the forward pass": "forward"}
    return next((kind for words, kind in kinds.items() if words in found), None)


def test_what_is_named_as_the_cause_of_slow_steps() -> None:
    assert _kind(5, 0.45) is None
    assert _kind(5, 0.55) == "forward"
    assert _kind(3, 0.55) == "forward"
    # of one or two steps only what explains nearly all of it
    assert _kind(2, 0.75) is None
    assert _kind(2, 0.85) == "forward"
    assert _kind(5, 0.45, gc=True) is None
    assert _kind(5, 0.55, gc=True) == "gc"


@pytest.mark.parametrize(
    ("n_first", "first_ms", "is_told"),
    [
        *[(12, 10.8, False), (12, 11.2, True), (9, 12.0, False), (10, 12.0, True)],
        *[(30, 12.0, True), (31, 12.0, False)],  # of 40: as many have to follow
    ],
)
def test_a_first_epoch_that_was_slower(n_first: int, first_ms: float, is_told: bool) -> None:
    step_ms = np.where(np.arange(40) < n_first, first_ms, 10.0)
    said = first_epoch(_steps(step_ms), (0, n_first))
    assert bool(said) is is_told


@pytest.mark.parametrize(
    ("n_quick", "n_long", "is_told"), [(4, 4, True), (6, 4, False), (4, 6, False)]
)
def test_a_first_epoch_is_slower_where_the_middle_halves_are_apart(
    n_quick: int, n_long: int, is_told: bool
) -> None:
    """Of 20 steps each: so many of the first are quick as well, so many later ones are long."""
    first = [9.0] * n_quick + [12.0] * (20 - n_quick)
    rest = [10.0] * (20 - n_long) + [15.0] * n_long
    assert bool(first_epoch(_steps(np.array(first + rest)), (0, 20))) is is_told


@pytest.mark.parametrize(("share", "percent"), [(0.6, "60 %"), (1.5, "100 %")])
def test_no_phase_has_more_than_all_of_it(share: float, percent: str) -> None:
    """Of what grows, or of what the first epoch took more; others may have become quicker."""
    step_ms = 10 + np.arange(40) / 10
    steps = _steps(step_ms, 3 + share * np.arange(40) / 10)
    assert growing_phase(steps) == f"{percent} of it in the forward pass"
    step_ms = np.where(np.arange(40) < 20, 12.0, 10.0)
    said = first_epoch(_steps(step_ms, 3 + share * step_ms), (0, 20))
    assert "(median), the second's 10.0 ms:" in said
    assert said.endswith(f"{percent} of the difference is the forward pass")


def test_steps_far_below_a_millisecond_are_judged_alike() -> None:
    step_ms = np.where(np.arange(40) < 5, 0.2, 0.1)
    assert stands_out(step_ms, 0.1).sum() == 5
    assert cause(_steps(step_ms, step_ms), step_ms > 0.15)
    step_ms = 0.1 + np.arange(40) / 1000
    assert growing_phase(_steps(step_ms, step_ms))


def test_a_few_quick_steps_hide_no_slow_ones() -> None:
    step_ms = np.repeat([5.0, 10.0, 16.0], [20, 70, 10])  # the middle half takes 10 ms
    assert stands_out(step_ms, 10.0).sum() == 10


@pytest.mark.parametrize(("n_slow", "each"), [(1, ""), (2, " each")])
def test_one_slow_step_has_no_each(n_slow: int, each: str) -> None:
    slow = np.arange(40) < n_slow
    step_ms = np.where(slow, 20.0, 10.0)
    found = cause(_steps(step_ms, step_ms), slow)
    assert found == f"10.0 ms more{each} goes to the forward pass"


def test_a_phase_that_grows_with_the_steps() -> None:
    step_ms = 10 + np.arange(40) / 10
    for share, named in ((0.45, False), (0.55, True)):
        steps = _steps(step_ms, 3 + share * np.arange(40) / 10)
        assert ("forward" in growing_phase(steps)) is named


@pytest.mark.parametrize(
    ("share", "begin"),
    [(0.17, "Not data-bound"), (0.23, "Partly"), (0.47, "Partly"), (0.53, "Data-bound")],
)
def test_how_bound_by_data_a_run_is(share: float, begin: str) -> None:
    def wait(n: int, took: dict[str, float]) -> None:
        others_ms = took["forward"] + took["backward"] + took["optimizer"]
        took["data_wait"] = others_ms * share / (1 - share)

    assert Trainer(100, wait).summary().sentence.startswith(begin)


# --- loaders ------------------------------------------------------------------------------

MB, MIB = 10**6, 2**20
_WORKER = ProcessUse(10.0, 9.6, 0.1, 0)


def _cause(worker: ProcessUse = _WORKER, lost: float = 0.8, **facts: object) -> str | None:
    use = DataLoaderStats(10.0, 8, (worker, worker), 0.4)
    found = loader_cause(dataclasses.replace(use, **facts), lost=lost)  # type: ignore[arg-type]
    return None if found is None else found.kind


def _worker(**changes: float) -> ProcessUse:
    return dataclasses.replace(_WORKER, **changes)  # type: ignore[arg-type]


def _short(seen_s: float) -> ProcessUse:
    return _worker(seen_s=seen_s, cpu_s=0.96 * seen_s, waited_s=0.0)


READS = 900 * MB
#: what is found a little below a threshold, and a little above
CAUSES = {
    "what waiting costs": (lambda: _cause(lost=0.18), None, lambda: _cause(lost=0.22), "code"),
    "seconds seen": (
        lambda: _cause(workers=(_short(0.45),)), None,
        lambda: _cause(workers=(_short(0.55),)), "code",
    ),
    "blocked by a disk": (
        lambda: _cause(_worker(cpu_s=7.2, disk_bytes=READS)), "code",
        lambda: _cause(_worker(cpu_s=6.6, disk_bytes=READS)), "disk",
    ),
    "bytes of a disk": (
        lambda: _cause(_worker(cpu_s=2.0, disk_bytes=2.9 * MB)), "elsewhere",
        lambda: _cause(_worker(cpu_s=2.0, disk_bytes=3.5 * MB)), "disk",
    ),
    "blocked elsewhere": (
        lambda: _cause(_worker(cpu_s=5.2)), None, lambda: _cause(_worker(cpu_s=4.6)), "elsewhere",
    ),
    "at work": (
        lambda: _cause(_worker(cpu_s=6.7, waited_s=0.0)), None,
        lambda: _cause(_worker(cpu_s=7.3, waited_s=0.0)), "code",
    ),
    "cores to spare": (
        lambda: _cause(spare_cores=0.9), "code", lambda: _cause(spare_cores=1.1), "workers",
    ),
    "waits for a core": (
        lambda: _cause(_worker(cpu_s=7.5, waited_s=2.2), spare_cores=3.0), "code",
        lambda: _cause(_worker(cpu_s=7.5, waited_s=1.8), spare_cores=3.0), "workers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CAUSES)
def test_why_a_loader_is_slow(what: str) -> None:
    below, is_then, above, is_now = CAUSES[what]
    assert (below(), above()) == (is_then, is_now)


def test_a_gain_above_ten_is_not_told() -> None:
    use = DataLoaderStats(10.0, 8, (_WORKER,), 0.4)
    for lost, gain in ((0.88, 1 / 0.12), (0.95, 10.0)):
        found = loader_cause(use, lost=lost)
        assert found is not None
        assert found.gain_at_most == pytest.approx(gain)
        assert ("over 10×" in found.formula) is (gain == 10)


# --- a watched run ------------------------------------------------------------------------


def _run(
    step_ms: Ms | np.ndarray,
    first_wait_ms: float = 0.0,
    *,
    wait_ms: np.ndarray | None = None,
    since: int = 0,
    **known: object,
) -> RunSummary:
    """The summary of an epoch whose steps took so long, and waited so long or for nothing."""
    took = np.asarray(step_ms, dtype=np.float64)
    n, total_ms = len(took), float(took.sum())
    facts = RunFacts(
        name="loader",
        ended="finished",
        n_steps=n,
        n_epochs=1,
        n_unfinished=0,
        steps=Steps(
            np.arange(n) + since, took, np.zeros(n) if wait_ms is None else wait_ms, {}, np.zeros(n)
        ),
        total_ms=total_ms,
        starts=((0, 0.0, first_wait_ms),),
        samples=None,
        batch_size=None,
        memory=(),
        wall_s=total_ms / 1e3,
        update_s=0.0,
        one_shot=False,
        problems=(),
    )
    return summarize_run(dataclasses.replace(facts, **known))  # type: ignore[arg-type]


def test_watching_never_takes_more_than_the_run() -> None:
    """The last update, drawn after a run of 30 ms, was "111 % of the run"."""
    assert _run([10.0] * 3, update_s=0.033).update_share == pytest.approx(33 / 63)
    # what came within a longer run is a part of its wall time
    assert _run([10.0] * 30, wall_s=0.4, update_s=0.02).update_share == pytest.approx(0.05)


def _slow_at(numbers: list[int], slow_ms: Ms | float, n: int = 120) -> np.ndarray:
    step_ms = np.full(n, 10.0)
    step_ms[[number - 1 for number in numbers]] = slow_ms
    return step_ms


def test_warm_up_is_left_out_of_ten_steps_or_more() -> None:
    for n, kept in ((9, 8), (10, 7)):
        step = _run([10.0] * n).step
        assert step is not None
        assert step.n == kept


def test_a_run_is_uneven_where_its_mean_is_far_above_its_median() -> None:
    """Also where more than a quarter of its steps are slow, so that they are its spread."""
    for n in (6, 40):
        said = _run(_slow_at(list(range(10, 10 + n)), 100.0, 103)).sentence
        assert f"100 ms in steps 10 to {9 + n}, together" in said


def test_steps_are_uneven_from_half_as_long_again() -> None:
    """A sixth of the steps takes longer. Batches of other sizes do so by less than a half."""
    for slow_ms, is_told in ((14.5, False), (15.5, True)):
        step_ms = _slow_at(list(range(10, 121, 6)), slow_ms)
        assert ("uneven" in _run(step_ms).sentence) is is_told


def test_the_interval_of_the_wait_is_students_over_twenty_stretches() -> None:
    """In every other stretch of five steps 40 % are a wait, else 20 %: t of 19 at 95 % is 2.093."""
    wait_ms = np.repeat([2.0, 4.0] * 10, 5)
    found = _run([10.0] * 103, wait_ms=np.r_[0.0, 0.0, 0.0, wait_ms])
    assert found.wait_share == pytest.approx(0.3)
    half = 2.093 * np.std([0.2, 0.4] * 10, ddof=1) / np.sqrt(20)
    assert found.wait_low == pytest.approx(0.3 - half, rel=1e-3)
    assert found.wait_high == pytest.approx(0.3 + half, rel=1e-3)


def test_the_long_steps_take_twice_the_median() -> None:
    for took, which in ((19.0, "in steps 10 to 15,"), (21.0, "in 7 steps (10, 11, 12 …),")):
        step_ms = _slow_at([*range(10, 16), 50], [100.0] * 6 + [took], 103)
        assert which in _run(step_ms).sentence


def test_long_steps_come_at_intervals_where_four_fifths_of_the_distances_are_alike() -> None:
    tens = list(range(10, 101, 10))
    assert "in every 10th step (steps 10, 20 … 100)" in _run(_slow_at(tens, 100.0)).sentence
    assert "every 10th" in _run(_slow_at([*tens[:-1], 99], 100.0)).sentence  # 8 of 9
    assert "in 10 steps (10" in _run(_slow_at([*tens[:-2], 89, 97], 100.0)).sentence  # 7 of 9
    assert "(steps 10, 20 and 30)" in _run(_slow_at([10, 20, 30], 300.0)).sentence


def test_long_steps_of_one_length_have_one_figure() -> None:
    for longest, said in ((100.0, "uneven: 100 ms in"), (130.0, "uneven: 100 ms to 130 ms in")):
        step_ms = _slow_at([*range(10, 15), *range(20, 25)], [100.0] * 5 + [longest] * 5)
        assert said in _run(step_ms).sentence


def test_a_first_batch_is_told_where_it_takes_a_tenth_of_the_run() -> None:
    step_ms = [10.0] * 100
    assert "the first batch" not in _run(step_ms, 90.0).sentence
    assert "the first batch took 110 ms at the start (11 %" in _run(step_ms, 110.0).sentence


def _held(kind: Literal["allocated", "resident"], in_use: float, rose: float = 0.0) -> RunSummary:
    """A run whose memory in use grows evenly by so much, and its resident size as well."""
    readings = []
    for step in range(1, 101):
        held = int(300 * MIB + in_use * step / 100)
        resident = int(900 * MIB + rose * (step - 1) / 99)
        one = Footprint(held, kind) if kind == "allocated" else Footprint(resident, kind, held)
        readings.append((step, one))
    return _run([10.0] * 100, memory=tuple(readings))


def test_memory_creeps_where_it_grows_by_more_than_caches_do() -> None:
    """The first tenth, in which caches fill, is not counted."""
    counted = 0.89
    for kind, limit in (("allocated", MIB / 4), ("resident", MIB)):
        less, more = (_held(kind, part * limit / counted).memory for part in (0.9, 1.1))
        assert less is not None
        assert more is not None
        assert (less.creep is None, more.creep is None) == (True, False)


def test_values_hang_together_from_twenty_on() -> None:
    assert "correlated" not in _told([10.0] * 9 + [10.1] * 10)
    assert "correlated" in _told([10.0] * 10 + [10.1] * 10)


def test_a_trend_is_clear_where_chance_makes_one_in_a_thousand_such_orders() -> None:
    """Of ten values 45 pairs: with 3 that fall Kendall's S is 39, with 4 it is 37.

    Its deviation is the root of 10 · 9 · 25 / 18 = 125, and a thousandth lies beyond 3.29 of them:
    S - 1 has to exceed 36.8. Neighbours alternate about the line, so nothing is widened.
    """
    three = trend([2, 1, 4, 3, 6, 5, 7, 8, 9, 10])
    four = trend([2, 1, 4, 3, 6, 5, 8, 7, 9, 10])
    assert three is not None
    assert four is not None
    assert (three.clear, four.clear) == (True, False)


@pytest.mark.parametrize(("confidence", "lower"), [(0.95, 1), (0.99, 6)])
@pytest.mark.parametrize("n", [51, 60, 62, 88, 120])
def test_beyond_fifty_blocks_the_rank_is_that_of_the_tables_or_a_little_lower(
    monkeypatch: pytest.MonkeyPatch, n: int, confidence: float, lower: int
) -> None:
    """Lower is on the safe side: fewer averages are cut off."""
    normal = _signed_rank.__wrapped__(n, confidence)
    monkeypatch.setattr(paired, "_EXACT_UP_TO", n)
    exact = _signed_rank.__wrapped__(n, confidence)
    assert normal is not None
    assert exact is not None
    assert 0 <= exact - normal <= lower


def test_an_interval_of_a_slope_holds_it_in_nineteen_of_twenty_series() -> None:
    random = np.random.default_rng(2)
    missed = 0
    for _ in range(200):
        found = trend(np.arange(60) + random.normal(0, 20, 60))
        assert found is not None
        missed += not found.low <= 1 <= found.high
    assert 2 <= missed <= 20


def test_the_share_of_waiting_has_its_interval_from_twenty_stretches() -> None:
    """Stretches of 20 steps wait 4 and 2 ms of 10, in turns: t(19) = 2.093 standard errors."""
    wait = np.repeat([4.0, 2.0] * 10, 20)
    # no step is the first of an epoch or warm-up
    run = _run(np.full(400, 10.0), wait_ms=wait, since=10, starts=())
    half = 2.093 * np.sqrt(20 / 19 * 20 * 20.0**2) / 4_000
    assert run.wait_share == pytest.approx(0.3, rel=0.01)
    assert (run.wait_high or 0) - (run.wait_low or 0) == pytest.approx(2 * half, rel=0.02)


@pytest.mark.parametrize("n", [2_003, 4_005])
def test_a_long_run_is_drawn_in_two_thousand_points(n: int) -> None:
    """Three of them are left out: the first of the epoch and two of warm-up."""
    run = _run(np.full(n, 10.0))
    assert len(run.curve.numbers) == 2_000
    assert run.curve.step_ms == pytest.approx(10.0)


@pytest.mark.parametrize(("n", "kept"), [(9, 8), (10, 7), (12, 9)])
def test_the_second_and_third_step_are_warm_up_from_ten_steps_on(n: int, kept: int) -> None:
    assert len(_run([10.0] * n).curve.numbers) == kept


def _warned(words: str, step_ms: Ms, **known: object) -> bool:
    return any(words in one for one in _run(step_ms, **known).warnings)


@pytest.mark.parametrize(
    ("is_cpu", "n", "is_told"), [(False, 40, True), (True, 40, False), (False, 0, False)]
)
def test_times_are_said_to_be_the_hosts_where_a_gpu_made_steps(
    monkeypatch: pytest.MonkeyPatch, is_cpu: bool, n: int, is_told: bool
) -> None:
    monkeypatch.setattr("perfkit.measure.verdict.in_use", lambda: SimpleNamespace(is_cpu=is_cpu))
    assert _warned("times are the host's", [10.0] * n, starts=()) is is_told
    assert not _warned("every step is the first of its epoch", [10.0] * n, starts=())
