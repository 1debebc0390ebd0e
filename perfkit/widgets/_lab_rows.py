"""The Lab's runs in words: the same figures for the browser and for its document.

Settings, speeds and picture all refer to the pinned run. Two runs one after the other are not a
comparison, so their ratio is unconfirmed until an interleaved A/B of the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perfkit.base.words import (
    ABSENT,
    fmt_bytes,
    fmt_interval,
    fmt_ms,
    fmt_ms_interval,
    fmt_number,
    fmt_ratio,
    fmt_share,
    no_difference,
    plural,
)
from perfkit.experiment.process.result import SPEED, Ratio, RunResult, ratio
from perfkit.measure.phases import PHASES
from perfkit.show.document import Document, Table

if TYPE_CHECKING:
    from perfkit.experiment.compare.ab import ABResult

Cell = dict[str, str]
Kind = Literal["confirmed", "unconfirmed", "same settings"]

_SPARK_POINTS = 48
_PHASES_OF = "means of steps while the plot was drawn, host time"
#: The caveat of an unconfirmed ratio.
UNCONFIRMED = (
    "unconfirmed: the runs took place one after the other, so the machine may have changed between "
    "them; Confirm alternates the two"
)


@dataclass(frozen=True)
class Speed:
    """How many times as fast as the pinned run a run is.

    Attributes:
        kind: where the ratio comes from: an interleaved A/B of both (``confirmed``), or two runs
            one after the other.
        n_blocks: number of blocks of the A/B.
        sentence: the A/B's sentence.
    """

    ratio: Ratio
    kind: Kind
    n_blocks: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Board:
    """The runs, the pinned one, and the answers of Confirm so far.

    Attributes:
        pinned: the pinned run; None for the first measured one.
        answers: (pinned run, other run) → Confirm's answer.
    """

    runs: Sequence[RunResult]
    pinned: int | None = None
    answers: Mapping[tuple[int, int], ABResult] = field(default_factory=dict)

    @cached_property
    def base(self) -> RunResult | None:
        """The run that all others refer to."""
        measured = [run for run in self.runs if is_measured(run)]
        chosen = [run for run in measured if run.run_id == self.pinned]
        return next(iter(chosen or measured), None)

    def speed(self, run: RunResult) -> Speed | None:
        """Speed relative to the pinned run; None for that run, or with nothing to compare."""
        base = self.base
        if base is None or run.run_id == base.run_id or not is_measured(run):
            return None
        answer = self.answer(base, run)
        if answer is not None:
            found = Ratio(answer.ratio, answer.low, answer.high, answer.per)
            if (base.run_id, run.run_id) not in self.answers:  # confirmed the other way round
                ends = (_inverse(found.high), _inverse(found.low))
                found = Ratio(1 / found.ratio, *ends, found.per)
            return Speed(found, "confirmed", len(answer.blocks), answer.sentence)
        same = dict(run.values) == dict(base.values)
        return Speed(ratio(base, run), "same settings" if same else "unconfirmed")

    def answer(self, one: RunResult, other: RunResult) -> ABResult | None:
        """Confirm's answer for the two, in either order."""
        there, back = (one.run_id, other.run_id), (other.run_id, one.run_id)
        return self.answers.get(there) or self.answers.get(back)

    def settings(self, run: RunResult) -> str:
        """The differences from the pinned run; for that run itself, all values."""
        base = self.base or self.runs[0]
        if run.run_id == base.run_id:
            return all_values(run.values) or "no settings"
        return changes(base.values, run.values) or f"as run {base.run_id}"


def is_measured(run: RunResult) -> bool:
    """Whether it has counted steps."""
    return run.step is not None and bool(run.counted.any())


def _inverse(x: float) -> float:
    return 1 / x if x > 0 else float("inf")


