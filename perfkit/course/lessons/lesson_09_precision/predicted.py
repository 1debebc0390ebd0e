"""Lesson 09: what a product would take on a GPU, from its data sheet: a bound, never a timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from perfkit.base.errors import UsageError
from perfkit.course.kit.simulated_gpu import SimulatedTraining

_BYTES = {"fp32": 4, "TF32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True)
class Rates:
    """Rates of a GPU.

    Attributes:
        name: as in the data sheet.
        tflop_per_s: format → 10¹² FLOP/s of dense matrix products.
        gb_per_s: rate of its memory, 10⁹ B/s.
        host_us: time in which the host asks for an operator; lesson 02's simulated GPU.
    """

    name: str
    tflop_per_s: Mapping[str, float]
    gb_per_s: float
    host_us: float = field(
        default_factory=lambda: SimulatedTraining().op_us + SimulatedTraining().launch_us
    )


#: NVIDIA's data sheet of the H100 SXM; its figures "with sparsity" are twice these.
H100 = Rates(
    "H100 SXM",
    MappingProxyType({"fp32": 67.0, "TF32": 494.5, "bf16": 989.5, "fp16": 989.5, "fp8": 1979.0}),
    gb_per_s=3350.0,
)


@dataclass(frozen=True)
class Predicted:
    """The lower bound of one product.

    Attributes:
        us: microseconds.
        bound: ``"asking"``, ``"memory"`` or ``"arithmetic"``: what takes longest.
    """

    us: float
    bound: str


def predict(rows: int, width: int, form: str, *, rates: Rates = H100) -> Predicted:
    """The lower bound of a product (rows, width) by (width, width).

    Args:
        rows, width: sizes.
        form: ``"fp32"``, ``"TF32"``, ``"bf16"``, ``"fp16"`` or ``"fp8"``.
        rates: of the GPU.

    Raises:
        UsageError: these rates have no such format.
    """
    if form not in rates.tflop_per_s or form not in _BYTES:
        known = ", ".join(rates.tflop_per_s)
        raise UsageError(f"{rates.name} has no rate for {form!r}; there are: {known}")
    moved = _BYTES[form] * (2 * rows * width + width * width)
    each = {
        "asking": rates.host_us,
        "memory": moved / rates.gb_per_s / 1e3,
        "arithmetic": 2.0 * rows * width * width / rates.tflop_per_s[form] / 1e6,
    }
    bound = max(each, key=lambda name: each[name])
    return Predicted(each[bound], bound)
