"""The work of one operator, counted from the shapes and dtypes of its arguments.

FLOPs are those of matrix products, convolutions and attention (:mod:`perfkit.limit.flops`). Bytes
are what must cross the memory at least: every input read once, every output written once, as if
all that is used again stayed in a cache, and nothing more; what the shapes do not tell (the output
of a reduction, what a mask skips) is left out. So a count is never too high, and a time worked out
from it is a least time:

* elementwise: inputs read, the broadcast output written; in place, the first argument is both;
* matrix products, convolutions, attention: operands read, results written; of a convolution's
  backward those gradients that were asked for;
* normalization: forward reads and writes the input's size once, backward reads two and writes one;
* softmax: forward one and one, backward two and one; reductions read their input;
* embedding: the rows that are looked up, read and written; its backward writes the whole gradient;
* fused optimizers: Adam reads four tensors and writes three, SGD with momentum three and two.

What is neither known nor a view is None: listed, never guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.limit.flops import FORMULAS, counted

__all__ = ["COMPOSITE", "NOTHING", "Tensor", "Work", "arguments", "is_known", "work"]


@dataclass(frozen=True)
class Tensor:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of all elements."""
        return self.n * _SIZES[self.dtype]


@dataclass(frozen=True)
class Work:
    """What one call must do at least.

    Attributes:
        family: e.g. ``"matrix product"``, ``"elementwise"``.
        flops: of matrix products, convolutions and attention, as ``torch.utils.flop_counter``
            counts; 0 for all else.
        least_flops: the same without what a causal mask skips.
        read_bytes, written_bytes: at least.
        dtype: of the first tensor; the format in which FLOPs are done.
    """

    family: str
    flops: float
    least_flops: float
    read_bytes: int
    written_bytes: int
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.written_bytes


# As Kineto writes them, and torch's names.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
_SIZES = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_LISTS = ("TensorList", "GenericList")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators that move and compute nothing: views, new memory, questions.
NOTHING = _names(
    """
    alias as_strided as_strided_ chunk detach detach_ diagonal empty empty_like empty_strided
    expand expand_as flatten is_nonzero item lift_fresh movedim narrow new_empty
    new_empty_strided numpy_T permute pin_memory is_pinned record_stream reshape_as resize_
    resolve_conj resolve_neg result_type select set_ slice split split_with_sizes squeeze
    squeeze_ swapaxes t t_ tensor_split transpose transpose_ unbind unflatten unfold unsqueeze
    unsqueeze_ view view_as _local_scalar_dense _reshape_alias _unsafe_view
    _has_compatible_shallow_copy_type _version output_nr requires_grad_ retain_grad is_leaf
    """
)

#: Operators that only call others: what they call is counted.
COMPOSITE = _names(
    """
    matmul linear einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d to _to_copy
    clone contiguous reshape dropout layer_norm batch_norm group_norm instance_norm
    cross_entropy_loss nll_loss nll_loss_nd scaled_dot_product_attention softmax log_softmax
    max_pool2d max_pool1d adaptive_avg_pool1d zeros ones full zeros_like ones_like full_like
    new_zeros new_ones rand randn embedding_backward type_as cudnn_is_acceptable stack hstack
    vstack nll_loss2d _batch_norm_impl_index
    """
)

# torch's tag `pointwise`, for operators that training uses, and names of older versions
_POINTWISE = _names(
    """
    abs acos add addcdiv addcmul asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor
    ceil celu clamp clamp_max clamp_min clip copysign cos cosh div dropout_backward elu
    elu_backward eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmod ge gelu gelu_backward
    gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    isfinite isinf isnan isneginf isposinf le leaky_relu leaky_relu_backward lerp log log10
    log1p log2 log_sigmoid_backward logical_and logical_not logical_or logical_xor lt
    masked_fill maximum minimum mish mish_backward mul nan_to_num native_dropout_backward
    ne neg pow reciprocal relu
    relu6 remainder round rsqrt rsub sgn sigmoid sigmoid_backward sign silu silu_backward sin
    sinh softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold
    threshold_backward true_divide trunc where xlogy mse_loss_backward smooth_l1_loss_backward
    huber_loss_backward tril triu
    """
)
_COMPARES = _names(
    """
    eq ge gt isfinite isinf isnan isneginf isposinf le logical_and logical_not logical_or
    logical_xor lt ne
    """
)
_REDUCTIONS = _names(
    """
    all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min norm prod std
    std_mean sum var var_mean count_nonzero _foreach_norm
    """
)
_WRITES = _names(
    """
    fill fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_
    """
)


