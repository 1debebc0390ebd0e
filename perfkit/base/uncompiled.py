"""perfkit's own calls within a function that torch.compile compiles stay out of its graphs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType

from perfkit.base import torch_compat
from perfkit.base.when_imported import when_imported

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
    own = [one for one in vars(module).values() if one.__class__ is FunctionType]
    kinds = [one for one in vars(module).values() if isinstance(one, type)]
    own += [
        one
        for kind in kinds
        if kind.__module__ == module.__name__
        for one in vars(kind).values()
        if one.__class__ is FunctionType
    ]
    for one in own:
        if inspect.unwrap(one).__code__.co_filename == module.__file__:
            yield one
