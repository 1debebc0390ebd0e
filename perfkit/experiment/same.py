"""Does a change leave the result as it was? Losses and gradients of the first steps, compared.

An optimisation that changes what is learned is no optimisation. But two correct programs do not
agree to the last bit either: another order of summing, another number format, and training
multiplies small differences. So three questions come before the answer: does the first program
agree with itself when it runs twice; what difference does the coarser number format excuse; and
up to which step can anything be said. :func:`tolerances` has the rule and its sources.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from perfkit._display import Shown
from perfkit.errors import UsageError
from perfkit.experiment._fingerprint import (
    FORMATS,
    STEPS,
    Fingerprint,
    Sketch,
    StepGradients,
    Watch,
    lowest,
)
from perfkit.experiment.result import RunResult

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Checked", "SameResult", "Tolerance", "same_result", "tolerances"]

# Half the distance between neighbouring numbers, relative: 2**-(digits + 1).
_UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
# Where no gradient tells how deep the network is: that of a ResNet-101.
_LAYERS, _FAN_IN = 100, 100_000
# What one optimizer step makes of a difference of gradients: measured on ResNets with batch
# norm (25 to 70 times at a learning rate of 0.1); transformers and MLPs stay near 1 to 3.
_GROWTH = 30.0
# Two gradients that have nothing in common differ by the square root of 2 of their norm.
_NO_MORE = 1.0
# Of a parameter against all: the worst of many parameters differs up to 4 times as much.
_ONE_OF_MANY = 3.0
_MOST_OF_ONE_NORM = 0.7
# Norms differ much less than directions: 1 to 10 % of that was measured, rarely 30 %.
_NORM_SHARE = 0.25
# A parameter with less than this share of the whole gradient is measured against the share:
# the gradient of a bias before batch norm is nothing but rounding.
_SHARE = 0.1
_SAFETY = 2.0
_TINY = 1e-300
_OTHER_BATCH = 0.01


@dataclass(frozen=True)
class Tolerance:
    """What rounding alone may make of two runs, at one step; relative figures.

    Attributes:
        loss: before what the updates add (``loss_moved`` times how far the loss has moved).
        loss_moved: share of the losses' own movement since the first step.
        norm: of the whole gradient's norm, as a logarithm.
        direction: norm of the difference of the whole gradients; None where a step multiplies
            rounding beyond everything, so that nothing can be said.
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


@dataclass(frozen=True)
class Checked:
    """One thing that was compared.

    Attributes:
        what: ``"loss"``, ``"gradient"``, ``"norm of the gradient"``, ``"starting weights"``, or
            one of these ``of`` a parameter.
        step: from 0.
        difference: relative.
        tolerance: what the precision allows.
    """

    what: str
    step: int
    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether rounding may explain it."""
        return self.difference <= self.tolerance

    @property
    def excess(self) -> float:
        """Difference over tolerance."""
        return self.difference / self.tolerance if self.tolerance else math.inf

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; an infinite difference has no JSON form and is None."""
        return {
            "what": self.what,
            "step": self.step,
            "difference": self.difference if math.isfinite(self.difference) else None,
            "tolerance": self.tolerance,
        }


