"""Run lessons headless and keep what their cells settle.

A lesson runs in a kernel of its own, in an empty folder. A cell that raises or hangs costs only its
own claims, one that kills the kernel also those after it; what was settled is recorded, and
however the lesson ends, every process that it started is killed.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

import perfkit
from perfkit.base.budget import VARIABLE
from perfkit.base.errors import UsageError
from perfkit.base.machine import Provenance
from perfkit.base.machine.played import is_played
from perfkit.base.scratch import scratch_folder
from perfkit.base.scrub import scrub
from perfkit.course.ledger import notebook as notebooks
from perfkit.course.ledger._figures import undecided
from perfkit.course.ledger.criteria import Criterion
from perfkit.course.ledger.notebook import CellRun
from perfkit.course.ledger.recorder import (
    BUSY_LOOK_S,
    MARK,
    Done,
    check_writable,
    doubts,
    kill_marked,
    line,
    this_device,
)
from perfkit.course.ledger.recording import Outcome
from perfkit.course.ledger.records import REFUSED, Device, KeptError, Record, write_record
from perfkit.course.ledger.settle import KIND, RECORDS_CLAIMS

# A cell of a lesson takes at most a minute on two cores with its own budgets.
_CELL_LIMIT_S = 120.0
_LIMIT_OF_SCALE_S = 120.0


@dataclass(frozen=True)
class Lesson:
    """A lesson's notebook and what is wanted of it."""

    path: Path
    criteria: tuple[Criterion, ...]


@dataclass
class _Found:
    """What a run of a lesson gave for one claim."""

    settled: Mapping[str, Any] | None = None
    seconds: float = 0.0
    error: str = ""
    error_name: str = ""
    details: str = ""


def record_lessons(
    lessons: Sequence[Lesson],
    folder: Path,
    *,
    scale: float = 2.0,
    device: str | None = None,
    cell_limit_s: float | None = None,
    before: Callable[[Lesson, Sequence[Criterion], Device], None] | None = None,
    after: Callable[[Done], None] | None = None,
) -> list[Done]:
    """Run these lessons and write a record for each claim that a cell settles.

    Args:
        lessons: what to run.
        folder: records go to ``<folder>/<device>/<claim>.json``.
        scale: by what the measuring budgets of the cells are multiplied.
        device: ``None`` uses the GPU for claims about one, if there is one; a lesson with claims of
            both kinds runs twice.
        cell_limit_s: a cell that takes longer is interrupted; by default minutes, by scale.
        before, after: called before each run of a lesson, and for each claim after it.

    Raises:
        UsageError: the scale is not a positive number, the folder cannot be written, or a notebook
            cannot be read.
        MissingError: a GPU was requested and there is none, or no lesson can run here.
    """
    if not 0 < scale < float("inf"):
        raise UsageError(f"the scale must be a positive number, not {scale}")
    check_writable(folder)
    notebooks.check_client()
    limit_s = _CELL_LIMIT_S + _LIMIT_OF_SCALE_S * scale if cell_limit_s is None else cell_limit_s
    results = []
    for lesson in lessons:
        notebook = notebooks.read_notebook(lesson.path)
        by_device: dict[Device, list[Criterion]] = {}
        for one in lesson.criteria:
            by_device.setdefault(this_device(one.claim, device), []).append(one)
        for place, wanted in by_device.items():
            if before is not None:
                before(lesson, wanted, place)
            for done in _record_run(lesson.path, notebook, wanted, folder, place, scale, limit_s):
                if after is not None:
                    after(done)
                results.append(done)
    return results


def _record_run(
    path: Path,
    notebook: Mapping[str, Any],
    wanted: Sequence[Criterion],
    folder: Path,
    device: Device,
    scale: float,
    limit_s: float,
) -> list[Done]:
    settles = notebooks.settling_cells(notebook)
    claims = [one.claim for one in wanted if one.claim in settles]
    found = {claim: _Found() for claim in claims}
    failed_cells: list[int] = []

    def keep(cell: CellRun) -> None:
        if cell.error:
            failed_cells.append(cell.index)
        for result in cell.results:
            if result.get("type") == KIND and result.get("claim") in found:
                one = found[str(result["claim"])]
                one.settled, one.seconds = result, cell.seconds
        for claim in claims:
            if settles[claim] == cell.index and cell.error and found[claim].settled is None:
                found[claim] = _Found(
                    None, cell.seconds, cell.error, cell.error_name, cell.traceback
                )

    ended = ""
    busy = psutil.cpu_percent(interval=BUSY_LOOK_S) / 100
    if claims:
        last = max(settles[claim] for claim in claims)
        ended = _run(notebook, last, claims, device, scale, limit_s, keep)
    busy = max(busy, psutil.cpu_percent(interval=BUSY_LOOK_S) / 100)
    results = []
    for one in wanted:
        if one.claim not in found:
            said = f"no cell of {path.name} settles it"
            results.append(Done(one, "failed", said))
            continue
        got = found[one.claim]
        if got.settled is None:
            results.append(_unsettled(one, got, ended))
        else:
            before = [index + 1 for index in failed_cells if index < settles[one.claim]]
            warnings = doubts(busy)
            if before:
                warnings += (f"cell {before[0]} of the lesson raised before this was settled",)
            results.append(_written(one, got, folder, device, scale, warnings, path, notebook))
    return results


