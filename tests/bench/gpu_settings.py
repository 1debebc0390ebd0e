"""What the settings that only a GPU has are worth: CUDA graphs, pinning, workers, precision.

    python tests/bench/gpu_settings.py out.json
    python tests/bench/gpu_settings.py out.json --budget 10 cuda_graphs pin_memory

Needs a CUDA device, and says so where there is none. The workload trains a small CNN on random
images through a DataLoader; both values of a setting run in processes of their own, in turn
(``perfkit.ab``). What was measured is written after each setting.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import perfkit
from perfkit.base.errors import PerfkitError
from perfkit.base.machine import stamp

# setting: what both arms have besides, and the two values
PAIRS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "cuda_graphs": ({"num_workers": 2, "persistent_workers": True}, False, True),
    "pin_memory": ({"num_workers": 2, "non_blocking": True}, False, True),
    "non_blocking": ({"num_workers": 2, "pin_memory": True}, False, True),
    "num_workers": ({}, 0, 4),
    "precision": ({}, "fp32", "bf16"),
    "channels_last": ({}, False, True),
    "fused": ({}, False, True),
    "alloc_conf": ({}, "default", "expandable_segments:True"),
    "cudnn_benchmark": ({}, False, True),
}


def workload(settings: Any) -> Iterator[int]:
    """Train; yields the samples of each step."""
    from torch import nn

    torch.manual_seed(0)
    size = settings.batch_size
    images = torch.randn(16 * size, 3, 32, 32)
    labels = torch.randint(0, 10, (16 * size,))
    data = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(data, **settings.loader_kwargs())
    model = settings.prepare(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(32, 10),
        )
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), **settings.optimizer_kwargs())
    step = settings.training_step(model, optimizer, nn.functional.cross_entropy)
    while True:
        for batch in loader:
            x, y = settings.to_device(batch)
            step(x, y)
            yield len(y)


def row(name: str, budget_s: float) -> dict[str, Any]:
    """One comparison, or the error that ended it."""
    common, a, b = PAIRS[name]
    try:
        found = perfkit.ab(
            workload,
            {**common, name: a},
            {**common, name: b},
            settings=["batch_size"],
            budget_s=budget_s,
            names=(f"{name}={a}", f"{name}={b}"),
        )
    except PerfkitError as error:
        return {"setting": name, "error": str(error).strip().splitlines()[0]}
    return {"setting": name, **found.to_dict()}


def main() -> None:
    """Compare, print a sentence for each setting, write all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("setting", nargs="*", help="default: all", metavar="SETTING")
    parser.add_argument("--budget", type=float, default=40.0, metavar="S", help="for each")
    arguments = parser.parse_intermixed_args()
    unknown = sorted(set(arguments.setting) - set(PAIRS))
    if unknown:
        parser.error(f"no such setting: {', '.join(unknown)}; there are: {', '.join(PAIRS)}")
    if not torch.cuda.is_available():
        print("gpu_settings: needs a CUDA device; there is none here")
        arguments.out.write_text(json.dumps({"needs": "a CUDA device"}) + "\n", encoding="utf-8")
        return
    provenance = stamp(command="tests/bench/gpu_settings.py", device="cuda")
    found = []
    for name in arguments.setting or PAIRS:
        found.append(row(name, arguments.budget))
        print(f"{name:<16}{found[-1].get('error') or found[-1]['sentence']}", flush=True)
        result = {"rows": found, "provenance": provenance.to_dict()}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(provenance.sentence())


if __name__ == "__main__":
    main()
