"""Out of memory: is it that, how much was asked for, what would help, and how to let go."""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Mapping

from perfkit.base.short_traceback import exception_chain
from perfkit.base.words import fmt_bytes
from perfkit.memory.allocator import AllocatorState, AllocatorUse

# torch's allocators say it in these words: "Tried to allocate 2.00 GiB" on CUDA, "Requested : 2.00
# GiB" with cudaMallocAsync, "you tried to allocate 8000000000 bytes" on a CPU.
_ASKED = re.compile(
    r"(?:tried to allocate|^requested\s*:) ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE | re.MULTILINE
)
# Others than torch's allocators: the CUDA runtime, and cuBLAS or cuDNN, which could not make a
# handle or a workspace. They say no size.
_WITHOUT_SIZE = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

#: Share of the peak from which a category is worth a word.
_WORTH = 0.15
#: Reserved over allocated at the peak from which fragmentation is worth a word.
_FRAGMENTED = 1.2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is a device's, the CPU allocator's or Python's own lack of memory."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # torch's CPU allocator raises a plain RuntimeError
    if not isinstance(error, RuntimeError):
        return False
    words = str(error)
    return _ASKED.search(words) is not None or any(said in words for said in _WITHOUT_SIZE)


def requested_bytes(error: BaseException) -> int | None:
    """The size of the allocation that failed, in bytes; None if the message does not say."""
    found = _ASKED.search(str(error))
    return int(float(found[1]) * _UNITS[found[2].lower()]) if found else None


def release(error: BaseException) -> None:
    """Let go of what the error's traceback holds: the local variables of functions that ended.

    Frames that still run (the notebook's own) keep theirs. The traceback keeps its lines.
    """
    for each in exception_chain(error):
        traceback.clear_frames(each.__traceback__)
    gc.collect()


def remedies(
    at_peak: Mapping[str, int],
    at_start: Mapping[str, int],
    allocator: AllocatorUse | AllocatorState | None,
) -> tuple[str, ...]:
    """What would lower this peak, the most first.

    Args:
        at_peak: bytes by category when memory was at its highest.
        at_start: the same when the region began.
        allocator: the device's counters; None on a CPU.
    """
    total = sum(at_peak.values()) or 1
    found: list[tuple[float, str]] = []

    def say(nbytes: float, words: str) -> None:
        if nbytes >= _WORTH * total:
            found.append((nbytes, words))

    # what earlier steps left has its own advice below; it is not of this batch
    activations = max(at_peak["activations"] - at_start["activations"], 0)
    batch = activations + at_peak["inputs"]
    say(
        batch / 2,
        f"half the batch: about {fmt_bytes(batch / 2)} less (predicted: half of the activations "
        "and "
        "inputs, if they grow with the batch); accumulate gradients over two steps to make up "
        "for it",
    )
    say(
        activations,
        "activation checkpointing (torch.utils.checkpoint), or torch.autocast with bfloat16: "
        f"activations are {fmt_bytes(activations)}; in evaluation, torch.no_grad()",
    )
    say(
        at_peak["temporary"],
        f"fewer intermediate results: {fmt_bytes(at_peak['temporary'])} were temporary; in-place "
        "operators, foreach=False in the optimizer, or torch.compile make less of them",
    )
    say(
        at_peak["optimizer state"],
        f"an optimizer with less state: it has {fmt_bytes(at_peak['optimizer state'])} (Adam two "
        "copies of the parameters, SGD with momentum one)",
    )
    say(
        at_peak["gradients"],
        "optimizer.zero_grad() before the forward: gradients were "
        f"{fmt_bytes(at_peak['gradients'])}",
    )
    before = at_start["other"] + at_start["activations"]
    say(
        before,
        f"free what was there before: {fmt_bytes(before)} of tensors; %gpumem names them, "
        "perfkit.find_leaks finds who holds them",
    )
    if allocator is not None and allocator.peak_allocated_bytes:
        rest = allocator.peak_reserved_bytes - allocator.peak_allocated_bytes
        is_fragmented = allocator.peak_reserved_bytes > _FRAGMENTED * allocator.peak_allocated_bytes
        if is_fragmented and not allocator.expandable_segments:
            found.append(
                (
                    rest,
                    f"PYTORCH_ALLOC_CONF=expandable_segments:True: {fmt_bytes(rest)} were reserved "
                    "beyond what tensors held (fragmentation)",
                )
            )
    found.sort(key=lambda item: -item[0])
    return tuple(words for _, words in found)


def ask_for_less(asked: int, held: int, capacity: int | None, *, held_is_peak: bool = False) -> str:
    """Advice for a request larger than everything alive: look at the request first.

    Args:
        asked: the size of the allocation that failed, in bytes.
        held: what all tensors held, in bytes.
        capacity: the device's whole memory in bytes; None if unknown.
        held_is_peak: ``held`` is the most that they held at any time, not what they held then.
    """
    if capacity is not None and asked > capacity:
        return (
            f"ask for less at once: this line asks for {fmt_bytes(asked)} and there are "
            f"{fmt_bytes(capacity)} in all, so no setting makes room; check the shapes in it"
        )
    verb = "held at most" if held_is_peak else "hold"
    return (
        f"ask for less at once: this line asks for {fmt_bytes(asked)}, and all tensors together "
        f"{verb} {fmt_bytes(held)}; check the shapes in it first"
    )
