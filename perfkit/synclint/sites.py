"""From a stack to the line that is to blame.

The innermost frame of the user's (:func:`perfkit.base.user_code.is_user_code`) is the one to blame,
unless code of a package that says something runs below it: below ``trainer.fit()`` the line of the
trainer says more.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.base.user_code import is_user_code, tells_something

# torch's own Python between a user's line and the operator: says nothing about the cause
_PLUMBING = (
    "_compile.py", "_jit_internal.py", "_ops.py", "_tensor.py", "_tensor_str.py", "functional.py",
    "overrides.py", "_torch_docs.py", "autograd/", "nn/functional.py", "nn/modules/module.py",
    "utils/_contextlib.py", "utils/_python_dispatch.py",
)  # fmt: skip


class Site(NamedTuple):
    """One instruction of the code to blame.

    Attributes:
        instruction: the offset in ``code``, which tells two calls on one line apart.
        below: the user's file and line that called it, if it is a library's; else None.
    """

    code: CodeType
    instruction: int
    line: int
    below: tuple[str, int] | None = None

    @property
    def file(self) -> str:
        return self.code.co_filename


@functools.cache
def _is_plumbing(filename: str) -> bool:
    root = f"{Path(str(sys.modules['torch'].__file__)).parent}/"
    if filename.startswith(root):
        return filename.removeprefix(root).startswith(_PLUMBING)
    return filename.startswith(("<", f"{Path(__file__).resolve().parents[1]}/"))


def site_of(frame: FrameType | None) -> Site | None:
    """The line to blame at or above ``frame``; None where no user code is running."""
    library: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if is_user_code(code.co_filename):
            if library is None:
                return Site(code, frame.f_lasti, frame.f_lineno)
            below = code.co_filename, frame.f_lineno
            return Site(library.f_code, library.f_lasti, library.f_lineno, below)
        if library is None and tells_something(code.co_filename):
            library = frame
        frame = frame.f_back
    return None


def library_between(frame: FrameType | None) -> Site | None:
    """The innermost line of library code between ``frame`` and the user's, but for plumbing."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        code = frame.f_code
        if not _is_plumbing(code.co_filename):
            return Site(code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


def run_by_autograd(frame: FrameType | None) -> bool:
    """Tell whether the autograd engine itself is at work, not user code that it has called."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=4096)
def _expression(code: CodeType, instruction: int) -> ast.expr | None:
    """The expression that this instruction evaluates, from the source text."""
    first, last, start, end = list(code.co_positions())[instruction // 2]
    if first is None or last is None or start is None or end is None:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    # positions count bytes of the line as UTF-8; cut the end first: it may be the same line
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    text = b"".join(lines).decode(errors="replace")
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return None


def spelled(site: Site) -> str:
    """Return the call that the line was making, without its arguments: ``x.to``; else ''."""
    expression = _expression(site.code, site.instruction)
    return ast.unparse(expression.func) if isinstance(expression, ast.Call) else ""


def _names_cpu(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value == "cpu"
    if isinstance(value, ast.Call):  # torch.device("cpu")
        return len(value.args) == 1 and _names_cpu(value.args[0])
    # a name that says so; `device` on a machine without a GPU does not
    name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
    return "cpu" in str(name).lower()


def is_literal_cpu(frame: FrameType, device: Any) -> bool:
    """Tell whether a call asks for the CPU by name, on every machine.

    ``x.to("cpu")`` does; ``x.to(device)`` does not, although ``device`` is the CPU here: there
    it is what the script falls back to where it finds no GPU.
    """
    if str(device) != "cpu":
        return False
    if not (isinstance(device, str) or is_user_code(frame.f_code.co_filename)):
        return False  # libraries pass devices as objects, and write "cpu" as text
    call = _expression(frame.f_code, frame.f_lasti)
    if not isinstance(call, ast.Call):
        return False
    return any(map(_names_cpu, (*call.args, *(k.value for k in call.keywords))))


def runs_only_without_gpu(file: str, line: int) -> bool:
    """Tell whether an ``if`` around this line asks for a GPU, and it is in the other branch.

    Understood are ``device == "cuda"`` (and ``!=``, ``"cpu"``, ``"cuda:0"``) and
    ``torch.cuda.is_available()``, also after ``not``. A question about a tensor (``x.is_cuda``,
    ``x.device.type``) is not one about the machine: a batch is on the host first with a GPU, too.
    """
    spans = _spans(tuple(linecache.getlines(file)))
    return any(first <= line <= last for first, last in spans)


@functools.lru_cache(maxsize=32)
def _spans(lines: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """First and last lines of the branches that no GPU takes."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and (gpu := _asks(node.test)) is not None:
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
