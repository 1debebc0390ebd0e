"""Lesson 10: what compiles here, how many calls a graph holds, and what only a GPU shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from perfkit.advice.profiling import profile
from perfkit.base.errors import MissingError
from perfkit.base.machine import facts
from perfkit.course.kit.compiled import watch_compile
from perfkit.measure.compare import Comparison, compare
from perfkit.trace.read.events import launch_calls
from perfkit.trace.read.steps import find_steps

#: ``torch.compile``'s own choice, and with CUDA graphs.
MODES = ("default", "reduce-overhead")

#: Enough calls that a mode with CUDA graphs has captured them: it warms up, records, replays.
_UNTIL_CAPTURED = 5

Step = Callable[[], object]


def backend_here() -> tuple[str, str]:
    """What ``torch.compile(backend=…)`` can use here, and why.

    Returns:
        ``"inductor"``, or ``"eager"`` where no compiler works: it finds the graphs and runs them
        uncompiled.
    """
    known = facts().capability("compile")
    return ("inductor" if known.available else "eager"), known.reason


@contextmanager
def graph_sizes() -> Iterator[tuple[list[int], Callable[..., Any]]]:
    """A backend that compiles nothing, and a list to which it adds each graph's number of calls.

    What torch has compiled is forgotten before and after.
    """
    sizes: list[int] = []

    def look(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        sizes.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch.compiler.reset()
    try:
        yield sizes, look
    finally:
        torch.compiler.reset()


@dataclass(frozen=True)
class OnGpu:
    """A compiled step on a GPU, in one mode.

    Attributes:
        launches: calls of the host that launch kernels or graphs, in a compiled step.
        plain_launches: in an uncompiled one.
        compile_s: seconds that compiling it took, from torch's caches where they know it.
        timed: an uncompiled step against a compiled one.
    """

    launches: int
    plain_launches: int
    compile_s: float
    timed: Comparison


def on_gpu(step_of: Callable[[str | None], Step], *, budget_s: float = 3) -> dict[str, OnGpu]:
    """Time and count a step on a GPU: uncompiled, and compiled in each of :data:`MODES`.

    Args:
        step_of: a mode, or None for an uncompiled model → a function that runs a step.
        budget_s: seconds for each comparison.

    Raises:
        MissingError: torch sees no GPU.
    """
    _needs_gpu("modes of torch.compile")
    plain = step_of(None)
    plain()
    plain_launches = _launches(plain)
    found = {}
    for mode in MODES:
        step = step_of(mode)
        compile_s = watch_compile(step).compile_s
        for _ in range(_UNTIL_CAPTURED):
            step()
        timed = compare(plain, step, names=("not compiled", mode), budget_s=budget_s)
        found[mode] = OnGpu(_launches(step), plain_launches, compile_s, timed)
    return found


def _launches(step: Step) -> int:
    with profile(steps=2, warmup=1, lines=False) as profiling:
        profiling.call(step, repeat=4)
    trace = profiling.result.trace
    steps = find_steps(trace)
    inside = steps.containing(trace.start_ns[launch_calls(trace, steps)]) >= 0
    return round(int(inside.sum()) / max(len(steps), 1))


def channels_last_on_gpu(*, channels: int = 256, side: int = 56, n: int = 64) -> Comparison:
    """A convolution in bf16, forward and backward, with channels first against channels last.

    Raises:
        MissingError: torch sees no GPU.
    """
    _needs_gpu("channels_last")

    def step_in(layout: torch.memory_format) -> Step:
        layer = torch.nn.Conv2d(channels, channels, 3, padding=1, device="cuda")
        layer = layer.to(torch.bfloat16, memory_format=layout)  # type: ignore[call-overload]
        pictures = torch.randn(n, channels, side, side, device="cuda", dtype=torch.bfloat16)
        pictures = pictures.to(memory_format=layout)
        return lambda: layer(pictures).sum().backward()

    return compare(
        step_in(torch.contiguous_format),
        step_in(torch.channels_last),
        names=("channels first", "channels last"),
        budget_s=2,
    )


def window_on_gpu(*, length: int = 4096, window: int = 256) -> Comparison:
    """Attention to the last ``window`` positions: SDPA with a mask against FlexAttention.

    Raises:
        MissingError: torch sees no GPU.
    """
    _needs_gpu("FlexAttention")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (query - key < window)

    q, k, v = torch.randn(3, 2, 8, length, 64, device="cuda", dtype=torch.bfloat16)
    at = torch.arange(length, device="cuda")
    mask = near(None, None, at[:, None], at)
    blocks = create_block_mask(near, None, None, length, length, device="cuda")
    flex: Any = torch.compile(flex_attention)
    flex(q, k, v, block_mask=blocks)
    return compare(
        lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask),
        lambda: flex(q, k, v, block_mask=blocks),
        names=("SDPA with a mask", "FlexAttention"),
        budget_s=2,
    )


def _needs_gpu(what: str) -> None:
    if not torch.cuda.is_available():
        raise MissingError(f"{what}: needs a GPU")
