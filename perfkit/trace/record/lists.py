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
# Both clocks are one: the export counts from another origin, in ns written as µs.
_SAME_NS = 2_000


def with_lists(trace: Trace, profile: Any) -> Trace:
    """The trace with the shapes of long lists, and ``TensorList[float32]`` as their type.

    Args:
        trace: what ``profile`` exported.
        profile: a ``torch.profiler.profile`` that has ended; nothing is done without long lists.
    """
    # All calls of an operator, since they are told apart by their order.
    names = {trace.names[trace.name_id[row]] for row in _calls(trace) if _is_cut_short(trace, row)}
    if not names:
        return trace
    found = _paired(trace, profile, names)
    if not found:
        return trace
    dims, dims_id = _Texts(trace.input_dims), trace.dims_id.copy()
    types, types_id = _Texts(trace.input_types), trace.types_id.copy()
    for row, lists in found:
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
        dims_id[row] = dims.add(msgspec.json.encode(shapes).decode())
        types_id[row] = types.add(",".join(kinds))
    return replace(
        trace, input_dims=dims.all, dims_id=dims_id, input_types=types.all, types_id=types_id
    )


def _paired(
    trace: Trace, profile: Any, names: set[str]
) -> list[tuple[int, list[list[tuple[tuple[int, ...], str]] | None]]]:
    """Rows of these operators, and the lists that each was given.

    An operator whose calls are not those of the trace is left out; so are all, where the clocks
    of most calls do not agree: it is another recording's profile then.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(trace.named(lambda name: name in names)).tolist():
        rows_of[trace.names[trace.name_id[row]]].append(row)
    calls_of = defaultdict(list)
    for call in torch_compat.recorded_lists(profile, {n: len(r) for n, r in rows_of.items()}):
        calls_of[call[0]].append(call)
    pairs = []
    for name, rows in rows_of.items():
        if len(calls_of[name]) == len(rows):
            rows.sort(key=lambda row: int(trace.start_ns[row]))
            calls_of[name].sort(key=lambda call: call[1])
            pairs.append((rows, calls_of[name]))
    if not pairs:
        return []
    apart_ns = [
        np.array([call[1] for call in calls], dtype=np.int64) - trace.start_ns[rows]
        for rows, calls in pairs
    ]
    together = np.concatenate(apart_ns)
    usual_ns = np.sort(together)[len(together) // 2]
    if 2 * int((np.abs(together - usual_ns) <= _SAME_NS).sum()) <= len(together):
        return []
    return [
        (row, call[2])
        for (rows, calls), apart in zip(pairs, apart_ns, strict=True)
        if int(np.abs(apart - usual_ns).max()) <= _SAME_NS
        for row, call in zip(rows, calls, strict=True)
    ]


def _calls(trace: Trace) -> list[int]:
    """Rows of operators that were given lists."""
    with_list = [at for at, text in enumerate(trace.input_types) if _LIST in text]
    found: list[int] = np.flatnonzero(
        np.isin(trace.types_id, with_list) & (trace.dims_id >= 0)
    ).tolist()
    return found


def _is_cut_short(trace: Trace, row: int) -> bool:
    kinds = trace.input_types[trace.types_id[row]].split(",")
    try:
        shapes = msgspec.json.decode(trace.input_dims[trace.dims_id[row]])
    except msgspec.DecodeError:
        return False
    if not isinstance(shapes, list) or len(shapes) != len(kinds):
        return False
    return any(kind == _LIST and not shape for kind, shape in zip(kinds, shapes, strict=True))


class _Texts:
    """A table of texts that grows."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = list(texts)
        self._ids = {text: at for at, text in enumerate(texts)}

    def add(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = len(self._texts)
            self._texts.append(text)
        return self._ids[text]

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._texts)
