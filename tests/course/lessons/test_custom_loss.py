"""Lesson 08: the exercise and its puzzles, the pictures of cells, and its claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from perfkit.advice.profiling import profile
from perfkit.base.errors import MissingError
from perfkit.course.kit.claim import claim
from perfkit.course.kit.picture import picture
from perfkit.course.lessons.lesson_08_custom_loss.lesson import (
    FAR,
    _wanted,
    cells,
    every_bin,
    own_means,
    push_apart,
    quadratic,
    safe_means,
)
from perfkit.course.lessons.lesson_08_custom_loss.measured import OnGpu, on_gpu
from perfkit.course.lessons.lesson_08_custom_loss.pictures import draw_cells, draw_growth


def _pairs(present: Any) -> Any:
    return (present[:, :, None] & present[:, None]).triu(1)


def _mean(gap: Any, pair: Any) -> Any:
    each = torch.relu(FAR - gap).square() * pair
    return (each.sum((1, 2)) / pair.sum((1, 2)).clamp(min=1)).mean()


# ---- three right answers, and a fourth


def _cdist(means: Any, present: Any) -> Any:
    return _mean(torch.cdist(means, means), _pairs(present))


def _pdist(means: Any, present: Any) -> Any:
    """One picture at a time, each pair once."""
    a, b = torch.triu_indices(means.shape[1], means.shape[1], 1)
    total = 0.0
    for of_picture, here in zip(means, present, strict=True):
        weight = (here[a] & here[b]).float()
        each = torch.relu(FAR - torch.pdist(of_picture)).square() * weight
        total = total + each.sum() / weight.sum().clamp(min=1)
    return total / len(means)


def _checkpointed(means: Any, present: Any) -> Any:
    """A difference for each pair, eight rows at a time, made again for the backward pass."""

    def gaps(rows: Any, means: Any) -> Any:
        return (rows[:, :, None] - means[:, None]).norm(dim=-1)

    parts = [checkpoint(gaps, rows, means, use_reentrant=False) for rows in means.chunk(8, dim=1)]
    return _mean(torch.cat(parts, dim=1), _pairs(present))


def _both_ways(means: Any, present: Any) -> Any:
    """Each pair twice, without its diagonal."""
    gap = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    here = present.float()
    weight = here[:, :, None] * here[:, None] * (1 - torch.eye(means.shape[1]))
    each = torch.relu(FAR - gap).square() * weight
    return (each.sum((1, 2)) / weight.sum((1, 2)).clamp(min=1)).mean()


def _from_products(means: Any, present: Any) -> Any:
    """a² + b² - 2ab, kept above 0 before the root."""
    product = means @ means.transpose(1, 2)
    square = product.diagonal(dim1=1, dim2=2)
    gap = (square[:, :, None] + square[:, None] - 2 * product).clamp(min=1e-12).sqrt()
    return _mean(gap, _pairs(present))


def _chosen(means: Any, present: Any) -> Any:
    pair = _pairs(present)
    each = torch.where(pair, torch.relu(FAR - torch.cdist(means, means)).square(), 0.0)
    return (each.sum((1, 2)) / pair.sum((1, 2)).clamp(min=1)).mean()


def _counted_by_hand(means: Any, present: Any) -> Any:
    """Everything, less the diagonal, and each pair twice on both sides of the division."""
    there, n = present.float(), present.sum(1)
    each = torch.relu(FAR - torch.cdist(means, means)).square()
    both = torch.einsum("nij,ni,nj->n", each, there, there) - FAR**2 * n
    return (both / (n * (n - 1)).clamp(min=1)).mean()


# ---- wrong ones


def _summed(means: Any, present: Any) -> Any:
    each = torch.relu(FAR - torch.cdist(means, means)).square() * _pairs(present)
    return each.sum((1, 2)).mean()


def _pairs_of_all(means: Any, present: Any) -> Any:
    """Divides by the pairs of all k, absent ones included."""
    k = means.shape[1]
    each = torch.relu(FAR - torch.cdist(means, means)).square() * _pairs(present)
    return (each.sum((1, 2)) / (k * (k - 1) / 2)).mean()


def _not_squared(means: Any, present: Any) -> Any:
    pair = _pairs(present)
    each = torch.relu(FAR - torch.cdist(means, means)) * pair
    return (each.sum((1, 2)) / pair.sum((1, 2)).clamp(min=1)).mean()


def _of_two_pictures(means: Any, present: Any) -> Any:
    """Right for the lesson's batches, and for no other."""
    pair = _pairs(present)
    each = torch.relu(FAR - torch.cdist(means, means)).square() * pair
    return (each.sum((1, 2)) / pair.sum((1, 2)).clamp(min=1)).sum() / 2


