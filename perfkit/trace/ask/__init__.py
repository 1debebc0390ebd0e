"""The questions that a trace answers, by name: each file of this folder registers its own.

To add one, write a file beside this one: a function of a trace and its steps, decorated with
:func:`question`, that returns a subclass of :class:`Answer`. It is then a method of what
``perfkit.open_trace`` returns, an answer of ``perfkit trace --ask``, and listed in reports.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from perfkit.base.display import Shown

# What the asker fills in: not for the caller.
_FILLED_IN = ("trace", "steps", "plain_ms", "leaving_out")

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Answer(Shown):
    """An answer that has no words of its own yet: it is shown as its fields.

    A dataclass; a tuple of dataclasses among its fields becomes a table. Units are read from the
    ends of the names (``_us``, ``_ms``, ``_ns``, ``_bytes``, ``share``).
    """

    __slots__ = ()


@dataclass(frozen=True)
class Question:
    """A question to a trace.

    Attributes:
        name: e.g. ``critical-path``.
        asks: the question in words.
        answer: called with the trace, its steps, and the options of the caller.
    """

    name: str
    asks: str
    answer: Callable[..., Any]

    @property
    def attribute(self) -> str:
        """The name as a Python name, e.g. ``critical_path``."""
        return self.name.replace("-", "_")

    @property
    def options(self) -> tuple[inspect.Parameter, ...]:
        """The options that a caller may give."""
        parameters = inspect.signature(self.answer).parameters.values()
        return tuple(p for p in parameters if p.name not in _FILLED_IN)

    @property
    def help(self) -> str:
        """The docstring without the arguments that are filled in."""
        text = inspect.getdoc(self.answer) or self.asks
        for name in _FILLED_IN:
            text = re.sub(rf"^ {{4}}{name}: .*\n(?: {{8}}.*\n?)*", "", f"{text}\n", flags=re.M)
        return re.sub(r"^Args:\n(?! {4})\n?", "", text, flags=re.M).strip()


_KNOWN: dict[str, Question] = {}


def question(name: str, asks: str) -> Callable[[_Function], _Function]:
    """Register the function that answers this question; a decorator.

    Args:
        name: words joined by ``-``.
        asks: the question in words, one line.
    """

    def register(answer: _Function) -> _Function:
        _KNOWN[name] = Question(name, asks, answer)
        return answer

    return register


def questions() -> Mapping[str, Question]:
    """All questions by name, sorted."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return MappingProxyType(dict(sorted(_KNOWN.items())))
