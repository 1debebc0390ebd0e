"""The files of several ranks, read in processes of their own, some at a time.

Only plain values leave a process, so that the memory of the one that asked does not grow with the
number of ranks. A process that dies takes one file's answer with it, and the next file gets a new
one. The processes are programs of their own: a script that asks needs no guard.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.base.errors import PerfkitError
from perfkit.base.line_child import EndedError, LineChild

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from perfkit.trace.ask.rank_pool import serve; serve(sys.argv[2])"
)


def read_ranks(
    paths: Sequence[str], task: str, n_processes: int, options: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What a function says of each file, in the order of the paths.

    Args:
        paths: the files.
        task: ``"module:function"``; it is called with a path and the options, and returns a dict
            of plain JSON types.
        n_processes: how many files at a time.
        options: further keyword arguments, of plain JSON types.

    Returns:
        Of each file the function's dict, or ``{"path", "error"}`` where it raised a
        ``PerfkitError`` or its process ended.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(paths)):
        todo.put(index)
    answers: list[dict[str, Any]] = [{} for _ in paths]
    children: list[LineChild] = []
    lock, stop = threading.Lock(), threading.Event()

    def start() -> LineChild:
        child = LineChild("-c", _START, json.dumps(sys.path), task)
        with lock:
            children.append(child)
        return child

    def work() -> None:
        child: LineChild | None = None
        try:
            while not stop.is_set():
                try:
                    index = todo.get_nowait()
                except queue.Empty:
                    return
                child = child or start()
                try:
                    answers[index] = child.ask({"path": paths[index], **(options or {})})
                except EndedError:  # killed for memory, perhaps
                    child = None
                    said = f"the process that read {paths[index]} ended early (memory?)"
                    answers[index] = {"path": paths[index], "error": said}
        finally:
            if child is not None:
                child.end()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_processes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # also on Ctrl-C: no process stays behind
        stop.set()
        with lock:
            for child in children:
                child.kill()
        for thread in threads:
            thread.join()
    return answers


def serve(task: str) -> None:
    """In the process: answer one line after another until there are no more."""
    module, _, name = task.partition(":")
    function = getattr(importlib.import_module(module), name)
    answers, sys.stdout = sys.stdout, sys.stderr  # nobody else may write where answers go
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = function(**asked)
        except PerfkitError as error:
            answer = {"path": asked["path"], "error": str(error)}
        except MemoryError:
            answer = {"path": asked["path"], "error": f"{asked['path']} does not fit into memory"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
