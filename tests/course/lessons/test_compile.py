"""Lesson 10: the exercise and its puzzles, the picture, what is counted, and its claim."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from perfkit.base.compiling import CompileReport, GraphBreak, Recompilation
from perfkit.base.errors import MissingError
from perfkit.base.machine.played import is_played
from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_10_compile.lesson import (
    LENGTHS,
    in_one_graph,
    next_length,
    none_too_large,
    steps_until_it_pays,
)
from perfkit.course.lessons.lesson_10_compile.measured import (
    backend_here,
    channels_last_on_gpu,
    graph_sizes,
    on_gpu,
    window_on_gpu,
)
from perfkit.course.lessons.lesson_10_compile.pictures import draw_break_even
from perfkit.measure.compare import compare

# torch.compile itself looks at .grad of what is in the middle of a graph
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")

# ---- right answers


def _multiplied(x: Any, mask: Any) -> Any:
    keep = mask[:, None].to(x.dtype)
    mean = (x * keep).sum(0) / keep.sum().clamp(min=1)
    rows = (x - mean) * keep
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _chosen(x: Any, mask: Any) -> Any:
    keep = mask[:, None]
    count = mask.sum().clamp(min=1)
    mean = torch.where(keep, x, 0).sum(0) / count
    rows = torch.where(keep, x - mean, torch.zeros_like(x))
    with torch.no_grad():
        longest = rows.square().sum(1).amax().sqrt()
        divisor = torch.where(longest > 1, longest, torch.ones_like(longest))
    return rows / divisor


def _as_a_product(x: Any, mask: Any) -> Any:
    """The mean as a product of the mask with the rows."""
    weight = mask.float()
    mean = weight @ x / torch.maximum(weight.sum(), torch.tensor(1.0))
    rows = (x - mean).masked_fill(~mask.unsqueeze(1), 0.0)
    longest = torch.linalg.vector_norm(rows.detach(), dim=1).max()
    return rows * torch.reciprocal(torch.maximum(longest, torch.ones(())))


def _rows(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    return (x - (x * keep).sum(0) / keep.sum().clamp(min=1)) * keep


def _detached_at_the_end(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    return rows / rows.norm(dim=1).max().clamp(min=1).detach()


def _a_safe_divisor(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    longest = rows.detach().norm(dim=1).max()
    return rows / torch.where(longest > 1, longest, 1.0)


def _scaled(x: Any, mask: Any) -> Any:
    weight = mask.to(x.dtype)
    mean = torch.einsum("n,nd->d", weight, x) / weight.sum().clamp_min(1)
    rows = torch.einsum("nd,n->nd", x - mean, weight)
    with torch.no_grad():
        scale = 1 / rows.pow(2).sum(1).max().sqrt().clamp(min=1)
    return scale * rows


def _a_constant(x: Any, mask: Any) -> Any:
    """Without a graph, a GPU's host would wait for the copy of the 1."""
    rows = _rows(x, mask)
    return rows / torch.maximum(rows.detach().norm(dim=1).max(), x.new_tensor(1.0))


