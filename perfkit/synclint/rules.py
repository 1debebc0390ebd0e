"""Which operators make the host wait, and on the value of which of their arguments.

A rule looks at one call of one operator on CPU tensors and says under which entry of the
catalogue it falls on a GPU, with the tensors that must be on the device for it to be so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Hit(NamedTuple):
    """A call that waits if all of ``needs`` are on the device.

    With ``each`` it waits for each of them that is, one after the other.
    """

    entry: str
    needs: Sequence[Any]
    each: bool = False


Rule = Callable[[Sequence[Any], Mapping[str, Any]], Hit | None]

#: Python-level calls that read a tensor to the host -> entry of the catalogue. Several leave no
#: operator behind on a CPU (``tolist``, ``cpu``, ``numpy``, printing).
API_READS: Mapping[str, str] = {
    "__array__": "numpy",
    "__bool__": "bool",
    "__complex__": "float",
    "__contains__": "contains",
    "__float__": "float",
    "__format__": "print",
    "__index__": "index_number",
    "__int__": "int",
    "__repr__": "print",
    "__str__": "print",
    "is_nonzero": "bool",
    "item": "item",
    "numpy": "numpy",
    "tolist": "tolist",
}

# isin sorts from this many test elements on (TensorCompare.cpp: 10 · n^0.145)
_ISIN_FACTOR, _ISIN_POWER = 10.0, 0.145


def _always(entry: str) -> Rule:
    return lambda args, kwargs: Hit(entry, args[:1])


def _masks(indices: Sequence[Any]) -> list[Any]:
    """The boolean (or, as it once was, uint8) tensors among the indices."""
    return [i for i in indices if i is not None and str(i.dtype) in {"torch.bool", "torch.uint8"}]


def _index(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    masks = _masks(args[1])
    return Hit("index", masks) if masks else None


def _index_put(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    masks = _masks(args[1])
    if not masks:
        return None
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    only_one_mask = len(masks) == 1 == sum(i is not None for i in args[1])
    if only_one_mask and not accumulate and args[2].numel() == 1:
        # a number on the host makes it a masked_fill (canDispatchToMaskedFill)
        return Hit("index_put_value", [*masks, args[2]])
    return Hit("index_put", masks)


def _masked_fill(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    return Hit("masked_fill", args[2:3])


def _repeat_interleave(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    known = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    return None if known is not None else Hit("repeat_interleave", args[:1])


def _histc(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    low = kwargs.get("min", args[2] if len(args) > 2 else 0)
    high = kwargs.get("max", args[3] if len(args) > 3 else 0)
    return Hit("histc", args[:1]) if low == high else None


def _isin(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    elements, tests = args[0], args[1]
    if kwargs.get("assume_unique"):
        return None
    few = tests.numel() < int(_ISIN_FACTOR * elements.numel() ** _ISIN_POWER)
    return None if few else Hit("isin", [elements])


def _normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    return Hit("normal", args[1:2])


def _number_at(position: int) -> Rule:
    return lambda args, kwargs: Hit("number", args[position : position + 1])


def _both_ends(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    return Hit("number", args[:2], each=True)


def _index_fill(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    return Hit("index_fill", args[3:4])


def _segment_reduce(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    lengths = kwargs.get("lengths")
    checked = lengths is not None and not kwargs.get("unsafe", False)
    return Hit("segment_reduce", [lengths]) if checked else None


def _searchsorted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    sorter = kwargs.get("sorter")
    return Hit("sorter", [sorter]) if sorter is not None else None


def _masked_scatter_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hit | None:
    return Hit("masked_scatter", args[1:2])


_RULES: Mapping[str, Rule | None] = {
    "aten::_coalesce": _always("to_sparse"),
    "aten::_ctc_loss": None,  # seen where it is called: only lengths on the device wait
    "aten::_ctc_loss.Tensor": None,
    "aten::_index_put_impl_": _index_put,
    "aten::_linalg_check_errors": _always("linalg"),
    "aten::_linalg_eigh": _always("linalg"),
    "aten::_linalg_eigvals": _always("linalg"),
    "aten::_linalg_svd": _always("linalg"),
    "aten::_local_scalar_dense": _always("number"),
    "aten::_nested_tensor_from_mask": _always("other"),
    "aten::_nested_tensor_from_mask_left_aligned": _always("other"),
    "aten::_to_sparse": _always("to_sparse"),
    "aten::_to_sparse_bsc": _always("to_sparse"),
    "aten::_to_sparse_bsr": _always("to_sparse"),
    "aten::_to_sparse_csc": _always("to_sparse"),
    "aten::_to_sparse_csr": _always("to_sparse"),
    "aten::_unique": _always("unique"),
    "aten::_unique2": _always("unique"),
    "aten::allclose": _always("allclose"),
    "aten::argwhere": _always("nonzero"),
    "aten::bincount": _always("bincount"),
    "aten::equal": _always("equal"),
    "aten::histc": _histc,
    "aten::index.Tensor": _index,
    "aten::index_fill.int_Tensor": _index_fill,
    "aten::index_fill_.int_Tensor": _index_fill,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::isin.Tensor_Tensor": _isin,
    "aten::linalg_eig": _always("linalg"),
    "aten::linalg_lstsq": _always("linalg"),
    "aten::linalg_matrix_exp": _always("matrix_exp"),
    "aten::linalg_pinv.atol_rtol_tensor": _always("linalg"),
    "aten::linspace.Scalar_Tensor": _number_at(1),
    "aten::linspace.Tensor_Scalar": _number_at(0),
    "aten::linspace.Tensor_Tensor": _both_ends,
    "aten::logspace.Scalar_Tensor": _number_at(1),
    "aten::logspace.Tensor_Scalar": _number_at(0),
    "aten::logspace.Tensor_Tensor": _both_ends,
    "aten::masked_fill.Tensor": _masked_fill,
    "aten::masked_fill_.Tensor": _masked_fill,
    "aten::masked_scatter_backward": _masked_scatter_backward,
    "aten::masked_select": _always("masked_select"),
    "aten::nonzero": _always("nonzero"),
    "aten::normal.Tensor_Tensor": _normal,
    "aten::normal.float_Tensor": _normal,
    "aten::one_hot": _always("one_hot"),
    "aten::repeat_interleave.Tensor": _repeat_interleave,
    "aten::searchsorted.Tensor": _searchsorted,
    "aten::segment_reduce": _segment_reduce,
    "aten::to_sparse": _always("to_sparse"),
    "aten::unique_consecutive": _always("unique"),
    "aten::unique_dim": _always("unique"),
    "aten::unique_dim_consecutive": _always("unique"),
}


@functools.cache
def rule_of(func: Any) -> Rule | None:
    """The rule for an operator; torch's own tags speak for those that are not in the table."""
    import torch

    name = func.name()
    if name in _RULES:
        return _RULES[name]
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return _always("other") if tags & set(func.tags) else None
