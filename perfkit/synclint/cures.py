"""The cure of a line in the line's own names: ``loss_g.item()`` becomes ``loss_g.detach()``.

The entries of the catalogue show code with names of their own. Here their cures are patterns: in
``X.item()`` the capital stands for whatever is on the user's line. Some cures rewrite the line,
others are a snippet in which the capitals are replaced. Where the line cannot be parsed, or matches
no pattern, the snippet of the catalogue stays.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from perfkit.base.user_code import is_user_code, package_path
from perfkit.synclint.catalogue import CATALOGUE, COPIES
from perfkit.synclint.facts import Facts, places_of_positions
from perfkit.synclint.names import in_full, name_of_torch, names_in
from perfkit.synclint.sites import Site
from perfkit.synclint.uses import (
    READS,
    SAYS,
    Use,
    around,
    decides,
    last_name,
    later_uses,
    own,
    use_of,
)

# A longer expression in a snippet is harder to read than a name that stands for it.
_LONGEST = 60
_SHORT = 30
_CAPITAL = re.compile(r"\b[A-Z]\b")
# What needs no parentheses before a dot or in a product.
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List)
# What is no single value, or cannot be written in another place.
_NO_VALUE = (ast.Tuple, ast.Slice, ast.Starred, ast.GeneratorExp, ast.NamedExpr)
_INDEX_PUTS = frozenset({"index_put", "index_put_value"})
_REPEATED = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Python asks in these whether a part is true.
_SHORT_CUTS = (ast.BoolOp, ast.Not, ast.IfExp)

# {K} is what the value needs to stay what it is (see perfkit.synclint.facts), if anything.
_STAYS = "X.detach(){K}"
_AFTER = "# keep it on the device, read it once, after the loop"
_WEIGH = (
    "# for a mean of the chosen, keep all and weigh with the mask; in a loss, mark what to leave\n"
    "# out: cross_entropy(..., ignore_index)\n"
)
# A mask of rows chooses whole rows: it needs the other dimensions, too.
_WEIGH_ROWS = (
    f"{_WEIGH}keep = M\n"
    "keep = keep.view(keep.shape + (1,) * (X.dim() - keep.dim()))\n"
    "mean = torch.where(keep, X, 0){K}.sum() / keep.expand_as(X).sum().clamp(min=1)"
)
_WEIGH_EACH = (
    f"{_WEIGH}kept = torch.where(M, X, 0)\n"
    "mean = kept{K}.sum() / M.expand_as(kept).sum().clamp(min=1)"
)
_COUNTS = (
    "places = X.flatten().long()\n"
    "counts = torch.zeros(6, dtype=torch.long, device=X.device).scatter_add_(\n"
    "    0, places, torch.ones_like(places))"
)
_COUNTED = (
    "# whole numbers from 0 to 5 here: a fixed number of classes has a fixed shape\n"
    f"{_COUNTS}\npresent = counts > 0"
)
_BELOW = _COUNTS.replace("zeros(6", "zeros(N")
_WEIGHTED = "counts = W.new_zeros(6).scatter_add_(0, X.long(), W)"
# What reads a tensor that has come to the host.
_ON_THE_HOST = ("numpy", "tolist", "item")
# Methods whose arguments are no tensors.
_SHAPES = frozenset(
    {
        "argmax", "argmin", "astype", "chunk", "expand", "flatten", "max", "mean", "min", "movedim",
        "permute", "repeat", "reshape", "split", "squeeze", "sum", "transpose", "unsqueeze", "view",
    }
)  # fmt: skip
_TEXT = (
    "# the digits of a text must be on the host: make the text only in steps that show it, or\n"
    "# keep the values on the device and read them once, for many steps"
)
_RARE = "# not in every step as it is: leave it, or do it less often still"
_LEAVE = "if it stays that rare, leave it as it is"
# Fewer steps than these do not tell what is rare; what runs once in so many does not cost much.
_ENOUGH_STEPS = 3
_RARE_STEPS = 10
_ONCE = "# it runs once, outside of the loop: leave it as it is"
_LATER = "# a tensor; look at it when the step is over"
_DECIDES = (
    "# its answer decides what runs next, so the host must wait for it: ask less often, or\n"
    "# compute both sides and let torch.where choose"
)
_INDEX = (
    "# as an index or a key it must be a number on the host: use a size that you know, or count\n"
    "# on the device (scatter_add_) and read the counts once, after the loop"
)
_CALLER = (
    "# whoever calls this gets it: where it is needed on the host there (an index, a test, a step\n"
    "# of an environment), the wait stays; where it is only added up, or shown now and then:"
)
_CALLER_DECIDES = (
    "# whoever calls this gets the answer: where it decides what runs next, the wait stays; else\n"
    "# return the tensor, and ask once, after the loop"
)
_FIRST = "# only at its first call in a process: leave it as it is"
_UNUSED = "# nothing uses the value: leave the line out, unless it is there to wait"
_GOES = "# then the line does nothing: leave it out"
_LIKE_THIS = "# no rewrite of this very line is known; with other names, for example:"
_WHERE_MADE = (
    "# it looks at what it is asked about; where the distribution is made, say\n"
    "#     validate_args=False"
)
# What their snippet says holds for the call, whatever its line looks like.
_OF_THE_CALL = frozenset(
    {
        "clip_grad", "ctc", "dropout_seed", "empty_cache", "get_scale", "grad_scaler",
        "load_to_device", "loops_of_graph", "save", "synchronize", "wait_for_stream",
    }
)  # fmt: skip
_MADE_ON_HOST = re.compile(r"^(\w+\.)?(tensor|Tensor|as_tensor|from_numpy|[A-Z]\w+Tensor)\(")
_MADE_HERE = (
    "# made on the host just before: only a copy from pinned memory does not wait for the GPU\n"
    "# (.pin_memory(), where there is one); or copy several values at once"
)
_COMPUTED = (
    "# computed on the host, so no data loader has pinned it: better compute it on the device, or\n"
    "# make it there (device=…). Only a copy from pinned memory (.pin_memory(), where there is a\n"
    "# GPU) does not wait"
)
_SAMPLE = (
    "# leave each sample on the host, and copy the batch, in the loop, from pinned memory:\n"
    "# DataLoader(…, pin_memory=True), then .to(device, non_blocking=True)"
)
# Entries of copies that a data set makes of a sample.
_SENT = frozenset({"copy_to_device", "tensor_to_device"})
# From pageable memory the driver may keep the host waiting whatever non_blocking says.
_PINNED = "# from pinned memory only: a batch of DataLoader(…, pin_memory=True)"
_PINNED_INDEX = "# from pinned memory only; better, make the positions on the device (device=…)"
_PINNED_DATA = (
    "# data of each step: only a copy from pinned memory does not wait (.pin_memory(), where\n"
    "# there is a GPU). What never changes: make it once, before the loop"
)
_COPIED_ONCE = (
    "# better make them on the device (torch.randperm(n, device=…)); else copy them once, for all\n"
    "# that they choose"
)
_NEW = "# a new tensor: what else refers to this one keeps the old values\n"
_POSITIVE = "# of positive numbers, in float32 or more"
_RANGE = "# a range that you know: what lies beyond it is not counted"
_CENTRED = (
    "rows = torch.atleast_2d(X)\n"
    "centred = rows - rows.mean(1, keepdim=True)\n"
    "together = centred @ centred.T\n"
)
_TABLE = "# a table of what is asked for, whole numbers from 0 to 99 in both: a look-up for each"
_FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")


@dataclass(frozen=True)
class _Cure:
    """What helps where an expression, or a statement, looks like ``pattern``.

    Attributes:
        pattern: code; single capitals stand for any expression. A function without a dot matches
            however it is reached: ``one_hot(X)`` is ``F.one_hot(target)`` as well, and ``F`` is
            how the user wrote it. ``C()`` with ``rest`` matches with any arguments.
        line: what takes the expression's place in the user's line.
        note: a comment above that line.
        before: code for before the loop; then ``line`` is for in the loop.
        in_each: whether ``before`` is for each step, right above the line.
        snippet: or, code of its own.
        rest: whether more arguments than the pattern's may follow; ``A`` are all of them.
        literal: capitals that must stand for numbers and lists of numbers. ``J`` stands for any
            index, of several parts too.
        number: capitals that must stand for one number.
        kept: capitals that must stand for what costs nothing to write twice.
    """

    pattern: str
    line: str = ""
    note: str = ""
    before: str = ""
    in_each: bool = False
    snippet: str = ""
    rest: bool = False
    literal: str = ""
    number: str = ""
    kept: str = ""


def _read(*patterns: str, note: str = _AFTER) -> tuple[_Cure, ...]:
    return tuple(_Cure(pattern, line=_STAYS, note=note) for pattern in patterns)


def _snippet(snippet: str, *patterns: str) -> tuple[_Cure, ...]:
    return tuple(_Cure(pattern, snippet=snippet) for pattern in patterns)


def _line(line: str, *patterns: str, note: str = "", rest: bool = False) -> tuple[_Cure, ...]:
    return tuple(_Cure(pattern, line=line, note=note, rest=rest) for pattern in patterns)


_BOTH = "  # both sides, no question asked"
# What a question is asked of, where the answer is for something that is no number.
_FINITE = frozenset({"isfinite", "isinf", "isnan"})
_BOTH_OF_FINITE = "  # of values: a gradient that is not finite makes NaN on either side"
_SKIPS = (
    "# it decides what runs, so it waits in each step that asks. The GPU itself can skip a step\n"
    "# for gradients that are not finite: torch.amp.GradScaler with an optimizer that is made\n"
    "# with fused=True. If to know of it is enough, remember it, and ask once, after the loop:\n"
    "bad = E  # bad |= … in the steps that follow"
)
_EX = "# the _ex form returns the error code as a tensor\nresult, info = "

_BOTH_SIDES = (
    *_snippet(f"T = torch.where(C, V, T){_BOTH}", "if C:\n    T = V"),
    *_snippet(f"T *= torch.where(C, V, 1){_BOTH}", "if C:\n    T *= V"),
    *_snippet(f"T /= torch.where(C, V, 1){_BOTH}", "if C:\n    T /= V"),
    *_snippet(f"T += torch.where(C, V, 0){_BOTH}", "if C:\n    T += V"),
    *_snippet(f"T -= torch.where(C, V, 0){_BOTH}", "if C:\n    T -= V"),
    *_snippet(f"T = torch.where(C, V, W){_BOTH}", "if C:\n    T = V\nelse:\n    T = W"),
)

_CURES: Mapping[str, tuple[_Cure, ...]] = {
    "item": _read("X.item()"),
    "float": _read("float(X)"),
    "int": _line("X.detach().long(){K}", "int(X)", note=_AFTER),
    "largest": _snippet(
        "n = 6  # a size you know, of classes, nodes or graphs: set before the loop\n"
        "# and pass it on: dim_size=n, num_nodes=n or size=n of what looks for it otherwise\n"
        + _COUNTS.replace("zeros(6", "zeros(n"),
        "int(X.max())",
        "X.max().item()",
        "int(torch.max(X))",
    ),
    "bool": (
        *_BOTH_SIDES,
        *_snippet(
            "failed = ~C  # failed |= … in later steps; ask once, after the loop", "assert C"
        ),
        *_snippet(
            "failed = C  # failed |= … in later steps; ask once, after the loop",
            "if C:\n    raise V",
        ),
    ),
    "any": (
        *_BOTH_SIDES,
        *_snippet(
            "# remember it, and ask once, after the loop\n"
            "bad = E  # bad |= … in the steps that follow",
            "X.any()",
            "torch.any(X)",
        ),
        *_snippet(
            "# remember it, and ask once, after the loop\n"
            "good = E  # good &= … in the steps that follow",
            "X.all()",
            "torch.all(X)",
        ),
    ),
    "builtin": (
        *_line("X.max()", "max(X)"),
        *_line("X.min()", "min(X)"),
        *_line("X.sort().values", "sorted(X)"),
    ),
    "contains": (
        *_line("(X == V).any()", "V in X", note="# stays a tensor on the device"),
        *_line("(X != V).all()", "V not in X", note="# stays a tensor on the device"),
    ),
    "tolist": (
        *_snippet(
            "# loop over what is known beforehand, not over what is in the tensor\n"
            "for I in range(6):\n    share = (X == I).float().mean()",
            "for I in X.tolist():\n    ...",
        ),
        *_read("X.tolist()", note="# keep the tensor; one .tolist() for all, after the loop"),
    ),
    "cpu": _read(
        # with what follows: .numpy() of a tensor on the device raises
        *(f"X.{copy}.{then}()" for copy in ("cpu()", "to('cpu')") for then in _ON_THE_HOST),
        "X.cpu()",
        "X.to('cpu')",
        note="# collect on the device; one .cpu() for all, after the loop",
    ),
    "numpy": _read("X.numpy()", note="# compute with torch; convert once, after the loop"),
    "nonzero": (
        *_snippet(
            "# a 0 adds nothing to a sum: keep all of them, and count (X has one dimension)\n"
            "mean = X.sum() / torch.count_nonzero(X).clamp(min=1)",
            "X[X.nonzero()[:, 0]]",
            "X[torch.nonzero(X)[:, 0]]",
        ),
        *_snippet(
            "# the mask itself, not where it is true\nn = torch.count_nonzero(X)",
            "nonzero(X)",
            "X.nonzero()",
            "argwhere(X)",
            "X.argwhere()",
        ),
    ),
    "where": _snippet("y = torch.where(X, 1.0, 0.0)  # with three arguments", "where(X)"),
    "unique": (
        *_snippet(
            _COUNTED,
            "torch.unique(X)",
            "X.unique()",
            "torch.unique(X, return_counts=True)",
            "X.unique(return_counts=True)",
        ),
        *_snippet(
            f"{_COUNTED}\ninverse = (present.cumsum(0) - 1)[X.long()]",
            "torch.unique(X, return_inverse=True)",
            "X.unique(return_inverse=True)",
            "torch.unique(X, return_inverse=True, return_counts=True)",
            "X.unique(return_inverse=True, return_counts=True)",
        ),
    ),
    "masked_select": _snippet(_WEIGH_EACH, "torch.masked_select(X, M)", "X.masked_select(M)"),
    "index": (
        *_line(
            "F(X.flatten(0, -2), Y.masked_fill(~M, -100).flatten())",
            "cross_entropy(X[M], Y[M])",
            "nll_loss(X[M], Y[M])",
            note="# -100 is the default of ignore_index: such a target counts for nothing\n"
            "# (a class number for each of the mask; the classes come last)",
        ),
        *_snippet(
            "hits = ((X == Y) & M).sum()  # where all have one shape", "(X[M] == Y[M]).sum()"
        ),
        *_snippet(
            "share = ((X == Y) & M).sum() / M.sum()  # where all have one shape",
            "(X[M] == Y[M]).float().mean()",
        ),
        *_snippet(_WEIGH_ROWS, "X[M]"),
    ),
    "index_put": (
        *_snippet(f"{_NEW}X = torch.where(M, V, X)", "X[M] = V"),
        *(_snippet(f"{_NEW}X = torch.where(M, X {o} V, X)", f"X[M] {o}= V")[0] for o in "+-*/"),
    ),
    "element": _snippet("X[J] = X.new_full((), V)  # made on the device", "X[J] = V"),
    "index_put_value": _snippet(f"{_NEW}X = torch.where(M, V, X)", "X[M] = V"),
    "masked_fill": _line(
        "torch.where(M, V, X)", "X.masked_fill(M, V)", "torch.masked_fill(X, M, V)"
    ),
    "masked_scatter": _snippet(
        "chosen = M.expand_as(X)\n"
        "places = (chosen.flatten().cumsum(0) - 1).clamp(min=0)  # n-th true: n-th of V\n"
        "y = torch.where(chosen, V.take(places).view_as(X), X)",
        "X.masked_scatter(M, V)",
    ),
    "index_fill": _snippet(
        "rows = I.flatten()\n"
        "y = X.index_copy(0, rows, V.to(X.dtype).expand(len(rows), *X.shape[1:]))",
        "X.index_fill(0, I, V)",
    ),
    "repeat_interleave": _snippet(
        "n = 8  # the sum is often known: set it before the loop\n"
        "y = torch.repeat_interleave(X, R, dim=0, output_size=n)",
        "torch.repeat_interleave(X, R, dim=0)",
        "X.repeat_interleave(R, dim=0)",
    ),
    "one_hot": _line(
        "F(X, num_classes=6)", "one_hot(X)", note="# the number of classes that you know"
    ),
    "slice": _snippet(
        "# keep the size, mask what is beyond\n"
        "keep = torch.arange(X.shape[0], device=X.device) < N\n"
        "y = torch.where(keep.view(-1, *[1] * (X.dim() - 1)), X, 0)",
        "X[:N]",
    ),
    "index_number": _snippet(
        "for I in range(8):  # as many as there can be\n    weight = (I < N) * 1.0",
        "for I in range(N):\n    ...",
    ),
    "number": _snippet(
        "n = 8  # a size that you know: set it before the loop\n"
        "y = torch.arange(n, device=N.device)",
        "torch.arange(N)",
    ),
    "prod": (
        *_line("X.log().sum().exp()", "X.prod()", "torch.prod(X)", note=_POSITIVE),
        *_line(
            "X.log().cumsum(N).exp()",
            "X.cumprod(N)",
            "X.cumprod(dim=N)",
            "torch.cumprod(X, N)",
            "torch.cumprod(X, dim=N)",
            note=_POSITIVE,
        ),
    ),
    "equal": _line("(X == Y).all()", "torch.equal(X, Y)", note=f"{_LATER}; of two of one shape"),
    "allclose": _line("torch.isclose(A).all()", "torch.allclose()", note=_LATER, rest=True),
    "histc": (
        *_line("torch.histc(X, min=-3, max=3)", "torch.histc(X)", note=_RANGE),
        *_line("torch.histc(X, N, min=-3, max=3)", "torch.histc(X, N)", note=_RANGE),
        *_line("torch.histc(X, bins=N, min=-3, max=3)", "torch.histc(X, bins=N)", note=_RANGE),
        *_line("X.histc(min=-3, max=3)", "X.histc()", note=_RANGE),
        *_line("X.histc(N, min=-3, max=3)", "X.histc(N)", note=_RANGE),
        *_line("X.histc(bins=N, min=-3, max=3)", "X.histc(bins=N)", note=_RANGE),
    ),
    "bincount": (
        *_snippet(f"# all below 6 here, from 0 on\n{_COUNTS}", "torch.bincount(X)", "X.bincount()"),
        *_snippet(
            f"# all below N, from 0 on\n{_BELOW}",
            "torch.bincount(X, minlength=N)",
            "X.bincount(minlength=N)",
        ),
        *_snippet(
            f"# all below 6 here, from 0 on\n{_WEIGHTED}",
            "torch.bincount(X, W)",
            "torch.bincount(X, weights=W)",
            "X.bincount(W)",
            "X.bincount(weights=W)",
        ),
        *_snippet(
            f"# all below N, from 0 on\n{_WEIGHTED.replace('6', 'N')}",
            "torch.bincount(X, W, minlength=N)",
            "torch.bincount(X, weights=W, minlength=N)",
            "X.bincount(W, minlength=N)",
            "X.bincount(weights=W, minlength=N)",
        ),
    ),
    "segment_reduce": _line(
        "torch.segment_reduce(A, unsafe=True)", "torch.segment_reduce()", rest=True
    ),
    "sorter": _line(
        "torch.searchsorted(X.sort(-1).values, Y)", "torch.searchsorted(X, Y, sorter=S)"
    ),
    "cov": (
        *_snippet(
            f"{_CENTRED}y = (together / (rows.shape[1] - 1)).squeeze()", "torch.cov(X)", "X.cov()"
        ),
        *_snippet(
            f"{_CENTRED}scale = together.diagonal().rsqrt()\n"
            "y = (together * scale[:, None] * scale).clamp(-1, 1).squeeze()",
            "torch.corrcoef(X)",
            "X.corrcoef()",
        ),
    ),
    "isin": _snippet(
        f"{_TABLE}\n"
        "table = torch.zeros(100, dtype=torch.bool, device=Y.device)\n"
        "table.index_fill_(0, Y.flatten().long(), True)\n"
        "hit = table[X.long()]",
        "torch.isin(X, Y)",
    ),
    "to_sparse": _snippet(
        "y = X  # left dense: computing with zeros needs no size", "X.to_sparse()"
    ),
    "tensor_of_tensors": _line(
        "torch.stack(X).detach()",
        "torch.tensor(X)",
        note="# all of them tensors without a dimension",
    ),
    "linalg": (
        *_snippet(f"{_EX}torch.linalg.inv_ex(X)", "inv(X)", "X.inverse()", "torch.inverse(X)"),
        *_snippet(f"{_EX}torch.linalg.cholesky_ex(X)", "cholesky(X)", "X.cholesky()"),
        *_snippet(f"{_EX}torch.linalg.solve_ex(X, Y)", "solve(X, Y)"),
    ),
    "matrix_exp": _snippet(
        "# a fixed number of terms, where the norm is known to be small\n"
        "one = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)\n"
        "y = one + X @ (one + X @ (one + X / 3) / 2)",
        "matrix_exp(X)",
        "X.matrix_exp()",
    ),
    "normal": _line("(X + S * torch.randn_like(X + S)).detach()", "torch.normal(X, S)"),
    "distribution": _line("D(A, validate_args=False)", "D()", rest=True),
    "clip_grad": _line(
        "F(X, N)",
        "clip_grad_norm_(X, N, error_if_nonfinite=True)",
        note="# it returns the norm, a tensor: check it later",
    ),
    "grad_scaler": _snippet(
        "# bfloat16 has the range of float32 and needs no scaler: where autocast is to it, make\n"
        "# the scaler with enabled=False, or\n"
        "Y.step()  # in place of X.step(Y) and X.update()",
        "X.step(Y)",
    ),
    "copy_to_host": _snippet(
        "kept = X.clone()  # collect on the device; one copy, after the loop", "Y.copy_(X)"
    ),
    "copy_to_device": (
        *(
            _Cure(f"torch.{f}().to(D)", line=f"torch.{f}(A, device=D)", rest=True)
            for f in _FACTORIES
        ),
        *_line("X.to(A, non_blocking=True)", "X.to()", note=_PINNED, rest=True),
        *_line("X.cuda(non_blocking=True)", "X.cuda()", note=_PINNED),
    ),
    "tensor_to_device": (
        _Cure("torch.tensor(V)", line="torch.full((), A)", rest=True, number="V"),
        _Cure(
            "torch.tensor(V)",
            before="constant = torch.tensor(A)",
            line="constant",
            rest=True,
            literal="V",
        ),
        *(
            _Cure(
                f"torch.as_tensor(V, {dtype}device=D)",
                line=f"torch.full((), V{more}, device=D)",
                number="V",
            )
            for dtype, more in (("", ""), ("dtype=T, ", ", dtype=T"))
        ),
        *(
            _Cure(
                f"torch.{make}(V, {dtype}device=D)",
                line=f"torch.{make}(V{more}).pin_memory().to(D, non_blocking=True)",
                note=_PINNED_DATA,
            )
            for make in ("tensor", "as_tensor")
            for dtype, more in (("", ""), ("dtype=T, ", ", dtype=T"))
        ),
    ),
    "index_tensor": (
        *(
            _Cure(
                f"X[torch.{make}(){more}]",
                line=f"X[torch.{make}(A, device=X.device){more}]",
                rest=True,
                kept="X",
            )
            for make in ("arange", "randperm")
            for more in ("", ", Y")
        ),
        *_line("X[Y.to(X.device, non_blocking=True)]", "X[Y]", note=_PINNED_INDEX),
    ),
    "index_list": _snippet(
        "# make them on the device: torch.randperm(n, device=X.device); or copy them once\n"
        "# for all that they choose\n"
        "positions = torch.as_tensor(V, device=X.device)\n"
        "y = X[positions]",
        "X[V]",
    ),
}
# of X[…, V, …], for V alone
_POSITIONS = (
    _Cure(
        "V", before="positions = torch.tensor(V, device=X.device)", line="positions", literal="V"
    ),
    *(
        _Cure(f"{make}()", line="torch.arange(A, device=X.device)", rest=True, kept="X")
        for make in ("range", "numpy.arange")
    ),
    _Cure(
        "V",
        note=_COPIED_ONCE,
        before="positions = torch.as_tensor(V, device=X.device)",
        in_each=True,
        line="positions",
        kept="X",
    ),
)


@dataclass(frozen=True)
class _Match:
    """A cure that fits: the node of the user's that it is for, and what the capitals stand for.

    ``notes`` are comments above the line, before the cure's own. Where ``parts`` of the node are
    replaced, the node itself stays.
    """

    cure: _Cure
    node: ast.AST
    bound: Mapping[str, str]
    notes: tuple[str, ...] = ()
    parts: tuple[_Match, ...] = ()


class _Line:
    """The user's statement, parsed, and its text."""

    def __init__(
        self,
        statement: ast.stmt,
        source: str,
        *,
        is_after_all: bool = False,
        is_rare: bool = False,
        is_looped: bool = False,
        later: Sequence[ast.stmt] = (),
        thinned: Sequence[ast.stmt] = (),
        is_shown: bool = False,
        names: Mapping[str, str],
    ) -> None:
        self.statement = statement
        self.names = names  # what the code calls torch and its modules
        self.later = later  # what follows it and reads what it assigns
        self.thinned = thinned  # those of them that run in few steps
        self.is_shown = is_shown  # a cell shows the value of its last line
        self.is_after_all = is_after_all  # before or after the loop of a script or cell
        self.is_rare = is_rare
        self.is_looped = is_looped  # beside training, in a loop of its own: a rollout, a validation
        self.is_compound = hasattr(statement, "body") or isinstance(statement, ast.Assert)
        self._lines = source.splitlines()

    def code(self, node: ast.AST) -> str:
        """The node as it is written; on one line, however it is written."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", -1)
        if first != last:
            return ast.unparse(node)
        # columns count bytes of UTF-8
        line = self._lines[first - 1].encode()
        return line[node.col_offset : node.end_col_offset].decode()  # type: ignore[attr-defined]

    def part(self, node: ast.AST) -> str:
        """The same as a part of another expression."""
        return self.code(node) if isinstance(node, _ATOMS) else f"({self.code(node)})"

    def own(self) -> Iterator[ast.AST]:
        """Its nodes, without those of statements in it."""
        return own(self.statement)

    def nodes(self, site: Site) -> list[ast.AST]:
        """Where to look: what the instruction evaluates, its parts and what it is part of.

        All others only where Python does not say what it evaluates: they may wait, too.
        """
        here = self.running(site)
        parts = [n for node in here for n in ast.walk(node)]
        above = [up for node in here for up in self.around(node)]
        near = [self.statement, *here, *parts, *above]
        return near if here else [*near, *self.own()]

    def holds(self, site: Site) -> bool:
        """Whether this instruction is on another line of the same statement."""
        last = self.statement.end_lineno or self.statement.lineno
        return not self.is_compound and self.statement.lineno <= site.line <= last

    def running(self, site: Site) -> list[ast.AST]:
        """What the instruction evaluates; empty where Python does not say."""
        positions = list(site.code.co_positions())
        index = site.instruction // 2
        if not 0 <= index < len(positions):
            return []
        return [node for node in self.own() if _at(node) == positions[index]]

    def around(self, node: ast.AST) -> list[ast.AST]:
        """What it is part of within the statement, innermost first."""
        return around(self.statement, node)

    def replaced(self, texts: Mapping[ast.AST, str]) -> str:
        """The statement with these texts in place of these nodes."""
        value = getattr(self.statement, "value", None)
        names = {node: f"_in_place_{i}_" for i, node in enumerate(texts)}
        line = ast.unparse(_with(self.statement, names))
        if self.statement.lineno == self.statement.end_lineno and not _overlap(list(texts)):
            line = self._with_names(names)
        for node, text in texts.items():
            atom = node is value or isinstance(_pattern(text), _ATOMS)
            line = line.replace(names[node], text if atom else f"({text})")
        return line

    def _with_names(self, names: Mapping[ast.AST, str]) -> str:
        line = self._lines[self.statement.lineno - 1].encode()
        line = line[: self.statement.end_col_offset]
        for node in sorted(names, key=lambda n: -n.col_offset):  # type: ignore[attr-defined]
            start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
            line = line[:start] + names[node].encode() + line[end:]
        return line[self.statement.col_offset :].decode()


def _with(node: Any, names: Mapping[ast.AST, str]) -> Any:
    """A copy with these names in place of these nodes.

    Of fields only, where deepcopy would take all attributes: packages that explain tracebacks give
    each node its parent, also ``Load``, which all trees share, and with it all of another file.
    """
    if isinstance(node, list):
        return [_with(one, names) for one in node]
    if not isinstance(node, ast.AST):
        return node
    if node in names:
        return ast.Name(names[node])
    copied = type(node)(**{field: _with(one, names) for field, one in ast.iter_fields(node)})
    return ast.copy_location(copied, node)  # unparse asks for the line


def _at(node: ast.AST) -> tuple[int, int, int, int] | None:
    if not isinstance(node, ast.expr) or node.end_lineno is None or node.end_col_offset is None:
        return None
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _overlap(nodes: Sequence[ast.AST]) -> bool:
    return any(one is not other and other in ast.walk(one) for one in nodes for other in nodes)


class LineWait(NamedTuple):
    """A wait: its entry of the catalogue, its place, and what its cure must know of the tensors.

    ``times`` is how often it was seen; 0 where that is not known. ``by_library``: a library asked
    for the value, which the user's line only called.
    """

    entry: str
    site: Site
    facts: Facts = ()
    times: int = 0
    by_library: bool = False


def cures(
    waits: Sequence[LineWait],
    inside: str = "",
    beside: Sequence[LineWait] = (),
    n_steps: int = 0,
) -> str:
    """Code that does without these waits of one line, in the names of that line.

    Args:
        waits: each of them.
        inside: where in libraries those are asked for that are ``by_library``.
        beside: those of other lines; those in the same statement are rewritten with it.
        n_steps: how many optimizer steps ran meanwhile; 0 where that is not known.
    """
    line = _line_of(waits[0].site) if waits else None
    if line is not None and line.is_after_all:
        return _ONCE
    found = _cures(waits, line, inside, beside, n_steps)
    file = waits[0].site.file if waits else ""
    package = package_path(file).partition("/")[0]
    if not package or is_user_code(file) or found == _RARE or found.endswith(_LEAVE):
        return found
    return (
        f"# a line of {package}, not of your code: an option of what you call may avoid it;\n"
        f"# in its source:\n{found}"
    )


def _cures(
    waits: Sequence[LineWait],
    line: _Line | None,
    inside: str,
    beside: Sequence[LineWait],
    n_steps: int,
) -> str:
    said: list[str] = []
    rewritten: list[_Match] = []
    puts = any(wait.entry in _INDEX_PUTS for wait in waits)
    for wait in dict.fromkeys(waits):
        if puts and wait.entry == "index":
            continue  # the right side of `x[mask] = x[mask] * 2`: goes with the left
        found = _cure(wait, line, inside if wait.by_library else "", n_steps)
        if isinstance(found, str):
            said.append(found)
        else:
            rewritten += _new(found, rewritten)
    if rewritten and line is not None:
        for wait in beside:
            if line.holds(wait.site):
                found = _cure(wait, line, "", n_steps)
                if not isinstance(found, str):
                    rewritten += _new(found, rewritten)
        said.insert(0, _rewritten(line, rewritten))
    return "\n".join(dict.fromkeys(said))


def _new(found: _Match, known: Sequence[_Match]) -> list[_Match]:
    """What it replaces that none of the others does."""
    nodes = [one.node for one in known]
    return [one for one in found.parts or (found,) if one.node not in nodes]


def _cure(wait: LineWait, line: _Line | None, inside: str, n_steps: int) -> str | _Match:
    """What helps with one wait: in words, or what to write in its place."""
    entry, site, facts, count, _ = wait
    if n_steps >= _ENOUGH_STEPS and (count == 1 or 0 < _RARE_STEPS * count <= n_steps):
        seen = (
            "it ran once, not in each step" if count == 1 else f"{count} times in {n_steps} steps"
        )
        return f"# {seen}: {_LEAVE}"
    if "first" in facts:
        return _FIRST
    if line is None:
        return _SAMPLE if "sample" in facts else _in_general(entry, inside, line)
    seldom = _is_seldom_enough(entry, line)
    if line.is_rare and (seldom or (entry in READS and not line.is_looped)):
        return _RARE
    if "sample" in facts and entry not in _SENT:
        return _SAMPLE
    if seldom:
        return f"if step % 100 == 0:  # not in every step\n    {line.code(line.statement)}"
    found = _match(entry, line, site, facts)
    if found is None:
        if "sample" in facts:
            return _SAMPLE
        return _skips_not_finite(entry, line) or _in_general(entry, inside, line)
    use, notes = _use(entry, line, found.node)
    if use.kind == "index":
        return _INDEX
    if use.kind == "asked":
        return _DECIDES
    if use.kind == "shown":
        return _TEXT
    if use.kind == "taken":
        return (
            f"# {use.by}() takes it on the host: the wait goes only with that call. Make it "
            "less often,\n# or once for the values of many steps"
        )
    if found.cure.snippet:
        if use.kind == "returned" and entry in {"any", "bool"}:
            return _CALLER_DECIDES
        return _filled(found.cure.snippet, found.bound)
    statement = line.statement
    is_unused = isinstance(statement, ast.Expr) and statement.value is found.node
    if is_unused and entry in READS | COPIES and not line.is_shown:
        return _UNUSED
    return replace(found, notes=notes)


def _use(entry: str, line: _Line, node: ast.AST) -> tuple[Use, tuple[str, ...]]:
    """What becomes of the value, here or in the name that it is kept in, and what to say of it."""
    use = use_of(entry, line.statement, node, line.names)
    if entry not in READS:
        return use, ()
    notes = []
    if not use.kind:
        name = _assigned(line.statement)
        for statement, later in later_uses(entry, name, line.later, line.names):
            if later.kind in {"", "returned"}:
                use = use if use.kind else later
            elif statement in line.thinned:
                notes.append(
                    f"# line {statement.lineno} needs it, and is not in every step: read it there"
                )
            elif later.kind == "shown":
                notes.append(
                    f"# line {statement.lineno} shows it, and so reads it: do that less often"
                )
            else:
                return later, ()
    if use.kind == "returned":
        notes.insert(0, _CALLER)
    return use, tuple(dict.fromkeys(notes))


def _in_general(entry: str, inside: str, line: _Line | None) -> str:
    """What helps with such a wait where the line itself cannot be rewritten."""
    instead = CATALOGUE[entry].instead
    if entry == "distribution":
        return _WHERE_MADE
    if entry in _OF_THE_CALL:
        return instead
    if inside:
        return f"# asked for in {inside}: call that less often, or look for an option of it"
    if entry in {"any", "bool"} and line is not None and _branches(line):
        return _DECIDES
    return f"{_LIKE_THIS}\n{instead}"


# --- the user's line --------------------------------------------------------------------


def _line_of(site: Site) -> _Line | None:
    """The innermost statement that this instruction is part of, where the source is to be had."""
    source = "".join(linecache.getlines(site.file))
    tree = _parsed(source)
    if tree is None:
        return None
    found: ast.stmt | None = None
    runs_once = True
    column = _column(site)
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.stmt) and node.lineno <= site.line <= (node.end_lineno or 0):
            # several may be on one line
            if column is not None and not _reaches(node, site.line, column):
                continue
            found = node
            runs_once = runs_once and not isinstance(node, _REPEATED)
        elif isinstance(node, ast.Lambda):  # whoever calls it may be in the loop
            here = node.lineno <= site.line <= (node.end_lineno or 0)
            runs_once = runs_once and not here
    if found is None or isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    rarity = _rarity(tree, found)
    later = _later(tree, found)
    # without a loop the whole code may be the step
    return _Line(
        found,
        source,
        is_after_all=runs_once and _has_loop(tree),
        is_rare=bool(rarity),
        is_looped=rarity == "beside" and _is_looped(tree, found),
        later=later,
        thinned=[one for one in later if _rarity(tree, one)],
        is_shown=found is tree.body[-1],
        names=names_in(tree, site.file),
    )


def _later(tree: ast.Module, statement: ast.stmt) -> list[ast.stmt]:
    """The statements behind it that read the name that it assigns, until it is assigned anew.

    In a loop, the next round follows.
    """
    name = _assigned(statement)
    if not name:
        return []
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = [n for n in scopes if any(one is statement for one in _within_function(n))]
    last, scope_line = statement.end_lineno or statement.lineno, 0
    scope: ast.AST = inner[-1] if inner else tree
    for one in [*_within_function(scope)]:
        if (
            isinstance(one, ast.For | ast.AsyncFor | ast.While)
            and one.lineno >= scope_line
            and any(n is statement for n in _within(one))
        ):
            scope, scope_line = one, one.lineno
    inside = [n for n in _within_function(scope) if isinstance(n, ast.stmt)]
    inside.sort(key=lambda n: n.lineno)
    following = [n for n in inside if n.lineno > last]
    if isinstance(scope, ast.For | ast.AsyncFor | ast.While):
        following += [scope, *(n for n in inside if n.lineno < statement.lineno)]
    found = []
    for one in following:
        uses = [n for n in own(one) if isinstance(n, ast.Name) and n.id == name]
        if any(isinstance(n.ctx, ast.Load) for n in uses):
            found.append(one)
        if any(isinstance(n.ctx, ast.Store) for n in uses):
            break
    return found


def _assigned(statement: ast.stmt) -> str:
    """The one name that this statement gives a value to; empty if there is none or are more."""
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = (statement.target,)
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _within_function(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _within(child)


def _column(site: Site) -> int | None:
    """Where on its line the instruction is; None where Python does not say."""
    positions = list(site.code.co_positions())
    index = site.instruction // 2
    if not 0 <= index < len(positions):
        return None
    line, _, column, _ = positions[index]
    return column if line == site.line else None


def _reaches(node: ast.stmt, line: int, column: int) -> bool:
    at = line, column
    end = node.end_lineno or 0, node.end_col_offset or 0
    return (node.lineno, node.col_offset) <= at < end


def _is_looped(tree: ast.Module, statement: ast.stmt) -> bool:
    """Whether the innermost loop around it is not the one, or around the one, that trains."""
    loops = [
        node
        for node in ast.walk(tree)  # outer ones first
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
        and any(n is statement for n in _within(node))
    ]
    return not {"step", "backward"} <= _calls(loops[-1].body)


def _rarity(tree: ast.Module, statement: ast.stmt) -> Literal["", "branch", "beside"]:
    """Whether the code itself says that it runs in few steps: in a *branch* of
    ``if step % 100 == 0``, or *beside* the loop over the batches, once an epoch.
    """
    named = _named_tests(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While) or node is statement:
            continue
        is_around = node.lineno <= statement.lineno <= (node.end_lineno or 0)
        if not is_around or not any(n is statement for n in _within(node)):
            continue
        if isinstance(node, ast.If):
            few = _few(node.test, named)
            branch = node.body if few == "body" else node.orelse if few == "orelse" else []
            if _is_in(statement, branch) and not _is_the_step(tree, node, branch):
                return "branch"
        else:
            if _comes_after_continue(node.body, statement, named):
                return "branch"
            loops = [n for n in _within(node) if isinstance(n, ast.For | ast.AsyncFor | ast.While)]
            trains = [n for n in loops if {"step", "backward"} <= _calls(n.body)]
            if trains and not any(n is statement for one in trains for n in _within(one)):
                beside = [n for n in node.body if not any(n is one for one in trains)]
                if "backward" not in _calls(beside):
                    return "beside"
    return "branch" if _asks_first(statement, named) else ""


def _named_tests(tree: ast.Module) -> dict[str, ast.expr]:
    """What names stand for that are set to a test: ``is_time = step % 100 == 0``."""
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _few(test: ast.expr, named: Mapping[str, ast.expr]) -> Literal["", "body", "orelse"]:
    """Which branch of a test of a remainder runs in few steps; empty if it tests none."""
    if isinstance(test, ast.Name):
        test = named.get(test.id, test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        other = _few(test.operand, named)
        return "orelse" if other == "body" else "body" if other == "orelse" else ""
    if isinstance(test, ast.BoolOp):
        parts = [_few(part, named) for part in test.values]
        return "body" if "body" in parts else ""
    if isinstance(test, ast.Compare) and any(_is_remainder(n) for n in ast.walk(test)):
        # `0 < step % 100` is `step % 100 > 0`
        is_left = any(_is_remainder(n) for n in ast.walk(test.left))
        more = (ast.Gt, ast.GtE) if is_left else (ast.Lt, ast.LtE)
        is_most = isinstance(test.ops[0], (ast.NotEq, ast.NotIn, *more))
        return "orelse" if is_most else "body"
    return "orelse" if _is_remainder(test) else ""


def _is_remainder(node: ast.AST) -> bool:
    """``step % 100``, and not ``"%d" % step``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return False
    is_text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    return not is_text and not isinstance(node.left, ast.JoinedStr)


