"""A whole run explained: where its time went, from start to end, and what bounds its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfkit.advice.findings import Finding
from perfkit.advice.profile import Profile, explain
from perfkit.base.display import Shown
from perfkit.base.errors import PerfkitError
from perfkit.base.instrument import Failure
from perfkit.base.machine import Provenance, stamp
from perfkit.base.plain import fields
from perfkit.base.words import fmt_count, fmt_ms, fmt_s, fmt_share, plural
from perfkit.measure import slow_steps
from perfkit.measure.memory_looks import Rise, tree_rise
from perfkit.measure.phases import PHASES
from perfkit.measure.verdict import RunSummary
from perfkit.memory.account import MemoryAccount
from perfkit.script._torch_watch import TorchWatch
from perfkit.script.options import Options
from perfkit.synclint.find import SyncLines
from perfkit.trace.record.elsewhere import Elsewhere, Stretch
from perfkit.trace.record.lines import NO_LINES, LineSamples
from perfkit.trace.record.recording import Recording
from perfkit.trace.record.step_log import Coverage

# Recorded steps take longer, which looks like a drift unless there are so many times more others.
_DRIFT_FROM = 20
# Findings of memory that grows.
_OF_MEMORY = {
    "own-profiler", "python-objects-in-workers", "graphs-kept", "views-kept", "tensors-kept",
    "objects-kept", "workers-grow", "memory-grows",
}  # fmt: skip
# Fewer steps than these say no more than the recorded ones.
_LEAST_STEPS = 10
# Less time in imports, or a smaller share of a phase, or of the run, is not told.
_LEAST_IMPORTS_S, _LEAST_PHASE, _LEAST_SHARE = 0.1, 0.05, 0.001


@dataclass(frozen=True)
class Times:
    """When the run began, torch was imported, and the run ended, by ``time.perf_counter``."""

    began_s: float
    torch_s: float | None  # None if it was not
    ended_s: float
    torch_elsewhere: bool = False  # in another thread than the program's


@dataclass(frozen=True)
class Part:
    """A part of the run's wall time, to which all add up; and lines that ran in it, if known."""

    what: str
    seconds: float
    where: str = ""


