"""``perfkit claims``: arguments and output of the command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import write
from perfkit.cli.output import add_command, add_json, say

_EPILOG = """\
A status comes only from records (`perfkit record`); no claim holds without one. "here" means that
the record was made on a processor or GPU with the same name as this machine's.

--json prints one object (schema perfkit.claims/1; keys are only ever added):
  schema, perfkit     "perfkit.claims/1", version that wrote it
  here[]              this machine's processor and GPUs
  counts              status -> number of claims
  claims[]            id, technique, source_figure (the source's own, or ""), measured
    where             "cpu", "gpu", "multi" -> which part of the claim, "" for all of it
    tested            by part, as in where: what is tested instead; {} if nothing differs
    today             what changed since the source was written, or ""
    lessons[]         the lessons that cover it; the first one settles it
    taught_in[]       lessons whose notebook lists it; null if no notebooks are available
    status            "holds" or "does not hold", with " here" for this machine's own record;
                      then ", as tested" if the record tests something other than the source
                      means (as_tested says what), or ", simulated" or ", predicted" if its
                      figure is; or not recorded, needs a GPU, needs several GPUs,
                      not yet taught
    as_tested         what the record tests if that is not what the source means, or ""
    figure            value, unit, low, high (95 %, or null), kind (exact, measured, predicted or
                      simulated); null without a record
    records[]         device, device_type, gpus, here, lesson, when_utc, holds, headline (name),
                      figures, sentence, provenance, warnings, older_than_lesson (the notebook's
                      code has changed since); those behind the status first
    not_recorded[]    keys of where that no record covers
  refused[]           records that were not read, and why (edited by hand, incomplete, another
  schema)
"""


def add(commands: Any) -> None:
    """Add the command to the parser of ``perfkit``."""
    claims = add_command(
        commands,
        "claims",
        run,
        help="list the course's claims and what the records say about each",
        epilog=_EPILOG,
    )
    add_json(claims)
    claims.add_argument("--html", metavar="OUT", help="write one self-contained page")
    claims.add_argument(
        "--records", metavar="DIR", help="default: data/recorded, and the user's data folder"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger, or write it as a page; return 0."""
    from perfkit.course.kit._recorded import lesson_hashes, recorded_folders, taught_claims
    from perfkit.course.ledger.ledger import ledger
    from perfkit.course.ledger.records import read_records

    if arguments.records is None:
        folders = recorded_folders()
    else:
        folders = [Path(arguments.records)]
        if not folders[0].is_dir():
            raise UsageError(f"no folder {arguments.records!r}: --records takes a folder")
    found = ledger(read_records(folders), taught_claims(), lesson_hashes())
    if arguments.html is not None:
        from perfkit.show.files import write_page

        path = write_page(found, arguments.html, title="Claims ledger")
        page = f"page: {printable(str(path))}"
        if arguments.json:
            write(f"{page}\n")
        else:
            print(page)
    if arguments.json or arguments.html is None:
        say(found, as_json=arguments.json)
    return 0