@dataclass(frozen=True)
class SameResult(Shown):
    """Whether two programs compute the same, as far as the first steps tell.

    Attributes:
        same: None where it cannot be known; the reason stands in ``sentence``.
        sentence: the answer in words.
        precision: the coarser number format of the two.
        tolerance: relative, of the first loss; those of the rest follow from it.
        rule: where the tolerances come from.
        first: what differs first, in the order in which a step computes; None where nothing.
        losses: the comparison of each step's loss.
        gradients: of each step: all gradients together, and the parameter that differs most.
        own_noise: the largest difference of the first's two runs, over what is allowed; None
            where nothing ran twice.
        n_steps: how many steps could be compared.
        warnings: what makes the answer doubtful.
    """

    same: bool | None
    sentence: str
    precision: str
    tolerance: float
    rule: str
    first: Checked | None = None
    losses: tuple[Checked, ...] = ()
    gradients: tuple[Checked, ...] = ()
    own_noise: float | None = None
    n_steps: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        own = self.own_noise
        return {
            "same": self.same,
            "sentence": self.sentence,
            "precision": self.precision,
            "tolerance": self.tolerance,
            "rule": self.rule,
            "first": self.first.to_dict() if self.first else None,
            "losses": [one.to_dict() for one in self.losses],
            "gradients": [one.to_dict() for one in self.gradients],
            "own_noise": own if own is None or math.isfinite(own) else None,
            "n_steps": self.n_steps,
            "warnings": list(self.warnings),
        }


def same_result(
    a: Callable[[], Any] | RunResult | Sequence[RunResult],
    b: Callable[[], Any] | RunResult | Sequence[RunResult],
    *,
    precision: Any = None,
    seed: int = 0,
) -> SameResult:
    """Compare losses and gradients of the first steps of two programs.

    A program is a function without arguments that trains a step or a few, or the run or runs of
    a workload in a session. The function returns the loss; or the losses, one a step; or
    ``(loss, model)`` with the gradients in the model (or a list of parameters); or it is a
    generator that yields a loss a step. Where it uses an optimizer, the gradients are caught at
    each of its steps. It must begin anew each time, so build the model in it: it is called
    two or three times with the same seed. Random numbers are put back afterwards, and the
    gradients of a model that it returns are cleared.

    Runs need a loss that is yielded, or an optimizer's step while they warm up. Give two runs
    of each, or the answer to a difference is "cannot tell": it may be the workload's own.

    Args:
        a, b: the program before the change, and after it.
        precision: the number format that decides what is allowed (``"fp64"``, ``"fp32"``,
            ``"tf32"``, ``"fp16"``, ``"bf16"`` or a ``torch.dtype``); by default the coarser of
            the two programs', seen in their parameters, autocast and settings.
        seed: of torch's, numpy's and Python's random numbers for functions.

    Raises:
        UsageError: one of the two is neither, or returned something else than losses.
    """
    wanted = None if precision is None else _format(precision)
    trials = _Trials(a, "a", seed), _Trials(b, "b", seed)
    found = wanted or lowest([t.precision for arm in trials for t in arm.first])
    first, second = (arm.first for arm in trials)
    shapes = next((t.prints.shapes for t in (*first, *second) if t.prints), None)
    judge = _Judge(found, shapes)
    reason = _not_comparable(first, second)
    if reason:
        return judge.unknown(reason)
    if callable(a):
        first.append(trials[0].again())
    steps = STEPS
    own: list[float] = []
    for name, arm in (("a", first), ("b", second)):
        limit, noise, differs = judge.own_noise(arm, steps)
        if noise is not None:
            own.append(noise)
        if limit == 0 and differs is not None:
            return judge.unknown(_unsteady(name, differs), own_noise=noise)
        steps = limit
    checked = judge.compare(first[0], second[0], steps)
    different = next((c for c in checked.all if not c.agrees), None)
    if different is not None and callable(b):
        second.append(trials[1].again())
        limit, noise, differs = judge.own_noise(second, steps)
        if noise is not None:
            own.append(noise)
        if differs is not None and limit <= different.step:
            return judge.unknown(_unsteady("b", differs), own_noise=noise)
    return judge.answer(
        checked, different, max(own, default=None), steps, [len(first), len(second)]
    )


@dataclass(frozen=True)
class _Trial:
    """One run of one arm."""

    losses: Sequence[float | None]
    prints: Fingerprint | None
    precision: str
    samples: float | None = None
    trouble: str = ""


