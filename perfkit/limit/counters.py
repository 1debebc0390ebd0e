"""What each kind of operator must do at least, from the shapes of one call.

The rules are in :mod:`perfkit.limit.work`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from perfkit.limit.arguments import SIZES, Tensor
from perfkit.limit.call import Call, Work
from perfkit.limit.flops import counted
from perfkit.limit.operator_kinds import COMPARES, POINTWISE, REDUCTIONS, TERNARY, UNARY, WRITES

#: Counts a call; raises where its shapes are not those of this operator.
Counter = Callable[[Call], Work]


def counter(base: str) -> Counter | None:
    """What counts the operator of this name; None if nothing is known of it."""
    found = _BY_NAME.get(base)
    if found is not None:
        return found
    stem = base.rstrip("_")
    if stem in POINTWISE:
        return _pointwise
    if base in WRITES:
        return _fill
    if stem in REDUCTIONS:
        return _reduction
    if base.startswith("_foreach_"):
        each = stem.removeprefix("_foreach_")
        return _foreach if each in POINTWISE or each in ("copy", "zero") else None
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


def _result_size(call: Call, read: Sequence[Tensor]) -> int:
    """Bytes of an element of the result: a tensor without dimensions does not widen others."""
    if call.base.rstrip("_") in COMPARES:
        return 1
    tensors = read[1:] if call.base == "where" else read
    wide = [t for t in tensors if t.shape] or tensors
    floats = [t for t in wide if "float" in t.dtype] or wide
    return max(SIZES[t.dtype] for t in floats)


def _n_read(stem: str) -> int:
    """How many arguments an elementwise operator reads, its scalars among them."""
    if stem == "elu_backward":
        return 6  # (gradient, three scalars, a flag, self or result)
    return 1 if stem in UNARY else 3 if stem in TERNARY else 2


def _pointwise(call: Call) -> Work:
    n = _n_read(call.base.rstrip("_"))
    tensors = [a for a in call.args[:n] if isinstance(a, Tensor)]
    read = sum(t.n_bytes for t in tensors)
    results = [a for a in call.args[n:] if isinstance(a, Tensor)]
    updated = 0
    if call.base.endswith("_"):
        written = updated = call.tensor(0).n_bytes
    elif results:  # out=
        written = results[-1].n_bytes
    else:
        written = _broadcast(tensors) * _result_size(call, tensors)
    return call.plain("elementwise", read, written, updated=updated)


def _foreach(call: Call) -> Work:
    lists = call.lists
    only_written = call.base in ("_foreach_copy_", "_foreach_zero_")
    read = sum(t.n_bytes for one in lists[only_written:] for t in one)
    read += sum(t.n_bytes for t in call.tensors)
    written = sum(t.n_bytes for t in lists[0])
    updated = written if call.base.endswith("_") and not only_written else 0
    return call.plain("elementwise", read, written, lists[0][0].dtype, updated=updated)


def _fill(call: Call) -> Work:
    return call.plain("fill", 0, call.tensor(0).n_bytes)


def _copy(call: Call) -> Work:
    target, source = call.tensor(0), call.tensor(1)
    return call.plain("copy", source.n_bytes, target.n_bytes)


def _cat(call: Call) -> Work:
    total = sum(t.n_bytes for t in call.lists[0])
    return call.plain("copy", total, total, call.lists[0][0].dtype)


def _dropout(call: Call) -> Work:
    x = call.tensor(0)
    return call.plain("elementwise", x.n_bytes, x.n_bytes + x.n)  # and a mask


# --- matrix products --------------------------------------------------------------------------


def _product(at: int) -> Counter:
    def count(call: Call) -> Work:
        a, b = call.tensor(at), call.tensor(at + 1)
        out = math.prod((*a.shape[:-1], b.shape[-1]))
        added = call.tensor(0).n_bytes if at else 0
        result = call.tensor(0).dtype if at else a.dtype
        size = 2 if result == "float8" else SIZES[result]
        read = a.n_bytes + b.n_bytes + added
        return call.matrix("matrix product", read, out * size, dtype=a.dtype)

    return count


def _convolution(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    bias = call.args[2].n_bytes if isinstance(call.args[2], Tensor) else 0
    read = x.n_bytes + weight.n_bytes + bias
    if call.output is not None and len(call.values) <= 6:
        flops = 2.0 * x.shape[0] * math.prod(call.output[2:]) * weight.n
        written = math.prod(call.output) * SIZES[x.dtype]
        return Work("convolution", flops, flops, read, written, x.dtype)
    found = call.matrix("convolution", read, 0)
    if str(call.values[6]).lower() in ("true", "1"):
        return found  # the output of a transposed one is left out
    # 2 · batch · positions · weight, and batch · positions · channels out
    out = int(found.flops / (2 * weight.n) * weight.shape[0])
    return Work("convolution", found.flops, found.flops, read, out * SIZES[x.dtype], x.dtype)


def _convolution_backward(call: Call) -> Work:
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    flops = counted(
        "aten::convolution_backward", [list(t.shape) for t in (grad, x, weight)], call.values
    )
    if flops is None:
        raise ValueError("the shapes do not say")
    mask = str(call.values[10]).lower() if len(call.values) > 10 else "[true, true, true]"
    for_x, for_weight = (part.strip(" []") in ("true", "1") for part in mask.split(",")[:2])
    read = grad.n_bytes + (weight.n_bytes if for_x else 0) + (x.n_bytes if for_weight else 0)
    written = (x.n_bytes if for_x else 0) + (weight.n_bytes if for_weight else 0)
    return Work("convolution", flops, flops, read, written, x.dtype)


def _old_convolution_backward(call: Call) -> Work:
    """CuDNN's own operator, before torch 1.11: input, gradient, weight."""
    x, grad, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    flops = 4.0 * x.shape[0] * math.prod(grad.shape[2:]) * weight.n
    read = grad.n_bytes + x.n_bytes + weight.n_bytes
    return Work("convolution", flops, flops, read, x.n_bytes + weight.n_bytes, x.dtype)


