"""Lesson 05: samples for a store, their shards, and the exercise: a cache without half files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import UsageError
from perfkit.base.scratch import scratch_folder
from perfkit.base.words import plural
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message

if TYPE_CHECKING:
    import torch

SIDE = 64  # pixels of a picture
SAMPLE_BYTES = 1 + 3 * SIDE * SIDE  # one byte for the class, then the pixels


def make_samples(folder: Path, n: int, *, seed: int = 0) -> list[str]:
    """Write ``n`` small pictures, one file each, and return their keys in order.

    A file has one byte for the class, 0 to 3, and 3 × 64 × 64 bytes of pixels: noise that is
    brighter in the quarter given by the class.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    keys = []
    for index in range(n):
        label = int(random.integers(4))
        pixels = random.integers(0, 160, (3, SIDE, SIDE), dtype=np.uint8)
        top, left = divmod(label, 2)
        half = SIDE // 2
        pixels[:, top * half : (top + 1) * half, left * half : (left + 1) * half] += 90
        keys.append(f"{index:05}.bin")
        (folder / keys[-1]).write_bytes(bytes([label]) + pixels.tobytes())
    return keys


def decode(data: bytes) -> tuple[torch.Tensor, int]:
    """A sample's picture, uint8 (3, 64, 64), and its class.

    Raises:
        UsageError: ``data`` does not have the size of a sample.
    """
    import torch

    if len(data) != SAMPLE_BYTES:
        raise UsageError(f"a sample has {SAMPLE_BYTES:,} bytes, but got {len(data):,}")
    values = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return values[1:].view(3, SIDE, SIDE), int(values[0])


def pack(folder: Path, keys: Sequence[str], *, per_shard: int) -> list[str]:
    """Pack files of a folder into tar files beside them; return the keys of the tar files.

    Raises:
        UsageError: ``per_shard`` is less than 1.
    """
    if per_shard < 1:
        raise UsageError(f"a shard holds at least one sample, not {per_shard!r}")
    shards: list[str] = []
    for begin in range(0, len(keys), per_shard):
        shards.append(f"shard-{len(shards):03}.tar")
        with tarfile.open(folder / shards[-1], "w") as tar:
            for key in keys[begin : begin + per_shard]:
                tar.add(folder / key, arcname=key)
    return shards


