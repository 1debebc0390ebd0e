"""PERFKIT_BUDGET_SCALE multiplies what an experiment may spend, once."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from perfkit.experiment import Session, setting
from perfkit.experiment.compare.ab import ab
from perfkit.experiment.compare.sweep import sweep

WIDTH = setting("width", [1, 2])


class TakenError(Exception):
    """Ends an experiment before it starts to run."""


def steps(settings: Any) -> Any:
    yield


@pytest.fixture(autouse=True)
def a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "0.1")


def length_s(session: Session) -> float:
    return session._seconds


def test_of_a_run() -> None:
    with Session(steps, seconds=5) as session:
        assert length_s(session) == pytest.approx(0.5)


def test_of_an_ab(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(*_: Any, budget_s: float, **__: Any) -> None:
        raise TakenError(budget_s)

    monkeypatch.setattr(sys.modules[ab.__module__], "Blocks", blocks)
    with pytest.raises(TakenError) as taken:
        ab(steps, {"width": 1}, {"width": 2}, settings=[WIDTH], budget_s=50)
    assert taken.value.args == (pytest.approx(5.0),)


@pytest.mark.parametrize("seconds", [4.0, None])
def test_of_a_sweep_and_of_its_runs(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweeping(session: Session, grid: Any, store: Any, budget_s: float, *_: Any) -> None:
        raise TakenError(budget_s, length_s(session))

    def taken(scale: str) -> tuple[float, float]:
        monkeypatch.setenv("PERFKIT_BUDGET_SCALE", scale)
        with pytest.raises(TakenError) as raised:
            sweep(steps, {"width": [1, 2]}, settings=[WIDTH], budget_s=50, seconds=seconds)
        return raised.value.args

    monkeypatch.setattr(sys.modules[sweep.__module__], "_Sweeping", sweeping)
    whole, tenth = taken("1"), taken("0.1")
    assert tenth == pytest.approx([number / 10 for number in whole])
    assert whole[0] == 50
    assert seconds is None or whole[1] == seconds
