"""The rules of advice: each file of this folder registers its own.

To add one, write a function of a :class:`~perfkit.advice.case.Case` in a file beside this one,
decorated with :func:`rule`, that yields findings. Their ``rule`` names what was found, and their
``cures`` say which bounds of a step it is about. It needs no threshold for a small gain: what gains
less than 5 % is not shown. What all rules of a file need stands in :data:`NEEDS`, once: where it
is not there, the file is not loaded.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding

Rule = Callable[[Case], Iterable[Finding]]

#: File of rules -> when they can apply; those of other files always can.
NEEDS: dict[str, Callable[[Case], object]] = {
    "compiling": lambda case: case.compiles,
    "data": lambda case: case.shares["data wait"],
    "device": lambda case: case.on_device,
    "lines": lambda case: case.lines.n_samples,
    "ranks": lambda case: case.on_device or case.shares["communication"],
    "transfers": lambda case: case.on_device,
}

_KNOWN: dict[str, list[Rule]] = {}


def rule(check: Rule) -> Rule:
    """Register a rule; a decorator."""
    _KNOWN.setdefault(check.__module__, []).append(check)
    return check


def rules(case: Case) -> Iterator[Rule]:
    """Those that can apply. Their order means nothing: they do not know of each other."""
    for module in modules(__name__, NEEDS, case):
        yield from _KNOWN.get(module, ())


def modules(
    package: str, needs: Mapping[str, Callable[[Any], object]], about: Any
) -> Iterator[str]:
    """The files of a package that can say anything about it, each loaded first."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name not in needs or needs[module.name](about):
            yield importlib.import_module(f"{package}.{module.name}").__name__
