"""Run experiments one after the other, each in its own process, and write their records.

An experiment that crashes, hangs or leaves processes behind does not affect the others: it has a
time limit, and however it ends, every process that it started is killed and its scratch folder
removed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from perfkit.base.errors import MissingError, UsageError
from perfkit.base.machine import facts, stamp
from perfkit.base.printable import printable
from perfkit.base.words import fmt_share
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.criteria import Criterion
from perfkit.course.ledger.recording import Experiment, Outcome
from perfkit.course.ledger.records import BUSY as BUSY_SAID
from perfkit.course.ledger.records import REFUSED, Device, KeptError, Record, write_record

__all__ = [
    "BUSY_LOOK_S",
    "MARK",
    "Done",
    "check_writable",
    "doubts",
    "kill_marked",
    "line",
    "record",
    "this_device",
]

# Imports and set-up take time in addition to the budget.
_LIMIT_S = 90.0
_LIMIT_OF_BUDGET = 6.0
_LONGEST_REASON = 300
MARK = "PERFKIT_RECORDING"  # in the environment of everything that an experiment starts
_BUSY = 0.25  # share of the processors in use beforehand that is noted in the record
BUSY_LOOK_S = 0.3
_SWEEPS = 20

# The request goes through standard input because sys.path may be too long for arguments, and the
# child must find the same perfkit.
_BOOT = (
    "import sys, json; r = json.load(sys.stdin); sys.path[:] = r['path']; "
    "from perfkit.course.ledger._record_child import main; main(r)"
)


State = Literal["recorded", "kept", "not decided", "skipped", "played", "failed"]


@dataclass(frozen=True)
class Done:
    """The result of running one experiment.

    Attributes:
        experiment: the experiment, or a lesson's criterion.
        state: ``"recorded"``, ``"kept"`` (the machine was busy, so that the record of a quiet one
            stays), ``"not decided"`` (the evidence is too thin), ``"skipped"`` (this machine lacks
            something), ``"played"`` (it ran on a played GPU, so nothing was written) or
            ``"failed"``.
        reason: why nothing was written; empty if it was recorded.
        record: the record, if one was written.
        path: its file.
        seconds: how long its process ran.
        details: traceback or last output, if it failed.
    """

    experiment: Experiment | Criterion
    state: State
    reason: str = ""
    record: Record | None = None
    path: Path | None = None
    seconds: float = 0.0
    details: str = ""


def record(
    experiments: Iterable[Experiment],
    folder: Path,
    *,
    budget_s: float = 12.0,
    seed: int = 0,
    device: str | None = None,
    limit_s: float | None = None,
    before: Callable[[Experiment], None] | None = None,
    after: Callable[[Done], None] | None = None,
) -> list[Done]:
    """Run these experiments and write a record for each that has an outcome.

    Args:
        experiments: registered experiments; each one's module is imported again in its process.
        folder: records go to ``<folder>/<device>/<claim>.json``.
        budget_s: approximate seconds for each.
        seed: seed for everything random in them.
        device: torch's type of device; ``None`` uses the GPU for claims about one, if there is one.
        limit_s: an experiment that takes longer is killed; by default a multiple of the budget.
        before, after: called before and after each.

    Raises:
        UsageError: the budget is not a positive number, or the folder cannot be written.
        MissingError: a GPU was requested and there is none.
    """
    if not 0 < budget_s < float("inf"):
        raise UsageError(f"the budget must be a positive number of seconds, not {budget_s}")
    check_writable(folder)
    results = []
    for one in experiments:
        if before is not None:
            before(one)
        result = _record_one(
            one,
            folder,
            budget_s=budget_s,
            seed=seed,
            device=this_device(one.claim, device),
            limit_s=_LIMIT_S + _LIMIT_OF_BUDGET * budget_s if limit_s is None else limit_s,
        )
        if after is not None:
            after(result)
        results.append(result)
    return results


def this_device(claim: str, wanted: str | None = None) -> Device:
    """The device for a claim's experiment on this machine.

    By default claims with a GPU part use a GPU, and claims about several GPUs use several; all
    others run on the CPU with GPUs hidden.

    Raises:
        MissingError: a GPU was asked for and there is none.
    """
    machine = facts()
    n = len(machine.gpus)
    if wanted is None:
        known = claims().get(claim)
        parts = set(known.where) if known is not None else set()
        on_gpu = ("gpu" in parts and n) or ("multi" in parts and n > 1)
        wanted = machine.gpus[0].type if on_gpu else "cpu"
    if wanted == "cpu":
        return Device(machine.cpu, "cpu", 0)
    if not n or machine.gpus[0].type != wanted:
        raise MissingError(
            f"there is no GPU here that torch could use ({wanted}); see `perfkit doctor`"
        )
    return Device(machine.gpus[0].name, wanted, n)


def _record_one(
    one: Experiment, folder: Path, *, budget_s: float, seed: int, device: Device, limit_s: float
) -> Done:
    absent = [name for name in one.needs if not _is_installed(name)]
    if absent:
        return Done(one, "skipped", f"needs {', '.join(absent)}, not installed here")
    busy = psutil.cpu_percent(interval=BUSY_LOOK_S) / 100
    began = time.monotonic()
    answer = _run_apart(one, budget_s=budget_s, seed=seed, device=device.type, limit_s=limit_s)
    seconds = time.monotonic() - began
    if "missing" in answer:
        return Done(one, "skipped", line(answer["missing"]), seconds=seconds)
    if "outcome" not in answer:
        details = str(answer.get("traceback", ""))
        return Done(one, "failed", line(answer["error"]), seconds=seconds, details=details)
    outcome = Outcome.from_dict(answer["outcome"])
    if outcome.holds is None:
        return Done(one, "not decided", line(outcome.sentence), seconds=seconds)
    made = Record(
        claim=one.claim,
        lesson=one.lesson,
        title=one.title,
        outcome=outcome,
        device=device,
        provenance=stamp(
            "recorded",
            command=f"perfkit record --claim {one.claim} --budget {budget_s:g}",
            seed=seed,
            device="cpu" if device.is_cpu else device.name,
        ),
        budget_s=budget_s,
        duration_s=round(seconds, 3),
        warnings=doubts(busy),
    )
    if made.provenance.kind == "played":
        return Done(one, "played", REFUSED, seconds=seconds)
    try:
        path = write_record(made, folder)
    except KeptError as error:
        return Done(one, "kept", line(error), seconds=seconds)
    except UsageError as error:
        return Done(one, "failed", line(error), seconds=seconds)
    return Done(one, "recorded", record=made, path=path, seconds=seconds)


def check_writable(folder: Path) -> None:
    """Make the folder, before experiments run for minutes.

    Raises:
        UsageError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a null character in the name raises ValueError
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write records into {folder}: {reason}") from None


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # the package of a dotted name is missing
        return False


