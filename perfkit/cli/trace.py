"""``perfkit trace FILE…``: arguments, progress and output of the command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from perfkit.base.display import Shown
from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import Progress, write
from perfkit.cli.output import add_command, add_json, say

_EPILOG = """\
Several FILEs are the ranks of one run. Reads .json, .json.gz and .zst traces from torch.profiler
(Kineto), 2021 to today, of CUDA, ROCm and CPU runs.

--json prints one object (schema perfkit.trace/1; keys are only ever added; times in us, unless a
key ends in _ms):
  schema, perfkit           "perfkit.trace/1", version that wrote it
  file, rank, n_events      the trace; its rank or null; timed events in it
  bound_by, sentence        data, host, launch, sync, copy, gaps (the device idles although work is
                            queued), driver (the host is in a long call of the driver that launches
                            nothing), compute or communication; in words
  no_cure                   set if no finding is about what bounds the step
  how_found, step_ms        how steps were found; their length (median, low, high, n)
  shares, device_shares     class -> share of all steps' time; they add up to 1
  steps[]                   name, wall_us, host_us {class: us; data wait, forward, backward,
                            optimizer, sync, copy, communication, other} and, with a device,
                            device_us {class: us; compute, communication, copy, idle}; each adds up
                            to wall_us
  findings[]                rule, sentence, evidence[], what_to_do, gain_at_most (1.4: at most
                            1.4 times as fast; 1: no gain in time; 10: over 10 times at best; null
                            without a device), formula, lesson (null without a course that has
                            one), line; in the order to try
  syncs[]                   op, file, line (null without stacks), line_is (call, def where only the
                            function's first line was recorded, or null), count, cost_us, call,
                            copy, is_transfer; all steps together
  operators[]               name, count, self_us, total_us, device_us, n_launches, share; by self
                            time, all steps together
  limit                     null without shapes; else device, kind, flops, least_bytes, least_ms,
                            step_ms, ratio, mfu, hfu, counted_share: of a step, beside the least
                            time that the device needs by its data sheet; null where not known
  provenance, warnings[]    where and when it was recorded; what is doubtful
  ranks[]                   several FILEs only: the same keys for each; those above are then for
                            the rank that the others wait for most, else for the one that waits
                            least, or without communication for the slowest
  rank_comparison           several FILEs only: stragglers[], imbalance (longest over mean compute
                            time, or null), n_collectives, waits[] (rank, for_rank, ms_per_step),
                            skew_ms, transfer_ms (a step; of the collectives' time, the wait for
                            later ranks, and the rest; or null)
  diff                      --diff only, from OTHER (before) to FILE (after): before_step_ms,
                            after_step_ms, ratio, host_ms and device_ms {class: [before, after]},
                            changes[] (kind, name, status: new, gone, grew, shrank or same ...)

--as DEVICE and --ask limit count FLOPs and bytes from the recorded shapes and print the lower bound
of a step, by operator; the rates are those of DEVICE's data sheet, without --as of the recorded
device's.

User and host names, environment dumps and tokens are removed from JSON and HTML;
--no-scrub keeps them.

--ask NAME prints one answer more: its --json is an object with the fields of that answer (times end
in _us, _ms or _ns, sizes in _bytes).

Exit code: 0 done, 2 a file that cannot be read or is not a trace (one line on stderr).
"""


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    parser = add_command(
        commands,
        "trace",
        run,
        help="explain traces recorded by torch.profiler, one file or one per rank",
        epilog=_EPILOG,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="a trace; several are ranks")
    parser.add_argument("--diff", metavar="OTHER", help="a trace to compare FILE with")
    parser.add_argument(
        "--ask",
        metavar="NAME",
        help="answer one question, e.g. critical-path; `--ask list` shows all",
    )
    parser.add_argument(
        "--as",
        dest="as_device",
        metavar="DEVICE",
        help="predict the lower bound of the recorded steps on another device by its data sheet, "
        "e.g. H200; needs recorded shapes",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print all tables: operators, source lines, host waits, every step",
    )
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a self-contained page")
    parser.add_argument(
        "--scrub",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="remove private data from JSON and HTML (default)",
    )
    parser.add_argument(
        "--unpack-at-most",
        type=_gib,
        default=2.0,
        metavar="GIB",
        help="refuse a compressed trace that expands to more than this (default: 2 GiB)",
    )


def _gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of GiB such as 2 or 0.5")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Explain the files; return 0, or 2 if one cannot be read."""
    import perfkit.advice.trace_report  # noqa: F401 - takes a while, which is no progress to show

    try:
        with Progress("perfkit", waits=True) as progress:
            asked = arguments.ask or arguments.as_device is not None
            report = _answer(arguments) if asked else _report(arguments, progress)
    except PerfkitError as error:
        write(f"perfkit: {error}\n")
        return 2
    except MemoryError:
        files = printable(", ".join(arguments.files))
        write(f"perfkit: not enough memory for {files}\n")
        return 2
    if arguments.html is not None:
        from perfkit.show.files import write_page

        write_page(report, arguments.html, scrub=arguments.scrub)
    say(report, as_json=arguments.json, verbose=arguments.verbose, scrub=arguments.scrub)
    return 0


def _report(arguments: argparse.Namespace, progress: Progress) -> Shown:
    from perfkit.advice.trace_report import trace_report

    return trace_report(
        arguments.files,
        diff=arguments.diff,
        progress=progress.line,
        unpack_at_most=_most_bytes(arguments),
        answers=arguments.html is not None,
    )


def _answer(arguments: argparse.Namespace) -> Shown:
    """The answer to ``--ask``."""
    from perfkit.advice.open_trace import Questions, open_trace, unknown_question
    from perfkit.trace.ask.ranks import ranks

    name: str = arguments.ask or "limit"
    options = {}
    if arguments.as_device is not None:
        if name != "limit":
            raise UsageError(f"--as is for the limit, not for --ask {name}: give one of the two")
        options["device"] = arguments.as_device
    if name == "list":
        return Questions.all()
    if name not in Questions.all().names:
        raise unknown_question(name)
    if arguments.diff is not None:
        asked = "--ask" if arguments.ask else "--as"
        raise UsageError(f"{asked} and --diff: give one of the two")
    if name == "ranks":
        return ranks(arguments.files)
    if len(arguments.files) != 1:
        asked = f"--ask {name}" if arguments.ask else "--as"
        raise UsageError(f"{asked} is about one trace: give one file")
    opened = open_trace(arguments.files[0], unpack_at_most=_most_bytes(arguments))
    answer: Shown = opened.ask(name, **options)
    return answer


def _most_bytes(arguments: argparse.Namespace) -> int:
    return int(arguments.unpack_at_most * 2**30)
