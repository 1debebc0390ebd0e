"""``perfkit run --nproc-per-node N train.py``: torchrun is called, and all ranks are watched."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from perfkit.base.errors import UsageError
from perfkit.base.files import why_not_writable
from perfkit.base.scratch import scratch_folder
from perfkit.cli.run_files import file_of, save, text_of, write
from perfkit.script.ranks.launcher import TorchRun
from perfkit.script.ranks.meeting import MISSES_A_FILE

_FLAGS = ("memory", "synclint", "stacks", "shapes", "verbose", "quiet")
_VALUES = ("steps", "warmup", "memory_steps", "html", "json", "trace", "ranks")
_COUNTED = ("gpu", "cpu", "auto", "xpu")


def run_ranks(arguments: argparse.Namespace) -> int:
    """Run the job to its end; torchrun's exit code, or 2 where that is 0 and a file is missing.

    Raises:
        UsageError: a number of processes, or a file, that cannot be.
    """
    wanted = arguments.nproc_per_node
    if wanted not in _COUNTED and not (wanted.isdecimal() and int(wanted) > 0):
        raise UsageError(
            f"--nproc-per-node {wanted!r:.40}: a whole number from 1, or {', '.join(_COUNTED)}"
        )
    files = {
        flag: file_of(flag, getattr(arguments, flag), None)
        for flag in ("html", "json")
        if getattr(arguments, flag) is not None
    }
    if arguments.trace is not None:
        file_of("trace", arguments.trace, None)
    with _folder(arguments.ranks) as folder:
        job = TorchRun(wanted, ["-m", "perfkit", "run", *_typed(arguments)], folder)
        try:
            with _passes_on(job):
                code = job.process.wait()
        finally:
            job.end()
        if (job.attempt / "reported").exists():
            return _exit_code(code or 2 * (job.attempt / MISSES_A_FILE).exists())
        # every rank was killed before it could tell
        from perfkit.script.ranks.joint import joint

        seen = len(job.statuses())
        n = int(wanted) if wanted.isdecimal() else max(seen, 1)
        result = joint(job.attempt, range(n), n)
        if not arguments.quiet and seen:
            write(text_of(result, verbose=arguments.verbose))
        saved = [save(f, path, result, scrub=arguments.scrub) for f, path in files.items()]
        code = code or 2 * (not all(saved))
    return _exit_code(code)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with scratch_folder() as folder:
            yield folder
        return
    if not keep.is_dir() and (why := why_not_writable(keep)):
        raise UsageError(f"--ranks {keep}: {why}")
    keep.mkdir(exist_ok=True)
    if any(keep.glob("attempt*")):
        raise UsageError(f"--ranks {keep}: holds the ranks of another run; name a new folder")
    yield keep.absolute()


@contextlib.contextmanager
def _passes_on(job: TorchRun) -> Iterator[None]:
    """What would end this process goes to torchrun, which ends the ranks, and they report."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        job.process.send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _typed(arguments: argparse.Namespace) -> list[str]:
    """The options and the program, as each rank gets them."""
    typed = [f"--{name}" for name in _FLAGS if getattr(arguments, name)]
    for name in _VALUES:
        value = getattr(arguments, name)
        if value is not None:
            typed += [f"--{name.replace('_', '-')}", str(value)]
    typed += [] if arguments.scrub else ["--no-scrub"]
    if arguments.module is not None:
        return [*typed, "-m", *arguments.module]
    return [*typed, arguments.script, *arguments.args]


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code
