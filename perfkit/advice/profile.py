"""A profile: recorded steps, explained."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.diagnose import Diagnosis, diagnose, uncapital
from perfkit.advice.findings import Finding
from perfkit.advice.outside import of_the_program
from perfkit.base.compiling import CompileReport
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.plain import fields
from perfkit.base.printable import printable
from perfkit.base.words import fmt_share
from perfkit.measure.summary import Summary, summarize
from perfkit.trace.ask.breakdown import Breakdown, breakdown
from perfkit.trace.ask.operators import Operator
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.events import is_communication
from perfkit.trace.read.steps import WHOLE, Steps, find_steps, n_backward_passes
from perfkit.trace.record.elsewhere import Elsewhere
from perfkit.trace.record.facts import Facts
from perfkit.trace.record.lines import NO_LINES, LineSamples
from perfkit.trace.record.recording import Cost, Recording
from perfkit.trace.record.step_log import Coverage

if TYPE_CHECKING:
    from perfkit.trace.ask.limit import Limit
    from perfkit.trace.ask.syncs import Sync
    from perfkit.trace.ask.waterfall import Waterfall

# Kineto's first traces are from 2020. What is outside these years counts from boot, say: no date.
_KINETO_FROM_S, _KINETO_UNTIL_S = 1_577_836_800, 4_102_444_800
# From this share of the recorded steps on, evaluation within them is told.
_LEAST_EVALUATED = 0.05
# What a profile has as the recording has it.
_AS_RECORDED = (
    "lines", "worker_lines", "process_lines", "cost", "raw", "coverage", "elsewhere", "busy",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Profile(Shown):
    """Recorded steps, explained.

    Attributes:
        lines: of all steps like these, sorted by share of samples; empty for a trace from a file.
        worker_lines: the same of the DataLoader's workers, of the whole code.
        process_lines: the same of other processes that the code starts.
        step: the profiled steps' lengths in ms (median, interval, n), without empty steps.
        cost, coverage, elsewhere, busy: what profiling cost, which part of the code the figures
            describe, its time outside steps like these, and what else the machine was doing; None
            for a trace from a file.
        nothing: why there is nothing to explain; empty if operators were recorded.
        is_piece: whether no step was found, so that all figures are of the whole as one piece.
        compiled: what ``torch.compile`` did in the whole code, not only in the profiled steps; None
            if nothing was compiled, and for a trace from a file.
        whole: host class → share of all steps of the run, where they are known; else None.
        device_shares: device class → share of a step; empty without a device.
        limit: the steps beside their lower bound on the device; None without recorded shapes.
        raw: the trace as torch wrote it (JSON); empty for a trace from a file.
    """

    breakdown: Breakdown
    operators: tuple[Operator, ...]
    lines: LineSamples
    syncs: tuple[Sync, ...]
    diagnosis: Diagnosis
    step: Summary
    cost: Cost | None
    provenance: Provenance
    n_steps: int
    warnings: tuple[str, ...]
    trace: Trace = field(repr=False)
    raw: bytes = field(repr=False, default=b"")
    coverage: Coverage | None = None
    elsewhere: Elsewhere | None = None
    busy: CpuContention | None = None
    nothing: str = ""
    is_piece: bool = False
    compiled: CompileReport | None = None
    limit: Limit | None = None
    worker_lines: LineSamples = NO_LINES
    process_lines: LineSamples = NO_LINES
    whole: Mapping[str, float] | None = None
    device_shares: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def waterfall(self) -> Waterfall | None:
        """From the step down to its lower bound, cause by cause; None without recorded steps."""
        if self.nothing or self.is_piece:
            return None
        try:
            return self.waterfall_on(None)
        except Exception:  # a trace of a kind that nobody has seen must not cost the report
            return None

    def waterfall_on(self, device: str | None) -> Waterfall:
        """The same with the rates of this device; ``"here"`` for this machine's measured ones.

        Raises:
            UsageError: ``device`` is another than the recorded one, or no data sheet of it is
                known.
        """
        from perfkit.trace.ask.waterfall import waterfall

        return waterfall(
            self.trace,
            device=device,
            plain_ms=None if self.cost is None else self.cost.plain_step_ms,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the events, as plain JSON types."""
        covered, fall, least = self.coverage, self.waterfall, self.limit
        instead = {
            "type": "profile",
            **self.diagnosis.to_dict(),
            **({"sentence": self.nothing} if self.nothing else {}),
            "how_found": self.breakdown.how_found,
            "step_ms": self.step,
            "shares": self.breakdown.shares() if self.whole is None else self.whole,
            "steps": [
                {"name": s.name, "wall_us": s.wall_us, "host_us": s.host_us}
                | ({"device_us": s.device_us} if s.device_ns else {})
                for s in self.breakdown.steps
            ],
            "coverage": covered and {**asdict(covered), "share": covered.share},
            "limit": least and least.summary(),
            "waterfall": fall and fall.summary(),
        }
        without = ("breakdown", "diagnosis", "step", "nothing", "is_piece", "whole")
        return fields(self, without=without, **instead)

    @property
    def _not_saved_as(self) -> tuple[str, ...]:
        """Endings of other results that this one lacks: ``.json`` means the trace here."""
        return () if self.raw else (".json",)

    def save(self, path: str | Path, *, scrub: bool = True) -> Path:
        """Write the profile; the ending chooses the format.

        ``.json`` and ``.json.gz``: the trace, for Perfetto, TensorBoard or
        ``perfkit.trace.load`` (:meth:`to_json` has the findings). All other endings are those of
        every result: ``.txt``, ``.md``, ``.html``, ``.png``, ``.svg``.

        All formats are scrubbed by default, because a saved profile is meant to be shared.

        Args:
            scrub: remove user and host names, environment dumps and tokens (see
                :mod:`perfkit.base.scrub`); if False, the trace is written as torch wrote it.

        Raises:
            UsageError: the ending is unknown, or the trace was not recorded here.
        """
        target = Path(path)
        if not target.name.lower().endswith((".json", ".json.gz")):
            return super().save(target, scrub=scrub)
        if not self.raw:
            raise UsageError(
                f"cannot write {target}: this profile is of a trace that was not recorded here, so "
                "copy the trace's own file; .to_json() has the findings"
            )
        data = self.raw
        if scrub:
            import msgspec

            from perfkit.base.scrub import scrub as scrubbed
            from perfkit.trace.read.save import save

            try:
                data = msgspec.json.encode(scrubbed(msgspec.json.decode(data)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                # torch does not escape all names: then write what perfkit could read
                save(self.trace, target, scrub=True)
                return target
        if target.name.lower().endswith(".gz"):
            data = gzip.compress(data, compresslevel=6)
        from perfkit.base.files import write_atomically

        write_atomically(target, lambda part: part.write_bytes(data))
        return target


def explain(
    recording: Recording | Trace,
    *,
    is_step: bool = False,
    state: Sequence[Finding] = (),
    whole: Mapping[str, float] | None = None,
    evaluated_ms: Sequence[float] = (),
) -> Profile:
    """Explain a recording, or a trace from a file.

    Args:
        is_step: whether the whole recording is a step, because you say so.
    """
    made = recording if isinstance(recording, Recording) else None
    trace = recording.trace if isinstance(recording, Recording) else recording
    origin = _recorded(trace)
    told: dict[str, Any] = {"lines": NO_LINES, "worker_lines": NO_LINES, "cost": None}
    if made is not None:
        origin = stamp("measured here", device=None if trace.has_device else "cpu")
        told = {name: getattr(made, name) for name in _AS_RECORDED}
    facts, cost, busy = made.facts if made else Facts(), told["cost"], told.get("busy")
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    is_piece = steps.how_found == WHOLE and not is_step
    no_step = made.no_step() if made is not None and is_piece else ""
    case = Case(
        trace,
        steps,
        split,
        told["lines"],
        facts,
        is_file=made is None,
        plain_ms=None if cost is None else cost.plain_step_ms,
        whole=whole,
        worker_lines=told["worker_lines"],
        evaluated_ms=evaluated_ms if len(evaluated_ms) == len(split.steps) else (),
    )
    # an empty mark has a length, but is not a step
    steps_ms: Sequence[float] = [
        s.wall_ns / 1e6 for s in split.steps if not s.is_empty
    ] or split.wall_ms
    if made is not None and made.cost.plain_step_ms:
        steps_ms = made.unprofiled_ms
    step = summarize(steps_ms)
    outside = of_the_program(told.get("elsewhere"), busy)
    least, no_least = _limit_of(trace, steps, cost)
    return Profile(
        breakdown=split,
        operators=case.operators,
        syncs=case.syncs,
        diagnosis=diagnose(
            case,
            step,
            origin.kind,
            elsewhere=outside,
            busy=busy,
            no_step=no_step,
            is_piece=is_piece,
            state=state,
        ),
        step=step,
        provenance=origin,
        n_steps=len(split.steps),
        warnings=(*recording.warnings, *_doubts(case, outside, is_piece=bool(no_step)), *no_least),
        trace=trace,
        is_piece=is_piece,
        compiled=facts.compiled,
        limit=least,
        whole=None if case.on_device or whole is None else case.shares,
        device_shares=case.device_shares,
        **told,
    )


def _limit_of(
    trace: Trace, steps: Steps, cost: Cost | None
) -> tuple[Limit | None, tuple[str, ...]]:
    """How far the steps are from their lower bound, where shapes were recorded; and why not."""
    if not (trace.dims_id >= 0).any():
        return None, ()
    from perfkit.trace.ask.limit import limit

    try:
        found = limit(trace, steps)
    except Exception as error:  # a trace of a kind that nobody has seen must not cost the report
        return None, (f"the lower bound could not be counted ({type(error).__name__})",)
    plain_ms = None if cost is None else cost.plain_step_ms
    if found.step_us is None and plain_ms is not None:
        found = replace(found, step_us=1e3 * plain_ms, is_unprofiled=True)
    return found, ()


def _doubts(case: Case, outside: Elsewhere | None, *, is_piece: bool) -> Iterator[str]:
    """What the figures leave unknown, and what a step of them is."""
    trace, steps = case.trace, case.steps
    if case.unseen_device:
        yield f"the device's work is not here ({case.unseen_device}), so no gain is given"
    elif case.is_file and not case.on_device:
        from perfkit.trace.ask.waterfall import NO_DEVICE

        yield NO_DEVICE
    info = trace.metadata.get("distributedInfo")
    n_ranks = info.get("world_size") if isinstance(info, dict) else None
    is_known = not case.on_device or any(map(is_communication, trace.names))
    if isinstance(n_ranks, int) and n_ranks > 1 and not is_known:
        yield (
            f"{n_ranks} ranks ran, and no kernel is known as communication: an exchange under "
            "another name counts as computing"
        )
    if case.evaluated >= _LEAST_EVALUATED:
        yield (
            f"evaluation (or a policy that plays) is {fmt_share(case.evaluated)} of the steps in "
            "these shares, which count it as forward, data wait or other"
        )
    # if that is most of the time, the diagnosis says so first
    if outside is not None and outside.is_worth_a_word and not outside.is_most:
        yield uncapital(outside.sentence()).rstrip(".")
    fetches = [step.n_fetches for step in case.breakdown.steps]
    has_optimizer = any(name.startswith("Optimizer.step#") for name in trace.names)
    by_fetches = "DataLoader" in steps.how_found
    if len(steps) > 1 and min(fetches) > 1 and has_optimizer and not by_fetches:
        # the median, because the fetch that ends an epoch returns no batch
        yield f"a step is one optimizer step: {np.median(fetches):.0f} batches of the DataLoader"
    if not is_piece:
        yield from case.breakdown.warnings
    elif (n := n_backward_passes(trace)) > 1:
        yield f"{n} backward passes are in it"


def _recorded(trace: Trace) -> Provenance:
    """Where and when a trace file says it was recorded, as far as it says so."""
    device = "a device that perfkit cannot read" if trace.unread else "cpu"
    if trace.has_device:
        device = "a GPU"
    if isinstance(name := trace.gpu.get("name"), str):
        device = printable(name, 80)
    # times count from 1970, since 2024 with a separate base
    base_ns = trace.metadata.get("baseTimeNanoseconds")
    at_s = (trace.origin_us + (base_ns / 1e3 if isinstance(base_ns, int | float) else 0.0)) / 1e6
    is_date = _KINETO_FROM_S <= at_s <= _KINETO_UNTIL_S
    return Provenance(
        kind="recorded",
        machine="",
        device=device,
        versions={},
        when_utc=datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds") if is_date else "",
    )
