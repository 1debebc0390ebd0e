"""Which calls of an operator wait, and for which of its tensors: each rule from both sides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfkit.synclint.rules import rule_of

X, MASK, BYTES = torch.ones(6), torch.ones(6, dtype=torch.bool), torch.ones(6, dtype=torch.uint8)
PLACES = torch.zeros(3, dtype=torch.int64)
ONE, TWO = torch.tensor(1.0), torch.ones(2)
ops = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "entry", "waits_for"),
    [
        (ops.index.Tensor, (X, [MASK]), {}, "index", [MASK]),
        (ops.index.Tensor, (X, [None, BYTES]), {}, "index", [BYTES]),
        (ops.index.Tensor, (X, [PLACES, None]), {}, None, []),
        (ops.index_put_.default, (X, [MASK], ONE), {}, "index_put_value", [MASK, ONE]),
        (ops.index_put_.default, (X, [MASK, None], ONE), {}, "index_put_value", [MASK, ONE]),
        (ops.index_put_.default, (X, [MASK], TWO), {}, "index_put", [MASK]),
        (ops.index_put_.default, (X, [MASK], ONE, True), {}, "index_put", [MASK]),
        (ops.index_put_.default, (X, [MASK], ONE), {"accumulate": True}, "index_put", [MASK]),
        (ops.index_put_.default, (X, [MASK, PLACES], ONE), {}, "index_put", [MASK]),
        (ops.index_put_.default, (X, [MASK, MASK], ONE), {}, "index_put", [MASK, MASK]),
        (ops.index_put_.default, (X, [PLACES], ONE), {}, None, []),
        (ops.masked_fill_.Tensor, (X, MASK, ONE), {}, "masked_fill", [ONE]),
        (ops.repeat_interleave.Tensor, (PLACES,), {}, "repeat_interleave", [PLACES]),
        (ops.repeat_interleave.Tensor, (PLACES, 3), {}, None, []),
        (ops.repeat_interleave.Tensor, (PLACES,), {"output_size": 3}, None, []),
        (ops.normal.float_Tensor, (0.0, X), {}, "normal", [X]),
        (ops.masked_scatter_backward.default, (X, MASK, [6]), {}, "masked_scatter", [MASK]),
        (ops.nonzero.default, (X,), {}, "nonzero", [X]),
    ],
)
def test_which_calls_wait(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], entry: str | None, waits_for: Any
) -> None:
    rule = rule_of(op)
    assert rule is not None
    hit = rule(args, kwargs)
    if entry is None:
        assert hit is None
        return
    assert hit is not None
    assert hit[0] == entry
    assert [id(one) for one in hit[1]] == [id(one) for one in waits_for]


def test_an_operator_that_torch_tags_waits_and_others_do_not() -> None:
    assert rule_of(ops.add.Tensor) is None
    assert rule_of(ops._ctc_loss.default) is None
