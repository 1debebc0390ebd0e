from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from perfkit.base.errors import (
    MeasurementError,
    WorkloadEmptyError,
    WorkloadError,
    WorkloadFailedError,
    WorkloadHungError,
    WorkloadKilledError,
    WorkloadMemoryError,
)
from perfkit.base.machine import stamp
from perfkit.experiment.compare._judge import Checked
from perfkit.experiment.compare.ab import ABResult
from perfkit.experiment.compare.same import _cause, same_result
from perfkit.experiment.process._figures import Curve, Pauses, figures
from perfkit.experiment.process.result import NO_STEP, RunResult, ratio, table
from perfkit.measure.summary import summarize


def message(step_ms, *, first=0, quiet=True, wait=0.25, samples=10, end_s=None):
    step = np.asarray(step_ms, np.float64)
    n = len(step)
    ends = np.cumsum(step) / 1e3 if end_s is None else np.asarray(end_s, np.float64)
    return {
        "first": first,
        "end_s": ends.tobytes(),
        "step_ms": step.tobytes(),
        "wait_ms": (step * wait).tobytes(),
        "memory_bytes": np.full(n, 7, np.int64).tobytes(),
        "quiet": np.broadcast_to(np.asarray(quiet, np.bool_), n).tobytes(),
        "samples": np.full(n, samples, np.int64).tobytes(),
        "page_faults": np.arange(n, dtype=np.int64).tobytes(),
        "loss": np.full(n, np.nan).tobytes(),
        "peak_bytes": 9,
    }


def curve_of(*messages, pauses=None):
    curve = Curve()
    for one in messages:
        curve.take(one, pauses or Pauses())
    return curve


def test_only_quiet_steps_after_the_warm_up_count():
    quiet = [True] * 5 + [False] * 5 + [True] * 10
    found = figures(curve_of(message([99.0] * 3 + [2.0] * 17, quiet=quiet)), warmup=3)
    assert found.counted.tolist() == [False] * 3 + [True] * 2 + [False] * 5 + [True] * 10
    assert found.n_quiet == 12
    assert found.step.median == 2.0
    assert found.wait_share == pytest.approx(0.25)
    assert found.samples_per_s == pytest.approx(10 / 2e-3)
    assert not found.warnings


def test_too_few_quiet_steps_are_told_and_all_count():
    found = figures(curve_of(message([2.0] * 20, quiet=[False] * 18 + [True] * 2)), warmup=3)
    assert found.counted.sum() == 17
    assert any("only 2 steps in quiet windows" in w for w in found.warnings)
    none = figures(curve_of(message([2.0] * 20, quiet=[False] * 20)), warmup=3)
    assert any(w.startswith("no step in quiet windows: all 17") for w in none.warnings)


@pytest.mark.parametrize(("n_quiet", "n_counted"), [(5, 12), (6, 6)])
def test_six_quiet_steps_are_enough_for_an_interval(n_quiet, n_counted):
    quiet = [False] * (12 - n_quiet) + [True] * n_quiet
    found = figures(curve_of(message([2.0] * 12, quiet=quiet)), warmup=0)
    assert (found.n_quiet, found.counted.sum()) == (n_quiet, n_counted)
    unwatched = figures(curve_of(message([2.0] * 12, quiet=quiet)), warmup=0, watched=False)
    assert unwatched.counted.sum() == 12


@pytest.mark.parametrize(("longest_ms", "is_told"), [(1.9, False), (2.0, False), (2.1, True)])
def test_a_mean_a_quarter_from_the_median_is_uneven(longest_ms, is_told):
    found = figures(curve_of(message([1.0] * 6 + [longest_ms] * 2)), warmup=0)
    assert any("steps are uneven: median 1.00 ms" in w for w in found.warnings) is is_told


def test_a_short_run_keeps_two_steps_and_says_so():
    found = figures(curve_of(message([9.0, 2.0, 2.0], quiet=False)), warmup=3)
    assert found.counted.sum() == 2
    assert any("only 3 steps: a warm-up of 3" in w for w in found.warnings)
    assert figures(curve_of(message([9.0])), warmup=3).step.median == 9.0


def test_no_steps_give_no_figures():
    found = figures(Curve(), warmup=3)
    assert (found.step, found.wait_share, found.samples_per_s) == (None, None, None)


