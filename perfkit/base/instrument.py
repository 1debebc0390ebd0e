"""Keeps perfkit's hooks, samplers and callbacks from raising into the user's code.

They run in the middle of a training step. An :class:`Instrument` wraps them: if one fails, it is
switched off, the failure is kept so that the result can report it, and the step continues as if
perfkit were not there.

Only the instrument's own errors are caught. ``KeyboardInterrupt`` and ``SystemExit`` propagate, and
so does what a handler of the user's raises where a signal falls into perfkit's work.
Never call user code inside a guard: guard what you do before and after it, or use
:meth:`Instrument.around`.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakMethod

from perfkit.base.uninterrupted import hear, raised_by_handler, surely

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Failure:
    """Why an instrument was switched off.

    Attributes:
        instrument: its name, such as ``the line sampler``.
        during: the function that failed.
        error: the exception in one line.
        where: file and line that raised it.
    """

    instrument: str
    during: str
    error: str
    where: str

    def sentence(self) -> str:
        """The failure in words, for the result."""
        return (
            f"{self.instrument} failed and was switched off ({self.error}, in {self.during} at "
            f"{self.where}): your code ran on without it, and what it saw until then is shown; "
            "please report this as a bug in perfkit"
        )


class Instrument:
    """One instrument and its guard.

    Args:
        name: its name in a sentence, with the article: ``the line sampler``.
        switch_off: called once, at the first failure; it may fail too.
        let_pass: exceptions that are meant for the user, such as a refusal.
    """

    def __init__(
        self,
        name: str,
        *,
        switch_off: Callable[[], object] | None = None,
        let_pass: tuple[type[BaseException], ...] = (),
    ) -> None:
        hear()
        self.name = name
        self.failure: Failure | None = None
        # Mostly a method of what owns this instrument, and as weak: as a cycle, a recording would
        # stay in memory until Python's collector comes by.
        self._switch_off: Callable[[], Callable[[], object] | None] = (
            WeakMethod(switch_off) if isinstance(switch_off, MethodType) else lambda: switch_off
        )
        self._let_pass = let_pass

    @property
    def is_on(self) -> bool:
        """Whether nothing has failed so far."""
        return self.failure is None

    def hook(
        self, function: Callable[_P, _T], *, instead: _T | None = None, even_off: bool = False
    ) -> Callable[_P, _T | None]:
        """Wrap ``function`` so that it cannot raise, and is not called once the instrument is off.

        Args:
            instead: what to return if it fails or is off.
            even_off: it takes something back, and is called after a failure, too.
        """

        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            if self.failure is not None and not even_off:
                return instead
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.caught(error, getattr(function, "__name__", repr(function)))
                return instead

        return guarded

    @contextmanager
    def guard(self, during: str) -> Iterator[None]:
        """Catch what this block raises. The block also runs after a failure, for cleanup.

        Args:
            during: what the block does, for the failure's sentence.
        """
        try:
            yield
        except Exception as error:
            self.caught(error, during)

    def take_back(self, undo: list[Callable[[], object]]) -> None:
        """Call and forget all of these, whatever fails, and where Ctrl-C comes meanwhile, too."""

        def all_of_it() -> None:
            while undo:
                with self.guard("ending"):
                    undo.pop(0)()

        with self.guard("ending"):
            surely(all_of_it)

    @contextmanager
    def around(self, ours: AbstractContextManager[Any]) -> Iterator[None]:
        """Enter and leave ``ours`` around user code, whose exceptions propagate."""
        entered = False
        with self.guard("entering"):
            if self.failure is None:
                ours.__enter__()
                entered = True
        try:
            yield
        finally:
            if entered:
                with self.guard("leaving"):
                    ours.__exit__(*sys.exc_info())

    def fail(self, error: BaseException, during: str) -> None:
        """Switch off because of ``error``, unless it is a handler's: that one is raised again.

        Only the first failure is kept.
        """
        is_a_handlers = False
        with suppress(Exception):  # as below: a program may have replaced what this calls
            is_a_handlers = raised_by_handler(error) is not None
        if is_a_handlers:
            raise error
        if self.failure is not None:
            return
        told, where = type(error).__name__, "an unknown place"
        with suppress(Exception):  # an error may refuse to say what it is
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{_short(last.filename)}:{last.lineno}"
            text = " ".join(str(error).split())
            told = f"{told}: {text[:200]}" if text else told
        self.failure = Failure(self.name, during, told, where)
        switch_off = self._switch_off()
        if switch_off is not None:
            with suppress(Exception):  # the first failure says enough
                switch_off()

    def caught(self, error: Exception, during: str) -> None:
        """As :meth:`fail`, unless it is meant for the user; for what :meth:`guard` would slow."""
        is_meant = False
        with suppress(Exception):  # as in `fail`
            is_meant = isinstance(error, self._let_pass)
        if is_meant:
            raise error
        self.fail(error, during)


def _short(path: str) -> str:
    """The path from perfkit's folder down; for other files only the name."""
    parts = path.replace(os.sep, "/").split("/")
    if "perfkit" in parts:
        return "/".join(parts[len(parts) - 1 - parts[::-1].index("perfkit") :])
    return parts[-1]