def _is_in(statement: ast.stmt, body: Sequence[ast.stmt]) -> bool:
    return any(n is statement for one in body for n in (one, *_within(one)))


def _is_the_step(tree: ast.Module, branch: ast.If, body: Sequence[ast.stmt]) -> bool:
    """With accumulation the step itself is in such a branch; a scheduler's beside it is not."""
    steps = _calls(body) & {"step", "backward"}
    outer = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
        and any(n is branch for n in _within(node))
    ]
    if not steps or not outer:
        return bool(steps)
    inside = {id(n) for one in body for n in (one, *_within(one))}
    others = {
        last_name(n.func)
        for n in _within(outer[-1])
        if isinstance(n, ast.Call) and id(n) not in inside
    }
    return not steps <= others


def _comes_after_continue(
    body: Sequence[ast.stmt], statement: ast.stmt, named: Mapping[str, ast.expr]
) -> bool:
    """Whether ``if step % 100: continue`` in the same loop comes before it."""
    for place, one in enumerate(body):
        if not isinstance(one, ast.If) or not isinstance(one.body[-1], ast.Continue):
            continue
        rest = body[place + 1 :]
        if _few(one.test, named) == "orelse" and _is_in(statement, rest):
            return not {"step", "backward"} & _calls(rest)
    return False