def unpack(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Key and bytes of each file in a tar file, in order."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            found = tar.extractfile(member)
            if found is not None:
                yield member.name, found.read()


# --- the exercise ---------------------------------------------------------------------------------

Fetch = Callable[[str], bytes]
Answer = Callable[[Fetch, Path, str], Any]

_CONTENT = {"a.bin": b"first" * 100, "b.bin": bytes(range(256)) * 3, "empty.bin": b""}


class _Far:
    """A store in memory that records requests and fails on demand."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None

    def __call__(self, key: str) -> bytes:
        self.asked.append(key)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return _CONTENT[key]


# The outcome in a process that plays another worker.
_RETURNED_IT, _RETURNED_OTHER, _RAISED = 0, 1, 2
_BLOCKED = None  # it waits for a lock held by this process, or was killed
_RIVAL_S = 3.0
_POLL_S = 0.005


def _in_another_process(
    answer: Answer, far: Fetch, folder: Path, key: str, *, dies_at: int | None = None
) -> int | None:
    """Read a key in a forked process, as a second loader worker would.

    Args:
        answer, far, folder, key: the call to make.
        dies_at: the kernel kills the process, without cleanup, when a file that it writes would
            exceed this many bytes.

    Returns:
        ``_RETURNED_IT``, ``_RETURNED_OTHER``, ``_RAISED``, or ``_BLOCKED``.
    """
    with warnings.catch_warnings():
        # torch and Jupyter have threads, but the copy uses none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        came_to = _RAISED
        try:
            sys.stdout = sys.stderr = io.StringIO()
            sys.dont_write_bytecode = True
            if dies_at is not None:
                _die_at(dies_at)
            came_to = _RETURNED_IT if answer(far, folder, key) == _CONTENT[key] else _RETURNED_OTHER
        finally:
            os._exit(came_to)
    deadline = time.monotonic() + _RIVAL_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else _BLOCKED
        time.sleep(_POLL_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return _BLOCKED


def _die_at(n_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


@contextlib.contextmanager
def _before_a_rename(do: Callable[[Path], None]) -> Iterator[None]:
    """Within this block, call ``do(source)`` before the first rename of a file."""
    real = {name: getattr(os, name) for name in ("replace", "rename", "link")}
    pending = [do]

    def intercepted(rename: Callable[..., Any]) -> Callable[..., Any]:
        def renamed(source: Any, *args: Any, **kwargs: Any) -> Any:
            if pending:
                pending.pop()(Path(os.fsdecode(source)).absolute())
            return rename(source, *args, **kwargs)

        return renamed

    for name, function in real.items():
        setattr(os, name, intercepted(function))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _get(answer: Answer, far: Fetch, folder: Path, key: str) -> bytes:
    got = answer(far, folder, key)
    if got is None:
        raise NotYet("your function returns nothing yet: return the bytes of the key")
    if not isinstance(got, bytes):
        raise NotYet(f"return the bytes themselves, got {type(got).__name__}")
    return got


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with scratch_folder() as made:
        yield made.resolve()


def _show(answer: Answer) -> Message:
    far = _Far()
    with _folder() as folder:
        for _ in range(2):
            for key in ("a.bin", "b.bin"):
                _get(answer, far, folder, key)
        left = sorted(f"{file.name} ({file.stat().st_size} B)" for file in folder.iterdir())
    return Message(
        "Two epochs over two keys (500 B and 768 B)",
        items=(
            f"requests: {len(far.asked)}",
            f"in the folder afterwards: {', '.join(left) or 'nothing'}",
        ),
    )


def _check(answer: Answer) -> list[str]:
    checks = [_check_reads, _check_store_fails]
    facts = [
        "three keys, two epochs: 3 requests, and none in the second epoch",
        "a sample that another process left in the folder is used",
        "a store that fails leaves nothing behind, and you see its own error",
    ]
    if hasattr(os, "fork"):
        checks += [
            _check_killed,
            partial(_check_rival, dies=True),
            partial(_check_rival, dies=False),
        ]
        facts += [
            "a process killed in the middle of a write leaves no half sample behind",
            "two processes that write the same sample do not get into each other's way",
        ]
    for check in checks:
        with _folder() as folder:
            check(answer, folder)
    return facts


def _check_reads(answer: Answer, folder: Path) -> None:
    far = _Far()
    for epoch in (1, 2):
        for key, content in _CONTENT.items():
            before = len(far.asked)
            got = _get(answer, far, folder, key)
            if got != content:
                raise NotYet(f"{key} holds {len(content)} bytes; you returned {len(got)} others")
            asked = len(far.asked) - before
            if asked != (epoch == 1):
                size = "an empty file, " if not content else ""
                raise NotYet(
                    f"{key} ({size}epoch {epoch}) took {plural(asked, 'request')}: one the first "
                    "time, none after that"
                )
    # as in another process: the same folder, but not this process's memory
    moved = folder.with_name(folder.name + "-moved")
    folder.rename(moved)
    folder.mkdir()
    try:
        before = len(far.asked)
        _get(answer, far, folder, "a.bin")
        if len(far.asked) == before:
            raise NotYet(
                "with an empty folder there was no request: keep samples in the folder, not in "
                "memory, where no other worker and no later run finds them"
            )
    finally:
        shutil.rmtree(moved)


def _check_store_fails(answer: Answer, folder: Path) -> None:
    far = _Far()
    told = far.error = ConnectionError("the store hung up (made by the check)")
    try:
        _get(answer, far, folder, "a.bin")
    except Exception as error:
        if error is not told:
            raise NotYet(
                f"the store failed, and what came through was {type(error).__name__}, not the "
                "store's own error: a caller that retries needs to know why"
            ) from None
    else:
        raise NotYet("the store failed, and your function returned something: let errors through")
    if _get(answer, far, folder, "a.bin") != _CONTENT["a.bin"]:
        raise NotYet("after the store had failed once, the next read did not give the sample")


def _check_killed(answer: Answer, folder: Path) -> None:
    far, key = _Far(), "b.bin"
    content = _CONTENT[key]
    _in_another_process(answer, far, folder, key, dies_at=len(content) // 2)
    got = _get(answer, far, folder, key)
    if got != content:
        raise NotYet(
            f"the process was killed in the middle of a write, and the next read returned "
            f"{len(got)} of {len(content)} bytes as if all were well. Write under another name "
            "first, and rename when the file is whole"
        )
    before = len(far.asked)
    _get(answer, far, folder, key)
    if len(far.asked) > before:
        raise NotYet(
            "after a process was killed while it wrote, its sample is never kept again: each read "
            "asks the store"
        )


def _check_rival(answer: Answer, folder: Path, *, dies: bool) -> None:
    """Let another process read the same key between this process's write and its rename."""
    far, key = _Far(), "b.bin"
    content = _CONTENT[key]
    came_to: list[int | None] = []
    sources: list[Path] = []

    def rival(source: Path) -> None:
        sources.append(source)
        half = len(content) // 2 if dies else None
        came_to.append(_in_another_process(answer, far, folder, key, dies_at=half))

    one_name = (
        "Give the file that is being written a name of its own in each process, with "
        "os.getpid() in it"
    )
    with _before_a_rename(rival):
        try:
            got = _get(answer, far, folder, key)
        except NotYet:
            raise
        except Exception as error:
            raise NotYet(
                f"two processes wrote the same sample, and one stopped with "
                f"{type(error).__name__}: both use the same file. {one_name}"
            ) from None
    if sources and folder not in sources[0].parents:
        raise NotYet(
            f"the sample is written to {sources[0].parent} and moved from there: on another disk "
            "a move is a copy, and not done in one piece. Write into the same folder"
        )
    if got != content or _get(answer, far, folder, key) != content:
        raise NotYet(
            "two processes wrote the same sample, one was killed halfway, and a read returned "
            f"half of it: both write to the same file. {one_name}"
        )
    if _RETURNED_OTHER in came_to or (_RAISED in came_to and not dies):
        raise NotYet(
            "while one process writes a sample, another one that reads it gets "
            f"{'an error' if _RAISED in came_to else 'something else'}. {one_name}"
        )


read_through = Exercise(
    "a cache that never keeps half a sample",
    spec=(
        "cached(fetch, folder, key) returns the bytes of a key. fetch(key) asks the store and "
        "returns bytes; folder is a Path on the local disk.",
        "The first time it asks the store and keeps the bytes in a file of the folder; after that, "
        "also in another process, it reads the file and asks the store nothing.",
        "The store's errors come through. Whatever breaks in between, even a process killed "
        "while it writes, the function never returns half a sample.",
        "Two processes may ask for the same key at the same time.",
    ),
    hints=(
        "First look whether the file is there. If it is not, fetch, and write. Return what the "
        "file holds. Then ask: what is there if the write stops in the middle?",
        "A file under its own name must be whole. So write to another name in the same folder, "
        "and give it its own name when all is written: a rename happens in one piece.",
        'part = folder / f"{key}.{os.getpid()}.part"; part.write_bytes(fetch(key)); '
        "part.replace(folder / key). The process number keeps two workers apart.",
    ),
    show=_show,
    check=_check,
)
