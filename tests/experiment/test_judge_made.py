"""How two runs are compared, of made losses and gradients: by hand, without a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from perfkit.experiment.compare._judge import (
    Checked,
    Compared,
    Judge,
    _above,
    _apart,
    _larger_by,
)
from perfkit.experiment.compare._tolerance import tolerances
from perfkit.experiment.compare._trials import Trial
from perfkit.experiment.process._fingerprint import Fingerprint, Sketch, StepGradients

LAYER = [(20, 50), (20,)]  # one layer, whose sums have 50 terms
ROUNDOFF = {"fp64": 2**-53, "fp32": 2**-24, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}


@pytest.mark.parametrize("precision", ROUNDOFF)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_tolerances_by_hand(precision: str, step: int) -> None:
    """By the formulas that ``tolerances`` tells, for one layer."""
    unit = ROUNDOFF[precision]
    # in 16 and 19 bits the sums are those of float32, and each layer rounds twice
    delta = min(unit, 2**-24) * 10 + (unit * math.sqrt(2) if unit > 2**-24 else 0)
    first = math.sqrt(delta)
    grown = first * 30**step
    found = tolerances(precision, LAYER, step)
    assert found.loss == found.weights == pytest.approx(2 * delta)
    assert found.loss_moved == pytest.approx(min(first * 30 ** (step - 1), 1) if step else 0)
    assert found.direction == (pytest.approx(grown) if grown <= 1 else None)
    norm = 2 * delta + min(grown, 1) / 4 * max(step, 1)
    assert found.norm == pytest.approx(norm)
    assert found.one_norm == pytest.approx(min(3 * norm, 0.7))
    assert found.one_direction == (pytest.approx(3 * grown) if 3 * grown <= 1 else None)


@pytest.mark.parametrize("shapes", [None, [], [(7,)]])
def test_an_unknown_network_is_taken_as_a_deep_one(shapes: list[tuple[int, ...]] | None) -> None:
    deep = [(1, 1000)] * 100
    for precision in ("fp32", "bf16"):
        assert tolerances(precision, shapes, 0) == tolerances(precision, deep, 0)
    # before any update a gradient that is turned round, 2 apart, is seen in any network
    assert tolerances("bf16", deep, 0).direction == 1
    assert tolerances("bf16", deep, 1).direction is None


# --- made runs -----------------------------------------------------------------------------

WHOLE = {"a": 3.0, "b": 4.0}
Norms = Mapping[str, float]


def prints(
    *steps: Norms, weights: Norms = WHOLE, rows: int = 5, at: Sequence[tuple[int, int]] = ()
) -> Fingerprint:
    """Each tensor is as long as its norm, and points along every projection, or against it."""

    def sketch(norm: float) -> Sketch:
        return Sketch(abs(norm), (norm, norm, norm))

    numbers = at or [(n, 0) for n in range(len(steps))]
    return Fingerprint(
        tuple(weights),
        tuple((rows, 10) for _ in weights),
        tuple(map(sketch, weights.values())),
        tuple(
            StepGradients(step, call, "SGD", {i: sketch(n) for i, n in enumerate(one.values())})
            for (step, call), one in zip(numbers, steps, strict=True)
        ),
        "fp32",
    )


def trial(losses: Sequence[float | None] = (1.0,), found: Fingerprint | None = None) -> Trial:
    return Trial(losses, found, "fp32")


def compared(a: Trial, b: Trial, steps: int = 3) -> Compared:
    return Judge("fp32", [(5, 10), (5, 10)]).compare(a, b, steps)


def of_prints(a: Fingerprint, b: Fingerprint) -> list[Checked]:
    return list(compared(trial(found=a), trial(found=b)).gradients)


def difference(checks: Sequence[Checked], what: str) -> float:
    (found,) = (one.difference for one in checks if one.what == what)
    return found


def test_losses_step_by_step() -> None:
    nan, inf = math.nan, math.inf
    found = compared(trial([2.0, 1.0, nan, 5.0]), trial([2.0, 1.1, 1.0, 6.0]))
    assert [(one.what, one.step) for one in found.losses] == [("loss", n) for n in range(3)]
    assert [one.difference for one in found.losses] == [0, pytest.approx(1 / 11), inf]
    allowed = [tolerances("fp32", [(5, 10)] * 2, n) for n in range(3)]
    assert found.losses[0].tolerance == allowed[0].loss
    # the losses have moved from 2.0 to 1.0, by 1.0 of at most 1.1
    moved = allowed[1].loss + allowed[1].loss_moved / 1.1
    assert found.losses[1].tolerance == pytest.approx(moved)
    for gone in (nan, inf):
        found = compared(trial([1.0, gone, gone]), trial([1.0, gone, gone]))
        assert [one.step for one in found.losses] == [0]
        told = [w for w in found.warnings if "neither loss is a finite number" in w]
        assert told == ["at step 2 neither loss is a finite number: such steps were not compared"]
    for pair in (([1.0, None], [1.0, None]), ([1.0, None], [1.0, nan]), ([1.0, inf], [1.0, None])):
        found = compared(*map(trial, pair))
        assert not [w for w in found.warnings if "finite" in w]
        assert [one.step for one in found.losses] == [0]
    for pair in (([1.0, nan], [1.0, 1.0]), ([1.0, 1.0], [1.0, nan])):
        gone_in_one = compared(*map(trial, pair)).losses[1]
        assert (gone_in_one.difference, gone_in_one.agrees) == (inf, False)
    found = compared(trial([None, 2.0]), trial([None, 2.0]))
    assert [(one.step, one.difference) for one in found.losses] == [(1, 0)]
    found = compared(trial([None, None]), trial([1.0, 1.0]))
    assert not found.losses
    assert "the first reported no loss: gradients alone were compared" in found.warnings


def test_parameters_are_matched_by_name_else_by_place_and_only_of_one_shape() -> None:
    swapped = {"b": 4.0, "a": 3.0}
    found = compared(trial(found=prints()), trial(found=prints(weights=swapped)))
    assert [(one.what, one.difference) for one in found.all] == [
        ("starting weights", 0),
        ("loss", 0),
    ]
    renamed = {"c": 3.0, "d": 4.0}
    found = compared(trial(found=prints()), trial(found=prints(weights=renamed)))
    assert [(one.what, one.difference) for one in found.all] == [
        ("starting weights", 0),
        ("loss", 0),
    ]
    for other in (prints(rows=6), prints(weights=WHOLE | {"c": 1.0})):
        found = compared(trial(found=prints()), trial(found=other))
        assert [one.what for one in found.all] == ["loss"]
        assert "the parameters are not the same ones" in found.warnings[0]
    twins = replace(prints(), names=("w", "w"))
    found = compared(trial(found=twins), trial(found=twins))
    assert (found.all[0].what, found.all[0].difference) == ("starting weights", 0)
    some, none = trial(found=prints()), trial()
    for pair, names in (
        ((some, none), "the second"),
        ((none, some), "the first"),
        ((none, none), "the first and the second"),
    ):
        told = f"no gradients of {names}: the losses alone were compared"
        assert compared(*pair).warnings == (told,)


def test_other_starting_weights_name_the_parameter_that_is_farthest() -> None:
    found = compared(trial(found=prints()), trial(found=prints(weights={"a": 3.3, "b": 5.0})))
    assert (found.all[0].what, found.all[0].difference) == ("starting weights of b", 0.2)
    assert not found.all[0].agrees


def test_a_gradient_is_measured_against_a_tenth_of_the_whole() -> None:
    whole = {"a": 1.0, "b": 0.001}
    checks = of_prints(prints(whole), prints({"a": 1.0, "b": 0.003}))
    told = checks[0]
    assert told.what.endswith("of b")
    # the whole is 1.0000005 long
    assert told.difference == pytest.approx(0.002 / 0.1, rel=1e-4)
    checks = of_prints(prints({"a": 1.0, "b": 0.5}), prints({"a": 1.0, "b": 0.4}))
    assert checks[0].difference == pytest.approx(0.2)
    # the whole: √1.25 against √1.16, and 0.1 apart
    assert difference(checks, "norm of the gradient") == pytest.approx(math.sqrt(1.25 / 1.16) - 1)
    assert difference(checks, "gradient") == pytest.approx(0.1 / math.sqrt(1.25))


@pytest.mark.parametrize(
    ("other", "first"),
    [
        ({"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0}, "norm of the gradient of c"),
        ({"a": 1.0, "b": 1.5, "c": 2.0, "d": 1.0}, "norm of the gradient of c"),
        ({"a": 3.0, "b": 1.5, "c": 2.0, "d": 1.0}, "norm of the gradient"),
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, "norm of the gradient"),
    ],
)
def test_the_parameter_is_named_where_at_most_half_of_them_differ(other: Norms, first: str) -> None:
    same = dict.fromkeys("abcd", 1.0)
    a, b = (prints(one, weights=same) for one in (same, other))
    assert of_prints(a, b)[0].what == first


def test_a_gradient_that_is_turned_round_is_named_though_its_norm_agrees() -> None:
    same = {"a": 1.0, "b": 0.5}
    checks = of_prints(prints(same), prints({"a": 1.0, "b": -0.5}))
    assert (checks[0].what, checks[0].difference) == ("gradient of b", 2.0)
    assert not checks[0].agrees
    # a sparse one has no direction to compare
    a = prints(same)
    step = replace(a.steps[0], gradients={**a.steps[0].gradients, 1: Sketch(0.5, ())})
    sparse = replace(a, steps=(step,))
    assert not any(one.what.startswith("gradient") for one in of_prints(sparse, sparse))
    # after an update rounding in 16 bits has grown so much that nothing can be said
    turned = prints(*[{"a": 1.0, "b": -0.5}] * 3)
    found = Judge("bf16", [(5, 10)] * 2).compare(
        trial(found=prints(*[same] * 3)), trial(found=turned), 3
    )
    told = {one.step for one in found.gradients if one.what.startswith("gradient")}
    assert told == {0}


def test_a_parameter_without_a_gradient_has_one_of_length_0() -> None:
    a, b = prints(WHOLE), prints(WHOLE)
    step = replace(b.steps[0], gradients={**b.steps[0].gradients, 1: None})
    for pair in ((a, replace(b, steps=(step,))), (replace(b, steps=(step,)), a)):
        first = of_prints(*pair)[0]
        assert (first.what, first.difference) == ("norm of the gradient of b", 1.0)


def test_starting_weights_that_cannot_be_compared_are_not() -> None:
    sparse = replace(prints(), weights=(Sketch(3.0, ()), Sketch(4.0, ())))
    found = compared(trial(found=sparse), trial(found=sparse))
    assert (found.all[0].what, found.all[0].difference) == ("starting weights", 0.0)


def test_a_gradient_that_overflowed_in_one_run_differs_and_in_both_is_not_compared() -> None:
    gone = prints({"a": math.inf, "b": 1.0})
    (only,) = of_prints(prints(WHOLE), gone)
    assert (only.what, only.difference, only.agrees) == ("norm of the gradient", math.inf, False)
    assert of_prints(gone, gone) == []


def test_gradients_are_compared_until_the_optimizers_steps_differ() -> None:
    a = prints(WHOLE, WHOLE, WHOLE)
    found = compared(trial(found=a), trial(found=prints(WHOLE, WHOLE, at=[(0, 0), (2, 0)])))
    assert {one.step for one in found.gradients} == {0}
    assert found.warnings == (
        "at step 2 the optimizer stepped in a only: gradients were compared before it",
    )
    found = compared(trial(found=prints()), trial(found=a))
    assert "at step 1 the optimizer stepped in b only" in found.warnings[0]
    # two updates within a step: the tolerance is that of the second
    twice = prints(WHOLE, WHOLE, at=[(0, 0), (0, 1)])
    assert {one.step for one in of_prints(twice, twice)} == {0, 1}
    found = compared(trial(found=a), trial(found=a), steps=2)
    assert {one.step for one in found.gradients} == {0, 1}


def test_an_arm_that_does_not_agree_with_itself() -> None:
    judge = Judge("fp32", [(5, 10)])
    same = [trial([1.0, 1.0, 1.0])] * 3
    assert judge.own_noise(same, 3) == (3, 0.0, None)
    assert judge.own_noise(same[:1], 3) == (3, None, None)
    early, late = trial([1.0, 1.5, 1.0]), trial([1.0, 1.0, 1.5])
    for order in ([early, late], [late, early]):
        steps, noise, differs = judge.own_noise([same[0], *order], 3)
        assert differs is not None
        assert (steps, differs.what, differs.step) == (1, "loss", 1)
        assert noise is not None
        assert noise > 1
    steps, again, differs = judge.own_noise([same[0], early, same[0]], 3)
    assert (steps, again, differs is None) == (1, noise, False)


def test_a_difference_and_its_tolerance() -> None:
    assert Checked("loss", 0, 0.5, 0.5).agrees
    assert not Checked("loss", 0, 0.51, 0.5).agrees
    assert Checked("loss", 0, 1.0, 0.5).excess == 2.0
    assert Checked("loss", 0, 1.0, 0.0).excess == math.inf


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (Sketch(1.0, ()), Sketch(1.0, ()), None),  # both sparse
        (Sketch(1.0, ()), Sketch(0.0, ()), None),
        (Sketch(0.0, ()), Sketch(1.0, ()), None),
        (Sketch(0.0, ()), Sketch(0.0, ()), 0.0),
        (Sketch(0.0, ()), Sketch(2.0, (1.0, 1.0, 1.0)), 2.0),
        (Sketch(2.0, (1.0, 1.0, 1.0)), Sketch(0.0, ()), 2.0),
        (Sketch(1.0, ()), Sketch(1.0, (1.0, 1.0, 1.0)), None),
        (Sketch(1.0, (3.0, 0.0, 0.0)), Sketch(1.0, (0.0, 0.0, 0.0)), math.sqrt(3)),
    ],
)
def test_how_far_two_tensors_are_apart(one: Sketch, other: Sketch, apart: float | None) -> None:
    assert _apart(one, other, 1.0) == (None if apart is None else pytest.approx(apart))


def test_by_how_much_one_norm_is_above_the_other() -> None:
    assert [_larger_by(*pair) for pair in ((2, 2), (16, 1), (1, 16), (0, 0))] == [0, 15, 15, 0]
    assert _larger_by(0, 1) == _larger_by(1, 0) == math.inf
    # of shapes from a damaged file the tolerance may be without end
    assert math.isfinite(_above(1e9))
