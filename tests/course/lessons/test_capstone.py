"""Lesson 18: the exercise and its puzzles, versions timed in turn, the picture, and its claim."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from perfkit.base.errors import UsageError
from perfkit.course.kit.exercise import Exercise
from perfkit.course.kit.picture import picture
from perfkit.course.ledger.criteria import criteria
from perfkit.course.lessons.lesson_18_capstone.lesson import (
    AT_LEAST,
    epochs_until_it_pays,
    slow_training,
    speed_of_all,
    speed_without,
    training_without_faults,
    visits,
)
from perfkit.course.lessons.lesson_18_capstone.measured import Stages, in_turn
from perfkit.course.lessons.lesson_18_capstone.pictures import draw_falls


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def _weighted_mean(scores: Any, wanted: Any) -> Any:
    parts = cross_entropy(scores, wanted, reduction="none")
    return (parts * torch.where(wanted == 0, 3.0, 1.0)).mean()


def _clip(model: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def _fast(
    features: Any,
    classes: Any,
    *,
    loss_of: Callable[[Any, Any], Any] = _weighted_mean,
    clip: Callable[[Any], object] = _clip,
    scaled: Callable[[Any], Any] = lambda x: (x - 0.5) / 0.25,
    lr: float = 0.01,
    size: int = 32,
    dtype: torch.dtype = torch.float32,
    **given: Any,
) -> Iterator[Any]:
    model = _model().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, **(given or {"fused": True}))
    for x, y in zip(scaled(features).to(dtype).split(size), classes.split(size), strict=True):
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        clip(model)
        optimizer.step()
        yield loss.detach()


def _with(**given: Any) -> Callable[..., Iterator[Any]]:
    return lambda features, classes: _fast(features, classes, **given)


def _summed(scores: Any, wanted: Any) -> Any:
    """``cross_entropy`` with class weights, and the division that the slow one makes."""
    weight = torch.tensor([3.0, 1, 1, 1], dtype=scores.dtype)
    return cross_entropy(scores, wanted, weight=weight, reduction="sum") / len(wanted)


def _by_hand(scores: Any, wanted: Any) -> Any:
    picked = scores.log_softmax(1).gather(1, wanted[:, None])[:, 0]
    return -(picked * (1 + 2 * (wanted == 0))).mean()


def _clip_by_hand(model: Any) -> None:
    slopes = [p.grad for p in model.parameters()]
    length = torch.stack(torch._foreach_norm(slopes)).norm()
    torch._foreach_mul_(slopes, (0.5 / length).clamp(max=1))


def _by_index(scores: Any, wanted: Any) -> Any:
    parts = cross_entropy(scores, wanted, reduction="none")
    return (torch.tensor([3.0, 1, 1, 1], dtype=scores.dtype)[wanted] * parts).mean()


def _divided(scores: Any, wanted: Any) -> Any:
    parts = cross_entropy(scores, wanted, reduction="none")
    return (parts.sum() + 2 * parts[wanted == 0].sum()) / len(wanted)


def _as_list(features: Any, classes: Any) -> list[float]:
    """A function that returns all losses, which is as good as one that yields them."""
    return [float(loss) for loss in _fast(features, classes)]


RIGHT = {
    "fused": _fast,
    "foreach": _with(foreach=True),
    "class weights, summed": _with(loss_of=_summed),
    "a loss by hand, clipped by hand": _with(loss_of=_by_hand, clip=_clip_by_hand),
    "64 bits": _with(dtype=torch.float64),
    "a list of losses": _as_list,
    "weights by index": _with(loss_of=_by_index),
    "summed, then divided": _with(loss_of=_divided),
    "scaled by a factor": _with(scaled=lambda x: x.sub(0.5).mul(4)),
}


# each trains twice, for a second or two: `make check` takes the first
FIRST, *REST = RIGHT


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(RIGHT[FIRST], id=FIRST),
        *(pytest.param(RIGHT[name], id=name, marks=pytest.mark.slow) for name in REST),
    ],
)
def test_right_answers_are_accepted(answer: Any) -> None:
    found = repr(training_without_faults.check(answer))
    assert found.startswith("Done"), found
    assert f"1/{AT_LEAST}" in found


def _mean_of_weights(scores: Any, wanted: Any) -> Any:
    """The trap: this mean divides by the sum of the weights."""
    return cross_entropy(scores, wanted, weight=torch.tensor([3.0, 1, 1, 1]))


def _of_each_value(model: Any) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.5)


def _unweighted(scores: Any, wanted: Any) -> Any:
    return cross_entropy(scores, wanted)


def _later_rate(features: Any, classes: Any) -> Iterator[Any]:
    """Another learning rate after the steps that ``same_result`` looks at."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    features = (features - 0.5) / 0.25
    for number, (x, y) in enumerate(zip(features.split(32), classes.split(32), strict=True)):
        if number == 3:
            optimizer.param_groups[0]["lr"] = 0.1
        loss = _weighted_mean(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        _clip(model)
        optimizer.step()
        yield loss.detach()


def _of_each_parameter(model: Any) -> None:
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_(parameter, 0.5)


def _others_weighted(scores: Any, wanted: Any) -> Any:
    parts = cross_entropy(scores, wanted, reduction="none")
    return (parts * torch.where(wanted == 0, 1.0, 3.0)).mean()


def _shuffled(features: Any, classes: Any) -> Iterator[Any]:
    order = torch.randperm(len(features))
    return _fast(features[order], classes[order])


def _never_cleared(features: Any, classes: Any) -> Iterator[Any]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for x, y in zip(((features - 0.5) / 0.25).split(32), classes.split(32), strict=True):
        loss = _weighted_mean(model(x), y)
        loss.backward()
        _clip(model)
        optimizer.step()
        yield loss.detach()


WRONG = {
    "nothing": (lambda features, classes: None, "returns nothing yet"),
    "one number": (lambda features, classes: 1.0, "has no steps"),
    "as slow as before": (slow_training, "only 1.0 times as many"),
    "a loop in the optimizer": (_with(foreach=False), "the same result, with"),
    "the mean of the weights": (_with(loss_of=_mean_of_weights), "Not the same result"),
    "no weights": (_with(loss_of=_unweighted), "Not the same result"),
    "no clipping": (_with(clip=lambda model: None), "seed 0"),
    "each value clipped": (_with(clip=_of_each_value), "seed 0"),
    "features as they are": (_with(scaled=lambda x: x), "Not the same result"),
    "larger batches": (_with(size=64), "3 steps instead of 6"),
    "16 bits": (_with(dtype=torch.bfloat16), "seed 0"),
    "another rate": (_with(lr=0.02), "seed 0"),
    "another rate later on": (_later_rate, "the loss of step 5"),
    "each parameter clipped by itself": (_with(clip=_of_each_parameter), "a gradient that is cut"),
    "gradients never cleared": (_never_cleared, "gradients that were not cleared"),
    "the other classes weighted": (_with(loss_of=_others_weighted), "or a different loss"),
    "another order": (_shuffled, "Not the same result"),
    "another scale": (_with(scaled=lambda x: x / 0.25 - 0.5), "different data"),
    "a sum for a mean": (_with(loss_of=lambda s, y: 32 * _weighted_mean(s, y)), "a different loss"),
}


@pytest.mark.parametrize(("answer", "why"), WRONG.values(), ids=WRONG)
def test_wrong_answers_are_refused_with_the_reason(answer: Any, why: str) -> None:
    found = " ".join(repr(training_without_faults.check(answer)).split())
    assert found.startswith("Not yet"), found
    assert why in found


def test_show_counts_and_compares() -> None:
    found = " ".join(repr(training_without_faults.show(_fast)).split())
    assert found.startswith("6 steps")
    assert "times as many" in found
    assert "Same result as far as fp32 can tell" in found


def test_the_rare_class_is_there_and_rare() -> None:
    for seed in range(3):
        _, classes = visits(seed=seed)
        counts = classes.bincount(minlength=4)
        assert 0 < counts[0] == counts.min()


def test_the_puzzles_accept_what_is_right_and_refuse_the_rest() -> None:
    right: dict[Exercise, list[Callable[..., Any]]] = {
        speed_without: [lambda share: 1 / (1 - share)],
        speed_of_all: [
            lambda times: times[0] / times[-1],
            lambda times: math.prod(x / y for x, y in itertools.pairwise(times)),
        ],
        epochs_until_it_pays: [
            lambda once, before, after: math.ceil(once / (before - after)),
            lambda once, before, after: -(-once // (before - after)),
        ],
    }
    for puzzle, answers in right.items():
        for answer in answers:
            assert repr(puzzle.check(answer)).startswith("Done")
    wrong = [
        (speed_without, lambda share: 1 + share),
        (speed_without, lambda share: 1 / share if share else 1.0),
        (speed_without, lambda share: None),
        (speed_of_all, lambda times: max(times) / min(times)),
        (speed_of_all, lambda times: sum(times) / times[-1]),
        (speed_of_all, lambda times: times[0] - times[-1]),
        (epochs_until_it_pays, lambda once, before, after: once // (before - after)),
        (epochs_until_it_pays, lambda once, before, after: once / before),
        (epochs_until_it_pays, lambda once, before, after: 1),
    ]
    for puzzle, answer in wrong:
        assert repr(puzzle.check(answer)).startswith("Not yet")


class _Clock:
    """A clock that moves only when a program says so."""

    device = "cpu"

    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> int:
        return self.ns

    def settle(self) -> None:
        self.ns += 0


def _timed(clock: _Clock, ran: list[str], name: str, ms: float) -> Callable[[], None]:
    def run() -> None:
        ran.append(name)
        clock.ns += round(ms * 1e6)

    return run


def test_versions_run_forwards_and_backwards_and_their_gains_add_up() -> None:
    clock, ran = _Clock(), list[str]()
    times = {"slow": 100.0, "one": 40.0, "two": 10.0}
    programs = {name: _timed(clock, ran, name, ms) for name, ms in times.items()}
    found = in_turn(programs, budget_s=0, clock=clock)
    assert "".join(name[0] for name in ran) == "t" + "sot" + "tos" + "sot"
    assert found.rounds == 3
    assert list(found.medians_ms) == [100, 40, 10]
    assert [fall.gain_ms for fall in found.falls] == [60, 30]
    assert sum(fall.gain_ms for fall in found.falls) == 100 - 10
    assert [fall.ratio for fall in found.falls] == [2.5, 4]
    assert all(fall.is_seen for fall in found.falls)
    assert "2.50×" in found.table
    with pytest.raises(UsageError, match="two or more"):
        in_turn({"slow": lambda: None}, budget_s=0)


def test_one_variable_scales_this_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "1e-9")
    assert in_turn({"slow": lambda: None, "one": lambda: None}, budget_s=2).rounds == 1


def test_a_gain_that_is_not_there_in_each_round_is_not_seen() -> None:
    found = Stages(("slow", "tip"), ((10.0, 10.0, 10.0), (9.0, 11.0, 9.0)))
    (fall,) = found.falls
    assert (fall.gain_ms, fall.low_ms, fall.high_ms) == (1, -1, 1)
    assert not fall.is_seen
    assert "not seen" in found.table


def test_the_picture_says_in_words_what_it_shows() -> None:
    first = Stages(("slow", "one", "two"), ((100.0,), (40.0,), (10.0,)))
    last = Stages(("slow", "two", "one"), ((100.0,), (101.0,), (10.0,)))
    figure, words = draw_falls({"one first": first, "one last": last}, source="measured here")
    assert "one first: from 100 ms an epoch, one -60 ms; two -30 ms" in words
    assert "two +1 ms (not seen); one -91 ms; what is left is 10 ms" in words
    assert len(figure.axes) == 2
    assert picture(figure, words).png.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("low", "high", "same", "holds"),
    [
        (8.0, 10.0, [True] * 3, True),
        (8.0, 10.0, [True, False, True], False),
        (8.0, 10.0, [True, None, True], None),
        (4.0, 10.0, [True] * 3, None),
        (2.0, 4.0, [True] * 3, False),
    ],
)
def test_the_claim_needs_a_fifth_of_the_time_and_the_same_result(
    low: float, high: float, same: list[bool | None], holds: bool | None
) -> None:
    (one,) = criteria(claims=["C1"], lessons=["18"])
    timed = SimpleNamespace(
        ratio=(low + high) / 2, low=low, high=high, level=0.95, measured="time", n=8, a=None, b=None
    )
    outcome = one.judge(
        timed,
        same,
        {"slow": 3000, "fast": 100},
        {"slow": 130, "fast": 0},
        {"slow": 8000, "fast": 1000},
    )
    assert outcome.holds is holds
    assert outcome.figures["bytes_ratio"].value == 8