def _nan_hidden(means: Any, present: Any) -> Any:
    pair = _pairs(present)
    each = torch.relu(FAR - torch.cdist(means, means)).square() * pair
    return (each.sum((1, 2)) / pair.sum((1, 2))).nan_to_num().mean()


def _asks_first(means: Any, present: Any) -> Any:
    if not _pairs(present).any():
        return (means * 0).sum()
    return _cdist(means, present)


def _row_by_row(means: Any, present: Any) -> Any:
    total = torch.zeros(len(means))
    for i in range(means.shape[1]):
        gap = (means[:, i : i + 1] - means[:, i + 1 :]).norm(dim=-1)
        weight = present[:, i : i + 1] & present[:, i + 1 :]
        total = total + (torch.relu(FAR - gap).square() * weight).sum(1)
    return (total / _pairs(present).sum((1, 2)).clamp(min=1)).mean()


def _broadcast(means: Any, present: Any) -> Any:
    return _mean((means[:, :, None] - means[:, None]).norm(dim=-1), _pairs(present))


def _gathered(means: Any, present: Any) -> Any:
    """A difference for each pair, once: half the memory of all, and still too much."""
    a, b = torch.triu_indices(means.shape[1], means.shape[1], 1)
    weight = (present[:, a] & present[:, b]).float()
    each = torch.relu(FAR - (means[:, a] - means[:, b]).norm(dim=-1)).square() * weight
    return (each.sum(1) / weight.sum(1).clamp(min=1)).mean()


def _indexed(means: Any, present: Any) -> Any:
    gap = torch.cdist(means, means)
    pushes = []
    for of_picture, pair in zip(gap, _pairs(present), strict=True):
        each = torch.relu(FAR - of_picture[pair]).square()
        pushes.append(each.sum() / pair.sum().clamp(min=1))
    return torch.stack(pushes).mean()


def _square_root(means: Any, present: Any) -> Any:
    """The derivative of a square root at 0, which is the distance of a mean to itself."""
    gap = (means[:, :, None] - means[:, None]).square().sum(-1).sqrt()
    return _mean(gap, _pairs(present))


def _with_the_diagonal(means: Any, present: Any) -> Any:
    return _mean(torch.cdist(means, means), present[:, :, None] & present[:, None])


def _with_the_absent(means: Any, present: Any) -> Any:
    return _mean(torch.cdist(means, means), _pairs(torch.ones_like(present)))


def _over_the_batch(means: Any, present: Any) -> Any:
    """The mean over all pairs of the batch: a picture with more cells counts more."""
    pair = _pairs(present)
    each = torch.relu(FAR - torch.cdist(means, means)).square() * pair
    return each.sum() / pair.sum().clamp(min=1)


def _without_a_guard(means: Any, present: Any) -> Any:
    pair = _pairs(present)
    each = torch.relu(FAR - torch.cdist(means, means)).square() * pair
    return (each.sum((1, 2)) / pair.sum((1, 2))).mean()


