"""What is recorded of a run, and when."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.base.arguments import check_whole

STEPS = 6
#: The first steps of a script compile, choose algorithms and fill caches.
WARMUP = 5
#: The second step is the first one with all gradients and optimizer states.
MEMORY_STEPS = 2
#: Steps in which waits are looked for; a step takes about four times as long.
SYNCLINT_STEPS = 2
_MOST_STEPS = 1000
_MOST_WARMUP = 10_000_000


@dataclass(frozen=True)
class Options:
    """What to record of a run.

    Attributes:
        warmup: steps to let pass before; at least one, because the first one includes the set-up.
        memory: account for the memory of the first steps, from the first forward pass on.
        synclint: look for lines that make a GPU wait, in two steps after these.
        shapes: record the shapes of operators' inputs; they are anyway where this machine's peaks
            are known.
    """

    steps: int = STEPS
    warmup: int = WARMUP
    memory: bool = False
    memory_steps: int = MEMORY_STEPS
    synclint: bool = False
    stacks: bool = False
    shapes: bool = False

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 1, _MOST_STEPS)
        check_whole("warmup", self.warmup, 1, _MOST_WARMUP)
        check_whole("memory_steps", self.memory_steps, 1, _MOST_WARMUP)

    @property
    def synclint_from(self) -> int:
        """After how many steps the look for waits begins."""
        return self.memory_steps if self.memory else 1

    @property
    def n_slowed(self) -> int:
        """Steps that are slow because of what perfkit looks for in them; in the last it ends."""
        if self.synclint:
            return self.synclint_from + SYNCLINT_STEPS + 1
        return self.memory_steps + 1 if self.memory else 0

    @property
    def n_left_out(self) -> int:
        """First steps that no figure of the steps is of: the first one holds the set-up."""
        return max(self.n_slowed, 1)
