"""Lines that run only where there is no GPU: what they do says nothing about a GPU."""

from __future__ import annotations

import ast
import functools
import linecache


def runs_only_without_gpu(file: str, line: int) -> bool:
    """Tell whether an ``if`` around this line asks for a GPU, and it is in the other branch.

    Understood are ``device == "cuda"`` (and ``!=``, ``"cpu"``, ``"cuda:0"``) and
    ``torch.cuda.is_available()``, also after ``not``. A question about a tensor (``x.is_cuda``,
    ``x.device.type``) is not one about the machine: a batch is on the host first with a GPU, too.
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
    spans = []
    for node in ast.walk(tree):
        gpu = _asks(node.test) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and gpu is not None:
            branch = node.orelse if gpu else node.body
            spans += [(one.lineno, one.end_lineno or one.lineno) for one in branch]
    return tuple(spans)


def _asks(test: ast.expr) -> bool | None:
    """True for a test that is true on a GPU only, False for one that is true without one only."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        gpu = _asks(test.operand)
        return gpu if gpu is None else not gpu
    if isinstance(test, ast.Call) and ast.unparse(test.func).endswith("cuda.is_available"):
        return True
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.NotEq)):
        return None
    asked, (value, *_) = test.left, test.comparators
    is_tensors = isinstance(asked, ast.Attribute) and asked.attr == "type"  # x.device.type
    if is_tensors or not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return None
    gpu = {"cuda": True, "cpu": False}.get(value.value.partition(":")[0])
    return gpu if gpu is None or isinstance(test.ops[0], ast.Eq) else not gpu
