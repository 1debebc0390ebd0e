"""Keep the profiler's own notices off the user's screen.

Kineto and torch write them from C++ straight to file descriptor 2, so it is turned aside for
the moment. What is not a notice of the profiler is written through afterwards: nothing of the
user's is lost. Some versions of torch warn in Python, too, that a profiler forgets its events.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NOTICE = re.compile(
    rb"profiler_kineto\.cpp|collection\.cpp|ActivityProfiler|Memory block of unknown size|"
    rb"\.cpp:\d+\] (profiler_start|profiler_stop|Profiler|CUPTI|Completed Stage)|"
    # built for CUDA, on a machine without a driver
    rb"DeviceProperties\.cpp|"
    # begun in another thread than the first time
    rb"must run in same thread as registerClient|"
    rb"^(INFO|STAGE|USDT):",
)
_WARNING = "Warning: Profiler clears events"  # torch 2.11

# Both the profiler and file descriptor 2 are the process's. Two threads that turn the latter aside
# at once would put back what the other had put there: a file that is deleted by then.
_one_thread = threading.RLock()


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """Drop what the profiler itself writes to standard error meanwhile; one thread at a time."""
    with _one_thread, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_WARNING)
        with _quiet_stderr():
            yield


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # no standard error at all
        yield
        return
    try:
        with tempfile.TemporaryFile() as aside:
            # sys.stderr is not flushed: we may stand inside of one of its own calls.
            os.dup2(aside.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(saved, 2)
                aside.seek(0)
                rest = b"".join(line for line in aside if not _NOTICE.search(line))
                if rest:
                    os.write(2, rest)
    finally:
        os.close(saved)
