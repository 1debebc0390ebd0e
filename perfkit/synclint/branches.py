"""Lines that run only where there is no GPU: what they do says nothing about a GPU."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Mapping

from perfkit.synclint.names import in_full, names_in

# What holds a program's own choice of device: ``args.device``.
_SETTINGS = {"self", "args", "cfg", "conf", "config", "opt", "opts", "options", "hparams", "FLAGS"}


def runs_only_without_gpu(file: str, line: int) -> bool:
    """Whether an ``if`` around this line asks for a GPU, and the line is in its other branch.

    Understood are ``device == "cuda"`` (and ``!=``, ``"cpu"``, ``"cuda:0"``), ``"cuda" in device``,
    ``device.startswith("cuda")`` and ``torch.cuda.is_available()``, with ``not``, ``and`` and
    ``or``. A question about a tensor (``x.is_cuda``, ``x.device``) is not one about the machine: a
    batch is on the host first with a GPU, too. A test that is kept in a variable first is not
    understood; then the answer is False, as it is where there is no Python source.

    Args:
        file: the name under which Python knows the code.
        line: number in it, from 1.
    """
    spans = _spans(file, tuple(linecache.getlines(file)))
    return any(first <= line <= last for first, last in spans)


@functools.lru_cache(maxsize=32)
def _spans(file: str, lines: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """First and last lines of the branches that no GPU takes."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = names_in(tree, file)
    spans = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.If):
            continue
        then, otherwise = _told(node.test, names)
        for told, branch in ((then, node.body), (otherwise, node.orelse)):
            if told is False and branch:
                spans.append((branch[0].lineno, branch[-1].end_lineno or branch[-1].lineno))
    return tuple(spans)


def _told(test: ast.expr, names: Mapping[str, str]) -> tuple[bool | None, bool | None]:
    """What a test tells where it is true, and where it is false: a GPU, none, or nothing (None)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        then, otherwise = _told(test.operand, names)
        return otherwise, then
    if isinstance(test, ast.BoolOp):
        parts = [_told(part, names) for part in test.values]
        if isinstance(test.op, ast.And):  # true: each part is; false: nobody knows which part
            return _first(then for then, _ in parts), None
        return None, _first(otherwise for _, otherwise in parts)
    if (gpu := _asks(test, names)) is None:
        return None, None
    return gpu, not gpu


def _first(told: Iterable[bool | None]) -> bool | None:
    return next((one for one in told if one is not None), None)


def _asks(test: ast.expr, names: Mapping[str, str]) -> bool | None:
    """True where the test is true on a GPU only, False where it is true without one only."""
    if isinstance(test, ast.Call):
        asked = test.func
        if in_full(ast.unparse(asked), names) == "torch.cuda.is_available":
            return True
        if isinstance(asked, ast.Attribute) and asked.attr == "startswith" and len(test.args) == 1:
            return None if _is_a_tensors(asked.value) else _named(test.args[0], names)
        return None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, right, op = test.left, test.comparators[0], test.ops[0]
    if _is_a_tensors(left) or _is_a_tensors(right):
        return None
    if isinstance(op, ast.In | ast.NotIn):
        gpu = _named(left, names)
        return gpu if gpu is None or isinstance(op, ast.In) else not gpu
    if isinstance(op, ast.Eq | ast.NotEq):
        gpu = _named(right, names)
        gpu = _named(left, names) if gpu is None else gpu
        return gpu if gpu is None or isinstance(op, ast.Eq) else not gpu
    return None


def _is_a_tensors(side: ast.expr) -> bool:
    """Whether a device is read off what may be a tensor: ``x.device``, ``x.device.type``."""
    names = ast.unparse(side).split(".")
    return "device" in names[1:] and names[0] not in _SETTINGS


def _named(side: ast.expr, names: Mapping[str, str]) -> bool | None:
    """True for ``"cuda"`` and ``"cuda:1"``, False for ``"cpu"``; also as ``torch.device(…)``."""
    if (
        isinstance(side, ast.Call)
        and side.args
        and in_full(ast.unparse(side.func), names) == "torch.device"
    ):
        side = side.args[0]
    if not (isinstance(side, ast.Constant) and isinstance(side.value, str)):
        return None
    kind = side.value.partition(":")[0]
    return {"cuda": True, "cpu": False}.get(kind)