@pytest.mark.parametrize(
    "answer",
    [_cdist, _pdist, _checkpointed, _both_ways, _from_products, _chosen, _counted_by_hand],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(push_apart.check(answer))
    assert said.startswith("Done"), said
    assert "no line waits" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda means, _: means.tolist(), "got list"),
        (lambda means, _: means.sum(1), "shape (), not (2, 8)"),
        (lambda means, present: _cdist(means, present).double(), "not torch.float64"),
        (lambda means, present: _cdist(means.detach(), present), "the result has no gradient"),
        (_wanted, "the operators grow with the instances"),
        (_broadcast, "floats for each pair of instances; at most 12 are allowed"),
        (_gathered, "floats for each pair of instances; at most 12 are allowed"),
        (_indexed, "the host would wait for a GPU at"),
        (_square_root, "every instance present: the value is right, but its gradient is not fin"),
        (_with_the_diagonal, "every instance present: the push term is"),
        (_with_the_absent, "some instances absent: the push term is"),
        (_over_the_batch, "some instances absent: the push term is"),
        (_without_a_guard, "a picture with one instance: the push term is"),
        (_summed, "not 1.9224, 28 times as much"),
        (_pairs_of_all, "some instances absent: the push term is"),
        (_not_squared, "every instance present: the push term is"),
        (_of_two_pictures, "three pictures, and two equal means: the push term is"),
        (_nan_hidden, "a picture with one instance: the value is right, but its gradient is not f"),
        (_asks_first, "the host would wait for a GPU at"),
        (_row_by_row, "the operators grow with the instances"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(push_apart.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_counts_and_leaves_out_the_peak_of_a_loop() -> None:
    assert "floats for each pair" in repr(push_apart.show(_cdist))
    said = repr(push_apart.show(_wanted))
    assert "operators, forward and backward" in said
    assert "floats for each pair" not in said
    assert "Nothing to see yet" in repr(push_apart.show(lambda *_: None))


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (every_bin, lambda i, most: i + (most + 1) * torch.arange(len(i))[:, None, None], "Done"),
        (every_bin, lambda i, most: i * len(i) + torch.arange(len(i)).view(-1, 1, 1), "Done"),
        (
            every_bin,
            lambda i, most: torch.arange(len(i) * (most + 1)).view(len(i), most + 1)[
                torch.arange(len(i))[:, None, None], i
            ],
            "Done",
        ),
        (
            every_bin,
            lambda i, most: torch.stack([one + k * (most + 1) for k, one in enumerate(i)]),
            "Done",
        ),
        (every_bin, lambda *_: None, "returns nothing yet"),
        (every_bin, lambda i, most: i, "fall into the same bin"),
        (every_bin, lambda i, most: i + most * torch.arange(len(i))[:, None, None], "same bin"),
        (every_bin, lambda i, most: i + 100 * torch.arange(len(i))[:, None, None], "bins, from 0"),
        (every_bin, lambda i, most: (i + 0).flatten(), "the shape is"),
        (every_bin, lambda i, most: i.float(), "int64, not torch.float32"),
        (own_means, lambda means, bins: means[bins], "Done"),
        (own_means, lambda means, bins: means.index_select(0, bins), "Done"),
        (own_means, lambda means, bins: means[bins, :].clone(), "Done"),
        (
            own_means,
            lambda means, bins: means.gather(0, bins[:, None].expand(-1, means.shape[1])),
            "Done",
        ),
        (own_means, lambda *_: None, "returns nothing yet"),
        (own_means, lambda means, bins: means, "the shape is"),
        (own_means, lambda means, bins: means[bins.flip(0)], "mean of another bin"),
        (own_means, lambda means, bins: means[bins].tolist(), "got list"),
        (own_means, lambda means, bins: means[bins.clamp(max=2)], "mean of another bin"),
        (own_means, lambda means, bins: means[bins].mean(0), "the shape is"),
        (safe_means, lambda total, count: total / count.clamp(min=1)[:, None], "Done"),
        (safe_means, lambda total, count: (total.T / torch.clamp(count, 1)).T, "Done"),
        (
            safe_means,
            lambda total, count: total / torch.where(count > 0, count, 1.0)[:, None],
            "Done",
        ),
        (
            safe_means,
            lambda total, count: total.div(count.masked_fill(count == 0, 1).unsqueeze(1)),
            "Done",
        ),
        (safe_means, lambda *_: None, "returns nothing yet"),
        (safe_means, lambda total, count: total / count[:, None], "gives NaN or infinity"),
        (safe_means, lambda total, count: total / (count + 1)[:, None], "its true mean"),
        (safe_means, lambda total, count: total / count.max(), "its true mean"),
        (
            safe_means,
            lambda total, count: (total / count[:, None]).nan_to_num(),
            "the gradient of the empty bin",
        ),
        (
            safe_means,
            lambda total, count: torch.where(count[:, None] > 0, total / count[:, None], 0.0),
            "the gradient of the empty bin",
        ),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    assert says in " ".join(repr(puzzle.check(answer)).split())


@pytest.mark.parametrize("n_cells", [1, 2, 4, 16, 64, 512])
def test_every_cell_is_in_its_picture(n_cells: int) -> None:
    pictures, instances = cells(2, 128, n_cells)
    assert pictures.shape == (2, 1, 128, 128)
    assert pictures.dtype == torch.float32
    assert instances.dtype == torch.int64
    for instance in instances:
        assert instance.unique().tolist() == list(range(n_cells + 1))
    assert torch.equal(instances, cells(2, 128, n_cells)[1])


def test_a_parabola_goes_through_its_points() -> None:
    at = quadratic({4: 10 + 3 * 4 + 2 * 16, 16: 10 + 3 * 16 + 2 * 256, 64: 10 + 3 * 64 + 2 * 4096})
    assert at(512) == 10 + 3 * 512 + 2 * 512**2


def test_pictures_say_what_they_show() -> None:
    figure, words = draw_cells(*cells(1, 64, 9))
    assert not picture(figure, words).light, "on a dark page light cells stay light"
    assert "the 9 cells in different colours" in words
    measured = {"loop": {4: 10.0, 64: 800.0}, "bins": {4: 8.0, 64: 9.0}}
    figure, words = draw_growth(measured, {512: 60_000.0}, source="measured here")
    assert "loop, measured: 4 instances 10.0 ms, 64 instances 800 ms" in words
    assert "loop, predicted: 512 instances" in words
    assert len(figure.axes) == 1


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=math.sqrt(low * high), low=low, high=high)


OPERATORS = {"loop": {4: 460, 64: 76_180}, "vectorised": {4: 82, 64: 82}}
WAITS = {"loop": 100, "vectorised": 0}


@pytest.mark.parametrize(
    ("operators", "ratio", "same", "verdict"),
    [
        (OPERATORS, _ratio(80, 120), True, "holds here"),
        (OPERATORS, _ratio(0.4, 0.5), True, "does not hold here"),
        (OPERATORS, _ratio(0.5, 120), True, "not decided"),
        (OPERATORS, _ratio(80, 120), False, "does not hold here"),
        (OPERATORS, _ratio(80, 120), None, "not decided"),
        (
            OPERATORS | {"vectorised": {4: 82, 64: 83}},
            _ratio(80, 120),
            True,
            "does not hold here",
        ),
    ],
)
def test_a15_needs_speed_the_same_result_and_a_count_that_stays(
    operators: Any, ratio: Any, same: bool | None, verdict: str
) -> None:
    settled = claim("A15").settle(operators, {4: _ratio(1, 2), 64: ratio}, WAITS, same)
    assert settled.verdict == verdict


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_launches_and_waits_are_those_of_one_step() -> None:
    layer, x = torch.nn.Linear(8, 4, device="cuda"), torch.ones(2, 8, device="cuda")

    def step() -> None:
        loss = layer(x).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()

    found = on_gpu(step, layer)
    assert found.waits == found.predicted_waits == 1
    # product, sum, two gradients and the copy home at least; a second step would double it
    assert 5 <= found.launches < 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(MissingError, match="need a GPU"):
        on_gpu(lambda: None, torch.nn.Linear(1, 1))


def test_a15_tells_what_a_longer_run_and_a_gpu_show() -> None:
    settled = claim("A15").settle(
        OPERATORS,
        {4: _ratio(1, 2), 64: _ratio(80, 120)},
        WAITS,
        True,
        loop_s=13.4,
        on_gpu={"loop": OnGpu(5_300, 101, 100), "vectorised": OnGpu(82, 0, 0)},
    )
    assert settled.outcome is not None
    value = {name: figure.value for name, figure in settled.outcome.figures.items()}
    assert value["loop_256"] == 13.4
    assert (value["loop_launches"], value["vectorised_launches"]) == (5_300, 82)
    assert (value["loop_seen_waits"], value["vectorised_seen_waits"]) == (101, 0)
    assert settled.outcome.figures["loop_waits"].kind == "predicted"
    assert "With 256 the loop takes 13 s a batch" in settled.outcome.sentence


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        (("tiny-ops", "gc-pauses"), "holds here"),
        (("gc-pauses",), "does not hold here"),
        ((), "does not hold here"),
    ],
)
def test_a16_holds_if_the_calls_are_blamed(rules: tuple[str, ...], verdict: str) -> None:
    operators = [
        SimpleNamespace(name="aten::add", count=900, self_us=4_500.0),
        SimpleNamespace(name="aten::unique", count=100, self_us=40_000.0),
    ]
    findings = [SimpleNamespace(rule=rule) for rule in rules]
    found = SimpleNamespace(
        operators=operators, n_steps=2, diagnosis=SimpleNamespace(findings=findings)
    )
    settled = claim("A16", lesson="08").settle(found)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["calls_each"].value == 500
    assert settled.outcome.figures["tiny_share"].value == pytest.approx(90)


def test_a16_takes_a_profile_as_it_is() -> None:
    x = torch.rand(8, requires_grad=True)

    def loop() -> None:
        torch.autograd.grad(torch.stack([one * 2 for one in x]).sum(), x)

    settled = claim("A16", lesson="08").settle(profile(loop, steps=2, warmup=1, repeat=3))
    assert settled.outcome is not None, settled.why
    assert settled.outcome.figures["calls_each"].value >= 8
