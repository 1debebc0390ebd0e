"""What recording itself cost, so that it can be told beside the result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What recording cost.

    Attributes:
        profiled_step_ms: median step while the profiler ran; None where no step was seen.
        unprofiled_step_ms: median of later steps without it; None where none followed.
        n_profiled: how many steps the first figure stands on.
        n_unprofiled: how many the second.
        stop_s: seconds that stopping the profiler took, once.
        read_s: seconds to write the trace out and read it back, once, after the region.
        n_events: events recorded.
    """

    profiled_step_ms: float | None
    unprofiled_step_ms: float | None
    n_profiled: int
    n_unprofiled: int
    stop_s: float
    read_s: float
    n_events: int

    @property
    def slowdown(self) -> float | None:
        """Profiled over unprofiled median step; None where one of them is missing."""
        if not self.profiled_step_ms or not self.unprofiled_step_ms:
            return None
        return self.profiled_step_ms / self.unprofiled_step_ms

    def sentence(self) -> str:
        """The same in words."""
        parts = []
        if self.slowdown is not None:
            parts.append(
                f"a profiled step took {self.profiled_step_ms:,.1f} ms (n={self.n_profiled}), "
                f"an unprofiled one {self.unprofiled_step_ms:,.1f} ms (n={self.n_unprofiled}): "
                f"{(self.slowdown - 1) * 100:+.0f} %"
            )
        elif self.profiled_step_ms is not None:
            parts.append(
                f"a profiled step took {self.profiled_step_ms:,.1f} ms (n={self.n_profiled}); "
                "no unprofiled step followed to compare it with"
            )
        parts.append(
            f"stopping {self.stop_s:.2f} s and reading {self.read_s:.2f} s, once "
            f"({self.n_events:,} events)"
        )
        return "Profiling cost: " + "; ".join(parts) + "."
