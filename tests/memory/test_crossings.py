"""Bytes between host and device, counted exactly and without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perfkit
from perfkit.base.errors import UsageError
from perfkit.memory import crossings as crossings_module
from perfkit.memory.crossings import crossings

META = torch.device("meta")


def _one(step: Callable[[], object]) -> tuple[int, int, int, int]:
    found = crossings(step)
    return found.to_device_bytes, found.n_to_device, found.to_host_bytes, found.n_to_host


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (lambda: torch.zeros(10).to(META), (40, 1, 0, 0)),
        (lambda: torch.zeros(10).to("meta", non_blocking=True), (40, 1, 0, 0)),
        (lambda: torch.zeros(10, device=META), (0, 0, 0, 0)),
        (lambda: torch.zeros(10).to(torch.float64), (0, 0, 0, 0)),
        (lambda: torch.zeros(10, device=META).cpu(), (0, 0, 40, 1)),
        (lambda: torch.zeros(10, device=META).tolist(), (0, 0, 40, 1)),
        (lambda: torch.zeros(10, device=META).sum().item(), (0, 0, 4, 1)),
        (lambda: float(torch.zeros((), device=META)), (0, 0, 4, 1)),
        (lambda: torch.empty(10, device=META).copy_(torch.zeros(10)), (40, 1, 0, 0)),
        (lambda: torch.empty(10).copy_(torch.zeros(10, device=META)), (0, 0, 40, 1)),
        (lambda: torch.tensor([1.0, 2.0], device=META), (8, 1, 0, 0)),
        (lambda: torch.as_tensor([1.0, 2.0], device=META), (8, 1, 0, 0)),
        (lambda: torch.as_tensor(torch.zeros(10), device=META), (40, 1, 0, 0)),
        (lambda: torch.as_tensor(np.zeros(10), device=META), (80, 1, 0, 0)),
        (lambda: torch.tensor(np.zeros(10), device=META), (80, 1, 0, 0)),
        (lambda: nn.Linear(4, 3).to(META), (4 * (12 + 3), 2, 0, 0)),
    ],
)
def test_each_way_to_copy_is_counted(
    step: Callable[[], object], wanted: tuple[int, int, int, int]
) -> None:
    assert _one(step) == wanted


def test_a_blocking_copy_converts_first_and_sends_the_new_size() -> None:
    pixels = torch.zeros(10, dtype=torch.uint8)
    assert _one(lambda: pixels.to(META, torch.float32))[0] == 40
    assert _one(lambda: pixels.to(META, torch.float32, non_blocking=True))[0] == 10
    assert _one(lambda: pixels.to(META).float())[0] == 10


def test_a_copy_back_converts_on_the_host_if_somebody_waits_for_it() -> None:
    small = torch.zeros(10, device=META)
    assert _one(lambda: small.to("cpu", torch.float64))[2] == 40
    assert _one(lambda: small.to("cpu", torch.float64, non_blocking=True))[2] == 80


def test_what_is_broadcast_crosses_at_its_full_size() -> None:
    row = torch.zeros(10)
    assert _one(lambda: torch.empty(6, 10, device=META).copy_(row)) == (240, 1, 0, 0)


def test_a_copy_in_a_backward_thread_has_the_line_that_called_it() -> None:
    """CUDA's backward runs in a thread without a line of the user's, while the step's waits."""
    seen = crossings_module._Seen()

    def add_from_the_engine() -> None:
        seen.add("to host", 40, non_blocking=False, device="cuda")

    thread = threading.Thread(target=add_from_the_engine)
    add_from_the_engine.__code__ = add_from_the_engine.__code__.replace(
        co_filename=torch.autograd.__file__
    )
    thread.start(), thread.join()
    (line,) = seen.result().lines
    assert line.file == __file__
    assert "thread" in line.text


def test_a_gradient_that_goes_back_to_the_host_is_counted() -> None:
    x = torch.rand(2, 4, requires_grad=True)
    net = nn.Linear(4, 4, device=META)

    def step() -> None:
        net(x.to(META)).sum().backward()

    assert _one(step) == (32, 1, 32, 1)
    assert x.grad is not None
    assert x.grad.device.type == "cpu"


def test_lines_are_named_and_sorted() -> None:
    def step() -> None:
        small = torch.zeros(2).to(META)
        for _ in range(3):
            torch.zeros(100).to(META, non_blocking=True)
        small.cpu()

    first = step.__code__.co_firstlineno
    found = crossings(step)
    assert [
        (x.line - first, x.direction, x.nbytes, x.n_copies, x.non_blocking) for x in found.lines
    ] == [
        (3, "to device", 1200, 3, 3),
        (1, "to device", 8, 1, 0),
        (4, "to host", 8, 1, 0),
    ]
    assert found.stand_in
    said = found.to_text()
    assert said.startswith("1.18 KiB to the device, 8 B to the host. ")
    assert "5 copies" in said.splitlines()[0]
    assert "meta device stood in" in said
    assert f"test_crossings.py:{first + 3}" in said
    assert "torch.zeros(100)" in found._repr_html_()
    assert found.to_dict()["n_to_device"] == 4


def test_nothing_is_said_so() -> None:
    found = perfkit.crossings(lambda: torch.zeros(3))
    assert found.to_text() == "Nothing crosses between host and device."
    assert not found.stand_in


def test_a_line_is_escaped_in_html() -> None:
    code = "import torch\ndef step():\n    torch.zeros(1).to('meta'); '<img src=x>'\n"
    space: dict[str, Any] = {}
    import linecache

    name = "<ipython-input-7-x>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    exec(compile(code, name, "exec"), space)
    page = crossings(space["step"])._repr_html_()
    assert "&lt;img" in page
    assert "<img" not in page


def test_an_exception_comes_through_and_no_mode_stays() -> None:
    def step() -> None:
        torch.zeros(1).to(META)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        crossings(step)


def test_what_cannot_be_called_is_told() -> None:
    with pytest.raises(UsageError, match="step is a Tensor; give a function without arguments"):
        crossings(torch.zeros(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "nbytes"),
    [
        ("y[[0, 2]]", 16),
        ("y[:, [0, 1, 3]]", 24),
        ("y[range(3)]", 24),
        ("y[:, (1, 2)]", 16),
        ("y[:, [[0, 1], [2, 3]]]", 32),
        ("y[(0, 1)]", 0),  # two numbers, no positions
        ("y.__setitem__([0, 2], 0.0)", 16),
        ("y[np.array([1, 2, 3])]", 24),
        ("y[torch.tensor([0, 1])]", 16),
        ("y[torch.tensor([True] * 10)]", 80),  # turned into ten positions on the host
        ("y.new_tensor([1.0, 2.0])", 8),
        ("torch.tensor([1.0, 2.0], device=y.device)", 8),
        ("torch.arange(4.0).to(y.device)", 16),
        ("y[0:2]", 0),
        ("y[torch.arange(2, device=y.device)]", 0),
    ],
)
def test_what_python_hands_to_the_device_is_counted(line: str, nbytes: int) -> None:
    names = {"y": torch.empty(10, 4, device="meta"), "torch": torch, "np": np}
    found = crossings(lambda: eval(line, names))
    assert found.to_device_bytes == nbytes
    assert found.n_to_device == (nbytes > 0)
    assert found.n_to_host == 0