class _Trials:
    """The runs of one arm; functions are called when another is needed."""

    def __init__(self, arm: Any, name: str, seed: int) -> None:
        self._arm = arm
        self._name = name
        self._seed = seed
        self.first: list[_Trial]
        if isinstance(arm, RunResult):
            self.first = [_of_run(arm)]
        elif isinstance(arm, Sequence) and arm and all(isinstance(x, RunResult) for x in arm):
            self.first = [_of_run(run) for run in arm]
        elif callable(arm):
            self.first = [self.again()]
        else:
            raise UsageError(
                f"{name} is {type(arm).__name__}: same_result compares functions that return a "
                f"loss, or runs of a session"
            )

    def again(self) -> _Trial:
        with _seeded(self._seed), Watch(STEPS, names_at_once=True) as watch:
            losses, parameters = _called(self._arm, watch, self._name)
        prints = watch.found()
        if prints is None and parameters:
            reader = Watch()
            reader.read(parameters)
            read = reader.found()
            if read is not None and any(g is not None for g in read.steps[0].gradients.values()):
                prints = read
        for parameter in parameters:
            parameter.grad = None
        formats = {prints.precision} if prints else {"fp32"}
        return _Trial(losses, prints, lowest(formats | watch.formats))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The same random numbers for each call, and the caller's own afterwards."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _called(
    function: Callable[[], Any], watch: Watch, name: str
) -> tuple[list[float | None], list[Any]]:
    """The losses of one call and the parameters that it returned."""
    from perfkit.experiment.worker import as_float, told

    result = function()
    losses: list[float | None] = []
    if isinstance(result, Iterator):
        for value in islice(result, STEPS):
            loss = told(value)[1]
            losses.append(None if loss is None else as_float(loss))
            watch.after_step()
        close = getattr(result, "close", None)
        if close is not None:
            close()
        return losses, []
    parameters: list[Any] = []
    if isinstance(result, tuple) and len(result) == 2:
        found = _parameters(result[1])
        if found is not None:
            result, parameters = result[0], found
    losses += _losses(result, name)[:STEPS]
    return losses, parameters


def _losses(result: Any, name: str) -> list[float]:
    import numpy as np

    detach = getattr(result, "detach", None)
    if detach is not None:
        result = detach().double().cpu().numpy()
    elif isinstance(result, list | tuple):
        result = [float(x) if _is_number(x) else math.nan for x in result]
    try:
        losses = np.asarray(result, dtype=np.float64)
    except (TypeError, ValueError):
        losses = np.empty((0, 0, 0))
    if losses.ndim > 1 or (losses.ndim == 1 and not losses.size):
        raise UsageError(
            f"{name} returned {type(result).__name__}: return the loss, the losses of the steps, "
            f"or (loss, model)"
        )
    return [float(x) for x in np.atleast_1d(losses)]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _parameters(value: Any) -> list[Tensor] | None:
    """Of a module, or the tensors of a list or generator of them; None for anything else."""
    from torch import Tensor
    from torch.nn import Module

    if isinstance(value, Module):
        return list(value.parameters())
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Iterator | list | tuple):
        found = list(value)
        if found and all(isinstance(p, Tensor) and p.requires_grad and p.is_leaf for p in found):
            return found
    return None


def _of_run(run: RunResult) -> _Trial:
    losses = [None if math.isnan(x) else float(x) for x in run.loss[:STEPS]]
    if len(run.index) > 1 and run.index[1] != 1:
        losses = []  # a long run out of a store: its curve holds averages of neighbours
    prints = run.gradients
    formats = {prints.precision} if prints else set()
    set_to = run.values.get("precision")
    if set_to in FORMATS:
        formats.add(set_to)
    trouble = ""
    if not run.ok:
        trouble = f"run {run.run_id} {run.state}" + (f" ({run.message})" if run.message else "")
    return _Trial(losses, prints, lowest(formats), run.samples_per_step, trouble)