def _asks_first(statement: ast.stmt, named: Mapping[str, ast.expr]) -> bool:
    """``step % 100 == 0 and print(…)``, ``if step % 100 == 0 and loss.item() > 3``."""
    own = [statement.test] if isinstance(statement, ast.If | ast.While) else [statement]
    for node in (n for one in own for n in (one, *_within(one))):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            if any(_few(part, named) == "body" for part in node.values[:-1]):
                return True
        elif isinstance(node, ast.IfExp) and _few(node.test, named) == "body":
            return True
    return False


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """What is in it, without what is in its functions."""
    todo = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        todo = []
    while todo:
        one = todo.pop()
        yield one
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(one)


def _calls(body: Sequence[ast.AST]) -> set[str]:
    """Names of the methods and functions that are called in it."""
    nodes = (n for one in body for n in (one, *_within(one)))
    return {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}


def _has_loop(tree: ast.Module) -> bool:
    """Whether the code itself has a loop, apart from its functions."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            todo += ast.iter_child_nodes(node)
    return False


@functools.lru_cache(maxsize=16)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_seldom_enough(entry: str, line: _Line) -> bool:
    """Whether the line only shows or writes the value: that need not be in every step."""
    if line.is_compound:
        return False
    if entry in {"print", "save"}:
        return True
    return (
        entry in {"float", "int", "item"}
        and isinstance(line.statement, ast.Expr)
        and any(isinstance(n, ast.Call) and SAYS.match(last_name(n.func)) for n in line.own())
    )


# --- matching ---------------------------------------------------------------------------

# what waits is this very call or index: others on the line may look like it (x.shape[0])
_ITSELF = frozenset({"distribution", "index_list", "tensor_to_device"})


def _match(entry: str, line: _Line, site: Site, facts: Facts) -> _Match | None:
    if entry == "tensor_to_device" and "sample" in facts:
        return _made_on_the_host(line, site)
    if entry == "tensor_to_device" and "tensors" in facts:
        return None  # they are read first, which is another entry's
    if entry == "index_list":
        found = _positions(line, site, facts)
        if found is not None or not places_of_positions(facts, 1):
            return found
    nodes = line.running(site) if entry in _ITSELF else line.nodes(site)
    if entry == "distribution":  # log_prob() checks its argument, too, and takes no validate_args
        nodes = [node for node in nodes if _makes_an_object(node)]
    for cure in _CURES.get(entry, ()):
        cure = _for_facts(cure, facts)
        for node in nodes:
            if entry == "any" and node is not line.statement and decides(line.statement, node):
                continue  # its answer decides what runs next: it cannot be asked later
            fit = _Fit(cure.rest, line.names)
            if not fit.fits(_pattern(cure.pattern), node):
                continue
            if not all(_is_literal(fit.bound[name]) for name in cure.literal):
                continue
            is_number = "number" in facts
            if not all(is_number or _is_number(fit.bound[name]) for name in cure.number):
                continue
            if any(_calls([fit.bound[name]]) for name in cure.kept):
                continue
            # both sides of a question are computed only where it is a single one, of tensors
            asked = fit.bound.get("C")
            if asked is not None and any(isinstance(n, _SHORT_CUTS) for n in ast.walk(asked)):
                return None
            bound = {
                name: line.code(value) if name == "J" else line.part(value)
                for name, value in fit.bound.items()
            }
            if asked is not None:
                if "no answer" in facts:
                    bound["C"] += ".bool().any()"
                if _calls([asked]) & _FINITE:
                    cure = replace(cure, snippet=cure.snippet.replace(_BOTH, _BOTH_OF_FINITE))
            if entry in _INDEX_PUTS:
                is_added_to = isinstance(node, ast.AugAssign)
                put = _put(cure, fit.bound, is_added_to=is_added_to, each="each" in facts)
                if put is None:
                    continue
                cure, bound["V"] = put
                missing = sum(int(fact) for fact in facts if fact.isdigit())
                if missing:
                    bound["M"] += f"[...{', None' * missing}]"
            bound["E"] = line.code(node)
            given = _keywords(cure.line)  # a keyword twice is no code
            bound["A"] = ", ".join(
                line.code(argument)
                for argument in fit.arguments
                if not (isinstance(argument, ast.keyword) and argument.arg in given)
            )
            if any(len(text) > _LONGEST for name, text in bound.items() if name in cure.snippet):
                return None
            if cure.before and line.is_compound:
                continue
            return _Match(_in_the_names_of(line, cure), node, bound)
    return None


def _positions(line: _Line, site: Site, facts: Facts) -> _Match | None:
    """Each list or array of positions in an index by itself; what else is in it stays."""
    for node in line.running(site):
        if not isinstance(node, ast.Subscript) or line.is_compound:
            continue
        written = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if any(isinstance(part, ast.Starred) for part in written):
            continue
        places = places_of_positions(facts, len(written))
        parts = [_part_of_index(line, node.value, written[place]) for place in places]
        found = tuple(part for part in parts if part is not None)
        if found and len(found) == len(parts):
            return _Match(found[0].cure, node, {}, parts=found)
    return None


def _part_of_index(line: _Line, value: ast.expr, part: ast.expr) -> _Match | None:
    for cure in _POSITIONS:
        fit = _Fit(cure.rest, line.names)
        if not fit.fits(_pattern(cure.pattern), part, is_argument=True):
            continue
        if (cure.literal and not _is_literal(part)) or (cure.kept and _calls([value])):
            continue
        if any(isinstance(argument, ast.keyword) for argument in fit.arguments):
            continue  # a dtype of NumPy
        bound = {"X": line.part(value), "V": line.part(part)}
        bound["A"] = ", ".join(map(line.code, fit.arguments))
        return _Match(_in_the_names_of(line, cure), part, bound)
    return None


def _made_on_the_host(line: _Line, site: Site) -> _Match | None:
    """The same call without a device; None where none is written there."""
    for node in line.running(site):
        if isinstance(node, ast.Call):
            others = [k for k in node.keywords if k.arg != "device"]
            if len(others) < len(node.keywords):
                text = ast.unparse(ast.Call(node.func, node.args, others))
                return _Match(_Cure("", line=text, note=_SAMPLE), node, {})
    return None


def _in_the_names_of(line: _Line, cure: _Cure) -> _Cure:
    """``th.stack`` where the code says ``import torch as th``."""
    name = name_of_torch(line.names)
    code, before, snippet = (
        re.sub(r"\btorch\.", f"{name}.", part) for part in (cure.line, cure.before, cure.snippet)
    )
    return replace(cure, line=code, before=before, snippet=snippet)


def _for_facts(cure: _Cure, facts: Facts) -> _Cure:
    if cure.note == _PINNED and "sample" in facts:
        return replace(cure, line="X", note=_SAMPLE)
    if cure.note == _PINNED and "computed" in facts:
        return replace(cure, note=_COMPUTED)
    stays = ".float()" if "half" in facts else ".clone()" if "changes" in facts else ""
    return replace(
        cure,
        line=cure.line.replace("{K}", stays),
        snippet=cure.snippet.replace("{K}", stays),
    )


# Of each element by itself, so that choosing before or after is the same.
_ELEMENTWISE = frozenset(
    {
        "abs", "add", "bfloat16", "ceil", "clamp", "cos", "detach", "div", "double", "exp", "float",
        "floor", "half", "int", "log", "log1p", "long", "mul", "neg", "pow", "reciprocal", "relu",
        "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "sub", "tanh", "to",
    }
)  # fmt: skip


def _put(
    cure: _Cure, bound: Mapping[str, ast.expr], *, is_added_to: bool, each: bool
) -> tuple[_Cure, str] | None:
    """The cure of ``X[M] = V``, and ``V`` for all elements in place of the chosen; or None."""
    value, mask = bound["V"], ast.unparse(bound["M"])
    parents = {child: one for one in ast.walk(value) for child in ast.iter_child_nodes(one)}
    chosen: dict[ast.AST, str] = {
        node: ast.unparse(node.value)
        for node in ast.walk(value)
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == mask
    }
    for node in chosen:
        up: ast.AST = node
        while up is not value:
            up = parents[up]
            if isinstance(up, ast.Call) and last_name(up.func) not in _ELEMENTWISE:
                return None
            if not isinstance(up, ast.Call | ast.Attribute | ast.BinOp | ast.UnaryOp):
                return None
    text = ast.unparse(_with(value, chosen))
    text = text if isinstance(value, _ATOMS) else f"({text})"
    if chosen or _is_literal(value):
        return cure, text
    if is_added_to:
        return replace(cure, snippet=f"{cure.snippet}  # V: a number, or as large as X"), text
    if each:  # as many as are true, whose order decides
        return replace(cure, snippet="X.masked_scatter_(M, V)  # no gradient for V"), text
    return cure, text


def _skips_not_finite(entry: str, line: _Line) -> str:
    """What helps where a question for something that is no number decides on a step."""
    if entry not in {"any", "bool"} or "step" not in _calls([line.statement]):
        return ""
    tests = [n.test for n in line.own() if isinstance(n, ast.If | ast.IfExp | ast.While)]
    for test in tests:
        for node in ast.walk(test):
            name = last_name(node.func) if isinstance(node, ast.Call) else ""
            if name not in _FINITE:
                continue
            asked = line.code(node)
            some = f"~{asked}.all()" if name == "isfinite" else f"{asked}.any()"
            return _filled(_SKIPS, {"E": some})
    return ""


def _branches(line: _Line) -> bool:
    """Whether Python goes on by an answer of this statement."""
    is_question = isinstance(line.statement, ast.If | ast.While)
    return is_question or any(isinstance(node, _SHORT_CUTS) for node in line.own())


def _makes_an_object(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func)[:1].isupper()


@functools.cache
def _keywords(code: str) -> frozenset[str]:
    """Names of the arguments that this line of a cure gives itself."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return frozenset(k.arg for call in calls for k in call.keywords if k.arg)