def _attention(causal_at: int) -> Counter:
    def count(call: Call) -> Work:
        q, k, v = (call.tensor(at) for at in range(3))
        out = math.prod((*q.shape[:-1], v.shape[-1])) * SIZES[q.dtype]
        skipped, seen = _masked(call, causal_at, q.shape[2], k.shape[2])
        read = q.n_bytes + (k.n_bytes + v.n_bytes) * seen // max(k.shape[2], 1)
        return call.matrix("attention", read, out, skipped)

    return count


def _attention_backward(causal_at: int) -> Counter:
    def count(call: Call) -> Work:
        grad, q, k, v = (call.tensor(at) for at in range(4))
        gradients = q.n_bytes + k.n_bytes + v.n_bytes
        skipped, seen = _masked(call, causal_at, q.shape[2], k.shape[2])
        read = q.n_bytes + (k.n_bytes + v.n_bytes) * seen // max(k.shape[2], 1) + 2 * grad.n_bytes
        return call.matrix("attention", read, gradients, skipped)

    return count


def _flash(call: Call) -> Work:
    """(batch, length, heads, width), called by itself."""
    q, k, v = (call.tensor(at) for at in range(3))
    b, length, heads, _ = q.shape  # packed sequences have three: their lengths are not known
    flops = 2.0 * b * heads * length * k.shape[1] * (q.shape[3] + v.shape[3])
    read = q.n_bytes + k.n_bytes + v.n_bytes
    return Work("attention", flops, flops / 2, read, q.n_bytes, q.dtype)


def _masked(call: Call, at: int, q_length: int, k_length: int) -> tuple[float, int]:
    """Share of the scores that a causal mask leaves out, and how many keys it lets anyone see.

    Query i sees the keys up to i, however many there are. Nothing is left out where no mask is
    known.
    """
    told = str(call.values[at]).lower() if len(call.values) > at else ""
    if told not in ("true", "1"):
        return 0.0, k_length
    both = min(q_length, k_length)
    scores = both * (both + 1) / 2 + (q_length - both) * k_length
    return 1 - scores / (q_length * k_length), both


# --- normalization, softmax, reductions -------------------------------------------------------


def _normalize(call: Call) -> Work:
    """With its parameters and statistics: (input, and at most four more)."""
    x = call.tensor(0)
    read = sum(a.n_bytes for a in call.args[:5] if isinstance(a, Tensor))
    return call.plain("normalization", read, x.n_bytes)


