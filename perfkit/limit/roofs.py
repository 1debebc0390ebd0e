"""The rates of a device that bound a kernel: arithmetic by format, memory by working set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Number formats in the order in which tables show them. ``tf32`` is a mode of float32 products.
FORMATS = ("float64", "float32", "tf32", "bfloat16", "float16", "float8")


@dataclass(frozen=True)
class Roofs:
    """What a device reaches at best.

    Attributes:
        device: its name.
        flop_per_s: format → FLOP/s of dense matrix products; a multiplication and an addition are
            two operations.
        memory: (bytes of the working set, B/s), smallest first. What fits into a cache is moved
            faster than what does not; a data sheet only has the memory's own rate, as one entry.
        updates: the same of tensors that are read and written in place, which moves more bytes a
            second: a result elsewhere is first fetched, too. Empty where they were not measured.
        kind: ``"measured here"``, ``"recorded"``, ``"played"`` or ``"predicted"`` (data sheet).
        launch_us: shortest time between two operators that the host launches, in µs; or None.
        source: where the rates come from.
    """

    device: str
    flop_per_s: Mapping[str, float]
    memory: tuple[tuple[int, float], ...]
    kind: str
    launch_us: float | None = None
    source: str = ""
    doubts: tuple[str, ...] = field(default=())
    updates: tuple[tuple[int, float], ...] = field(default=())

    def bytes_per_s(self, working_set_bytes: float, *, in_place: bool = False) -> float:
        """A rate that this working set does not exceed, in B/s.

        The fastest that was seen for a larger set, or for the largest one that is not larger: a
        smaller set is never slower to move, and where it was measured slower, starting the
        operator took the time. Between two measured sets, part of the bytes may still be in a
        cache, so the rate of the smaller one counts.
        """
        seen = (self.memory, self.updates) if in_place and self.updates else (self.memory,)
        rates = []
        for each in seen:
            below = [size for size, _ in each if size <= working_set_bytes]
            rates += [rate for size, rate in each if size >= max(below, default=0)]
        return max(rates)

    @property
    def memory_bytes_per_s(self) -> float:
        """The rate of the memory itself, behind all caches, in B/s."""
        return self.memory[-1][1]

    def format_for(self, dtype: str, *, tf32: bool = False) -> str | None:
        """The format in which products of this dtype are computed; None where no rate is known.

        A device without TF32 computes products of float32 in float32.
        """
        wanted = "tf32" if dtype == "float32" and tf32 and "tf32" in self.flop_per_s else dtype
        return wanted if wanted in self.flop_per_s else None
