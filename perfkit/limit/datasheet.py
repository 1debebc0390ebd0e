"""What the vendors' data sheets say, in dense figures.

NVIDIA prints its tensor cores' rates "with sparsity", which is twice what a dense product can
reach, and strangers' tables mix the two; here all are dense. Rates are 10¹² FLOP/s of matrix
products with float32 accumulation at the highest clock, bandwidths 10⁹ B/s. No product reaches
them: a large one gets 60 to 90 %, less under a power limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfkit.base.arguments import shown
from perfkit.base.errors import UsageError
from perfkit.limit.roofs import FORMATS, Roofs


@dataclass(frozen=True)
class DataSheet:
    """One device, as its vendor specifies it.

    Attributes:
        name: short, unique: ``"H100 SXM"``.
        tflop_per_s: format → 10¹² FLOP/s, dense; formats that it lacks are missing.
        gb_per_s: rate of its memory, 10⁹ B/s.
        source: the document.
        pattern: matches the names under which drivers know it.
        memory_gb: matters where one name has several memories; None for any.
        note: what one must know to read the figures.
    """

    name: str
    tflop_per_s: Mapping[str, float]
    gb_per_s: float
    source: str
    pattern: str
    memory_gb: float | None = None
    note: str = ""

    def roofs(self) -> Roofs:
        """The same as rates for a roofline, labelled predicted."""
        return Roofs(
            device=self.name,
            flop_per_s={name: rate * 1e12 for name, rate in self.tflop_per_s.items()},
            memory=((0, self.gb_per_s * 1e9),),
            kind="predicted",
            source=f"data sheet: {self.source}",
            doubts=(self.note,) if self.note else (),
        )


def _sheet(
    name: str,
    rates: tuple[float | None, ...],
    gb_per_s: float,
    source: str,
    pattern: str,
    *,
    memory_gb: float | None = None,
    note: str = "",
) -> DataSheet:
    """Rates in the order of FORMATS; None where the device has no such format."""
    known = {n: r for n, r in zip(FORMATS, rates, strict=True) if r is not None}
    return DataSheet(name, MappingProxyType(known), gb_per_s, source, pattern, memory_gb, note)


_H100 = "NVIDIA H100 Tensor Core GPU data sheet; rates with sparsity halved"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet; rates with sparsity halved"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_V100 = "NVIDIA V100 Tensor Core GPU data sheet"
_GCD = "torch sees each of the two dies as a device: these are the rates of one die"

# float64, float32, tf32, bfloat16, float16, float8. float64 through tensor cores where it has them.
_SHEETS = (
    _sheet("V100 SXM2", (7.8, 15.7, None, None, 125, None), 900, _V100, r"V100-(SXM|DGXS)"),
    _sheet("V100 PCIe", (7.0, 14.0, None, None, 112, None), 900, _V100, r"V100-PCIE"),
    _sheet("T4", (None, 8.1, None, None, 65, None), 320, "NVIDIA T4 data sheet", r"\bT4\b"),
    _sheet("A10", (None, 31.2, 62.5, 125, 125, None), 600, "NVIDIA A10 data sheet", r"\bA10\b"),
    _sheet(
        "A100 40GB", (19.5, 19.5, 156, 312, 312, None), 1555, _A100, r"A100.*40GB|A100-SXM4$",
        memory_gb=40,
    ),
    _sheet("A100 80GB PCIe", (19.5, 19.5, 156, 312, 312, None), 1935, _A100, r"A100.*80GB.*PCIe"),
    _sheet("A100 80GB SXM", (19.5, 19.5, 156, 312, 312, None), 2039, _A100, r"A100.*SXM4?-80GB"),
    _sheet(
        "L4", (None, 30.3, 60, 121, 121, 242.5), 300,
        "NVIDIA L4 Tensor Core GPU data sheet; rates with sparsity halved", r"\bL4\b",
    ),
    _sheet(
        "L40S", (None, 91.6, 183, 362, 362, 733), 864, "NVIDIA L40S GPU data sheet", r"\bL40S\b"
    ),
    _sheet("H100 PCIe", (51, 51, 378, 756.5, 756.5, 1513), 2000, _H100, r"H100 PCIe"),
    _sheet("H100 NVL", (60, 60, 417.5, 835.5, 835.5, 1670.5), 3900, _H100, r"H100 NVL"),
    _sheet("H100 SXM", (67, 67, 494.5, 989.5, 989.5, 1979), 3350, _H100, r"H100.*HBM3|H100 SXM"),
    _sheet("H200 NVL", (60, 60, 417.5, 835.5, 835.5, 1670.5), 4800, _H200, r"H200 NVL"),
    _sheet("H200", (67, 67, 494.5, 989.5, 989.5, 1979), 4800, _H200, r"H200"),
    _sheet(
        "RTX 3090", (None, 35.6, 35.6, 71, 71, None), 936,
        "NVIDIA Ampere GA102 GPU Architecture, appendix A", r"RTX 3090$",
    ),
    _sheet(
        "RTX 4090", (None, 82.6, 82.6, 165.2, 165.2, 330.3), 1008,
        "NVIDIA Ada GPU Architecture, appendix A", r"RTX 4090$",
    ),
    _sheet(
        "MI250 (one die)", (45.25, 45.25, None, 181.05, 181.05, None), 1638.4,
        "AMD Instinct MI250 data sheet, halved", r"MI250\b", note=_GCD,
    ),
    _sheet(
        "MI250X (one die)", (47.85, 47.85, None, 191.5, 191.5, None), 1638.4,
        "AMD Instinct MI250X data sheet, halved", r"MI250X", note=_GCD,
    ),
    _sheet(
        "MI300X", (163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9), 5300,
        "AMD Instinct MI300X data sheet", r"MI300X",
    ),
)  # fmt: skip


def data_sheets() -> Mapping[str, DataSheet]:
    """All devices of the table by name."""
    return MappingProxyType({sheet.name: sheet for sheet in _SHEETS})


def data_sheet(name: str) -> DataSheet:
    """The device with this name, or whose driver calls it so; case does not matter.

    ``"H100"`` and ``"A100"`` are several: they mean the SXM module with the most memory.

    Raises:
        UsageError: there is none.
    """
    wanted = str(name).strip().lower().removeprefix("nvidia ").removeprefix("amd ")
    for sheet in _SHEETS:
        if sheet.name.lower() == wanted:
            return sheet
    short = {"h100": "H100 SXM", "a100": "A100 80GB SXM", "v100": "V100 SXM2"}
    if wanted in short:
        return data_sheets()[short[wanted]]
    found = sheet_of(str(name))
    if found is None:
        known = ", ".join(data_sheets())
        raise UsageError(f"no data sheet of {shown(name)} is known; there are: {known}")
    return found


def sheet_of(device: str, memory_bytes: int | None = None) -> DataSheet | None:
    """The data sheet of a device that its driver calls so; None if it is not in the table.

    Args:
        device: e.g. ``"NVIDIA H100 80GB HBM3"``.
        memory_bytes: its memory, where one name has several.
    """
    for sheet in _SHEETS:
        if re.search(sheet.pattern, device, re.IGNORECASE) and _fits(sheet, memory_bytes):
            return sheet
    return None


def _fits(sheet: DataSheet, memory_bytes: int | None) -> bool:
    if sheet.memory_gb is None or memory_bytes is None:
        return True
    return abs(memory_bytes / 2**30 - sheet.memory_gb) < 0.15 * sheet.memory_gb
