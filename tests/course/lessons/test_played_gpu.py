"""What lessons measure on a GPU, run to its end on a played one: "cuda" is the CPU here.

The figures mean nothing here. The tests check that it runs, and that it waits for the device when
timing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from perfkit.base import torch_compat
from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_01_measure import cost as measure_cost
from perfkit.course.lessons.lesson_02_read_a_trace import measured as lesson_02
from perfkit.course.lessons.lesson_06_host_to_device import lesson as host_to_device
from perfkit.course.lessons.lesson_06_host_to_device import measured as lesson_06
from perfkit.course.lessons.lesson_07_sync_points import measured as lesson_07
from perfkit.measure import clock

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")


class _Played(TorchFunctionMode):
    """Takes "cuda" for the CPU, and remembers that it was used."""

    used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "pin_memory":
            return args[0]
        kwargs = {name: self._of(value) for name, value in (kwargs or {}).items()}
        try:
            return func(*map(self._of, args), **kwargs)
        except NotImplementedError:  # home from the device that stands in for a far one
            return torch.zeros_like(args[0], device="cpu")

    def _of(self, value: Any) -> Any:
        if isinstance(value, str | torch.device) and str(value).startswith(("cuda", "meta")):
            self.used = True
            return "cpu" if str(value).startswith("cuda") else value
        return value


@dataclass
class _Clocks:
    waits: int = 0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Clocks]:
    """A GPU until the test ends, with a count of waits for it."""
    played, counted = _Played(), _Clocks()

    def synchronize(device: Any = None) -> None:
        counted.waits += 1

    for name, value in {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_name": lambda *_: "played",
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "is_initialized": lambda: played.used,
        "manual_seed_all": lambda seed: None,
        "mem_get_info": lambda: (10**8, 10**8),  # room for one picture
        "synchronize": synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch_compat, "cuda_contexts", list)
    # a torch that is built for CUDA asks the real one (seen in 2.11)
    asks = "_accelerator_graph_capture_health_check"
    monkeypatch.setattr(torch.optim.Optimizer, asks, lambda self: None, raising=False)

    settle = clock.Clock.settle

    def waits(self: clock.Clock) -> None:
        assert self.device != "cpu", "timed by the host's clock, which waits for no device"
        settle(self)

    monkeypatch.setattr(clock.Clock, "settle", waits)
    _stand_ins(monkeypatch)
    with played:
        yield counted


def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what only a real GPU can do."""
    far = torch.device("meta")  # there is something that copies cross to
    for module in (host_to_device, lesson_06, lesson_07):
        monkeypatch.setattr(module, "far_device", lambda: far)
    monkeypatch.setattr(lesson_07, "_as_it_happened", lambda *_: {})
    monkeypatch.setattr(measure_cost, "_FEWEST_BLOCKS", 2)
    cpu = torch.profiler.ProfilerActivity.CPU
    profile = torch.profiler.profile

    class Profile(profile):
        def __init__(self, *, activities: Any, **given: Any) -> None:
            super().__init__(activities=[cpu], **given)

    monkeypatch.setattr(torch.profiler, "profile", Profile)


@pytest.mark.slow
def test_lesson_01_measures_the_profiler_on_a_gpu_with_waits_for_it(clocks: _Clocks) -> None:
    layer = torch.nn.Linear(8, 8).to("cuda")
    batch = torch.ones(4, 8, device="cuda")
    cost = measure_cost.profiler_cost(lambda: layer(batch).sum().backward(), budget_s=0.05)
    found = claim("D1").settle(cost)
    assert found.outcome is not None, found.why
    assert {"cuda_ratio", "cpu_cuda_ratio", "all_ratio"} < set(found.outcome.figures)
    assert clocks.waits


def test_lesson_07_is_measured_on_a_gpu_with_waits_for_it(clocks: _Clocks) -> None:
    batch = lesson_07._Batch("cuda", n=1)
    # a played tensor is on the CPU: the lesson's model says where it is by its parameters
    found = lesson_07.rewritten(
        lambda: batch.each().mean(), lambda: batch.each().mean(), batch.layer, budget_s=0.05
    )
    assert found.same
    fetched = lesson_07.fetched_masks("cuda", budget_s=0.05)
    assert fetched.timed is not None
    assert clocks.waits


def test_lesson_06_is_measured_on_a_gpu_with_waits_for_it(clocks: _Clocks) -> None:
    found = lesson_06.round_trips("cuda", budget_s=0.05)
    assert found.timed is not None
    assert found.emptied is not None
    copies = lesson_06.overlap("cuda", budget_s=0.05)
    assert copies.simulated_ms == {}
    assert copies.host_ms is not None
    assert clocks.waits


@pytest.mark.slow
def test_lesson_02_records_and_times_steps_on_a_gpu(
    clocks: _Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of a size for a GPU, its product takes this CPU ten seconds
    product = partial(lesson_02.achievable_tflop_per_s, size=64)
    monkeypatch.setattr(lesson_02, "achievable_tflop_per_s", product)
    assert len(lesson_02.record_steps("cuda", prepared=True).thread)
    assert lesson_02.used_here("cuda").flops_share > 0
