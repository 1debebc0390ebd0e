"""The lower bound of single operators, beside what they take on this machine.

    python tests/bench/least_time.py out.json [cpu|cuda]

The peaks are measured first, with the same clock; then each operator is run alone, and the best
and the median of its repetitions are set beside its lower bound. A ratio below 1 means that the
rates or the bytes are wrong: the limit is none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from perfkit.base.words import fmt_ratio, fmt_us
from perfkit.limit.measured import _Bench, measured_peaks
from perfkit.limit.roofline import least
from perfkit.trace import limit, load

BUDGET_S = 0.7


def cases(device: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    big = device != "cpu"

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    n = 4096 if big else 1024
    a, b, skinny = rand(n, n), rand(n, n), rand(16, n)
    images, kernel = rand(64 if big else 8, 64, 56, 56), rand(64, 64, 3, 3)
    rows, norm = rand(8192 if big else 2048, 1024), nn.LayerNorm(1024, device=device)
    logits = rand(8192 if big else 2048, 8192 if big else 2048)
    table = rand(50_000, 512)
    tokens = torch.randint(0, 50_000, (16_384,), device=device)
    q = rand(4, 8, 512, 64)
    sizes = [(1024, 1024)] * (40 if big else 8)
    fused = torch.optim.AdamW([nn.Parameter(rand(*s)) for s in sizes], fused=True)
    single = torch.optim.AdamW([nn.Parameter(rand(*s)) for s in sizes], foreach=big)
    for optimizer in (fused, single):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.randn_like(p)
    return {
        f"matmul {n} × {n}": lambda: a @ b,
        f"matmul 16 × {n}": lambda: skinny @ b,
        "convolution 3 × 3, 64 channels": lambda: torch.conv2d(images, kernel, padding=1),
        "softmax": lambda: logits.softmax(-1),
        "layer norm": lambda: norm(rows),
        "embedding": lambda: nn.functional.embedding(tokens, table),
        "attention": lambda: nn.functional.scaled_dot_product_attention(q, q, q),
        "gelu": lambda: nn.functional.gelu(rows),
        "AdamW, fused": fused.step,
        "AdamW": single.step,
    }


def counted(call: Callable[[], object], device: str) -> Any:
    """The lower bound of a call, from the shapes of one recorded call."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities, record_shapes=True) as recorded:
        with torch.profiler.record_function("one"):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
    path = Path(sys.argv[1]).with_suffix(".trace.json")
    recorded.export_chrome_trace(str(path))
    found = limit(load(path))
    path.unlink()
    return found


def main() -> None:
    target, device = Path(sys.argv[1]), (sys.argv[2] if len(sys.argv) > 2 else "cpu")
    target.parent.mkdir(parents=True, exist_ok=True)
    peaks = measured_peaks(device)
    roofs, bench = peaks.roofs(), _Bench(device)
    rows = []
    print(peaks)
    with torch.no_grad():
        for name, call in cases(device).items():
            for _ in range(3):
                call()
            rate = bench._rate(call, 1.0, BUDGET_S)
            work = counted(call, device)
            least_us = sum(_least_us(op, roofs) for op in work.ops)
            if name == "AdamW, fused":  # traces do not tell the dtype of lists
                least_us = _fused_us(call, roofs)
            best_us, median_us = 1e6 / rate.best, 1e6 / rate.median
            rows.append(
                {
                    "case": name,
                    "least_us": least_us,
                    "best_us": best_us,
                    "median_us": median_us,
                    "best_over_least": best_us / least_us,
                    "unknown": [u.op for u in work.unknown],
                }
            )
            print(
                f"{name:32} least {fmt_us(least_us):>8}  best {fmt_us(best_us):>8}  "
                f"median {fmt_us(median_us):>8}  best/least {fmt_ratio(best_us / least_us)}"
            )
    found = {"provenance": peaks.provenance.to_dict(), "busy": peaks.busy, "rows": rows}
    target.write_text(json.dumps(found, indent=1) + "\n")


def _fused_us(step: Any, roofs: Any) -> float:
    parameters = step.__self__.param_groups[0]["params"]
    moved = 7 * sum(p.numel() * p.element_size() for p in parameters)
    return moved / roofs.bytes_per_s(moved * 4 / 7, in_place=True) * 1e6


def _least_us(op: Any, roofs: Any) -> float:
    from perfkit.limit.call import Work

    each = op.n_bytes // op.count
    dtype = op.form or "float32"
    written = each // 2 if op.op.endswith("_") else 0
    one = Work(
        op.family, op.flops / op.count, op.flops / op.count, each - written, written, dtype, written
    )
    return op.count * least(one, roofs).us


if __name__ == "__main__":
    main()