@dataclass(frozen=True, eq=False)
class WholeRun(Shown):
    """A run of a program, from its start to its end.

    Attributes:
        ended: how it ended: ``"finished"``, ``"raised ValueError"``, ``"ended with exit code 3"``.
        n_steps: steps: an optimizer stepped, or, where none did, a backward pass ended.
        parts: where the wall time went; they add up to it.
        steps: figures of all steps but the first ones (ms, data wait, samples/s, memory); None
            without a step.
        uses_loader: whether batches came from a DataLoader; if not, ``steps`` knows no data wait.
        grown: by how much memory grew from step to step, of it and of its loaders' workers; None
            where no finding says so.
        profile: a few recorded steps, explained; None where none was recorded.
        lines: samples of source lines, where nothing was recorded: of the usual steps, or of the
            whole run where it has none.
        memory: account of the first steps' memory; None unless asked for.
        syncs: lines that would make a GPU wait, predicted from two steps; None unless asked for.
    """

    program: str
    ended: str
    sentence: str
    wall_s: float
    n_steps: int
    parts: tuple[Part, ...]
    steps: RunSummary | None = None
    uses_loader: bool = False
    findings: tuple[Finding, ...] = ()
    profile: Profile | None = None
    memory: MemoryAccount | None = None
    syncs: SyncLines | None = None
    rank: int | None = None
    warnings: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=lambda: stamp("measured here"))
    lines: LineSamples = NO_LINES
    worker_lines: LineSamples = NO_LINES
    process_lines: LineSamples = NO_LINES
    grown: Rise | None = None
    n_workers: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Everything but the recorded events, as plain JSON types; times in s unless named _ms."""
        steps = None
        if self.steps is not None:
            said = self.steps.to_dict()
            keys = ["step", "mean_step_ms", "steps_per_s", "samples_per_s", "drift", "memory"]
            keys += ["wait_share", "wait_low", "wait_high"] if self.uses_loader else []
            steps = {key: said[key] for key in keys}
        without = ("uses_loader", "syncs", "n_workers")
        found = [finding.to_dict() for finding in self.findings]
        return fields(
            self, without=without, type="run", steps=steps, synclint=self.syncs, findings=found
        )


def whole_run(
    program: str,
    ended: str,
    times: Times,
    options: Options,
    seen: TorchWatch | None,
    *,
    rank: int | None = None,
    failure: Failure | None = None,
) -> WholeRun:
    """Explain what was seen of a run since torch was imported: None if it was not."""
    wall_s = times.ended_s - times.began_s
    warnings = [] if failure is None else [failure.sentence()]
    if seen is None:
        sentence = _nothing(program, ended, times, options, seen, "")
        without = "" if times.torch_elsewhere else ", without torch"
        whole = (Part(f"the program{without}", wall_s),)
        return WholeRun(
            program, ended, sentence, wall_s, 0, whole, rank=rank, warnings=tuple(warnings)
        )
    profile, why = _profile(seen, ended)
    n_steps, recorder, sampled = seen.meter.n, seen.recorder, seen.recorder.sampled
    warnings += [one.sentence() for one in seen.failures]
    if profile is None and recorder.failure is not None:
        warnings.append(recorder.failure.sentence())
    warnings += [doubt] if (doubt := seen.run.phases.doubt) else []
    if n_steps or recorder.n_foreign_steps:
        warnings += _extras_missing(options, seen, n_steps, ended)
    grown, n_workers = None, 0
    if _OF_MEMORY & {f.rule for f in seen.state.findings}:
        grown, n_workers = tree_rise(seen.state.live.memory)
    return WholeRun(
        program=program,
        ended=ended,
        sentence=_nothing(program, ended, times, options, seen, why)
        if profile is None
        else profile.diagnosis.headline,
        wall_s=wall_s,
        n_steps=n_steps,
        parts=_parts(times, options, seen, None if profile is None else profile.elsewhere),
        steps=_steps(program, ended, times, options, seen) if n_steps else None,
        uses_loader=seen.run.uses_loader,
        findings=tuple(f for f in seen.state.findings if not f.beside),
        profile=profile,
        memory=seen.account,
        syncs=seen.syncs,
        rank=rank,
        warnings=tuple(warnings),
        provenance=stamp("measured here") if profile is None else profile.provenance,
        # a profile has them
        lines=sampled.of_steps if profile is None else NO_LINES,
        worker_lines=sampled.of_workers if profile is None else NO_LINES,
        process_lines=sampled.of_processes if profile is None else NO_LINES,
        grown=grown,
        n_workers=n_workers,
    )


def _profile(seen: TorchWatch, ended: str) -> tuple[Profile | None, str]:
    """The recorded steps, explained, or why there are none."""
    if not seen.meter.n:
        return None, ""
    if seen.left_as_it_is:
        return None, "only the thread that hangs can end a recording, so it is lost"
    if ended == "finished" and seen.recorder.saw_no_step:
        return None, "the program ended before the next step did"
    try:
        recording = _with_phases(seen.recorder.recording, seen)
        profile = explain(
            recording,
            state=seen.state.findings,
            whole=_shares_of_all(seen, recording.coverage),
            evaluated_ms=_evaluated_ms(seen, recording.coverage),
        )
    except PerfkitError as error:
        return None, str(error)
    if not profile.operators:
        return None, "no torch operators ran in the recorded steps"
    return profile, ""


def _with_phases(recording: Recording, seen: TorchWatch) -> Recording:
    """In which phases its time outside of the recorded steps was, where these are sure."""
    outside, run = recording.elsewhere, seen.run
    if outside is None or not run.phases.are_sure:
        return recording
    steps, growth = seen.meter.steps, outside.growth
    if growth is not None:
        later = steps.at(steps.numbers >= max(recording.coverage.last_step, run.n_left_out))
        growth = replace(growth, phase=slow_steps.growing_phase(later))
    usual_ms = {name: float(np.median(column)) for name, column in steps.phase_ms.items()}

    def phases(stretch: Stretch) -> tuple[tuple[str, float], ...]:
        # of the set-up, phases know what follows the first forward pass
        slow = steps.at(np.isin(steps.numbers + 1, (1,) if stretch.is_set_up else stretch.numbers))
        spent = {
            name: float(np.maximum(column - usual_ms[name], 0.0).sum())
            for name, column in slow.phase_ms.items()
        }
        if not stretch.numbers and not stretch.is_set_up:  # after the last step
            spent = {name: ns / 1e6 for name, ns in zip(PHASES, run.after_ns, strict=True)}
        total = max(sum(spent.values()), 1e3 * stretch.seconds * stretch.is_set_up)
        shares = ((name.replace("_", " "), ms / total) for name, ms in spent.items() if total)
        told = (one for one in shares if one[1] >= _LEAST_PHASE)
        return tuple(sorted(told, key=lambda one: -one[1]))

    stretches = tuple(replace(s, phases=phases(s)) for s in outside.stretches)
    return replace(recording, elsewhere=replace(outside, stretches=stretches, growth=growth))


# Class of a step → its phases. A phase "other" has operators, too (the loss, metrics): only the
# recording tells these from Python.
_PHASES_OF = {
    "data wait": ("data_wait",),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "rest": ("forward", "other"),
}


def _shares_of_all(seen: TorchWatch, recorded: Coverage) -> dict[str, float] | None:
    """Host class, or the rest → share of steps neither first nor recorded; None where not sure."""
    run = seen.run
    if not run.phases.are_sure:
        return None
    steps = seen.meter.steps
    is_recorded = steps.are_between(recorded.first_step - 1, recorded.last_step)
    steps = steps.at((steps.numbers >= run.n_left_out) & ~is_recorded)
    if len(steps) < _LEAST_STEPS:
        return None
    spent = {
        name: sum(float(steps.phase_ms[phase].sum()) for phase in phases)
        for name, phases in _PHASES_OF.items()
    }
    total = sum(spent.values())
    return {name: ms / total for name, ms in spent.items()} if total else None


def _evaluated_ms(seen: TorchWatch, covered: Coverage) -> list[float]:
    """What of each recorded step was evaluation; empty where that is not sure."""
    if not seen.run.phases.are_sure:
        return []
    steps = seen.meter.steps
    steps = steps.at(steps.are_between(covered.first_step - 1, covered.last_step))
    return [float(ms) for ms in steps.phase_ms["evaluation"]]


def _nothing(
    program: str, ended: str, times: Times, options: Options, seen: TorchWatch | None, why: str
) -> str:
    """The headline of a run without recorded steps: why, and what to do."""
    n_steps = 0 if seen is None else seen.meter.n
    if times.torch_elsewhere or (not n_steps and seen and seen.recorder.n_foreign_steps):
        return (
            f"No step was seen in the main thread of {program}, the only one that perfkit run "
            "watches. If another thread trains, put `with perfkit.profile() as prof:` around the "
            "loop there, and `print(prof)` after it."
        )
    if not n_steps and ended != "finished":
        return f"{program} {ended} before its first step: there is no step to explain."
    if seen is None:
        return (
            f"{program} did not import torch in this process: no step was seen. If it starts the "
            "training in other processes, run perfkit in these: torchrun … -m perfkit run …"
        )
    if not n_steps:
        return (
            f"No step was seen in {program}: no torch optimizer stepped in this process. To "
            "explain a loop without one (an evaluation), or one in a process that it starts, put "
            "`with perfkit.profile() as prof:` around it, and `print(prof)` after it."
        )
    if seen.left_as_it_is:
        return f"{program} {ended}, in step {fmt_count(n_steps + 1)}: {why}."
    before = options.warmup + options.n_slowed
    if n_steps <= before:
        return (
            f"{program} made {plural(n_steps, 'step')}, and the first {before} were let pass, so "
            "none was recorded: run it longer, or with --warmup 1."
        )
    return f"None of the {n_steps} steps of {program} was recorded: {why}."


def _extras_missing(options: Options, seen: TorchWatch, n_steps: int, ended: str) -> list[str]:
    """What was asked for beside the steps, and is not there."""
    lost = {
        "--memory": options.memory and seen.account is None,
        "--synclint": options.synclint and seen.syncs is None,
    }
    missing = []
    if flags := " and ".join(flag for flag, is_lost in lost.items() if is_lost):
        missing.append(
            f"{flags}: only the thread that hangs can end what looks there"
            if seen.left_as_it_is
            else f"{flags} found nothing to look at in {plural(n_steps, 'step')}: it begins with "
            "the forward pass, in the main thread, of a torch module that has parameters"
        )
    if "out of memory" in ended and seen.account is not None and not seen.account.out_of_memory:
        missing.append(
            f"memory ran out in step {n_steps + 1}, after those that were counted: "
            f"--memory-steps {n_steps + 1} counts up to there"
        )
    return missing


def _steps(
    program: str, ended: str, times: Times, options: Options, seen: TorchWatch
) -> RunSummary:
    """Figures of all steps, without the first one and those that perfkit slowed."""
    meter, run, n_left_out = seen.meter, seen.run, options.n_left_out
    n = max(meter.n - n_left_out, 0)  # where 0, the time of its only step is that of the set-up
    left_out_s = sum(end - begin for begin, end in seen.recorder.log.times_s[:n_left_out])
    counted = run.samples is not None and run.samples_at is not None
    summary = run.summary(
        program,
        ended,
        times.ended_s - times.began_s,
        n_epochs=1,
        starts=tuple((i, 0.0, 0.0) for i in range(n_left_out)) if n else (),
        waits_known=True,
        n_steps=n,
        total_ms=meter.total_ns / 1e6 - 1e3 * left_out_s if n else 0.0,
        samples=(run.samples or 0) - (run.samples_at or 0) if counted else None,
    )
    step = summary.step
    if meter.n >= _DRIFT_FROM * seen.recorder.steps:
        return summary
    if step is not None:
        step = replace(step, warnings=tuple(w for w in step.warnings if not w.startswith("drift")))
    return replace(summary, drift=None, step=step)


def _parts(
    times: Times, options: Options, seen: TorchWatch, outside: Elsewhere | None
) -> tuple[Part, ...]:
    """Where the wall time went; what is between the steps is perfkit's own."""
    wall_s = times.ended_s - times.began_s
    assert times.torch_s is not None
    log, sampled, n = seen.recorder.log, seen.recorder.sampled, seen.meter.n
    spans, between = log.times_s, sampled.between
    found = [Part("until torch was imported", times.torch_s - times.began_s)]
    if not spans:
        what = "the program, without a step" + " in its main thread" * bool(
            seen.recorder.n_foreign_steps
        )
        ran = between(times.torch_s, times.ended_s)
        return (*found, Part(what, times.ended_s - times.torch_s, ran))
    stretches = () if outside is None else outside.stretches
    growth = None if outside is None else outside.growth
    lengths = [end - begin for begin, end in spans]
    like_s = statistics.median(lengths) if outside is None else outside.like_ms / 1e3
    first_s = spans[0][1] - times.torch_s
    first_step_s = min(like_s, first_s)
    n_slowed = min(options.n_slowed, len(spans))
    slowed_s = _excess(lengths[1:n_slowed], like_s)
    slow = [i for s in stretches for i in s.numbers if i > max(n_slowed, 1)]
    slow_s = _excess([lengths[i - 1] for i in slow], like_s)
    # all steps but the first, exact also where not all were kept
    later_s = (seen.meter.total_ns - round(lengths[0] * 1e9)) / 1e9
    grown_s = 0.0 if growth is None else growth.seconds
    usual_s = first_step_s + later_s - slow_s - slowed_s - grown_s
    what = plural(n, "step")
    if outside is None:
        what += f" (median {fmt_ms(1e3 * like_s)})"
    else:  # the recorded ones took longer: they were recorded
        what += f" like the recorded ones (mean {fmt_ms(1e3 * usual_s / n)})"
    where = {s.numbers: _place(s) for s in stretches}
    set_up = where.pop((1,), "") or between(times.torch_s, spans[0][1] - first_step_s)
    after = where.pop((), "") or between(log.last_s, times.ended_s)
    found += [
        Part("set-up, until the first step began", first_s - first_step_s, set_up),
        Part(what, usual_s),
    ]
    if slow:
        places = "; ".join(filter(None, where.values()))
        found.append(Part(f"beyond that, in {plural(len(slow), 'slow step')}", slow_s, places))
    if growth is not None:
        place = f"{fmt_share(growth.line_share)} of it at {growth.place}" if growth.place else ""
        found.append(Part("beyond that, because steps grow", growth.seconds, place))
    if n_slowed:
        # what the script itself did there is in it, too: an evaluation before the first epoch …
        flags = " and ".join(f"--{x}" for x in ("memory", "synclint") if getattr(options, x))
        what = f"beyond that, in steps 2 to {n_slowed} (slower with {flags})"
        found.append(Part(what, slowed_s, between(spans[0][1], spans[n_slowed - 1][1])))
    found.append(Part("after the last step", times.ended_s - log.last_s, after))
    own_s = wall_s - sum(part.seconds for part in found)
    found.append(Part("perfkit itself, between steps", max(own_s, 0.0)))
    return tuple(p for p in found if p.seconds > _LEAST_SHARE * wall_s)


def _excess(lengths_s: Sequence[float], like_s: float) -> float:
    return sum(max(length_s - like_s, 0.0) for length_s in lengths_s)


def _place(stretch: Stretch) -> str:
    imports = f"{fmt_s(stretch.imports_s)} of it imports" * (stretch.imports_s >= _LEAST_IMPORTS_S)
    return "; ".join(filter(None, (imports, stretch.where())))
