"""Large simulated traces for benchmarks: the layout and the size per event of Kineto's own files.

    python tests/bench/_big_trace.py N_EVENTS OUT.json

Nothing in them was measured. A step is a training step on one GPU: a wait for the DataLoader,
a pageable copy, blocks of forward and backward ops with their launches, kernels and flow
arrows, an optimizer, a ``.item()``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

_HEAD = (
    '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": RANK},\n'
    '  "deviceProperties": [\n    {"id": 0, "name": "Simulated GPU", '
    '"totalGlobalMem": 85899345920, "numSms": 132}\n  ],\n  "record_shapes": 1,\n'
    '  "traceEvents": [\n'
)
_TAIL = '\n  ],\n  "traceName": "simulated"\n}\n'

_PID, _MAIN, _ENGINE, _STREAM = 4242, 4242, 4243, 7
_BASE_US = 1_419_247_332_972.0
_BLOCKS = 48  # per step
_KERNEL = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn>"
_SMALL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "CUDAFunctor_add<float>, std::array<char*, 3> >(int, {0})"
)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.external = 0
        self.correlation = 10_000

    def op(
        self, name: str, ts: float, dur: float, tid: int, cat: str = "cpu_op", shapes: bool = True
    ) -> int:
        self.external += 1
        shape_text = (
            '"Concrete Inputs": ["", "", "", "1", "1"], "Input type": ["c10::BFloat16", '
            '"c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], "Input Strides": [[1], '
            '[1024, 1], [1, 1024], [], []], "Input Dims": [[1024], [512, 1024], [1024, 1024], '
            "[], []], "
            if shapes
            else ""
        )
        self.parts.append(
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {_PID}, "tid": {tid},\n'
            f'    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      "External id": '
            f'{self.external},"Record function id": 0, {shape_text}"Ev Idx": {self.external}\n'
            "    }\n  }"
        )
        return self.external

    def launch(
        self, call: str, ts: float, dur: float, tid: int, kernel: str, at: float, took: float
    ) -> None:
        self.correlation += 1
        c, e = self.correlation, self.external
        copy = call.startswith("cudaMemcpy")
        detail = (
            f'"bytes": 19267584, "memory bandwidth (GB/s)": {19267.584 / max(took, 1):.6f}'
            if copy
            else '"registers per thread": 32, "shared memory": 0, "blocks per SM": 4.272727, '
            '"warps per SM": 17.09091, "grid": [564, 1, 1], "block": [128, 1, 1], '
            '"est. achieved occupancy %": 27'
        )
        self.parts.append(
            f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "{call}", "pid": {_PID}, "tid": '
            f'{tid},\n    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      "External id": '
            f'{e}, "cbid": 211, "correlation": {c}\n    }}\n  }},\n'
            f'  {{\n    "ph": "s", "id": {c}, "pid": {_PID}, "tid": {tid}, "ts": {ts:.3f},\n'
            '    "cat": "ac2g", "name": "ac2g"\n  },\n'
            f'  {{\n    "ph": "X", "cat": "{"gpu_memcpy" if copy else "kernel"}", "name": '
            f'"{kernel}", "pid": 0, "tid": {_STREAM},\n    "ts": {at:.3f}, "dur": {took:.3f},\n'
            f'    "args": {{\n      "External id": {e},\n      "queued": 0, "device": 0, '
            f'"context": 1,\n      "stream": {_STREAM}, "correlation": {c},\n      {detail}\n'
            "    }\n  },\n"
            f'  {{\n    "ph": "f", "id": {c}, "pid": 0, "tid": {_STREAM}, "ts": {at:.3f},\n'
            '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'
        )

    def block(self, host: float, gpu: float, tid: int, index: int, backward: bool) -> None:
        """An op with its children and three kernels: 100 µs on the host, 110 on the device."""
        if backward:
            self.op(
                f"autograd::engine::evaluate_function: AddmmBackward{index % 4}",
                host, 98, tid, shapes=False,
            )  # fmt: skip
            self.op("AddmmBackward0", host + 1, 96, tid)
        else:
            self.op("aten::linear", host, 98, tid)
            self.op("aten::t", host + 2, 6, tid)
        self.op("aten::transpose", host + 3, 4, tid)
        self.op("aten::as_strided", host + 4, 1, tid)
        self.op("aten::addmm" if not backward else "aten::mm", host + 10, 30, tid)
        self.launch("cudaLaunchKernel", host + 20, 8, tid, _KERNEL, gpu, 80)
        self.op("aten::empty_like", host + 42, 10, tid)
        self.op("aten::empty_strided", host + 44, 6, tid)
        for k in range(2):
            at = host + 54 + 20 * k
            self.op("aten::add_", at, 15, tid)
            self.launch(
                "cudaLaunchKernel", at + 4, 6, tid, _SMALL.replace("{0}", f"Array{index % 8}"),
                gpu + 82 + 14 * k, 12,
            )  # fmt: skip


def steps(n_events: int) -> Iterator[str]:
    """Text of one step after another, about ``n_events`` events together."""
    writer, at, number, written = _Writer(), _BASE_US, 0, 0
    while written < n_events:
        begin = at
        label = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        writer.op(label, at, 400, _MAIN, "user_annotation", shapes=False)
        writer.op("aten::copy_", at + 402, 300, _MAIN)
        writer.launch(
            "cudaMemcpyAsync", at + 404, 290, _MAIN, "Memcpy HtoD (Pageable -> Device)",
            at + 420, 260,
        )  # fmt: skip
        host, gpu = at + 710, at + 740
        for i in range(_BLOCKS):
            writer.block(host + 100 * i, gpu + 112 * i, _MAIN, i, backward=False)
        host, gpu = host + 100 * _BLOCKS, gpu + 112 * _BLOCKS
        for i in range(_BLOCKS):
            writer.block(host + 100 * i, gpu + 112 * i, _ENGINE, i, backward=True)
        host, gpu = host + 100 * _BLOCKS, gpu + 112 * _BLOCKS
        writer.op("Optimizer.step#AdamW.step", host, 400, _MAIN, "user_annotation", shapes=False)
        for i in range(4):
            writer.op("aten::_fused_adamw_", host + 100 * i, 90, _MAIN)
            writer.launch(
                "cudaLaunchKernel", host + 100 * i + 50, 8, _MAIN,
                "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", gpu, 90,
            )  # fmt: skip
            gpu += 92
        host += 410
        wait = max(gpu - host, 10) + 10
        writer.op("aten::item", host, wait + 4, _MAIN)
        writer.op("aten::_local_scalar_dense", host + 1, wait + 2, _MAIN)
        writer.launch(
            "cudaMemcpyAsync", host + 2, wait, _MAIN, "Memcpy DtoH (Device -> Pageable)",
            host + wait - 3, 2,
        )  # fmt: skip
        at = host + wait + 10
        writer.op(f"ProfilerStep#{number}", begin, at - begin, _MAIN, "user_annotation", False)
        text = ",\n".join(writer.parts)
        written += text.count('"ph"')
        writer.parts.clear()
        number += 1
        yield text


def write(path: Path, n_events: int, rank: int = 0) -> int:
    """Write a trace of about ``n_events`` events; returns how many they are."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(_HEAD.replace("RANK", str(rank)))
        for index, text in enumerate(steps(n_events)):
            count += text.count('"ph"')
            file.write((",\n" if index else "") + text)
        file.write(_TAIL)
    return count


