"""FLOPs of one operator from its shapes: matrix products, convolutions, attention.

A multiplication and an addition are two operations. The formulas are the textbook ones, the same
that ``torch.utils.flop_counter`` uses:

* ``mm``, ``addmm``, ``bmm``, ``baddbmm``: 2·(b·)m·n·k; the added matrix is not counted;
* convolution: 2 · batch · output positions · (elements of the weight); of its backward the same
  once for the gradient of the input and once for that of the weight, as asked for;
* attention: 2·b·h·q·k·d for each of its two products; backward 5 products (the scores are
  computed once more). A causal mask is not taken off: these are the FLOPs of the formula, and a
  kernel that skips masked blocks does up to half of them.

Everything else (elementwise, normalization, reductions) counts as nothing: it is bound by memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

_Dims = list[Any]
_Inputs = list[Any]


def counted(name: str, dims: Any, inputs: Any) -> float | None:
    """FLOPs of one call; None where its shapes do not tell, or the operator is another one.

    Args:
        name: e.g. ``"aten::addmm"``.
        dims: shape of each argument, ``[]`` for what is no tensor.
        inputs: value of each argument that is no tensor, as text.
    """
    try:
        value = float(FORMULAS[name](dims, inputs))
    except (KeyError, msgspec.DecodeError, ValueError, TypeError, IndexError, ArithmeticError):
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _mm(dims: _Dims, at: int = 0) -> float:
    (m, k), (k2, n) = dims[at], dims[at + 1]
    if k != k2:
        raise ValueError("inner sizes differ")
    return float(2 * m * n * k)


def _bmm(dims: _Dims, at: int = 0) -> float:
    (b, m, k), (_, _, n) = dims[at], dims[at + 1]
    return float(2 * b * m * n * k)


def _conv(dims: _Dims, inputs: _Inputs) -> float:
    """(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)"""
    source, weight = dims[0], dims[1]
    kernel = weight[2:]
    positions = source[2:]
    if str(inputs[6]).lower() not in ("true", "1"):
        stride, padding, dilation = (_spread(inputs[i], len(kernel)) for i in (3, 4, 5))
        positions = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip(source[2:], padding, dilation, kernel, stride, strict=True)
        ]
    # Transposed, every input position meets every element of the weight once.
    return float(2 * source[0] * math.prod(positions) * math.prod(weight))


def _conv_backward(dims: _Dims, inputs: _Inputs) -> float:
    """(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, …, mask)"""
    grad, source, weight = dims[0], dims[1], dims[2]
    transposed = len(inputs) > 7 and str(inputs[7]).lower() in ("true", "1")
    positions = source[2:] if transposed else grad[2:]
    once = 2 * source[0] * math.prod(positions) * math.prod(weight)
    mask = _flags(inputs[10]) if len(inputs) > 10 else []
    return float(once * (sum(mask[:2]) if len(mask) >= 2 else 2))


def _spread(value: Any, n: int) -> list[int]:
    numbers = msgspec.json.decode(value) if isinstance(value, str) else value
    numbers = numbers if isinstance(numbers, list) else [numbers]
    return [int(x) for x in (numbers * n if len(numbers) == 1 else numbers)]


def _flags(value: Any) -> list[bool]:
    text = str(value).lower().strip("[]() ")
    return [part.strip() in ("true", "1") for part in text.split(",")]


def _attention(dims: _Dims, at: int = 0) -> float:
    (b, h, q, d), (_, _, k, _), (_, _, _, d_v) = dims[at : at + 3]
    return float(2 * b * h * q * k * (d + d_v))


def _attention_backward(dims: _Dims, inputs: _Inputs) -> float:
    (b, h, q, d), (_, _, k, _), (_, _, _, d_v) = dims[1:4]
    # scores again, gradients of scores and of v (both with d_v), of q and of k
    return float(2 * b * h * q * k * (3 * d + 2 * d_v))


FORMULAS: dict[str, Callable[[_Dims, _Inputs], float]] = {
    "aten::mm": lambda d, i: _mm(d),
    "aten::_scaled_mm": lambda d, i: _mm(d),
    "aten::_int_mm": lambda d, i: _mm(d),
    "aten::addmm": lambda d, i: _mm(d, 1),
    "aten::_addmm_activation": lambda d, i: _mm(d, 1),
    "aten::bmm": lambda d, i: _bmm(d),
    "aten::baddbmm": lambda d, i: _bmm(d, 1),
    "aten::convolution": _conv,
    "aten::convolution_backward": _conv_backward,
    **{
        f"aten::_scaled_dot_product_{kind}": lambda d, i: _attention(d)
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
        )
    },
    **{
        f"aten::_scaled_dot_product_{kind}_backward": _attention_backward
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
        )
    },
}
