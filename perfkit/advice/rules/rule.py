"""The rules of advice: each file of this folder registers its own.

To add one, write a function of a :class:`~perfkit.advice.case.Case` in a file beside this one,
decorated with :func:`rule`, that yields findings. Their ``rule`` names what was found, and their
``cures`` say which bounds of a step it is about. It needs no threshold for a small gain: what gains
less than 5 % is not shown.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding

Rule = Callable[[Case], Iterable[Finding]]

_KNOWN: dict[str, Rule] = {}


def rule(check: Rule) -> Rule:
    """Register a rule; a decorator."""
    _KNOWN[f"{check.__module__}.{check.__qualname__}"] = check
    return check


def rules() -> tuple[Rule, ...]:
    """All rules. Their order means nothing: they do not know of each other."""
    package = importlib.import_module("perfkit.advice.rules")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(_KNOWN.values())