def arguments(dims: str, types: str) -> list[Any]:
    """Each argument as a Tensor, a list of Tensors (dtype ``""``), or None for anything else.

    Args:
        dims: shapes as recorded, JSON.
        types: dtypes as recorded, separated by commas.

    Raises:
        ValueError: they are not what a trace holds.
    """
    shapes = json.loads(dims)
    if not isinstance(shapes, list):
        raise ValueError(f"shapes are not a list: {dims:.60}")
    kinds = types.split(",")
    found: list[Any] = []
    for at, shape in enumerate(shapes):
        kind = kinds[at].strip() if at < len(kinds) else ""
        if kind in _DTYPES and _is_shape(shape):
            found.append(Tensor(tuple(shape), _DTYPES[kind]))
        elif kind.startswith(_LISTS) and isinstance(shape, list) and all(map(_is_shape, shape)):
            found.append([Tensor(tuple(one), "") for one in shape])
        else:
            found.append(None)
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and n >= 0 for n in value)


def is_known(name: str) -> bool:
    """Whether :func:`work` may count this operator, e.g. ``"aten::addmm"``."""
    space, _, base = name.partition("::")
    if space not in ("aten", "torchvision") or base in NOTHING or base in COMPOSITE:
        return False
    return name in FORMULAS or _counter(base) is not None


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
            [Tensor(t.shape, list_dtype) for t in a] if isinstance(a, list) else a for a in args
        ]
    count = _counter(base)
    if count is None:
        return None
    try:
        return count(_Call(name, base, args, values, output))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError):
        return None  # shapes that are not those of this operator


@dataclass(frozen=True)
class _Call:
    name: str
    base: str
    args: Sequence[Any]
    values: Sequence[Any]
    output: tuple[int, ...] | None

    def tensor(self, at: int) -> Tensor:
        found = self.args[at]
        if not isinstance(found, Tensor):
            raise TypeError(f"argument {at} is no tensor")
        return found

    @property
    def tensors(self) -> list[Tensor]:
        """All that are tensors by themselves."""
        return [a for a in self.args if isinstance(a, Tensor)]

    @property
    def lists(self) -> list[list[Tensor]]:
        return [a for a in self.args if isinstance(a, list) and a]

    def plain(self, family: str, read: int, written: int, dtype: str = "") -> Work:
        return Work(family, 0.0, 0.0, int(read), int(written), dtype or self.tensors[0].dtype)

    def matrix(self, family: str, read: int, written: int, skipped: float = 0.0) -> Work:
        dims = [list(a.shape) if isinstance(a, Tensor) else [] for a in self.args]
        flops = counted(self.name, dims, self.values)
        if flops is None:
            raise ValueError("the shapes do not tell")
        dtype = self.tensors[-1].dtype if self.base == "addmm" else self.tensors[0].dtype
        return Work(family, flops, flops * (1 - skipped), int(read), int(written), dtype)


_Counter = Callable[[_Call], Work]


def _counter(base: str) -> _Counter | None:
    found = _BY_NAME.get(base)
    if found is not None:
        return found
    stem = base.rstrip("_") if not base.endswith("__") else base
    if stem in _POINTWISE:
        return _pointwise
    if base in _WRITES:
        return _fill
    if stem in _REDUCTIONS:
        return _reduction
    if base.startswith("_foreach_"):
        return _foreach if stem.removeprefix("_foreach_") in _POINTWISE else None
    return None


# --- elementwise ------------------------------------------------------------------------------


def _broadcast(tensors: Sequence[Tensor]) -> int:
    """Elements of the result."""
    shape: list[int] = []
    for tensor in tensors:
        longer, shorter = sorted((shape, list(tensor.shape)), key=len, reverse=True)
        padded = [1] * (len(longer) - len(shorter)) + shorter
        if any(a != b and 1 not in (a, b) for a, b in zip(longer, padded, strict=True)):
            raise ValueError("shapes do not broadcast")
        shape = [b if a == 1 else a for a, b in zip(longer, padded, strict=True)]
    return math.prod(shape)