def words(value: Any) -> str:
    """A setting's value in words: ``on``, ``off``, ``4``."""
    if value is True:
        return "on"
    if value is False:
        return "off"
    return "none" if value is None else str(value)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """``num_workers 0 → 2, fused off → on``; empty if nothing differs."""
    return ", ".join(
        f"{name} {words(before[name])} → {words(value)}"
        for name, value in after.items()
        if name in before and before[name] != value
    )


def all_values(values: Mapping[str, Any]) -> str:
    """``num_workers 0, fused off``."""
    return ", ".join(f"{name} {words(value)}" for name, value in values.items())


def verdict(board: Board, run: RunResult) -> str:
    """The run against the pinned one, for the state line; empty if there is nothing to say."""
    speed = board.speed(run)
    if speed is None or board.base is None:
        return ""
    other = f"run {board.base.run_id}"
    number = fmt_ratio(speed.ratio.ratio)
    per = " per sample" if speed.ratio.per == "sample" else ""
    if speed.kind == "same settings":
        return f"{number} the speed of {other}{per}, with the same settings: the spread of runs"
    if speed.kind == "unconfirmed":
        return f"{number} the speed of {other}{per}, unconfirmed"
    ends = fmt_interval(speed.ratio.low, speed.ratio.high)
    if not speed.ratio.different:
        none = no_difference(speed.ratio.low, speed.ratio.high)
        return f"compared with {other}: {none}, {number} {ends}{per}"
    word = "faster" if speed.ratio.ratio > 1 else "slower"
    return f"confirmed: {word} than {other}, {number} {ends}{per}"


# --- for the browser ------------------------------------------------------------------------------


def browser_rows(board: Board) -> list[dict[str, Any]]:
    """What ``js/src/runs.js`` shows: text, a smaller detail and a title for each cell."""
    return [_browser_row(board, run) for run in board.runs]


def _browser_row(board: Board, run: RunResult) -> dict[str, Any]:
    is_base = board.base is not None and run.run_id == board.base.run_id
    return {
        "run": run.run_id,
        "state": run.state,
        "pinned": is_base,
        "pinnable": is_measured(run),
        "changed": _cell(board.settings(run)),
        "step": _step_cell(run),
        "wait": _cell(fmt_share(run.wait_share)),
        "rate": _cell(fmt_number(run.samples_per_s)),
        "peak": _cell(fmt_bytes(run.peak_bytes), title=run.peak_kind),
        "ratio": _ratio_cell(board, run),
        "spark": _spark(run),
        "phases": _phases(run),
        "medians": _medians(run),
        "message": run.message,
        "notes": list(dict.fromkeys(_notes(board, run))),
        "traceback": run.traceback_text,
    }


def _cell(text: str, detail: str = "", title: str = "") -> Cell:
    return {"text": text, "detail": detail, "title": title}


def _notes(board: Board, run: RunResult) -> list[str]:
    """Reasons to doubt the figures, including a confirmed speed."""
    answer = None if board.base is None else board.answer(board.base, run)
    return [
        *run.warnings,
        *(run.step.warnings if run.step else ()),
        *(f"Confirm: {warning}" for warning in (answer.warnings if answer else ())),
    ]


def _step_cell(run: RunResult) -> Cell:
    step = run.step
    if step is None:
        return _cell(ABSENT)
    interval = fmt_ms_interval(step.low, step.high)
    steps = plural(step.n, "quiet step" if run.n_quiet == step.n else "step")
    median = fmt_ms(step.median)
    return _cell(
        fmt_ms(run.mean_ms),
        _unbroken(f"median {median}"),
        f"Mean over {steps}, of which the speed is made; median {median}, 95 % interval {interval}",
    )


def _unbroken(text: str) -> str:
    return text.replace(" ", "\u00a0")


