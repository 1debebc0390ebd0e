"""The settings that only a GPU has, in the child process of a Session; and two devices."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from perfkit.experiment import Session

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]


def workload(s: Any) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 3, 8, 8), torch.arange(32) % 2)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    model = s.prepare(torch.nn.Sequential(net, torch.nn.Linear(144, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), **s.optimizer_kwargs())
    step = s.training_step(model, optimizer, torch.nn.functional.cross_entropy)
    for batch in DataLoader(data, **s.loader_kwargs()):
        images, labels = s.to_device(batch)
        yield {"samples": len(labels), "loss": step(images, labels)}
    print("ON", images.device, torch.cuda.get_allocator_backend())


workload.__module__ = "__main__"

TURNED: list[dict[str, Any]] = [
    {"cuda_graphs": True},
    {"pin_memory": True, "non_blocking": True},
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"fused": True, "channels_last": True},
    {"alloc_conf": "expandable_segments:True"},
]


def test_each_trains_on_the_device() -> None:
    names = sorted({"batch_size"}.union(*TURNED))
    with Session(workload, settings=names, seconds=60) as session:
        for turned in TURNED:
            result = session.run(batch_size=4, **turned)
            assert result.state == "done", (turned, result.message, result.traceback_text)
            assert result.n_steps == 8
            assert all(math.isfinite(loss) for loss in result.loss)
            assert "ON cuda:0" in result.output


TWO = """
import torch, perfkit
from perfkit.base.machine import facts
assert torch.cuda.device_count() == 2
assert len(facts().gpus) == 2
x = torch.arange(5.0, device="cuda:1")
assert x.to("cuda:0").sum().item() == 10
model = torch.nn.Linear(64, 64).to("cuda:1")
def step():
    model(torch.randn(8, 64, device="cuda:1")).sum().backward()
    model.zero_grad()
step()
result = perfkit.account(step, model=model)
assert result.device == "cuda:1", result.device
assert result.at_end_bytes["parameters"] == (64 * 64 + 64) * 4
print("two")
"""


@pytest.mark.timeout(900)
def test_two_processes_train_one_model_with_a_gpu_each() -> None:
    rooms = Path(__file__).parents[1] / "experiment"
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         rooms / "test_setting_effects.py", rooms / "test_ranked_run.py", "-k",
         "two_processes or world_size"],
        env=os.environ | {"PLAYED_CUDA_DEVICES": "2"}, capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    assert "two_processes" not in said.stdout  # as where it is skipped


def test_two_devices() -> None:
    said = subprocess.run(
        [sys.executable, "-c", TWO], env=os.environ | {"PLAYED_CUDA_DEVICES": "2"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.strip() == "two", said.stderr


LAUNCHED = """
import sys

import perfkit
from perfkit.base.errors import WorkloadError


def workload(settings):
    import torch
    import torch.distributed as dist
    from torch import nn

    rank = dist.get_rank()
    here = torch.cuda.current_device()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4).cuda(), device_ids=[here])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 8), 1.0 + rank, device="cuda")).square().sum().backward()
        optimizer.step()
        yield
    return dist.get_backend(), here, model.module.weight.sum().item()


if __name__ == "__main__":
    try:
        found = perfkit.launch(workload, ranks=2, settings={}, live=False)
    except WorkloadError as error:  # with what the ranks printed
        sys.exit(f"{error}\\n{error.traceback_text}")
    (first, mine, one), (second, other, both) = found.values
    assert (first, second, mine, other) == ("nccl", "nccl", 0, 1), found.values
    assert one == both, found.values
    assert [r.n_steps for r in found.ranks] == [3, 3]
    print("together")
"""


@pytest.mark.timeout(400)
def test_launched_ranks_with_a_gpu_each_meet_by_nccl(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LAUNCHED)
    said = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=os.environ | {"PLAYED_CUDA_DEVICES": "2", "PYTHONFAULTHANDLER": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.strip() == "together", said.stderr[-9000:]
