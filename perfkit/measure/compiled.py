"""What ``torch.compile`` did while a piece of code ran, and from which step on it has paid.

Compiling shows in no result and in no steady step: it happened before. So torch's own log is read:
how many graphs, where a graph ended, what was compiled again and why, and how long that took.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfkit.base.arguments import check_function
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.torch_compat import Compilation, compile_log
from perfkit.base.user_code import cell_names, where

__all__ = ["CompileReport", "GraphBreak", "Recompilation", "break_even_steps", "watch_compile"]


@dataclass(frozen=True)
class GraphBreak(Shown):
    """A line at which a graph ended, so that Python takes over until the next graph.

    Attributes:
        place: the line, e.g. ``"train.py:12"``.
        reason: torch's, its first line.
        count: how often a graph was ended there; each compilation ends it anew.
    """

    place: str
    reason: str
    count: int


@dataclass(frozen=True)
class Recompilation(Shown):
    """Code that was compiled again, because a check of the program before it failed.

    Attributes:
        place: where the code begins.
        why: the check, in torch's words, e.g. ``"tensor 'x' size mismatch at index 0. expected 4,
            actual 5"``.
    """

    place: str
    why: str


@dataclass(frozen=True)
class CompileReport(Shown):
    """What ``torch.compile`` did in one call.

    Attributes:
        n_graphs: graphs that were compiled; 0 if all was there already, or nothing is compiled.
        breaks: lines at which graphs ended, most often first.
        recompilations: in the order in which they happened.
        compile_s: wall time of compiling, forward and backward, in seconds.
        complete: False if torch's log was too short for it: there were more compilations.
    """

    n_graphs: int
    breaks: tuple[GraphBreak, ...]
    recompilations: tuple[Recompilation, ...]
    compile_s: float
    complete: bool = True


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
    before, breaks_before, graphs_before = compile_log()
    known = set(before)
    step()
    after, breaks_after, graphs_after = compile_log()
    new = [one for one in after if one not in known]
    # the log was emptied by torch._dynamo.reset(), or by whoever counts
    breaks = breaks_after[len(breaks_before) :] if len(breaks_after) >= len(breaks_before) else []
    cells = cell_names()
    counted = Counter(
        (where(one.filename, one.line, cells), _first_line(one.reason)) for one in breaks
    )
    return CompileReport(
        n_graphs=max(graphs_after - graphs_before, 0),
        breaks=tuple(GraphBreak(*key, count) for key, count in counted.most_common()),
        recompilations=tuple(
            Recompilation(where(one.filename, one.line, cells), _check_in(one.why_again))
            for one in new
            if one.why_again
        ),
        compile_s=_wall_s(new),
        complete=len(new) < len(after) or not before,
    )


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


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _check_in(text: str) -> str:
    """``1/0: tensor 'y' size mismatch … # source`` without number and source line."""
    said = _first_line(text).partition("  #")[0].strip()
    number, _, rest = said.partition(": ")
    return rest if rest and number.replace("/", "").isdigit() else said


def _wall_s(compilations: Sequence[Compilation]) -> float:
    """Seconds in which something was compiled; what overlaps counts once."""
    total, reached = 0, 0
    for one in sorted(compilations, key=lambda one: one.start_us):
        total += max(one.end_us - max(one.start_us, reached), 0)
        reached = max(reached, one.end_us)
    return total / 1e6
