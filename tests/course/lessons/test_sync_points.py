"""Lesson 07: the exercise, the counts behind the published time, and its claims."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit.course.kit.claim import claim
from perfkit.course.kit.simulated_gpu import simulate, what_if
from perfkit.course.ledger.settle import Settled
from perfkit.course.lessons.lesson_02_read_a_trace.lesson import BUSY
from perfkit.course.lessons.lesson_07_sync_points import criteria, measured
from perfkit.course.lessons.lesson_07_sync_points.lesson import (
    CLASSES,
    IGNORE,
    PUBLISHED,
    crossover,
    masks,
    published_step,
    score_classes,
)
from perfkit.course.lessons.lesson_07_sync_points.pictures import (
    draw_bounds,
    draw_clocks,
    draw_crossover,
)
from perfkit.course.lessons.lesson_07_sync_points.traffic import work_of
from perfkit.synclint.find import SyncLine, SyncLines


def _right(logits: Any, target: Any) -> Any:
    bins = target.clamp(max=CLASSES).flatten()
    right = (logits.argmax(1) == target).flatten().float()
    zeros = torch.zeros(CLASSES + 1)
    hits = zeros.scatter_add(0, bins, right)
    return (hits / zeros.scatter_add(0, bins, torch.ones_like(right)))[:CLASSES]


def _by_comparing(logits: Any, target: Any) -> Any:
    """Another right way: a comparison with every class."""
    of_class = target[..., None] == torch.arange(CLASSES)
    right = of_class & (logits.argmax(1) == target)[..., None]
    return right.sum((0, 1, 2)) / of_class.sum((0, 1, 2))


def _slow(logits: Any, target: Any) -> Any:
    predicted = logits.argmax(1)
    accuracy = torch.full((CLASSES,), math.nan)
    for c in torch.unique(target).tolist():
        if c != IGNORE:
            accuracy[c] = (predicted[target == c] == c).float().mean().item()
    return accuracy


def _bincount(logits: Any, target: Any) -> Any:
    bins = target.clamp(max=CLASSES).flatten()
    right = (logits.argmax(1) == target).flatten().float()
    hits = torch.bincount(bins, weights=right, minlength=CLASSES + 1)
    return (hits / torch.bincount(bins, minlength=CLASSES + 1))[:CLASSES].float()


def _absent_is_zero(logits: Any, target: Any) -> Any:
    return _right(logits, target).nan_to_num(0.0)


def _ignored_counts(logits: Any, target: Any) -> Any:
    """What is not labelled falls into the last class."""
    return _right(logits, target.clamp(max=CLASSES - 1))


def _in_place(logits: Any, target: Any) -> Any:
    return _right(logits, target.clamp_(max=CLASSES))


def _with_the_bin(logits: Any, target: Any) -> Any:
    return torch.zeros(CLASSES + 1)


def _by_index_add(logits: Any, target: Any) -> Any:
    bins = torch.where(target == IGNORE, CLASSES, target).flatten()
    right = (logits.argmax(1) == target).flatten().float()
    sums = torch.zeros(2, CLASSES + 1).index_add(1, bins, torch.stack([right, right * 0 + 1]))
    return sums[0, :CLASSES] / sums[1, :CLASSES]


def _of_what_was_predicted(logits: Any, target: Any) -> Any:
    """Precision, where recall is asked for."""
    labelled = target != IGNORE
    bins = torch.where(labelled, logits.argmax(1), CLASSES).flatten()
    right = (logits.argmax(1) == target).flatten().float()
    zeros = torch.zeros(CLASSES + 1)
    hits = zeros.scatter_add(0, bins, right)
    return (hits / zeros.scatter_add(0, bins, torch.ones_like(right)))[:CLASSES]


def _in_per_cent(logits: Any, target: Any) -> Any:
    return 100 * _right(logits, target)


@pytest.mark.parametrize("answer", [_right, _by_comparing, _by_index_add])
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(score_classes.check(answer))
    assert said.startswith("Done"), said
    assert "no line waits" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda logits, target: _right(logits, target).tolist(), "got list"),
        (lambda logits, target: _right(logits, target).nanmean(), "shape (10,), not ()"),
        (lambda logits, target: _right(logits, target).nan_to_num().int(), "not torch.int32"),
        (lambda logits, target: _right(logits, target).double(), "float32, not torch.float64"),
        (lambda logits, target: _right(logits, target).half(), "float32, not torch.float16"),
        (_of_what_was_predicted, "has an accuracy of"),
        (_in_per_cent, "has an accuracy of"),
        (_with_the_bin, "shape (10,), not (11,)"),
        (_slow, "the host would wait for a GPU at"),
        (_bincount, "the host would wait for a GPU at"),
        (_absent_is_zero, "class 9 has an accuracy of NaN (it does not occur), not 0"),
        (_ignored_counts, "class 9 has an accuracy of NaN"),
        (_in_place, "changes the mask"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(score_classes.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_names_the_lines_that_wait() -> None:
    said = repr(score_classes.show(_slow))
    assert "Lines that wait: 2" in said
    assert "torch.unique" in said
    assert "Lines that wait: 0" in repr(score_classes.show(_right))


def test_an_answer_that_cannot_be_right_is_still_shown() -> None:
    assert "it returns tensor([0." in repr(score_classes.show(_with_the_bin))
    assert "Nothing to see yet" in repr(score_classes.show(lambda *_: None))


def test_masks_have_an_absent_class_and_the_density_asked_for() -> None:
    made = masks(4, 64, 0.25, seed=1)
    labelled = made != IGNORE
    assert made.dtype == torch.int64
    assert abs(labelled.float().mean().item() - 0.25) < 0.02
    assert set(made.flatten().tolist()) == {*range(CLASSES - 1), IGNORE}
    assert torch.equal(made, masks(4, 64, 0.25, seed=1))
    assert bool((masks(1, 8, 0.0) == IGNORE).all())


def test_the_published_step_is_counted_by_hand_as_well() -> None:
    work = work_of(published_step("meta"))
    pixels = PUBLISHED.batch * PUBLISHED.side**2
    first, other = (2 * 9 * channels * 10 * pixels for channels in (3, 10))
    assert work.flops == 2 * first + 33 * other
    # each tensor once: ten float32 channels, twelve convolutions and their backward passes alone
    assert work.traffic_bytes > (12 * 2 + 12 * 3) * 10 * 4 * pixels * 0.9
    compute_ms, traffic_ms = work.least_ms(tflop_per_s=31, gb_per_s=600)
    assert compute_ms == pytest.approx(32.73, abs=0.01)
    assert traffic_ms > PUBLISHED.after_ms * 20


def test_the_published_step_runs_the_operators_that_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = work_of(published_step("meta")).operators
    # what torch chooses by itself on a GPU: one operator for all parameters
    module = sys.modules[torch.optim.SGD.__module__]
    monkeypatch.setattr(module, "_default_to_fused_or_foreach", lambda *_, **__: (False, True))
    assert work_of(published_step("meta")).operators == counted


def test_traffic_of_one_operator_is_what_it_reads_and_writes() -> None:
    x = torch.empty(1000, device="meta")
    one = work_of(lambda: x.view(10, 100).relu())
    assert (one.flops, one.traffic_bytes, one.operators) == (0, 8000, 1)


def test_the_published_step_trains() -> None:
    step = published_step("cpu", batch=1, side=8)
    first = float(step())
    for _ in range(20):
        last = float(step())
    assert last < first


def test_the_crossover_lies_between_the_points_around_it() -> None:
    assert crossover([0.01, 0.1, 1.0], [0.5, 2.0, 8.0]) == pytest.approx(0.1**1.5)
    # a straggler is shared out among its neighbours: two points of 1 become the pool's mean
    noisy = crossover([0.001, 0.01, 0.1, 1.0], [0.25, 1.25, 0.2, 4.0])
    assert noisy == pytest.approx(0.1 * 10 ** (math.log(2) / math.log(8)))
    assert crossover([0.01, 1.0], [0.5, 0.9]) is None
    assert crossover([0.01, 1.0], [2.0, 4.0]) is None


def test_pictures_say_what_they_show() -> None:
    figure, words = draw_bounds({"published": 5.4}, {"arithmetic": 32.7}, source="predicted")
    assert "published: 5.40 ms; arithmetic: at least 32.7 ms" in words
    assert len(figure.axes) == 1
    ratios = [SimpleNamespace(ratio=r, low=0.9 * r, high=1.1 * r) for r in (0.5, 2.0)]
    figure, words = draw_crossover([0.01, 0.1], ratios, 0.0316, source="measured here")
    assert "1 %: 0.5×, 10 %: 2×" in words
    assert "equal at about 3 %" in words
    _, words = draw_crossover([0.01, 0.1], ratios, 0.0987, source="measured here")
    assert "equal at about 10 %" in words
    _, words = draw_crossover([0.01, 0.1], ratios, None, source="measured here")
    assert "never equal" in words


def test_the_clocks_are_read_from_the_same_steps() -> None:
    runs = {
        "waits": ([(0.0, 100.0), (100.0, 200.0)], 201.0),
        "does not": ([(0.0, 5.0), (5.0, 9.0)], 200.0),
    }
    figure, words = draw_clocks(runs, source="simulated device")
    assert [one.get_text() for one in figure.axes[0].get_yticklabels()] == ["does not", "waits"]
    assert "does not: the host has left 2 steps after 9.00 ms" in words
    assert "reads 4.50 ms a step; a step takes 100 ms" in words
    assert "waits: the host has left 2 steps after 200 ms" in words


def test_on_a_gpu_the_prediction_is_recorded_beside_what_happened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = SyncLine(
        "train.py",
        3,
        "x[mask]",
        "why",
        "instead",
        2,
        "x[mask]",
        "train.py:3",
        waited_ms=1.5,
        outcome="as predicted",
    )
    other = replace(line, line=4, count=1, outcome="not predicted")

    def checked(step: Callable[[], object], model: object) -> SyncLines:
        step()
        checks.append(step)
        return SyncLines([line, other] if len(checks) == 1 else [])

    checks: list[object] = []
    monkeypatch.setattr(measured, "check_syncs", checked)
    batch = measured._Batch("cpu", n=1)

    def loss() -> torch.Tensor:
        return batch.each().mean()

    figures = measured._as_it_happened(batch.layer, loss, loss)
    value = {name: figure.value for name, figure in figures.items()}
    assert value["seen_before"] == 3
    assert value["waited_before"] == 3.0
    assert value["lines_agreed_before"] == value["lines_only_seen_before"] == 1
    assert value["seen_after"] == value["waited_after"] == value["lines_agreed_after"] == 0
    assert criteria._said_of(figures) == ("; seen there 3 before and 0 after, lines that differ: 1")
    assert criteria._said_of({}) == ""


def values(settled: Settled) -> dict[str, float]:
    assert settled.outcome is not None, settled.why
    return {name: figure.value for name, figure in settled.outcome.figures.items()}


def test_rewrites_are_judged_by_their_waits_and_values() -> None:
    batch = measured._Batch("cpu", n=1)

    def indexed() -> torch.Tensor:
        valid = batch.target != IGNORE
        scores = batch.logits().permute(0, 2, 3, 1)[valid]
        return torch.nn.functional.cross_entropy(scores, batch.target[valid])

    def ignored() -> torch.Tensor:
        logits = batch.logits()
        return torch.nn.functional.cross_entropy(logits, batch.target, ignore_index=IGNORE)

    def other() -> torch.Tensor:
        return 2 * ignored()

    found = measured.rewritten(indexed, ignored, batch.layer, budget_s=0.1)
    for claimed in ("E1", "E2", "E3"):
        settled = claim(claimed).settle(found)
        # two masks and the backward of one of them
        assert (values(settled)["waits_before"], values(settled)["waits_after"]) == (3, 0)
        assert settled.verdict == "holds here"
        assert settled.headline is not None
        assert settled.headline.kind == "predicted"
    for old, new in ((indexed, other), (ignored, indexed), (ignored, ignored)):
        found = measured.rewritten(old, new, batch.layer, budget_s=0.1)
        assert claim("E3").settle(found).verdict == "does not hold here"


def ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("sparse", "dense", "verdict"),
    [
        (ratio(0.5, 0.6), ratio(8, 9), "holds here"),
        (ratio(1.5, 1.6), ratio(8, 9), "does not hold here"),
        (ratio(0.5, 1.1), ratio(8, 9), "not decided"),
        (ratio(0.5, 0.6), ratio(0.9, 1.1), "not decided"),
    ],
)
def test_e4_is_open_where_an_interval_includes_1(sparse: Any, dense: Any, verdict: str) -> None:
    assert claim("E4").settle((0.001, 1.0), [sparse, dense]).verdict == verdict


def test_the_published_time_is_judged_by_counts_and_on_a_gpu_also_by_the_clock() -> None:
    work = work_of(published_step("meta"))
    settled = claim("E5").settle(work, None, None)
    assert settled.verdict == "does not hold here"
    assert values(settled)["flops"] == 1_014_686_023_680
    assert values(settled)["most_ratio"] < 10
    assert settled.outcome is not None
    assert {one.kind for one in settled.outcome.figures.values()} == {"exact", "predicted"}
    timed = claim("E5").settle(
        work, {"a wait": 100.0, "no wait": 4.0}, {"a wait": 101.0, "no wait": 100.0}
    )
    assert values(timed)["stopwatch_ratio"] == 25
    assert values(timed)["throughput_ratio"] == 1.01


def test_waits_hide_behind_a_high_utilisation() -> None:
    waiting = replace(BUSY, items=10, python_us=60, item_at_end=False)
    settled = claim("E6", lesson="07").settle(simulate(waiting), what_if(waiting)["sync"])
    assert settled.verdict == "holds here"
    assert settled.headline is not None
    assert settled.headline.kind == "simulated"
    without = claim("E6", lesson="07").settle(simulate(replace(BUSY)), 1.0)
    assert without.verdict == "does not hold here"


@pytest.mark.slow
def test_what_kept_losses_keep() -> None:
    settled = claim("B5", lesson="07").settle(measured.kept_losses())
    value = values(settled)
    assert settled.verdict == "holds here"
    assert value["graph_bytes"] > CLASSES * 4 * 128 * 128  # the scores, at the least
    assert value["detached_bytes"] == value["after_backward_bytes"] == 4
    assert value["item_bytes"] == 0
    assert settled.outcome is not None
    assert settled.outcome.figures["after_backward_resident"].kind == "measured"
    # four bytes of tensor, and the nodes of its graph; in a process with a fresh heap
    assert 2_000 < value["after_backward_resident"] < 200_000


def test_a_fetched_mask_sends_a_byte_a_pixel_and_waits() -> None:
    settled = claim("B6", lesson="07").settle(measured.fetched_masks())
    assert settled.verdict == "holds here"
    value = values(settled)
    assert (value["fetched_bytes"], value["summed_bytes"]) == (8 * 128 * 128, 8)
    assert (value["fetched_waits"], value["summed_waits"]) == (1, 0)
