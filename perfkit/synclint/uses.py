"""What the user's code does with a value that it reads: whether that can stay on the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from perfkit.synclint.names import in_full

#: Entries that read a tensor to the host.
READS = frozenset({"cpu", "float", "int", "item", "numpy", "tolist"})
_NUMBERS = frozenset({"float", "int", "item"})
# Calls that take a tensor as gladly as a number or an array.
_TAKES_TENSORS = frozenset({"add", "append", "appendleft", "extend", "insert", "put", "update"})
_OWN_ARITHMETIC = frozenset({"abs", "dict", "isinstance", "len", "list", "sum", "tuple", "type"})
# What is known of a tensor without its values.
_OF_SHAPES = frozenset({"isinstance", "len", "type"})
# What takes a number that was kept in a name, and no tensor. Most other functions get on with one.
_TAKES_NUMBERS = re.compile(r"^(math|numpy|random|statistics)\.|^range$|(^|\.)step$")
#: Calls that show a value or write it down.
SAYS = re.compile(
    r"^(print|display|format|log\w*|info|debug|warning|write|add_scalars?|set_postfix\w*|"
    r"set_description\w*)$"
)
# Calls that tell somebody, and change nothing that the next step builds on.
_REMARKS = re.compile(
    rf"{SAYS.pattern}|^(warn\w*|error|exception|critical|fail|exit|_exit|breakpoint|set_trace)$"
)


class Use(NamedTuple):
    """What becomes of a value.

    Attributes:
        kind: ``"index"``: it chooses an element or a key; ``"asked"``: its answer decides what runs
            next; ``"taken"``: a call gets it that cannot do with a tensor on the device;
            ``"shown"``: it becomes text; ``"returned"``: whoever calls the function gets it;
            ``""``: none of these.
        by: the call that takes it.
    """

    kind: Literal["", "index", "asked", "taken", "shown", "returned"]
    by: str = ""


def use_of(entry: str, statement: ast.stmt, node: ast.AST, names: Mapping[str, str]) -> Use:
    """What the statement does with the value that ``node``, a part of it, reads.

    ``names`` is what the code calls torch and its modules (see perfkit.synclint.names).
    """
    if entry in _NUMBERS and _is_index(statement, node):
        return Use("index")
    if entry not in READS:
        return Use("returned") if _is_returned(statement, node) else Use("")
    taker = _taker(statement, node, names)
    if taker:
        return Use("shown") if taker == "format" else Use("taken", taker)
    if _is_asked(statement, node) and decides(statement, node):
        return Use("asked")
    return Use("returned") if _is_returned(statement, node) else Use("")


def later_uses(
    entry: str, name: str, later: Sequence[ast.stmt], names: Mapping[str, str]
) -> Iterator[tuple[ast.stmt, Use]]:
    """The same of what is kept in a name: ``actions = q.cpu().numpy()``, ``env.step(actions)``."""
    for statement in later:
        for node in own(statement):
            if not (isinstance(node, ast.Name) and node.id == name):
                continue
            use = use_of(entry, statement, node, names)
            if use.kind == "taken" and entry in _NUMBERS:
                if SAYS.match(use.by.rpartition(".")[2]):
                    use = Use("shown")
                elif not _TAKES_NUMBERS.search(in_full(use.by, names)):
                    continue
            yield statement, use


def decides(statement: ast.stmt, node: ast.AST) -> bool:
    """Whether the answer says what runs next, other than an error or a warning."""
    up_from = around(statement, node)
    if any(isinstance(up, ast.BoolOp | ast.IfExp | ast.comprehension) for up in up_from):
        return True
    if any(isinstance(up, ast.UnaryOp) and isinstance(up.op, ast.Not) for up in up_from):
        # `not x.any()` is no remark on a bad value; `not x.all()` is
        return isinstance(node, ast.Call) and last_name(node.func) != "all"
    if isinstance(statement, ast.While):
        return True
    if not isinstance(statement, ast.If):
        return False
    return not all(
        isinstance(one, ast.Raise)
        or (
            isinstance(one, ast.Expr)
            and isinstance(one.value, ast.Call)
            and _REMARKS.match(last_name(one.value.func))
        )
        for one in (*statement.body, *statement.orelse)
    )


def _is_index(statement: ast.stmt, node: ast.AST) -> bool:
    """Whether the number that is read here chooses an element or a key: ``bins[int(x)]``."""
    for up in around(statement, node):
        if isinstance(up, ast.Subscript):
            return any(n is node for n in ast.walk(up.slice))
    return False


def _is_asked(statement: ast.stmt, node: ast.AST) -> bool:
    """Whether Python asks if it, or what is made of it, is true."""
    below = node
    for up in around(statement, node):
        if isinstance(up, ast.Call) and last_name(up.func) in _OF_SHAPES:
            return False
        if isinstance(up, ast.BoolOp):
            return True
        if isinstance(up, ast.IfExp) and below is up.test:
            return True
        if isinstance(up, ast.comprehension) and below in up.ifs:
            return True
        below = up
    return below is statement and isinstance(statement, ast.If | ast.While)


def _is_returned(statement: ast.stmt, node: ast.AST) -> bool:
    if isinstance(statement, ast.Return):
        return True
    return any(
        isinstance(up, ast.Lambda | ast.Yield | ast.YieldFrom) for up in around(statement, node)
    )


def _taker(statement: ast.stmt, node: ast.AST, names: Mapping[str, str]) -> str:
    """The call that gets what was read and cannot do with a tensor on the device; empty if none.

    ``env.step(action.cpu().numpy())``: without the copy it raises, or waits itself.
    """
    for up in around(statement, node):
        if isinstance(up, ast.Attribute):
            if not hasattr(torch.Tensor, up.attr):  # .astype(): of arrays alone
                return up.attr
        elif isinstance(up, ast.Call) and node is not up.func:
            whole = ast.unparse(up.func)
            name = last_name(up.func)
            if in_full(whole, names).startswith("torch.") or name in _OWN_ARITHMETIC:
                return ""
            if name == "format":  # "loss {}".format(x)
                return name
            return "" if name in _TAKES_TENSORS else whole
        elif isinstance(up, ast.FormattedValue) or (
            isinstance(up, ast.BinOp)
            and isinstance(up.op, ast.Mod)
            and isinstance(up.left, ast.Constant | ast.JoinedStr)
            and not isinstance(getattr(up.left, "value", ""), int | float)
        ):
            return "format"
        elif isinstance(up, ast.BinOp | ast.UnaryOp | ast.Subscript | ast.keyword | ast.Starred):
            pass  # arithmetic with a tensor makes a tensor
        elif not isinstance(up, ast.Call):
            return ""
        node = up
    return ""


# --- syntax trees ------------------------------------------------------------------------


def own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Its nodes, without those of statements in it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]


def around(statement: ast.stmt, node: ast.AST) -> list[ast.AST]:
    """What it is part of within the statement, innermost first."""
    parents = {child: one for one in own(statement) for child in ast.iter_child_nodes(one)}
    found = []
    while node in parents:
        node = parents[node]
        found.append(node)
    return found


def last_name(function: ast.expr) -> str:
    """``step`` of ``optimizer.step``."""
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""