def doubts(busy: float) -> tuple[str, ...]:
    """Reasons to doubt what was measured while this share of the processors was in use."""
    if busy < _BUSY:
        return ()
    return (f"{BUSY_SAID}: {fmt_share(busy)} of its processors, with nothing of perfkit running",)


def _run_apart(
    one: Experiment, *, budget_s: float, seed: int, device: str, limit_s: float
) -> dict[str, Any]:
    mark = uuid.uuid4().hex
    # short names: socket paths inside are limited to about a hundred characters
    with tempfile.TemporaryDirectory(prefix="pk-record-", ignore_cleanup_errors=True) as scratch:
        place = Path(scratch)
        for name in ("work", "tmp"):
            (place / name).mkdir()
        request = {
            "path": [str(Path(entry or ".").resolve()) for entry in sys.path],
            "module": one.function.__module__,
            "claim": one.claim,
            "lesson": one.number,
            "budget_s": budget_s,
            "seed": seed,
            "device": device,
            "folder": str(place / "work"),
            "answer": str(place / "answer.json"),
            "parent": os.getpid(),
        }
        environment = os.environ | {MARK: mark, "TMPDIR": str(place / "tmp")}
        if device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        ended = _call(request, environment, place / "output", limit_s, mark)
        try:
            answer: dict[str, Any] = json.loads((place / "answer.json").read_bytes())
        except (OSError, ValueError):
            output = (place / "output").read_text(encoding="utf-8", errors="replace")
            return {"error": ended, "traceback": output[-4000:]}
        return answer


def _call(
    request: Mapping[str, Any],
    environment: Mapping[str, str],
    output: Path,
    limit_s: float,
    mark: str,
) -> str:
    """Run the process to its end or the limit and say how it ended; no process is left."""
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"no end after {limit_s:g} s: ended"
        finally:
            _end(process, mark)
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was killed ({signal.Signals(-code).name})"
    return f"its process ended with code {code} and without an answer"


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill it and all that it started, even what left its session or lost its parent."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    if process.poll() is None:
        process.kill()
    process.wait()
    kill_marked(mark)


def kill_marked(mark: str) -> None:
    """Kill every process with this mark in its environment, and what it forks meanwhile."""
    for _ in range(_SWEEPS):  # a process forked meanwhile is found in the next round
        left = [p for p in psutil.process_iter() if _is_marked(p, mark)]
        if not left:
            return
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=0.5)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return (
            process.environ().get(MARK) == mark
            and process.status() != psutil.STATUS_ZOMBIE
            and process.pid != os.getpid()
        )
    except (psutil.Error, OSError):
        return False


def line(text: Any) -> str:
    """The text on one line, printable and not too long."""
    return printable(" ".join(str(text).split()), _LONGEST_REASON)