def _ratio_cell(board: Board, run: RunResult) -> dict[str, Any]:
    nothing = {"kind": "none", "value": None, "low": None, "high": None, "why": ""}
    if board.base is not None and run.run_id == board.base.run_id:
        return nothing | _cell("1×", "pinned") | {"kind": "pinned"}
    speed = board.speed(run)
    if speed is None:
        return nothing | _cell(ABSENT)
    compared = speed.ratio
    text, per = fmt_ratio(compared.ratio), ", per sample" * (compared.per == "sample")
    found = nothing | {"kind": speed.kind, "value": compared.ratio}
    if speed.kind == "same settings":
        why = "Both runs have the same settings: runs differ this much by themselves."
        return found | _cell(text, f"same settings{per}") | {"why": why}
    if speed.kind == "unconfirmed":
        return found | _cell(text, f"unconfirmed{per}") | {"why": UNCONFIRMED}
    ends = _unbroken(fmt_interval(compared.low, compared.high))
    word = "faster" if compared.ratio > 1 else "slower"
    said = word if compared.different else no_difference(compared.low, compared.high)
    detail = f"{said} {ends}{per}"
    finite = compared.high if np.isfinite(compared.high) else None
    why = f"{speed.sentence} {plural(speed.n_blocks, 'block')}, run alternately."
    return found | _cell(text, detail) | {"low": compared.low, "high": finite, "why": why}


def _spark(run: RunResult) -> list[float]:
    """The step time over the run in a few numbers: medians of neighbouring steps."""
    if not len(run.step_ms):
        return []
    parts = np.array_split(run.step_ms, min(_SPARK_POINTS, len(run.step_ms)))
    return [float(f"{np.median(part):.4g}") for part in parts]


def _phases(run: RunResult) -> dict[str, Any]:
    """Where the time of a step goes: a part for each phase and all in words, or why not."""
    ms = run.phases.ms
    total_ms = sum(ms.values())
    if not total_ms:
        return {"parts": [], "words": "", "why_not": run.phases.why_not}
    shares = {name: ms[name] / total_ms for name in PHASES if name in ms}
    parts = [
        {"phase": name, "label": _phase_words(name), "share": share}
        for name, share in shares.items()
    ]
    told = ", ".join(
        f"{_phase_words(name)} {fmt_ms(ms[name])} ({fmt_share(share)})"
        for name, share in shares.items()
    )
    words = f"{told}; {_PHASES_OF} ({plural(run.phases.n_steps, 'step')})"
    return {"parts": parts, "words": words, "why_not": ""}


def _phase_words(name: str) -> str:
    return name.replace("_", " ")


def _medians(run: RunResult) -> dict[str, float | None]:
    """Medians of the counted steps, for the plot's legend after a run has ended."""
    if not is_measured(run):
        return {"step": None, "wait": None, "memory": None}
    counted = run.counted
    memory = run.memory_bytes[counted] if len(run.memory_bytes) == len(counted) else np.empty(0)
    wait = run.wait_ms[counted] if len(run.wait_ms) == len(counted) else np.empty(0)
    return {
        "step": float(np.median(run.step_ms[counted])),
        "wait": float(np.median(wait)) if len(wait) else None,
        "memory": float(np.median(memory)) / 2**20 if len(memory) and memory.max() > 0 else None,
    }


# --- as text --------------------------------------------------------------------------------------

_FIGURES = ("run", "state", "mean step", "median", "interval", "data wait", "samples/s", "peak")


def report(title: str, board: Board) -> Document:
    """The runs as a document: what stays of a Lab without its widget."""
    if not board.runs:
        return Document("Lab", f"{title}: no run yet.")
    last = board.runs[-1]
    compared = verdict(board, last)
    ended = f"{title}: {plural(len(board.runs), 'run')}"
    short = compared.partition(" [")[0].partition(", with")[0]
    return Document(
        name="Lab",
        sentence=f"{ended}; run {last.run_id}: {compared}." if compared else f"{ended}.",
        headline=f"Run {last.run_id}: {short}." if compared else "",
        # settings stand below the figures: beside them they would be cut off
        tables=(
            Table(_FIGURES, tuple(_figures(board, run) for run in board.runs), open=True),
            *_phase_table(board),
            Table(
                ("run", "speed", "settings"),
                tuple(
                    (str(run.run_id), _plain_speed(board, run), board.settings(run))
                    for run in board.runs
                ),
                title="Settings",
                align="<<<",
                open=True,
                wrap=True,
            ),
        ),
        foot=tuple(_footnotes(board)),
    )


