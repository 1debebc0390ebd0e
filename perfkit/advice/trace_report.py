"""``perfkit trace FILE…``: explain recorded traces, one file or one per rank.

``perfkit trace --help`` lists the keys of its JSON, which is :meth:`TraceReport.to_dict`. Within
``perfkit.trace/1`` keys are only added, never renamed or removed, and units stay; nothing is NaN.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from perfkit._version import __version__
from perfkit.advice.diagnose import as_compared
from perfkit.advice.open_trace import OpenTrace
from perfkit.advice.profile import Profile, explain
from perfkit.base.display import Shown
from perfkit.base.errors import TraceError, UsageError
from perfkit.base.machine._host import usable_cpus
from perfkit.base.plain import plain
from perfkit.base.words import fmt_bytes, plural
from perfkit.trace.ask import questions
from perfkit.trace.ask.diff import Diff
from perfkit.trace.ask.diff import diff as compare_traces
from perfkit.trace.ask.rank_pool import read_ranks
from perfkit.trace.ask.rank_summary import summary_of
from perfkit.trace.ask.ranks import Ranks, ranks_of
from perfkit.trace.ask.syncs import Sync
from perfkit.trace.read.load import UNPACK_AT_MOST, load

SCHEMA = "perfkit.trace/1"

# Starting a process takes about a second: smaller files are faster to read here.
_WORTH_A_PROCESS_BYTES = 32 * 2**20
# Reading a trace takes several times its file size in memory: read only a few at a time.
_MOST_AT_ONCE = 4

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class TraceReport(Shown):
    """One trace explained, or one per rank.

    Attributes:
        profile: the explanation of ``file``; of several ranks, the one that holds the others up, or
            the first.
        ranks, comparison: several files only: :func:`describe` of each, sorted by rank, then name;
            which rank is slow, who waits for whom.
        diff: the comparison of ``file`` with ``other``; None without ``diff``.
        answers: question → what the trace answers, for a page; empty unless asked for.
    """

    file: str
    profile: Profile
    ranks: tuple[dict[str, Any], ...] = ()
    comparison: Ranks | None = None
    other: str = ""
    diff: Diff | None = None
    answers: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object described in this module's docstring."""
        return {
            "schema": SCHEMA,
            "perfkit": __version__,
            **describe(self.file, self.profile),
            **({"ranks": list(self.ranks)} if self.ranks else {}),
            **({"rank_comparison": _comparison(self.comparison)} if self.comparison else {}),
            **({"diff": _diff(self.diff)} if self.diff else {}),
        }


def describe(file: str, profile: Profile) -> dict[str, Any]:
    """One trace as plain JSON types."""
    whole, info = profile.to_dict(), profile.trace.metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    kept = (
        "how_found", "bound_by", "sentence", "no_cure", "step_ms", "shares", "device_shares",
        "steps", "findings",
    )  # fmt: skip
    return {
        "file": file,
        "rank": rank if isinstance(rank, int) else None,
        "n_events": len(profile.trace),
        **{key: whole[key] for key in kept},
        "syncs": [_sync(s) for s in profile.syncs],
        "operators": [asdict(o) for o in profile.operators],
        "limit": whole["limit"],
        "provenance": whole["provenance"],
        "warnings": whole["warnings"],
    }


def _comparison(compared: Ranks) -> dict[str, Any]:
    keys = ("stragglers", "imbalance", "n_collectives", "skew_ms", "transfer_ms", "waits")
    return {key: plain(getattr(compared, key)) for key in (*keys, "warnings")}


def _diff(changed: Diff) -> dict[str, Any]:
    keys = ("before_step_ms", "after_step_ms", "ratio", "host_ms", "device_ms", "changes")
    found = {key: plain(getattr(changed, key)) for key in (*keys, "warnings")}
    return {"other": changed.names[0], **found}


def _sync(sync: Sync) -> dict[str, Any]:
    file, line, function = sync.place or (None, None, None)
    keys = ("op", "count", "cost_us", "call", "copy", "is_transfer")
    return {
        **{key: getattr(sync, key) for key in keys},
        "file": file,
        "line": line,
        "line_is": function and ("def" if sync.at_def else "call"),
    }


