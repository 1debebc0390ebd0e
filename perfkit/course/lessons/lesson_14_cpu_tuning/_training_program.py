"""One of several trainings that run at the same time; see ``measured.Together``.

It is a program of its own because malloc's settings and the default number of threads are read when
a program starts. A line of JSON tells it what to do, and it answers with what it counted.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import sys
import time
from io import RawIOBase
from typing import Any

import cloudpickle
import torch

from perfkit.base.process_memory import resident_bytes
from perfkit.memory.resident import ResidentMeter

if sys.platform != "win32":
    import resource

_WARM_UP_STEPS = 3


def _counted() -> tuple[int, int, float]:
    """Context switches, page faults and CPU seconds of all threads of this process so far."""
    if sys.platform == "win32":
        return 0, 0, time.process_time()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw, used.ru_minflt, used.ru_utime + used.ru_stime


def _is_called(orders: RawIOBase) -> bool:
    # select takes no pipes on Windows: there it trains for the whole time
    return sys.platform != "win32" and bool(select.select([orders], [], [], 0)[0])


def _train(step: Any, asked: dict[str, Any], orders: RawIOBase) -> dict[str, Any]:
    meter = ResidentMeter()
    meter.start()
    before, began_s = _counted(), time.perf_counter()
    n = 0
    while n < asked.get("steps", sys.maxsize):
        step()
        n += 1
        if "until_called_s" in asked and (
            _is_called(orders) or time.perf_counter() - began_s > asked["until_called_s"]
        ):
            break
    seconds = time.perf_counter() - began_s
    switches, faults, cpu_s = (b - a for a, b in zip(before, _counted(), strict=True))
    return {
        "steps": n,
        "seconds": seconds,
        "switches": switches,
        "faults": faults,
        "cpu_s": cpu_s,
        "resident_bytes": resident_bytes(),
        "peak_bytes": meter.stop().peak_bytes,
    }


def _main(orders: RawIOBase) -> None:
    told = json.loads(orders.readline())
    if told["core"] is not None:
        os.sched_setaffinity(0, {told["core"]})  # before torch starts threads: they inherit it
    if told["threads"] is not None:
        torch.set_num_threads(told["threads"])
    # what the reader prints must not get between the answers
    answers, sys.stdout = sys.stdout, sys.stderr
    step: Any = None

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    while line := orders.readline():
        asked = json.loads(line)
        if asked == "stop":
            continue
        if "make" not in asked:
            say(_train(step, asked, orders))
            continue
        step = cloudpickle.loads(base64.b64decode(asked["make"]))(asked["number"])
        for _ in range(_WARM_UP_STEPS):
            step()
        say({"threads": torch.get_num_threads()})


if __name__ == "__main__":
    # a buffer would read on to the next order, and select would not see that one
    with (
        contextlib.suppress(KeyboardInterrupt, BrokenPipeError),
        os.fdopen(0, "rb", buffering=0) as orders,
    ):
        _main(orders)
