"""``perfkit record [LESSON…]``: arguments, progress and output of the command."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import UsageError

if TYPE_CHECKING:
    from perfkit.course.ledger.recorder import Done
    from perfkit.course.ledger.recording import Experiment

_EPILOG = """\
Each experiment runs in its own process, with a time limit. One that needs a missing package or
device is skipped, with the reason; the exit code is 1 if one failed. You need only torch and
numpy, and no notebook.

Claims about a GPU are recorded on the GPU if there is one, all others on the CPU. The folder is
data/recorded in a clone, else your data folder. Keep the machine quiet: if it is busy, the record
says so. `perfkit claims` shows what the records say.
"""


def add(commands: Any) -> None:
    """Add the command to the parser of ``perfkit``."""
    record = commands.add_parser(
        "record",
        help="run the lessons' experiments on this machine and record what they find",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    record.add_argument("lesson", nargs="*", help="e.g. 00 or 06-host-to-device; default: all")
    record.add_argument(
        "--claim", action="append", metavar="ID", help="only this claim, e.g. A9; may be repeated"
    )
    record.add_argument("--out", type=_folder, metavar="DIR", help="default: see below")
    record.add_argument(
        "--budget", type=_seconds, default=12.0, metavar="S", help="seconds for each (default: 12)"
    )
    record.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: the one the claim is about"
    )
    record.add_argument("--seed", type=int, default=0, help="default: 0")
    record.set_defaults(run=_record)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give the name of a folder")
    return Path(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _record(arguments: argparse.Namespace) -> int:
    from perfkit.course.experiments import discover
    from perfkit.course.kit._recorded import recorded_folder
    from perfkit.course.ledger.recorder import record
    from perfkit.course.ledger.recording import registered

    broken = 0

    def problem(module: str, error: Exception) -> None:
        nonlocal broken
        broken += 1
        said = f"{type(error).__name__}: {error}"
        print(f"perfkit: {module} cannot be imported: {said}", file=sys.stderr)

    discover(problem=problem)
    claims = _checked_claims(arguments.claim)
    found = registered(claims=claims, lessons=arguments.lesson or None)
    if not found:
        known = sorted({one.number for one in registered()})
        raise UsageError(
            "no such experiment; lessons with experiments: " + (", ".join(known) or "none")
        )
    folder = arguments.out or recorded_folder()
    done = record(
        found,
        folder,
        budget_s=arguments.budget,
        seed=arguments.seed,
        device=arguments.device,
        before=_say_before,
        after=_say_after,
    )
    counts = {state: sum(d.state == state for d in done) for state in _STATES}
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n or state != "played"))
    for place in sorted({str(d.path.parent) for d in done if d.path is not None}):
        print(f"records: {place}")
    return int(bool(counts["failed"] or broken))


_STATES = ("recorded", "skipped", "played", "failed")


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


def _say_before(one: Experiment) -> None:
    print(f"{one.claim:<4} lesson {one.number}  {one.title}", flush=True)


def _say_after(done: Done) -> None:
    from perfkit.course.ledger._figures import shown
    from perfkit.course.ledger.ledger import status_of

    if done.record is None:
        print(f"     {done.state}: {done.reason}", flush=True)
        if done.details:
            print(_indented(done.details), file=sys.stderr, flush=True)
        return
    outcome = done.record.outcome
    headline = shown(outcome.figures[outcome.headline])
    print(f"     {status_of(done.record)}: {headline}; {outcome.sentence} ({done.seconds:.0f} s)")
    for warning in done.record.warnings:
        print(f"     note: {warning}")
    sys.stdout.flush()


def _indented(text: str) -> str:
    return "\n".join(f"     | {line}" for line in text.rstrip().splitlines()[-30:])
