"""Out of memory: recognised, explained, and the traceback releases memory. Simulated limit."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.memory.account import Accountant
from perfkit.memory.allocator import AllocatorUse
from perfkit.memory.categories import CATEGORIES
from perfkit.memory.out_of_memory import is_out_of_memory, release, remedies, requested_bytes


class Limit(TorchDispatchMode):
    """A simulated device of a given size in bytes: counts what operators allocate."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.free = nbytes

    def _give_back(self, nbytes: int) -> None:
        self.free += nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not any(result is a for a in args):
            nbytes = result.untyped_storage().nbytes()
            if nbytes > self.free:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {nbytes / 2**20:.2f} MiB. (simulated)"
                )
            self.free -= nbytes
            weakref.finalize(result, self._give_back, nbytes)
        return result


def _train(model: nn.Module, refs: list[weakref.ref[Tensor]]) -> None:
    hidden = torch.randn(256, 256)
    refs.append(weakref.ref(hidden))
    for _ in range(100):
        hidden = model(hidden).tanh()
        refs.append(weakref.ref(hidden))
    hidden.sum().backward()


def test_it_is_told_by_category_and_the_memory_is_free_again() -> None:
    model, refs = nn.Linear(256, 256), []  # type: ignore[var-annotated]
    limit = Limit(3 * 2**20)
    caught: BaseException | None = None
    accountant = Accountant(model=model)
    # the device lies below what counts
    with limit, accountant:
        try:
            _train(model, refs)
        except torch.OutOfMemoryError as error:
            accountant.failed(error)
            caught = error
    assert caught is not None
    result = accountant.result
    assert result.out_of_memory
    assert result.requested_bytes == 256 * 256 * 4
    (cpu,) = result.devices  # at its start there may be tensors of a test before
    assert result.at_peak_bytes["activations"] > (result.peak_bytes - cpu.start_bytes) / 2
    assert "half the batch" in result.would_help[1]
    assert any("hidden = model(hidden).tanh()" in x.text for x in result.by_line)
    words, page = result.to_text(), result._repr_html_()
    assert words.startswith("Out of memory: an allocation of 256 KiB failed; peak ")
    for said in ("What would help", "half the batch", "predicted"):
        assert said in words
        assert said in page
    assert any(ref() is not None for ref in refs)
    free = limit.free
    release(caught)
    assert [ref for ref in refs if ref() is not None] == []
    assert limit.free > free
    # the traceback still shows its lines
    assert caught.__traceback__ is not None


@pytest.mark.parametrize(
    ("asked", "words", "also"),
    [
        (2**50, "so no setting makes room", False),
        (2**21, "all tensors together held at most 1.00 MiB", True),
        (2**20, "", True),
    ],
)
def test_one_allocation_larger_than_all_that_lives_is_asked_about_first(
    asked: int, words: str, also: bool
) -> None:
    model = nn.Linear(64, 64)
    accountant = Accountant(model=model)
    with accountant:
        model(torch.randn(64, 64)).sum().backward()
        accountant.failed(RuntimeError(f"you tried to allocate {asked} bytes."))
    # whatever earlier tests still hold: a peak between the two requests
    result = accountant.result
    devices = (dataclasses.replace(result.devices[0], peak_bytes=2**20), *result.devices[1:])
    first, *others = dataclasses.replace(result, devices=devices).would_help
    assert first.startswith("ask for less at once: this line asks for ") is bool(words)
    assert words in first
    assert bool(others) is also


def test_contexts_and_causes_let_go_too() -> None:
    refs: list[weakref.ref[Tensor]] = []

    def inner() -> None:
        big = torch.zeros(1000)
        refs.append(weakref.ref(big))
        raise MemoryError

    def outer() -> None:
        try:
            inner()
        except MemoryError as error:
            also = torch.zeros(1000)
            refs.append(weakref.ref(also))
            raise RuntimeError("the step failed") from error

    with pytest.raises(RuntimeError) as caught:
        outer()
    gc.collect()
    assert all(ref() is not None for ref in refs)
    release(caught.value)
    assert all(ref() is None for ref in refs)


@pytest.mark.parametrize(
    ("error", "nbytes"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB."), 5 * 2**29),
        (RuntimeError("can't allocate memory: you tried to allocate 8000 bytes."), 8000),
        (torch.OutOfMemoryError(
            "Allocation on device 1 would exceed allowed memory. (out of memory)\n"
            "Currently allocated     : 9.00 GiB\nRequested               : 2.50 GiB\n"
        ), 5 * 2**29),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), None),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), None),
        (MemoryError(), None),
    ],
)  # fmt: skip
def test_each_kind_is_recognised(error: BaseException, nbytes: int | None) -> None:
    assert is_out_of_memory(error)
    assert requested_bytes(error) == nbytes


def test_the_cpu_allocators_own_words_are_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert requested_bytes(caught.value) == 2**60
    assert not is_out_of_memory(ValueError("tried to allocate 3 bytes"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


@pytest.mark.parametrize(
    ("category", "says"),
    [
        ("activations", "checkpoint"),
        ("optimizer state", "less state"),
        ("gradients", "zero_grad"),
        ("temporary", "temporary"),
    ],
)
def test_the_advice_follows_what_was_there(category: str, says: str) -> None:
    nothing = dict.fromkeys(CATEGORIES, 0)
    said = remedies({**nothing, category: 2**30}, nothing, None)
    assert any(says in words for words in said)
    assert remedies({**nothing, "parameters": 2**30}, nothing, None) == ()
    # activations that an earlier step left are not of this batch
    kept = remedies({**nothing, "activations": 2**30}, {**nothing, "activations": 2**30}, None)
    assert [words.split(":")[0] for words in kept] == ["free what was there before"]
    before = remedies({**nothing, "other": 2**30}, {**nothing, "other": 2**30}, None)
    assert any("there before" in words for words in before)


def test_fragmentation_is_told() -> None:
    use = AllocatorUse(0, "simulated", 0, 0, 10 * 2**30, 0, 0, 16 * 2**30, 3, 1, 10, 2)
    nothing = dict.fromkeys(CATEGORIES, 0)
    (said,) = remedies(nothing, nothing, use)
    assert said.startswith("PYTORCH_ALLOC_CONF=expandable_segments:True")
    # it was advised where it was on
    on = dataclasses.replace(use, expandable_segments=True)
    assert remedies(nothing, nothing, on) == ()