def write_ranks(folder: Path, n_ranks: int, late: int, n_steps: int = 4) -> None:
    """A small trace for each rank of a job; rank ``late`` computes 2 ms longer than the others.

    A step has 16 layers with a gradient bucket each; collectives end everywhere at the same time,
    by clocks that differ by hours.
    """
    for rank in range(n_ranks):
        writer = _Writer()
        at = _BASE_US + 3.6e9 * (rank % 24)
        for number in range(n_steps):
            begin, gpu = at, at + 200.0
            longer = 2_000.0 if rank == late else 7.0 * ((rank * 31 + number) % 16)
            for i in range(16):
                writer.block(at + 100 * i, gpu + 112 * i, _MAIN, i, backward=i >= 8)
            gpu += 112 * 16
            for i in range(16):
                came, end = gpu + longer + 20 * i, gpu + 2_100 + 40 * i
                start = max(came, gpu + 2_100 + 40 * (i - 1) if i else came)
                writer.op("c10d::allreduce_", at + 1_700 + 20 * i, 18, _MAIN, shapes=False)
                writer.launch(
                    "cudaLaunchKernel", at + 1_704 + 20 * i, 8, _MAIN,
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)",
                    start, end - start,
                )  # fmt: skip
            at = gpu + 3_000
            writer.op(f"ProfilerStep#{number}", begin, at - begin, _MAIN, "user_annotation", False)
        path = folder / f"rank{rank:04d}.json"
        head = _HEAD.replace("RANK", str(rank))
        path.write_text(head + ",\n".join(writer.parts) + _TAIL, encoding="utf-8")


if __name__ == "__main__":
    print(write(Path(sys.argv[2]), int(sys.argv[1])), "events")
