"""Compares two runs: every loss and gradient that both have, against the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfkit.base.words import plural
from perfkit.experiment.compare._tolerance import UNIT_ROUNDOFF, layers_of, tolerances
from perfkit.experiment.compare._trials import Trial
from perfkit.experiment.process._fingerprint import STEPS, Fingerprint, Sketch, StepGradients

# A parameter with less than this share of the whole gradient is measured against the share: the
# gradient of a bias before batch norm is pure rounding.
_SHARE = 0.1
_TINY = 1e-300
_LARGEST_LOG = 700.0

#: The two programs, which the user may have called anything.
FIRST, SECOND = "the first", "the second"


@dataclass(frozen=True)
class Checked:
    """One comparison.

    Attributes:
        what: ``"loss"``, ``"gradient"``, ``"norm of the gradient"``, ``"starting weights"``, or
            one of these ``of`` a parameter.
        step: from 0.
        difference: relative difference; of a norm of the whole gradient relative to the smaller.
        tolerance: the relative difference that the precision allows.
    """

    what: str
    step: int
    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether rounding can explain the difference."""
        return self.difference <= self.tolerance

    @property
    def excess(self) -> float:
        """Difference over tolerance."""
        return self.difference / self.tolerance if self.tolerance else math.inf


@dataclass(frozen=True)
class Compared:
    """Everything that was compared, in the order in which a step computes it."""

    all: tuple[Checked, ...]
    losses: tuple[Checked, ...]
    gradients: tuple[Checked, ...]
    warnings: tuple[str, ...]