def _normalize_backward(weight_at: int | None = None, mask_at: int | None = None) -> Counter:
    """(gradient, input, …): a weight may be as large as a sample, the statistics are left out."""

    def count(call: Call) -> Work:
        grad, x = call.tensor(0), call.tensor(1)
        weight = call.args[weight_at] if weight_at is not None else None
        size = weight.n_bytes if isinstance(weight, Tensor) else 0
        asked = _flags(call, mask_at)
        written = x.n_bytes * asked[0] + size * sum(asked[1:])
        return call.plain("normalization", grad.n_bytes + x.n_bytes + size, written)

    return count


def _flags(call: Call, at: int | None) -> list[bool]:
    """Which gradients were asked for; that of the input alone where the trace does not tell."""
    told = str(call.values[at]).lower() if at is not None and len(call.values) > at else ""
    found = [part.strip() in ("true", "1") for part in told.strip("[]() ").split(",")]
    return found if told.strip("[]() ") else [True]


def _softmax(call: Call) -> Work:
    x = call.tensor(0)
    return call.plain("softmax", x.n_bytes, x.n_bytes)


def _softmax_backward(call: Call) -> Work:
    grad, out = call.tensor(0), call.tensor(1)
    return call.plain("softmax", grad.n_bytes + out.n_bytes, grad.n_bytes)


def _reduction(call: Call) -> Work:
    if call.lists:
        return call.plain("reduction", sum(t.n_bytes for t in call.lists[0]), 0, _of_list(call))
    return call.plain("reduction", call.tensor(0).n_bytes, 0)


def _extreme(call: Call) -> Work:
    """Of one tensor, or of two element by element."""
    second = call.args[1] if len(call.args) > 1 else None
    if isinstance(second, Tensor) and second.shape == call.tensor(0).shape:
        return _pointwise(call)
    return _reduction(call)


def _loss(call: Call) -> Work:
    """What is not reduced is written too; the shapes do not tell, so it is left out."""
    return call.plain("reduction", sum(t.n_bytes for t in call.tensors), 0)


def _of_list(call: Call) -> str:
    return call.lists[0][0].dtype


def _scan(call: Call) -> Work:
    x = call.tensor(0)
    return call.plain("reduction", x.n_bytes, x.n_bytes)


def _nll(call: Call) -> Work:
    x, target = call.tensor(0), call.tensor(1)
    return call.plain("reduction", target.n * SIZES[x.dtype] + target.n_bytes, 0)


def _nll_backward(call: Call) -> Work:
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    return call.plain("reduction", grad.n_bytes + target.n_bytes, x.n_bytes)


# --- embedding, pooling -----------------------------------------------------------------------


def _embedding(call: Call) -> Work:
    weight, index = call.tensor(0), call.tensor(1)
    return _looked_up(call, index.n * math.prod(weight.shape[1:]), weight, index)


def _embedding_backward(call: Call) -> Work:
    grad, index = call.tensor(0), call.tensor(1)
    n_rows = int(call.values[2])
    whole = n_rows * grad.shape[-1] * SIZES[grad.dtype]
    return call.plain("embedding", grad.n_bytes + index.n_bytes, whole)


