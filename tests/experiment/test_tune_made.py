"""What ``perfkit.tune`` sweeps together and how it spends its budget, with sweeps that are made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base.errors import WorkloadFailedError
from perfkit.experiment import setting
from perfkit.experiment.compare.tune import Tuning, tune


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...], float]]:
    """What was asked for: sweep or verification, the settings swept, the budget in seconds.

    The last value of each setting is the fastest.
    """
    asked = []

    def sweep(workload: Any, grid: dict[str, list[Any]], *, budget_s: float, **_: Any) -> Any:
        asked.append(("sweep", tuple(grid), budget_s))
        points = [
            SimpleNamespace(values={name: values[at] for name, values in grid.items()})
            for at in (0, -1)
        ]
        interval = SimpleNamespace(low=1.5)
        return SimpleNamespace(
            warnings=(), points=points, best=points[-1], ratio=lambda _: interval
        )

    def ab(workload: Any, begin: Any, current: Any, *, budget_s: float, **_: Any) -> None:
        asked.append(("verification", (), budget_s))
        raise WorkloadFailedError("left out")

    monkeypatch.setattr("perfkit.experiment.compare.tune.sweep", sweep)
    monkeypatch.setattr("perfkit.experiment.compare.tune.ab", ab)
    return asked


def tuned(*n_values: int) -> Tuning:
    """Of settings with so many values each."""
    settings = [setting(f"s{i}", list(range(n))) for i, n in enumerate(n_values)]
    return tune(lambda s: iter(()), settings, budget_s=100.0, say=False)


@pytest.mark.parametrize(
    ("n_values", "sweeps"),
    [
        ((3, 4), [("sweep", ("s0", "s1"), 60.0)]),
        ((3, 5), [("sweep", ("s0",), 30.0), ("sweep", ("s1",), 30.0)]),
    ],
)
def test_up_to_twelve_combinations_are_swept_together(
    asked: list[Any], n_values: tuple[int, int], sweeps: list[Any]
) -> None:
    """The search takes 60 % of the budget, the verification the rest."""
    found = tuned(*n_values)
    assert asked == [*sweeps, ("verification", (), pytest.approx(40.0))]
    assert found.proposed == {"s0": n_values[0] - 1, "s1": n_values[1] - 1}
    assert found.sentence.endswith("It could not be verified: left out.")