def _format(precision: Any) -> str:
    name = str(precision).removeprefix("torch.")
    name = {
        "float64": "fp64",
        "double": "fp64",
        "float32": "fp32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
    }.get(name, name)
    if name not in FORMATS:
        raise UsageError(
            f"precision={precision!r:.60} cannot be: it is one of {', '.join(FORMATS)}, or a dtype"
        )
    return name


def _not_comparable(first: Sequence[_Trial], second: Sequence[_Trial]) -> str:
    """Why two arms cannot be compared at all; empty where they can."""
    for trial in (*first, *second):
        if trial.trouble:
            return f"{trial.trouble}, so there is nothing to compare"
    for name, arm in (("a", first), ("b", second)):
        if not any(x is not None for x in arm[0].losses) and arm[0].prints is None:
            return (
                f"{name} told no loss, and no optimizer stepped while it was watched: yield or "
                f"return the loss"
            )
    samples = first[0].samples, second[0].samples
    if samples[0] and samples[1] and abs(samples[0] / samples[1] - 1) > _OTHER_BATCH:
        return (
            f"a step takes {samples[0]:.4g} samples in a and {samples[1]:.4g} in b, so their "
            f"losses are of other data"
        )
    return ""


def _unsteady(name: str, differs: Checked) -> str:
    return (
        f"{name} does not agree with itself: in two runs with the same seed its {_said(differs)}. "
        f"Seed what is random in it (augmentation in particular), and build the model anew in "
        f"each run"
    )


def _said(c: Checked) -> str:
    """``loss of step 2 differs by 12 % (rounding explains 0.3 %)``."""
    when = "" if c.what.startswith("starting weights") else f" of step {c.step + 1}"
    verb = "differ" if c.what.startswith("starting weights") else "differs"
    return (
        f"{c.what}{when} {verb} by {_percent(c.difference)} (rounding explains "
        f"{_percent(c.tolerance)})"
    )


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "more than any number"
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def tolerances(precision: str, shapes: Sequence[Sequence[int]] | None, step: int) -> Tolerance:
    """What rounding in this number format may make of the first steps of this network.

    With n independent roundings to a format of unit roundoff u, a result is off by a few times
    √n · u (Higham and Mary 2019, A New Approach to Probabilistic Rounding Error Analysis). The
    formats of 16 and 19 bits are rounded to once at each layer, forward and backward: n = 2 ·
    layers, plus float32's share, whose n is the length of all sums, 2 · Σ fan-in. Call that δ.

    * **loss**: 2 δ; and after updates, the gradients' difference times how far the loss moved.
    * **direction** of the gradient: √(layers · δ), because δ is also the share of a layer's
      activations that may cross the kink of a ReLU, each of which switches terms of the gradient
      off or on; then 30 times more with each update (measured on ResNets with batch norm), and
      None where that passes 1, at which point gradients have nothing in common any more.
    * **norm** of the gradient: 2 δ and a quarter of that, which is what tells a wrong scale or a
      forgotten ``zero_grad`` in 16 bits, too. Measured: 1 to 10 %, rarely 30 % of it.

    The factors 2, 30 and ¼ were chosen on small ResNets, transformers and MLPs with SGD and
    AdamW, where correct pairs stayed below all of them (``tests/experiment/test_same.py``).

    Args:
        precision: ``"fp64"``, ``"fp32"``, ``"tf32"``, ``"fp16"`` or ``"bf16"``.
        shapes: of the parameters; None where they are not known (a deep network is assumed).
        step: from 0: how many updates came before.
    """
    weights = [shape for shape in shapes or () if len(shape) >= 2]
    layers = len(weights) or _LAYERS
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
        one_direction=of_one if known and of_one <= _NO_MORE else None,
        weights=_SAFETY * delta,
    )


def _delta(precision: str, layers: int, fan_in: int) -> float:
    unit = _UNIT_ROUNDOFF[precision]
    sums = min(unit, _UNIT_ROUNDOFF["fp32"]) * math.sqrt(2 * fan_in)
    return sums if precision in ("fp32", "fp64") else sums + unit * math.sqrt(2 * layers)


