"""Facts about the computer, read from the operating system without torch and without a GPU.

Linux is read from ``/proc``, ``/sys`` and the control groups; other systems through psutil and the
platform. Every reader returns ``None`` if the system does not report it.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path("/")
# Of a quota: the kernel's default, where cpu.max does not say.
_PERIOD_S = 0.1
# A cgroup v1 without a limit reports the largest page-aligned int64; a value near it means no
# limit.
_NO_LIMIT_BYTES = 2**60
#: Number format → flags of a CPU that computes in it (x86, ARM): one of them is enough.
COMPUTES_IN = {
    "float16": frozenset({"amx_fp16", "avx512_fp16", "asimdhp"}),
    "bfloat16": frozenset({"amx_bf16", "avx512_bf16", "bf16", "svebf16"}),
}


def cpu_model(root: Path = _ROOT) -> str:
    """The processor's name as its vendor writes it, e.g. ``"AMD EPYC 7B13"``."""
    fields = _cpuinfo(root)
    name = fields.get("model name") or fields.get("Hardware")
    if not name and sys.platform == "darwin":
        name = _output(["sysctl", "-n", "machdep.cpu.brand_string"])
    return name or platform.processor() or platform.machine() or "unknown CPU"


def cpu_flags(root: Path = _ROOT) -> frozenset[str]:
    """Instruction-set flags of the first processor; empty if the system does not report them."""
    fields = _cpuinfo(root)
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def logical_cpus() -> int:
    """Number of logical processors of the machine, usable by this process or not."""
    return os.cpu_count() or 1


def usable_cpus(root: Path = _ROOT) -> int:
    """Number of logical processors this process may use, by CPU affinity and container quota.

    A quota of 1.5 CPUs counts as 2, because using it takes two runnable threads.
    """
    # macOS and Windows lack sched_getaffinity.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical_cpus()
    quotas = (cpu_quota(folder)[0] for folder in cgroup_folders(root, "cpu"))
    return max(1, min([count, *(math.ceil(quota) for quota in quotas if quota)]))


def memory_bytes(root: Path = _ROOT) -> int:
    """RAM that this process may use: the machine's, or the container's limit if that is less."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = _memory_limit_bytes(root)
    return min(total, limit) if limit else total


def shared_memory_bytes(path: Path = Path("/dev/shm")) -> tuple[int, int] | None:
    """Size and free bytes of ``/dev/shm``, through which DataLoader workers send batches.

    ``None`` if there is no such file system (macOS, Windows), which is not a problem there.
    """
    try:
        stat = os.statvfs(path)
    except (AttributeError, OSError):
        return None
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


def cxx_compiler() -> str | None:
    """The C++ compiler that ``torch.compile`` would use on a CPU: ``$CXX``, else g++ or clang++."""
    wanted = os.environ.get("CXX")
    names = [wanted] if wanted else (["cl"] if os.name == "nt" else ["g++", "clang++", "c++"])
    return next((path for name in names if (path := shutil.which(name))), None)


def python_headers() -> bool:
    """Whether ``Python.h`` exists, which ``torch.compile`` needs in addition to the compiler."""
    return Path(sysconfig.get_paths()["include"], "Python.h").exists()


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's block of ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return fields
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders with limits for this process, innermost first, for cgroup v2 and v1.

    Inside a container ``/proc/self/cgroup`` may name a path that only the host can see, so the
    walk ends at the mount point, which is the container's own group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, names, path = parts
        if names == "":
            mount = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        inner = mount / path.lstrip("/")
        while inner != mount:
            folders.append(inner)
            inner = inner.parent
        folders.append(mount)
    return folders


def cpu_quota(folder: Path) -> tuple[float | None, float]:
    """A control group's quota in CPUs, and the length of a period in seconds."""
    v1 = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    for words in (_words(folder / "cpu.max"), v1):
        if len(words) == 2 and words[1].isdigit() and int(words[1]):
            period_s = int(words[1]) * 1e-6
            cpus = int(words[0]) / int(words[1]) if words[0].isdigit() else None
            return cpus or None, period_s
    return None, _PERIOD_S


def _memory_limit_bytes(root: Path) -> int | None:
    limits = [
        int(words[0])
        for folder in cgroup_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (words := _words(folder / name)) and words[0].isdigit()
    ]
    return min((n for n in limits if 0 < n < _NO_LIMIT_BYTES), default=None)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _output(command: Sequence[str]) -> str:
    """Standard output of a program, stripped; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
