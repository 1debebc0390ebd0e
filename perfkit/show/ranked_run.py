"""What a run of several ranks says: who holds up whom, and a row for each rank."""

from __future__ import annotations

from dataclasses import replace

from perfkit.advice.diagnose import first_clause
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_share, plural
from perfkit.measure.phases import PHASES
from perfkit.script.ranks.heartbeat import FINISHED
from perfkit.script.ranks.joint import RankedRun, RankRun, imbalance_words
from perfkit.show.document import Document, Doubt, Table, document_for
from perfkit.show.plain_text import wrap

# Of more ranks than this the table has those that stand out.
_MOST_ROWS = 16
_TOP = 5


@document_for(RankedRun)
def _run(run: RankedRun) -> Document:
    return Document(
        name="run of several ranks",
        sentence=run.sentence,
        headline=first_clause(run.sentence)
        if all(one.ended == FINISHED for one in run.ranks)
        else "",
        doubts=(Doubt("busy machine", run.doubt),) if run.doubt else (),
        lines=tuple(filter(None, (_collectives(run), *_late(run), *imbalance_words(run)))),
        warnings=run.warnings,
        tables=(
            _ranks(run),
            *(replace(one, brief=False) for one in (_where(run), _phases(run), _waits(run))),
        ),
        foot=(run.provenance.sentence(),),
        kind="ranks",
    )


def _collectives(run: RankedRun) -> str:
    c = run.compared
    if c is None or c.skew_ms is None or c.transfer_ms is None:
        return ""
    whole = c.skew_ms + c.transfer_ms
    share = c.skew_ms / whole if whole else 0.0
    return (
        f"Collectives take {fmt_ms(whole)} a step (mean of the ranks, in the recorded steps): "
        f"{fmt_ms(c.skew_ms)} ({fmt_share(share)}) is skew, the wait for a later rank; "
        f"{fmt_ms(c.transfer_ms)} is transfer, which a faster network or fewer bytes would shorten."
    )


def by_itself(run: RankedRun, rank: int) -> str:
    """What to say before a rank's own report, which knows of no other rank."""
    alone = f"Rank {rank} by itself"
    waits = run.mostly_waits(rank)
    if waits is None:
        return f"{alone}:"
    waited_ms, share = waits
    return wrap(
        f"{alone}. {fmt_ms(waited_ms)} a recorded step, {fmt_share(share)} of its time in "
        "collectives, is its wait for a later rank: exchanging less would not shorten it. Its own "
        "report is in the files of --html and --json."
    )


def _late(run: RankedRun) -> tuple[str, ...]:
    if run.late is None or not run.late.late:
        return ()
    return tuple(
        f"Rank {one.rank} comes last in {fmt_share(one.last_in)} of {fmt_count(run.late.n_steps)} "
        "steps; were it never later than the next one, a step would be at most "
        f"{fmt_ms(one.gain_ms)} shorter."
        for one in run.late.late[:_TOP]
    )


def _ranks(run: RankedRun) -> Table:
    shown = _most_telling(run)
    columns: list[tuple[str, list[str]]] = [
        ("rank", [str(one.rank) for one in shown]),
        ("steps", [fmt_count(one.n_steps) for one in shown]),
        ("step", [fmt_ms(one.step_ms) for one in shown]),
    ]
    if any(one.wait_ms is not None for one in shown):
        columns.append(("waits for others", [fmt_ms(one.wait_ms) for one in shown]))
    if any(one.memory_bytes for one in shown):
        columns.append(("memory", [fmt_bytes(one.memory_bytes) for one in shown]))
    if any(one.samples for one in shown):
        columns.append(("samples", [fmt_count(one.samples) for one in shown]))
    columns.append(("ended", [one.ended for one in shown]))
    few = len(shown) < len(run.ranks)
    return Table(
        header=tuple(title for title, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        title="Ranks",
        note="; ".join(
            filter(
                None,
                (
                    f"{len(shown)} of {len(run.ranks)}, those that stand out" if few else "",
                    "step: median of the run; waits for others: mean of the recorded steps"
                    if run.compared is not None
                    else "",
                ),
            )
        ),
        align=">" * (len(columns) - 1) + "<",
        open=True,
        wrap=True,
    )


def _phases(run: RankedRun) -> Table:
    shown = [one for one in _most_telling(run) if one.phase_ms]
    phases = [name for name in PHASES if any(_counts(one, name) for one in shown)]
    cut = any(one.ended != FINISHED for one in shown)
    until = ", where it did not finish until its last step" if cut else ""
    return Table(
        header=("rank", *(name.replace("_", " ") for name in phases)),
        rows=tuple(
            (str(one.rank), *(fmt_ms(one.phase_ms.get(name)) for name in phases)) for one in shown
        ),
        title="Where a step's time goes on each rank",
        note=f"mean of the run{until}; waiting for others is part of a phase",
        align=">" * (len(phases) + 1),
        open=True,
    )


def _counts(one: RankRun, phase: str) -> bool:
    whole_ms = sum(one.phase_ms.values())
    return one.phase_ms.get(phase, 0.0) >= 0.02 * whole_ms > 0


def _most_telling(run: RankedRun) -> list[RankRun]:
    if len(run.ranks) <= _MOST_ROWS:
        return list(run.ranks)
    wanted = {*run.culprits, run.ranks[0].rank}
    if run.late is not None:
        wanted |= {one.rank for one in run.late.late[:_TOP]}
    if run.compared is not None:
        wanted |= set(run.compared.stragglers[:_TOP])
    for one in sorted(run.ranks, key=lambda r: -(r.step_ms or 0.0)):
        if len(wanted) >= _MOST_ROWS:
            break
        wanted.add(one.rank)
    return [one for one in run.ranks if one.rank in wanted]


def _waits(run: RankedRun) -> Table:
    pairs = [] if run.compared is None else list(run.compared.waits_ms.items())[:_TOP]
    n = 0 if run.compared is None else run.compared.n_collectives
    return Table(
        header=("who waits for whom", "a step"),
        rows=tuple((f"rank {who} for rank {whom}", fmt_ms(ms)) for (who, whom), ms in pairs if ms),
        title="Who waits for whom",
        note=f"in {plural(n, 'collective')} of the recorded steps",
        brief=False,
    )


def _where(run: RankedRun) -> Table:
    return Table(
        header=("rank", "line"),
        rows=tuple((str(one.rank), one.line) for one in run.ranks if one.line),
        title="Where each rank was",
        align="><",
        open=True,
        wrap=True,
    )
