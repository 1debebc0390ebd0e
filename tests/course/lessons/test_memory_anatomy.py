"""Lesson 11: the exercise and its puzzles, its picture, and its claims."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_07_sync_points import criteria as criteria_of_07
from perfkit.course.lessons.lesson_11_memory_anatomy import measured
from perfkit.course.lessons.lesson_11_memory_anatomy.lesson import (
    SIDE,
    _plainly,
    batches_of_cells,
    in_the_budget,
    one_row,
    states,
    twice,
)
from perfkit.course.lessons.lesson_11_memory_anatomy.measured import KeptAfterBackward
from perfkit.course.lessons.lesson_11_memory_anatomy.pictures import draw_steps
from perfkit.memory.account import account


@pytest.fixture(scope="module", autouse=True)
def survey_only_what_is_new() -> None:
    # a check looks at every object that the collector tracks, those of earlier tests, too
    gc.collect()
    gc.freeze()


# torch gives it no types
_SEQUENTIAL: Any = checkpoint_sequential


def _again(function: Any, *args: Any, **given: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, **given)


# ---- four right answers


def _in_fours(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 4):
        x = _again(nn.Sequential(*blocks[i : i + 4]), x)
    return x


def _sequential(blocks: Any, x: Any) -> Any:
    return _SEQUENTIAL(list(blocks), 4, x, use_reentrant=False)


def _in_pairs_by_a_closure(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 2):
        x = _again(lambda y, i=i: blocks[i + 1](blocks[i](y)), x)
    return x


def _unequal_parts(blocks: Any, x: Any) -> Any:
    begin = 0
    for size in (5, 4, 4, 3):
        x = _again(nn.Sequential(*list(blocks)[begin : begin + size]), x)
        begin += size
    return x


def _in_threes(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 3):
        x = _again(nn.Sequential(*blocks[i : i + 3]), x)
    return x


def _the_last_kept(blocks: Any, x: Any) -> Any:
    for i in range(0, 12, 4):
        x = _again(nn.Sequential(*blocks[i : i + 4]), x)
    return _plainly(blocks[12:], x)


def _zipped(blocks: Any, x: Any) -> Any:
    each = iter(blocks)
    for part in zip(each, each, each, each, strict=True):
        x = _again(functools.partial(_plainly, part), x)
    return x


# ---- wrong ones


def _every_other(blocks: Any, x: Any) -> Any:
    for i, block in enumerate(blocks):
        x = _again(block, x) if i % 2 else block(x)
    return x


def _late_lambda(blocks: Any, x: Any) -> Any:
    """By the time it runs again, ``part`` is the last one."""
    for i in range(0, len(blocks), 4):
        part = blocks[i : i + 4]
        x = _again(lambda y: nn.Sequential(*part)(y), x)  # noqa: B023
    return x


def _always_from_x(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 4):
        y = _again(nn.Sequential(*blocks[i : i + 4]), x)
    return y


def _one_of_four_left_out(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 4):
        x = _again(nn.Sequential(*blocks[i : i + 3]), x)
    return x


def _cut_off(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 4):
        x = _again(nn.Sequential(*blocks[i : i + 4]), x.detach())
    return x


def _half_of_it(blocks: Any, x: Any) -> Any:
    return _plainly(blocks[8:], _in_fours(blocks[:8], x))


def _each(blocks: Any, x: Any) -> Any:
    for block in blocks:
        x = _again(block, x)
    return x


def _all_in_one(blocks: Any, x: Any) -> Any:
    return _again(nn.Sequential(*blocks), x)


def _two_halves(blocks: Any, x: Any) -> Any:
    x = _again(nn.Sequential(*blocks[:8]), x)
    return _again(nn.Sequential(*blocks[8:]), x)


def _other_dropout(blocks: Any, x: Any) -> Any:
    for i in range(0, len(blocks), 4):
        x = _again(nn.Sequential(*blocks[i : i + 4]), x, preserve_rng_state=False)
    return x


def _reentrant(blocks: Any, x: Any) -> Any:
    """The first part gets no gradient: its input needs none."""
    for i in range(0, len(blocks), 4):
        x = checkpoint(nn.Sequential(*blocks[i : i + 4]), x, use_reentrant=True)
    return x


def _nested(blocks: Any, x: Any) -> Any:
    """Least memory of all; blocks run three times."""
    for i in range(0, len(blocks), 4):
        part = blocks[i : i + 4]
        x = _again(lambda y, part=part: _each(part, y), x)
    return x


def _nested_but_for_the_last_four(blocks: Any, x: Any) -> Any:
    """Right gradients: some blocks run three times, others once, and no lambda is to blame."""
    return _plainly(blocks[12:], _nested(blocks[:12], x))


def _without_the_last(blocks: Any, x: Any) -> Any:
    return _in_fours(blocks[:-1], x)


def _without_dropout(blocks: Any, x: Any) -> Any:
    return _in_fours(blocks.eval(), x)


def _changed_in_between(blocks: Any, x: Any) -> Any:
    """Without dropout in the second run: torch itself says so, in ``backward()``."""
    x = _in_fours(blocks, x)
    blocks.eval()
    return x


def _no_grad(blocks: Any, x: Any) -> Any:
    with torch.no_grad():
        return _plainly(blocks, x)


@pytest.mark.parametrize(
    "answer",
    [
        _in_fours,
        _sequential,
        _in_pairs_by_a_closure,
        _unequal_parts,
        _in_threes,
        _the_last_kept,
        _zipped,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(in_the_budget.check(answer))
    assert said.startswith("Done"), said
    assert "MB at the peak instead of" in said


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda blocks, x: _in_fours(blocks, x).tolist(), "got list"),
        (lambda blocks, x: _in_fours(blocks, x).bfloat16(), "not torch.bfloat16"),
        (lambda blocks, x: _in_fours(blocks, x).sum(1), "(2048, 64), not torch.float32 of (2048,)"),
        (_plainly, "the budget is 8.4 MB"),
        (_each, "the budget is 8.4 MB"),
        (_all_in_one, "the budget is 8.4 MB"),
        (_two_halves, "the budget is 8.4 MB"),
        (_other_dropout, "the gradients are not: the second run must draw the same dropout"),
        (_reentrant, "the result has no gradient"),
        (_nested, "a block ran 3 times"),
        (_nested_but_for_the_last_four, "a block ran 3 times"),
        (_without_the_last, "the result differs from that of the loop"),
        (_without_dropout, "the result differs from that of the loop"),
        (_no_grad, "the result has no gradient"),
        (_changed_in_between, "the second run of a part is not its first run again"),
        (_every_other, "the budget is 8.4 MB"),
        (_late_lambda, "one block runs again 4 times and another never. Is a lambda in it?"),
        (_always_from_x, "the result differs from that of the loop"),
        (_one_of_four_left_out, "are all 16 blocks in it"),
        (_cut_off, "every block must get its gradient"),
        (_half_of_it, "the budget is 8.4 MB"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(in_the_budget.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_tells_the_peak_and_what_runs_twice() -> None:
    said = " ".join(repr(in_the_budget.show(_in_fours)).split())
    assert "blocks run: 32, of which 16 a second time" in said
    assert "Nothing to see yet" in repr(in_the_budget.show(lambda *_: None))


def _sum_of_states(optimizer: Any) -> int:
    return sum(t.nbytes for state in optimizer.state.values() for t in state.values())


def _numbers(optimizer: Any, each: int = 4, n: int = 2) -> int:
    return sum(n * each * p.numel() for group in optimizer.param_groups for p in group["params"])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_sum_of_states, "Done"),
        (
            lambda o: sum(
                t.numel() * t.element_size() for s in o.state.values() for t in s.values()
            ),
            "Done",
        ),
        (
            lambda o: sum(
                t.untyped_storage().nbytes()
                for s in o.state_dict()["state"].values()
                for t in s.values()
            ),
            "Done",
        ),
        (lambda o: float(_sum_of_states(o)), "Done"),
        (lambda o: None, "returns nothing yet"),
        (_numbers, "AdamW: its state takes"),  # without the step counters
        (
            lambda o: _numbers(o) + 4 * len(o.param_groups[0]["params"]),
            "AdamW with amsgrad: its state takes",
        ),
        (
            lambda o: sum(
                4 * t.numel() for s in o.state.values() for t in s.values()
            ),
            "AdamW of bfloat16: its state takes",
        ),
        (
            lambda o: sum(
                t.nbytes for t in next(iter(o.state.values())).values()
            ),
            "AdamW: its state takes",
        ),
        (lambda o: len(o.state), "AdamW: its state takes"),
        (lambda o: str(_sum_of_states(o)), "got str"),
    ],
)  # fmt: skip
def test_bytes_of_a_state(answer: Callable[..., Any], says: str) -> None:
    assert says in " ".join(repr(states.check(answer)).split())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda outputs: outputs[0].detach().clone(), "Done"),
        (lambda outputs: outputs.detach()[0].clone(), "Done"),
        (lambda outputs: torch.tensor(outputs[0].tolist()), "Done"),
        (lambda outputs: outputs.data[0].clone(), "Done"),
        (lambda outputs: None, "returns nothing yet"),
        (lambda outputs: outputs[0], "it still leads to the graph"),
        (lambda outputs: outputs[0].clone(), "it still leads to the graph"),
        (lambda outputs: outputs[0].detach(), "keeps 48 B alive"),
        (lambda outputs: outputs.detach()[0].contiguous(), "keeps 48 B alive"),
        (lambda outputs: outputs.detach().clone()[0], "keeps 48 B alive"),
        (lambda outputs: outputs[:1].detach().clone(), "shape (3,)"),
        (lambda outputs: outputs[0].tolist(), "got list"),
    ],
)
def test_one_row(answer: Callable[..., Any], says: str) -> None:
    assert says in " ".join(repr(one_row.check(answer)).split())


def _silent(block: Any, x: Any) -> Any:
    with torch.no_grad():
        return block(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_again, "Done"),
        (lambda block, x: _again(lambda y: block(y), x), "Done"),
        (lambda block, x: _again(block.forward, x), "Done"),
        (lambda block, x: _SEQUENTIAL([block, nn.Identity()], 2, x, use_reentrant=False), "Done"),
        (lambda *_: None, "returns nothing yet"),
        (lambda block, x: block(x), "it still keeps"),
        (_silent, "no gradient flows back"),
        (lambda block, x: checkpoint(block, x, use_reentrant=True), "no gradient flows back"),
        (lambda block, x: _again(block, x, preserve_rng_state=False), "the gradients differ"),
        (lambda block, x: _again(block.eval(), x), "the gradients differ"),
        (lambda block, x: _again(block, x).tolist(), "got list"),
    ],
)  # fmt: skip
def test_a_block_twice(answer: Callable[..., Any], says: str) -> None:
    assert says in " ".join(repr(twice.check(answer)).split())


def test_batches_differ_and_come_back_the_same() -> None:
    first, second = batches_of_cells(2, 3)
    for pictures, masks in (first, second):
        assert pictures.shape == masks.shape == (3, 1, SIDE, SIDE)
        assert set(masks.flatten().tolist()) == {0, 1}
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[0], batches_of_cells(1, 3)[0][0])


def test_the_picture_says_what_it_shows() -> None:
    layer = nn.Linear(64, 64)
    found = account(lambda: layer(torch.ones(64, 64)).tanh().sum().backward())
    figure, words = draw_steps({"keep": found, "recompute": found})
    assert f"keep, {found.peak_bytes / 1e6:.1f} MB at the peak" in words
    assert [text.get_text() for text in figure.texts] == ["counted here"]
    assert len(figure.axes[0].lines) == 2


def test_a_kept_loss_keeps_nodes_in_the_hosts_memory() -> None:
    nodes, resident = measured._growth("cpu", n=40)
    # three operators with parameters a block, and what turns the result into a number
    assert nodes >= 4 * measured._BLOCKS
    assert resident >= 0


@pytest.mark.slow
def test_it_is_measured_in_a_process_of_its_own() -> None:
    found = measured.kept_after_backward()
    assert found.nodes == measured._growth("cpu", n=2)[0]
    # rounding of the allocator apart, a node takes over a hundred bytes
    assert found.resident_bytes > 100 * found.nodes


def _leaks(nbytes: float, nodes: float = 0.0) -> Any:
    return SimpleNamespace(
        bytes_per_step=nbytes, nodes_per_step=nodes, heap_bytes_per_step=28_000.0
    )


RESIDENT = KeptAfterBackward(nodes=30, resident_bytes=17_100.0, blocks=4)


@pytest.mark.parametrize(
    ("kept", "detached", "after", "resident", "verdict"),
    [
        (26e6, 4, 4, RESIDENT, "holds here"),
        (26e6, 0, 4, RESIDENT, "holds here"),
        (3000, 4, 4, RESIDENT, "does not hold here"),
        (26e6, 26e6, 4, RESIDENT, "does not hold here"),
        (26e6, 4, 26e6, RESIDENT, "does not hold here"),
        (26e6, 4, 4, KeptAfterBackward(30, 0.0, 4), "not decided"),
    ],
)
def test_b5_needs_a_graph_that_is_kept_and_nodes_that_stay(
    kept: float, detached: float, after: float, resident: KeptAfterBackward, verdict: str
) -> None:
    settled = claim("B5", lesson="11").settle(
        _leaks(kept, 27), _leaks(detached), _leaks(after, 27), resident
    )
    assert settled.verdict == verdict, settled.why
    assert settled.outcome is not None
    assert settled.outcome.figures["validation_graph_bytes"].kind == "exact"
    assert settled.outcome.figures["training_resident"].kind == "measured"
    # lesson 07 settles B5, too, and a claim's figures have names of their own in each lesson
    of_07 = inspect.getsource(criteria_of_07)
    assert not [name for name in settled.outcome.figures if f'"{name}": Figure' in of_07]


BY_HAND = {
    "parameters": 76_000,
    "gradients": 76_000,
    "optimizer state": 152_144,
    "kept for backward": 26_282_000,
}


@pytest.mark.parametrize(
    ("counted", "after", "verdict"),
    [
        (BY_HAND, 4, "holds here"),
        (BY_HAND | {"gradients": 76_004}, 4, "does not hold here"),
        (BY_HAND | {"kept for backward": 26_281_996}, 4, "does not hold here"),
        (BY_HAND, 26_000_000, "does not hold here"),
    ],
)
def test_c16_needs_every_byte(counted: dict[str, int], after: float, verdict: str) -> None:
    settled = claim("C16").settle(BY_HAND, counted, after)
    assert settled.verdict == verdict, settled.why
    assert settled.outcome is not None
    figures = settled.outcome.figures
    assert figures["kept_for_backward_bytes"].value == counted["kept for backward"]
