"""One pool reads the files of ranks; a process that dies costs its own file alone."""

from __future__ import annotations

import os
from typing import Any

import psutil

from perfkit.base.errors import TraceError
from perfkit.trace.ask.rank_pool import read_ranks

TASK = f"{__name__}:said_of"


def said_of(path: str, *, times: int = 1) -> dict[str, Any]:
    """Say this of a file, in one of the pool's processes."""
    print("a task may print: answers go another way")
    if path == "dies":
        os._exit(3)
    if path == "broken":
        raise TraceError("broken is no trace")
    return {"path": path, "length": times * len(path), "pid": os.getpid()}


def test_answers_come_in_the_order_of_the_files() -> None:
    paths = ["aaa", "b", "dies", "broken", "cc", "dddd"]
    found = read_ranks(paths, TASK, 2, {"times": 10})
    assert [one["path"] for one in found] == paths
    assert [one.get("length") for one in found] == [30, 10, None, None, 20, 40]
    assert found[2]["error"] == "the process that read dies ended early (memory?)"
    assert found[3]["error"] == "broken is no trace"
    pids = {one["pid"] for one in found if "pid" in one}
    assert os.getpid() not in pids
    assert len(pids) <= 3, "a process reads several files; one more after the one that died"
    assert not any(psutil.pid_exists(pid) for pid in pids)
