"""Which operator is of which kind, by its name."""

from __future__ import annotations


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

#: torch's tag `pointwise`, for operators that training uses, and names of older versions
POINTWISE = _names(
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
#: Of these, which read one tensor and which up to three; the others read up to two. A tensor
#: behind those is where the result goes (``out=``).
UNARY = _names(
    """
    abs acos asin atan bitwise_not ceil celu cos cosh elu erf erfc erfinv exp exp2 expm1 floor
    gelu hardsigmoid hardswish hardtanh isfinite isinf isnan isneginf isposinf leaky_relu log
    log10 log1p log2 logical_not mish nan_to_num neg reciprocal relu relu6 round rsqrt sgn
    sigmoid sign silu sin sinh softplus sqrt square tan tanh threshold tril triu trunc
    """
)
TERNARY = _names(
    """
    addcdiv addcmul clamp clip huber_loss_backward lerp log_sigmoid_backward masked_fill
    mse_loss_backward smooth_l1_loss_backward where
    """
)
#: Elementwise, with a bool as result.
COMPARES = _names(
    """
    eq ge gt isfinite isinf isnan isneginf isposinf le logical_and logical_not logical_or
    logical_xor lt ne
    """
)
#: They read their input; what they write is small.
REDUCTIONS = _names(
    """
    all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min norm prod std
    std_mean sum var var_mean count_nonzero _foreach_norm
    """
)
#: They write and read nothing.
WRITES = _names(
    """
    fill fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_
    """
)
