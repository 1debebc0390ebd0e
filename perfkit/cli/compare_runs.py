"""``perfkit compare-runs A.jsonl B.jsonl``: did anything get slower? For CI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.progress import write
from perfkit.cli.output import add_command, add_json, say

_EPILOG = """\
A and B are stores of runs: what perfkit.sweep(…, store="A.jsonl") and perfkit.ab(…, store=…)
write, one JSON object per line. Configurations are matched by the values of their settings.

A regression is a configuration that ran in A and fails in B, or whose time per step in B exceeds
that in A by more than the margin, with the whole interval above it.

--json prints one object (schema perfkit.compare-runs/2; keys are only ever added; times in ms):
  schema, names, margin     "perfkit.compare-runs/2", the two files, a share (0.05)
  regression, sentence      true if there is one; the result in words
  matched[]                 values {setting: value}, before_ms, after_ms, ratio (before / after),
                            low, high, n_before, n_after (runs), per ("step" or "sample"),
                            verdict ("slower", "faster", "within the margin", "unclear",
                            "fails now", "runs again"), message
  only_before[], only_after[]   values of configurations missing from the other file
  confidence, warnings[], provenance[]

Exit code: 0 no regression, 1 a regression, 2 bad input (one line on stderr).
"""


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    parser = add_command(
        commands,
        "compare-runs",
        run,
        help="compare two stores of runs; exit code 1 if something got slower",
        epilog=_EPILOG,
    )
    parser.add_argument("before", metavar="A", help="the store of runs from before a change")
    parser.add_argument("after", metavar="B", help="the store of runs from after it")
    parser.add_argument(
        "--margin",
        default="5%",
        help="how much slower is not yet a regression: 5%% or 0.05 (default: 5%%)",
    )
    add_json(parser)
    parser.add_argument(
        "--markdown", type=Path, metavar="OUT", help="write a table for a pull request"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare; return 0, or 1 for a regression, or 2 for bad input."""
    from perfkit.experiment.compare.compare_runs import compare_runs

    try:
        found = compare_runs(arguments.before, arguments.after, margin=share(arguments.margin))
        if arguments.markdown is not None:
            from perfkit.show.files import save

            save(found, arguments.markdown)
    except PerfkitError as error:
        write(f"perfkit: {error}\n")
        return 2
    say(found, as_json=arguments.json)
    return 1 if found.regressions else 0


def share(text: str) -> float:
    """``5%``, ``5 %`` or ``0.05`` as a share.

    Raises:
        UsageError: it is not a share. A number of 1 or more without ``%`` is most likely a slip.
    """
    number = text.strip()
    percent = number.endswith("%")
    try:
        value = float(number.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < (10 if percent else 1):
        raise UsageError(f"--margin {text!r:.40} is not valid: give a share such as 5% or 0.05")
    return value