@dataclass(frozen=True)
class _Compared:
    """Everything that was compared, in the order in which a step computes it."""

    all: tuple[Checked, ...]
    losses: tuple[Checked, ...]
    gradients: tuple[Checked, ...]
    warnings: tuple[str, ...]


class _Judge:
    """Compares trials to what a precision allows."""

    def __init__(self, precision: str, shapes: Sequence[Sequence[int]] | None) -> None:
        self._precision = precision
        self._allowed = [tolerances(precision, shapes, step) for step in range(STEPS)]
        weights = [shape for shape in shapes or () if len(shape) >= 2]
        layers = len(weights) or _LAYERS
        known = "" if weights else " (assumed: no gradient was seen)"
        self._rule = (
            f"{precision}'s unit roundoff {_UNIT_ROUNDOFF[precision]:.1e} × √(roundings) over "
            f"{layers} layers{known}; Higham and Mary 2019; measured factors for ReLU and updates"
        )

    def own_noise(
        self, arm: Sequence[_Trial], steps: int
    ) -> tuple[int, float | None, Checked | None]:
        """Steps up to which the arm agrees with itself, its largest excess, what differs first."""
        noise: float | None = None
        differs: Checked | None = None
        for other in arm[1:]:
            checked = self.compare(arm[0], other, steps).all
            noise = max([noise or 0.0, *(c.excess for c in checked)])
            worse = next((c for c in checked if not c.agrees), None)
            if worse is not None and (differs is None or worse.step < differs.step):
                differs = worse
        return (steps if differs is None else differs.step), noise, differs

    def compare(self, a: _Trial, b: _Trial, steps: int) -> _Compared:
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
        return _Compared(
            tuple(order),
            tuple(losses.values()),
            tuple(c for step in gradients.values() for c in step),
            tuple(warnings),
        )

    def unknown(self, reason: str, own_noise: float | None = None) -> SameResult:
        """The answer where there is none."""
        return SameResult(
            same=None,
            sentence=f"Whether the result is the same cannot be told: {reason}.",
            precision=self._precision,
            tolerance=self._allowed[0].loss,
            rule=self._rule,
            own_noise=own_noise,
        )

    def answer(
        self,
        checked: _Compared,
        different: Checked | None,
        own_noise: float | None,
        steps: int,
        runs: Sequence[int],
    ) -> SameResult:
        warnings = list(checked.warnings)
        if steps < STEPS:
            warnings.append(
                f"the program agrees with itself for {steps} step{'s' * (steps != 1)} only, then "
                f"its own noise has grown too large: later ones were not compared"
            )
        if not checked.losses and not checked.gradients:
            return self.unknown("the two have nothing in common that could be compared", own_noise)
        same: bool | None = different is None
        if different is not None and own_noise is None:
            same = None
            sentence = (
                f"Whether the result is the same cannot be told: the {_said(different)}, but each "
                f"ran only once, so this may be the workload's own randomness; run one of them "
                f"a second time."
            )
        elif different is not None:
            sentence = f"Not the same result: first the {_said(different)}{_cause(different)}."
            if min(runs) < 2:
                which = "a" if runs[0] < 2 else "b"
                warnings.append(f"{which} ran once: whether it agrees with itself is not known")
        else:
            sentence = f"Same result as far as {self._precision} tells: {_agreement(checked)}."
        return SameResult(
            same=same,
            sentence=sentence,
            precision=self._precision,
            tolerance=self._allowed[0].loss,
            rule=self._rule,
            first=different,
            losses=checked.losses,
            gradients=checked.gradients,
            own_noise=own_noise,
            n_steps=len({c.step for c in (*checked.losses, *checked.gradients)}),
            warnings=tuple(warnings),
        )

    # --- parts ------------------------------------------------------------------------------

    @staticmethod
    def _match(
        a: Fingerprint | None, b: Fingerprint | None, warnings: list[str]
    ) -> dict[int, int] | None:
        """Which parameter of b is which of a: by name, or in order where the shapes agree."""
        if a is None or b is None:
            missing = " and ".join(n for n, prints in (("a", a), ("b", b)) if prints is None)
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
        allowed = self._allowed[0].weights
        worst = Checked("starting weights", 0, 0.0, allowed)
        for i, j in match.items():
            one, other = a.weights[i], b.weights[j]
            difference = _apart(one, other, max(one.norm, other.norm))
            if difference is not None and difference > worst.difference:
                worst = Checked(f"starting weights of {a.names[i]}", 0, difference, allowed)
        return [worst]

    def _losses(self, a: _Trial, b: _Trial, steps: int, warnings: list[str]) -> Iterator[Checked]:
        silent = [n for n, t in (("a", a), ("b", b)) if all(x is None for x in t.losses)]
        if silent:
            warnings.append(f"{' and '.join(silent)} told no loss: gradients alone were compared")
            return
        moved = 0.0
        for step, (one, other) in enumerate(zip(a.losses[:steps], b.losses[:steps], strict=False)):
            x = math.nan if one is None else one
            y = math.nan if other is None else other
            if math.isnan(x) and math.isnan(y):
                continue
            scale = max(abs(x), abs(y), _TINY)
            starts = [t.losses[0] for t in (a, b)]
            for value, start in zip((x, y), starts, strict=True):
                if start is not None and math.isfinite(value):
                    moved = max(moved, abs(value - start) / scale)
            allowed = self._allowed[step]
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
        # a scaler that skips a step, accumulation: from there on other updates were made
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
        allowed = self._allowed[step]
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
            return [Checked("norm of the gradient", step, math.inf, allowed.norm)]
        everything = [Checked("norm of the gradient", step, _log_apart(*whole), allowed.norm)]
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
        # where most are off, the whole is the news; else the parameter is
        few = 0 < len(wrong) <= len(pairs) / 2
        return [*singles[:1], *everything] if few else [*everything, *singles[:1]]


