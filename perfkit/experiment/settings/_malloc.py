"""The C library's malloc told to keep its memory; jemalloc and tcmalloc found, tried, preloaded.

The Linux loader loads libraries in ``LD_PRELOAD`` before all others, so their ``malloc`` serves
torch's CPU tensors, numpy and Python alike.

glibc's malloc returns a freed tensor of some 100 kB or more to the system, and gets new pages for
the next one: each is zeroed by the kernel when it is first touched, a *page fault*. Its variables
(mallopt(3)) tell it to keep them.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Where distributions and conda put libraries; LD_LIBRARY_PATH is searched first.
_FOLDERS = (
    "/usr/lib/*-linux-gnu*",
    "/lib/*-linux-gnu*",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/opt/conda/lib",
)
_FILES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so.*", "libjemalloc.so"),
    "tcmalloc": (
        "libtcmalloc_minimal.so.4",
        "libtcmalloc_minimal.so.*",
        "libtcmalloc.so.*",
        "libtcmalloc_minimal.so",
        "libtcmalloc.so",
    ),
}
_PACKAGES = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}
# A function that only this library has: the file name proves nothing.
_OWN_SYMBOL = {"jemalloc": "mallctl", "tcmalloc": "tc_malloc"}
# glibc reads these when a program starts: no memory by mmap, and none given back from the top of
# the heap, which grows by 64 MiB at a time. So the heap only grows, to the most that was in use.
_KEEP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
}
# Starting a bare Python takes 20 ms; on a busy machine much longer.
_TRY_WITHIN_S = 20.0


@dataclass(frozen=True)
class Library:
    """The result of looking for a library: its path if it works, else the reason why not."""

    path: str | None
    reason: str | None


def find(name: str) -> Library:
    """Find ``"jemalloc"`` or ``"tcmalloc"`` on this machine; searched and tried only once."""
    return _found(name, os.environ.get("LD_LIBRARY_PATH", ""), sys.prefix)


def environment(name: str) -> Mapping[str, str]:
    """Environment for a new program with this malloc; empty if this program already uses it.

    Other libraries in ``LD_PRELOAD`` stay; another malloc is removed. ``"keep"`` is the system's,
    with glibc's variables.
    """
    before = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    others = [one for one in before if not _is_malloc(one)]
    library = None if name in ("system", "keep") else find(name).path
    wanted = others if library is None else [library, *others]
    preload = {} if wanted == before else {"LD_PRELOAD": ":".join(wanted)}
    return {**preload, **_KEEP} if name == "keep" else preload


def why_not(name: str) -> str | None:
    """Why this malloc cannot be had here; None if it can."""
    if name == "system":
        return None
    if name != "keep":
        return find(name).reason
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        return None
    return "the variables that tell malloc to keep memory are glibc's, the C library of most Linux"


def _is_malloc(path: str) -> bool:
    return any(Path(path).name.startswith(f"lib{name}") for name in _FILES)


@functools.cache
def _found(name: str, library_path: str, prefix: str) -> Library:
    if sys.platform != "linux":
        return Library(None, f"LD_PRELOAD, which puts {name} in front, works on Linux only")
    failed = ""
    for path in _candidates(name, library_path, prefix):
        problem = _tried(path, _OWN_SYMBOL[name])
        if problem is None:
            return Library(str(path), None)
        failed = failed or f"{path} {problem}"
    remedy = f"Debian, Ubuntu: apt-get install {_PACKAGES[name]}"
    return Library(None, f"{failed or f'lib{name} is not found on this machine'}; {remedy}")


def _candidates(name: str, library_path: str, prefix: str) -> list[Path]:
    given = [one for one in library_path.split(":") if one]
    folders = [Path(one) for one in (*given, f"{prefix}/lib")]
    for pattern in _FOLDERS:
        folders += sorted(Path("/").glob(pattern.lstrip("/")))
    found = [
        path for folder in folders for pattern in _FILES[name] for path in folder.glob(pattern)
    ]
    # LD_PRELOAD separates by colons and spaces, so a path must not contain one
    usable = [path for path in found if path.is_file() and not set(" :") & set(str(path))]
    return list(dict.fromkeys(usable))


def _tried(path: Path, symbol: str) -> str | None:
    """What goes wrong when a program starts with it; None if it works."""
    code = f"import ctypes; ctypes.CDLL(None).{symbol}; print(open('/proc/self/maps').read())"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            env={**os.environ, "LD_PRELOAD": str(path)},
            capture_output=True,
            text=True,
            timeout=_TRY_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be tried: {error}"
    # the loader only warns about a library that it cannot load, and continues without it
    if str(path.resolve()) in done.stdout:
        return None
    lines = done.stderr.strip().splitlines()
    return f"does not serve as malloc: {lines[-1] if lines else f'exit code {done.returncode}'}"
