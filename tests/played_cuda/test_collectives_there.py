"""NCCL between two played devices of one process, and between two processes with one each."""

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
from torch import nn

rank, meet = int(os.environ["RANK"]), "file://" + os.environ["MEET"]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=2)
N = 200_001  # more than the processes exchange in one piece


def mine():
    return torch.arange(N, dtype=torch.float32, device="cuda") + rank  # cannot be halved


def is_of_both(found, a, b=1.0):
    return torch.equal(found.cpu(), torch.arange(N, dtype=torch.float32) * a + b)


x = mine()
dist.all_reduce(x)
assert is_of_both(x, 2)
x = mine()
dist.all_reduce(x, dist.ReduceOp.AVG)
assert is_of_both(x, 1, 0.5)
x = mine()
dist.broadcast(x, 1)
assert is_of_both(x, 1)
x = mine()
dist.reduce(x, 1)
assert is_of_both(x, 2) if rank == 1 else is_of_both(x, 1, 0)
parts = [torch.empty_like(x) for _ in range(2)]
dist.all_gather(parts, mine())
assert is_of_both(parts[0], 1, 0) and is_of_both(parts[1], 1)
x = torch.empty(N, device="cuda")
dist.reduce_scatter_tensor(x, torch.cat([mine(), 10 * mine()]))
assert is_of_both(x, 20, 10) if rank else is_of_both(x, 2)
told = [None, None]
dist.all_gather_object(told, {"rank": rank, "device": torch.cuda.current_device()})
assert told == [{"rank": r, "device": r} for r in range(2)], told

torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4)).cuda()
batch = torch.rand(8, 300, device="cuda")
plain(batch).square().mean().backward()
alone = [p.grad.clone() for p in plain.parameters()]
plain.zero_grad()
model = nn.parallel.DistributedDataParallel(plain, device_ids=[rank])
model(batch[rank::2]).square().mean().backward()
for one, both in zip(alone, model.parameters(), strict=True):
    torch.testing.assert_close(one, both.grad)
try:
    dist.send(x, 1 - rank)
    torch.cuda.synchronize()
except RuntimeError as error:
    assert "sends and receives nothing here" in str(error), error
else:
    raise AssertionError("nothing was sent, and nothing said")
print("as with one")
os._exit(0)  # the group failed in the end, as it should
"""

GONE = """
import os
import torch
import torch.distributed as dist

rank, meet = int(os.environ["RANK"]), "file://" + os.environ["MEET"]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=2)
x = torch.ones(3, device="cuda")
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
if rank == 1:
    os._exit(0)
dist.all_reduce(x)
torch.cuda.synchronize()
os._exit(0)
"""

ALONE = """
import os
import torch
import torch.distributed as dist

meet = "file://" + os.environ["MEET"]
dist.init_process_group("nccl", init_method=meet, rank=0, world_size=1)
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


def test_a_process_alone_is_a_group(tmp_path: Path) -> None:
    ended = _ran(ALONE, MEET=str(tmp_path / "meet"))
    assert ended.stdout.strip() == "[1.0, 1.0, 1.0]", ended.stderr[-2000:]


def _both_ran(code: str, meet: Path) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of two processes that meet."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PLAYED_CUDA_DEVICES": "2", "RANK": str(rank), "MEET": str(meet)},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [one.communicate(timeout=120) for one in started]
        return [(one.wait(), *texts) for one, texts in zip(started, said, strict=True)]
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_two_processes_exchange_what_nccl_would(tmp_path: Path) -> None:
    for status, out, err in _both_ran(PROCESSES, tmp_path / "meet"):
        assert (status, out.strip()) == (0, "as with one"), err[-2000:]
    assert not list(Path("/dev/shm").glob("played_nccl_*"))


def test_a_process_that_ends_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    (_, _, told), (status, _, err) = _both_ran(GONE, tmp_path / "meet")
    assert status == 0, err[-2000:]
    assert "played NCCL, rank 0: a process of the group has ended" in told