def _result_size(call: _Call) -> int:
    """Bytes of an element of the result: a tensor without dimensions does not widen others."""
    if call.base.rstrip("_") in _COMPARES:
        return 1
    tensors = call.tensors[1:] if call.base == "where" else call.tensors
    wide = [t for t in tensors if t.shape] or tensors
    floats = [t for t in wide if "float" in t.dtype] or wide
    return max(_SIZES[t.dtype] for t in floats)


def _pointwise(call: _Call) -> Work:
    tensors = call.tensors
    if call.base in ("clamp_min", "threshold_backward") and len(tensors) > 2:
        tensors = tensors[:2]
    read = sum(t.n_bytes for t in tensors)
    if call.base.endswith("_"):
        return call.plain("elementwise", read, tensors[0].n_bytes)
    return call.plain("elementwise", read, _broadcast(tensors) * _result_size(call))


def _foreach(call: _Call) -> Work:
    lists = call.lists
    read = sum(t.n_bytes for one in lists for t in one)
    read += sum(t.n_bytes for t in call.tensors)
    written = sum(t.n_bytes for t in lists[0])
    return call.plain("elementwise", read, written, lists[0][0].dtype)


def _fill(call: _Call) -> Work:
    return call.plain("fill", 0, call.tensor(0).n_bytes)


def _copy(call: _Call) -> Work:
    target, source = call.tensor(0), call.tensor(1)
    return call.plain("copy", source.n_bytes, target.n_bytes)


def _cat(call: _Call) -> Work:
    total = sum(t.n_bytes for t in call.lists[0])
    return call.plain("copy", total, total, call.lists[0][0].dtype)


def _dropout(call: _Call) -> Work:
    x = call.tensor(0)
    return call.plain("elementwise", x.n_bytes, x.n_bytes + x.n)  # and a mask


# --- matrix products --------------------------------------------------------------------------


def _product(at: int) -> _Counter:
    def count(call: _Call) -> Work:
        a, b = call.tensor(at), call.tensor(at + 1)
        out = math.prod((*a.shape[:-1], b.shape[-1]))
        added = call.tensor(0).n_bytes if at else 0
        size = 2 if a.dtype == "float8" else _SIZES[a.dtype]
        return call.matrix("matrix product", a.n_bytes + b.n_bytes + added, out * size)

    return count


