"""What lives now: bytes of tensors by category, and the biggest of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base.device import Device
from perfkit.base.display import Shown
from perfkit.base.machine import Provenance, stamp
from perfkit.base.plain import fields
from perfkit.base.process_memory import resident_bytes
from perfkit.memory.allocator import AllocatorState, allocator_states
from perfkit.memory.categories import OTHER, UNDECIDED, by_name, name_of
from perfkit.memory.resident import Resident

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LiveTensor:
    """One storage, and the tensor that the user's namespace reaches or the largest one in it.

    Attributes:
        name: how the user's namespace reaches it; None where it does not.
        shape, dtype: of the tensor.
        device: ``"cpu"`` or ``"cuda:0"``.
        storage_bytes: what the storage holds, however little of it the tensor shows.
        view_bytes: what the tensor shows.
        category: one of :data:`perfkit.memory.categories.CATEGORIES`.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    storage_bytes: int
    view_bytes: int
    category: str


@dataclass(frozen=True)
class MemoryNow(Shown):
    """The tensors that are alive now. Sizes in bytes.

    Activations are the results of autograd graphs and what these keep for a backward pass;
    inputs and temporaries is unknown from others without watching code run, and stand
    under other.

    Attributes:
        by_device: bytes by category of each device that holds a tensor.
        n_storages: how many storages that are.
        biggest: the largest of them, largest first.
        resident_bytes: the process's resident set, which is not tensor memory.
        allocators: the allocators of the GPUs in use.
        provenance: where and when this was read.
    """

    by_device: Mapping[str, Mapping[str, int]]
    n_storages: int
    biggest: tuple[LiveTensor, ...]
    resident_bytes: int
    allocators: tuple[AllocatorState, ...]
    warnings: tuple[str, ...]
    provenance: Provenance

    @property
    def total_bytes(self) -> int:
        """Bytes of all storages on all devices."""
        return sum(sum(parts.values()) for parts in self.by_device.values())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        resident = {"label": Resident.LABEL, "bytes": self.resident_bytes}
        without = ("resident_bytes",)
        return fields(self, "total_bytes", without=without, type="memory now", resident=resident)


def now(
    namespace: Mapping[str, Any] | None = None, *, limit: int = 10, device: Device | None = None
) -> MemoryNow:
    """Take stock of every tensor that Python or an autograd graph holds (20 to 100 ms).

    Installs no hook and runs no operator. A GPU is asked for its counters, not synchronised.

    Args:
        namespace: variables by name, to call the biggest tensors by.
        limit: how many of the biggest to list.
        device: the kind of device to ask; the one in use unless a test gives another.
    """
    from perfkit.memory.names import names_of_storages
    from perfkit.memory.storages import storages_of
    from perfkit.memory.survey import survey

    seen = survey()
    sizes: dict[int, int] = {}
    places: dict[int, str] = {}
    categories: dict[int, int] = {}
    shown: dict[int, Tensor] = {}
    n_unreadable = 0
    for tensor, category in seen.tensors:
        storages = storages_of(tensor)
        if storages is None:
            n_unreadable += 1
            continue
        for storage in storages:
            key = id(storage)
            sizes[key] = storage.nbytes()
            places[key] = str(storage.device)
            label = UNDECIDED if category is None else category
            categories[key] = min(label, categories.get(key, UNDECIDED))
            if key not in shown or tensor.numel() > shown[key].numel():
                shown[key] = tensor
    by_number: dict[str, dict[int, int]] = {}
    for key, nbytes in sizes.items():
        if categories[key] == UNDECIDED:
            categories[key] = OTHER
        parts = by_number.setdefault(places[key], {})
        parts[categories[key]] = parts.get(categories[key], 0) + nbytes
    names = names_of_storages(namespace or {})
    biggest = sorted(sizes, key=lambda key: -sizes[key])[: max(limit, 0)]
    warnings = []
    if n_unreadable:
        warnings.append(f"{n_unreadable} tensors have no storage that can be seen; not counted")
    if seen.cut_short:
        warnings.append("an autograd graph is too large to be walked to its end; not all counted")
    states = allocator_states(device)
    return MemoryNow(
        by_device={place: by_name(parts) for place, parts in sorted(by_number.items())},
        n_storages=len(sizes),
        biggest=tuple(
            _live_tensor(
                *names.get(key, (None, shown[key])),
                storage_bytes=sizes[key],
                device=places[key],
                category=name_of(categories[key]),
            )
            for key in biggest
        ),
        resident_bytes=resident_bytes(),
        allocators=states,
        warnings=tuple(warnings),
        provenance=stamp(device=states[0].name if states else "cpu"),
    )


def _live_tensor(
    name: str | None, tensor: Tensor, *, storage_bytes: int, device: str, category: str
) -> LiveTensor:
    return LiveTensor(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=device,
        storage_bytes=storage_bytes,
        view_bytes=tensor.numel() * tensor.element_size(),
        category=category,
    )
