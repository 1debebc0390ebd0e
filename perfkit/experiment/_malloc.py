"""jemalloc and tcmalloc: found on this machine, tried, and put in front of a fresh program.

The loader of Linux takes a library in ``LD_PRELOAD`` before all others, so that its ``malloc``
serves torch's CPU tensors, numpy and Python alike.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Where distributions and conda put libraries; LD_LIBRARY_PATH comes before them.
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
# A function that only this library has: a file of the right name proves nothing.
_OWN_SYMBOL = {"jemalloc": "mallctl", "tcmalloc": "tc_malloc"}
# Starting a bare Python takes 20 ms; a busy machine may need much longer.
_TRY_WITHIN_S = 20.0


@dataclass(frozen=True)
class Library:
    """A library that was looked for: its path where it works, else the reason why not."""

    path: str | None
    reason: str | None


def find(name: str) -> Library:
    """``"jemalloc"`` or ``"tcmalloc"`` on this machine; looked for and tried once."""
    return _found(name, os.environ.get("LD_LIBRARY_PATH", ""), sys.prefix)


def environment(name: str) -> Mapping[str, str]:
    """What a fresh program needs for this malloc; nothing where it is this program's own.

    Other libraries in ``LD_PRELOAD`` stay; another malloc is taken out.
    """
    before = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    others = [one for one in before if not _is_malloc(one)]
    library = None if name == "system" else find(name).path
    wanted = others if library is None else [library, *others]
    return {} if wanted == before else {"LD_PRELOAD": ":".join(wanted)}


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
    # separated by colons and spaces, LD_PRELOAD cannot name a path that has one
    usable = [path for path in found if path.is_file() and not set(" :") & set(str(path))]
    return list(dict.fromkeys(usable))


def _tried(path: Path, symbol: str) -> str | None:
    """What goes wrong when a program starts with it; None where it serves."""
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
    # the loader only warns of a library that it cannot take, and goes on without
    if str(path.resolve()) in done.stdout:
        return None
    lines = done.stderr.strip().splitlines()
    return f"does not serve as malloc: {lines[-1] if lines else f'exit code {done.returncode}'}"
