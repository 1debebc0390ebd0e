"""What this machine reaches: measured rates, each with its spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfkit.base.display import Shown
from perfkit.base.machine import Provenance
from perfkit.limit.datasheet import DataSheet, sheet_of
from perfkit.limit.roofs import Roofs


@dataclass(frozen=True)
class Rate:
    """n repetitions of one thing, as rates.

    The best is the figure: what else runs on a machine makes a repetition slower, never faster.

    Attributes:
        best, median, worst: of the repetitions, in the unit that the field's owner tells.
        n: how many.
    """

    best: float
    median: float
    worst: float
    n: int


@dataclass(frozen=True)
class ProductRate:
    """A square matrix product.

    Attributes:
        form: number format, e.g. ``"bfloat16"``; ``"tf32"`` is float32 computed so.
        size: rows and columns of both matrices.
        flop_per_s: 2·size³ over the time of a product.
    """

    form: str
    size: int
    flop_per_s: Rate


#: The pattern that reads and writes one tensor in place.
UPDATE = "update"


@dataclass(frozen=True)
class MemoryRate:
    """Moving tensors of one total size.

    Attributes:
        what: ``"copy"`` (reads one, writes one), ``"add"`` (reads two, writes one), ``"sum"``
            (reads one) or ``"update"`` (reads and writes one, in place).
        working_set_bytes: of all its tensors together.
        bytes_per_s: bytes read and written over the time.
    """

    what: str
    working_set_bytes: int
    bytes_per_s: Rate


@dataclass(frozen=True)
class Peaks(Shown):
    """What this machine reaches at best with torch.

    Attributes:
        device: ``"cpu"`` or what the vendor calls it.
        place: as torch writes it, e.g. ``"cuda:0"``.
        device_memory_bytes: of an accelerator; 0 for the CPU.
        threads: of torch on the CPU.
        products: matrix products by format and size.
        memory: memory by pattern and working set.
        copies: between host and device, by kind, in B/s; empty for the CPU.
        disk: reads of a file that is not in memory, in B/s; None if that could not be measured.
        disk_where: the folder.
        launch_us: time per operator where operators do next to nothing, in µs: the best is the
            least here.
        round_trip_us: one such operator and a wait for the device, in µs; None for the CPU.
        seconds: how long measuring took.
        busy: what else the machine did meanwhile, a sentence; empty for nothing.
        is_spoiled: whether that took so much time that the rates are too low.
        notes: what could not be measured, and why.
        provenance: machine, versions, date.
    """

    device: str
    place: str
    device_memory_bytes: int
    threads: int
    products: tuple[ProductRate, ...]
    memory: tuple[MemoryRate, ...]
    copies: Mapping[str, Rate]
    disk: Rate | None
    disk_where: str
    launch_us: Rate
    round_trip_us: Rate | None
    seconds: float
    busy: str
    is_spoiled: bool
    provenance: Provenance
    notes: tuple[str, ...] = field(default=())

    @property
    def flop_per_s(self) -> dict[str, ProductRate]:
        """The fastest product of each format."""
        best: dict[str, ProductRate] = {}
        for one in self.products:
            known = best.get(one.form)
            if known is None or one.flop_per_s.best > known.flop_per_s.best:
                best[one.form] = one
        return best

    @property
    def memory_by_size(self) -> tuple[MemoryRate, ...]:
        """The fastest pattern of each working set, smallest first, without updates in place."""
        best: dict[int, MemoryRate] = {}
        for one in self.memory:
            if one.what == UPDATE:
                continue
            known = best.get(one.working_set_bytes)
            if known is None or one.bytes_per_s.best > known.bytes_per_s.best:
                best[one.working_set_bytes] = one
        return tuple(best[size] for size in sorted(best))

    @property
    def sheet(self) -> DataSheet | None:
        """The device's data sheet; None if the table has none."""
        return sheet_of(self.device, self.device_memory_bytes or None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful."""
        return (*((self.busy,) if self.busy else ()), *self.notes)

    def roofs(self) -> Roofs:
        """The same as rates for a roofline."""
        doubts = (f"the peaks are too low: {self.busy}",) if self.is_spoiled else ()
        return Roofs(
            device=self.device,
            flop_per_s={name: one.flop_per_s.best for name, one in self.flop_per_s.items()},
            memory=tuple((m.working_set_bytes, m.bytes_per_s.best) for m in self.memory_by_size),
            kind=self.provenance.kind,
            launch_us=self.launch_us.best,
            source=f"measured {self.provenance.when_utc[:10]}",
            doubts=doubts,
            updates=tuple(
                (m.working_set_bytes, m.bytes_per_s.best)
                for m in sorted(self.memory, key=lambda m: m.working_set_bytes)
                if m.what == UPDATE
            ),
        )
