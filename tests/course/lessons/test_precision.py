"""Lesson 09: the exercise and its puzzles, formats and their errors, and its claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, nll_loss, normalize

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_09_precision.lesson import (
    FORMATS,
    LETTERS,
    TEMPERATURE,
    _wanted,
    fits,
    language,
    loss_in_fp32,
    rounded,
    stays,
    vanishes,
)
from perfkit.course.lessons.lesson_09_precision.measured import OnGpu, on_gpu
from perfkit.course.lessons.lesson_09_precision.pictures import draw_curves, draw_formats
from perfkit.course.lessons.lesson_09_precision.predicted import H100, predict


def _bf16() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _of(one: Any, other: Any) -> Any:
    similar = one @ other.T / TEMPERATURE
    return (similar.logsumexp(1) - similar.diagonal()).mean()


# ---- four right answers


def _after_the_block(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        both = model(left), model(right)
    return _of(*(normalize(x.float(), dim=1) for x in both))


def _switched_off_inside(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        both = model(left), model(right)
        with torch.autocast("cpu", enabled=False):
            return _of(*(normalize(x.float(), dim=1) for x in both))


def _one_call_and_cross_entropy(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        both = model(torch.cat([left, right]))
    one, other = normalize(both.float(), dim=1).chunk(2)
    return cross_entropy(one @ other.T / TEMPERATURE, torch.arange(len(left)))


def _in_double(model: Any, left: Any, right: Any) -> Any:
    """More than asked for."""
    with _bf16():
        both = model(left), model(right)
    return _of(*(normalize(x.double(), dim=1) for x in both)).float()


def _log_softmax(model: Any, left: Any, right: Any) -> Any:
    with torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16):
        both = [model(x).float() for x in (left, right)]
    one, other = (normalize(x, dim=1) for x in both)
    return -(one @ other.T / TEMPERATURE).log_softmax(1).diagonal().mean()


def _decorated(model: Any, left: Any, right: Any) -> Any:
    run = torch.autocast("cpu", dtype=torch.bfloat16)(model)
    both = run(left).float(), run(right).float()
    return _of(*(x / x.norm(dim=1, keepdim=True) for x in both))


def _cosine(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        one, other = (model(x).to(torch.float32) for x in (left, right))
    similar = cosine_similarity(one[:, None], other[None], dim=-1) / TEMPERATURE
    return nll_loss(similar.log_softmax(1), torch.arange(len(left)))


# ---- wrong ones


def _in_fp16(model: Any, left: Any, right: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        both = model(left), model(right)
    return _of(*(normalize(x.float(), dim=1) for x in both))


def _widened_after_normalize(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        both = model(left), model(right)
    return _of(*(normalize(x, dim=1).float() for x in both))


def _one_side_in_fp32(model: Any, left: Any, right: Any) -> Any:
    """The block ends one line too early."""
    with _bf16():
        one = model(left)
    return _of(*(normalize(x.float(), dim=1) for x in (one, model(right))))


def _widened_inside(model: Any, left: Any, right: Any) -> Any:
    """In the block a product is narrow again, whatever it is given."""
    with _bf16():
        return _of(*(normalize(model(x).float(), dim=1) for x in (left, right)))


def _narrow_inputs(model: Any, left: Any, right: Any) -> Any:
    both = model(left.bfloat16()), model(right.bfloat16())
    return _of(*(normalize(x.float(), dim=1) for x in both))


def _without_temperature(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        both = model(left), model(right)
    one, other = (normalize(x.float(), dim=1) for x in both)
    return cross_entropy(one @ other.T, torch.arange(len(left)))


def _all_in_bf16(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        return _wanted(model, left, right)


def _without_float(model: Any, left: Any, right: Any) -> Any:
    """Autocast has ended, and the embeddings are still bf16."""
    with _bf16():
        both = model(left), model(right)
    return _of(*(normalize(x, dim=1) for x in both)).float()


def _too_late(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        one, other = (normalize(model(x), dim=1) for x in (left, right))
        similar = one @ other.T / TEMPERATURE
    similar = similar.float()
    return (similar.logsumexp(1) - similar.diagonal()).mean()


def _detached(model: Any, left: Any, right: Any) -> Any:
    return _after_the_block(model, left, right).detach()


def _one_side_detached(model: Any, left: Any, right: Any) -> Any:
    """The value is right; half of the gradient is missing."""
    with _bf16():
        both = model(left), model(right).detach()
    return _of(*(normalize(x.float(), dim=1) for x in both))


def _narrow_weights(model: Any, left: Any, right: Any) -> Any:
    model.bfloat16()
    both = model(left.bfloat16()), model(right.bfloat16())
    return _of(*(normalize(x.float(), dim=1) for x in both))


def _left_on(model: Any, left: Any, right: Any) -> Any:
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return _after_the_block(model, left, right)


def _without_the_diagonal(model: Any, left: Any, right: Any) -> Any:
    with _bf16():
        both = model(left), model(right)
    one, other = (normalize(x.float(), dim=1) for x in both)
    return (one @ other.T / TEMPERATURE).logsumexp(1).mean()


@pytest.mark.parametrize(
    "answer",
    [
        _after_the_block,
        _switched_off_inside,
        _one_call_and_cross_entropy,
        _in_double,
        _log_softmax,
        _decorated,
        _cosine,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(loss_in_fp32.check(answer))
    assert said.startswith("Done"), said
    assert "every operator of the loss in fp32" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda model, left, right: 0.5, "got float"),
        (lambda model, left, right: model(left).sum(1), "shape (), not (64,)"),
        (_all_in_bf16, "the loss is torch.bfloat16"),
        (_wanted, "the model's products are not in bf16"),
        (_without_float, "operators of the loss still have 16 bits"),
        (_too_late, "operators of the loss still have 16 bits"),
        (_detached, "the result has no gradient"),
        (_one_side_detached, "from the true one; 6% will do"),
        (_narrow_weights, "the weights are torch.bfloat16 afterwards"),
        (_left_on, "autocast is still on after your function"),
        (_without_the_diagonal, "the loss is 0.0005, not"),
        (_in_fp16, "the model's products are not in bf16: {'float16': 4"),
        (_widened_after_normalize, "still have 16 bits: div, linalg_vector_norm"),
        (_one_side_in_fp32, "the model returns float32 in one of its calls"),
        (_widened_inside, "the loss is torch.bfloat16"),
        (_without_temperature, "the loss is 0.0005, not"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(loss_in_fp32.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said
    assert not torch.is_autocast_enabled("cpu")


def test_an_answer_that_stops_is_told_where() -> None:
    said = " ".join(repr(loss_in_fp32.check(_narrow_inputs)).split())
    assert "Your function stopped with an error" in said
    assert "left.bfloat16()" in said


def test_show_takes_a_loss_in_bf16_too() -> None:
    said = " ".join(repr(loss_in_fp32.show(_all_in_bf16)).split())
    assert "products: 5 in bfloat16" in said
    assert "loss 0.0000, in fp64 0.0005" in said
    assert "logsumexp" in said
    assert "16-bit operators of the loss: none" in repr(loss_in_fp32.show(_after_the_block))
    assert "Nothing to see yet" in repr(loss_in_fp32.show(lambda *_: None))


def _lost(gradients: Any) -> Any:
    return ((gradients.half() == 0) & (gradients != 0)).float().mean()


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (stays, lambda weights, update: weights + update == weights, "Done"),
        (stays, lambda weights, update: (weights + update).eq(weights), "Done"),
        (stays, lambda weights, update: weights.clone().add_(update) == weights, "Done"),
        (stays, lambda weights, update: (weights + update - weights).logical_not(), "Done"),
        (stays, lambda *_: None, "returns nothing yet"),
        (stays, lambda weights, update: (weights.float() + update) == weights, "stays in bf16"),
        (stays, lambda weights, update: weights + update != weights, "in bf16"),
        (stays, lambda weights, update: (weights + update == weights).float(), "bool, shape (7,)"),
        (stays, lambda weights, update: torch.ones_like(weights).bool(), "changes in bf16"),
        (stays, lambda weights, update: (weights + update == weights).all(), "bool, shape (7,)"),
        (vanishes, _lost, "Done"),
        (vanishes, lambda g: g.ne(0).logical_and(g.half().eq(0)).sum() / g.numel(), "Done"),
        (vanishes, lambda g: (g.half() == 0).float().mean() - (g == 0).float().mean(), "Done"),
        (vanishes, lambda g: (g.half() == 0).float().mean(), "become 0 and were none before"),
        (vanishes, lambda g: (g.bfloat16() == 0).float().mean(), "become 0 and were none"),
        (vanishes, lambda g: (g.half() == 0) & (g != 0), "shape (), not (10,)"),
        (vanishes, lambda g: float(_lost(g)), "Done"),
        (vanishes, lambda g: [_lost(g)], "got list"),
        (vanishes, lambda g: 1 - _lost(g), "become 0 and were none before"),
        (vanishes, lambda *_: None, "returns nothing yet"),
        (fits, lambda x: 448 / x.abs().max(), "Done"),
        (fits, lambda x: torch.finfo(torch.float8_e4m3fn).max / x.abs().amax(), "Done"),
        (fits, lambda x: 448 / x.abs().max().item(), "Done"),
        (fits, lambda x: 448 / torch.linalg.vector_norm(x, math.inf), "Done"),
        (fits, lambda x: 448 / x.max(), "is 1568, not 448"),
        (fits, lambda x: x.abs().max() / 448, "times your scale is"),
        (fits, lambda x: 448 / x.abs(), "one scale for the whole tensor"),
        (fits, lambda x: -448 / x.abs().max(), "more than 0"),
        (fits, lambda x: 448, "times your scale is"),
        (fits, lambda *_: None, "returns nothing yet"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    assert says in " ".join(repr(puzzle.check(answer)).split())


def test_every_letter_has_two_that_may_follow() -> None:
    texts = language(64, 33)
    assert texts.shape == (64, 33)
    assert 0 <= int(texts.min()) <= int(texts.max()) < LETTERS
    after: dict[int, set[int]] = {}
    for text in language(64, 33, seed=1).tolist() + texts.tolist():
        for one, other in itertools.pairwise(text):
            after.setdefault(one, set()).add(other)
    assert max(map(len, after.values())) == 2
    assert not torch.equal(texts, language(64, 33, seed=1))
    assert torch.equal(texts, language(64, 33))


def test_formats_are_torch_s_own() -> None:
    for form in FORMATS:
        if form.dtype:
            limits = torch.finfo(getattr(torch, form.dtype))
            assert form.bits == limits.bits, form.name
            assert limits.eps == 2.0**-form.mantissa_bits, form.name
    assert [form.bits for form in FORMATS] == [32, 19, 16, 16, 8, 8]


def test_rounding_keeps_as_many_digits_as_the_format_has() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for form in FORMATS:
        error = ((rounded(x, form, scale=16.0) - x) / x).abs()
        # half a step; below its range fp8 has fewer digits, so the small ones do not count
        assert float(error[x.abs() > 0.05].max()) <= 2.0 ** -(form.mantissa_bits + 1), form.name
    tf32 = FORMATS[1]
    assert rounded(torch.tensor([1 + 2.0**-10, 1 + 2.0**-12]), tf32).tolist() == [1 + 2.0**-10, 1]


def test_a_layer_norm_s_weights_stay_at_1_in_bf16() -> None:
    torch.manual_seed(0)
    for dtype, moved in ((torch.float32, True), (torch.bfloat16, False)):
        norm = nn.LayerNorm(8).to(dtype)
        optimizer = torch.optim.AdamW(norm.parameters(), lr=1e-4)
        for _ in range(20):
            optimizer.zero_grad()
            norm(torch.randn(4, 8, dtype=dtype)).square().mean().backward()
            optimizer.step()
        assert bool((norm.weight != 1).all()) is moved
        assert bool((norm.bias != 0).all())


@pytest.mark.parametrize(
    ("rows", "width", "form", "us", "bound"),
    [
        (256, 64, "fp32", 12.0, "asking"),
        (256, 64, "fp8", 12.0, "asking"),
        (8192, 4096, "fp32", 2 * 8192 * 4096**2 / 67e6, "arithmetic"),
        (8192, 4096, "bf16", 2 * 8192 * 4096**2 / 989.5e6, "arithmetic"),
        (1, 16384, "bf16", 2 * (2 * 16384 + 16384**2) / 3350e3, "memory"),
    ],
)
def test_a_product_takes_as_long_as_the_slowest_of_three(
    rows: int, width: int, form: str, us: float, bound: str
) -> None:
    found = predict(rows, width, form)
    assert found.us == pytest.approx(us)
    assert found.bound == bound


def test_a_format_without_a_rate_is_refused() -> None:
    with pytest.raises(UsageError, match="H100 SXM has no rate for 'int4'"):
        predict(8, 8, "int4", rates=H100)


def test_pictures_say_what_they_show() -> None:
    figure, words = draw_formats()
    assert "mantissa: fp32 8 and 23; TF32 8 and 10; bf16 8 and 7; fp16 5 and 10" in words
    assert len(figure.axes) == 1
    losses = [[4.0, 3.0], [4.1, 3.5]]
    curves = {"fp32": losses, "autocast": losses, "weights in bf16": [[4.0, 3.9], [4.1, 3.95]]}
    figure, words = draw_curves(curves, source="computed here")
    assert "2 seeds of each way (computed here)" in words
    assert "fp32: from 4.00 to 3.00 … 3.50" in words
    assert len(figure.axes[0].lines) == 6


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=math.sqrt(low * high), low=low, high=high)


SAVED = {"fp32": 1_255_428, "autocast": 870_404}
CURVES = {
    "fp32": [[4.0] * 10 + [3.0] * 10, [4.0] * 10 + [3.2] * 10],
    "autocast": [[4.0] * 10 + [3.001] * 10, [4.0] * 10 + [3.2] * 10],
    "weights in bf16": [[4.0] * 10 + [3.7] * 10, [4.0] * 10 + [3.8] * 10],
}
FAR = CURVES | {"autocast": CURVES["weights in bf16"]}


@pytest.mark.parametrize(
    ("timed", "saved", "same", "curves", "verdict"),
    [
        (_ratio(1.3, 1.5), SAVED, True, CURVES, "holds here"),
        (_ratio(0.4, 0.5), SAVED, True, CURVES, "does not hold here"),
        (_ratio(0.7, 1.5), SAVED, True, CURVES, "not decided"),
        (_ratio(1.3, 1.5), SAVED | {"autocast": 1_300_000}, True, CURVES, "does not hold here"),
        (_ratio(1.3, 1.5), SAVED, False, CURVES, "does not hold here"),
        (_ratio(1.3, 1.5), SAVED, None, CURVES, "not decided"),
        (_ratio(1.3, 1.5), SAVED, True, FAR, "does not hold here"),
    ],
)
def test_b7_needs_speed_bytes_and_the_same_training(
    timed: Any, saved: Any, same: bool | None, curves: Any, verdict: str
) -> None:
    assert claim("B7").settle(timed, saved, same, curves).verdict == verdict


def test_b7_tells_how_far_each_way_ends_from_fp32() -> None:
    there = {"bf16": OnGpu("bf16", _ratio(2.0, 2.2), 60, 100)}
    settled = claim("B7").settle(_ratio(0.4, 0.5), SAVED, True, CURVES, on_gpu=there)
    assert settled.outcome is not None, settled.why
    value = {name: figure.value for name, figure in settled.outcome.figures.items()}
    assert value["saved_share"] == pytest.approx(69.33, abs=0.01)
    assert value["loss_apart"] == pytest.approx(0.005)
    assert value["weights_apart"] == pytest.approx(3.5)
    assert value["bf16_peak_share"] == 60
    assert settled.verdict == "holds here"  # the step of a GPU's size, not the small one
    assert settled.outcome.headline == "bf16_ratio"
    assert "over 2 seeds" in settled.outcome.sentence


ERRORS = {"fp32": 0.0, "TF32": 3e-4, "bf16": 2.4e-3, "fp8 e4m3": 0.038}


@pytest.mark.parametrize(
    ("product", "in_fp8", "verdict"),
    [
        (_ratio(1.8, 2.0), None, "holds here"),
        (_ratio(0.2, 0.3), None, "does not hold here"),
        (_ratio(1.8, 2.0), _ratio(1.4, 1.6), "holds here"),
        (_ratio(1.8, 2.0), _ratio(0.8, 0.9), "does not hold here"),
        (_ratio(1.8, 2.0), _ratio(0.5, 1.9), "not decided"),
    ],
)
def test_c12_needs_each_narrower_product_to_be_faster(
    product: Any, in_fp8: Any, verdict: str
) -> None:
    settled = claim("C12").settle(product, ERRORS, in_fp8=in_fp8)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["fp8_e4m3_error"].value == pytest.approx(3.8)
    assert ("fp8_ratio" in settled.outcome.figures) is (in_fp8 is not None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    with pytest.raises(MissingError, match="need a GPU"):
        on_gpu(lambda way: lambda: None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has these formats")
def test_a_step_is_timed_in_each_format_and_the_products_are_left_as_they_were() -> None:
    made = []

    def make_step(way: str) -> Callable[[], None]:
        made.append(way)
        layer = nn.Linear(64, 64, device="cuda")
        x = torch.ones(8, 64, device="cuda")

        def step() -> None:
            torch.set_float32_matmul_precision("high" if way == "tf32" else "highest")
            layer.zero_grad()
            layer(x).sum().backward()

        return step

    before = torch.get_float32_matmul_precision()
    found = on_gpu(make_step, budget_s=0.05)
    assert list(found) == ["tf32", "bf16", "fp16"]
    assert set(made) == {"fp32", *found}
    assert torch.get_float32_matmul_precision() == before
    for one in found.values():
        # the same step in each: the layer, its gradients and the batch at least, each time anew
        assert one.peak_bytes == one.fp32_peak_bytes >= 2 * 64 * 64 * 4
