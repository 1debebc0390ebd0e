"""Lesson 15: devices that are only pretended, and the bytes that would cross between them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from perfkit.base.errors import UsageError
from perfkit.base.torch_compat import dispatch_mode_class

if TYPE_CHECKING:
    from torch import nn

# only this lesson's step: convolutions, cross entropy, AdamW
_OPERATORS = {"forward": "convolution", "loss": "nll_loss", "update": "addcdiv"}


class Links:
    """The links between pretended devices: every tensor stays where it is, and bytes are counted.

    Attributes:
        devices: how many there are.
        sent: (from, to) → bytes, gradients on their way back included.
    """

    def __init__(self, devices: int) -> None:
        if devices < 1:
            raise UsageError(f"{devices} devices cannot train: take at least one")
        self.devices = devices
        self.sent: Counter[tuple[int, int]] = Counter()
        self._here = 0
        self._ran: dict[int, set[str]] = {device: set() for device in range(devices)}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note which operators run on which device; the first one, where no other is named."""
        ran = self

        class Watch(dispatch_mode_class()):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                ran._ran[ran._here].add(func.overloadpacket.__name__)
                return func(*args, **(kwargs or {}))

        with Watch():
            yield

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """What runs in the body of ``with`` runs on this device."""
        before, self._here = self._here, device
        try:
            yield
        finally:
            self._here = before

    def did(self, device: int) -> list[str]:
        """What was seen on a device: ``"forward"``, ``"loss"``, ``"update"``, by its operators."""
        ran = [name for name in self._ran[device] if "backward" not in name]
        return [what for what, name in _OPERATORS.items() if any(name in one for one in ran)]

    def send(self, tensor: torch.Tensor, to: int, *, source: int = 0) -> torch.Tensor:
        """The tensor as it arrives; in the backward pass its gradient takes the same way back."""
        if to == source:
            return tensor
        self.sent[source, to] += tensor.nbytes
        if not tensor.requires_grad:
            return tensor
        arrived: torch.Tensor = _Sent.apply(  # type: ignore[no-untyped-call]
            tensor, self, source, to
        )
        return arrived

    def received(self, device: int) -> int:
        """Bytes that a device received."""
        return sum(count for (_, to), count in self.sent.items() if to == device)

    @property
    def total(self) -> int:
        """Bytes that crossed."""
        return self.sent.total()

    @property
    def busiest(self) -> float:
        """What the device received that received most, in means of all; 0 if nothing was sent."""
        most = max(self.received(device) for device in range(self.devices))
        return most / (self.total / self.devices) if self.total else 0.0


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, links: Links, source: int, to: int) -> torch.Tensor:
        ctx.way = links, source, to
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        links, source, to = ctx.way
        links.sent[to, source] += slopes[0].nbytes
        return slopes[0], None, None, None


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All numbers of some tensors, one after the other, without a graph."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def held_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters that this rank holds: of a sharded one, its shard."""
    parts = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
    return sum(part.nbytes for part in parts)
