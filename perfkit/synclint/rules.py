"""Which operators make the host wait, and on the value of which of their arguments.

A rule looks at one call of one operator on CPU tensors and says under which entry of the
catalogue it falls on a GPU, with the tensors that must be on the device for it to be so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# the entry of a call that waits, and what must be on the device for it
_Hit = tuple[str, Sequence[Any]]
Rule = Callable[[Sequence[Any], Mapping[str, Any]], _Hit | None]

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


def _reads(entry: str, position: int = 0) -> Rule:
    """The rule of an operator that waits for the value of the argument at this position."""
    return lambda args, kwargs: (entry, args[position : position + 1])


def _masks(indices: Sequence[Any]) -> list[Any]:
    """The boolean (or, as it once was, uint8) tensors among the indices."""
    return [i for i in indices if i is not None and str(i.dtype) in {"torch.bool", "torch.uint8"}]


def _index(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Hit | None:
    masks = _masks(args[1])
    return ("index", masks) if masks else None


def _index_put(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Hit | None:
    masks = _masks(args[1])
    if not masks:
        return None
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    only_one_mask = len(masks) == 1 == sum(i is not None for i in args[1])
    if only_one_mask and not accumulate and args[2].numel() == 1:
        # a number on the host makes it a masked_fill (canDispatchToMaskedFill)
        return "index_put_value", [*masks, args[2]]
    return "index_put", masks


def _repeat_interleave(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Hit | None:
    known = kwargs.get("output_size", args[1] if len(args) > 1 else None)
    return None if known is not None else ("repeat_interleave", args[:1])


# entry -> the operators that wait for the value of their first argument
_READING = {
    "allclose": "allclose",
    "bincount": "bincount",
    "equal": "equal",
    "linalg": "_linalg_check_errors _linalg_eigh _linalg_eigvals _linalg_svd linalg_eig "
    "linalg_lstsq linalg_pinv.atol_rtol_tensor",
    "masked_select": "masked_select",
    "nonzero": "argwhere nonzero",
    "number": "_local_scalar_dense",
    "one_hot": "one_hot",
    "other": "_nested_tensor_from_mask _nested_tensor_from_mask_left_aligned",
    "to_sparse": "_coalesce _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc "
    "_to_sparse_csr to_sparse",
    "unique": "_unique _unique2 unique_consecutive unique_dim unique_dim_consecutive",
}
_RULES: Mapping[str, Rule | None] = {
    **{f"aten::{op}": _reads(entry) for entry, ops in _READING.items() for op in ops.split()},
    "aten::_ctc_loss": None,  # seen where it is called: only lengths on the device wait
    "aten::_ctc_loss.Tensor": None,
    "aten::_index_put_impl_": _index_put,
    "aten::index.Tensor": _index,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::masked_fill.Tensor": _reads("masked_fill", 2),
    "aten::masked_fill_.Tensor": _reads("masked_fill", 2),
    "aten::masked_scatter_backward": _reads("masked_scatter", 1),
    "aten::normal.Tensor_Tensor": _reads("normal", 1),
    "aten::normal.float_Tensor": _reads("normal", 1),
    "aten::repeat_interleave.Tensor": _repeat_interleave,
}


@functools.cache
def rule_of(func: Any) -> Rule | None:
    """The rule for an operator; torch's own tags speak for those that are not in the table."""
    import torch

    name = func.name()
    if name in _RULES:
        return _RULES[name]
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return _reads("other") if tags & set(func.tags) else None