def test_steps_without_a_length_have_no_shares():
    found = figures(curve_of(message([0.0] * 9)), warmup=0)
    assert (found.wait_share, found.samples_per_s) == (None, None)


@pytest.mark.parametrize(
    ("faults", "found"),
    [([4, 2, 6], 4.0), ([0, 0, 0], 0.0), ([4, -1, 6], None), ([-1, -1, -1], None), ([1], None)],
)
def test_page_faults_are_told_where_each_step_counted_them(faults, found):
    assert run([1.0] * 3, page_faults=np.array(faults)).faults_per_step == found


def test_unknown_samples_give_no_throughput():
    assert figures(curve_of(message([1.0] * 9, samples=-1)), 0).samples_per_s is None


def test_a_step_with_a_pause_in_it_is_no_step():
    pauses = Pauses()
    pauses.begin(10.05)
    pauses.end(20.0)
    ends = [10.0, 20.04, 20.2, 20.4]  # the second began before the pause; the third 0.1 s after
    curve = curve_of(message([10, 10_000, 40, 40], end_s=ends), pauses=pauses)
    assert curve.column("index").tolist() == [0, 2, 3]
    assert pauses.total_s(99.0) == pytest.approx(9.95)
    # for a tenth of a second after it, workers have batches ready
    curve = curve_of(message([1, 1], end_s=[20.08, 20.12]), pauses=pauses)
    assert curve.column("index").tolist() == [1]
    # it is still paused: what ended before is a step
    pauses.begin(30.0)
    curve = curve_of(message([10, 10], end_s=[29.9, 31.0]), pauses=pauses)
    assert curve.column("index").tolist() == [0]
    assert pauses.total_s(32.0) == pytest.approx(11.95)


def test_a_pause_between_two_steps_touches_none():
    pauses = Pauses()
    pauses.begin(10.0, between_steps=True)
    assert curve_of(message([10], end_s=[10.0]), pauses=pauses).n == 1
    pauses.end(20.0)
    assert curve_of(message([10, 10], end_s=[10.0, 20.01]), pauses=pauses).n == 2


def run(step_ms, *, run_id=1, values=None, state="done", message="", samples_per_s=None, **more):
    step = np.asarray(step_ms, np.float64)
    n = len(step)
    return RunResult(
        run_id=run_id,
        values=values or {"num_workers": run_id},
        state=state,
        message=message,
        step=summarize(step) if n else None,
        wait_share=0.5 if n else None,
        samples_per_s=samples_per_s or (1e4 / step.mean() if n else None),
        peak_bytes=2**20 if n else None,
        peak_kind="peak resident set of the training process" if n else "",
        n_steps=n,
        n_quiet=n,
        provenance=stamp(device="cpu"),
        n_counted=n,
        index=np.arange(n),
        step_ms=step,
        wait_ms=step / 2,
        memory_bytes=np.full(n, 7),
        quiet=np.ones(n, bool),
        counted=np.ones(n, bool),
        loss=np.full(n, np.nan),
        **more,
    )


def test_the_ratio_holds_the_truth_and_its_interval():
    rng = np.random.default_rng(1)
    slow = run(4.0 * rng.lognormal(0, 0.1, 300))
    fast = run(2.0 * rng.lognormal(0, 0.1, 300), run_id=2)
    found = ratio(slow, fast)
    assert found.low < 2.0 < found.high
    assert found.low <= found.ratio <= found.high
    assert found.different
    back = ratio(fast, slow)
    assert back.ratio == pytest.approx(1 / found.ratio)
    same = ratio(slow, slow)
    assert same.ratio == 1.0
    assert not same.different


def test_the_interval_covers_equal_runs_despite_correlation():
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(30):
        noise = rng.normal(0, 0.05, (2, 400))
        for i in range(1, 400):  # neighbouring steps resemble each other
            noise[:, i] += 0.7 * noise[:, i - 1]
        a, b = (run(5 * np.exp(row)) for row in noise)
        alarms += ratio(a, b).different
    # 95 % interval: 1 or 2 expected; an interval over single steps would give about 9
    assert alarms <= 5


