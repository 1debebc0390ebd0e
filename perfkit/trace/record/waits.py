"""Lines in which the thread waits for another thread, a process or a connection.

A sample shows which Python function was innermost. Python's own functions that wait are few and
known; a wait in C has no frame, so the line of user code itself is innermost, and its text tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from perfkit.trace.record.lines import Line, LineSamples

# Fewer samples show nothing.
_LEAST_SAMPLES = 5

# module.function of the standard library that is innermost while a thread waits
_FUNCTIONS = re.compile(
    r"^(?:"
    r"threading\.(?:_wait_for_tstate_lock|_join_os_thread|join|wait|acquire|__enter__)"
    r"|multiprocessing\.popen_\w+\.(?:poll|wait)"
    r"|multiprocessing\.connection\.(?:_recv|_recv_bytes|_poll|wait|_exhaustive_wait|accept)"
    r"|multiprocessing\.synchronize\.(?:__enter__|wait)"
    r"|subprocess\.(?:_try_wait|_wait|wait|communicate|_communicate)"
    r"|selectors\.(?:select|_select)"
    r"|socket\.(?:readinto|accept|create_connection)"
    r"|ssl\.(?:read|recv|recv_into|do_handshake)"
    r")$"
)
# A call that can only wait: ", ".join(parts) and settings.get("a") have an argument.
_NO_ITEM = r"\((?:\s*|\s*(?:timeout|block)\s*=[^()]*|\s*[\d.]+\s*)\)"
_SLEEPS = re.compile(r"\bsleep\(")
_CALLS = re.compile(
    rf"\.(?:join|get|result){_NO_ITEM}"
    r"|\.(?:wait|communicate|acquire|recv|recv_into|recvfrom|recv_bytes|accept)\("
    r"|\bselect\.select\(|\bos\.wait(?:pid|id|3|4)?\(|\bwait\("
    r"|\bsubprocess\.(?:run|call|check_call|check_output)\(|\bos\.system\("
    r"|\b(?:mp|multiprocessing)\.spawn\("
)


def is_wait(line: Line) -> bool:
    """Whether the samples of this line were taken while the thread waited for others."""
    if _FUNCTIONS.match(line.library_function):
        return True
    return _is_innermost(line) and is_wait_by_text(line.source)


def _is_innermost(line: Line) -> bool:
    """Whether no Python function below the line was running."""
    return line.library_function.rpartition(".")[2] == line.function


def is_wait_by_text(text: str) -> bool:
    """Whether a line waits for others if it takes long, from its text alone."""
    return _CALLS.search(text) is not None


def is_sleep_by_text(text: str) -> bool:
    """Whether a line sleeps, from its text."""
    return _SLEEPS.search(text) is not None


def waiting_share(samples: LineSamples) -> float:
    """The share of these samples that were taken in waits for others, 0 to 1; 0 of too few."""
    return _share(samples, is_wait)


def sleeping_share(samples: LineSamples) -> float:
    """The share of these samples that were taken in sleeps, 0 to 1; 0 where they are too few."""
    return _share(samples, _is_sleep)


def _is_sleep(line: Line) -> bool:
    # subprocess.run("… sleep(1)") waits for that program
    return _is_innermost(line) and is_sleep_by_text(line.source)


def _share(samples: LineSamples, is_one: Callable[[Line], bool]) -> float:
    if samples.n_samples < _LEAST_SAMPLES:
        return 0.0
    return sum(x.n_samples for x in samples.lines if is_one(x)) / samples.n_samples
