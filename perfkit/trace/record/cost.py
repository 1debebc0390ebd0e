"""What recording itself cost, so that it can be told beside the result."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.base.words import fmt_ms, fmt_s, plural

# A profiler makes no step so many times as long: 1.7 times was measured for tiny operations on a
# CPU, 1.9 times for a ResNet-50 on an H100. Steps that compile, load or wait are.
_MOST_SLOWDOWN = 3.0
# Marks and hooks may add this much to any step, also to one of microseconds.
_FIXED_MS = 1.0
# A profiler makes nothing faster; where recorded steps took less than this share of the others, the
# steps themselves differ.
_LEAST_SLOWDOWN = 0.9


@dataclass(frozen=True)
class Cost:
    """What recording cost.

    Attributes:
        profiled_step_ms: median step while the profiler ran; None where no step was seen.
        unprofiled_step_ms: median of later steps without it, which still have perfkit's hooks (the
            end of a step is seen, lines are sampled); None where none followed.
        n_profiled: how many steps the first figure stands on.
        n_unprofiled: how many the second.
        stop_s: seconds that stopping the profiler took, once.
        read_s: seconds to write the trace out and read it back, once, after the region.
        n_events: events recorded.
        stays_attached: whether launches stay slower until the process ends.
    """

    profiled_step_ms: float | None
    unprofiled_step_ms: float | None
    n_profiled: int
    n_unprofiled: int
    stop_s: float
    read_s: float
    n_events: int
    stays_attached: bool = False

    @property
    def slowdown(self) -> float | None:
        """Profiled over unprofiled median step; None where one of them is missing."""
        if not self.profiled_step_ms or not self.unprofiled_step_ms:
            return None
        return self.profiled_step_ms / self.unprofiled_step_ms

    @property
    def plain_step_ms(self) -> float | None:
        """``unprofiled_step_ms`` where those are the same steps but for the profiler; else None."""
        plain, profiled = self.unprofiled_step_ms, self.profiled_step_ms
        if not plain or not profiled:
            return None
        if not _LEAST_SLOWDOWN * plain <= profiled <= _MOST_SLOWDOWN * plain + _FIXED_MS:
            return None
        return plain

    def sentence(self) -> str:
        """The same in words."""
        parts = []
        if self.slowdown is not None:
            parts.append(
                f"a profiled step took {fmt_ms(self.profiled_step_ms)} (n={self.n_profiled}), "
                f"one after recording, which still has perfkit's hooks, "
                f"{fmt_ms(self.unprofiled_step_ms)} (n={self.n_unprofiled})"
                + ", but the steps themselves differ, so the cost is unknown"
                * (self.plain_step_ms is None)
            )
        elif self.profiled_step_ms is not None:
            parts.append(
                f"a profiled step took {fmt_ms(self.profiled_step_ms)} (n={self.n_profiled}); "
                "none followed to compare it with"
            )
        parts.append(
            f"stopping {fmt_s(self.stop_s)} and reading {fmt_s(self.read_s)}, once "
            f"({plural(self.n_events, 'event')})"
        )
        if self.stays_attached:
            parts.append(
                "from now on every launch of this process takes longer, until you restart it: "
                "CUPTI stays attached (CUDA 12.6 or later lets it go, unless the environment "
                "variable TEARDOWN_CUPTI is 0)"
            )
        return "Profiling cost: " + "; ".join(parts) + "."
