"""``perfkit record [LESSON…]``: arguments, progress and output of the command."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.base.device import known
from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import Progress, write
from perfkit.cli.output import add_command, folder

if TYPE_CHECKING:
    from perfkit.course.ledger.criteria import Criterion
    from perfkit.course.ledger.lesson_recorder import Lesson
    from perfkit.course.ledger.recorder import Done
    from perfkit.course.ledger.records import Device

_EPILOG = """\
The lessons' notebooks run headless, each in a kernel of its own, and what their cells settle is
recorded; the notebooks stay as they are. A claim for which this machine lacks something is
skipped, with the reason. This needs the extra [lab]; the exit code is 1 without it, or if a claim
failed.

Claims about a GPU are recorded on the GPU if there is one, all others on the CPU. The folder is
data/recorded in a clone, else your data folder. Keep the machine quiet: if it is busy, the record
says so, and does not replace one of a quiet machine. `perfkit claims` shows what the records say.

--export and --import measure nothing. To share what you recorded: perfkit record --export FILE,
and attach FILE to a pull request.
"""


def add(commands: Any) -> None:
    """Add the command to the parser of ``perfkit``."""
    record = add_command(
        commands,
        "record",
        run,
        help="run the lessons on this machine and record what they settle",
        epilog=_EPILOG,
    )
    record.add_argument("lesson", nargs="*", help="e.g. 00 or 06-host-to-device; default: all")
    record.add_argument(
        "--claim", action="append", metavar="ID", help="only this claim, e.g. A9; may be repeated"
    )
    record.add_argument("--out", type=folder, metavar="DIR", help="default: see below")
    record.add_argument(
        "--scale",
        type=_positive,
        default=2.0,
        metavar="X",
        help="times the measuring budgets of the lessons' cells (default: 2)",
    )
    record.add_argument(
        "--device",
        choices=sorted(device.type for device in known()),
        help="default: the one the claim is about",
    )
    move = record.add_mutually_exclusive_group()
    move.add_argument(
        "--export", type=_file, metavar="FILE", help="write this machine's records to one file"
    )
    move.add_argument(
        "--import",
        type=_file,
        metavar="FILE",
        dest="imported",
        help="add the records of such a file",
    )


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give the name of a file")
    return Path(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Measure, export or import; return 0, or 1 if a claim's cell failed."""
    from perfkit.course.kit._recorded import recorded_folder

    claims = _checked_claims(arguments.claim)
    lessons = arguments.lesson or None
    place = arguments.out or recorded_folder()
    if arguments.export is not None:
        return _export(arguments.export, place, claims, lessons)
    if arguments.imported is not None:
        if claims or lessons:
            raise UsageError("--import takes the whole file: leave out lessons and --claim")
        return _import(arguments.imported, place)
    return _measure(arguments, place, claims, lessons)


def _measure(
    arguments: argparse.Namespace, place: Path, claims: list[str] | None, lessons: list[str] | None
) -> int:
    from perfkit.course.ledger.criteria import criteria
    from perfkit.course.ledger.lesson_recorder import record_lessons

    settled = criteria(claims=claims, lessons=lessons)
    if not settled:
        known = sorted({one.number for one in criteria()})
        raise UsageError("no such claim; lessons with some: " + (", ".join(known) or "none"))
    n_done = 0

    with Progress("record", waits=True) as progress:

        def before(lesson: Lesson, wanted: Sequence[Criterion], device: Device) -> None:
            progress.hide()
            _say_lesson(lesson, wanted, device)
            progress.line(lesson.path.name, share=n_done / len(settled))

        def after(one: Done) -> None:
            nonlocal n_done
            n_done += 1
            progress.hide()
            _say_after(one)

        done = record_lessons(
            _lessons(settled),
            place,
            scale=arguments.scale,
            device=arguments.device,
            before=before,
            after=after,
        )
    counts = {state: sum(d.state == state for d in done) for state in _STATES}
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n or state in _ALWAYS))
    for written in sorted({str(d.path.parent) for d in done if d.path is not None}):
        print(f"records: {written}")
    return int(bool(counts["failed"]))


_STATES = ("recorded", "kept", "not decided", "skipped", "played", "failed")
_ALWAYS = ("recorded", "skipped", "failed")


def _lessons(settled: Sequence[Criterion]) -> list[Lesson]:
    from perfkit.course.kit._recorded import lesson_notebook
    from perfkit.course.ledger.lesson_recorder import Lesson

    return [
        Lesson(lesson_notebook(number), tuple(one for one in settled if one.number == number))
        for number in dict.fromkeys(one.number for one in settled)
    ]


def _export(path: Path, place: Path, claims: list[str] | None, lessons: list[str] | None) -> int:
    from perfkit.course.ledger.exchange import export_records
    from perfkit.course.ledger.recording import lesson_number
    from perfkit.course.ledger.records import read_records

    numbers = None if lessons is None else {lesson_number(one) for one in lessons}
    found = [
        one
        for one in read_records([place]).records
        if one.device.is_here
        and (claims is None or one.claim in claims)
        and (numbers is None or one.number in numbers)
    ]
    export_records(found, path)
    devices = ", ".join(sorted({one.device.name for one in found}))
    print(f"{_n_records(len(found))} of {devices}: {printable(str(path))}")
    return 0


def _import(path: Path, place: Path) -> int:
    from perfkit.course.ledger.exchange import import_records, read_export

    results = import_records(read_export(path), place)
    for one in results:
        if one.kept:
            where = f"{one.record.claim:<4} lesson {one.record.number}, {one.record.device.name}"
            print(printable(f"{where}: not taken: {one.kept}", 400))
    taken = [one.path for one in results if one.path is not None]
    print(f"{_n_records(len(taken))} of {len(results)} taken")
    for written in sorted({str(one.parent) for one in taken}):
        print(f"records: {printable(written)}")
    return 0


def _n_records(n: int) -> str:
    return f"{n} record{'s' * (n != 1)}"


def _checked_claims(asked: list[str] | None) -> list[str] | None:
    """The ids as the ledger writes them.

    Raises:
        UsageError: an id is not in the ledger.
    """
    from perfkit.course.ledger.claims import claims

    if asked is None:
        return None
    unknown = [one for one in asked if one.upper() not in claims()]
    if unknown:
        raise UsageError(f"no claim {unknown[0]!r}; `perfkit claims` lists all")
    return [one.upper() for one in asked]


def _say_lesson(lesson: Lesson, wanted: Sequence[Criterion], device: Device) -> None:
    ids = ", ".join(one.claim for one in wanted)
    where = "the CPU" if device.type == "cpu" else device.name
    print(f"{lesson.path.name} on {where}: {ids}", flush=True)


def _say_after(done: Done) -> None:
    from perfkit.course.ledger._figures import shown
    from perfkit.course.ledger.ledger import status_of

    print(f"{done.criterion.claim:<4} lesson {done.criterion.number}  {done.criterion.title}")
    if done.record is None:
        print(f"     {done.state}: {done.reason}", flush=True)
        if done.details:
            write(f"{_indented(done.details)}\n")
        return
    outcome = done.record.outcome
    headline = shown(outcome.figures[outcome.headline])
    print(f"     {status_of(done.record)}: {headline}; {outcome.sentence} ({done.seconds:.0f} s)")
    for warning in done.record.warnings:
        print(f"     note: {warning}")
    sys.stdout.flush()


def _indented(text: str) -> str:
    return "\n".join(f"     | {line}" for line in text.rstrip().splitlines()[-30:])
