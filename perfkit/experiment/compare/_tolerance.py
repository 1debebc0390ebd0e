"""How far rounding can separate two programs that compute the same thing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Half the distance between neighbouring numbers, relative: 2**-(digits + 1).
UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
# Assumed depth if no gradients show it: that of a ResNet-101.
_LAYERS, _FAN_IN = 100, 100_000
# How much one optimizer step amplifies a difference of gradients: measured on ResNets with batch
# norm (25 to 70 times at a learning rate of 0.1); transformers and MLPs stay near 1 to 3.
_GROWTH = 30.0
# Two unrelated gradients differ by √2 times their norm.
_NO_MORE = 1.0
# One parameter against all: the worst of many parameters differs up to 4 times as much.
_ONE_OF_MANY = 3.0
_MOST_OF_ONE_NORM = 0.7
# Norms differ much less than directions: measured 1 to 10 % of that, rarely 30 %.
_NORM_SHARE = 0.25
_SAFETY = 2.0


@dataclass(frozen=True)
class Tolerance:
    """The difference that rounding alone may cause between two runs at one step; relative.

    Attributes:
        loss: of the loss, before the updates' part (``loss_moved`` times how far the loss has
            moved).
        loss_moved: share of the losses' own movement since the first step.
        norm: of the whole gradient's norm, as a logarithm.
        direction: norm of the difference of the whole gradients; None if a step amplifies rounding
            so much that nothing can be said.
        one_norm, one_direction: the same for a single parameter.
        weights: of a parameter before its first update.
    """

    loss: float
    loss_moved: float
    norm: float
    direction: float | None
    one_norm: float
    one_direction: float | None
    weights: float


def tolerances(precision: str, shapes: Sequence[Sequence[int]] | None, step: int) -> Tolerance:
    """What difference rounding in this number format may cause in a network's first steps.

    With n independent roundings to a format of unit roundoff u, a result is off by a few times
    √n · u (Higham and Mary 2019, A New Approach to Probabilistic Rounding Error Analysis). Formats
    of 16 and 19 bits round once per layer, forward and backward: n = 2 · layers, plus float32's
    share, whose n is the length of all sums, 2 · Σ fan-in. Call that δ.

    * **loss**: 2 δ; after updates also the gradients' difference times how far the loss moved.
    * **direction** of the gradient: √(layers · δ), because δ is also the share of a layer's
      activations that may cross the kink of a ReLU, each of which switches terms of the gradient on
      or off, and at most 1 before any update; then 30 times more with each update (measured on
      ResNets with batch norm), and None above 1, where gradients have nothing in common.
    * **norm** of the gradient: 2 δ and a quarter of the direction's, which reveals a wrong scale or
      a forgotten ``zero_grad`` even in 16 bits. Measured: 1 to 10 %, rarely 30 % of it.

    The factors 2, 30 and ¼ were chosen on small ResNets, transformers and MLPs with SGD and
    AdamW, where correct pairs stayed below all of them (``tests/experiment/test_same.py``).

    Args:
        precision: ``"fp64"``, ``"fp32"``, ``"tf32"``, ``"fp16"`` or ``"bf16"``.
        shapes: of the parameters; None if unknown (a deep network is then assumed).
        step: number of updates before it, from 0.
    """
    weights = [shape for shape in shapes or () if len(shape) >= 2]
    layers = layers_of(shapes) or _LAYERS
    fan_in = sum(math.prod(shape[1:]) for shape in weights) or _FAN_IN
    delta = _delta(precision, layers, fan_in)
    first = min(math.sqrt(layers * delta), _NO_MORE)
    grown = first * _GROWTH**step
    known = grown <= _NO_MORE
    bounded = min(grown, _NO_MORE)
    norm = _SAFETY * delta + _NORM_SHARE * bounded * max(step, 1)
    of_one = _ONE_OF_MANY * bounded
    return Tolerance(
        loss=_SAFETY * delta,
        loss_moved=0.0 if step == 0 else min(first * _GROWTH ** (step - 1), _NO_MORE),
        norm=norm,
        direction=bounded if known else None,
        one_norm=min(_ONE_OF_MANY * norm, _MOST_OF_ONE_NORM),
        one_direction=of_one if of_one <= _NO_MORE else None,
        weights=_SAFETY * delta,
    )


def _delta(precision: str, layers: int, fan_in: int) -> float:
    unit = UNIT_ROUNDOFF[precision]
    sums = min(unit, UNIT_ROUNDOFF["fp32"]) * math.sqrt(2 * fan_in)
    return sums if precision in ("fp32", "fp64") else sums + unit * math.sqrt(2 * layers)


def layers_of(shapes: Sequence[Sequence[int]] | None) -> int:
    """Number of parameters that multiply: matrices and filters; 0 if unknown."""
    return sum(len(shape) >= 2 for shape in shapes or ())
