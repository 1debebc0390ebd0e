"""Does a change preserve the result? Compares losses and gradients of the first steps.

An optimisation that changes what is learned is not an optimisation. But even correct programs do
not agree to the last bit: the order of summation or the number format differs, and training
amplifies small differences. So three questions come first: does the first program agree with itself
when run twice, what difference does the coarser number format explain, and up to which step can
anything be said? :func:`tolerances` has the rule and its sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.base.arguments import brief, check_whole
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.progress import Progress
from perfkit.base.words import fmt_count, fmt_deviation, plural
from perfkit.experiment.compare._judge import FIRST, SECOND, Checked, Compared, Judge
from perfkit.experiment.compare._tolerance import Tolerance, tolerances
from perfkit.experiment.compare._trials import Trial, Trials
from perfkit.experiment.process._fingerprint import FORMATS, STEPS, lowest
from perfkit.experiment.process.result import RunResult

__all__ = ["Checked", "SameResult", "Tolerance", "same_result", "tolerances"]

_OTHER_BATCH = 0.01


@dataclass(frozen=True)
class SameResult(Shown):
    """The result of :func:`same_result`: do the first steps of two programs agree?

    Attributes:
        same: True or False; None if it cannot be known, and ``sentence`` says why.
        sentence: the answer in words.
        precision: the coarser number format of the two.
        tolerance: relative tolerance of the first loss; the others follow from it.
        rule: how the tolerances are derived.
        first: what differs first, in the order in which a step computes; None if nothing differs.
        losses: the comparison of the loss of each step.
        gradients: for each step, the comparison of all gradients together and of the parameter that
            differs most.
        own_noise: the largest difference between two runs of the first program, over its tolerance;
            None if nothing ran twice.
        n_steps: number of steps that could be compared.
        warnings: reasons to doubt the answer.
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


def same_result(
    a: Callable[[], Any] | RunResult | Sequence[RunResult],
    b: Callable[[], Any] | RunResult | Sequence[RunResult],
    *,
    precision: Any = None,
    seed: int = 0,
) -> SameResult:
    """Compare losses and gradients of the first steps of two programs.

    A program is a function without arguments that trains one or a few steps, or one or more runs of
    a workload in a session. The function returns the loss, or a list of losses (one per step), or
    ``(loss, model)`` with the gradients in the model (or in a list of parameters), or it is a
    generator that yields one loss per step. If it uses an optimizer, the gradients are recorded at
    each optimizer step. Build the model inside the function: it is called two or three times with
    the same seed and must start fresh each time. Afterwards the random state is restored, and the
    gradients of a returned model are cleared.

    Runs must yield a loss, or step an optimizer during their warm-up. Pass two runs of each:
    with one, a difference may be the workload's own randomness, and the answer is "unknown".

    Args:
        a, b: the program before and after the change.
        precision: the number format that sets the tolerance (``"fp64"``, ``"fp32"``,
            ``"tf32"``, ``"fp16"``, ``"bf16"`` or a ``torch.dtype``); by default the coarser one of
            the two programs, from their parameters, autocast and settings.
        seed: seed of torch's, numpy's and Python's random numbers, for functions.

    Returns:
        A :class:`SameResult`: ``same`` (True, False or None for unknown), ``sentence``, ``first``,
        ``losses``, ``gradients``.

    Raises:
        UsageError: an argument is neither a function nor runs, or did not return losses.

    Example::

        >>> def train(foreach):
        ...     model = torch.nn.Linear(8, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         loss = model(torch.rand(16, 8)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         yield loss.item()
        >>> print(perfkit.same_result(lambda: train(False), lambda: train(True)))
    """
    wanted = None if precision is None else _format(precision)
    check_whole("seed", seed, 0, 2**32 - 1)
    with Progress("same_result", waits=True) as progress:
        return _same(a, b, wanted, seed, progress)