@functools.cache
def _pattern(code: str) -> ast.AST:
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


class _Fit:
    """One try to find a pattern in a piece of code."""

    def __init__(self, rest: bool, names: Mapping[str, str]) -> None:
        self.bound: dict[str, ast.expr] = {}
        self.arguments: list[ast.expr | ast.keyword] = []
        self._rest = rest
        self._names = names

    def fits(self, pattern: ast.AST, node: ast.AST, *, is_argument: bool = False) -> bool:
        """Whether it does; then ``bound`` has what the capitals stand for.

        A tuple is a value where it ``is_argument``; between brackets it is an index of many parts.
        """
        if isinstance(pattern, ast.Name) and _CAPITAL.fullmatch(pattern.id):
            is_value = not isinstance(node, _NO_VALUE) or pattern.id == "J"
            is_value = is_value or (is_argument and isinstance(node, ast.Tuple))
            if not isinstance(node, ast.expr) or not is_value:
                return False
            before = self.bound.setdefault(pattern.id, node)
            return before is node or ast.unparse(before) == ast.unparse(node)
        if isinstance(pattern, ast.Attribute) and isinstance(node, ast.Attribute | ast.Name):
            wanted = ast.unparse(pattern)
            if not _CAPITAL.match(wanted) and in_full(ast.unparse(node), self._names) == wanted:
                return True
        if type(pattern) is not type(node):
            return False
        if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
            return self._fits_call(pattern, node)
        return all(
            self._fits_value(getattr(pattern, field, None), getattr(node, field, None))
            for field in pattern._fields
            if field not in {"ctx", "kind", "type_comment"}
        )

    def _fits_value(self, pattern: object, value: object) -> bool:
        if isinstance(pattern, ast.AST) and isinstance(value, ast.AST):
            return self.fits(pattern, value)
        if isinstance(pattern, list) and isinstance(value, list):
            if _is_anything(pattern):
                return True
            return len(pattern) == len(value) and all(map(self._fits_value, pattern, value))
        return pattern == value

    def _fits_call(self, pattern: ast.Call, node: ast.Call) -> bool:
        named = pattern.func
        if isinstance(named, ast.Name) and not _CAPITAL.fullmatch(named.id):
            is_bare = isinstance(node.func, ast.Name)
            if last_name(node.func) != named.id or (named.id in _BARE and not is_bare):
                return False
            self.bound["F"] = node.func
        elif not self.fits(named, node.func):
            return False
        given = {k.arg: k.value for k in node.keywords}
        wanted = {k.arg: k.value for k in pattern.keywords}
        more = len(node.args) > len(pattern.args) or len(given) > len(wanted)
        if len(node.args) < len(pattern.args) or not given.keys() >= wanted.keys():
            return False
        if more and (not self._rest or (pattern.args and self.arguments)):
            return False
        if self._rest and not self.arguments:
            self.arguments += [*node.args, *node.keywords]
        pairs = [*zip(pattern.args, node.args, strict=False)]
        pairs += [(value, given[name]) for name, value in wanted.items()]
        return all(self.fits(one, other, is_argument=True) for one, other in pairs)


