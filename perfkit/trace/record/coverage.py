"""What part of a region a recording covers, so that nobody takes a few steps for the whole."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.base.words import fmt_s, fmt_share, plural


@dataclass(frozen=True)
class Coverage:
    """What part of a region was profiled.

    Attributes:
        n_steps_seen: steps of the region, profiled or not.
        first_step: the first profiled one, counted from 1; 0 where none was marked.
        last_step: the last one.
        profiled_s: how long was profiled, in seconds: the marked steps, or where there are none
            what is shown in their place.
        region_s: how long the region took, in seconds, without the profiler's own stop.
    """

    n_steps_seen: int
    first_step: int
    last_step: int
    profiled_s: float
    region_s: float

    @property
    def share(self) -> float:
        """Profiled time as a share of the region's, 0 to 1."""
        return min(self.profiled_s / self.region_s, 1.0) if self.region_s > 0 else 1.0

    def sentence(self) -> str:
        """The same in words."""
        part = f"{fmt_share(self.share)} of the code's {fmt_s(self.region_s)}"
        if not self.first_step:
            return f"The figures cover {part}."
        steps = (
            f"step {self.first_step}"
            if self.first_step == self.last_step
            else f"steps {self.first_step}–{self.last_step}"
        )
        n = self.last_step - self.first_step + 1
        return f"Profiled: {n} of {plural(self.n_steps_seen, 'step')} ({steps}), {part}."