def _same(a: Any, b: Any, wanted: str | None, seed: int, progress: Progress) -> SameResult:
    n_calls = 2 * callable(a) + callable(b)
    calls = 0

    def telling(arm: Any) -> Any:
        """The same; if it is called, that is told before."""
        if not callable(arm):
            return arm

        def call() -> Any:
            nonlocal calls
            calls += 1
            progress.line(
                f"run {calls} of {max(n_calls, calls)}", share=(calls - 1) / max(n_calls, calls)
            )
            return arm()

        return call

    trials = Trials(telling(a), "a", seed), Trials(telling(b), "b", seed)
    found = wanted or lowest([t.precision for arm in trials for t in arm.first])
    first, second = (arm.first for arm in trials)
    shapes = next((t.prints.shapes for t in (*first, *second) if t.prints), None)
    judge = Judge(found, shapes)
    reason = _not_comparable(first, second)
    if reason:
        return _unknown(judge, reason)
    if callable(a):
        first.append(trials[0].again())
    steps = STEPS
    own: list[float] = []
    for name, arm in ((FIRST, first), (SECOND, second)):
        limit, noise, differs = judge.own_noise(arm, steps)
        if noise is not None:
            own.append(noise)
        if limit == 0 and differs is not None:
            return _unknown(judge, _unsteady(name, differs), own_noise=noise)
        steps = limit
    checked = judge.compare(first[0], second[0], steps)
    different = next((c for c in checked.all if not c.agrees), None)
    if different is not None and callable(b):
        second.append(trials[1].again())
        limit, noise, differs = judge.own_noise(second, steps)
        if noise is not None:
            own.append(noise)
        if differs is not None and limit <= different.step:
            return _unknown(judge, _unsteady(SECOND, differs), own_noise=noise)
    return _answer(
        judge, checked, different, max(own, default=None), steps, [len(first), len(second)]
    )


def _format(precision: Any) -> str:
    name = (precision if isinstance(precision, str) else brief(precision)).removeprefix("torch.")
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
            f"precision={brief(precision, 60)} is not valid: it is one of {', '.join(FORMATS)}, "
            "or a dtype"
        )
    return name


def _not_comparable(first: Sequence[Trial], second: Sequence[Trial]) -> str:
    """Why two arms cannot be compared at all; empty if they can."""
    for trial in (*first, *second):
        if trial.trouble:
            return f"{trial.trouble}, so there is nothing to compare"
    for name, arm in ((FIRST, first), (SECOND, second)):
        if not any(x is not None for x in arm[0].losses) and arm[0].prints is None:
            return (
                f"{name} reported no loss, and no optimizer stepped while it was watched: yield or "
                f"return the loss"
            )
    samples = first[0].samples, second[0].samples
    if samples[0] and samples[1] and abs(samples[0] / samples[1] - 1) > _OTHER_BATCH:
        return (
            f"a step takes {plural(samples[0], 'sample')} in {FIRST} and "
            f"{fmt_count(samples[1])} in {SECOND}, so their losses are of different data"
        )
    return ""


def _unknown(judge: Judge, reason: str, own_noise: float | None = None) -> SameResult:
    """The result if there is no answer."""
    return SameResult(
        same=None,
        sentence=f"Whether the result is the same is unknown: {reason}.",
        precision=judge.precision,
        tolerance=judge.allowed[0].loss,
        rule=judge.rule,
        own_noise=own_noise,
    )


def _answer(
    judge: Judge,
    checked: Compared,
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
        return _unknown(judge, "the two have nothing in common that could be compared", own_noise)
    same: bool | None = different is None
    if different is not None and own_noise is None:
        same = None
        sentence = (
            f"Whether the result is the same is unknown: the {_said(different)}, but each "
            f"ran only once, so this may be the workload's own randomness; run one of them "
            f"a second time."
        )
    elif different is not None:
        sentence = f"Not the same result: first the {_said(different)}{_cause(different)}."
        if min(runs) < 2:
            which = FIRST if runs[0] < 2 else SECOND
            warnings.append(f"{which} ran once: whether it agrees with itself is not known")
    else:
        sentence = f"Same result as far as {judge.precision} can tell: {_agreement(checked)}."
    return SameResult(
        same=same,
        sentence=sentence,
        precision=judge.precision,
        tolerance=judge.allowed[0].loss,
        rule=judge.rule,
        first=different,
        losses=checked.losses,
        gradients=checked.gradients,
        own_noise=own_noise,
        n_steps=len({c.step for c in (*checked.losses, *checked.gradients)}),
        warnings=tuple(warnings),
    )


def _unsteady(name: str, differs: Checked) -> str:
    return (
        f"{name} does not agree with itself: in two runs with the same seed its {_said(differs)}. "
        f"Seed what is random in it (augmentation in particular), and rebuild the model in "
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
    return fmt_deviation(share)


def _cause(c: Checked) -> str:
    """A possible cause of such a first difference."""
    if c.what.startswith("starting weights"):
        return ": a different seed, or a different order of building"
    if c.step == 0 and c.what == "loss":
        return ", before any update: different data, different random numbers, or a different loss"
    if c.step == 0 and c.what.startswith("norm"):
        return (
            " while the loss agrees: a different scale of the loss, or a gradient that is cut off"
        )
    if c.step == 0:
        return " while the loss agrees"
    return ", after an update: the optimizer, or gradients that were not cleared"


def _agreement(checked: Compared) -> str:
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
