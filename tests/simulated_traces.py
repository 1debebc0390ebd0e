"""The simulated traces of the lessons, under the name by which the tests know them."""

from __future__ import annotations

import json

from perfkit.course.kit.simulated_traces import (
    ENGINE,
    HOST,
    SINGLE,
    STREAM,
    WORKERS,
    Simulated,
    cpu_training,
    gpu_training,
)

__all__ = [
    "ENGINE",
    "HOST",
    "SINGLE",
    "STREAM",
    "WORKERS",
    "Simulated",
    "cpu_training",
    "gpu_training",
    "product_on_gpu",
]


def product_on_gpu(
    *,
    dtype: str = "c10::BFloat16",
    size: int = 4096,
    kernel: str = "gemm",
    name: str = "NVIDIA H100 80GB HBM3",
) -> bytes:
    """Two steps of 1 ms: a product in 200 µs, an addition in 100, a copy from the host in 50, and
    a sort in 30 of which nothing is known.
    """
    sim = Simulated()
    shapes = {"Input Dims": [[size, size], [size, size]], "Input type": [dtype, dtype]}
    for i in range(2):
        at = i * 2_000
        sim.step(i, at, 1_000)
        op = sim.host("aten::mm", at + 5, 10, **shapes)
        sim.device(kernel, at + 100, 200, sim.call("cudaLaunchKernel", at + 7, 2, op))
        op = sim.host("aten::add_", at + 20, 10, **shapes)
        sim.device("add", at + 300, 100, sim.call("cudaLaunchKernel", at + 22, 2, op))
        op = sim.host("aten::copy_", at + 40, 10, **shapes)
        call = sim.call("cudaMemcpyAsync", at + 42, 2, op)
        sim.device("Memcpy HtoD (Pinned -> Device)", at + 400, 50, call, "gpu_memcpy")
        op = sim.host("aten::sort", at + 60, 10, **shapes)
        sim.device("sort", at + 500, 30, sim.call("cudaLaunchKernel", at + 62, 2, op))
    whole = json.loads(sim.json())
    whole = whole if isinstance(whole, dict) else {"traceEvents": whole}
    whole["deviceProperties"] = [{"id": 0, "name": name, "totalGlobalMem": 80 * 2**30}]
    return json.dumps(whole).encode()
