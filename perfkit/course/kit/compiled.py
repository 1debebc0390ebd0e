"""What ``torch.compile`` did while a piece of code ran, and from which step on it has paid."""

from __future__ import annotations

import math
from collections.abc import Callable

from perfkit.base.arguments import check_function
from perfkit.base.compiling import CompileReport, CompileWatch, GraphBreak, Recompilation
from perfkit.base.errors import UsageError

__all__ = ["CompileReport", "GraphBreak", "Recompilation", "break_even_steps", "watch_compile"]


def watch_compile(step: Callable[[], object]) -> CompileReport:
    """Call ``step`` once and say what was compiled in it.

    The first call of a compiled function compiles it, a later one only if its inputs or something
    else that it was compiled for has changed. So watch the first step, and then one of each kind.

    Args:
        step: a function without arguments; its result is discarded. Whatever it raises is raised.

    Raises:
        UsageError: ``step`` cannot be called without arguments.

    Example::

        >>> double = torch.compile(lambda x: x * 2, backend="eager")
        >>> watch_compile(lambda: double(torch.ones(3))).n_graphs
        1
        >>> watch_compile(lambda: double(torch.ones(3))).n_graphs
        0
    """
    check_function("step", step)
    watch = CompileWatch()
    step()
    return watch.report()


def break_even_steps(compile_s: float, before_ms: float, after_ms: float) -> int | None:
    """From which step on compiling has paid for itself.

    Args:
        compile_s: seconds until the first compiled step was ready.
        before_ms: a step without it, in ms.
        after_ms: a compiled step in its steady state, in ms.

    Returns:
        The number of steps; None if the compiled step is not faster, so that it never pays.

    Raises:
        UsageError: a time is negative or not a finite number.

    Example:
        >>> break_even_steps(40, before_ms=10, after_ms=8)
        20000
    """
    for name, value in (("compile_s", compile_s), ("before_ms", before_ms), ("after_ms", after_ms)):
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{name} is a time, finite and not negative; got {value!r}")
    if after_ms >= before_ms:
        return None
    return math.ceil(round(1e3 * compile_s / (before_ms - after_ms), 6))
