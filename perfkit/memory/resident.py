"""The resident set of the process: its RAM as the kernel sees it.

This is not tensor memory. It holds the interpreter, the libraries and everybody's caches; an
allocator keeps freed pages in it; and pages that were never written are not in it. It is shown
beside tensor memory because it is what a machine runs out of.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.base.plain import fields
from perfkit.base.process_memory import resident_bytes

_PROC = Path("/proc/self")
_running: list[ResidentMeter] = []
_lock = threading.Lock()


@dataclass(frozen=True)
class Resident:
    """The resident set before, after, and at its highest.

    Attributes:
        before_bytes: when the region began.
        after_bytes: when it ended.
        peak_bytes: the most in between; None where this system does not tell.
        why_no_peak: the reason for a missing peak; empty otherwise.
    """

    before_bytes: int
    after_bytes: int
    peak_bytes: int | None
    why_no_peak: str = ""

    #: How a figure of this kind is labelled wherever it is shown.
    LABEL = "resident set of the process (not tensor memory)"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, label=self.LABEL)


class ResidentMeter:
    """Reads the resident set at both ends of a region, and on Linux its peak.

    Linux keeps a high-water mark, ``VmHWM``, for the life of the process. Writing 5 to
    ``/proc/self/clear_refs`` sets it back to the present size (proc(5), since Linux 4.0), so
    that it then tells the region's own peak; ``ru_maxrss`` starts anew with it. Meters may be
    nested: before one sets the mark back, all that run keep what it stood at.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        """``proc`` is where the kernel tells about this process; tests give another folder."""
        self._proc = proc
        self._before = 0
        self._highest = 0
        self._why_no_peak = ""

    def start(self) -> None:
        """Read the size and set the high-water mark back where that is possible."""
        self._before = self._highest = resident_bytes()
        with _lock:
            for meter in _running:
                meter._keep_mark()
            self._why_no_peak = self._set_mark_back()
            _running.append(self)

    def stop(self) -> Resident:
        """Read the size again."""
        with _lock:
            if self in _running:
                _running.remove(self)
            if not self._why_no_peak:
                self._keep_mark()
        after = resident_bytes()
        peak = None if self._why_no_peak else max(self._highest, after)
        return Resident(self._before, after, peak, self._why_no_peak)

    def _keep_mark(self) -> None:
        mark = self._mark()
        if mark is None:
            self._why_no_peak = "this kernel does not report VmHWM"
        else:
            self._highest = max(self._highest, mark)

    def _mark(self) -> int | None:
        try:
            status = (self._proc / "status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None

    def _set_mark_back(self) -> str:
        """Set the mark back; returns why not, or an empty string."""
        if not sys.platform.startswith("linux"):
            return f"{sys.platform} keeps no high-water mark that can be set back"
        if self._mark() is None:
            return "this kernel does not report VmHWM"
        try:
            # unbuffered, so that a refusal shows here and not when the file is closed
            with (self._proc / "clear_refs").open("wb", buffering=0) as refs:
                refs.write(b"5")
        except OSError as error:
            return f"the high-water mark cannot be set back here ({error.strerror})"
        return ""
