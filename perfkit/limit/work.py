"""The work of one operator, counted from the shapes and dtypes of its arguments.

FLOPs are those of matrix products, convolutions and attention (:mod:`perfkit.limit.flops`). Bytes
are what must cross the memory at least: every input read once, every output written once, as if
all that is used again stayed in a cache, and nothing more; what the shapes do not tell (the output
of a reduction, what a mask skips) is left out. So a count is never too high, and a time worked out
from it is a lower bound; but for a tensor that was expanded, of which each element is read from one
place, and which counts as large as its shape (strides are not looked at):

* elementwise: inputs read, the broadcast output written; in place, the first argument is both, and
  what is given as ``out=`` is only written;
* matrix products, convolutions, attention: operands read, results written; of a convolution's
  backward those gradients that were asked for;
* normalization: forward reads the input, its parameters and statistics, and writes the input's
  size once; backward reads two and writes one, with a weight of the size of a sample (layer and
  RMS norm) read and its gradients written where they were asked for;
* softmax: forward one and one, backward two and one; reductions read their input;
* resampling and padding: the smaller of input and output read, the output written;
* embedding: the rows that are looked up, read (no more than the table has) and written; its
  backward writes the whole gradient;
* fused optimizers: Adam reads four tensors and writes three, SGD with momentum three and two.

What is neither known nor a view is None: listed, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfkit.limit.arguments import Tensor
from perfkit.limit.call import Call, Work
from perfkit.limit.counters import counter


def is_known(name: str) -> bool:
    """Whether :func:`work` may count this operator, e.g. ``"aten::addmm"``."""
    space, _, base = name.partition("::")
    return space in ("aten", "torchvision") and counter(base) is not None


def work(
    name: str,
    args: Sequence[Any],
    values: Sequence[Any] = (),
    *,
    list_dtype: str = "",
    output: tuple[int, ...] | None = None,
) -> Work | None:
    """The work of one call; None where the operator or its shapes do not tell.

    Args:
        name: e.g. ``"aten::addmm"``.
        args: from :func:`arguments`.
        values: what the arguments are that are no tensors, as texts.
        list_dtype: dtype of the tensors in lists, which traces do not record; ``""`` if unknown.
        output: shape of the result of a convolution, where ``values`` do not tell.
    """
    base = name.partition("::")[2]
    if list_dtype:
        args = [
            [Tensor(t.shape, t.dtype or list_dtype) for t in a] if isinstance(a, list) else a
            for a in args
        ]
    count = counter(base)
    if count is None:
        return None
    try:
        return count(Call(name, base, args, values, output))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError):
        return None  # shapes that are not those of this operator
