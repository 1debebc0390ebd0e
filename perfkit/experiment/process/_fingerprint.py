"""Gradients of the first steps, as a few numbers per parameter: norm and random projections.

:class:`Watch` records them just before each optimizer step, through torch's global pre-step hook,
for the first steps only. It costs a few passes over the gradients; afterwards hook and wrapper are
removed and it costs nothing.

A projection is the sum of the elements with random signs. The mean square of the difference of two
gradients' projections is the squared norm of their difference, so a few projections show how far
apart two gradients are without sending either (Alon, Matias and Szegedy 1996). Each sign is the
product of a row's and a column's sign: pairwise independent, which is enough, and cheap for any
size.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from perfkit.base.device import is_capturing, of
from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.stand_in import Calls, Listeners, stand_in
from perfkit.base.structs import as_struct

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Steps whose gradients are recorded.
STEPS = 3
_PROJECTIONS = 3
# Most optimizer steps to record: one function may make thousands in one call.
_MOST_CALLS = 12
# Elements converted to double precision at a time: 2 MiB.
_AT_ONCE = 2**18
_LONGEST_NAME = 120
# Wrappers (torch.compile, DataParallel) put these in front of a parameter's name.
_WRAPPERS = ("_orig_mod.", "module.")
#: Number formats from the finest to the coarsest.
FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16")


class Sketch(NamedTuple):
    """One tensor in a few numbers.

    ``norm`` is the Euclidean norm; ``projections`` is empty for a sparse gradient, whose elements
    have no fixed order.
    """

    norm: float
    projections: tuple[float, ...]


@dataclass(frozen=True)
class StepGradients:
    """The gradients used by one optimizer step.

    Attributes:
        step: index of the workload's step (its ``yield``), from 0.
        call: index of the optimizer step within it, from 0.
        optimizer: name of its class.
        gradients: parameter index → sketch; None if the parameter had no gradient.
    """

    step: int
    call: int
    optimizer: str
    gradients: Mapping[int, Sketch | None]


@dataclass(frozen=True)
class Fingerprint:
    """Gradients and starting weights of the first steps of one run.

    Attributes:
        names: of the parameters; ``"parameter 3"`` if it belongs to no module.
        shapes: of the parameters.
        weights: a sketch of each parameter before its first update.
        steps: in order.
        precision: the coarsest number format seen: ``"fp64"``, ``"fp32"``, ``"tf32"``,
            ``"fp16"`` or ``"bf16"``.
        trouble: why something is missing; empty if nothing is.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    weights: tuple[Sketch, ...]
    steps: tuple[StepGradients, ...]
    precision: str
    trouble: str = ""

    def to_dict(self) -> dict[str, Any]:
        """This fingerprint as plain JSON types; :meth:`from_dict` reads it back."""
        return {
            "names": list(self.names),
            "shapes": [list(shape) for shape in self.shapes],
            "weights": [_flat(sketch) for sketch in self.weights],
            "steps": [
                {
                    "step": step.step,
                    "call": step.call,
                    "optimizer": step.optimizer,
                    "parameters": list(step.gradients),
                    "gradients": [_flat(sketch) for sketch in step.gradients.values()],
                }
                for step in self.steps
            ],
            "precision": self.precision,
            "trouble": self.trouble,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fingerprint:
        """Read what :meth:`to_dict` wrote.

        Raises:
            UsageError: ``data`` is not a fingerprint.
        """
        try:
            return as_struct(data, SavedFingerprint).fingerprint()
        except ValueError as error:
            raise UsageError(f"this is not a fingerprint of gradients: {error}") from None


_Numbers = Annotated[list[float | None], Meta(min_length=1)]  # norm, projections; None for NaN
_Index = Annotated[int, Meta(ge=0)]


class _SavedStep(Struct):
    step: _Index
    call: _Index
    optimizer: str
    parameters: list[_Index]
    gradients: list[_Numbers | None]


class SavedFingerprint(Struct):
    """A fingerprint as :meth:`Fingerprint.to_dict` writes it."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    weights: list[_Numbers]
    steps: list[_SavedStep]
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16"]
    trouble: str = ""

    def __post_init__(self) -> None:
        n = len(self.names)
        if not n == len(self.weights) == len(self.shapes):
            raise ValueError(
                f"{n} names, {len(self.weights)} weights and {len(self.shapes)} shapes"
            )
        for one in self.steps:
            if len(one.parameters) != len(one.gradients) or max(one.parameters, default=-1) >= n:
                raise ValueError(f"the gradients of step {one.step} are not of its parameters")

    def fingerprint(self) -> Fingerprint:
        """The same with sketches."""
        return Fingerprint(
            self.names,
            self.shapes,
            tuple(_sketch(numbers) for numbers in self.weights),
            tuple(
                StepGradients(
                    one.step,
                    one.call,
                    one.optimizer,
                    {
                        number: None if numbers is None else _sketch(numbers)
                        for number, numbers in zip(one.parameters, one.gradients, strict=True)
                    },
                )
                for one in self.steps
            ),
            self.precision,
            self.trouble,
        )


class Watch:
    """Records the gradients of the first steps; a context manager.

    Call :meth:`after_step` at the end of each step. It returns whether that was the last watched
    step; hook and wrapper are then removed. Errors in here never reach the training: the
    fingerprint reports them.

    Args:
        steps: number of steps to watch; 0 watches nothing.
        names_at_once: look up the parameters' names at the first step, because the model may be
            gone when :meth:`found` is called; otherwise :meth:`found` looks them up.
    """

    def __init__(self, steps: int = STEPS, *, names_at_once: bool = False) -> None:
        self._left = steps
        self._names_at_once = names_at_once
        self._names: list[str] = []
        self._step = 0
        self._call = 0
        self._undo: list[Callable[[], None]] = []
        self._parameters: list[Tensor] = []  # kept alive, so that ids are not reused
        self._number: dict[int, int] = {}
        self._weights: list[Sketch] = []
        self._steps: list[StepGradients] = []
        self._formats: set[str] = set()
        self._trouble = ""

    @property
    def formats(self) -> frozenset[str]:
        """Number formats with which autocast was entered."""
        return frozenset(self._formats)

    def __enter__(self) -> Watch:
        if self._left > 0:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._undo.append(register_optimizer_step_pre_hook(self._before_step).remove)
            self._undo.append(_watch_autocast(self._formats.add))
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def after_step(self) -> bool:
        """Note the end of a step; return whether it was the last watched one."""
        self._step += 1
        self._call = 0
        if not self._undo or self._step < self._left:
            return False
        self._stop()
        return True

    def found(self) -> Fingerprint | None:
        """What was recorded; None if no optimizer stepped. Releases the parameters."""
        if not self._steps and not self._trouble:
            return None
        parameters, self._parameters = self._parameters, []
        names = self._names if self._names_at_once else _names(parameters)
        return Fingerprint(
            names=tuple(names),
            shapes=tuple(tuple(p.shape) for p in parameters),
            weights=tuple(self._weights),
            steps=tuple(self._steps),
            precision=lowest(self._formats | {_format_of(p) for p in parameters}),
            trouble=self._trouble,
        )

    def read(self, parameters: Sequence[Tensor]) -> None:
        """Record the current gradients, for a step without an optimizer."""
        self._take(parameters, "none", 1.0)

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or is_capturing():
            return  # the optimizer's step is being compiled or captured: nothing to read
        try:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            # a fused optimizer divides by the scaler's factor by itself
            scale = getattr(optimizer, "grad_scale", None)
            factor = 1.0 if scale is None else 1.0 / float(scale)
            self._take(parameters, type(optimizer).__name__, factor)
        except Exception as error:
            self._trouble = printable(f"gradients could not be read: {error!r}", 200)

    def _take(self, parameters: Sequence[Tensor], optimizer: str, factor: float) -> None:
        import torch

        gradients: dict[int, Sketch | None] = {}
        with torch.no_grad():
            for parameter in parameters:
                number = self._number.get(id(parameter))
                if number is None:
                    number = self._number[id(parameter)] = len(self._parameters)
                    self._parameters.append(parameter)
                    self._weights.append(sketch(parameter))
                gradient = parameter.grad
                gradients[number] = None if gradient is None else sketch(gradient, factor)
        if self._names_at_once and len(self._names) < len(self._parameters):
            self._names = _names(self._parameters)
        self._steps.append(StepGradients(self._step, self._call, optimizer, gradients))
        self._call += 1
        if len(self._steps) >= _MOST_CALLS:
            self._stop()


def sketch(tensor: Tensor, factor: float = 1.0) -> Sketch:
    """Norm and projections of a tensor of any shape, dtype and layout, times ``factor``.

    Sums in double precision (float32 if the device has none), in pieces, so that it needs only a
    few MiB for any size.
    """
    import torch

    tensor = tensor.detach()
    tensor = getattr(tensor, "_local_tensor", tensor)  # this rank's part of a DTensor
    if tensor.layout != torch.strided:
        values = tensor.coalesce().values().reshape(-1)
        return Sketch(_rounded(float(values.double().norm()) * factor), ())
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.reshape(-1)
    n = flat.numel()
    wide = torch.float64 if of(flat.device.type).has_float64 else torch.float32
    columns = max(math.isqrt(n), 1)
    rows = -(-n // columns)
    column_signs = torch.from_numpy(_signs(1, columns)).to(flat.device, wide)
    row_signs = torch.from_numpy(_signs(2, rows)).to(flat.device, wide)
    sums = torch.zeros(_PROJECTIONS + 1, dtype=wide, device=flat.device)
    rows_at_once = max(_AT_ONCE // columns, 1)
    for row in range(0, rows, rows_at_once):
        part = flat[row * columns : (row + rows_at_once) * columns].to(wide)
        sums[0] += part.dot(part)
        whole = part.numel() // columns
        body = part[: whole * columns].view(whole, columns)
        signs = row_signs[row : row + whole]
        sums[1:] += (signs * (body @ column_signs)).sum(0)
        rest = part[whole * columns :]
        if rest.numel():  # the last row is incomplete
            sums[1:] += row_signs[row + whole] * (rest @ column_signs[: rest.numel()])
    squares, *projections = sums.tolist()
    return Sketch(
        _rounded(math.sqrt(squares) * factor), tuple(_rounded(p * factor) for p in projections)
    )


def lowest(formats: Iterable[str]) -> str:
    """The coarsest of these number formats; fp32 if there are none."""
    return max(formats, key=FORMATS.index, default="fp32")


def _signs(kind: int, n: int) -> npt.NDArray[np.float64]:
    """Signs +1 and -1, shape n × projections, the same on every machine and with every numpy.

    They are bits of a hash of the position (the finaliser of SplitMix64), so that no random
    generator is touched, least of all the workload's.
    """
    x = np.arange(1, n * _PROJECTIONS + 1, dtype=np.uint64) + np.uint64(kind << 40)
    with np.errstate(over="ignore"):
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (x ^ (x >> np.uint64(31))) & np.uint64(1)
    return (bits.astype(np.float64) * 2 - 1).reshape(n, _PROJECTIONS)


def _rounded(x: float) -> float:
    """Nine digits: more than float32 has, and short to send."""
    return float(f"{x:.9g}")


def _flat(sketch: Sketch | None) -> list[float | None] | None:
    """Norm first. JSON has neither NaN nor infinity: both become None."""
    if sketch is None:
        return None
    return [x if math.isfinite(x) else None for x in (sketch.norm, *sketch.projections)]


def _sketch(numbers: Sequence[float | None]) -> Sketch:
    norm, *projections = (math.nan if x is None else x for x in numbers)
    return Sketch(norm, tuple(projections))


def _names(parameters: Sequence[Tensor]) -> list[str]:
    """The outermost module's name of each parameter; torch's optimizers do not know names."""
    from torch.nn import Module

    wanted = {id(p): number for number, p in enumerate(parameters)}
    names = [""] * len(parameters)
    for found in gc.get_objects():
        if not issubclass(type(found), Module):
            continue
        try:
            named = list(found.named_parameters(remove_duplicate=False))
        except Exception:
            continue
        for name, parameter in named:
            number = wanted.get(id(parameter))
            for prefix in _WRAPPERS:
                name = name.replace(prefix, "")
            # the longest name is the outermost module's; sort equally long ones for a fixed order
            if number is not None and (len(name), name) > (len(names[number]), names[number]):
                names[number] = name
    return [
        printable(name, _LONGEST_NAME) if name else f"parameter {number}"
        for number, name in enumerate(names)
    ]


def _format_of(parameter: Tensor) -> str:
    """The number format in which a layer with this weight computes without autocast."""
    known = _formats_by_dtype()
    found = known.get(parameter.dtype, "fp32")
    if found == "fp32" and parameter.dim() >= 2:
        # convolutions may use TF32 by default, matrix products only if allowed
        products, convolutions = of(parameter.device.type).tf32_allowed()
        if products or (parameter.dim() >= 3 and convolutions):
            return "tf32"
    return found


def _formats_by_dtype() -> dict[torch.dtype, str]:
    import torch

    return {
        torch.float64: "fp64",
        torch.complex128: "fp64",
        torch.float32: "fp32",
        torch.complex64: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
    }


def _watch_autocast(seen: Callable[[str], None]) -> Callable[[], None]:
    """Call ``seen`` with the format of each ``torch.autocast`` entered; return how to stop.

    Neither loss nor gradients show that autocast was on: both are float32 again.
    """
    return _autocast_listeners.add(seen)


def _install_autocast_listeners(calls: Calls) -> Callable[[], None]:
    import torch

    autocast: Any = torch.autocast
    original = autocast.__enter__
    formats = _formats_by_dtype()

    def __enter__(self: Any) -> Any:  # noqa: N807 - replaces the method
        entered = original(self)
        device = getattr(self, "device", "cpu")
        if torch.is_autocast_enabled(device):
            calls.begin(formats.get(torch.get_autocast_dtype(device), "bf16"))
        return entered

    return stand_in(autocast, "__enter__", __enter__)


_autocast_listeners = Listeners(_install_autocast_listeners)