def _convolution(call: _Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    bias = call.args[2].n_bytes if isinstance(call.args[2], Tensor) else 0
    read = x.n_bytes + weight.n_bytes + bias
    if call.output is not None and len(call.values) <= 6:
        flops = 2.0 * x.shape[0] * math.prod(call.output[2:]) * weight.n
        written = math.prod(call.output) * _SIZES[x.dtype]
        return Work("convolution", flops, flops, read, written, x.dtype)
    found = call.matrix("convolution", read, 0)
    if str(call.values[6]).lower() in ("true", "1"):
        return found  # the output of a transposed one is left out
    # 2 · batch · positions · weight, and batch · positions · channels out
    out = int(found.flops / (2 * weight.n) * weight.shape[0])
    return Work("convolution", found.flops, found.flops, read, out * _SIZES[x.dtype], x.dtype)


def _convolution_backward(call: _Call) -> Work:
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    flops = counted(
        "aten::convolution_backward",
        [list(t.shape) for t in (grad, x, weight)],
        call.values,
    )
    if flops is None:
        raise ValueError("the shapes do not tell")
    mask = str(call.values[10]).lower() if len(call.values) > 10 else "[true, true, true]"
    for_x, for_weight = (part.strip(" []") in ("true", "1") for part in mask.split(",")[:2])
    read = grad.n_bytes + (weight.n_bytes if for_x else 0) + (x.n_bytes if for_weight else 0)
    written = (x.n_bytes if for_x else 0) + (weight.n_bytes if for_weight else 0)
    return Work("convolution", flops, flops, read, written, x.dtype)


def _old_convolution_backward(call: _Call) -> Work:
    """CuDNN's own operator, before torch 1.11: input, gradient, weight."""
    x, grad, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    flops = 4.0 * x.shape[0] * math.prod(grad.shape[2:]) * weight.n
    read = grad.n_bytes + x.n_bytes + weight.n_bytes
    return Work("convolution", flops, flops, read, x.n_bytes + weight.n_bytes, x.dtype)


def _attention(causal_at: int) -> _Counter:
    def count(call: _Call) -> Work:
        q, k, v = (call.tensor(at) for at in range(3))
        out = math.prod((*q.shape[:-1], v.shape[-1])) * _SIZES[q.dtype]
        skipped = _skipped(call, causal_at, q.shape[2], k.shape[2])
        return call.matrix("attention", q.n_bytes + k.n_bytes + v.n_bytes, out, skipped)

    return count


def _attention_backward(causal_at: int) -> _Counter:
    def count(call: _Call) -> Work:
        grad, q, k, v = (call.tensor(at) for at in range(4))
        gradients = q.n_bytes + k.n_bytes + v.n_bytes
        skipped = _skipped(call, causal_at, q.shape[2], k.shape[2])
        return call.matrix("attention", gradients + 2 * grad.n_bytes, gradients, skipped)

    return count


def _flash(call: _Call) -> Work:
    """(batch, length, heads, width), called by itself."""
    q, k, v = (call.tensor(at) for at in range(3))
    if len(q.shape) != 4:
        raise ValueError("packed sequences: their lengths are not in the shapes")
    b, length, heads, _ = q.shape
    flops = 2.0 * b * heads * length * k.shape[1] * (q.shape[3] + v.shape[3])
    read = q.n_bytes + k.n_bytes + v.n_bytes
    return Work("attention", flops, flops / 2, read, q.n_bytes, q.dtype)


def _skipped(call: _Call, at: int, q_length: int, k_length: int) -> float:
    """Share of the scores that a causal mask leaves out; 0 where that is not known."""
    told = str(call.values[at]).lower() if len(call.values) > at else ""
    if told not in ("true", "1") or q_length != k_length:
        return 0.0
    return (q_length - 1) / (2 * q_length)


# --- normalization, softmax, reductions -------------------------------------------------------


def _normalize(call: _Call) -> Work:
    x = call.tensor(0)
    return call.plain("normalization", x.n_bytes, x.n_bytes)


def _normalize_backward(call: _Call) -> Work:
    grad, x = call.tensor(0), call.tensor(1)
    return call.plain("normalization", grad.n_bytes + x.n_bytes, x.n_bytes)


def _softmax(call: _Call) -> Work:
    x = call.tensor(0)
    return call.plain("softmax", x.n_bytes, x.n_bytes)


def _softmax_backward(call: _Call) -> Work:
    grad, out = call.tensor(0), call.tensor(1)
    return call.plain("softmax", grad.n_bytes + out.n_bytes, grad.n_bytes)


def _reduction(call: _Call) -> Work:
    if call.lists:
        return call.plain("reduction", sum(t.n_bytes for t in call.lists[0]), 0, _of_list(call))
    return call.plain("reduction", call.tensor(0).n_bytes, 0)


def _loss(call: _Call) -> Work:
    """What is not reduced is written too; the shapes do not tell, so it is left out."""
    return call.plain("reduction", sum(t.n_bytes for t in call.tensors), 0)


def _of_list(call: _Call) -> str:
    return call.lists[0][0].dtype


def _scan(call: _Call) -> Work:
    x = call.tensor(0)
    return call.plain("reduction", x.n_bytes, x.n_bytes)


def _nll(call: _Call) -> Work:
    x, target = call.tensor(0), call.tensor(1)
    return call.plain("reduction", target.n * _SIZES[x.dtype] + target.n_bytes, 0)


def _nll_backward(call: _Call) -> Work:
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    return call.plain("reduction", grad.n_bytes + target.n_bytes, x.n_bytes)


# --- embedding, pooling -----------------------------------------------------------------------


def _embedding(call: _Call) -> Work:
    weight, index = call.tensor(0), call.tensor(1)
    rows = index.n * math.prod(weight.shape[1:]) * _SIZES[weight.dtype]
    return call.plain("embedding", rows + index.n_bytes, rows)


def _embedding_backward(call: _Call) -> Work:
    grad, index = call.tensor(0), call.tensor(1)
    n_rows = int(call.values[2])
    whole = n_rows * grad.shape[-1] * _SIZES[grad.dtype]
    return call.plain("embedding", grad.n_bytes + index.n_bytes, whole)


def _index_select(call: _Call) -> Work:
    x, index = call.tensor(0), call.tensor(2)
    at = int(call.values[1])
    chosen = x.n // max(x.shape[at], 1) * index.n * _SIZES[x.dtype]
    return call.plain("embedding", chosen + index.n_bytes, chosen)


def _gather(call: _Call) -> Work:
    x, index = call.tensor(0), call.tensor(2)
    chosen = index.n * _SIZES[x.dtype]
    return call.plain("embedding", chosen + index.n_bytes, chosen)


def _pool(call: _Call) -> Work:
    """The output is left out: what the window is, older traces do not tell."""
    return call.plain("pooling", call.tensor(0).n_bytes, 0)


def _pool_backward(call: _Call) -> Work:
    grad, x = call.tensor(0), call.tensor(1)
    return call.plain("pooling", grad.n_bytes, x.n_bytes)


# --- optimizers -------------------------------------------------------------------------------


def _adam(call: _Call) -> Work:
    parameters, gradients, first, second = call.lists[:4]
    total = [sum(t.n_bytes for t in one) for one in (parameters, gradients, first, second)]
    if len({len(one) for one in (parameters, gradients, first, second)}) != 1:
        raise ValueError("these are not four lists of one length")
    return call.plain("optimizer", sum(total), sum(total) - total[1], parameters[0].dtype)


def _sgd(call: _Call) -> Work:
    parameters, gradients = call.lists[:2]
    state = [one for one in call.lists[2:3] if len(one) == len(parameters)]
    read = sum(t.n_bytes for one in (parameters, gradients, *state) for t in one)
    written = sum(t.n_bytes for one in (parameters, *state) for t in one)
    return call.plain("optimizer", read, written, parameters[0].dtype)


def _unscale(call: _Call) -> Work:
    total = sum(t.n_bytes for t in call.lists[0])
    return call.plain("optimizer", total, total, _of_list(call))


_BY_NAME: dict[str, _Counter] = {
    "copy_": _copy,
    "cat": _cat,
    "native_dropout": _dropout,
    "mm": _product(0),
    "bmm": _product(0),
    "_int_mm": _product(0),
    "_scaled_mm": _product(0),
    "addmm": _product(1),
    "_addmm_activation": _product(1),
    "baddbmm": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "cudnn_convolution_backward": _old_convolution_backward,
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_flash_attention_backward": _attention_backward(11),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(7),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward(11),
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward(14),
    "_flash_attention_forward": _flash,
    **dict.fromkeys(
        (
            "native_layer_norm",
            "native_group_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "cudnn_batch_norm",
            "miopen_batch_norm",
            "_fused_rms_norm",
        ),
        _normalize,
    ),
    **dict.fromkeys(
        (
            "native_layer_norm_backward",
            "native_group_norm_backward",
            "native_batch_norm_backward",
            "cudnn_batch_norm_backward",
            "miopen_batch_norm_backward",
            "_fused_rms_norm_backward",
        ),
        _normalize_backward,
    ),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_masked_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "cumsum": _scan,
    "mse_loss": _loss,
    "smooth_l1_loss": _loss,
    "huber_loss": _loss,
    "nll_loss_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index_select": _index_select,
    "gather": _gather,
    "max_pool2d_with_indices": _pool,
    "avg_pool2d": _pool,
    "_adaptive_avg_pool2d": _pool,
    "max_pool2d_with_indices_backward": _pool_backward,
    "avg_pool2d_backward": _pool_backward,
    "_adaptive_avg_pool2d_backward": _pool_backward,
    "_fused_adam_": _adam,
    "_fused_adamw_": _adam,
    "_fused_sgd_": _sgd,
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
}
