"""The book adds up: peaks, folds, late labels, and blocks that were there before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from perfkit.memory import ledger as ledger_module
from perfkit.memory.categories import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OTHER,
    PARAMETERS,
    TEMPORARY,
    UNDECIDED,
)
from perfkit.memory.ledger import BEFORE, Block, Ledger

_REGION, _FIXED, _UNSURE = 1, 2, 3


class _Memory:
    """Stands for a storage: anything that can be referred to weakly."""


def _block(
    book: Ledger, nbytes: int, category: int = UNDECIDED, phase: int = _REGION
) -> tuple[_Memory, Block]:
    memory = _Memory()
    block = Block(memory)
    block.key, block.nbytes, block.phase = id(memory), nbytes, phase
    block.category, block.alive = category, True
    block.lasting = False
    block.line, block.watched, block.owner = ("train.py", nbytes, "step"), None, "net"
    if phase == BEFORE:
        book.add_before(block)
    else:
        book.add(block)
    return memory, block


def _free(book: Ledger, block: Block) -> None:
    block.alive = False
    book.remove(block)


def test_peak_is_the_highest_sum_and_its_split_adds_up() -> None:
    book = Ledger()
    keep = [_block(book, 100, PARAMETERS, BEFORE)]
    keep.append(_block(book, 50, ACTIVATIONS))
    _, short = big = _block(book, 70)
    keep.append(big)
    _free(book, short)
    keep.append(_block(book, 30, GRADIENTS))
    totals = book.totals()
    assert (totals.start_bytes, totals.peak_bytes, totals.end_bytes) == (100, 220, 180)
    assert totals.at_start == {PARAMETERS: 100}
    assert totals.at_peak == {PARAMETERS: 100, ACTIVATIONS: 50, TEMPORARY: 70}
    assert totals.at_end == {PARAMETERS: 100, ACTIVATIONS: 50, GRADIENTS: 30}
    assert book.n_allocations == 3
    assert [(p.index, p.total_bytes) for p in totals.curve] == [
        (0, 100), (1, 150), (2, 220), (3, 150), (4, 180), (4, 180)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("category", "phase", "lasting", "half", "at_most"),
    [
        (ACTIVATIONS, _REGION, False, 50, 50),
        (TEMPORARY, _REGION, False, 50, 50),
        (PARAMETERS, _REGION, False, 100, 100),
        (ACTIVATIONS, _REGION, True, 100, 100),
        (TEMPORARY, _FIXED, False, 100, 100),
        (INPUTS, BEFORE, False, 50, 50),
        (INPUTS, BEFORE, True, 100, 100),
        (ACTIVATIONS, BEFORE, False, 100, 100),  # of an earlier step's batch
        (TEMPORARY, _UNSURE, False, 50, 100),
        (INPUTS, _UNSURE, False, 50, 50),
    ],
)
def test_what_half_a_batch_halves(
    category: int, phase: int, lasting: bool, half: int, at_most: int
) -> None:
    book = Ledger(fixed_phases={_FIXED}, unsure_phase=_UNSURE)
    memory, block = _block(book, 100, category, phase)
    block.lasting = lasting
    totals = book.totals()
    assert (totals.half_batch_bytes, totals.half_batch_at_most_bytes) == (half, at_most)
    del memory


def test_a_label_given_after_the_peak_moves_bytes_and_changes_no_total() -> None:
    book = Ledger()
    _, block = memory = _block(book, 64)
    before = book.totals()
    assert before.at_peak == {OTHER: 64}
    block.category = GRADIENTS
    after = book.totals()
    assert after.at_peak == {GRADIENTS: 64}
    assert (after.start_bytes, after.peak_bytes, after.end_bytes) == (
        before.start_bytes,
        before.peak_bytes,
        before.end_bytes,
    )
    del memory


def test_unlabelled_blocks_are_temporary_only_if_made_and_freed_in_the_region() -> None:
    book = Ledger()
    kept = [_block(book, 1, phase=BEFORE), _block(book, 2), _block(book, 4)]
    _free(book, kept[2][1])
    gone_before = _block(book, 8, phase=BEFORE)
    _free(book, gone_before[1])
    assert book.totals().at_peak == {OTHER: 1 + 2 + 8, TEMPORARY: 4}


def test_a_block_from_before_that_is_noticed_late_counts_from_the_start() -> None:
    book = Ledger()
    kept = [_block(book, 10)]
    _free(book, kept[0][1])
    book.fold()
    kept.append(_block(book, 5, PARAMETERS, BEFORE))
    totals = book.totals()
    assert (totals.start_bytes, totals.peak_bytes, totals.end_bytes) == (5, 15, 5)
    assert totals.at_peak == {PARAMETERS: 5, TEMPORARY: 10}


@pytest.mark.parametrize("fold_at", [1, 7, 10**9])
def test_folding_changes_nothing(fold_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "FOLD_AT", fold_at)
    draw = random.Random(0)
    book = Ledger()
    living: list[Any] = [_block(book, 3, PARAMETERS, BEFORE)]
    total = peak = 3
    for _ in range(500):
        if len(living) > 1 and draw.random() < 0.5:
            _, block = living.pop(draw.randrange(1, len(living)))
            _free(book, block)
            total -= block.nbytes
        else:
            size = draw.randrange(1, 1000)
            living.append(_block(book, size, draw.randrange(8)))
            total += size
            peak = max(peak, total)
    totals = book.totals()
    assert (totals.start_bytes, totals.peak_bytes, totals.end_bytes) == (3, peak, total)
    assert sum(totals.at_peak.values()) == peak
    assert sum(totals.at_end.values()) == total
    assert max(point.total_bytes for point in totals.curve) == peak
    assert len(totals.curve) <= ledger_module.MAX_POINTS + 1
    # evaluating twice is the same as once
    assert book.totals() == totals
