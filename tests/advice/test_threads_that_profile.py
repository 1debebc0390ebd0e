"""Threads that profile at once: torch has one profiler for the process, so one of them does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, os, sys, threading
import torch
import perfkit

def step():
    torch.ones(4).sum()

step()
before = os.fstat(2)
said, done = set(), []
together = threading.Barrier(4)

def work():
    for _ in range(25):
        together.wait()
        try:
            done.append(perfkit.profile(step, steps=1, warmup=0, repeat=1).trace)
        except perfkit.PerfkitError as error:
            said.add(str(error))

threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
after = os.fstat(2)
perfkit.profile(step)  # nothing is left that would refuse it
print(json.dumps([len(done), sorted(said), os.path.samestat(before, after)]))
"""


@pytest.mark.slow
def test_one_at_a_time_profiles_and_the_others_are_told_who_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    n_done, said, same_stderr = json.loads(ran.stdout.splitlines()[-1])
    assert n_done >= 25
    assert all(
        one.startswith("a torch profiler is already active in this process") for one in said
    ), said
    assert same_stderr
    assert ran.stderr == ""
