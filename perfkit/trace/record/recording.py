"""What a recorder leaves: the trace of a few steps, and all that no trace says."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.words import fmt_s
from perfkit.trace.read.columns import Trace
from perfkit.trace.record.cost import Cost
from perfkit.trace.record.elsewhere import Elsewhere
from perfkit.trace.record.facts import Facts
from perfkit.trace.record.lines import LineSamples
from perfkit.trace.record.step_log import Coverage
from perfkit.trace.record.waits import waiting_share

# The recorded part is a wait for others from this share of its samples on.
_MOSTLY = 0.5


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded region.

    Attributes:
        trace: the events.
        n_steps_seen: steps of the whole region, profiled or not.
        n_steps_profiled: steps that the trace's marks cover.
        cost: what recording cost.
        lines: samples of source lines, of steps like the recorded ones, recorded or not; of the
            whole region where it has none.
        worker_lines: the same of the DataLoader's workers, of the whole region.
        process_lines: the same of other processes that the region starts.
        facts: what the trace does not say.
        raw: the trace as torch wrote it, JSON.
        coverage: what part of the region the figures are of.
        warnings: what is doubtful.
        elsewhere: the region's time outside of steps like the recorded ones; None where no step
            was recorded.
        busy: what else the machine did meanwhile.
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
            if waiting_share(self.lines) >= _MOSTLY
            else "to see steps, profile the loop that calls optimizer.step(), or one step by "
            "itself: %torchprof train_step()"
        )
        return (
            "No step was found: in this thread no optimizer stepped and no batch of a DataLoader "
            f"made one, so the figures are of the first {fmt_s(self.coverage.profiled_s)} of your "
            f"code as one piece; {do}."
        )

    def __repr__(self) -> str:
        return (
            f"<Recording of {self.n_steps_profiled} of {self.n_steps_seen} steps: {self.trace!r}>"
        )
