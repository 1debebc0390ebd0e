"""The state rules of advice: each file of this folder registers its own.

To add one, write a function of a :class:`~perfkit.measure.live.Live` in a file beside this one,
decorated with :func:`state`, that yields findings. It is asked between two steps, after the first
one and each doubling of their number, and must not change anything. A finding of this kind needs no
sample: it names the object or the line, says by ``acts_on`` which classes of a step the remedy
shortens, and gets its ceiling from the recorded steps. What all rules of a file need stands in
:data:`NEEDS`, once: where it is not there, the file is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from perfkit.advice.findings import Finding
from perfkit.advice.rules import modules
from perfkit.base.instrument import Failure, Instrument
from perfkit.measure.live import SLOW_FLAGS, Live
from perfkit.measure.memory_looks import may_grow

State = Callable[[Live], Iterable[Finding]]

#: File of state rules -> when they can apply; those of other files always can.
NEEDS: dict[str, Callable[[Live], object]] = {
    "calls": lambda live: (
        live.calls
        or live.n_profiled
        or live.generated
        or any(live.flags.get(one) for one in SLOW_FLAGS)
    ),
    "data": lambda live: live.loaders,
    "graphs": lambda live: live.graphs,
    "memory": lambda live: live.kept or live.in_evaluation or may_grow(live.memory),
    # where memory grows that is looked at, and tracing would be in the way
    "same": lambda live: live.traces_until >= 0 and live.n_steps >= 4 and not may_grow(live.memory),
}

_KNOWN: dict[str, list[State]] = {}
_OF_NOW: set[State] = set()


def state(check: State) -> State:
    """Register a state rule; a decorator."""
    _KNOWN.setdefault(check.__module__, []).append(check)
    return check


def state_of_now(check: State) -> State:
    """The same for a rule about what goes on: what it found counts no more once it finds nothing.

    It is asked within an evaluation in which memory seems to grow, too.
    """
    _OF_NOW.add(check)
    return state(check)


def alive(uses: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """How each module, loader or optimizer that is still there was used, and it."""
    return ((use, one) for use in uses.values() if (one := use.ref()) is not None)


class StateWatch:
    """Asks the state rules at each look, and keeps what each of them said last.

    Objects die before a program ends: what was found of them stays. A rule that raises is asked no
    more.
    """

    def __init__(self, is_ours: Callable[[], bool]) -> None:
        self.live = Live(is_ours)
        self._found: dict[State, tuple[Finding, ...]] = {}
        self._instrument = Instrument("the state rules")

    def start(self) -> None:
        """Begin, in this thread; imports torch."""
        with self._instrument.guard("starting"):
            self.live.start(self._ask)

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        with self._instrument.guard("ending"):
            self.live.stop()

    def _ask(self, live: Live) -> None:
        files = modules(__name__, NEEDS, live)
        for check in (check for file in files for check in _KNOWN.get(file, ())):
            if live.in_evaluation and check not in _OF_NOW:
                continue
            found: tuple[Finding, ...] = ()
            with self._instrument.guard(f"{check.__module__}.{check.__qualname__}"):
                found = tuple(check(live))
            if found or check in _OF_NOW:
                self._found[check] = found

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What of it failed and was switched off."""
        return tuple(f for f in (self.live.failure, self._instrument.failure) if f is not None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(one for found in self._found.values() for one in found)
