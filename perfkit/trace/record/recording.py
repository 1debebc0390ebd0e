"""What a recorder leaves: the trace of a few steps, and all that no trace says."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.words import fmt_ms, fmt_s, plural
from perfkit.trace.read.columns import Trace
from perfkit.trace.record.elsewhere import Elsewhere
from perfkit.trace.record.facts import Facts
from perfkit.trace.record.lines import LineSamples, is_wait
from perfkit.trace.record.step_log import Coverage

# The recorded part is a wait for others from this share of its samples on.
_MOSTLY = 0.5


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded region.

    Attributes:
        n_steps_profiled: steps that the trace's marks cover.
        lines: samples of source lines, of steps like the recorded ones, recorded or not; of the
            whole region where it has none.
        n_foreign_steps: optimizer steps in other threads, which are not recorded.
        unprofiled_ms: lengths of steps that followed the recorded ones, by the host's clock.
    """

    trace: Trace
    n_steps_seen: int
    n_steps_profiled: int
    cost: Cost
    lines: LineSamples
    worker_lines: LineSamples
    process_lines: LineSamples
    facts: Facts
    raw: bytes
    coverage: Coverage
    warnings: tuple[str, ...]
    elsewhere: Elsewhere | None = None
    busy: CpuContention | None = None
    n_foreign_steps: int = 0
    unprofiled_ms: tuple[float, ...] = ()

    def no_step(self) -> str:
        """That the region has no step at all, and what to do; empty where an optimizer stepped.

        A loop over a DataLoader has steps without an optimizer: who finds these says nothing.
        """
        if self.n_steps_seen:
            return ""
        do = (
            "profile in the thread that trains"
            if self.n_foreign_steps
            else "this thread mostly waits for others: profile in the thread or process that trains"
            if self.lines.share_of(is_wait) >= _MOSTLY
            else "to see steps, profile the loop that calls optimizer.step(), or one step by "
            "itself: %torchprof train_step()"
        )
        return (
            "No step was found: in this thread no optimizer stepped and no batch of a DataLoader "
            f"made one, so the figures are of the first {fmt_s(self.coverage.profiled_s)} of your "
            f"code as one piece; {do}."
        )

    def __repr__(self) -> str:
        n, n_seen = self.n_steps_profiled, self.n_steps_seen
        return f"<Recording of {n} of {n_seen} steps: {self.trace!r}>"


# A profiler makes no step so many times as long: 1.7 times was measured for tiny operations on a
# CPU, 1.9 times for a ResNet-50 on an H100. Steps that compile, load or wait are.
_MOST_SLOWDOWN = 3.0
# Marks and hooks may add this much to any step, also to one of microseconds.
_FIXED_MS = 1.0
# A profiler makes nothing faster: below this share of the others, the steps themselves differ.
_LEAST_SLOWDOWN = 0.9


@dataclass(frozen=True)
class Cost:
    """What recording cost.

    Attributes:
        profiled_step_ms: median step while the profiler ran; None where no step was seen.
        unprofiled_step_ms: median of later steps without it, which still have perfkit's hooks (the
            end of a step is seen, lines are sampled); None where none followed.
        stop_s: seconds that stopping the profiler took, once.
        read_s: seconds to write the trace out and read it back, once, after the region.
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
    def plain_step_ms(self) -> float | None:
        """``unprofiled_step_ms`` where those are the same steps but for the profiler; else None."""
        plain, profiled = self.unprofiled_step_ms, self.profiled_step_ms
        if not plain or not profiled:
            return None
        most = _MOST_SLOWDOWN * plain + _FIXED_MS
        return plain if _LEAST_SLOWDOWN * plain <= profiled <= most else None

    def sentence(self) -> str:
        parts = []
        if self.profiled_step_ms and self.unprofiled_step_ms:
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
