"""Where the time of a Lab's steps goes: seen in live windows alone, and summed up by the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from perfkit.experiment.process import _live_phases, worker
from perfkit.experiment.process._live_phases import LivePhases
from perfkit.experiment.process.loader_wait import LoaderWait
from perfkit.experiment.process.phase_means import PhaseMeans, PhaseRows
from perfkit.measure.phases import PHASES, Phases
from tests.left_running import n_optimizer_step_hooks

MS = 1_000_000


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by other tests of this process."""
    monkeypatch.setattr(_live_phases, "compile_has_patched_torch", lambda: False)


def hooked() -> bool:
    return bool(torch_module._global_forward_pre_hooks) or n_optimizer_step_hooks() > 0


def training(seen: list[bool] | None = None) -> Iterator[int]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in torch.utils.data.DataLoader(torch.ones(48, 4), batch_size=4):
        if seen is not None:
            seen.append(hooked())
        model(x).sum().backward()
        optimizer.step()
        yield 4


class Told:
    """Instead of the kernel."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []

    def say(self, kind: str, **content: Any) -> None:
        if kind == "points":
            self.points.append(content)


class Commands:
    def finish_asked(self) -> bool:
        return False

    def park_asked(self) -> bool:
        return False


class Windows:
    """Windows of three steps: quiet, live, quiet …"""

    def __init__(self) -> None:
        self.n = 0

    @property
    def is_live(self) -> bool:
        return self.n // 3 % 2 == 1

    def is_quiet(self, begin_s: float) -> bool:
        return not self.is_live

    def after_step(self, begin_s: float, end_s: float) -> str:
        self.n += 1
        return "send" if self.n % 3 == 0 else "nothing"

    def sent(self, now_s: float) -> bool:
        return not self.is_live


def recorded(phases: LivePhases, steps: Iterator[Any]) -> list[dict[str, Any]]:
    told = Told()
    with LoaderWait() as loader:
        recorder = worker._Recorder(told, loader, None, phases)  # type: ignore[arg-type]
        recorder._windows = Windows()  # type: ignore[assignment]
        recorder.follow(steps, Commands())  # type: ignore[arg-type]
        recorder.send()
    phases.end()
    return told.points


def test_steps_of_live_windows_are_seen_and_the_others_have_no_hook() -> None:
    seen: list[bool] = []
    points = recorded(LivePhases(), training(seen))
    assert seen == 2 * (3 * [False] + 3 * [True])
    rows = PhaseRows()
    steps: list[int] = []
    for message in points:
        steps += np.frombuffer(message["phase_steps"], np.int64).tolist()
        rows.take(message, np.arange(100), warmup=4)
    assert steps == [3, 4, 5, 9, 10, 11]
    means = rows.means()
    assert means.n_steps == 5  # the fourth step is of the warm-up
    assert {"data_wait", "forward", "backward", "optimizer"} <= set(means.ms)
    assert not means.why_not
    assert not hooked()


def test_compiled_code_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live_phases, "compile_has_patched_torch", lambda: True)
    seen: list[bool] = []
    points = recorded(LivePhases(), training(seen))
    assert not any(seen)
    rows = PhaseRows()
    for message in points:
        rows.take(message, np.arange(100), warmup=0)
    assert rows.means() == PhaseMeans(why_not=_live_phases._COMPILED)


def test_what_fails_is_told_and_the_steps_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live_phases.Phases, "_opens", lambda *_: 1 / 0)
    points = recorded(LivePhases(), training())
    assert sum(len(message["step_ms"]) // 8 for message in points) == 12
    why_not = points[-1]["phases_why_not"]
    assert why_not.startswith("watching them failed (ZeroDivisionError: ")
    assert "is shown" not in why_not  # none of these steps is
    assert not hooked()


def test_many_separate_calls_are_told_in_the_labs_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_live_phases, "Phases", lambda: Phases(lambda: 1))

    def steps() -> Iterator[int]:
        layers = [nn.Linear(4, 4) for _ in range(50)]
        for _ in range(12):
            for layer in layers:
                layer(torch.zeros(1, 4))
            yield 4

    points = recorded(LivePhases(), steps())
    assert points[-1]["phases_why_not"] == (
        "a step calls many modules by themselves, and timing each would slow it down"
    )
    assert not hooked()


def message(first: int, *rows: tuple[int, ...]) -> dict[str, Any]:
    return {
        "phase_steps": np.arange(first, first + len(rows)).tobytes(),
        "phase_ns": np.asarray(rows, np.int64).tobytes(),
    }


def row(**ms: int) -> tuple[int, ...]:
    return tuple(ms.get(name, 0) * MS for name in PHASES)


def test_the_means_leave_out_the_warm_up_and_steps_with_a_pause() -> None:
    rows = PhaseRows()
    rows.take({}, np.arange(3), warmup=1)  # a message without
    rows.take(
        message(0, row(forward=90), row(forward=2, other=1), row(forward=900)),
        np.array([0, 1, 3]),
        warmup=1,
    )
    rows.take(message(3, row(forward=4, data_wait=6)), np.array([3]), warmup=1)
    few = "only 2 steps after the warm-up could be watched; a longer run (seconds=…) has more"
    assert rows.means() == PhaseMeans(why_not=few)
    rows.take(message(4, row(forward=6, other=2)), np.array([4]), warmup=1)
    assert rows.means() == PhaseMeans({"data_wait": 2.0, "forward": 4.0, "other": 1.0}, 3)


def test_nothing_was_to_be_seen() -> None:
    rows = PhaseRows()
    rows.take({}, np.arange(9), warmup=3)
    assert rows.means() == PhaseMeans()


def test_a_run_that_ends_with_its_warm_up_says_why_nothing_was_seen() -> None:
    rows = PhaseRows()
    rows.take(message(0, *3 * [row(forward=4)]), np.arange(3), warmup=3)
    assert rows.means().why_not == (
        "no step after the warm-up could be watched; a longer run (seconds=…) has more"
    )