def _figures(board: Board, run: RunResult) -> tuple[str, ...]:
    pinned = board.base is run and len(board.runs) > 1
    return (
        f"{run.run_id}{' (pinned)' if pinned else ''}",
        run.state,
        fmt_ms(run.mean_ms) if run.step else ABSENT,
        fmt_ms(run.step.median) if run.step else ABSENT,
        fmt_ms_interval(run.step.low, run.step.high) if run.step else ABSENT,
        fmt_share(run.wait_share),
        fmt_number(run.samples_per_s),
        fmt_bytes(run.peak_bytes),
    )


def _phase_table(board: Board) -> tuple[Table, ...]:
    """Where the steps' time goes, in milliseconds; nothing where it was not seen."""
    seen = [run for run in board.runs if run.phases.ms]
    phases = [name for name in PHASES if any(name in run.phases.ms for run in seen)]
    if not phases:
        return ()
    rows = tuple(
        (
            str(run.run_id),
            str(run.phases.n_steps),
            *(fmt_ms(run.phases.ms[name]) if name in run.phases.ms else ABSENT for name in phases),
        )
        for run in seen
    )
    header = ("run", "steps", *map(_phase_words, phases))
    title = f"Where a step's time goes ({_PHASES_OF})"
    return (Table(header, rows, title=title, align="<" + ">" * (len(header) - 1), open=True),)


def _plain_speed(board: Board, run: RunResult) -> str:
    if run is board.base:
        return "1×"
    speed = board.speed(run)
    if speed is None:
        return ABSENT
    per = " per sample" * (speed.ratio.per == "sample")
    text = f"{fmt_ratio(speed.ratio.ratio)}{per}"
    if speed.kind != "confirmed":
        return f"{text}, {speed.kind}"
    low, high = speed.ratio.low, speed.ratio.high
    seen = "" if speed.ratio.different else f", {no_difference(low, high)}"
    return f"{text} {fmt_interval(low, high)}{seen}"


def _footnotes(board: Board) -> list[str]:
    runs = board.runs
    notes = [
        f"run {run.run_id} {run.state}: {run.message.removeprefix(f'{run.state}: ')}"
        for run in runs
        if run.message
    ]
    kinds = list(dict.fromkeys(run.peak_kind for run in runs if run.peak_bytes is not None))
    if kinds:
        notes.append("; ".join(kinds))
    if any(run.phases.ms for run in runs):
        notes += [
            f"run {run.run_id}: where a step's time goes was not seen: {run.phases.why_not}"
            for run in runs
            if run.phases.why_not
        ]
    base = board.base
    if base is None:
        return notes
    notes.append("median: of the quiet steps, with its 95 % interval; speed is made of their mean")
    speeds = [speed for run in runs if (speed := board.speed(run)) is not None]
    if speeds:
        notes.append(f"{SPEED}, run {base.run_id} ÷ this run")
    kinds_of_speed = {speed.kind for speed in speeds}
    if "unconfirmed" in kinds_of_speed:
        notes.append(UNCONFIRMED)
    if "same settings" in kinds_of_speed:
        notes.append("same settings: runs differ this much by themselves")
    if "confirmed" in kinds_of_speed:
        notes.append("[…]: 95 % interval of an interleaved A/B of both")
    notes += [
        f"run {run.run_id}: {warning}"
        for run in runs
        for warning in run.warnings
        if warning.startswith("steps are uneven")
    ]
    notes.append(origin(board))
    return notes


def origin(board: Board) -> str:
    """Where the figures come from; empty before there is one."""
    return "" if board.base is None else board.base.provenance.sentence()
