"""Lesson 12: the exercise and its puzzles, the largest batch, the pictures, and its claims."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from perfkit.base.errors import MeasurementError
from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_12_batch_and_accumulate.lesson import (
    IGNORED,
    exchange_when,
    largest_batch,
    share_of_batch,
    small_model,
    stripes,
    token_correct,
)
from perfkit.course.lessons.lesson_12_batch_and_accumulate.measured import (
    Tried,
    page_faults,
    peak_bytes,
    tried,
)
from perfkit.course.lessons.lesson_12_batch_and_accumulate.pictures import (
    draw_batches,
    draw_losses,
)


def _loss(model: Any, part: Any, **given: Any) -> Any:
    tokens, targets = part
    return cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), **given)


def _count(parts: Any) -> Any:
    return sum((targets != IGNORED).sum() for _, targets in parts)


# ---- three right answers, and a fourth


def _shares(model: Any, parts: Any) -> Any:
    model.zero_grad()
    total, count = 0.0, _count(parts)
    for part in parts:
        share = _loss(model, part, reduction="sum") / count
        share.backward()
        total = total + share.detach()
    return total


def _divided_at_the_end(model: Any, parts: Any) -> float:
    """Sums first, and one division of all gradients."""
    for parameter in model.parameters():
        parameter.grad = None
    total, count = 0.0, 0
    for part in parts:
        loss = _loss(model, part, reduction="sum")
        loss.backward()
        total += loss.item()
        count += int((part[1] != IGNORED).sum())
    for parameter in model.parameters():
        parameter.grad /= count
    return total / count


def _weighted_means(model: Any, parts: Any) -> Any:
    """The mean of each part, with the weight of its tokens; one without any is left out."""
    model.zero_grad(set_to_none=False)
    total, count = torch.zeros(()), _count(parts)
    for part in parts:
        its_own = (part[1] != IGNORED).sum()
        share = _loss(model, part).nan_to_num() * (its_own / count)
        if its_own:
            share.backward()
        total += share.detach()
    return total


def _by_hand(model: Any, parts: Any) -> Any:
    """Gradients by ``autograd.grad``, added up outside of ``.grad``."""
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    total, count = 0.0, _count(parts)
    for tokens, targets in parts:
        scores = model(tokens).log_softmax(-1)
        counts = targets != IGNORED
        picked = scores.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        share = -(picked * counts).sum() / count
        for into, slope in zip(sums, torch.autograd.grad(share, parameters), strict=True):
            into += slope
        total = total + share.detach()
    for parameter, found in zip(parameters, sums, strict=True):
        parameter.grad = found
    return total


def _without_empty_parts(model: Any, parts: Any) -> Any:
    model.zero_grad()
    total, count = 0.0, _count(parts)
    for part in parts:
        if (part[1] != IGNORED).any():
            share = _loss(model, part, reduction="sum") / count
            share.backward()
            total = total + share.detach()
    return total


def _those_that_count(model: Any, parts: Any) -> float:
    """Takes the targets that count out of each part, and returns a Python number."""
    model.zero_grad()
    total, count = 0.0, _count(parts)
    for tokens, targets in parts:
        counts = targets != IGNORED
        share = cross_entropy(model(tokens)[counts], targets[counts], reduction="sum") / count
        share.backward()
        total += share.item()
    return total


def _from_the_last_on(model: Any, parts: Any) -> Any:
    """Another order, and the division is in the gradient that backward begins with."""
    for parameter in model.parameters():
        parameter.grad = None
    total, count = torch.zeros(()), _count(parts)
    for tokens, targets in reversed(parts):
        each = cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none").sum()
        each.backward(gradient=1 / count.float())
        total += each.detach() / count
    return total


# ---- wrong ones


def _cleared_for_each_part(model: Any, parts: Any) -> Any:
    total, count = 0.0, _count(parts)
    for part in parts:
        model.zero_grad()
        share = _loss(model, part, reduction="sum") / count
        share.backward()
        total = total + share.detach()
    return total


def _sums_by_parts(model: Any, parts: Any) -> Any:
    model.zero_grad()
    total = 0.0
    for part in parts:
        share = _loss(model, part, reduction="sum") / len(parts)
        share.backward()
        total = total + share.detach()
    return total


def _loss_of_the_last(model: Any, parts: Any) -> Any:
    model.zero_grad()
    share, count = torch.zeros(()), _count(parts)
    for part in parts:
        share = _loss(model, part, reduction="sum") / count
        share.backward()
    return share.detach()


def _as_one_batch(model: Any, parts: Any) -> Any:
    """The batch that was not to be."""
    model.zero_grad()
    tokens, targets = (torch.cat([one[i].flatten() for one in parts]) for i in (0, 1))
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    return loss.detach()


def _by_rows(model: Any, parts: Any) -> Any:
    """The weight of a part by its texts, not its tokens."""
    model.zero_grad()
    total, rows = 0.0, sum(len(tokens) for tokens, _ in parts)
    for part in parts:
        share = (_loss(model, part) * len(part[0]) / rows).nan_to_num()
        share.backward()
        total = total + share.detach()
    return total


def _cleared_at_the_end(model: Any, parts: Any) -> Any:
    total = _shares(model, parts)
    model.zero_grad()
    return total


def _mean_of_means(model: Any, parts: Any) -> Any:
    model.zero_grad()
    total = 0.0
    for part in parts:
        share = _loss(model, part) / len(parts)
        share.backward()
        total = total + share.detach()
    return total


def _not_divided(model: Any, parts: Any) -> Any:
    model.zero_grad()
    total = 0.0
    for part in parts:
        loss = _loss(model, part)
        loss.backward()
        total = total + loss.detach()
    return total / len(parts)


def _not_cleared(model: Any, parts: Any) -> Any:
    total, count = 0.0, _count(parts)
    for part in parts:
        share = _loss(model, part, reduction="sum") / count
        share.backward()
        total = total + share.detach()
    return total


def _all_positions(model: Any, parts: Any) -> Any:
    """Divides by the number of positions, padding included."""
    model.zero_grad()
    total, count = 0.0, sum(targets.numel() for _, targets in parts)
    for part in parts:
        share = _loss(model, part, reduction="sum") / count
        share.backward()
        total = total + share.detach()
    return total


def _nan_of_nothing(model: Any, parts: Any) -> Any:
    """A weight of 0 does not help against a mean of nothing."""
    model.zero_grad()
    total, count = 0.0, _count(parts)
    for part in parts:
        share = _loss(model, part) * ((part[1] != IGNORED).sum() / count)
        share.backward()
        total = total + share.detach()
    return total


def _one_backward(model: Any, parts: Any) -> Any:
    """Right gradients, and all graphs at once."""
    model.zero_grad()
    count = _count(parts)
    loss = sum(_loss(model, part, reduction="sum") for part in parts) / count
    loss.backward()
    return loss.detach()


def _twice(model: Any, parts: Any) -> Any:
    with torch.no_grad():
        total = sum(_loss(model, part, reduction="sum") for part in parts) / _count(parts)
    _shares(model, parts)
    return total


def _updates(model: Any, parts: Any) -> Any:
    total = _shares(model, parts)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return total


def _keeps_the_graph(model: Any, parts: Any) -> Any:
    model.zero_grad()
    total, count = 0.0, _count(parts)
    for part in parts:
        share = _loss(model, part, reduction="sum") / count
        share.backward()
        total = total + share
    return total


def _only_the_loss(model: Any, parts: Any) -> Any:
    with torch.no_grad():
        return sum(_loss(model, part, reduction="sum") for part in parts) / _count(parts)


@pytest.mark.parametrize(
    "answer",
    [
        _shares,
        _divided_at_the_end,
        _weighted_means,
        _by_hand,
        _without_empty_parts,
        _those_that_count,
        _from_the_last_on,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(token_correct.check(answer))
    assert said.startswith("Done"), said
    assert "the model is called at most once for each part" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda model, parts: [1.0], "return one number, got list"),
        (lambda model, parts: torch.zeros(2), "not a tensor of shape (2,)"),
        (_only_the_loss, "a parameter has no gradient in .grad"),
        (_mean_of_means, "parts of different lengths: the gradient points elsewhere"),
        (_not_divided, "parts of one length: the gradient has the right direction, and is 3 times"),
        (
            _not_cleared,
            "called a second time: the gradient has the right direction",
        ),
        (_all_positions, "parts of different lengths: the gradient has the right direction"),
        (_nan_of_nothing, "a part without targets: the loss or its gradient is not finite"),
        (_one_backward, "times the memory of one: let go of a part's graph"),
        (_twice, "the model is called 6 times for 3 parts"),
        (_updates, "changes the weights"),
        (_keeps_the_graph, "still holds a graph: detach it"),
        (lambda model, parts: 2 * _shares(model, parts), "the gradients are right, the loss is"),
        (_cleared_for_each_part, "does each token of every part have the same weight?"),
        (_sums_by_parts, "has the right direction, and is 12 times as long"),
        (_loss_of_the_last, "the gradients are right, the loss is 3.8290, not 1.29"),
        (_as_one_batch, "times the memory of one: let go of a part's graph"),
        (_by_rows, "parts of different lengths: the gradient points elsewhere"),
        (_cleared_at_the_end, "a parameter has no gradient in .grad"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(token_correct.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_puts_an_answer_beside_one_batch() -> None:
    said = repr(token_correct.show(_shares))
    assert "Three parts with 21, 4, 30 tokens that count" in said
    assert "of one batch" in said
    assert "Nothing to see yet" in repr(token_correct.show(lambda *_: None))


def test_the_model_of_the_exercise_leaves_random_numbers_alone() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    small_model()
    assert torch.equal(torch.rand(2), wanted)


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (share_of_batch, lambda part, batch: part / batch, "Done"),
        (share_of_batch, lambda part, batch: 1 / (batch / part), "Done"),
        (share_of_batch, lambda part, batch: part * batch**-1, "Done"),
        (share_of_batch, lambda part, batch: 1 - (batch - part) / batch, "Done"),
        (share_of_batch, lambda *_: None, "returns nothing yet"),
        (share_of_batch, lambda part, batch: 1 / 16, "a part of 8 in a batch of 100"),
        (share_of_batch, lambda part, batch: batch / part, "another weight"),
        (share_of_batch, lambda part, batch: 1 / batch, "another weight"),
        (share_of_batch, lambda part, batch: 1.0, "another weight"),
        (share_of_batch, lambda part, batch: 1 / (batch // part), "a part of 8 in a batch of 100"),
        (share_of_batch, lambda part, batch: "part", "got str"),
        (largest_batch, lambda room, a, b: (room - 2 * a + b) * 8 // (b - a), "Done"),
        (largest_batch, lambda room, a, b: 8 + (room - a) * 8 // (b - a), "Done"),
        (largest_batch, lambda room, a, b: int((room - (2 * a - b)) / ((b - a) / 8)), "Done"),
        (largest_batch, lambda room, a, b: 16 + (room - b) // ((b - a) // 8), "Done"),
        (largest_batch, lambda *_: None, "returns nothing yet"),
        (largest_batch, lambda room, a, b: room // (b // 16), "not the largest"),
        (largest_batch, lambda room, a, b: room * 8 // (b - a), "does not fit"),
        (largest_batch, lambda room, a, b: (room - 2 * a + b) * 8 / (b - a), "a whole number"),
        (largest_batch, lambda room, a, b: (room - a) * 8 // (b - a), "not the largest"),
        (largest_batch, lambda room, a, b: 9 + (room - a) * 8 // (b - a), "does not fit"),
        (exchange_when, lambda number, parts: number % parts == parts - 1, "Done"),
        (exchange_when, lambda number, parts: (number + 1) % parts == 0, "Done"),
        (exchange_when, lambda number, parts: not (number + 1) % parts, "Done"),
        (
            exchange_when,
            lambda number, parts: number // parts != (number + 1) // parts,
            "Done",
        ),
        (exchange_when, lambda *_: None, "returns nothing yet"),
        (exchange_when, lambda number, parts: number % parts == 0, "not the last of its update"),
        (exchange_when, lambda number, parts: number == parts - 1, "gradient is not exchanged"),
        (exchange_when, lambda number, parts: True, "its gradient is exchanged"),
        (exchange_when, lambda number, parts: False, "its gradient is not exchanged"),
        (exchange_when, lambda number, parts: (number + 1) % 16 == 0, "1 parts an update"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said


def test_a_puzzle_has_no_show() -> None:
    assert "only .check(answer)" in repr(share_of_batch.show(lambda *_: 1))


def test_stripes_are_the_same_each_time_and_all_four_are_there() -> None:
    pictures, directions = stripes(64, 16)
    assert pictures.shape == (64, 3, 16, 16)
    assert pictures.dtype == torch.float32
    assert set(directions.tolist()) == {0, 1, 2, 3}
    again = stripes(64, 16)
    assert torch.equal(pictures, again[0])
    assert torch.equal(directions, again[1])
    assert not torch.equal(pictures, stripes(64, 16, seed=1)[0])


# ---- the largest batch


def _step(n: int) -> None:
    """100 floats for all, 25 floats a sample, at the same time."""
    x = torch.ones(100)
    y = torch.ones(n, 25)
    assert x.numel() < y.numel() + 200


def test_the_largest_batch_is_predicted_to_the_sample_where_bytes_are_counted() -> None:
    assert peak_bytes(lambda: _step(10)) == 400 + 1000
    found = tried(_step, 400 + 100 * 77 + 99)
    assert found == Tried(8199, 77, 77, 78, "cpu")
    assert found.is_right
    assert "77 samples predicted; counted: 77 fit, 78 do not" in found.sentence


def test_a_peak_that_jumps_is_not_called_right() -> None:
    def jumps(n: int) -> None:
        _step(n if n < 50 else 2 * n)

    found = tried(jumps, 400 + 100 * 77)
    assert found.fitted == 0
    assert not found.is_right


def test_a_peak_that_does_not_grow_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="is not above that with 8"):
        tried(lambda n: _step(3), 10_000)


@pytest.mark.parametrize(
    ("fitted", "too_large", "right"),
    [(100, 102, True), (97, 99, True), (80, 82, False), (120, 122, False)],
)
def test_a_gpu_may_be_a_twentieth_off(fitted: int, too_large: int, right: bool) -> None:
    found = Tried(10**9, 100, fitted, too_large, "cuda")
    assert found.is_right is right
    assert "tried here" in found.sentence


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_limit_is_the_allocators_and_is_lifted() -> None:
    def step(n: int) -> None:
        x = torch.ones(n, 2**16, device="cuda", requires_grad=True)
        (x * 2).relu().sum().backward()  # type: ignore[no-untyped-call]

    found = tried(step, 200_000_000, device="cuda")
    assert found.device == "cuda"
    assert 0 < found.fitted < found.too_large
    assert abs(found.fitted - found.predicted) < 0.25 * found.predicted
    step(2 * found.too_large)  # there is no limit any more


# ---- pictures


def test_pictures_say_what_they_show() -> None:
    figure, words = draw_batches(
        {8: 1_000.0, 128: 6_000.0}, {8: 2_000_000, 128: 30_000_000}, source="measured here"
    )
    assert len(figure.axes) == 2
    assert "samples a second (measured here): 8: 1,000; 128: 6,000" in words
    assert "counted: 8: 2 MB; 128: 30 MB" in words
    # a label is where the line is lower than its point
    falling, _ = draw_batches({8: 9.0, 32: 5.0, 128: 2.0}, {8: 2, 128: 30}, source="measured here")
    sides = [[text.get_ha() for text in axes.texts] for axes in (*figure.axes, *falling.axes)]
    assert sides == [["right"] * 2, ["right"] * 2, ["left"] * 3, ["right"] * 2]
    runs = {"8": [[1.4, 1.0], [1.4, 1.2]], "128": [[1.4, 1.3], [1.4, 1.3]]}
    figure, words = draw_losses({"SGD": runs, "AdamW": runs})
    assert len(figure.axes) == 2
    assert "mean and range of 2 seeds" in words
    assert "SGD, 8: ends at 1.10 (1.00 to 1.20)" in words


# ---- claims


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=math.sqrt(low * high), low=low, high=high)


FITS = Tried(10**9, 100, 100, 101, "cpu")
LOSSES = {"few, tuned": [1.3, 1.4], "many, same": [1.38, 1.38], "many, scaled": [1.3, 1.4]}


@pytest.mark.parametrize(
    ("small", "large", "found", "verdict"),
    [
        (_ratio(3, 4), _ratio(1.3, 1.5), FITS, "holds here"),
        (_ratio(3, 4), _ratio(0.95, 1.05), FITS, "does not hold here"),
        (_ratio(3, 4), _ratio(1.02, 1.05), FITS, "does not hold here"),
        (_ratio(3, 4), _ratio(1.2, 1.4), FITS, "not decided"),
        (_ratio(0.5, 0.6), _ratio(1.3, 1.5), FITS, "does not hold here"),
        (_ratio(3, 4), _ratio(1.3, 1.5), Tried(10**9, 100, 0, 101, "cpu"), "does not hold here"),
    ],
)
def test_b3_needs_a_gain_also_where_a_core_is_busy(
    small: Any, large: Any, found: Tried, verdict: str
) -> None:
    settled = claim("B3").settle(small, large, found, LOSSES)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["loss_few"].value == pytest.approx(1.35)
    assert settled.outcome.figures["predicted_batch"].kind == "predicted"


@pytest.mark.parametrize(
    ("same", "parts", "verdict"),
    [
        (True, 12_000_000, "holds here"),
        (False, 12_000_000, "does not hold here"),
        (None, 12_000_000, "not decided"),
        (True, 100_000_000, "does not hold here"),
    ],
)
def test_b4_needs_the_same_gradients_and_a_small_peak(
    same: bool | None, parts: int, verdict: str
) -> None:
    settled = claim("B4").settle(
        same,
        {"128 at once": 190_000_000, "16 × 8": parts},
        {1: 16.0, 10: 160.0},
        {"every part": 16, "no_sync": 1},
        _ratio(3, 4),
    )
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["printed_length"].value == 160
    assert "the gradient of update 10 is 160 times as long" in settled.outcome.sentence


def test_memory_that_is_new_in_each_call_has_page_faults() -> None:
    resource = pytest.importorskip("resource")
    page = resource.getpagesize()
    kept = torch.zeros(8 << 20)  # 32 MB

    def anew() -> None:
        with mmap.mmap(-1, kept.nbytes) as memory:  # from the system, whatever the allocator keeps
            for at in range(0, kept.nbytes, page):
                memory[at] = 1

    assert page_faults(lambda: kept.fill_(1)) < kept.nbytes / page / 10
    assert page_faults(anew) >= kept.nbytes / (2 << 20)  # at least one for each huge page
