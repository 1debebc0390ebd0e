"""A formula of the user's that torch has as one operator, known by what it gives, not by its text.

Each operator of a formula goes through memory once, and its backward pass again. Only functions of
torch and ``math`` are called, on a small tensor: the rest of the program is not run.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# What keeps a division from being one by zero: by its name, or a number up to so large.
_EPS = re.compile(r"(?i)\w*(eps|epsilon)\w*$")
_LARGEST_EPS = 1e-3
# What is taken for it.
_SOME_EPS = 1e-5
# Beyond rounding, in double precision: constants of a formula have some eight digits.
_APART = 1e-6
_LEAST_OPERATORS = 2
# Each of the formulas has one of these; to try a line takes some ms.
_IN_EACH = re.compile(r"\b(erf|r?sqrt|std|softmax|tanh|var)\(|\*\* *-?0?\.5\b")
_MODULES = {"torch": "torch", "math": "math", "F": "torch.nn.functional"}
_FUNCTIONS = frozenset((
    "abs", "add", "div", "double", "erf", "exp", "float", "log", "log_softmax", "mean", "mul",
    "pow", "reciprocal", "rsqrt", "softmax", "sqrt", "square", "std", "sub", "sum", "tanh", "to",
    "var",
))  # fmt: skip
_NODES = (
    ast.BinOp, ast.UnaryOp, ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.keyword, ast.Tuple,
    ast.List, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip


def by_hand(text: str, functional: str = "torch.nn.functional") -> str:
    """The statement with torch's operator in place of a formula; empty where it has none.

    Args:
        functional: by what name the program knows ``torch.nn.functional``.
    """
    found = _by_hand(text.strip()) if _IN_EACH.search(text) else ""
    return found.replace("torch.nn.functional.", f"{functional}.")


@functools.lru_cache(maxsize=256)
def _by_hand(text: str) -> str:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # the head of a block
        return ""
    for node in ast.walk(tree):  # the outermost first
        code = _operator_of(node) if isinstance(node, (ast.BinOp, ast.Call)) else ""
        if code:
            old, new = ast.unparse(node), ast.unparse(tree)
            return new.replace(old, code, 1) if old in new else ""
    return ""


def _operator_of(node: ast.expr) -> str:
    inside = list(ast.walk(node))
    if sum(isinstance(one, (ast.BinOp, ast.Call)) for one in inside) < _LEAST_OPERATORS:
        return ""
    names = {one.id for one in inside if isinstance(one, ast.Name)} - set(_MODULES)
    eps = {ast.unparse(one) for one in inside if _is_eps(one)}
    xs = names - {one.partition(".")[0] for one in eps}
    if len(xs) != 1 or len(eps) > 1 or not all(_is_plain(one) for one in inside):
        return ""
    x, own_eps = xs.pop(), next(iter(eps), "")
    try:
        return _same_as(node, x, own_eps)
    except Exception:  # whatever a formula of somebody does on another tensor
        return ""


def _is_eps(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value <= _LARGEST_EPS
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(_EPS.match(name))


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        of = node.func
        return isinstance(of, ast.Attribute) and of.attr in _FUNCTIONS
    return isinstance(node, _NODES)


def _same_as(node: ast.expr, x: str, eps: str) -> str:
    import torch

    rows = (
        (0.37 * torch.arange(28, dtype=torch.float64, device="cpu")).sin().mul(3).reshape(2, 2, 7)
    )
    of = {"torch": torch, "math": math, "F": torch.nn.functional}
    text = ast.unparse(node).replace(eps, repr(_SOME_EPS)) if eps else ast.unparse(node)
    with torch.no_grad():
        result = eval(text, {**of, x: rows})
        for code, operator in _operators(rows).items():
            expected = operator(rows)
            if result.shape == expected.shape and (result - expected).abs().max() < _APART:
                # one without an own value has what the formula has, to all that can be seen
                return code.format(x=x, eps=f", eps={eps}" * bool(eps))
    return ""


def _operators(rows: Tensor) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Code → what it computes of rows."""
    from torch.nn import functional as of

    n: Any = rows.shape[-1:]
    return {
        'torch.nn.functional.gelu({x}, approximate="tanh")': lambda x: of.gelu(
            x, approximate="tanh"
        ),
        "torch.nn.functional.gelu({x})": of.gelu,
        "torch.nn.functional.log_softmax({x}, dim=-1)": lambda x: of.log_softmax(x, dim=-1),
        "torch.nn.functional.layer_norm({x}, {x}.shape[-1:]{eps})": lambda x: of.layer_norm(
            x, n, eps=_SOME_EPS
        ),
        "torch.nn.functional.rms_norm({x}, {x}.shape[-1:]{eps})": lambda x: of.rms_norm(
            x, n, eps=_SOME_EPS
        ),
    }
