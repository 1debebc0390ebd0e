"""What perfkit says about a GPU's memory, beside the allocator's own counters.

    python tests/bench/gpu_memory.py out.json

Needs a CUDA device, and says so where there is none. For each network: the peak of a training step
by torch's counters; as ``account`` counts it; as ``will_it_fit`` predicts it; and as the
allocator's history shows it. All but the prediction include what the process holds besides, such as
workspaces of libraries, so each also says how much was held before.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import perfkit
from perfkit.base.machine import stamp
from perfkit.memory import history

SIZES = {"small": (8, 32), "large": (64, 128)}


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Tensor]]] = {
    "mlp": (_mlp, lambda n, side: torch.randn(n * side, 256)),
    "cnn": (_cnn, lambda n, side: torch.randn(n, 3, side, side)),
    "encoder": (_encoder, lambda n, side: torch.randn(n, side, 64)),
}


def _loss(out: Tensor) -> Tensor:
    return out.square().mean()


def _network_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    states = [v for state in optimizer.state.values() for v in state.values()]
    gradients = [p.grad for p in model.parameters()]
    found = {*model.parameters(), *model.buffers(), *gradients, *states}
    return sum(t.nbytes for t in found if isinstance(t, Tensor) and t.is_cuda)


def row(name: str, size: str) -> dict[str, Any]:
    """One network: four figures for the same peak, in bytes."""
    make, make_batch = NETWORKS[name]
    n, side = SIZES[size]
    torch.manual_seed(0)
    model = make().cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        batch = make_batch(n, side).cuda()  # held to the step's end, as by a loop over a loader
        _loss(model(batch)).backward()
        optimizer.step()

    step()  # workspaces and Adam's state exist after it
    held = torch.cuda.memory_allocated()
    besides = held - _network_bytes(model, optimizer)
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    counted = perfkit.account(step, model=model, optimizer=optimizer)
    with history.record() as recorded:
        step()
    seen = recorded.history
    predicted = perfkit.will_it_fit(
        make, lambda batch: make_batch(batch, side), batch=n, optimizer="Adam", loss=_loss
    )
    return {
        "network": name,
        "size": size,
        "allocator_bytes": peak,
        "before_bytes": held,
        "besides_the_network_bytes": besides,
        "account_bytes": counted.peak_bytes,
        "predicted_bytes": predicted.peak_bytes,
        "history_bytes": None if seen is None else seen.peak_allocated_bytes,
        "warnings": [*counted.warnings, *predicted.warnings, *(seen.warnings if seen else ())],
    }


def rows(sizes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A row for each network and size; an error is told in its row."""
    for size in sizes:
        for name in NETWORKS:
            try:
                yield row(name, size)
            except Exception as error:  # one that fails must not lose the others
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                yield {"network": name, "size": size, "error": said}
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    """Compare, print a table, write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--short", action="store_true", help="small batches only")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_memory: needs a CUDA device; there is none here")
        arguments.out.write_text(json.dumps({"needs": "a CUDA device"}) + "\n", encoding="utf-8")
        return
    found = []
    columns = ("allocator", "account", "history", "predicted")
    print(f"{'network':<16}" + "".join(f"{name:>14}" for name in columns) + "   peak, in bytes")
    for one in rows(("small",) if arguments.short else tuple(SIZES)):
        found.append(one)
        name = f"{one['network']}, {one['size']}"
        if "error" in one:
            print(f"{name:<16}{one['error']}", flush=True)
        else:
            cells = (one[f"{column}_bytes"] for column in columns)
            print(f"{name:<16}" + "".join(f"{cell or 0:>14,}" for cell in cells), flush=True)
    provenance = stamp(command="tests/bench/gpu_memory.py", device="cuda")
    print(provenance.sentence())
    result = {"rows": found, "provenance": provenance.to_dict()}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