def _is_anything(body: list[Any]) -> bool:
    """``...`` stands for any body."""
    return (
        len(body) == 1
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and body[0].value.value is ...
    )


_BARE = frozenset({"float", "int", "max", "min", "range", "sorted"})


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)


# --- writing ----------------------------------------------------------------------------


def _filled(template: str, bound: Mapping[str, str]) -> str:
    """The template with the capitals replaced."""

    def value(capital: re.Match[str]) -> str:
        text = bound.get(capital[0], capital[0])
        before, after = template[: capital.start()], template[capital.end() :]
        is_argument = before.endswith(("(", ", ")) and after.startswith((",", ")"))
        return _bare(text) if is_argument else text

    filled = _CAPITAL.sub(value, template)
    filled = filled.replace("(, ", "(").replace(".detach().detach()", ".detach()")
    return filled


def _bare(text: str) -> str:
    """``(a + b)`` without its parentheses, where they are one pair."""
    inner = text[1:-1]
    pair = text.startswith("(") and text.endswith(")") and _parsed(inner) is not None
    return inner if pair and not inner.rstrip().endswith(",") else text  # `(n,)` is a tuple


def _notes(line: _Line, match: _Match) -> Iterator[str]:
    note = match.cure.note
    if note in (_PINNED, _COMPUTED) and _MADE_ON_HOST.match(match.bound.get("X", "")):
        note = _MADE_HERE
    if note:
        yield note
    if not match.cure.line.startswith("X.detach()"):
        return
    for other in _met_on_the_host(line, match):
        yield f"# {other} must then be on the device, too, unless it is a number"
    for target in getattr(line.statement, "targets", ()):
        names_it = isinstance(target, ast.Subscript) and not (
            isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)
        )
        if names_it:
            yield (
                f"# {line.code(target.value)} must be a list, a dict, or a tensor on the device: "
                "one on the host copies it"
            )


