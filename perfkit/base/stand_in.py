"""Functions of somebody else's, replaced by ours for a while, and who listens to their calls."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from perfkit.base.uninterrupted import Uninterrupted


def stand_in(owner: Any, name: str, ours: Callable[..., Any]) -> Callable[[], None]:
    """Put ``ours`` where ``owner.name`` is; returns how to put back what was there.

    It is put back only while ours is still there. Whoever has replaced it since keeps his, and may
    go on calling ours: from then on it must do nothing but call the original. If that was another
    of ours, the original comes back once both have ended, whichever ends first.

    Args:
        owner: a module, a class or an object.
        name: of its function.
        ours: a function that is put nowhere else.
    """
    theirs = vars(owner).get(name, _INHERITED)
    setattr(owner, name, ours)

    def put_back() -> None:
        _ended[ours] = theirs
        if vars(owner).get(name) is not ours:
            return
        back = theirs
        while isinstance(back, FunctionType) and back in _ended:
            back = _ended[back]
        if back is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, back)

    return put_back


_INHERITED = object()
#: Ours that have ended, and what each had replaced: one of a later begin may still call it.
_ended: weakref.WeakKeyDictionary[Callable[..., Any], Any] = weakref.WeakKeyDictionary()


# Two may begin or end at once, and what is replaced is the process's.
_one_thread = threading.RLock()

#: Called as the call ends, with what it returned; None where it raised.
CallEnd = Callable[[Any], None]


class Calls:
    """The calls of what one installation has replaced.

    Somebody who has replaced ours since may go on calling it after that installation has ended:
    then nobody listens here, whoever listens to a later one.

    Attributes:
        begin: tells all listeners.
    """

    def __init__(self) -> None:
        self.begin: Callable[..., CallEnd | None] = _nobody_listens

    def around(self, original: Callable[..., Any], *, told: str = "") -> Callable[..., Any]:
        """``original`` with the listeners, who are told nothing but that it is called.

        Or this attribute of each element of its first argument: not tensors, as torch.compile
        looks into each function that is called with one.
        """

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if told:
                each = itertools.repeat(told), itertools.repeat(None)
                end = self.begin([*map(getattr, args[0], *each)])
            else:
                end = self.begin()
            if end is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                end(None)

        return call


class Listeners:
    """Listeners to calls of functions of torch, which are replaced while there is one.

    A listener is called before the call, and returns what is to be called at its end, or None. It
    must not raise. They nest, the last one outermost; each may be removed at any time. There are
    several such calls a step: what is not needed for one listener is left out for one.
    """

    def __init__(self, install: Callable[[Calls], Callable[[], None]]) -> None:
        self._install = install
        self._undo: Callable[[], None] | None = None
        self._begins: tuple[Callable[..., CallEnd | None], ...] = ()
        self._calls = Calls()

    def add(self, begins: Callable[..., CallEnd | None]) -> Callable[[], None]:
        """Call ``begins`` from now on; returns how to stop."""
        token = functools.partial(begins)  # the same function may be added twice

        def stop() -> None:
            with _one_thread, Uninterrupted():
                self._listen(tuple(one for one in self._begins if one is not token))
                if not self._begins and self._undo is not None:
                    self._undo()  # where it raises, the next listener's end tries again
                    self._undo = None

        try:
            with _one_thread, Uninterrupted():
                if self._undo is None:
                    self._calls = Calls()
                    self._undo = self._install(self._calls)
                self._listen((*self._begins, token))
        except BaseException:  # Ctrl-C meanwhile: nobody gets the way to stop
            stop()
            raise
        return stop

    def _listen(self, begins: tuple[Callable[..., CallEnd | None], ...]) -> None:
        self._begins = begins
        one = begins[0] if begins else _nobody_listens
        self._calls.begin = one if len(begins) < 2 else self._begin_all

    def _begin_all(self, *facts: Any) -> CallEnd | None:
        ends: list[CallEnd] = []
        for begins in reversed(self._begins):
            end = begins(*facts)
            if end is not None:
                ends.append(end)
        if len(ends) < 2:
            return ends[0] if ends else None

        def end_all(result: Any) -> None:
            for end in reversed(ends):
                end(result)

        return end_all


def _nobody_listens(*facts: Any) -> None:
    return None
