"""What tensors ask an allocator for, in order: the input of :mod:`perfkit.memory.replay`.

They come from the caching allocator's own history on a GPU (:func:`requests_of`), from the
storages that operators make, on any device (:func:`record_requests`), or from the shapes alone
(:func:`predict_requests`). The last two see no workspace of a library and no temporary inside a
kernel, and without a GPU the operators are those of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from perfkit.base import torch_compat
from perfkit.memory.categories import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from perfkit.memory.ledger import Block, Ledger
from perfkit.memory.survey import Survey
from perfkit.memory.tracker import Tracker

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Source = Literal["allocator", "operators", "shapes"]

#: What is on the device before the first request: the model, not a data set on the host.
_RESIDENT = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)


class Request(NamedTuple):
    """One entry: a block that is asked for or given back, or a mark.

    Attributes:
        what: ``"alloc"``, ``"free"``, or ``"mark"``, the end of a step.
        block: number of the block; of a mark, its own number.
        nbytes: asked for; 0 for the others.
        stream: whose block it is.
    """

    what: Literal["alloc", "free", "mark"]
    block: int
    nbytes: int = 0
    stream: int = 0


@dataclass(frozen=True)
class Requests:
    """What tensors of one device asked for.

    Attributes:
        entries: in order; first what was there before, as if it was asked for then.
        device: ``"cpu"`` or ``"cuda:0"``.
        source: ``"allocator"``, ``"operators"``, or ``"shapes"`` if no operator really ran.
    """

    entries: tuple[Request, ...]
    device: str
    source: Source

    @property
    def n_allocs(self) -> int:
        """How many blocks are asked for."""
        return sum(entry.what == "alloc" for entry in self.entries)


def requests_of(snapshot: Mapping[str, Any], device: int = 0) -> Requests:
    """The requests in a snapshot as ``torch.cuda.memory`` documents it.

    What lived before the history began comes first, by address. A block is given back where the
    device was done with it. A request that failed is one that is given back at once.

    Args:
        snapshot: ``segments`` and ``device_traces``.
        device: index of the device.
    """
    traces: Sequence[Any] = snapshot.get("device_traces", ())
    trace = traces[device] if device < len(traces) else ()
    entries: list[Request] = []
    living: dict[int, tuple[int, int]] = {}  # address -> block, stream
    before: list[tuple[int, int, int]] = []  # address, size, stream
    n = 0
    for entry in trace:
        address, nbytes, stream = entry.get("addr", 0), entry["size"], entry.get("stream", 0)
        if entry["action"] == "alloc":
            living[address] = (n, stream)
            entries.append(Request("alloc", n, nbytes, stream))
            n += 1
        elif entry["action"] == "oom":  # asked for, and never there
            entries += [Request("alloc", n, nbytes, stream), Request("free", n, 0, stream)]
            n += 1
        elif entry["action"] == "free_completed":
            block, stream = living.pop(address, (-1, stream))
            if block < 0:
                before.append((address, nbytes, stream))
                block = -len(before)
            entries.append(Request("free", block, 0, stream))
    for segment in snapshot.get("segments", ()):
        if segment.get("device", device) != device:
            continue
        address = segment.get("address", 0)
        for block in segment.get("blocks", ()):
            at = block.get("address", address)
            if block["state"] != "inactive" and at not in living:
                before.append((at, block["requested_size"], segment.get("stream", 0)))
            address += block["size"]
    numbered = [(at, -k, size, stream) for k, (at, size, stream) in enumerate(before, start=1)]
    resident = [Request("alloc", k, size, stream) for _, k, size, stream in sorted(numbered)]
    return Requests((*resident, *entries), f"cuda:{device}", "allocator")


class _Diary(Ledger):
    """A book that also keeps its entries in order, and marks."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Block] = []
        self.entries: list[Block | tuple[Block] | int] = []

    def add_before(self, block: Block) -> None:
        super().add_before(block)
        self.before.append(block)

    def add(self, block: Block) -> None:
        super().add(block)
        self.entries.append(block)

    def remove(self, block: Block) -> None:
        super().remove(block)
        self.entries.append((block,))


class _Recorder(Tracker):
    def _book(self, device: torch.device) -> Ledger | None:
        return None if device.type == "meta" else _Diary()


