"""Lesson 18: several versions of a program, timed in turn, from the first to the last and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from perfkit.base.budget import budget_scale, scaled
from perfkit.base.errors import UsageError
from perfkit.measure.clock import Clock, clock_in_use

#: Fewer rounds would show no range.
_FEWEST = 3


@dataclass(frozen=True)
class Fall:
    """What one more fix takes off.

    Attributes:
        name: of the fix.
        from_ms, to_ms: medians of the program before it and with it.
        low_ms, high_ms: the least and the most that it took off in a round; below zero if it made
            the program slower there.
    """

    name: str
    from_ms: float
    to_ms: float
    low_ms: float
    high_ms: float

    @property
    def gain_ms(self) -> float:
        """Milliseconds that the fix takes off."""
        return self.from_ms - self.to_ms

    @property
    def is_seen(self) -> bool:
        """Whether it took time off in every round, and not by chance in some."""
        return self.low_ms > 0

    @property
    def ratio(self) -> float:
        """How many times as fast the program is with this fix, after those before it."""
        return self.from_ms / self.to_ms


@dataclass(frozen=True)
class Stages:
    """Versions of one program, each with one fix more than that before it.

    Attributes:
        names: of the versions; the first has no fix.
        times_ms: for each version its time in each round.
    """

    names: tuple[str, ...]
    times_ms: tuple[tuple[float, ...], ...]

    @property
    def rounds(self) -> int:
        """How often each version ran."""
        return len(self.times_ms[0])

    @property
    def medians_ms(self) -> tuple[float, ...]:
        """One for each version."""
        return tuple(median(times) for times in self.times_ms)

    @property
    def falls(self) -> tuple[Fall, ...]:
        """One for each fix, in the order in which they were made."""
        found = []
        for at in range(1, len(self.names)):
            before, after = self.times_ms[at - 1], self.times_ms[at]
            each = [x - y for x, y in zip(before, after, strict=True)]
            found.append(Fall(self.names[at], median(before), median(after), min(each), max(each)))
        return tuple(found)

    @property
    def table(self) -> str:
        """As text: each version, its time, what the last fix took off, and how much in rounds."""
        lines = [f"{self.names[0]:<22} {self.medians_ms[0]:7,.0f} ms"]
        for fall in self.falls:
            seen = f"{fall.ratio:5.2f}×" if fall.is_seen else "  not seen"
            lines.append(
                f"+ {fall.name:<20} {fall.to_ms:7,.0f} ms   {-fall.gain_ms:+6,.0f} ms "
                f"[{-fall.high_ms:+,.0f}, {-fall.low_ms:+,.0f}] {seen}"
            )
        lines.append(f"medians and ranges of {self.rounds} rounds, in turn")
        return "\n".join(lines)


def in_turn(
    programs: Mapping[str, Callable[[], object]], *, budget_s: float, clock: Clock | None = None
) -> Stages:
    """Time programs in rounds: from the first to the last, then back, until the budget is spent.

    Rounds go both ways, so that a machine that becomes slower or faster meanwhile favours none.

    Args:
        programs: name → function without arguments; the first is the slow one. Only the last,
            the fastest, runs once before the first round.
        budget_s: seconds after which no further round begins; three are always made.
            ``PERFKIT_BUDGET_SCALE`` multiplies it; below 1, one round is enough.
        clock: the clock to use; by default that of the device in use.

    Raises:
        UsageError: there are fewer than two programs.
    """
    if len(programs) < 2:
        raise UsageError("in_turn compares programs: give it two or more")
    programs[list(programs)[-1]]()  # torch's own first calls, in the cheapest version
    clock = clock_in_use() if clock is None else clock
    times: dict[str, list[float]] = {name: [] for name in programs}
    end = time.monotonic() + scaled(budget_s)
    fewest = _FEWEST if budget_scale() >= 1 else 1
    forwards = True
    while len(times[next(iter(programs))]) < fewest or time.monotonic() < end:
        for name in programs if forwards else list(programs)[::-1]:
            clock.settle()
            begun = clock.now()
            programs[name]()
            clock.settle()
            times[name].append((clock.now() - begun) / 1e6)
        forwards = not forwards
    return Stages(tuple(programs), tuple(tuple(found) for found in times.values()))
