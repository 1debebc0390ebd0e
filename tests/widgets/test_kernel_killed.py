"""``kill -9`` of a real Jupyter kernel in the middle of a Lab's run leaves no process behind."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.slow

LAB = """
import perfkit, torch, time
from torch.utils.data import DataLoader

def train(s):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(torch.zeros(1_000_000, 8), batch_size=8, **s.loader_kwargs()):
        model(x).sum().backward(); optimizer.step(); time.sleep(0.01)
        yield

lab = perfkit.Lab(train, ["num_workers"], seconds=60)
lab.start(num_workers=2)
deadline = time.monotonic() + 30
while lab.status["state"] != "running":
    assert time.monotonic() < deadline, lab.status
    time.sleep(0.05)
"""


def test_nothing_is_left_within_five_seconds() -> None:
    manager, client = start_new_kernel()
    try:
        reply = client.execute_interactive(LAB, timeout=90)
        assert reply["content"]["status"] == "ok", reply["content"]
        kernel = psutil.Process(manager.provisioner.pid)
        below = kernel.children(recursive=True)
        assert len(below) >= 4  # the prepared process, the guard, the run, two workers
        os.kill(kernel.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while left := [p for p in below if p.is_running() and p.status() != "zombie"]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