def trace_report(
    files: Sequence[str | os.PathLike[str]],
    *,
    diff: str | os.PathLike[str] | None = None,
    progress: Progress = lambda what: None,
    unpack_at_most: int | None = UNPACK_AT_MOST,
    answers: bool = False,
) -> TraceReport:
    """Read and explain traces.

    Args:
        answers: also answer every question that a trace can be asked, for a page with all of them.

    Raises:
        UsageError: there is no file, or ``diff`` is given with several.
        TraceError: a file cannot be read or is not a trace.
    """
    paths = [os.fspath(f) for f in files]
    if not paths:
        raise UsageError("no trace to explain: give the path of a .json[.gz] trace")
    if diff is not None and len(paths) > 1:
        raise UsageError("--diff compares two traces: give one file with it")
    if len(paths) > 1:
        report = _of_ranks(paths, progress, unpack_at_most)
    else:
        report = TraceReport(paths[0], _explained(paths[0], progress, unpack_at_most))
    if diff is not None:
        other = os.fspath(diff)
        progress(f"comparing with {other} ({_size(other)})")
        before = load(other, unpack_at_most=unpack_at_most)
        report = replace(report, other=other, diff=compare_traces(before, report.profile.trace))
    if answers:
        progress("answering more questions")
        asked = OpenTrace(report.profile.trace)
        report = replace(report, answers={name: asked.ask(name) for name in questions()})
    return report


def _of_ranks(paths: list[str], progress: Progress, unpack_at_most: int | None) -> TraceReport:
    ranks = _all_ranks(paths, progress, unpack_at_most)
    progress(f"comparing {len(paths)} ranks")
    comparison = ranks_of([rank["summary"] for rank in ranks])
    late = [r.path for r in comparison.ranks if r.rank in comparison.stragglers[:1]]
    said = sorted(
        (rank["said"] for rank in ranks),
        key=lambda d: (d["rank"] is None, d["rank"] or 0, d["file"]),
    )
    chosen = late[0] if late else said[0]["file"]
    kept = next(rank.get("profile") for rank in ranks if rank["said"]["file"] == chosen)
    whole: Profile = _explained(chosen, progress, unpack_at_most) if kept is None else kept
    if comparison.skew_ms is not None:
        whole = replace(whole, diagnosis=as_compared(whole.diagnosis, comparison.skew_ms))
    return TraceReport(chosen, whole, tuple(said), comparison)


def _explained(path: str, progress: Progress, unpack_at_most: int | None) -> Profile:
    size = _size(path)

    def told(share: float) -> None:  # each prints a line: quarters are enough
        if share >= 0.25:
            progress(f"reading {path} ({size}): {int(4 * share) * 25} %")

    progress(f"reading {path} ({size})")
    trace = load(path, progress=told, unpack_at_most=unpack_at_most)
    progress(f"explaining {plural(len(trace), 'event')} of {path}")
    return explain(trace)


def _all_ranks(
    paths: list[str], progress: Progress, unpack_at_most: int | None
) -> list[dict[str, Any]]:
    """Read each file; large ones in processes of their own, a few at a time, and not kept."""
    n_bytes = sum(Path(p).stat().st_size for p in paths if Path(p).exists())
    if n_bytes < _WORTH_A_PROCESS_BYTES:
        found = []
        for number, path in enumerate(paths, 1):
            progress(f"reading {path}, {number} of {len(paths)}")
            found.append(_rank(path, unpack_at_most))
        return found
    n_workers = min(len(paths), usable_cpus(), _MOST_AT_ONCE)
    progress(f"reading {len(paths)} traces, {n_workers} at a time")
    task = f"{rank_in_a_process.__module__}:{rank_in_a_process.__name__}"
    answers = read_ranks(paths, task, n_workers, {"unpack_at_most": unpack_at_most})
    for answer in answers:
        if "error" in answer:
            raise TraceError(answer["error"])
    return answers


def _rank(path: str, unpack_at_most: int | None) -> dict[str, Any]:
    """One file: its description, what the comparison needs of it, and its profile."""
    profile = explain(load(path, unpack_at_most=unpack_at_most))
    summary = summary_of(profile.trace, path)
    return {"said": describe(path, profile), "summary": summary, "profile": profile}


def rank_in_a_process(path: str, unpack_at_most: int | None) -> dict[str, Any]:
    """What :func:`perfkit.trace.ask.rank_pool.read_ranks` brings of each file."""
    return _rank(path, unpack_at_most) | {"profile": None}


def _size(path: str) -> str:
    try:
        return fmt_bytes(Path(path).stat().st_size)
    except OSError:
        return "size unknown"
