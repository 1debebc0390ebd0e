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


class Connections:
    """Groups of storages, some of them known to be on the device or on the host."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._on_device: list[bool] = []
        self._on_host: list[bool] = []
        # put on the device by a call that says so, and what was computed from that
        self._placed: set[int] = set()
        # made by a factory that was told no device: on the host, unless it meets what is not
        self._made_plain: list[bool] = []
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}
        # 0-dim results: on the device if any operand is, while the operand itself need not be
        self._feeds: list[tuple[int, int]] = []

    def node(self, tensor: Any) -> int | None:
        """The number of the tensor's storage (of a sparse one's values); None if it has none."""
        storage = self._storage(tensor)
        if storage is None:
            return None
        key = storage._cdata
        found = self._storages.get(key)
        # An address is used again after its storage has died. No callback tells of that: in there
        # Python would ignore a Ctrl-C.
        if found is not None and found[1]() is not None:
            return found[0]
        number = len(self._parent)
        self._parent.append(number)
        self._on_device.append(False)
        self._on_host.append(False)
        self._made_plain.append(False)
        self._storages[key] = (number, weakref.ref(storage))
        return number

    @staticmethod
    def _storage(tensor: Any) -> Any:
        try:
            if tensor.is_sparse:
                tensor = tensor._values()
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):  # ValueError: a lazy parameter
            return None

    def root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def join(self, first: int, second: int) -> None:
        """Both are on the same device; what is known to differ stays apart."""
        a, b = self.root(first), self.root(second)
        if a == b:
            return
        device, host = self._on_device, self._on_host
        if (device[a] and host[b]) or (host[a] and device[b]):
            return
        self._parent[b] = a
        device[a] |= device[b]
        host[a] |= host[b]
        self._made_plain[a] |= self._made_plain[b]

    def feed(self, operand: int, result: int) -> None:
        """``result`` is on the device if ``operand`` is; nothing follows the other way."""
        self._feeds.append((operand, result))

    def put_on_device(self, number: int) -> None:
        root = self.root(number)
        if not self._on_host[root]:
            self._on_device[root] = True

    def place(self, number: int) -> None:
        """A call has put it on the device and said so: that does not follow from what it met."""
        self.put_on_device(number)
        # a model's own buffer, say, made without a device and moved with it: the code has
        # devices in mind
        self._made_plain[self.root(number)] = False
        self._placed.add(number)

    def is_placed(self, number: int) -> bool:
        return number in self._placed

    def touches_placed(self, tensors: Iterable[Any]) -> bool:
        """Tell whether one of these tensors was placed; none of them is numbered for it."""
        if not self._placed:
            return False
        for tensor in tensors:
            storage = self._storage(tensor)
            found = None if storage is None else self._storages.get(storage._cdata)
            if found is not None and found[0] in self._placed and found[1]() is not None:
                return True
        return False

    def put_on_host(self, number: int) -> None:
        root = self.root(number)
        if not self._on_device[root]:
            self._on_host[root] = True

    def mark_made_plain(self, number: int) -> None:
        self._made_plain[self.root(number)] = True

    def was_made_plain(self, number: int) -> bool:
        return self._made_plain[self.root(number)]

    @property
    def is_plain_on_device(self) -> bool:
        """True if what was made without a device is on it: the step has no devices in mind."""
        return any(a and b for a, b in zip(self._made_plain, self._on_device, strict=True))

    def is_on_device(self, number: int) -> bool:
        """Tell what is known so far; more may follow from operations still to come."""
        return self._on_device[self.root(number)]

    def is_on_host(self, number: int) -> bool:
        return self._on_host[self.root(number)]

    @property
    def any_on_device(self) -> bool:
        return any(self._on_device)

    def settle(self) -> None:
        """Let the one-way relations do their work, until nothing changes."""
        feeds = self._feeds
        changed = True
        while changed:
            changed = False
            left = []
            for operand, result in feeds:
                if not self.is_on_device(operand):
                    left.append((operand, result))
                elif not self.is_on_device(result) and not self.is_on_host(result):
                    self.put_on_device(result)
                    changed = True
            feeds = left
        self._feeds = feeds

    def all_on_device(self, numbers: Iterable[int]) -> bool:
        return all(self.is_on_device(n) for n in numbers)
