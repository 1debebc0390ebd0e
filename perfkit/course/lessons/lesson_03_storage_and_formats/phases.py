"""How long each phase of a chain takes: read → decode → transform → train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_ms, fmt_share
from perfkit.measure.clock import clock_in_use
from perfkit.measure.summary import Summary, summarize
from perfkit.show.plain_text import table


@dataclass(frozen=True, repr=False)
class Phases:
    """Times of the phases of a chain.

    Attributes:
        times: phase → milliseconds per item (median with interval), in order.
    """

    times: Mapping[str, Summary]

    @property
    def shares(self) -> dict[str, float]:
        """Each phase's share of the sum of the medians, 0 to 1."""
        total = sum(one.median for one in self.times.values())
        return {name: one.median / total for name, one in self.times.items()}

    def __repr__(self) -> str:
        rows = [
            (
                name,
                fmt_ms(one.median),
                f"[{fmt_ms(one.low)}, {fmt_ms(one.high)}]",
                fmt_share(self.shares[name]),
            )
            for name, one in self.times.items()
        ]
        return table(("phase", "median", "95 % interval", "share"), rows)


def time_phases(
    phases: Mapping[str, Callable[[Any], Any]], items: Sequence[Any], *, rounds: int = 1
) -> Phases:
    """Run each item through all phases; each phase gets the previous one's result.

    It waits for the device after each phase, so that its work counts there. The first item runs
    once beforehand, untimed.

    Args:
        phases: name → function of one argument, in order.
        items: inputs of the first phase.
        rounds: how often to run all items.

    Returns:
        The times of the phases.

    Raises:
        UsageError: no phases, no items, or no rounds.
    """
    if not phases or not items or rounds < 1:
        raise UsageError("time_phases needs at least one phase, one item and one round")
    value = items[0]
    for function in phases.values():
        value = function(value)
    clock = clock_in_use()
    clock.settle()
    times: dict[str, list[float]] = {name: [] for name in phases}
    for _ in range(rounds):
        for item in items:
            value = item
            for name, function in phases.items():
                start = clock.now()
                value = function(value)
                clock.settle()
                times[name].append((clock.now() - start) / 1e6)
    return Phases({name: summarize(found) for name, found in times.items()})