def _met_on_the_host(line: _Line, match: _Match) -> Iterator[str]:
    """What the copy meets in its statement: with the copy on the host, so are they."""
    node = match.node
    if not (isinstance(node, ast.Call) and last_name(node.func) in {"cpu", "to", "numpy"}):
        return
    for up in line.around(node):
        others: Sequence[ast.expr] = ()
        if isinstance(up, ast.BinOp):
            others = up.left, up.right
        elif isinstance(up, ast.Compare):
            others = up.left, *up.comparators
        elif isinstance(up, ast.Call):  # x.cpu().eq(y), torch.eq(x.cpu(), y)
            if last_name(up.func) not in _SHAPES:
                others = *up.args, *(k.value for k in up.keywords)
        elif isinstance(up, ast.Subscript) and node is up.slice:
            others = (up.value,)
        elif not isinstance(up, ast.Attribute | ast.Subscript | ast.UnaryOp):
            return
        for other in others:
            copies = {last_name(n.func) for n in ast.walk(other) if isinstance(n, ast.Call)}
            if other is not node and not _is_literal(other) and not copies & {"cpu", "len"}:
                yield line.code(other)
        node = up


def _named_apart(matches: Sequence[_Match]) -> list[_Match]:
    """With a name for each value that is made before the loop."""
    names: dict[str, dict[str, str]] = {}
    apart = []
    for match in matches:
        if match.cure.before:
            # positions are the same whatever they choose from
            bound = {capital: code for capital, code in match.bound.items() if capital != "X"}
            name, _, value = _filled(match.cure.before, bound).partition(" = ")
            known = names.setdefault(name, {})
            own_name = known.setdefault(value, f"{name}_{len(known) + 1}" if known else name)
            cure = replace(
                match.cure,
                before=re.sub(rf"\b{name}\b", own_name, match.cure.before),
                line=re.sub(rf"\b{name}\b", own_name, match.cure.line),
            )
            match = replace(match, cure=cure)
        apart.append(match)
    return apart