def two_humped(short_ms, long_ms, n=200, every=8, **more):
    """Workers that run ahead: a long wait, then batches that are already there."""
    step = np.full(n, float(short_ms))
    step[::every] = long_ms
    step *= np.random.default_rng(n).lognormal(0, 0.02, n)
    return run(step, **more)


def test_the_ratio_is_one_of_throughput_where_steps_are_two_humped():
    slow = run(np.full(200, 70.0))
    fast = two_humped(4.0, 132.0, run_id=2)  # mean 20 ms, median 4 ms
    found = ratio(slow, fast)
    assert found.ratio == pytest.approx(70 / fast.mean_ms)
    assert 3 < found.low < found.high < 4.1
    # the same median, half the throughput: a difference that the median does not see
    worse = two_humped(4.0, 292.0, run_id=3)
    assert ratio(fast, worse).ratio == pytest.approx(0.5, rel=0.05)
    assert ratio(fast, worse).different
    row = table([slow, fast])[1]
    assert row["step_ms"] < 5 < row["step_mean_ms"]
    assert row["ratio_per"] == "step"
    assert fast.to_dict()["step_ms"]["mean"] == fast.mean_ms


def test_batches_of_other_sizes_are_compared_by_the_sample():
    small = run([10.0] * 20, samples_per_s=800.0)  # 8 samples a step
    large = run([20.0] * 20, run_id=2, samples_per_s=1600.0)  # 32 samples a step
    found = ratio(small, large)
    assert found.ratio == pytest.approx(2.0)
    assert found.per == "sample"
    assert table([small, large])[1]["ratio_per"] == "sample"


def test_uneven_steps_are_told():
    uneven = figures(curve_of(message([4.0, 4.0, 4.0, 60.0] * 8)), warmup=0)
    assert "steps are uneven: median 4.00 ms, mean 18.0 ms" in uneven.warnings
    even = figures(curve_of(message([4.0, 4.0, 4.0, 5.0] * 8)), warmup=0)
    assert not any("uneven" in w for w in even.warnings)


def test_without_a_plot_nothing_disturbs():
    steps = message([2.0] * 20, quiet=[False] * 18 + [True] * 2)
    found = figures(curve_of(steps), warmup=3, watched=False)
    assert found.counted.sum() == 17
    assert not any("quiet" in w for w in found.warnings)


def test_many_steps_or_few_are_enough():
    assert ratio(run(np.full(50_000, 3.0)), run([1.5])).ratio == 2.0


def test_a_run_without_steps_has_no_ratio():
    with pytest.raises(MeasurementError, match="run 2 has no measured step"):
        ratio(run([1.0]), run([], run_id=2, state="failed"))


def test_the_table_compares_with_the_first_measured_run():
    rows = table([run([], run_id=1, state="failed", message="x"), run([2.0] * 9, run_id=2),
                  run([1.0] * 9, run_id=3)])  # fmt: skip
    assert [row["ratio"] for row in rows] == [None, None, 2.0]
    assert [row["num_workers"] for row in rows] == [1, 2, 3]
    assert rows[0]["step_ms"] is None
    assert table([]) == []


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("failed", WorkloadFailedError),
        ("out of memory", WorkloadMemoryError),
        ("hung", WorkloadHungError),
        ("killed", WorkloadKilledError),
    ],
)
def test_a_failed_run_raises_the_error_of_its_state(state, kind):
    failed = run([], state=state, message="words", traceback_text="lines")
    with pytest.raises(kind, match="words") as caught:
        failed.raise_if_failed()
    assert isinstance(caught.value, WorkloadError)
    assert caught.value.traceback_text == "lines"
    assert not failed.ok


def test_a_run_without_a_step_is_empty():
    with pytest.raises(WorkloadEmptyError):
        run([], state="failed", message=NO_STEP).raise_if_failed()


def test_a_good_run_passes():
    good = run([1.0, 2.0])
    assert good.raise_if_failed() is good
    assert good.ok


def test_a_result_is_plain_json():
    import json

    again = json.loads(json.dumps(run([1.0, 2.0]).to_dict()))
    assert again["curve"]["step_ms"] == [1.0, 2.0]
    assert again["curve"]["loss"] == [None, None]
    assert again["provenance"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("samples", "per"), [(38, "step"), (39, "sample"), (27, "step"), (26, "sample")]
)
def test_a_fifth_more_samples_are_other_work(samples, per):
    """Whichever of the two comes first: 26 against 32 was none, 32 against 26 was."""
    found = ratio(
        run([10.0] * 20, samples_per_s=3200), run([10.0] * 20, samples_per_s=100 * samples)
    )
    assert found.per == per
    assert found.ratio == pytest.approx(samples / 32 if per == "sample" else 1.0)


