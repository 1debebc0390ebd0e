"""``perfkit.energy``: joules per step and per sample, where the machine has counters for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from perfkit.base.arguments import check_function, check_seconds, check_whole
from perfkit.base.display import Shown
from perfkit.base.machine import Provenance, stamp
from perfkit.base.machine.cpu_contention import ContentionMark
from perfkit.base.machine.energy import joules_between, read_energy
from perfkit.measure.clock import Clock, clock_in_use

# NVML's counter moves every 20 to 100 ms: shorter blocks would show its steps.
_BLOCK_S = 1.0
_FEWEST_BLOCKS = 3
_WARM_UP = 2
_REST_S = 1.0

_WHOLE = (
    "a counter sees all that runs on its package or board: other programs and, on a rented "
    "machine, other tenants are in it"
)


@dataclass(frozen=True)
class EnergyOf:
    """What one counter saw.

    Attributes:
        joules_per_step: median of the blocks.
        low, high: least and most of the blocks, in J a step.
        watts: mean while the steps ran.
        resting_watts: mean of a second before them, in which this program did nothing.
    """

    what: str
    joules_per_step: float
    low: float
    high: float
    watts: float
    resting_watts: float | None


@dataclass(frozen=True)
class Energy(Shown):
    """Energy of a step.

    Attributes:
        counters: one for each that can be read; empty where none can.
        step_ms, n_steps: mean length of a step, and how many ran in the blocks.
        n_blocks: of about a second each, or of one step where that takes longer.
        unread: why a counter that is there could not be read.
    """

    counters: tuple[EnergyOf, ...]
    samples_per_step: int | None
    step_ms: float
    n_steps: int
    n_blocks: int
    unread: tuple[str, ...]
    provenance: Provenance
    warnings: tuple[str, ...] = field(default=())

    @property
    def joules_per_step(self) -> float | None:
        """Of all counters together; None where there is none."""
        return sum(c.joules_per_step for c in self.counters) if self.counters else None

    @property
    def joules_per_sample(self) -> float | None:
        """The same for a sample; None where their number is not known."""
        whole = self.joules_per_step
        return None if whole is None or not self.samples_per_step else whole / self.samples_per_step


def energy(
    step: Callable[[], object], *, samples_per_step: int | None = None, budget_s: float = 5.0
) -> Energy:
    """Joules per step and per sample, from the counters of the CPU and of NVIDIA GPUs.

    The step is called for ``budget_s`` in blocks of about a second, after a second of rest that
    shows what the machine draws anyway. Most machines let only root read the CPU's counter, and
    virtual machines have none: then the result says so, and holds no figure.

    Args:
        step: a training step, called without arguments.
        samples_per_step: how many samples it has, e.g. the batch size.
        budget_s: for how long to call it; not less than three blocks.

    Returns:
        An :class:`Energy`: ``joules_per_step``, ``joules_per_sample``, ``counters``.

    Raises:
        UsageError: ``step`` cannot be called, or a number is invalid.

    Example::

        >>> weight = torch.rand(512, 512)
        >>> print(perfkit.energy(lambda: weight @ weight, samples_per_step=512))
    """
    __tracebackhide__ = True
    check_function("step", step)
    check_seconds("budget_s", budget_s)
    if samples_per_step is not None:
        check_whole("samples_per_step", samples_per_step, 1)
    for _ in range(_WARM_UP):
        step()
    clock = clock_in_use()  # after the first steps: they may have begun to use a device
    clock.settle()
    first = read_energy()
    if not first.joules:
        return Energy((), samples_per_step, 0.0, 0, 0, first.unread, stamp("measured here"))
    rest = _block(lambda: time.sleep(_REST_S), clock)
    mark, blocks = ContentionMark(), list[_Block]()
    while len(blocks) < _FEWEST_BLOCKS or sum(one.seconds for one in blocks) < budget_s:
        blocks.append(_block(step, clock))
    busy = mark.until_now()
    n_steps = sum(one.n_steps for one in blocks)
    counters = []
    for what in first.joules:
        # a block in which it could not be read is in neither sum
        read = [one for one in blocks if what in one.joules]
        if read:
            each = [one.joules[what] / one.n_steps for one in read]
            watts = sum(one.joules[what] for one in read) / sum(one.seconds for one in read)
            resting = rest.joules[what] / rest.seconds if what in rest.joules else None
            counters.append(EnergyOf(what, median(each), min(each), max(each), watts, resting))
    return Energy(
        counters=tuple(counters),
        samples_per_step=samples_per_step,
        step_ms=1e3 * sum(one.seconds for one in blocks) / n_steps,
        n_steps=n_steps,
        n_blocks=len(blocks),
        unread=first.unread,
        provenance=stamp("measured here"),
        warnings=(_WHOLE, *((busy.sentence(),) if busy.spoils else ())),
    )


class _Block(NamedTuple):
    """Steps of about a second, and what the counters saw of them."""

    n_steps: int
    seconds: float
    joules: dict[str, float]


def _block(step: Callable[[], object], clock: Clock) -> _Block:
    __tracebackhide__ = True
    n = 0
    before, began_s = read_energy(), time.perf_counter()
    while not n or time.perf_counter() - began_s < _BLOCK_S:
        step()
        n += 1
    clock.settle()
    after, seconds = read_energy(), time.perf_counter() - began_s
    return _Block(n, seconds, joules_between(before, after))