def _short(line: _Line, match: _Match) -> str:
    """What the cure is for, in few characters."""
    text = match.bound.get("X") or line.code(match.node)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _does_nothing(code: str) -> bool:
    """``x = x``, ``x, y = x, y``."""
    tree = _parsed(code)
    statement = tree.body[0] if tree is not None and tree.body else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = ast.unparse(statement.targets[0]), ast.unparse(statement.value)
    return target.strip("()") == value.strip("()")


def _rewritten(line: _Line, matches: Sequence[_Match]) -> str:
    """The user's line with something else in place of what waits."""
    matches = _named_apart(matches)
    notes = [note for match in matches for note in match.notes]
    noted = [(match, [*_notes(line, match)]) for match in matches]
    differ = len({note for _, own_notes in noted for note in own_notes[:1]}) > 1
    for match, own_notes in noted:
        if differ and own_notes and match.cure.note:
            own_notes[0] = f"# {_short(line, match)}: {own_notes[0].removeprefix('# ')}"
        notes += own_notes
    before: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for match in matches:
        if match.cure.before:
            made = _filled(match.cure.before, match.bound)
            before[match.cure.in_each].setdefault(made.partition(" = ")[0], made)
    texts = {m.node: _filled(m.cure.line, m.bound) for m in matches}
    for match in matches:
        # `self.total = constant`, and then `self.total += …` would change the constant
        is_itself = match.cure.before.startswith(f"{match.cure.line} = ")
        if is_itself and match.node is getattr(line.statement, "value", None):
            texts[match.node] += ".clone()"
    for outer, inner in itertools.permutations(texts, 2):
        if inner in ast.walk(outer):  # both wait: `net(x.to(device)).cpu()`
            texts[outer] = texts[outer].replace(line.code(inner), texts[inner])
    if before[False]:
        notes += ["# once, before the loop:", *before[False].values(), "# in the loop:"]
    notes += before[True].values()
    if line.is_compound:
        code = [f"value = {text}" for text in texts.values()]
    else:
        code = [line.replaced(texts)]
        if _does_nothing(code[0]):
            code = [_GOES]
    return "\n".join(dict.fromkeys([*notes, *code]))