def _run(
    notebook: Mapping[str, Any],
    last: int,
    claims: Sequence[str],
    device: Device,
    scale: float,
    limit_s: float,
    keep: Callable[[CellRun], None],
) -> str:
    mark = uuid.uuid4().hex
    # Short names: paths of sockets in it are limited to about a hundred characters, of which the
    # temporary folder of macOS takes half.
    with scratch_folder("/tmp" if sys.platform == "darwin" else None) as place:
        for name in ("work", "t"):
            (place / name).mkdir()
        environment = os.environ | {
            MARK: mark,
            "TMPDIR": str(place / "t"),
            VARIABLE: f"{scale:g}",
            RECORDS_CLAIMS: ",".join(claims),
        }
        if device.type == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        source = Path(perfkit.__file__).resolve().parents[1]
        if source.name not in ("site-packages", "dist-packages"):
            # the kernel must find this perfkit, also where another one is installed
            before = filter(None, [environment.get("PYTHONPATH")])
            environment["PYTHONPATH"] = os.pathsep.join([str(source), *before])
        try:
            return notebooks.execute(
                notebook,
                last,
                folder=place / "work",
                environment=environment,
                cell_limit_s=limit_s,
                after=keep,
            )
        finally:
            kill_marked(mark)


def _unsettled(one: Criterion, got: _Found, ended: str) -> Done:
    if got.error:
        # what an optional package lacks is no fault of the lesson
        lacks = got.error_name in ("MissingError", "ModuleNotFoundError")
        state: Literal["skipped", "failed"] = "skipped" if lacks else "failed"
        details = "" if lacks else got.details
        return Done(one, state, line(got.error), seconds=got.seconds, details=details)
    return Done(one, "failed", ended or "its cell displayed nothing that it settles")


def _written(
    one: Criterion,
    got: _Found,
    folder: Path,
    device: Device,
    scale: float,
    warnings: tuple[str, ...],
    path: Path,
    notebook: Mapping[str, Any],
) -> Done:
    settled = got.settled or {}
    if settled["outcome"] is None:
        if settled["missing"]:
            return Done(one, "skipped", line(settled["why"]), seconds=got.seconds)
        details = str(settled.get("details", ""))
        return Done(one, "failed", line(settled["why"]), seconds=got.seconds, details=details)
    outcome = Outcome.from_dict(settled["outcome"])
    if outcome.holds is None:
        return Done(one, "not decided", line(undecided(outcome)), seconds=got.seconds)
    told = settled["provenance"]
    # the name of a GPU can be changed, also to "cpu", which the results then say
    if told["kind"] == "played" or (device.type != "cpu" and is_played()):
        return Done(one, "played", REFUSED, seconds=got.seconds)
    provenance = Provenance.from_dict(
        told
        | {
            "kind": "recorded",
            "command": f"perfkit record --claim {one.claim} --scale {scale:g}",
            "device": device.type if device.type == "cpu" else device.name,
        }
    )
    made = Record(
        claim=one.claim,
        lesson=one.lesson,
        title=one.title,
        outcome=outcome,
        device=device,
        provenance=provenance,
        budget_s=None,
        duration_s=round(got.seconds, 3),
        warnings=warnings,
        notebook=path.name,
        notebook_hash=notebooks.code_hash(notebook),
        budget_scale=scale,
    )
    made = scrub(made)  # now: its digest is of what others get to read
    try:
        place = write_record(made, folder)
    except KeptError as error:
        return Done(one, "kept", line(error), seconds=got.seconds)
    except UsageError as error:
        return Done(one, "failed", line(error), seconds=got.seconds)
    return Done(one, "recorded", record=made, path=place, seconds=got.seconds)
