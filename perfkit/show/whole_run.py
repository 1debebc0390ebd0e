"""What a whole run says: the recorded steps explained, within the run's account."""

from __future__ import annotations

from dataclasses import replace

from perfkit.base.words import fmt_bytes, fmt_ms, fmt_number, fmt_s, fmt_share, plural
from perfkit.measure.memory_looks import Rise
from perfkit.measure.verdict import RunSummary, growing
from perfkit.script.whole_run import WholeRun
from perfkit.show import memory, profile, synclint  # noqa: F401 - their documents are parts of this
from perfkit.show.document import Document, Table, document_for, registered
from perfkit.show.profile import line_tables
from perfkit.show.timing import phase_lines


@document_for(WholeRun)
def _run(run: WholeRun) -> Document:
    said = registered(run.profile) or Document(
        "run", run.sentence, findings=tuple(map(profile.shown_finding, run.findings))
    )
    lines = line_tables(run.lines, run.worker_lines, run.process_lines)
    return replace(
        said,
        name="run",
        sentence=run.sentence,
        lines=(_how_it_ran(run), *_phases(run), *said.lines),
        warnings=tuple(dict.fromkeys((*run.warnings, *said.warnings))),
        tables=(_parts(run), *lines, *said.tables),
        sections=tuple(filter(None, map(registered, (run.memory, run.syncs)))),
        foot=(*said.foot[:-1], f"{_ended(run)} {run.provenance.sentence()}"),
        kind="run",
    )


def _how_it_ran(run: WholeRun) -> str:
    if run.steps is None:
        return _ended(run)
    return f"{_ended(run)[:-1]}: {'; '.join(_figures(run, run.steps))}."


def _ended(run: WholeRun) -> str:
    rank = "" if run.rank is None else f", rank {run.rank}"
    first = f"{run.program}{rank} {run.ended} after {fmt_s(run.wall_s)}"
    return f"{first}." if run.steps is None else f"{first} and {plural(run.n_steps, 'step')}."


def _phases(run: WholeRun) -> tuple[str, ...]:
    """None where the bar has all steps: its forward has the loss, too, which the phase lacks."""
    barred = run.profile is not None and run.profile.whole is not None
    return () if run.steps is None or barred else phase_lines(run.steps)


def _figures(run: WholeRun, steps: RunSummary) -> list[str]:
    said = []
    if steps.step is not None:
        one = steps.step
        said.append(
            f"median step {fmt_ms(one.median)}"
            + (f" [{fmt_ms(one.low)}, {fmt_ms(one.high)}], n={one.n}" if one.n > 1 else "")
        )
    if run.uses_loader and steps.wait_share is not None:
        said.append(f"{fmt_share(steps.wait_share)} of their time waits for a DataLoader")
    if steps.samples_per_s is not None:
        said.append(f"{fmt_number(steps.samples_per_s)} samples/s")
    if steps.memory is not None:
        highest = fmt_bytes(steps.memory.highest_bytes)
        said.append(f"at most {highest} {steps.memory.kind} between steps")
        if run.grown is not None:
            said.append(_grown(run, run.grown))
        elif steps.memory.creep is not None:
            said.append(f"{growing(steps.memory)}: perfkit.find_leaks(step) shows what holds it")
    if steps.drift is not None:
        way = "slower" if steps.drift.change > 0 else "faster"
        said.append(f"steps got {fmt_share(abs(steps.drift.relative))} {way} over the run")
    return said


def _grown(run: WholeRun, grown: Rise) -> str:
    """By how much the memory of all its processes grew."""
    workers = f" and its {plural(run.n_workers, 'worker')}" if run.n_workers else ""
    return (
        f"memory of this process{workers} grew from {fmt_bytes(grown.before_bytes)} to "
        f"{fmt_bytes(grown.after_bytes)}: {fmt_bytes(grown.per_step)} a step"
    )


def _parts(run: WholeRun) -> Table:
    rows = tuple(
        (part.what, fmt_s(part.seconds), fmt_share(part.seconds / run.wall_s), part.where)
        for part in run.parts
        if run.wall_s > 0
    )
    return Table(
        title="Where the run's time went",
        note=f"{fmt_s(run.wall_s)} in all",
        header=("part", "time", "share", "line"),
        rows=rows,
        align="<>><",
        brief=run.profile is None,
        wrap=True,
    )