# --- the same result, of runs that are there ----------------------------------------------------


def losing(*losses, **more):
    found = run([1.0] * len(losses), **more)
    return replace(found, loss=np.array(losses))


def test_a_difference_of_single_runs_may_be_the_workloads_own():
    a, b = losing(1.0, 0.9, 0.8), losing(1.0, 0.7, 0.8)
    found = same_result(a, b)
    assert found.same is None
    assert "each ran only once" in found.sentence
    for arms, once in (([[a, a], b], "the second"), ([a, [b, b]], "the first")):
        found = same_result(*arms)
        assert found.same is False
        assert (found.first.what, found.first.step) == ("loss", 1)
        assert f"{once} ran once: whether it agrees with itself is not known" in found.warnings
    found = same_result([a, a], [b, b])
    assert found.same is False
    assert not any("ran once" in w for w in found.warnings)
    assert same_result(a, a).same is True
    assert not any("agrees with itself for" in w for w in same_result([a, a], [b, b]).warnings)
    near = losing(1.001, 0.901, 0.801)
    for precision, same in ((None, False), ("fp32", False), ("bf16", True)):
        assert same_result([a, a], [near, near], precision=precision).same is same
    for arms in ((replace(a, samples_per_s=None), a), (a, replace(a, samples_per_s=None))):
        assert same_result(*arms).same is True


def test_steps_are_compared_as_long_as_an_arm_agrees_with_itself():
    a, late, early = losing(1.0, 0.9, 0.8), losing(1.0, 0.5, 0.8), losing(0.5, 0.9, 0.8)
    found = same_result([a, late], a)
    assert (found.same, found.n_steps) == (True, 1)
    assert any("agrees with itself for 1 step only" in w for w in found.warnings)
    for arms, name in (([[a, early], a], "the first"), ([a, [a, early]], "the second")):
        found = same_result(*arms)
        assert found.same is None
        assert f"{name} does not agree with itself" in found.sentence
        assert found.own_noise > 1


@pytest.mark.parametrize(
    ("samples", "is_other"), [(32.0, False), (32.3, False), (32.4, True), (31.6, True)]
)
def test_losses_of_other_batches_are_not_compared(samples, is_other):
    a, b = losing(1.0, samples_per_s=32e3), losing(1.0, samples_per_s=1e3 * samples)
    assert ("a step takes 32 samples in the first" in same_result(a, b).sentence) is is_other


def test_what_did_not_run_or_told_nothing_is_not_compared():
    good, bad = losing(1.0), losing(1.0, state="out of memory", message="no more")
    said = same_result(good, bad).sentence
    assert "run 1 out of memory (no more), so there is nothing to compare" in said
    for arms, name in (
        ((good, losing(math.nan)), "the second"),
        ((losing(math.nan), good), "the first"),
    ):
        assert f"unknown: {name} reported no loss" in same_result(*arms).sentence


@pytest.mark.parametrize(
    ("what", "step", "said"),
    [
        ("starting weights of a", 0, ": a different seed"),
        ("loss", 0, ", before any update: different data"),
        ("norm of the gradient", 0, " while the loss agrees: a different scale"),
        ("gradient", 0, " while the loss agrees"),
        ("loss", 1, ", after an update"),
        ("norm of the gradient", 1, ", after an update"),
    ],
)
def test_a_first_difference_has_a_possible_cause(what, step, said):
    found = _cause(Checked(what, step, 1.0, 0.1))
    assert found.startswith(said)
    assert (found == said) == (what == "gradient")


@pytest.mark.parametrize(
    ("low", "high", "different"),
    [(0.9, 1.1, False), (1.0, 1.2, False), (1.01, 1.2, True), (0.8, 1.0, False), (0.8, 0.99, True)],
)
def test_two_versions_differ_where_the_interval_leaves_1_out(low, high, different):
    ends = SimpleNamespace(low=low, high=high)
    assert ABResult.different.fget(ends) is different
