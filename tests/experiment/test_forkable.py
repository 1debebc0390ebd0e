"""CUDA stays usable in forks of the prepared process, and runs get the kernel's environment."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from perfkit.experiment import Session
from perfkit.experiment.process import _process

# A process is unfit for forks that use CUDA as soon as it has asked the runtime for the number of
# GPUs, or for the accelerator. With these names torch takes itself for one built for CUDA.
_COUNTED = """
import torch
asked = []
def count(*args):
    asked.append(1)
    return 1
for name in ("_cuda_getDeviceCount", "_cuda_init", "_get_accelerator",
             "_accelerator_getAccelerator"):
    setattr(torch._C, name, count)
torch._C._cuda_getCurrentRawStream = lambda device: 0
if {check}:
    assert torch.cuda.is_available() and asked, "the count does not work"
    asked.clear()
import importlib
for names in {preload!r}:
    for name in names:
        importlib.import_module(name)
assert not torch.cuda.is_initialized()
print(len(asked))
"""


@pytest.mark.slow
@pytest.mark.parametrize("check", [True, False])
def test_what_it_loads_does_not_ask_for_gpus(check):
    code = _COUNTED.format(check=check, preload=_process._PRELOAD)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["0"]


@pytest.mark.skipif(not _process.can_prepare(), reason="nothing is prepared here")
def test_an_import_that_asks_is_answered_by_the_drivers_library(monkeypatch):
    """An import of another version may ask: torch has a way that leaves the process as it is."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    monkeypatch.delenv(name, raising=False)

    def workload(s):
        import os

        print("in the run:", os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        yield 1

    with Session(workload, seconds=0.1) as session:
        server = _process.shared.server()
        assert psutil.Process(server.pid).environ()[name] == "1"
        result = session.run()
    assert result.state == "done"
    assert "in the run: None" in result.output
