"""Shapes and dtypes of lists of tensors, which a profiler's export leaves out.

It writes no shapes of a list of more than 30 tensors, as an optimizer's are (``foreach``,
``fused``), and no dtypes of any list. In the process that recorded them they are still known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from perfkit.base import torch_compat
from perfkit.trace.read.columns import Trace

_LIST = "TensorList"


def with_lists(trace: Trace, profile: Any) -> Trace:
    """The trace with the shapes of long lists, and ``TensorList[float32]`` as their type.

    ``profile`` has exported it; nothing is done without long lists.
    """
    rows_of = _calls(trace)
    if not rows_of:
        return trace
    calls_of = defaultdict(list)
    for name, start_ns, lists in torch_compat.recorded_lists(
        profile, {name: len(rows) for name, rows in rows_of.items()}
    ):
        calls_of[name].append((start_ns, lists))
    dims, dims_id = _numbered(trace.input_dims), trace.dims_id.copy()
    types, types_id = _numbered(trace.input_types), trace.types_id.copy()
    for name, rows in rows_of.items():
        calls = sorted(calls_of[name], key=lambda call: call[0])
        if len(calls) != len(rows):
            continue
        rows.sort(key=lambda row: int(trace.start_ns[row]))
        for row, (_, lists) in zip(rows, calls, strict=True):
            if dims_id[row] < 0 or types_id[row] < 0:
                continue
            shapes = msgspec.json.decode(trace.input_dims[dims_id[row]])
            kinds = trace.input_types[types_id[row]].split(",")
            for at, tensors in enumerate(lists):
                if not tensors or at >= min(len(shapes), len(kinds)) or kinds[at] != _LIST:
                    continue
                shapes[at] = [list(shape) for shape, _ in tensors]
                dtypes = {dtype for _, dtype in tensors}
                if len(dtypes) == 1:
                    kinds[at] = f"{_LIST}[{dtypes.pop()}]"
            dims_id[row] = dims[msgspec.json.encode(shapes).decode()]
            types_id[row] = types[",".join(kinds)]
    return replace(
        trace, input_dims=tuple(dims), dims_id=dims_id, input_types=tuple(types), types_id=types_id
    )


def _calls(trace: Trace) -> dict[str, list[int]]:
    """All rows of each operator that was given a list whose shapes are missing."""
    with_list = [at for at, text in enumerate(trace.input_types) if _LIST in text]
    given = np.flatnonzero(np.isin(trace.types_id, with_list) & (trace.dims_id >= 0)).tolist()
    names = {trace.names[trace.name_id[row]] for row in given if _is_cut_short(trace, row)}
    rows_of: dict[str, list[int]] = defaultdict(list)
    if names:
        for row in np.flatnonzero(trace.named(names.__contains__)).tolist():
            rows_of[trace.names[trace.name_id[row]]].append(row)
    return rows_of


def _is_cut_short(trace: Trace, row: int) -> bool:
    kinds = trace.input_types[trace.types_id[row]].split(",")
    shapes = msgspec.json.decode(trace.input_dims[trace.dims_id[row]])
    return any(kind == _LIST and not shape for kind, shape in zip(kinds, shapes, strict=False))


def _numbered(texts: tuple[str, ...]) -> defaultdict[str, int]:
    """Text → index; a new one gets the next."""
    found: defaultdict[str, int] = defaultdict(lambda: len(found))
    found.update((text, at) for at, text in enumerate(texts))
    return found
