"""What changed between two traces: operators and kernels that came, went, grew or shrank.

Everything is per step, so that traces with different numbers of steps can be held against each
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfkit.base.display import Shown
from perfkit.trace.ask.breakdown import DEVICE_CLASSES, HOST_CLASSES, Breakdown, breakdown
from perfkit.trace.ask.kernels import kernels
from perfkit.trace.ask.operators import operators
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.events import together
from perfkit.trace.read.steps import Steps, find_steps

# Below this a change is the noise of two runs, not a change of the program: the larger of 1 µs a
# step and a tenth of the entry's own time.
_LEAST_MS = 0.001
_LEAST_RATIO = 0.1


@dataclass(frozen=True)
class Change:
    """One operator or kernel in both traces; times are per step.

    Attributes:
        kind: ``op`` (self time on the host) or ``kernel`` (time on the device).
        name: as recorded.
        status: ``came``, ``went``, ``grew``, ``shrank`` or ``same``.
        before_ms: ms a step in the first trace.
        after_ms: ms a step in the second.
        before_count: calls a step in the first trace.
        after_count: calls a step in the second.
    """

    kind: str
    name: str
    status: str
    before_ms: float
    after_ms: float
    before_count: float
    after_count: float

    @property
    def delta_ms(self) -> float:
        """Change in ms a step; negative where it became shorter."""
        return self.after_ms - self.before_ms


@dataclass(frozen=True)
class Diff(Shown):
    """The second trace against the first.

    Attributes:
        before_step_ms: median step of the first trace in ms.
        after_step_ms: of the second.
        host_ms: host class → (before, after): mean ms a step.
        device_ms: device class → the same; empty unless both traces hold a device.
        changes: the largest change in ms a step first, whatever its sign; ``same`` at the end.
        names: what the two traces are called.
    """

    before_step_ms: float
    after_step_ms: float
    host_ms: Mapping[str, tuple[float, float]]
    device_ms: Mapping[str, tuple[float, float]]
    changes: tuple[Change, ...]
    names: tuple[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """First step over second: how many times as fast the second is.

        Of one run each: no interval can be given.
        """
        return self.before_step_ms / self.after_step_ms if self.after_step_ms else float("inf")


def diff(
    before: Trace, after: Trace, before_steps: Steps | None = None, after_steps: Steps | None = None
) -> Diff:
    """What came, went, grew and shrank from one trace to another.

    Args:
        before: the first trace.
        after: the second.
        before_steps: steps of the first; found from the trace where not given.
        after_steps: steps of the second, likewise.
    """
    steps = (
        find_steps(before) if before_steps is None else before_steps,
        find_steps(after) if after_steps is None else after_steps,
    )
    splits = (breakdown(before, steps[0]), breakdown(after, steps[1]))
    old, new = _costs(before, steps[0]), _costs(after, steps[1])
    changes = []
    for kind, name in {**old, **new}:
        (a_ms, a_count), (b_ms, b_count) = (
            side.get((kind, name), (0.0, 0.0)) for side in (old, new)
        )
        changes.append(
            Change(kind, name, _status(a_ms, a_count, b_ms, b_count), a_ms, b_ms, a_count, b_count)
        )
    changes.sort(key=lambda c: (c.status == "same", -abs(c.delta_ms), c.kind, c.name))
    doubts = []
    if splits[0].has_device != splits[1].has_device:
        doubts.append("only one of the traces holds device activities")
    if splits[0].how_found != splits[1].how_found:
        doubts.append(
            f"steps were found in two ways ({splits[0].how_found}; {splits[1].how_found}): "
            "figures per step may not compare"
        )
    both = splits[0].has_device and splits[1].has_device
    return Diff(
        before_step_ms=splits[0].median_step_ms,
        after_step_ms=splits[1].median_step_ms,
        host_ms=_classes(splits, HOST_CLASSES, "host_ns"),
        device_ms=_classes(splits, DEVICE_CLASSES, "device_ns") if both else {},
        changes=tuple(changes),
        names=(before.source or "first", after.source or "second"),
        warnings=together(
            (f"first: {w}" for w in (*before.warnings, *splits[0].warnings)),
            (f"second: {w}" for w in (*after.warnings, *splits[1].warnings)),
            doubts,
        ),
    )


def _costs(trace: Trace, steps: Steps) -> dict[tuple[str, str], tuple[float, float]]:
    """(kind, name) → ms and calls a step."""
    n = max(len(steps), 1)
    costs = {("op", o.name): (o.self_us / 1e3 / n, o.count / n) for o in operators(trace, steps)}
    for k in kernels(trace, steps).kernels:
        costs["kernel", k.name] = (k.total_us / 1e3 / n, k.count / n)
    return costs


def _status(before_ms: float, before_count: float, after_ms: float, after_count: float) -> str:
    if not before_count:
        return "came"
    if not after_count:
        return "went"
    delta = after_ms - before_ms
    if abs(delta) < max(_LEAST_MS, _LEAST_RATIO * before_ms):
        return "same"
    return "grew" if delta > 0 else "shrank"


def _classes(
    splits: tuple[Breakdown, Breakdown], classes: tuple[str, ...], which: str
) -> dict[str, tuple[float, float]]:
    means = [
        {
            c: sum(getattr(s, which)[c] for s in split.steps) / 1e6 / max(len(split.steps), 1)
            for c in classes
        }
        for split in splits
    ]
    return {c: (means[0][c], means[1][c]) for c in classes}
