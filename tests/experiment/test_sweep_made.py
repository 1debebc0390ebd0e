"""What a sweep decides and says of runs with known times: no child process, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfkit.base.machine import facts, stamp
from perfkit.base.progress import Progress
from perfkit.experiment.compare._grid import grid_of
from perfkit.experiment.compare.sweep import _FEWEST_ROUNDS, _run_s, _Sweeping
from perfkit.experiment.process.result import RunResult
from perfkit.measure.summary import summarize

WHERE = stamp(device="cpu")


def run(ms: float, *, samples: float | None = 32.0, state: str = "done", **more: Any) -> RunResult:
    good = state == "done"
    figures: dict[str, Any] = {"peak_bytes": 5, "wait_share": 0.1, "message": "" if good else "bad"}
    return RunResult(
        run_id=1,
        values={},
        state=state,
        step=summarize([ms]) if good else None,
        samples_per_s=samples and samples / ms * 1e3,
        peak_kind="resident",
        n_steps=1,
        n_quiet=1,
        provenance=WHERE,
        step_ms=np.array([ms]),
        counted=np.array([True]),
        **(figures | more),
    )


def sweeping(
    times_ms: Sequence[Sequence[float]], *, samples: Sequence[float | None] = (), **more: Any
) -> _Sweeping:
    """A sweep over ``point`` = 0, 1, 2 …, each with its times in the rounds so far."""
    grid = grid_of({"point": list(range(len(times_ms)))}, (), {}, facts())
    options: dict[str, Any] = {"budget_s": 1.0, "rounds": None, "seed": 0} | more
    found = _Sweeping(None, grid, None, progress=Progress("", False), **options)  # type: ignore[arg-type]
    many = samples or [32.0] * len(times_ms)
    found._runs = [
        {number: run(ms, samples=n) for number, ms in enumerate(times)}
        for times, n in zip(times_ms, many, strict=True)
    ]
    return found


FAST, SLOW = [1.0, 1.001, 1.0, 1.002, 1.0, 1.001], [2.0, 2.001, 2.0, 2.002, 2.0, 2.001]
WIDE = [1.2, 0.9, 1.3, 0.8, 1.25, 1.1]  # over FAST: above it, and not surely


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ([FAST], "The fastest of 1 point is point 0: 1.00 ms per step."),
        ([[], []], "None of 2 points was measured."),
        (
            [SLOW, FAST],
            "The fastest of 2 points is point 1: 1.00 ms per step; every other one is "
            "distinguishably slower.",
        ),
        (
            [SLOW, FAST, []],
            "The fastest of 3 points is point 1: 1.00 ms per step; each other one that ran is "
            "distinguishably slower. 1 of 3 could not be measured.",
        ),
        (
            [FAST, FAST],
            "The fastest of 2 points is point 0: 1.00 ms per step; not distinguishably slower: "
            "point 1.",
        ),
        (
            [FAST, []],
            "The fastest of 2 points is point 0: 1.00 ms per step. 1 of 2 could not be measured.",
        ),
        (
            [SLOW, FAST, WIDE],
            "The fastest of 3 points is point 1: 1.00 ms per step; not distinguishably slower: "
            "point 2.",
        ),
        (
            [FAST, WIDE, WIDE, WIDE, WIDE, WIDE],
            "The fastest of 6 points is point 0: 1.00 ms per step; not distinguishably slower: "
            "point 1; point 2; point 3 and 2 more.",
        ),
        (
            [FAST, WIDE, WIDE, WIDE],
            "The fastest of 4 points is point 0: 1.00 ms per step; not distinguishably slower: "
            "point 1; point 2; point 3.",
        ),
    ],
)
def test_what_is_not_shown_is_not_said(times: Sequence[Sequence[float]], sentence: str) -> None:
    assert sweeping(times).result("clear").sentence == sentence


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (FAST[1:], "not distinguishably slower: point 1; point 2; point 3 and 3 more."),
        (SLOW[1:], "each one that stayed is distinguishably slower."),
    ],
)
def test_a_point_left_out_after_one_round_is_not_called_slower(
    kept: Sequence[float], said: str
) -> None:
    """It was: all but the fastest were said to be distinguishably slower."""
    going = sweeping([[1 + n / 10] for n in range(14)])
    going._halve(1)
    for which, runs in enumerate(going._runs[:7]):
        runs |= {n + 1: run(ms) for n, ms in enumerate(kept if which else FAST[1:])}
    found = going.result("most rounds")
    assert [bool(point.dropped) for point in found.points] == [False] * 7 + [True] * 7
    assert found.sentence == (
        f"The fastest of 14 points is point 0: 1.00 ms per step; {said} "
        "7 of 14 were left out in a slower half, before that was shown."
    )


@pytest.mark.parametrize(("n", "left"), [(12, [12, 12]), (13, [7, 4, 4]), (32, [16, 8, 4, 4])])
def test_only_large_grids_are_halved_and_down_to_four(n: int, left: list[int]) -> None:
    going = sweeping([[100.0 - i] for i in range(n)])
    for number, stay in enumerate(left):
        going._halve(number + 1)
        assert len(going._alive()) == stay
    assert going._alive() == list(range(n - left[-1], n)), "the fastest stay"


@pytest.mark.parametrize(
    ("n", "round_number", "is_over"),
    [(12, _FEWEST_ROUNDS - 1, False), (12, _FEWEST_ROUNDS, True), (13, _FEWEST_ROUNDS - 1, True)],
)
def test_a_small_grid_gets_its_fewest_rounds_whatever_the_budget(
    n: int, round_number: int, is_over: bool
) -> None:
    going = sweeping([[100.0]] * n, budget_s=1.0)
    going._took_s = [10.0]
    assert going._over(round_number) is is_over


def test_the_best_is_one_that_stayed() -> None:
    going = sweeping([[1.0], [2.0, 1.9], [3.0, 2.9]])
    going._dropped[0] = "in the slower half after round 1"
    assert going.result("clear").best is not None
    assert going.result("clear").best.values == {"point": 1}
    going._dropped = ["dropped"] * 3
    assert going.result("clear").best.values == {"point": 0}


@pytest.mark.parametrize(
    ("samples", "per"),
    [
        ((10.0, 12.0), "step"),
        ((10.0, 12.5), "sample"),
        ((12.5, 10.0), "sample"),
        ((10.0, None), "step"),
        ((None, 12.5), "step"),
    ],
)
def test_batches_a_fifth_apart_are_compared_by_the_sample(
    samples: tuple[float | None, float | None], per: str
) -> None:
    assert sweeping([[8.0], [8.0]], samples=samples)._per() == per


@pytest.mark.parametrize(
    ("ratios", "is_clear"),
    [
        ([1.0] * 6, True),  # the same time in every round
        ([1.001] * 6, True),
        ([1.1, 1.3, 1.1, 1.3, 1.1, 1.3], True),  # wide, and all of it beyond 2 %
        ([1.025, 1.3, 1.2, 1.3, 1.1, 1.3], True),
        ([1.015, 1.3, 1.2, 1.3, 1.1, 1.3], False),  # slower, perhaps by less than 2 %
        ([0.9, 1.2, 1.0, 1.1, 1.3, 1.2], False),
        ([1.5], False),  # one round shows nothing
    ],
)
def test_a_sweep_is_clear_where_more_rounds_would_change_nothing(
    ratios: Sequence[float], is_clear: bool
) -> None:
    going = sweeping([[1.0] * len(ratios), ratios])
    assert going._clear() is is_clear
    three = sweeping([[1.0] * 6, [1.5] * 6, []])
    assert not three._clear(), "a point without a time"
    assert not sweeping([[], []])._clear()


@pytest.mark.parametrize(
    ("n_points", "number", "budget_s", "is_over"),
    [
        (2, 1, 0.1, False),  # a small grid gets two rounds
        (2, 2, 0.1, True),
        (12, 1, 0.1, False),
        (13, 1, 0.1, True),
        (2, 2, 3.0, False),  # 1 s spent, and the next one takes 2 s
        (2, 2, 2.9, True),
    ],
)
def test_the_budget_counts_the_next_run(
    monkeypatch: pytest.MonkeyPatch, n_points: int, number: int, budget_s: float, is_over: bool
) -> None:
    monkeypatch.setattr(_Sweeping, "_spent_s", 1.0)
    going = sweeping([[1.0]] * n_points, budget_s=budget_s)
    assert not going._over(number), "nothing is known of how long a run takes"
    going._took_s = [2.0, 1.0, 9.0]
    assert going._over(number) is is_over
    asked = sweeping([[1.0]] * n_points, budget_s=budget_s, rounds=3)
    asked._took_s = [2.0]
    assert not asked._over(number), "as many rounds as were asked for"


@pytest.mark.parametrize(
    ("budget_s", "n_points", "seconds"),
    [
        (120, 4, 4.7),
        (120, 24, 120 / 144 - 0.3),
        (120, 99, 120 / 144 - 0.3),
        (1, 4, 0.3),
        (1e5, 1, 10),
    ],
)
def test_a_run_is_as_long_as_six_rounds_allow(
    budget_s: float, n_points: int, seconds: float
) -> None:
    assert _run_s(budget_s, n_points) == pytest.approx(seconds)


def test_the_intervals_are_right_all_together() -> None:
    assert sweeping([FAST])._confidence() == pytest.approx(0.95)
    assert sweeping([FAST, SLOW])._confidence() == pytest.approx(0.95)
    assert sweeping([FAST] * 6)._confidence() == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("times", "known", "stopped", "n_rounds"),
    [
        ([FAST, SLOW], {}, "clear", 4),
        ([FAST, WIDE], {}, "most rounds", 20),
        ([FAST, SLOW], {"rounds": 3}, "every round asked for", 3),
        ([FAST, SLOW], {"rounds": 1}, "every round asked for", 1),
        ([FAST, SLOW], {"budget_s": -1.0}, "time budget", 2),
        ([["failed"], ["failed"]], {}, "nothing left to run", 1),
        ([FAST, ["failed"]], {}, "clear", 4),
    ],
)
def test_when_a_sweep_ends(
    monkeypatch: pytest.MonkeyPatch,
    times: Sequence[Sequence[Any]],
    known: dict[str, Any],
    stopped: str,
    n_rounds: int,
) -> None:
    monkeypatch.setattr(_Sweeping, "_spent_s", 0.0)
    going = sweeping([[], []], **({"budget_s": 1e9} | known))

    def one(point: int) -> RunResult:
        ms = times[point][len(going._runs[point]) % len(times[point])]
        return run(1.0, state="failed", message="bad") if ms == "failed" else run(ms)

    going._session = SimpleNamespace(run=one)  # type: ignore[assignment]
    assert going.until_clear() == stopped
    assert max(len(runs) for runs in going._runs) == n_rounds
    if not stopped.startswith("nothing"):
        assert going.result(stopped).knee("point").margin == 0.05


def test_the_table_and_the_warnings_of_what_did_not_run() -> None:
    going = sweeping([FAST[:3], SLOW[:2], []])
    going._runs[1][2] = run(2.0, state="failed", message="too much")
    found = going.result("time budget")
    assert found.warnings == (
        "point 1: failed: too much",
        "1 point not reached: raise budget_s",
    )
    states = {row["point"]: (row["state"], row["rounds"], row["message"]) for row in found.table()}
    assert states == {
        0: ("measured", 3, ""),
        1: ("failed", 2, "too much"),
        2: ("not reached", 0, ""),
    }
    first: Mapping[str, Any] = found.table()[0]
    assert (first["time_ms"], first["peak_bytes"], first["wait_share"]) == (1.0, 5, 0.1)
    assert found.table()[2]["peak_bytes"] is None
    assert found.best is not None
    assert found.best.values == {"point": 0}, "a point that failed is not the best"
    assert going._alive() == [0, 2]


@pytest.mark.parametrize(
    ("devices", "told"),
    [(("cpu", "cpu"), "cpu"), (("a GPU", "cpu"), "a GPU"), (("cpu", "a GPU"), "a GPU")],
)
def test_a_sweep_was_measured_where_its_runs_were(devices: Sequence[str], told: str) -> None:
    """Whatever the kind of GPU: a sweep on one that is not CUDA's named the CPU."""
    going = sweeping([[1.0], [2.0]])
    for runs, device in zip(going._runs, devices, strict=True):
        runs[0] = replace(runs[0], provenance=replace(WHERE, device=device))
    assert going.result("clear").provenance.device == told


def test_time_rate_and_ratio_tell_one_order() -> None:
    """A point that left before the machine became slow had the smaller median, the larger ratio."""
    going = sweeping([[10.0, 10.0, 20.0, 20.0, 20.0], [12.0, 12.0]])
    going._dropped[1] = "in the slower half after round 1"
    found = going.result("clear")
    rows = sorted(found.table(), key=lambda row: row["ratio"])
    assert [row["point"] for row in rows] == [0, 1]
    assert [row["time_ms"] for row in rows] == pytest.approx([20.0, 24.0])
    assert [row["samples_per_s"] for row in rows] == pytest.approx([1_600, 1_333], rel=0.01)


def test_what_may_be_as_fast_is_beside_the_fastest() -> None:
    assert "! 1 other point may be as fast" in str(sweeping([FAST, WIDE, SLOW]).result("clear"))
    assert "may be as fast" not in str(sweeping([FAST, SLOW]).result("clear"))