def _index_select(call: Call) -> Work:
    x, index = call.tensor(0), call.tensor(2)
    at = int(call.values[1])
    return _looked_up(call, x.n // max(x.shape[at], 1) * index.n, x, index)


def _gather(call: Call) -> Work:
    x, index = call.tensor(0), call.tensor(2)
    return _looked_up(call, index.n, x, index)


def _looked_up(call: Call, n: int, source: Tensor, index: Tensor) -> Work:
    """``n`` elements that an index chooses: of a small table it repeats some."""
    chosen = n * SIZES[source.dtype]
    return call.plain("embedding", min(chosen, source.n_bytes) + index.n_bytes, chosen)


def _pool(call: Call) -> Work:
    """The output is left out: what the window is, older traces do not tell."""
    return call.plain("pooling", call.tensor(0).n_bytes, 0)


def _pool_backward(call: Call) -> Work:
    grad, x = call.tensor(0), call.tensor(1)
    return call.plain("pooling", grad.n_bytes, x.n_bytes)


# --- resampling, padding ----------------------------------------------------------------------


def _numbers(call: Call, at: int) -> list[float]:
    told = str(call.values[at]).strip("[]() ")
    return [float(part) for part in told.split(",")] if told else []


def _resized(call: Call, x: Tensor) -> int:
    """Elements of the result: (input, size, …), or (input, no size, factors).

    Whoever interpolates between points is told before the factors whether corners are aligned.
    """
    spatial = x.shape[2:]
    size = _numbers(call, 1)
    if not size:
        at = 3 if str(call.values[2]) in {"True", "False"} else 2
        size = [math.floor(n * by) for n, by in zip(spatial, _numbers(call, at), strict=True)]
    if len(size) != len(spatial) or min(size) < 0:
        raise ValueError("not a size of this input")
    return math.prod(x.shape[:2]) * math.prod(map(int, size))


def _resample(call: Call) -> Work:
    """Whoever makes fewer elements of many need not read all."""
    x = call.tensor(0)
    n_out = _resized(call, x)
    size = SIZES[x.dtype]
    return call.plain("resampling", min(x.n, n_out) * size, n_out * size)


def _resample_backward(call: Call) -> Work:
    """(gradient, size of the result, size of the input, …)"""
    grad = call.tensor(0)
    whole = math.prod(map(int, _numbers(call, 2))) * SIZES[grad.dtype]
    return call.plain("resampling", grad.n_bytes, whole)


def _pad(call: Call) -> Work:
    """(input, how much before and after each dimension, the last one first)"""
    x = call.tensor(0)
    by = [int(n) for n in _numbers(call, 1)]
    shape = list(x.shape)
    for at in range(len(by) // 2):
        shape[-1 - at] += by[2 * at] + by[2 * at + 1]
    if min(shape) < 0:
        raise ValueError("not a padding of this input")
    n_out = math.prod(shape)
    size = SIZES[x.dtype]
    return call.plain("copy", min(x.n, n_out) * size, n_out * size)


def _pad_backward(call: Call) -> Work:
    grad, x = call.tensor(0), call.tensor(1)
    return call.plain("copy", grad.n_bytes, x.n_bytes)


# --- optimizers -------------------------------------------------------------------------------


def _adam(call: Call) -> Work:
    parameters, gradients, first, second = call.lists[:4]
    total = [sum(t.n_bytes for t in one) for one in (parameters, gradients, first, second)]
    if len({len(one) for one in (parameters, gradients, first, second)}) != 1:
        raise ValueError("these are not four lists of one length")
    written = sum(total) - total[1]
    dtype = parameters[0].dtype
    return call.plain("optimizer", sum(total), written, dtype, updated=written)


def _sgd(call: Call) -> Work:
    parameters, gradients = call.lists[:2]
    state = [one for one in call.lists[2:3] if len(one) == len(parameters)]
    read = sum(t.n_bytes for one in (parameters, gradients, *state) for t in one)
    written = sum(t.n_bytes for one in (parameters, *state) for t in one)
    return call.plain("optimizer", read, written, parameters[0].dtype, updated=written)


def _unscale(call: Call) -> Work:
    total = sum(t.n_bytes for t in call.lists[0])
    return call.plain("optimizer", total, total, _of_list(call), updated=total)


_RESAMPLING = (
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)
_PADS = tuple(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))

_BY_NAME: dict[str, Counter] = {
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
    "native_layer_norm_backward": _normalize_backward(5, 7),
    "_fused_rms_norm_backward": _normalize_backward(4, 5),
    "native_group_norm_backward": _normalize_backward(mask_at=9),
    "native_batch_norm_backward": _normalize_backward(mask_at=9),
    "cudnn_batch_norm_backward": _normalize_backward(),
    "miopen_batch_norm_backward": _normalize_backward(),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_masked_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "cumsum": _scan,
    "max": _extreme,
    "min": _extreme,
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
    **dict.fromkeys(_RESAMPLING, _resample),
    **dict.fromkeys((f"{name}_backward" for name in _RESAMPLING), _resample_backward),
    **dict.fromkeys(_PADS, _pad),
    **dict.fromkeys((f"{name}_backward" for name in _PADS), _pad_backward),
    "_fused_adam_": _adam,
    "_fused_adamw_": _adam,
    "_fused_sgd_": _sgd,
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
}
