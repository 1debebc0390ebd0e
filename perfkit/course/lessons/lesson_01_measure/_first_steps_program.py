"""Time the first steps of a training in processes that have computed nothing before.

Started by ``first_steps.py`` as a program. Reads a pickled ``make_step`` from
standard input; its arguments are how many lines to write, each a JSON list of milliseconds, how
many steps a line has, and the number of torch's threads. torch is imported once; where the system
can fork, one child for each line does the steps, so that nothing of one is warm in the next. The
child unpickles too: a tensor on a GPU that comes along puts CUDA to use, which survives no fork.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


def _times_ms(packed: bytes, n_steps: int, threads: int) -> list[float]:
    import torch

    torch.set_num_threads(threads)
    make_step: Callable[[], Callable[[], Any]] = pickle.loads(packed)

    settle: Any = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    step = make_step()
    settle()
    times = []
    for _ in range(n_steps):
        start = time.perf_counter_ns()
        step()
        settle()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def _say(times_ms: list[float]) -> None:
    sys.stdout.write(json.dumps(times_ms) + "\n")
    sys.stdout.flush()


def main() -> int:
    processes, n_steps, threads = (int(word) for word in sys.argv[1:4])
    packed = sys.stdin.buffer.read()
    if not hasattr(os, "fork"):
        _say(_times_ms(packed, n_steps, threads))
        return 0
    # Merely asking the CUDA runtime for GPUs, as an import may, makes a process unfit to fork
    # children that use them. With this, torch asks the driver library instead.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # once for all children, including what the first optimizer imports; computes nothing yet
    import torch._dynamo  # noqa: F401

    for _ in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _say(_times_ms(packed, n_steps, threads))
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
