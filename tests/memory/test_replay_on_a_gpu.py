"""The simulated allocator beside torch's own counters, for the same requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perfkit.memory.replay import replay
from perfkit.memory.requests import Request, Requests

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIB = 2**20

#: The counters that must agree, and torch's names of them.
COUNTERS = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "allocated_bytes": "allocated_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "n_segments": "segment.all.current",
    "n_device_allocs": "num_device_alloc",
    "n_device_frees": "num_device_free",
    "n_retries": "num_alloc_retries",
    "n_ooms": "num_ooms",
}

# Runs in a process of its own: settings are read when torch first uses the device.
PROGRAM = """
import json, random, sys
import torch
from perfkit.base import torch_compat
from perfkit.memory.requests import requests_of

pattern, limit = sys.argv[1], int(sys.argv[2])
if limit:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)

def churn():
    draw, live = random.Random(0), {}
    for n in range(3000):
        if live and (draw.random() < 0.5 or sum(map(torch.numel, live.values())) > 200 << 20):
            live.pop(draw.choice(list(live)))
        else:
            size = int(2 ** draw.uniform(6, 26.3))
            live[n] = torch.empty(size, dtype=torch.uint8, device="cuda")
    return live

def training():
    torch.manual_seed(0)
    draw = random.Random(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        x = torch.randn(draw.randrange(50, 2000), 256, device="cuda")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model, optimizer

torch_compat.start_allocator_history(100_000)
kept = {"churn": churn, "training": training}[pattern]()
torch.cuda.synchronize()
found = requests_of(torch_compat.allocator_snapshot())
print(json.dumps({"entries": found.entries, "stats": torch.cuda.memory_stats()}))
"""


@pytest.mark.parametrize(
    ("pattern", "settings", "limit_mib", "retries"),
    [
        # an odd number of MiB: never at the edge of a segment
        ("churn", "default", 401, True),
        ("churn", "expandable_segments:True", 351, True),
        ("churn", "max_split_size_mb:32", 401, True),
        ("churn", "roundup_power2_divisions:4", 401, True),
        ("training", "default", 0, False),
        ("training", "expandable_segments:True", 0, False),
    ],
)
def test_counters_of_a_replay_are_those_of_torch(
    pattern: str, settings: str, limit_mib: int, retries: bool, tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if "ALLOC_CONF" not in k}
    if settings != "default":
        environment["PYTORCH_ALLOC_CONF"] = settings
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), pattern, str(limit_mib * MIB)],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    requests = Requests(tuple(Request(*entry) for entry in said["entries"]), "cuda:0", "allocator")
    replayed = replay(requests, settings, limit_bytes=limit_mib * MIB or None)
    counted = {name: said["stats"][key] for name, key in COUNTERS.items()}
    assert {name: getattr(replayed, name) for name in COUNTERS} == counted
    assert (counted["n_retries"] > 0) is retries
    assert counted["n_device_allocs"] > 5
