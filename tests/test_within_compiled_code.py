"""perfkit called within a function that torch.compile compiles."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys

from perfkit import compare, find_leaks, find_syncs, profile, watch  # before torch._dynamo

import torch

assert "torch._dynamo" not in sys.modules

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def block():
    with profile():
        step()

calls = {
    "profile": lambda: profile(step, repeat=2),
    "block": block,
    "watch": lambda: [step() for _ in watch([1, 2], live=False)],
    "compare": lambda: compare(step, step, budget_s=0.5),
    "find_leaks": lambda: find_leaks(step),
    "find_syncs": lambda: find_syncs(step),
}
compiled = {}
for name, call in calls.items():
    torch.compiler.reset()

    @torch.compile(backend="eager")
    def run(x):
        call()
        return x.sin()

    x = torch.ones(3)
    assert torch.equal(run(x), x.sin()), name
    log = torch._dynamo.utils.get_compilation_metrics()
    compiled[name] = sorted({str(one.co_filename) for one in log})
print(json.dumps(compiled))
"""


@pytest.mark.slow
def test_no_call_of_perfkit_is_compiled() -> None:
    """Also where its name was bound before torch.compile was; torch needs half a minute for it."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    compiled = json.loads(ran.stdout.splitlines()[-1])
    assert set(compiled) == {"profile", "block", "watch", "compare", "find_leaks", "find_syncs"}
    for name, files in compiled.items():
        assert files, name
        # what stands in for a function of torch's runs the program's own code
        looked_into = [file for file in files if "perfkit" in file and "stand_in" not in file]
        assert not looked_into, name