_NOTHING = Sketch(0.0, ())


def _apart(one: Sketch, other: Sketch, scale: float) -> float | None:
    """Estimated norm of the difference over ``scale``; None where it cannot be had.

    The mean square of the projections' differences estimates its square; the norms' difference
    is a lower bound.
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


def _log_apart(a: float, b: float) -> float:
    if a == b:
        return 0.0
    return abs(math.log(a / b)) if a > 0 and b > 0 else math.inf


def _cause(c: Checked) -> str:
    """What such a first difference may come from."""
    if c.what.startswith("starting weights"):
        return ": another seed, or another order of building"
    if c.step == 0 and c.what == "loss":
        return ", before any update: other data, other random numbers, or another loss"
    if c.step == 0 and c.what.startswith("norm"):
        return " while the loss agrees: another scale of the loss, or a gradient that is cut off"
    if c.step == 0:
        return " while the loss agrees"
    return ", after an update: the optimizer, or gradients that were not cleared"


def _agreement(checked: _Compared) -> str:
    parts = []
    if checked.losses:
        worst = max(checked.losses, key=lambda c: c.excess)
        n = len(checked.losses)
        which = "the loss" if n == 1 else f"the losses of {n} steps"
        parts.append(
            f"{which} differ{'s' * (n == 1)} by at most {_percent(worst.difference)} (rounding "
            f"explains {_percent(worst.tolerance)})"
        )
    if checked.gradients:
        worst = max(checked.gradients, key=lambda c: c.excess)
        n = len({c.step for c in checked.gradients})
        parts.append(
            f"of the gradients of {n} step{'s' * (n != 1)} the {worst.what} is "
            f"{_percent(worst.difference)} apart ({_percent(worst.tolerance)})"
        )
    return "; ".join(parts)
