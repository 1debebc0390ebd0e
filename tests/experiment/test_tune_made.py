"""What ``perfkit.tune`` sweeps together and how it spends its budget, with sweeps that are made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base.errors import WorkloadFailedError
from perfkit.experiment import setting
from perfkit.experiment.compare.tune import Tuning, _faster, _judged, _offered, tune


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...], float]]:
    """What was asked for: sweep or verification, the settings swept, the budget in seconds.

    The last value of each setting is the fastest.
    """
    asked = []

    def sweep(
        workload: Any, grid: dict[str, list[Any]], *, settings: Any, base: Any, budget_s: float,
        **_: Any,
    ) -> Any:  # fmt: skip
        assert [one.name for one in settings] == [*base]
        assert not {*base} & {*grid}, "what is swept has no other value beside"
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


# --- what is taken over, and what is said -----------------------------------------------


def _sweep_of(low: float | None, *, state: str = "measured") -> Any:
    """Two points, of which the second is the best; ``low`` is the lower end of what it gains."""
    points = [SimpleNamespace(values={"n": n}, state=state) for n in (0, 1)]
    interval = None if low is None else SimpleNamespace(low=low)
    of = {id(points[0]): interval, id(points[1]): SimpleNamespace(low=1.0)}
    return SimpleNamespace(points=points, best=points[1], ratio=lambda point: of[id(point)])


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (_sweep_of(1.01), {"n": 1}),
        (_sweep_of(1.0), {}),  # they may be as fast
        (_sweep_of(None), {}),
        (_sweep_of(None, state="failed"), {"n": 1}),
    ],
)
def test_a_value_is_taken_over_where_it_is_shown_to_be_faster(
    found: Any, taken: dict[str, int]
) -> None:
    assert _faster(found, {"n": 0, "other": 5}) == taken


def _verified(ratio: float, *, different: bool = True, same: bool | None = None) -> Any:
    judged = None if same is None else SimpleNamespace(same=same, sentence="So much is known.")
    return SimpleNamespace(
        ratio=ratio, low=ratio - 0.1, high=ratio + 0.1, per="step", different=different, same=judged
    )


@pytest.mark.parametrize(
    ("verified", "said"),
    [
        (_verified(1.5), "Recommended: n 1. Verified against the start: 1.50×"),
        (_verified(1.5, same=True), "Recommended: n 1. Verified against the start: 1.50×"),
        (_verified(1.5, same=False), "Not recommended: n 1. It is 1.50×"),
        (_verified(1.5, different=False), "Not recommended: n 1. The search found it faster"),
        (_verified(0.5), "Not recommended: n 1. The search found it faster"),
        (None, "Not recommended: n 1. It could not be verified: it failed."),
    ],
)
def test_what_is_recommended_was_verified(verified: Any, said: str) -> None:
    recommended, sentence = _judged({"n": 0, "m": 2}, {"n": 1, "m": 2}, verified, "it failed")
    assert sentence.startswith(said)
    assert recommended is said.startswith("Recommended")
    assert ("Whether it learns the same is unknown." in sentence) is (
        recommended and (verified is None or verified.same is None)
    )


def test_the_start_is_kept_where_nothing_was_faster() -> None:
    recommended, sentence = _judged({"n": 0}, {"n": 0}, None, "")
    assert not recommended
    assert sentence.startswith("Keep the start (n 0)")


def test_the_value_of_the_start_is_swept_with_those_that_are_offered() -> None:
    one = setting("n", [1, 2])
    assert _offered(one, 2) == [1, 2]
    assert _offered(one, 3) == [3, 1, 2]
    assert _offered(setting("flag", [1, 2]), True) == [True, 1, 2]
