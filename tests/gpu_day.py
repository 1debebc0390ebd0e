"""Everything that waits for a real GPU, in pieces of at most 8 minutes; ``make gpu-day``.

    python tests/gpu_day.py                # every piece that has not run yet, then the archive
    python tests/gpu_day.py --minutes 25   # start no piece after 25 minutes
    python tests/gpu_day.py --list         # the pieces, in order, and what became of each
    python tests/gpu_day.py --only lab --only record-06 --again

Each piece is a command with a folder of its own in ``build/gpu-day/<device>/``: its output as it
comes, what it writes, and at its end ``piece.json``. Interrupted, or given back with the machine,
it goes on at the first piece without that file. One that fails or takes too long loses nothing
but its rest. All of it goes into one archive below 16 MB, scrubbed of the names of users and
hosts; ``perfkit record --import`` takes the records in it home.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 480.0
LARGEST_BYTES = 16_000_000
RECORDS = "records.json"
# the lessons about a GPU; the others after them
_FIRST = ("06", "07", "02", "03")
_END_S = 20.0  # between Ctrl-C and the end of a piece


@dataclass(frozen=True)
class Piece:
    """One command. ``{here}`` in it is the piece's folder, ``{day}`` that of the day.

    Attributes:
        name: of its folder.
        about: what it answers.
        command: its arguments after ``python``.
    """

    name: str
    about: str
    command: tuple[str, ...]


def pieces(short: bool) -> list[Piece]:
    """All pieces, in order; ``short`` takes one of each sort, with little time."""
    gpu = ("-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider")
    few = ("-k", "history") if short else ()
    tests = [
        Piece(f"tests-{room}", f"tests of {room} that need a GPU", (*gpu, *few, f"tests/{room}"))
        for room in (["memory"] if short else _rooms())
    ]
    settings = ("pin_memory", "--budget", "6") if short else ()
    lessons = ["06"] if short else [*_FIRST, *_numbers(but=_FIRST)]
    # what is not about a GPU is recorded on the CPU beside it
    claims = ("--claim", "C6", "--device", "cuda", "--scale", "0.5") if short else ()
    records = [
        Piece(
            f"record-{lesson}",
            f"the claims of lesson {lesson}",
            ("-m", "perfkit.cli", "record", lesson, *claims, "--out", "{day}/recorded"),
        )
        for lesson in lessons
    ]
    books = [] if short else [*_FIRST, *_numbers(but=_FIRST, text='device == \\"cuda\\"')]
    return [
        *tests,
        *([] if short else [_bench("sync_reality", "the sync lint beside what really waited")]),
        _bench("gpu_memory", "account, will_it_fit and history beside the allocator",
               *(["--short"] if short else [])),
        _bench("gpu_settings", "graphs, pinning, workers, precision", *settings),
        *records,
        Piece("export", "the records in one file", ("-m", "perfkit.cli", "record", "--export",
              f"{{day}}/{RECORDS}", "--out", "{day}/recorded")),
        *(_notebook(number) for number in books),
    ]  # fmt: skip


def _bench(name: str, about: str, *arguments: str) -> Piece:
    return Piece(name, about, (f"tests/bench/{name}.py", "{here}/result.json", *arguments))


def _notebook(number: str) -> Piece:
    (path,) = (ROOT / "notebooks").glob(f"{number}-*.ipynb")
    command = (
        "-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors",
        "--ExecutePreprocessor.timeout=150", "--output-dir", "{here}", str(path.relative_to(ROOT)),
    )  # fmt: skip
    return Piece(f"notebook-{number}", f"lesson {number} with device == 'cuda'", command)


def _rooms() -> list[str]:
    """The folders of tests that need a GPU; those of the played one need that."""
    files = (ROOT / "tests").glob("*/test_*.py")
    found = {f.parent.name for f in files if "mark.gpu" in f.read_text(encoding="utf-8")}
    return sorted(found - {"played_cuda"})


def _numbers(but: tuple[str, ...], text: str = "") -> list[str]:
    """The two digits of every other lesson whose notebook has this text."""
    found = sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb"))
    numbers = [path.name[:2] for path in found if text in path.read_text(encoding="utf-8")]
    return [number for number in numbers if number not in but]


def ended(day: Path, piece: Piece) -> dict[str, Any] | None:
    """What ``piece.json`` says; None where the piece has not ended."""
    try:
        found: dict[str, Any] = json.loads((day / piece.name / "piece.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found


def run(piece: Piece, day: Path, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run one piece, at most so many seconds, and write its ``piece.json``."""
    here = day / piece.name
    here.mkdir(parents=True, exist_ok=True)
    (here / "piece.json").unlink(missing_ok=True)
    command = [part.format(here=here, day=day) for part in piece.command]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    begin_s = time.monotonic()
    when = datetime.now(UTC).isoformat(timespec="seconds")
    with (here / "output.txt").open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            state = "done" if child.wait(limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            state = "out of time"
        finally:
            _end(child)
    result = {
        "piece": piece.name,
        "about": piece.about,
        "command": ["python", *piece.command],
        "state": state,
        "exit_code": child.returncode,
        "seconds": round(time.monotonic() - begin_s, 1),
        "when_utc": when,
        "commit": _commit(),
    }
    (here / "piece.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ctrl-C for the piece and its children, so that it writes what it has; then kill."""
    for number, wait_s in ((signal.SIGINT, _END_S), (signal.SIGKILL, None)):
        if number == signal.SIGINT and child.poll() is not None:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return said.stdout.strip() or "unknown"


def archive(day: Path, path: Path, largest_bytes: int = LARGEST_BYTES) -> list[str]:
    """Pack the day below ``largest_bytes``; returns the files left out, the largest first.

    Text is scrubbed. Records are not touched: they are made for sharing, and have a digest.
    """
    contents = {
        str(file.relative_to(day)): _content(file, day)
        for file in sorted(day.rglob("*"))
        if file.is_file()
    }
    by_size = sorted(contents, key=lambda name: len(contents[name]))
    left_out: list[str] = []
    while (packed := _packed(contents, left_out)) and len(packed) >= largest_bytes:
        if not by_size:
            raise SystemExit(f"gpu-day: not even a list of the files is below {largest_bytes:,} B")
        left_out.append(by_size.pop())
    part = path.with_suffix(".part")
    part.write_bytes(packed)
    part.replace(path)
    return left_out


def _packed(contents: dict[str, bytes], left_out: list[str]) -> bytes:
    said = "".join(f"{len(contents[name]):>12,} B  {name}\n" for name in left_out)
    kept = {name: body for name, body in contents.items() if name not in left_out}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz") as tar:
        for name, body in (kept | ({"left_out.txt": said.encode()} if said else {})).items():
            info = tarfile.TarInfo(f"gpu-day/{name}")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return whole.getvalue()


def _content(file: Path, day: Path) -> bytes:
    from perfkit.base.scrub import scrub

    body = file.read_bytes()
    if file.name == RECORDS or day / "recorded" in file.parents:
        return body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return scrub(text).encode()


def device_slug() -> str:
    """A short name of the GPU, from a process of its own: this one never touches CUDA."""
    code = (
        "import torch; from perfkit.course.ledger.records import slug; "
        "print(slug(torch.cuda.get_device_name()))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if said.returncode:
        last = (said.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SystemExit(f"gpu-day: needs a CUDA device, which torch does not find here: {last}")
    return said.stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    """Run what has not run yet; then pack."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit code 1: a piece failed or ran out of time"
    )
    parser.add_argument("--only", action="append", metavar="PIECE", help="may be repeated")
    parser.add_argument("--again", action="store_true", help="also those that have run")
    parser.add_argument("--minutes", type=float, help="start no piece after so many minutes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="for each piece")
    parser.add_argument("--short", action="store_true", help="one of each sort, with little time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-day", metavar="DIR")
    parser.add_argument("--list", action="store_true", help="list the pieces and run none")
    asked = parser.parse_args(arguments)
    chosen = pieces(asked.short)
    unknown = sorted(set(asked.only or ()) - {one.name for one in chosen})
    if unknown:
        parser.error(f"no such piece: {', '.join(unknown)}; see --list")
    slug = device_slug()
    day = asked.out.resolve() / slug
    if asked.only:
        chosen = [one for one in chosen if one.name in asked.only]
    if asked.list:
        for piece in chosen:
            print(f"{piece.name:<18}{(ended(day, piece) or {}).get('state', '-'):<13}{piece.about}")
        return 0
    stop_s = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    for piece in chosen:
        if ended(day, piece) is not None and not asked.again:
            continue
        if stop_s is not None and time.monotonic() > stop_s:
            print("gpu-day: the time is up; the same command goes on where it stopped")
            break
        print(f"{piece.name:<18}{piece.about} …", flush=True)
        result = run(piece, day, asked.limit)
        print(f"{'':<18}{result['state']}, {result['seconds']:.0f} s", flush=True)
    path = day.with_name(f"gpu-day-{slug}.tar.xz")
    left_out = archive(day, path)
    omitted = f", {len(left_out)} files left out" if left_out else ""
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB{omitted}")
    states = [(ended(day, piece) or {}).get("state") for piece in chosen]
    return int(any(state not in (None, "done") for state in states))


if __name__ == "__main__":
    sys.exit(main())
