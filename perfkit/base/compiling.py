"""What ``torch.compile`` did between two looks at torch's own log; and what it is to leave alone.

Compiling shows in no result and in no steady step: it happened before. So the log is read: how many
graphs, where a graph ended, what was compiled again and why, and how long that took.

Within a function that is compiled, perfkit's own calls stay out of its graphs.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType

from perfkit.base import torch_compat
from perfkit.base.display import Shown
from perfkit.base.torch_compat import Compilation, compile_log
from perfkit.base.user_code import where
from perfkit.base.when_imported import when_imported


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
    """Code that was compiled again, because a check of what was compiled before failed.

    Attributes:
        place: where the code begins.
        why: the check, in torch's words, e.g. ``"tensor 'x' size mismatch at index 0. expected 4,
            actual 5"``.
        is_static: compiled with ``dynamic=False``, which wants a graph for each size and number.
    """

    place: str
    why: str
    is_static: bool = False


@dataclass(frozen=True)
class CompileReport(Shown):
    """What ``torch.compile`` did in one call.

    Attributes:
        n_graphs: graphs that were compiled; 0 if all was there already, or nothing is compiled.
        breaks: lines at which graphs ended, most often first.
        recompilations: in the order in which they happened.
        given_up: code that torch would have had to compile again, and no longer does: after eight
            attempts (``torch._dynamo.config.recompile_limit``) it runs uncompiled, all of it.
        compile_s: wall time of compiling, forward and backward, in seconds.
        complete: False if torch's log was too short for it: there were more compilations.
    """

    n_graphs: int
    breaks: tuple[GraphBreak, ...]
    recompilations: tuple[Recompilation, ...]
    compile_s: float
    complete: bool = True
    given_up: tuple[Recompilation, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was compiled, and nothing given up."""
        return not (self.n_graphs or self.compile_s or self.given_up)


class CompileWatch:
    """Notes what was compiled already; :meth:`report` says what came since."""

    def __init__(self) -> None:
        compilations, breaks, self._n_graphs = compile_log()
        self._known = set(compilations)
        self._n_breaks = len(breaks)

    def report(self) -> CompileReport:
        """What was compiled since this watch was made."""
        log, breaks, n_graphs = compile_log()
        new = [one for one in log if one not in self._known]
        # a shorter log was emptied by torch._dynamo.reset(), or by whoever counts
        breaks = breaks[self._n_breaks :] if len(breaks) >= self._n_breaks else []
        counted = Counter(
            (where(one.filename, one.line), _first_line(one.reason)) for one in breaks
        )
        begins = {one.frame: (one.filename, one.line) for one in log if one.line}
        again = [one for one in new if one.why_again]
        return CompileReport(
            n_graphs=max(n_graphs - self._n_graphs, 0),
            breaks=tuple(GraphBreak(*key, count) for key, count in counted.most_common()),
            recompilations=tuple(_again(one, begins) for one in again if not one.gave_up),
            compile_s=_wall_s(new),
            complete=len(new) < len(log) or not self._known,
            given_up=tuple(_again(one, begins) for one in again if one.gave_up),
        )


def _again(one: Compilation, begins: Mapping[str, tuple[str, int]]) -> Recompilation:
    # an attempt that was given up has no place of its own
    place = begins.get(one.frame, (one.filename, one.line))
    return Recompilation(where(*place), _check_in(one.why_again), one.is_static)


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


# hooks run within the blocks of others
_names = {"perfkit.base.instrument"}


def leave_uncompiled(name: str) -> None:
    """Keep torch.compile from looking into what this module defines. Does not import torch.

    It would trace all of perfkit, which takes half a minute, and fail.
    """
    is_first = len(_names) == 1
    _names.add(name)
    if is_first:
        when_imported("torch._dynamo", _leave_all)
    elif "torch._dynamo" in sys.modules:
        _leave_all()


def _leave_all() -> None:
    for name in _names & sys.modules.keys():
        torch_compat.never_compile(_functions(sys.modules[name]))


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that are written in this module's file."""
    kinds = (one for one in vars(module).values() if isinstance(one, type))
    for owner in (module, *(kind for kind in kinds if kind.__module__ == module.__name__)):
        for one in vars(owner).values():
            if one.__class__ is not FunctionType:
                continue
            if inspect.unwrap(one).__code__.co_filename == module.__file__:
                yield one
