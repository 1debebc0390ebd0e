"""What a profile costs beyond its steps: memory that stays, and seconds that are told."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch

import perfkit
from perfkit.base.process_memory import resident_bytes
from perfkit.trace import Recorder


@pytest.fixture
def collector_is_off() -> Iterator[None]:
    """It comes by some hundred profiles later."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _step() -> Callable[[], None]:
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.rand(4, 8)).sum().backward()
        optimizer.step()

    return step


def _alive() -> tuple[int, int]:
    """Recorders, which hold the trace; and torch's own copies of events."""
    everything = gc.get_objects()
    profiles = [one for one in everything if type(one) is torch.autograd.profiler.profile]
    return (
        sum(type(one) is Recorder for one in everything),
        sum(getattr(one, "kineto_results", None) is not None for one in profiles),
    )


def test_events_go_with_the_profile(collector_is_off: None) -> None:
    """300 profiles of a small step grew the process by 93 MiB, nearly all of it torch's events."""
    step = _step()
    before = _alive()
    perfkit.profile(step)
    with perfkit.profile() as region:
        for _ in range(10):
            step()
    print(region.result)
    del region
    with perfkit.profile(), torch.profiler.profile():  # perfkit's gives way, and is read at once
        step()
    # the region's own profiler
    assert _alive() == (before[0], before[1] + 1)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only"
)
def test_what_lies_free_below_a_block_in_use_is_given_back() -> None:
    step = _step()
    perfkit.profile(step)
    blocks = [bytes(60_000) for _ in range(2_000)]
    del blocks[:-1]
    before = resident_bytes()
    perfkit.profile(step)
    assert before - resident_bytes() > 50 * 2**20
    assert len(blocks) == 1


def test_seconds_of_reading_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100,000 parameters: a step of 1.2 s took 86 s to profile, without a word."""
    step = _step()
    perfkit.profile(step)
    assert "reading" not in capsys.readouterr().err
    monkeypatch.setattr("perfkit.base.progress.is_terminal", lambda: True)
    monkeypatch.setattr("perfkit.base.progress._SILENT_S", 0.0)
    monkeypatch.setattr("perfkit.trace.record.profiler._SHORT_S", 0.0)
    perfkit.profile(step)
    told = capsys.readouterr().err
    assert "perfkit: torch ends its recording" in told
    assert "perfkit: reading the recording" in told
    assert told.endswith("\r"), "it is gone at the end"


def test_little_of_it_runs_in_a_step() -> None:
    """Each call takes about 1 µs there, after torch's own work: once 104 and 47, of 80 and 24."""
    step, n_calls = _step(), [0]
    root = str(Path(perfkit.__file__).parent)

    def count(frame: FrameType, event: str, _: object) -> None:
        n_calls[-1] += event == "call" and frame.f_code.co_filename.startswith(root)

    with perfkit.profile(lines=False) as p:
        for _ in range(14):
            n_calls.append(0)
            sys.setprofile(count)
            step()
            sys.setprofile(None)
    assert p.result.n_steps == 6
    steps = n_calls[1:]
    assert max(steps[4:7]) <= 69  # of 3 to 8, which are recorded, those without a look at the run
    assert max(steps[9:14]) <= 17