class Judge:
    """Compares trials within the tolerance of a precision."""

    def __init__(self, precision: str, shapes: Sequence[Sequence[int]] | None) -> None:
        self.precision = precision
        self.allowed = [tolerances(precision, shapes, step) for step in range(STEPS)]
        layers = layers_of(shapes)
        over = (
            plural(layers, "layer") if layers else "a deep network (assumed: no gradient was seen)"
        )
        self.rule = (
            f"{precision}'s unit roundoff {UNIT_ROUNDOFF[precision]:.1e} × √(roundings) over "
            f"{over}; Higham and Mary 2019; measured factors for ReLU and updates"
        )

    def own_noise(
        self, arm: Sequence[Trial], steps: int
    ) -> tuple[int, float | None, Checked | None]:
        """How many steps the arm agrees with itself, its largest excess, and what differs first."""
        noise: float | None = None
        differs: Checked | None = None
        for other in arm[1:]:
            checked = self.compare(arm[0], other, steps).all
            noise = max([noise or 0.0, *(c.excess for c in checked)])
            worse = next((c for c in checked if not c.agrees), None)
            if worse is not None and (differs is None or worse.step < differs.step):
                differs = worse
        return (steps if differs is None else differs.step), noise, differs

    def compare(self, a: Trial, b: Trial, steps: int) -> Compared:
        warnings: list[str] = []
        match = self._match(a.prints, b.prints, warnings)
        losses = {c.step: c for c in self._losses(a, b, steps, warnings)}
        gradients: dict[int, list[Checked]] = {}
        if match is not None and a.prints is not None and b.prints is not None:
            gradients = self._gradients(a.prints, b.prints, match, steps, warnings)
            order = self._weights(a.prints, b.prints, match)
        else:
            order = []
        for step in range(steps):
            order += [losses[step]] if step in losses else []
            order += gradients.get(step, [])
        return Compared(
            tuple(order),
            tuple(losses.values()),
            tuple(c for step in gradients.values() for c in step),
            tuple(warnings),
        )

    # --- parts ------------------------------------------------------------------------------

    @staticmethod
    def _match(
        a: Fingerprint | None, b: Fingerprint | None, warnings: list[str]
    ) -> dict[int, int] | None:
        """Map the parameters of b to those of a: by name, or by order if the shapes agree."""
        if a is None or b is None:
            missing = " and ".join(n for n, prints in ((FIRST, a), (SECOND, b)) if prints is None)
            warnings.append(f"no gradients of {missing}: the losses alone were compared")
            return None
        for prints in (a, b):
            if prints.trouble:
                warnings.append(prints.trouble)
        numbers = {name: number for number, name in enumerate(b.names)}
        if len(numbers) == len(b.names) == len(a.names) and set(numbers) == set(a.names):
            match = {number: numbers[name] for number, name in enumerate(a.names)}
        else:
            match = {number: number for number in range(len(a.names))}
        if len(a.names) == len(b.names) and all(
            a.shapes[i] == b.shapes[j] for i, j in match.items()
        ):
            return match
        warnings.append(
            f"the parameters are not the same ones ({len(a.names)} and {len(b.names)}, or other "
            f"shapes): the losses alone were compared"
        )
        return None

    def _weights(self, a: Fingerprint, b: Fingerprint, match: Mapping[int, int]) -> list[Checked]:
        allowed = self.allowed[0].weights
        worst = Checked("starting weights", 0, 0.0, allowed)
        for i, j in match.items():
            one, other = a.weights[i], b.weights[j]
            difference = _apart(one, other, max(one.norm, other.norm))
            if difference is not None and difference > worst.difference:
                worst = Checked(f"starting weights of {a.names[i]}", 0, difference, allowed)
        return [worst]

    def _losses(self, a: Trial, b: Trial, steps: int, warnings: list[str]) -> Iterator[Checked]:
        silent = [n for n, t in ((FIRST, a), (SECOND, b)) if all(x is None for x in t.losses)]
        if silent:
            warnings.append(
                f"{' and '.join(silent)} reported no loss: gradients alone were compared"
            )
            return
        moved, told = 0.0, False
        for step, (one, other) in enumerate(zip(a.losses[:steps], b.losses[:steps], strict=False)):
            x = math.nan if one is None else one
            y = math.nan if other is None else other
            if not math.isfinite(x) and not math.isfinite(y):
                # two runs that are both non-finite cannot be compared
                gone = f"at step {step + 1} neither loss is a finite number"
                if one is not None and other is not None and not told:
                    warnings.append(f"{gone}: such steps were not compared")
                    told = True
                continue
            scale = max(abs(x), abs(y), _TINY)
            starts = [t.losses[0] for t in (a, b)]
            for value, start in zip((x, y), starts, strict=True):
                if start is not None and math.isfinite(value):
                    moved = max(moved, abs(value - start) / scale)
            allowed = self.allowed[step]
            difference = 0.0 if x == y else abs(x - y) / scale
            if not math.isfinite(difference):
                difference = math.inf
            yield Checked("loss", step, difference, allowed.loss + allowed.loss_moved * moved)

    def _gradients(
        self,
        a: Fingerprint,
        b: Fingerprint,
        match: Mapping[int, int],
        steps: int,
        warnings: list[str],
    ) -> dict[int, list[Checked]]:
        ours = {(s.step, s.call): s for s in a.steps}
        theirs = {(s.step, s.call): s for s in b.steps}
        # from here the updates differ: a scaler skipped a step, or gradients accumulate
        common: list[tuple[int, int]] = []
        for key in sorted(ours | theirs):
            if key not in ours or key not in theirs:
                warnings.append(
                    f"at step {key[0] + 1} the optimizer stepped in {'a' if key in ours else 'b'} "
                    f"only: gradients were compared before it"
                )
                break
            common.append(key)
        found: dict[int, list[Checked]] = {}
        for key in common:
            step = key[0] + key[1]  # updates before it
            if step < steps:
                checks = self._one_step(ours[key], theirs[key], match, a.names, step)
                found.setdefault(step, []).extend(checks)
        return found

    def _one_step(
        self,
        ours: StepGradients,
        theirs: StepGradients,
        match: Mapping[int, int],
        names: Sequence[str],
        step: int,
    ) -> list[Checked]:
        allowed = self.allowed[step]
        pairs = [
            (names[i], gradient or _NOTHING, theirs.gradients.get(match[i]) or _NOTHING)
            for i, gradient in ours.gradients.items()
        ]
        whole = (
            math.sqrt(sum(one.norm**2 for _, one, _ in pairs)),
            math.sqrt(sum(other.norm**2 for _, _, other in pairs)),
        )
        floor = _SHARE * max(whole)
        if not all(map(math.isfinite, whole)):
            if not any(map(math.isfinite, whole)):
                return []
            return [Checked("norm of the gradient", step, math.inf, _above(allowed.norm))]
        everything = [
            Checked("norm of the gradient", step, _larger_by(*whole), _above(allowed.norm))
        ]
        apart = [_apart(one, other, 1.0) for _, one, other in pairs]
        if allowed.direction is not None and None not in apart:
            far = math.sqrt(sum((x or 0.0) ** 2 for x in apart)) / max(*whole, _TINY)
            everything.append(Checked("gradient", step, far, allowed.direction))
        singles: list[Checked] = []
        for (name, one, other), distance in zip(pairs, apart, strict=True):
            scale = max(one.norm, other.norm, floor, _TINY)
            norm = abs(one.norm - other.norm) / scale
            singles.append(Checked(f"norm of the gradient of {name}", step, norm, allowed.one_norm))
            if allowed.one_direction is not None and distance is not None:
                singles.append(
                    Checked(f"gradient of {name}", step, distance / scale, allowed.one_direction)
                )
        singles.sort(key=lambda c: c.excess, reverse=True)
        wrong = {c.what.rpartition(" of ")[2] for c in singles if not c.agrees}
        # if most parameters differ, report the whole gradient, else the parameter
        few = 0 < len(wrong) <= len(pairs) / 2
        return [*singles[:1], *everything] if few else [*everything, *singles[:1]]


_NOTHING = Sketch(0.0, ())


def _apart(one: Sketch, other: Sketch, scale: float) -> float | None:
    """Estimated norm of the difference over ``scale``; None if it cannot be estimated.

    The mean square of the projections' differences estimates its square; the difference of the
    norms is a lower bound.
    """
    if not one.projections and not other.projections and (one.norm or other.norm):
        return None  # both sparse
    n = len(one.projections) or len(other.projections)
    if not n:
        return 0.0
    ours = one.projections or (0.0,) * n if one.norm == 0 else one.projections
    others = other.projections or (0.0,) * n if other.norm == 0 else other.projections
    if len(ours) != len(others):
        return None
    square = sum((p - q) ** 2 for p, q in zip(ours, others, strict=True)) / n
    return max(math.sqrt(square), abs(one.norm - other.norm)) / max(scale, _TINY)


def _larger_by(a: float, b: float) -> float:
    """By which share the larger is above the smaller: 15 if it is 16 times as large."""
    if a == b:
        return 0.0
    return max(a, b) / min(a, b) - 1 if a > 0 and b > 0 else math.inf


def _above(log: float) -> float:
    """A logarithm of a ratio as the share by which it is above 1."""
    return math.expm1(min(log, _LARGEST_LOG))
