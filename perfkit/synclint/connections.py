"""Which tensors would live on the device, worked out from how they meet.

On a CPU every tensor has the same device, so the device has to be inferred. Tensors that meet
in an operation share theirs (torch insists), apart from those with no dimension, which may
stay on the host. Growing these groups from the model's parameters and inputs gives what a GPU
would hold; a data loader's indices or Adam's step counter never join.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class Spot:
    """Where one storage is; a group of them that are on the same device has one root.

    Attributes:
        is_placed: put on the device by a call that says so, or computed from what was.
        is_plain: of a root: made by a factory that was told no device, so on the host, unless it
            meets what is not.
    """

    __slots__ = ("_device", "_host", "_parent", "is_placed", "is_plain")

    def __init__(self) -> None:
        self._parent = self
        self._device = self._host = False
        self.is_placed = self.is_plain = False

    @property
    def root(self) -> Spot:
        """The one that stands for its group."""
        spot = self
        while spot._parent is not spot:
            spot._parent = spot = spot._parent._parent
        return spot

    @property
    def on_device(self) -> bool:
        """What is known so far; more may follow from operations still to come."""
        return self.root._device

    @property
    def on_host(self) -> bool:
        return self.root._host

    def join(self, other: Spot) -> None:
        """Both are on the same device; what is known to differ stays apart."""
        a, b = self.root, other.root
        if a is b or (a._device and b._host) or (a._host and b._device):
            return
        b._parent = a
        a._device |= b._device
        a._host |= b._host
        a.is_plain |= b.is_plain

    def put_on_device(self) -> None:
        root = self.root
        root._device = root._device or not root._host

    def put_on_host(self) -> None:
        root = self.root
        root._host = root._host or not root._device

    def place(self) -> None:
        """A call has put it on the device and said so: that does not follow from what it met."""
        self.put_on_device()
        # a model's own buffer, say, made without a device and moved with it: the code has
        # devices in mind
        self.root.is_plain = False
        self.is_placed = True


class Connections:
    """The spots of all storages."""

    def __init__(self) -> None:
        self._spots: dict[int, tuple[Spot, weakref.ref[Any]]] = {}
        self._all: list[Spot] = []
        # 0-dim results: on the device if any operand is, while the operand itself need not be
        self._feeds: list[tuple[Spot, Spot]] = []

    def spot(self, tensor: Any) -> Spot | None:
        """Where the tensor's storage is (of a sparse one its values'); None if it has none."""
        storage = self._storage(tensor)
        if storage is None:
            return None
        spot = self._known(storage)
        if spot is None:
            spot = Spot()
            self._all.append(spot)
            self._spots[storage._cdata] = spot, weakref.ref(storage)
        return spot

    def touches_placed(self, tensors: Iterable[Any]) -> bool:
        """Tell whether one of these tensors was placed; none of them gets a spot for it."""
        storages = (self._storage(tensor) for tensor in tensors)
        spots = (self._known(storage) for storage in storages if storage is not None)
        return any(spot is not None and spot.is_placed for spot in spots)

    def _known(self, storage: Any) -> Spot | None:
        # An address is used again after its storage has died. No callback tells of that: in there
        # Python would ignore a Ctrl-C.
        spot, alive = self._spots.get(storage._cdata, (None, None))
        return spot if alive is not None and alive() is not None else None

    @staticmethod
    def _storage(tensor: Any) -> Any:
        try:
            if tensor.is_sparse:
                tensor = tensor._values()
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):  # ValueError: a lazy parameter
            return None

    def feed(self, operand: Spot, result: Spot) -> None:
        """``result`` is on the device if ``operand`` is; nothing follows the other way."""
        self._feeds.append((operand, result))

    def settle(self) -> None:
        """Let the one-way relations do their work, until nothing changes."""
        while ready := [result for operand, result in self._feeds if operand.on_device]:
            self._feeds = [feed for feed in self._feeds if not feed[0].on_device]
            for result in ready:
                result.put_on_device()

    @property
    def is_plain_on_device(self) -> bool:
        """True if what was made without a device is on it: the step has no devices in mind."""
        return any(spot.is_plain and spot._device for spot in self._all)

    @property
    def any_on_device(self) -> bool:
        return any(spot._device for spot in self._all)
