"""NCCL between two played devices of one process, and none between processes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401 - the stubs come with it

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]

DATA_PARALLEL = """
import torch
from torch import nn
from torch.profiler import profile

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).cuda()
inputs = torch.rand(8, 16, device="cuda")

def gradients(module):
    model.zero_grad()
    output = module(inputs)
    output.square().mean().backward()
    return [output, *(p.grad for p in model.parameters())]

alone = gradients(model)
with profile() as seen:
    both = gradients(nn.DataParallel(model))
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
for one, other in zip(alone, both, strict=True):
    torch.testing.assert_close(other, one)
names = {event.name for event in seen.events() if "ncclDevKernel" in event.name}
assert names == {"ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_Reduce_Sum_RING_LL"}, names
"""

SUMS = """
import torch
from torch.cuda import nccl

devices = ("cuda:0", "cuda:1")
for name in ("float32", "float64", "float16", "bfloat16", "int64", "uint8"):
    dtype = getattr(torch, name)
    parts = [torch.tensor([1, 2, 100], dtype=dtype, device=d) for d in devices]
    outs = [torch.zeros_like(part) for part in parts]
    nccl.all_reduce(parts, outs)
    for out in outs:
        assert out.tolist() == [2, 4, 200], (dtype, out)

# behind work that the host does not wait for, on each device's own stream
streams = [torch.cuda.Stream(d) for d in devices]
parts, outs = [], []
for device, stream in zip(devices, streams, strict=True):
    with torch.cuda.stream(stream):
        large = torch.ones(400, 400, device=device)
        for _ in range(5):
            large = large @ large / 400
        parts.append(large)
        outs.append(torch.zeros_like(large))
nccl.all_reduce(parts, outs, streams=streams)
for out, stream in zip(outs, streams, strict=True):
    with torch.cuda.stream(stream):
        assert out.eq(2).all(), out
"""

PROCESSES = """
import os
import torch
import torch.distributed as dist

meet = "file://" + os.environ["MEET"]
dist.init_process_group("nccl", init_method=meet, rank=0, world_size=RANKS)
x = torch.ones(3, device="cuda")
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
"""


def _ran(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("code", [DATA_PARALLEL, SUMS], ids=["DataParallel", "sums"])
def test_two_devices_of_a_process_exchange_what_nccl_would(code: str) -> None:
    ended = _ran(code, PLAYED_CUDA_DEVICES="2")
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_of_processes_fails_and_one_alone_works(ranks: int, tmp_path: Path) -> None:
    ended = _ran(PROCESSES.replace("RANKS", str(ranks)), MEET=str(tmp_path / "meet"))
    if ranks == 1:
        assert ended.stdout.strip() == "[1.0, 1.0, 1.0]", ended.stderr[-2000:]
    else:
        assert "NCCL works between the devices of one process only; use gloo" in ended.stderr
