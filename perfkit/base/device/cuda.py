"""CUDA, and ROCm, whose torch goes by CUDA's names; only its runtime calls are named ``hip…``.

Nothing here creates a CUDA context unless it says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.device.kind import Device, GraphedStep, ProfilerNames


class Cuda(Device):
    """All CUDA devices of this process."""

    type = "cuda"
    label = "CUDA"
    profiler = ProfilerNames(
        activity="CUDA",
        type_numbers=(1, 6),  # CUDA, HIP
        runtime_categories=("cuda_runtime", "cuda_driver"),
        sync_categories=("cuda_sync",),
        waits=r"^(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize|^cuda(Thread)Synchronize",
        copies=r"^(cuda|hip|cu)Memcpy|^hipMemcpyWithStream",
        blocking_copies=(
            r"^(cuda|hip)Memcpy(2D|3D)?(_v\d+)?$|^hipMemcpyWithStream|^cuMemcpy[DH]to[DH]_v2$"
        ),
        allocations=(
            "cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemCreate", "cuMemRelease",
            "cuMemMap", "cuMemUnmap",
        ),
        needed_by=r"^nccl:|^aten::(record_stream$|_?cudnn_(?!is_acceptable)|_?miopen_)",
    )  # fmt: skip
    alloc_call = "cudaMalloc"
    free_call = "cudaFree"
    has_graphs = True
    has_tf32 = True
    keeps_history = True
    # torch says "GPU 1 has a total capacity of …", and with cudaMallocAsync "Allocation on device
    # 1 would exceed allowed memory"
    out_of_memory_index = r"\bGPU (\d+) has\b|^Allocation on device (\d+)"
    out_of_memory = "CUDA|CUBLAS|CUDNN"

    def is_available(self) -> bool:
        import torch

        return torch.cuda.is_available()

    def is_initialised(self) -> bool:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return cuda is not None and bool(cuda.is_initialized())

    def devices(self) -> Sequence[int]:
        """Those that this process has a context on: to wait for another would make one there."""
        return torch_compat.cuda_contexts() if self.is_initialised() else ()

    def count(self) -> int:
        import torch

        return torch.cuda.device_count()

    def current(self) -> int:
        import torch

        return torch.cuda.current_device()

    def name(self, index: int) -> str:
        """The device's name; ``"cuda:0"`` where a device that has failed no longer tells it."""
        import torch

        try:
            return str(torch.cuda.get_device_name(index))
        except (RuntimeError, AssertionError):
            return self.place(index)

    def holds(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda)

    def synchronize(self, index: int) -> None:
        import torch

        torch.cuda.synchronize(index)

    def event(self) -> Any:
        import torch

        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def stream(self, index: int) -> Any:
        import torch

        return torch.cuda.current_stream(index)

    def is_capturing(self) -> bool:
        return torch_compat.cuda_is_capturing()

    def allocated(self, index: int) -> int:
        import torch

        return int(torch.cuda.memory_allocated(index))

    def peak_allocated(self, index: int) -> int:
        import torch

        return int(torch.cuda.max_memory_allocated(index))

    def stats(self, index: int) -> Mapping[str, int]:
        """The allocator's counters; empty where it has none (an allocator of somebody else's)."""
        import torch

        try:
            return dict(torch.cuda.memory_stats(index))
        except RuntimeError:  # torch.cuda.memory.CUDAPluggableAllocator counts nothing
            return {}

    def reset_peaks(self, index: int) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(index)

    def total_bytes(self, index: int) -> int | None:
        import torch

        return int(torch.cuda.get_device_properties(index).total_memory)

    def compute_capability(self, index: int) -> tuple[int, int] | None:
        import torch

        found = torch.cuda.get_device_properties(index)
        return int(found.major), int(found.minor)

    def utilisation(self, index: int) -> float | None:
        """From NVML or ROCm's library; None without the Python package for it."""
        import torch

        try:
            return float(torch.cuda.utilization(index))
        except (ImportError, RuntimeError):
            return None

    def uuid(self, index: int) -> str | None:
        """As NVML knows it."""
        import torch

        known = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        return None if known is None else f"GPU-{known}"

    def graph_type(self) -> Any:
        import torch

        return torch.cuda.CUDAGraph

    def graphed_step(self) -> GraphedStep:
        return _CudaGraph()

    def waiting_functions(self) -> tuple[Any, tuple[str, ...]] | None:
        import torch

        return torch.cuda, ("synchronize", "empty_cache")

    def waitable_types(self) -> tuple[Any, ...]:
        import torch

        return torch.cuda.Event, torch.cuda.Stream

    def tf32_allowed(self) -> tuple[bool, bool]:
        return torch_compat.tf32_allowed()


class _CudaGraph:
    """A CUDA graph, and the stream on which the steps before its capture run."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._stream = self._cuda.Stream()
        self._graph: Any = None

    def warm_up(self, step: Callable[[], Any]) -> Any:
        self._stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._stream):
            result = step()
        self._cuda.current_stream().wait_stream(self._stream)
        return result

    def capture(self, step: Callable[[], Any]) -> Any:
        graph = self._cuda.CUDAGraph()
        # a loader thread that pins memory meanwhile must neither break the capture nor fail
        with self._cuda.graph(graph, capture_error_mode="thread_local"):
            result = step()
        self._graph = graph
        return result

    def replay(self) -> None:
        self._graph.replay()