def _a_constant_by_its_device(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    one = torch.tensor(1.0, device=x.device)
    return rows / torch.maximum(rows.detach().norm(dim=1).max(), one)


# ---- wrong ones


def _item_beside_a_constant(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    return rows / max(1.0, rows.norm(dim=1).max().item()) + x.new_tensor(0.0)


def _not_zeroed(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = x - (x * keep).sum(0) / keep.sum().clamp(min=1)
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _divided_by_n(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = (x - (x * keep).mean(0)) * keep
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _each_row_by_its_own(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    return rows / rows.detach().norm(dim=1, keepdim=True).clamp(min=1)


def _by_the_whole_norm(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    return rows / rows.detach().norm().clamp(min=1)


def _divided_before_it_is_chosen(x: Any, mask: Any) -> Any:
    rows = _rows(x, mask)
    longest = rows.detach().norm(dim=1).max()
    return torch.where(longest > 1, rows / longest, rows)


def _nan_hidden(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = ((x - (x * keep).sum(0) / keep.sum()) * keep).nan_to_num()
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _any_row(x: Any, mask: Any) -> Any:
    return _rows(x, mask) if mask.any() else torch.zeros_like(x)


def _item_without_a_branch(x: Any, mask: Any) -> Any:
    """``fullgraph=True`` takes it into the graph; the host waits all the same."""
    rows = _rows(x, mask)
    return rows / max(1.0, rows.norm(dim=1).max().item())


def _mean_detached(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = (x - ((x * keep).sum(0) / keep.sum().clamp(min=1)).detach()) * keep
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _careless(x: Any, mask: Any) -> Any:
    out = torch.zeros_like(x)
    kept = x[mask]
    if len(kept):
        kept = kept - kept.mean(0)
        out[mask] = kept / max(1.0, kept.norm(dim=1).max().item())
    return out


def _branches(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = (x - (x * keep).sum(0) / keep.sum().clamp(min=1)) * keep
    longest = rows.detach().norm(dim=1).max()
    return rows / longest if longest > 1 else rows


def _with_a_gradient(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = (x - (x * keep).sum(0) / keep.sum().clamp(min=1)) * keep
    return rows / (rows.square().sum(1) + 1e-12).sqrt().max().clamp(min=1)


def _nan_of_nothing(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = (x - (x * keep).sum(0) / keep.sum()) * keep
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _mean_of_all(x: Any, mask: Any) -> Any:
    rows = (x - x.mean(0)) * mask[:, None]
    return rows / rows.detach().norm(dim=1).max().clamp(min=1)


def _always_divided(x: Any, mask: Any) -> Any:
    keep = mask[:, None].float()
    rows = (x - (x * keep).sum(0) / keep.sum().clamp(min=1)) * keep
    return rows / rows.detach().norm(dim=1).max().clamp(min=1e-9)


def _row_by_row(x: Any, mask: Any) -> Any:
    """Right, and a graph for each number of rows."""
    rows = _multiplied(x, mask)
    return torch.stack([rows[k] for k in range(x.shape[0])])


@pytest.mark.parametrize(
    "answer",
    [
        _multiplied,
        _chosen,
        _as_a_product,
        _detached_at_the_end,
        _a_safe_divisor,
        _scaled,
        _a_constant,
        _a_constant_by_its_device,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(in_one_graph.check(answer))
    assert said.startswith("Done"), said
    assert "no line ends the graph" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda x, mask: [x], "return a tensor, got list"),
        (lambda x, mask: x.sum(0), "return the shape of x"),
        (lambda x, mask: x, "some rows: a row that does not count is not 0"),
        (_careless, "a line ends the graph"),
        (_branches, "a line ends the graph: "),
        (_with_a_gradient, "the values are right, and the gradient is not"),
        (_nan_of_nothing, "no row: a value is not finite"),
        (_mean_of_all, "some rows: the rows that count do not add up to 0"),
        (_always_divided, "short rows, which stay as long as they are: the longest row is 1 long"),
        (_not_zeroed, "some rows: a row that does not count is not 0"),
        (_divided_by_n, "some rows: the rows that count do not add up to 0"),
        (_each_row_by_its_own, "one mean, and one divisor, for all of them?"),
        (_by_the_whole_norm, "some rows: the longest row is"),
        (_divided_before_it_is_chosen, "no row: the values are right, and a gradient is not finit"),
        (_nan_hidden, "what divides by 0, although nobody asks for the result?"),
        (_any_row, "a line ends the graph"),
        (_item_without_a_branch, "the host would wait for a GPU at test_compile.py"),
        (_item_beside_a_constant, "the host would wait for a GPU at test_compile.py"),
        (_mean_detached, "the values are right, and the gradient is not"),
        (
            lambda x, mask: _multiplied(x.double(), mask),
            "torch.float32, as x is, not torch.float64",
        ),
        (_row_by_row, "graphs for six lengths: two are enough"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(in_one_graph.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_puts_an_answer_beside_the_careless_one() -> None:
    said = repr(in_one_graph.show(_multiplied))
    assert "9 rows" in said
    assert "in the careless version" in said
    assert "Nothing to see yet" in repr(in_one_graph.show(lambda *_: None))


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (none_too_large, lambda x: torch.where(x.abs().max() > 1e4, x / 10, x), "Done"),
        (none_too_large, lambda x: x / (1 + 9 * (x.abs().amax() > 1e4)), "Done"),
        (none_too_large, lambda x: x * torch.where(x.abs().max() > 1e4, 0.1, 1.0), "Done"),
        (none_too_large, lambda x: x.where(x.abs().amax() <= 1e4, x / 10), "Done"),
        (none_too_large, lambda x: None, "returns nothing yet"),
        (none_too_large, lambda x: 3, "a tensor, got int"),
        (none_too_large, lambda x: x.sum(), "a tensor of the shape of x"),
        (none_too_large, lambda x: x / 10 if x.abs().max() > 1e4 else x, "a line ends the graph"),
        (none_too_large, lambda x: x / 10 if x.max().item() > 1e4 else x, "a line ends the graph"),
        (none_too_large, lambda x: torch.where(x.max() > 1e4, x / 10, x), "value of -20,000"),
        (none_too_large, lambda x: torch.where(x.abs() > 1e4, x / 10, x), "all of x, divided"),
        (none_too_large, lambda x: x.clamp(-1e4, 1e4), "all of x, divided by 10"),
        (none_too_large, lambda x: x, "all of x, divided by 10"),
        (
            none_too_large,
            lambda x: torch.where(torch.tensor(x.abs().max().item() > 1e4), x / 10, x),
            "the line reads a number: test_compile.py",
        ),
        (next_length, lambda length: -(-length // 64) * 64, "Done"),
        (next_length, lambda length: (length + 63) // 64 * 64, "Done"),
        (next_length, lambda length: length + -length % 64, "Done"),
        (next_length, lambda length: ((length - 1) // 64 + 1) * 64, "Done"),
        (next_length, lambda length: None, "returns nothing yet"),
        (next_length, lambda length: "64", "got str"),
        (next_length, lambda length: length // 64 * 64, "not the next multiple"),
        (next_length, lambda length: (length // 64 + 1) * 64, "64 becomes 128: more than it needs"),
        (next_length, lambda length: 64, "65 becomes 64"),
        (next_length, lambda length: 1 << (length - 1).bit_length(), "not the next multiple"),
        (next_length, lambda length: 1024, "more than it needs"),
        (steps_until_it_pays, lambda c, b, a: c * 1000 / (b - a), "Done"),
        (steps_until_it_pays, lambda c, b, a: int(c * 1e3 / (b - a)) + 1, "Done"),
        (steps_until_it_pays, lambda c, b, a: c / ((b - a) / 1e3), "Done"),
        (steps_until_it_pays, lambda c, b, a: -(-c * 1000 // (b - a)), "Done"),
        (steps_until_it_pays, lambda c, b, a: None, "returns nothing yet"),
        (steps_until_it_pays, lambda c, b, a: [c], "got list"),
        (steps_until_it_pays, lambda c, b, a: c * 1000 // (b - a), "it has not paid"),
        (steps_until_it_pays, lambda c, b, a: c / (b - a), "it has not paid"),
        (steps_until_it_pays, lambda c, b, a: c * 1000 / a, "it has not paid"),
        (steps_until_it_pays, lambda c, b, a: c * 1000 / b, "it has not paid"),
        (steps_until_it_pays, lambda c, b, a: c * 1e6 / (b - a), "it has paid for long"),
        (steps_until_it_pays, lambda c, b, a: c * 1000 / (a - b), "it has not paid"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said


def test_a_puzzle_has_no_show() -> None:
    assert "only .check(answer)" in repr(next_length.show(lambda *_: 1))


def test_ten_lengths_that_differ() -> None:
    assert len(set(LENGTHS)) == len(LENGTHS) == 10
    assert min(LENGTHS) > 1  # a length of 1 gets a graph of its own


# ---- what is counted


def test_the_size_of_a_graph_is_its_number_of_calls() -> None:
    with graph_sizes() as (sizes, look):
        torch.compile(lambda x: (x * 2).sin() + 1, backend=look)(torch.ones(3))
    assert sizes == [3]


def test_without_a_compiler_graphs_are_still_found() -> None:
    backend, why = backend_here()
    assert backend in ("inductor", "eager")
    assert why


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_of_it_is_told() -> None:
    for ask in (lambda: on_gpu(lambda mode: lambda: None), channels_last_on_gpu, window_on_gpu):
        with pytest.raises(MissingError, match="needs a GPU"):
            ask()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # torch 2.11's own, as it compiles
def test_on_a_gpu_layouts_and_windows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "0.02")
    if is_played():  # it has no Triton
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    layouts = channels_last_on_gpu(channels=4, side=8, n=2)
    assert layouts.names == ("channels first", "channels last")
    windows = window_on_gpu(length=256, window=32)
    assert windows.names == ("SDPA with a mask", "FlexAttention")


# ---- picture and claim


def test_the_picture_says_when_it_has_paid() -> None:
    figure, said = draw_break_even(20.0, 8.0, {"the first time": 12.0}, source="here")
    assert figure.get_axes()
    assert "begins at 12 s, 8 ms a step, has paid after 1,000 steps" in said
    _, said = draw_break_even(8.0, 8.0, {"the first time": 12.0}, source="here")
    assert "never pays" in said


_CARELESS = CompileReport(
    16,
    (GraphBreak("cell [3], line 11", "Unsupported Tensor.item() call", 8),),
    (Recompilation("cell [3], line 8", "self.n_calls == 1"),) * 14,
    3.0,
    given_up=(Recompilation("cell [3], line 8", "self.n_calls == 7"),),
)
_CLEAN = CompileReport(2, (), (Recompilation("cell [5], line 8", "size mismatch"),), 1.0)


def test_the_claim_needs_a_compiler() -> None:
    reports = {"careless": _CARELESS, "clean": _CLEAN}
    settled = claim("C10").settle(None, 0.0, reports, True)
    assert settled.outcome.holds is None
    assert "no compiler works here" in settled.outcome.sentence


def test_the_claim_counts_graphs_and_steps() -> None:
    numbers = itertools.count()

    def slow() -> None:
        sum(range(40_000))

    def fast() -> None:
        next(numbers)

    timed = compare(slow, fast, names=("as it is", "compiled"), budget_s=0.3)
    timed = replace(timed, ratio=2.5, low=2.3, high=2.7, different=True)  # whatever the load is
    reports = {"careless": _CARELESS, "clean": _CLEAN}
    outcome = claim("C10").settle(timed, 10.0, reports, True).outcome
    assert outcome.figures["graphs"].value == 2
    assert outcome.figures["graphs_careless"].value == 16
    assert outcome.figures["break_even_steps"].value > 1
    assert outcome.holds is True
    # another result is no speed-up, and neither is a model in pieces
    assert claim("C10").settle(timed, 10.0, reports, False).outcome.holds is False
    in_pieces = {"careless": _CARELESS, "clean": _CARELESS}
    assert claim("C10").settle(timed, 10.0, in_pieces, True).outcome.holds is False