class Recording:
    """What :func:`record_requests` fills when its block ends.

    Attributes:
        requests: of the device with the most requests; None before the end, and if no operator
            made a tensor.
        warnings: what makes them doubtful.
    """

    def __init__(self, tracker: _Recorder) -> None:
        self._tracker = tracker
        self._n_marks = 0
        self.requests: Requests | None = None
        self.warnings: tuple[str, ...] = ()

    def mark(self) -> None:
        """The end of a step: the replay tells its figures at each mark."""
        self._tracker.bury_dead()  # what has been freed by now was freed before the mark
        for book in self._tracker.ledgers.values():
            assert isinstance(book, _Diary)
            book.entries.append(self._n_marks)
        self._n_marks += 1

    def close(self, source: Source) -> None:
        """Set the result; the context manager calls it."""
        books = {d: book for d, book in self._tracker.ledgers.items() if isinstance(book, _Diary)}
        if books:
            # a GPU first: tensors of its loop on the host are not in its memory
            device = max(books, key=lambda d: (d.type != "cpu", len(books[d].entries)))
            self.requests = _requests(books[device], device, source)
        failure = self._tracker.instrument.failure
        self.warnings = () if failure is None else (failure.sentence(),)


class _FakeRecorder(_Recorder):
    """Of fake tensors only."""

    def _book(self, device: torch.device) -> Ledger:
        return _Diary()  # their storages say that they are on meta

    def _survey(self, *, graphs: bool = True) -> Survey:
        return Survey()

    def _find(self, tensor: Tensor) -> tuple[UntypedStorage, ...] | None:
        if not torch_compat.is_fake(tensor):
            return ()
        inner = torch_compat.inner_tensors(tensor)
        return tuple(part.untyped_storage() for part in ((tensor,) if inner is None else inner))


@contextmanager
def predict_requests() -> Iterator[Recording]:
    """Record what operators in the ``with`` block would ask for, without memory or arithmetic.

    The block runs on fake tensors: make the model, its optimizer and the batches inside, of any
    size, on the CPU; what asks for a value (``.item()``) fails. torch chooses the operators of a
    CPU: give the optimizer ``foreach=True``, its default on a GPU.
    """
    tracker = _FakeRecorder()
    recording = Recording(tracker)
    with torch_compat.fake_mode():
        tracker.start()
        try:
            yield recording
        finally:
            tracker.stop()
            recording.close("shapes")


@contextmanager
def record_requests(
    *, model: nn.Module | None = None, optimizer: Optimizer | None = None
) -> Iterator[Recording]:
    """Record what operators in the ``with`` block ask for, in this thread and its backward passes.

    Slows small steps several times; run a few dozen. Without a GPU, each tensor that an operator
    makes counts as if it was on one, and so do the parameters, gradients and optimizer state that
    exist when the block begins; other tensors that exist then do not.

    Args:
        model: known as the model; its parameters are there before the first step.
        optimizer: known as the optimizer.
    """
    tracker = _Recorder()
    recording = Recording(tracker)
    tracker.start(
        modules=() if model is None else (model,),
        optimizers=() if optimizer is None else (optimizer,),
    )
    try:
        yield recording
    finally:
        tracker.stop()
        recording.close("operators")


def _requests(book: _Diary, device: torch.device, source: Source) -> Requests:
    numbers: dict[int, int] = {}
    entries = []
    for block in book.before:
        if device.type != "cpu" or block.category in _RESIDENT:
            numbers[id(block)] = len(numbers)
            entries.append(Request("alloc", numbers[id(block)], block.nbytes))
    for entry in list(book.entries):
        if isinstance(entry, int):
            entries.append(Request("mark", entry))
        elif isinstance(entry, tuple):
            number = numbers.get(id(entry[0]))
            if number is not None:
                entries.append(Request("free", number))
        else:
            numbers[id(entry)] = len(numbers)
            entries.append(Request("alloc", numbers[id(entry)], entry.nbytes))
    if source == "shapes":
        device = torch.device("cpu")
    place = device.type if device.index is None else f"{device.type}:{device.index}"
    return Requests(tuple(entries), place, source)
