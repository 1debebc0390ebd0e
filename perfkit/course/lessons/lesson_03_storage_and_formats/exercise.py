"""The exercise of lesson 03: convert a table to tensors once, not row by row.

It counts calls instead of reading a clock: the answer runs on a short and a long table, and the
number of function calls must not grow with the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.lessons.lesson_03_storage_and_formats.tables import (
    NUMBERS,
    SHOPS,
    make_table,
    missing,
)

if TYPE_CHECKING:
    from pandas import DataFrame

Answer = Callable[["DataFrame"], Any]

_FEW, _MANY = 60, 660
# Taking rows one by one costs at least one call each. For a table ten times as long, pandas may
# make a few more calls (another path for long arrays), but not one per ten rows.
_CALLS_PER_ROW = 0.1

_PARTS = ("numbers", "shops", "labels")


def count_calls(function: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a function, and the number of Python and built-in function calls it made.

    Calls in other threads and from C to C are not counted.
    """
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return result, calls


def _ran(answer: Answer, rows: int) -> tuple[Any, int, DataFrame]:
    absent = missing("pandas")
    if absent:
        raise NotYet(absent)
    frame = make_table(rows, gaps=True, seed=rows)
    given = frame.copy(deep=True)
    result, calls = count_calls(lambda: answer(frame))
    if result is None:
        raise NotYet("your function returns nothing yet: return (numbers, shops, labels)")
    return result, calls, given


def _show(answer: Answer) -> Message:
    _ran(answer, _FEW)  # what pandas imports and caches at its first call is not counted
    result, few_calls, _ = _ran(answer, _FEW)
    _, many_calls, _ = _ran(answer, _MANY)
    parts = result if isinstance(result, tuple | list) else (result,)
    items = []
    for name, part in zip((*_PARTS, *(["and"] * len(parts))), parts, strict=False):
        shape = tuple(getattr(part, "shape", ()))
        kind = getattr(part, "dtype", type(part).__name__)
        items.append(f"{name}: shape {shape} of {kind}, a {type(part).__name__}")
    items.append(
        f"{fmt_count(few_calls)} function calls for {_FEW} rows, "
        f"{fmt_count(many_calls)} for {_MANY}"
    )
    return Message(f"For a table of {_FEW} rows you returned", items=tuple(items))


def _check(answer: Answer) -> list[str]:
    first, _, frame = _ran(answer, _FEW)
    _judge(first, frame)
    # Once more: what pandas imports and caches at its first call is not counted.
    _, few_calls, _ = _ran(answer, _FEW)
    result, many_calls, given = _ran(answer, _MANY)
    _judge(result, given)
    more = (many_calls - few_calls) / (_MANY - _FEW)
    if more > _CALLS_PER_ROW:
        raise NotYet(
            f"{_FEW} rows took {fmt_count(few_calls)} function calls, {_MANY} rows "
            f"{fmt_count(many_calls)}: something is called for each row. Take whole columns"
        )
    kept = sum(part.nbytes for part in result)
    return [
        f"numbers {tuple(result[0].shape)} float32, shops and labels {tuple(result[1].shape)} "
        "int64; gaps are 0",
        "the number of function calls does not grow with the rows",
        f"{fmt_bytes(kept)} for {_MANY} rows; a row is now a view of them",
    ]


def _judge(result: Any, given: DataFrame) -> None:
    import torch

    if not isinstance(result, tuple | list) or len(result) != len(_PARTS):
        raise NotYet("return three tensors: (numbers, shops, labels)")
    rows = len(given)
    shapes = ((rows, len(NUMBERS)), (rows,), (rows,))
    kinds = (torch.float32, torch.int64, torch.int64)
    for name, part, shape, kind in zip(_PARTS, result, shapes, kinds, strict=True):
        if not isinstance(part, torch.Tensor):
            raise NotYet(f"{name} must be a torch tensor, got {type(part).__name__}")
        if tuple(part.shape) != shape:
            raise NotYet(
                f"{name} must have the shape {shape} for {rows} rows, not {tuple(part.shape)}"
            )
        if part.dtype != kind:
            raise NotYet(f"{name} must be {kind}, not {part.dtype}")
    numbers, shops, labels = result
    if bool(torch.isnan(numbers).any()):
        raise NotYet("numbers still has gaps (NaN): let a gap be 0")
    wanted = torch.tensor(given[NUMBERS].fillna(0).to_numpy())
    if not torch.equal(numbers, wanted):
        raise NotYet(
            f"numbers is not what {NUMBERS[0]} … {NUMBERS[-1]} hold, in that order, a gap being 0"
        )
    order = sorted(SHOPS)
    codes = torch.tensor([order.index(name) for name in given["shop"]])
    if not torch.equal(shops, codes):
        numbered = ", ".join(f"{name} {i}" for i, name in enumerate(order))
        raise NotYet(f"shops must number the names in alphabetical order: {numbered}")
    if not torch.equal(labels, torch.tensor(given["label"].to_numpy())):
        raise NotYet("labels is not what the column label holds")


table_once = Exercise(
    "turn a table into tensors, once",
    spec=(
        "numbers: the columns x0 … x7 as float32, shape (rows, 8); a gap (NaN) becomes 0",
        "shops: each shop's number in alphabetical order, int64, shape (rows,)",
        "labels: the column label, int64, shape (rows,)",
        "no call for each row",
    ),
    hints=(
        "Three expressions, each over whole columns: choose the columns, mend them, let NumPy "
        "have them, make a tensor of that. No loop.",
        "frame[[…]].fillna(0).to_numpy() is one float32 array. For the names: a column "
        '.astype("category") has .cat.codes, numbered in alphabetical order.',
        'numbers = torch.tensor(frame[NUMBERS].fillna(0).to_numpy()); codes = frame["shop"]'
        '.astype("category").cat.codes; torch.tensor(codes.to_numpy("int64")); the label likewise.',
    ),
    show=_show,
    check=_check,
)
