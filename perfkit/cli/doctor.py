"""``perfkit doctor``: what this machine has, what works on it, and what it reaches at best."""

from __future__ import annotations

import argparse
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.cli.output import add_command, add_json, say

_EPILOG = """\
--json prints one object:
  cpu, system, python       text
  cores, logical_cpus       usable by this process / of the machine
  ram_bytes, shm_bytes, shm_free_bytes
  torch                     version, cuda, hip, cpu_capability, threads; null without torch
  gpus                      index, name, memory_bytes, compute_capability, driver, source
  packages                  version by name
  capabilities              name, available, reason, remedy
  provenance, warnings
The exit code is always 0; 'available' says what works.

--peaks measures, in 5 to 20 seconds, what this machine reaches at best with torch: matrix products
by number format, memory by working set, copies between host and device, the disk, the time to
start an operator. They are kept; the next call prints them, with their date. With --json:
  device, place, threads    what was measured
  products[]                form, size, flop_per_s {best, median, worst, n}
  memory[]                  what, working_set_bytes, bytes_per_s {...}
  copies, disk              kind -> B/s {...}; B/s {...} or null
  launch_us, round_trip_us  µs per operator that does nothing {...}; with a wait, or null
  busy, is_spoiled, notes, provenance, seconds
It fails with 1 where nothing can be measured.
"""


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    parser = add_command(
        commands,
        "doctor",
        run,
        help="show what this machine has, and which parts of perfkit work on it",
        epilog=_EPILOG,
    )
    add_json(parser)
    parser.add_argument(
        "--peaks", action="store_true", help="measure the best that this machine reaches, once"
    )
    parser.add_argument("--again", action="store_true", help="with --peaks: measure again")
    parser.add_argument(
        "--device",
        metavar="PLACE",
        help="with --peaks: cpu, cuda, cuda:1 (default: the GPU if there is one)",
    )
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        help="with --peaks: whose disk to measure (default: the current folder)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print all tables")


def run(arguments: argparse.Namespace) -> int:
    """Print the facts or the peaks; return 0."""
    if arguments.peaks:
        from perfkit.limit.kept import peaks

        found = peaks(arguments.device, again=arguments.again, folder=arguments.folder)
        say(found, as_json=arguments.json, verbose=arguments.verbose)
        return 0
    for flag in ("again", "device", "folder"):
        if getattr(arguments, flag):
            raise UsageError(f"--{flag} is for --peaks: give both")
    from perfkit.base.machine import doctor

    say(doctor(), as_json=arguments.json, verbose=arguments.verbose)
    return 0
