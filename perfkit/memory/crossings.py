"""Which bytes cross between the host and a device, line by line: counted, not timed.

Works without a GPU: tensors on torch's ``meta`` device have shapes and no data, so a step written
for ``device`` runs on it and every copy to or from it is seen, with its exact size.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfkit.base.arguments import check_function
from perfkit.base.display import Shown
from perfkit.base.instrument import Instrument
from perfkit.base.plain import fields
from perfkit.base.stack import looking
from perfkit.base.torch_compat import WAS_LOST, dispatch_mode_class, enter_function_mode
from perfkit.base.user_code import is_user_code, where
from perfkit.memory.places import source_of

if TYPE_CHECKING:
    from types import FrameType

Direction = Literal["to device", "to host"]
_Place = tuple[str, int]


@dataclass(frozen=True)
class Crossing(Shown):
    """What one line of code sends in one direction.

    Attributes:
        direction: ``"to device"`` or ``"to host"``.
        nbytes: bytes that cross, over all copies.
        n_copies: how many copies that were.
        non_blocking: how many of them asked not to wait.
        file, line: the line; empty and 0 where no user code was on the stack.
        text: the source line, stripped; empty where it cannot be found.
    """

    direction: Direction
    nbytes: int
    n_copies: int
    non_blocking: int
    file: str
    line: int
    where: str
    text: str


@dataclass(frozen=True)
class Crossings(Shown):
    """All copies between the host and a device during one call.

    Attributes:
        lines: one entry per line and direction, most bytes first.
        stand_in: whether the ``meta`` device took the place of a real one.
    """

    lines: tuple[Crossing, ...]
    stand_in: bool
    warnings: tuple[str, ...] = ()

    def of(self, direction: Direction) -> tuple[Crossing, ...]:
        """The lines of one direction."""
        return tuple(line for line in self.lines if line.direction == direction)

    @property
    def to_device_bytes(self) -> int:
        """Bytes from the host to the device."""
        return sum(line.nbytes for line in self.of("to device"))

    @property
    def to_host_bytes(self) -> int:
        """Bytes from the device to the host."""
        return sum(line.nbytes for line in self.of("to host"))

    @property
    def n_to_device(self) -> int:
        """Copies from the host to the device."""
        return sum(line.n_copies for line in self.of("to device"))

    @property
    def n_to_host(self) -> int:
        """Copies from the device to the host."""
        return sum(line.n_copies for line in self.of("to host"))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        totals = ("to_device_bytes", "to_host_bytes", "n_to_device", "n_to_host")
        return fields(self, *totals)


def crossings(step: Callable[[], object]) -> Crossings:
    """Call ``step`` once and count what it copies between the host and a device.

    Without a GPU, use ``torch.device("meta")`` as the step's device. Nothing is computed there; a
    copy back to the host, which torch would refuse, returns zeros here and is counted.

    A copy that also changes the dtype is converted on the host, unless it is non-blocking: then on
    the device. So to the device a blocking copy sends the *new* dtype's size, and to the host a
    non-blocking one does; a broadcast tensor crosses at its full size (``copy_kernel_cuda`` in
    torch's ``aten/src/ATen/native/cuda/Copy.cu``). Lists that ``torch.tensor(…, device=…)`` or
    ``x.new_tensor(…)`` turn into tensors cross like tensors. An index that is a list, an array or a
    tensor on the host crosses as int64 positions.

    Args:
        step: a function without arguments; its result is discarded.

    Returns:
        A :class:`Crossings`: ``to_device_bytes``, ``to_host_bytes``, numbers of copies, and
        ``lines``, one entry per source line and direction.

    Raises:
        UsageError: ``step`` cannot be called without arguments.

    Example::

        >>> device = torch.device("meta")
        >>> found = perfkit.crossings(lambda: torch.rand(64, 1024).to(device))
        >>> found.to_device_bytes
    """
    check_function("step", step)
    seen = _Seen()
    with seen.watching():
        step()
    return seen.result()


class _Seen:
    """Copies by place and direction, as they come."""

    def __init__(self) -> None:
        self._found: dict[tuple[_Place, Direction], list[int]] = {}
        self._lock = threading.Lock()  # CUDA's backward runs in a thread of its own
        self._thread = threading.get_ident()
        self.stand_in = False
        self.n_seen = 0
        self.instrument = Instrument("the count of copies")
        self._dispatch: Any = None

    def note(self, look: Callable[[], None]) -> None:
        """Look at something, unless looking has failed before."""
        if self.instrument.is_on:
            with self.instrument.guard("counting a copy"):
                look()

    def add(self, direction: Direction, nbytes: int, *, non_blocking: bool, device: str) -> None:
        place = _place(sys._getframe(1))
        if not place[0] and threading.get_ident() != self._thread:
            # a backward pass: the step's own thread waits meanwhile in the line that called it
            with looking():
                place = _place(sys._current_frames().get(self._thread))
        with self._lock:
            self.n_seen += 1
            self.stand_in |= device == "meta"
            counts = self._found.setdefault((place, direction), [0, 0, 0])
            counts[0] += nbytes
            counts[1] += 1
            counts[2] += non_blocking

    def result(self) -> Crossings:
        lines = [
            Crossing(
                direction=direction,
                nbytes=counts[0],
                n_copies=counts[1],
                non_blocking=counts[2],
                file=file,
                line=line,
                where=where(file, line) if file else "(no line of yours)",
                text=source_of(file, line),
            )
            for ((file, line), direction), counts in self._found.items()
        ]
        lines.sort(key=lambda x: (-x.nbytes, x.direction, x.file, x.line))
        failure = self.instrument.failure
        warnings: tuple[str, ...] = () if failure is None else (failure.sentence(),)
        if self._dispatch is not None and self._dispatch.was_lost:
            warnings += (WAS_LOST,)
        return Crossings(tuple(lines), self.stand_in, warnings)

    def watching(self) -> contextlib.ExitStack:
        """The context in which copies are seen."""
        dispatch, function = _modes(self)
        stack = contextlib.ExitStack()
        self._dispatch = stack.enter_context(dispatch)
        stack.callback(enter_function_mode(function))
        return stack


def _place(frame: FrameType | None) -> _Place:
    """The innermost line of user code, from this frame outwards."""
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno or 0
        frame = frame.f_back
    return "", 0


def is_positions(part: Any) -> bool:
    """Whether a part of an index is a list of numbers, or what torch takes like one."""
    if not isinstance(part, list | range | tuple):
        return False
    return bool(part) and all(isinstance(p, int) or is_positions(p) for p in part)


def _modes(seen: _Seen) -> tuple[Any, Any]:
    import torch
    from torch.overrides import TorchFunctionMode

    aten = torch.ops.aten
    indexing = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
    subscripts = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
    from_data = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)

    def _positions(index: Any) -> Any:
        """What is sent of an index that is on the host; a mask is turned into positions there."""
        return index.nonzero() if index.dtype in (torch.bool, torch.uint8) else index.long()

    @seen.instrument.hook
    def copied(source: Any, n: int, device: Any, dtype: Any, *, non_blocking: bool) -> None:
        if (source.device.type == "cpu") == (torch.device(device).type == "cpu"):
            return
        direction: Direction = "to device" if source.device.type == "cpu" else "to host"
        # the host converts where somebody waits for the copy, the device where nobody does
        sent = dtype if (direction == "to device") != non_blocking else source.dtype
        other = torch.device(device) if direction == "to device" else source.device
        seen.add(direction, n * sent.itemsize, non_blocking=non_blocking, device=other.type)

    def _data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        data = args[1:] if func is torch.Tensor.new_tensor else args
        return data[0] if data else kwargs.get("data")

    def indexed(tensor: Any, indices: Sequence[Any]) -> None:
        for positions in indices:
            if positions is not None and positions.device.type == "cpu":
                sent = _positions(positions)
                copied(sent, sent.numel(), tensor.device, sent.dtype, non_blocking=False)

    def handed_over(
        func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any, n_before: int
    ) -> None:
        if (
            func in from_data
            and seen.n_seen == n_before
            and not isinstance(_data(func, args, kwargs), torch.Tensor)
            and made.device.type != "cpu"
        ):
            seen.add("to device", made.nbytes, non_blocking=False, device=made.device.type)
        if func in subscripts and isinstance(args[0], torch.Tensor):
            device = args[0].device.type
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            for part in index if device != "cpu" else ():
                if is_positions(part):
                    sent = torch.tensor(part)
                    seen.add("to device", sent.nbytes, non_blocking=False, device=device)

    class Dispatch(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(
            self,
            func: Any,
            types: Sequence[Any],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is aten._to_copy.default:
                source = args[0]
                device = kwargs.get("device") or source.device
                dtype = kwargs.get("dtype") or source.dtype
                asynchronous = bool(kwargs.get("non_blocking"))
                copied(source, source.numel(), device, dtype, non_blocking=asynchronous)
                if source.device.type == "meta" and torch.device(device).type == "cpu":
                    return torch.zeros(source.shape, dtype=dtype)
            elif func is aten.copy_.default:
                target, source = args[:2]
                wait = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
                n = target.numel()  # a source that is broadcast is expanded first
                copied(source, n, target.device, target.dtype, non_blocking=not wait)
                if source.device.type == "meta" and target.device.type == "cpu":
                    return target.zero_()
            elif func in indexing and args[0].device.type != "cpu":
                seen.note(lambda: indexed(args[0], args[1]))
            elif func is aten._local_scalar_dense.default and args[0].device.type != "cpu":
                copied(args[0], 1, "cpu", args[0].dtype, non_blocking=False)
                if args[0].device.type == "meta":
                    return torch.zeros((), dtype=args[0].dtype).item()
            return func(*args, **kwargs)

    class Function(TorchFunctionMode):
        """Sees tensors made on a device from Python data: no operator shows that copy.

        Of an array's an operator does.
        """

        def __torch_function__(
            self,
            func: Any,
            types: Sequence[Any],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            n_before = seen.n_seen
            made = func(*args, **(kwargs or {}))
            seen.note(lambda: handed_over(func, args, kwargs or {}, made, n_before))
            return made

    return Dispatch(), Function()
