"""What a piece of code did to memory: its peak by category, and what stayed behind."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from perfkit.base import torch_compat
from perfkit.base.arguments import check_function
from perfkit.base.device import Device
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.instrument import Instrument
from perfkit.base.machine import Provenance, facts, stamp
from perfkit.base.plain import fields
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.memory.allocator import AllocatorMeter, AllocatorUse
from perfkit.memory.categories import CATEGORIES, INPUTS, OTHER, by_name
from perfkit.memory.curve import NO_CURVE, Curve, curve_of
from perfkit.memory.ledger import Ledger, Totals
from perfkit.memory.out_of_memory import ask_for_less, is_out_of_memory, remedies, requested_bytes
from perfkit.memory.places import (
    FunctionLine,
    LineMemory,
    ModuleMemory,
    by_line,
    by_module,
    function_lines,
)
from perfkit.memory.resident import Resident, ResidentMeter

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from perfkit.memory.tracker import Tracker

_T = TypeVar("_T")

# In "other", and in what is made and freed before the model runs (one picture decoded, or a whole
# batch scaled), can be what grows with the batch and what does not: from this share of the peak
# on, not counting what was there at the start, half the batch is not predicted.
_UNKNOWN_SHARE = 0.1
# A batch of half the size that saves less than this share of the peak is not worth a word.
_SAVING_SHARE = 0.05

#: Tensors alive at the end that no operator has touched are worth a word from this share of
#: the end's total on; below it they are random-number states and the like.
_UNSEEN_SHARE = 0.01


_COMPILED = (
    "torch.compile'd code exists in this process: tensors inside it cannot be seen, so where it "
    "ran the split is partial, and on a CPU the peak too low (compare with the model uncompiled)"
)
_UNCOMPILED = (
    "torch.compile'd code exists in this process: with this torch it runs uncompiled while memory "
    "is counted, and may stay so: call torch.compiler.reset() before timing anything"
)


@dataclass(frozen=True)
class DeviceAccount:
    """The memory of one device during a region. All sizes in bytes.

    Attributes:
        device: ``"cpu"`` or ``"cuda:0"``.
        start_bytes: held by tensors when the region began.
        peak_bytes: the most held at once. On CUDA the allocator's own peak, on a CPU the sum
            of all storages.
        end_bytes: held when the region ended.
        at_start_bytes, at_peak_bytes, at_end_bytes: the same by category; each adds up to its
            total exactly. See :mod:`perfkit.memory.tracker` for how a category is chosen.
        n_allocations: storages made by operators in the region.
        allocator: the CUDA allocator's counters; None on a CPU.
        by_module, by_line: the peak by module and by source line, most bytes first; each adds
            up to the peak exactly.
        curve: bytes held by tensors over the region.
        function_lines: the lines of the functions that were watched.
        freed_bytes: held by tensors at the start, and no longer at the end.
        half_batch_peak_bytes: predicted peak with half the batch. At each moment of the region
            inputs, activations and the temporaries of forward and backward are halved, all else
            (parameters, gradients and what a backward pass adds to them, buffers, optimizer state
            and its temporaries, other, and the activations that were there before the region)
            stays; the highest moment counts.
            None where no inputs were seen, where a batch of half the size would save less than
            5 %, where the categories are not known, or where it hangs on temporaries made before
            the model runs, which may be of one sample.
    """

    device: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    at_start_bytes: Mapping[str, int]
    at_peak_bytes: Mapping[str, int]
    at_end_bytes: Mapping[str, int]
    n_allocations: int
    allocator: AllocatorUse | None = None
    by_module: tuple[ModuleMemory, ...] = ()
    by_line: tuple[LineMemory, ...] = ()
    curve: Curve = NO_CURVE
    function_lines: tuple[FunctionLine, ...] = ()
    freed_bytes: int = 0
    half_batch_peak_bytes: int | None = None

    @property
    def left_behind_bytes(self) -> int:
        """End minus start; negative when more from before was freed than the region left."""
        return self.end_bytes - self.start_bytes

    @property
    def kept_bytes(self) -> int:
        """What the region made and left, whatever died meanwhile of what was there before."""
        return max(self.left_behind_bytes + self.freed_bytes, 0)

    @property
    def rise_bytes(self) -> int:
        """The peak above the start."""
        return self.peak_bytes - self.start_bytes

    @property
    def left_behind_by_category_bytes(self) -> dict[str, int]:
        """What stayed behind by category; a negative figure was freed."""
        return {name: self.at_end_bytes[name] - self.at_start_bytes[name] for name in CATEGORIES}

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, "left_behind_bytes", "kept_bytes", "rise_bytes")


@dataclass(frozen=True)
class MemoryAccount(Shown):
    """What a region did to memory, on every device that it used.

    The account itself has the figures of the main device: of those that the region used, the GPU
    with the highest peak, else the CPU. ``devices`` has them all.

    Attributes:
        devices: one account per device, the main one first; never empty.
        resident: the process's resident set beside them, which is not tensor memory.
        n_operators: operators seen that could have made a tensor.
        n_steps: optimizer steps seen; those within one backward pass count as one.
        seconds: how long the region took with the counting, in seconds.
        ended_by: the type of the exception that ended the region; empty when it ended well.
        complete: False where counting ended before the code did, after the steps asked for.
        out_of_memory: the region ended because memory ran out.
        requested_bytes: the size of the allocation that failed, in bytes; None if unknown.
        counted: False where counting failed before it saw anything; every figure is then 0.
    """

    devices: tuple[DeviceAccount, ...]
    resident: Resident
    n_operators: int
    n_steps: int
    seconds: float
    ended_by: str
    complete: bool
    warnings: tuple[str, ...]
    provenance: Provenance
    out_of_memory: bool = False
    requested_bytes: int | None = None
    counted: bool = True

    @property
    def would_help(self) -> tuple[str, ...]:
        """What would bring the peak down, the most first; told when memory ran out."""
        main, asked = self.devices[0], self.requested_bytes
        found = remedies(main.at_peak_bytes, main.at_start_bytes, main.allocator)
        if asked is None or asked <= main.peak_bytes:
            return found
        # more than all that ever was alive
        capacity = facts().ram_bytes if main.device == "cpu" else None
        first = ask_for_less(asked, main.peak_bytes, capacity, held_is_peak=True)
        return (first,) if capacity is not None and asked > capacity else (first, *found)

    @property
    def device(self) -> str:
        """The main device: ``"cpu"`` or ``"cuda:0"``."""
        return self.devices[0].device

    @property
    def start_bytes(self) -> int:
        """Bytes held by tensors at the start."""
        return self.devices[0].start_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes held by tensors at once (a GPU: allocated by the allocator)."""
        return self.devices[0].peak_bytes

    @property
    def half_batch_peak_bytes(self) -> int | None:
        """Predicted peak with half the batch; None where it is unknown."""
        return self.devices[0].half_batch_peak_bytes

    @property
    def end_bytes(self) -> int:
        """Bytes held by tensors at the end."""
        return self.devices[0].end_bytes

    @property
    def left_behind_bytes(self) -> int:
        """End minus start."""
        return self.devices[0].left_behind_bytes

    @property
    def at_start_bytes(self) -> Mapping[str, int]:
        """Bytes at the start by category."""
        return self.devices[0].at_start_bytes

    @property
    def at_peak_bytes(self) -> Mapping[str, int]:
        """Bytes at the peak by category; adds up to ``peak_bytes``."""
        return self.devices[0].at_peak_bytes

    @property
    def at_end_bytes(self) -> Mapping[str, int]:
        """Bytes at the end by category."""
        return self.devices[0].at_end_bytes

    @property
    def by_module(self) -> tuple[ModuleMemory, ...]:
        """The peak by module, most bytes first; adds up to ``peak_bytes``."""
        return self.devices[0].by_module

    @property
    def by_line(self) -> tuple[LineMemory, ...]:
        """The peak by the source line that made it, most bytes first; adds up likewise."""
        return self.devices[0].by_line

    @property
    def curve(self) -> Curve:
        """Bytes held by tensors over the region, with the peak marked."""
        return self.devices[0].curve

    @property
    def function_lines(self) -> tuple[FunctionLine, ...]:
        """The lines of the functions that were watched, in the order of the source."""
        return self.devices[0].function_lines

    @property
    def reserved_bytes(self) -> int | None:
        """CUDA: reserved by the allocator at the end; None on a CPU."""
        allocator = self.devices[0].allocator
        return allocator.reserved_after_bytes if allocator else None

    @property
    def peak_reserved_bytes(self) -> int | None:
        """CUDA: the most reserved by the allocator at once; None on a CPU."""
        allocator = self.devices[0].allocator
        return allocator.peak_reserved_bytes if allocator else None

    @property
    def did_nothing(self) -> bool:
        """No tensor was made or freed in the region."""
        return self.n_operators == 0 and all(
            d.n_allocations == 0 and d.left_behind_bytes == 0 for d in self.devices
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        of_the_device = (
            "device",
            "peak_bytes",
            "half_batch_peak_bytes",
            "left_behind_bytes",
            "at_peak_bytes",
        )
        would_help = self.would_help if self.out_of_memory else ()
        return fields(self, *of_the_device, type="memory", would_help=would_help)


class Accountant:
    """Counts the memory of the code inside its ``with`` block.

    ::

        with Accountant() as accountant:
            train_one_step()
        print(accountant.result)

    An exception passes through unchanged; ``result`` then tells what was seen until it came.
    Accountants may be nested. Each takes stock of all tensors of the process at both ends (20 to
    100 ms); between them an operator costs a few microseconds more.
    """

    def __init__(
        self,
        *,
        model: nn.Module | Iterable[nn.Module] | None = None,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        max_steps: int | None = None,
        names: Mapping[str, nn.Module] | None = None,
        watch: Iterable[Callable[..., Any]] = (),
        command: str | None = None,
        device: Device | None = None,
    ) -> None:
        """Nothing is counted before the ``with`` block.

        Args:
            model: the model or models, where they are known. Others are found.
            optimizer: the optimizer or optimizers, where they are known. Others are found.
            max_steps: stop counting after so many optimizer steps.
            names: modules by the names under which the user knows them.
            watch: functions of the user's, to tell the memory of each of their lines.
            command: what is run, for the provenance.
            device: the kind of device to ask; the one in use unless a test gives another.

        Raises:
            UsageError: ``model``, ``optimizer``, ``max_steps`` or ``watch`` is not what it should
                be.
        """
        from torch import nn
        from torch.optim import Optimizer

        self._models = _listed(model, nn.Module, "model")
        self._optimizers = _listed(optimizer, Optimizer, "optimizer")
        if max_steps is not None and max_steps < 1:
            raise UsageError(f"max_steps is {max_steps}; count at least 1 step")
        self._max_steps = max_steps
        self._names = dict(names or {})
        self._watch = tuple(_code_of(function) for function in watch)
        self._command = command
        self._allocator = AllocatorMeter(device)
        self._resident = ResidentMeter()
        self._tracker: Tracker | None = None
        self._entered = False
        self._instrument = Instrument("the memory account", let_pass=(UsageError,))
        self._began_s = 0.0
        self._ended_by = ""
        self._out_of_memory = False
        self._requested_bytes: int | None = None
        self._result: MemoryAccount | None = None

    @property
    def result(self) -> MemoryAccount:
        """The account of the region.

        Raises:
            UsageError: the region has not ended.
        """
        if self._result is None:
            raise UsageError("the region has not ended: read `result` after the `with` block")
        return self._result

    def failed(self, error: BaseException) -> None:
        """Tell that the region's code raised, for who caught it inside the ``with`` block."""
        self._ended_by = type(error).__name__
        if is_out_of_memory(error):
            self._out_of_memory = True
            self._requested_bytes = requested_bytes(error)

    def __enter__(self) -> Self:
        if self._entered:
            raise UsageError("an Accountant counts one region: make a new one for the next")
        self._entered = True
        self._began_s = time.perf_counter()
        try:
            with self._instrument.guard("getting ready"), Uninterrupted():
                self._start()
        except BaseException:  # Ctrl-C meanwhile
            if self._tracker is not None:
                self._let_go(self._tracker)
            raise
        return self

    def _start(self) -> None:
        from perfkit.memory.tracker import Tracker

        tracker = Tracker(max_steps=self._max_steps, watch=self._watch)
        try:
            self._allocator.start()
            self._resident.start()
            tracker.start(
                modules=self._models,
                optimizers=self._optimizers,
                names=self._names,
                on_last_step=lambda: self._close(complete=False),
            )
        except BaseException:
            self._let_go(tracker)
            raise
        self._tracker = tracker
        self._began_s = time.perf_counter()

    def _let_go(self, tracker: Tracker) -> None:
        tracker.stop()
        self._resident.stop()
        self._allocator.stop()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        surely(lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self.failed(error)
        with self._instrument.guard("reading the end"):
            try:
                self._close(complete=True)
            finally:
                if self._tracker is not None:
                    self._tracker.stop()
        if self._result is None:
            self._result = self._nothing()

    def _close(self, *, complete: bool) -> None:
        """Read the end of the region, once."""
        tracker = self._tracker
        if self._result is not None or tracker is None:
            return
        seconds = time.perf_counter() - self._began_s
        try:
            tracker.end()
        finally:
            resident = self._resident.stop()
            uses = self._allocator.stop()
        devices, warnings = _devices(tracker, uses, ended_well=not self._ended_by)
        # %gpumem lets go of such a traceback, and says so
        warnings += _doubts(tracker, "" if self._out_of_memory else self._ended_by)
        # figures of a GPU are in the report, also where the CPU's come first
        gpu = next((one.allocator for one in devices if one.allocator), None)
        self._result = MemoryAccount(
            devices=devices,
            resident=resident,
            n_operators=tracker.n_operators,
            n_steps=tracker.n_steps,
            seconds=seconds,
            ended_by=self._ended_by,
            complete=complete,
            out_of_memory=self._out_of_memory,
            requested_bytes=self._requested_bytes,
            warnings=tuple(warnings),
            provenance=stamp(command=self._command, device=gpu.name if gpu else "cpu"),
        )

    def _nothing(self) -> MemoryAccount:
        """What is left to say where the counting itself failed."""
        assert self._instrument.failure is not None
        zero = by_name({})
        return MemoryAccount(
            devices=(DeviceAccount("cpu", 0, 0, 0, zero, zero, zero, n_allocations=0),),
            resident=Resident(0, 0, None, "nothing was counted"),
            n_operators=0,
            n_steps=0,
            seconds=time.perf_counter() - self._began_s,
            ended_by=self._ended_by,
            complete=False,
            counted=False,
            out_of_memory=self._out_of_memory,
            requested_bytes=self._requested_bytes,
            warnings=(self._instrument.failure.sentence(),),
            provenance=stamp(command=self._command),
        )


def account(
    step: Callable[[], Any],
    *,
    model: nn.Module | Iterable[nn.Module] | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
) -> MemoryAccount:
    """Run ``step()`` once and account for its memory, by category, module and source line.

    The first step of a training run differs from the others, because it creates the gradients and
    the optimizer's state. For the steady state, run one step before.

    Args:
        step: a function without arguments.
        model: the model or models; by default all that are alive.
        optimizer: the optimizer or optimizers; by default all that are alive.

    Returns:
        A :class:`MemoryAccount`, with figures in bytes: ``peak_bytes``, ``left_behind_bytes``,
        ``at_peak_bytes`` by category, ``by_module``. Print it for the tables.

    Raises:
        UsageError: an argument has the wrong type. What ``step`` raises propagates.

    Example::

        >>> model = torch.nn.Linear(1024, 1024)
        >>> found = perfkit.account(lambda: model(torch.rand(64, 1024)).sum().backward())
        >>> print(found)
        >>> found.peak_bytes
    """
    check_function("step", step)
    with Accountant(model=model, optimizer=optimizer) as accountant:
        step()
    return accountant.result


def _code_of(function: Any) -> CodeType:
    from torch import nn

    if isinstance(function, nn.Module):
        function = type(function).forward
    try:
        plain: Any = inspect.unwrap(function)
        code = getattr(getattr(plain, "__func__", plain), "__code__", None)
    except ValueError:
        code = None
    if not isinstance(code, CodeType):
        raise UsageError(f"{function!r} has no lines to watch; give a function written in Python")
    return code


def _listed(value: Any, kind: type[_T], name: str) -> tuple[_T, ...]:
    if value is None:
        return ()
    # nn.Sequential is a module that can be iterated over: the type decides first
    items = (value,) if isinstance(value, kind) else value
    try:
        found = tuple(items)
    except TypeError:
        found = (value,)
    for item in found:
        if not isinstance(item, kind):
            raise UsageError(
                f"{name} is a {type(item).__name__}; give a torch {kind.__name__} or several"
            )
    return found


def _devices(
    tracker: Tracker, uses: tuple[AllocatorUse, ...], *, ended_well: bool
) -> tuple[tuple[DeviceAccount, ...], list[str]]:
    """One account per device: those that the region used first, GPUs before the CPU."""
    warnings: list[str] = []
    found: list[DeviceAccount] = []
    books = {str(device): ledger for device, ledger in tracker.ledgers.items()}
    by_device = {use.place: use for use in uses}
    # what was not seen cannot be split
    all_seen = not (tracker.compiled or tracker.cuda_graphs or tracker.n_unreadable)
    for device in sorted({*books, *by_device, "cpu"}):
        ledger = books.get(device)
        totals = (ledger or Ledger()).totals()
        n_allocations = ledger.n_allocations if ledger else 0
        use = by_device.get(device)
        sums: tuple[int, ...]
        if use is None:
            sums = (totals.start_bytes, totals.peak_bytes, totals.end_bytes)
        else:
            sums = (use.allocated_before_bytes, use.peak_allocated_bytes, use.allocated_after_bytes)
            warnings += use.warnings
        splits = (totals.at_start, totals.at_peak, totals.at_end)
        tensors = tuple(sum(split.values()) for split in splits)
        if any(seen > total for seen, total in zip(tensors, sums, strict=True)):
            warnings.append(
                f"{device}: tensors hold more than its allocator gave out (memory of another "
                "allocator or library); the larger figure is shown"
            )
            sums = tuple(map(max, tensors, sums))
        parts = [
            # what no tensor explains is `other`: workspaces, rounding, other threads' work
            by_name(split | {OTHER: split.get(OTHER, 0) + total - seen})
            for split, seen, total in zip(splits, tensors, sums, strict=True)
        ]
        found.append(
            DeviceAccount(
                device=device,
                start_bytes=sums[0],
                peak_bytes=sums[1],
                end_bytes=sums[2],
                at_start_bytes=parts[0],
                at_peak_bytes=parts[1],
                at_end_bytes=parts[2],
                n_allocations=n_allocations,
                allocator=use,
                by_module=by_module(totals, sums[1] - tensors[1]),
                by_line=by_line(totals, sums[1] - tensors[1]),
                curve=curve_of(totals),
                function_lines=function_lines(totals),
                freed_bytes=totals.freed_bytes,
                half_batch_peak_bytes=_half_batch(totals, parts, sums[1], sums[1] - tensors[1])
                if ended_well and all_seen
                else None,
            )
        )
    # of a GPU that holds nothing and was left alone there is nothing to say
    found = [d for d in found if d.device == "cpu" or d.peak_bytes or _is_touched(d)]
    # a GPU that the region left alone is in use elsewhere in this process
    found.sort(key=lambda d: (not _is_touched(d), d.device == "cpu", -d.peak_bytes))
    return tuple(found), warnings


def _is_touched(device: DeviceAccount) -> bool:
    return bool(
        device.n_allocations
        or device.rise_bytes
        or device.left_behind_bytes
        or (device.allocator is not None and device.allocator.was_asked)
    )


def _half_batch(
    totals: Totals, parts: Sequence[Mapping[str, int]], peak_bytes: int, not_tensors_bytes: int
) -> int | None:
    """The predicted peak with half the batch; see :class:`DeviceAccount`."""
    at_start, at_peak, _ = parts
    unknown = at_peak["other"] - at_start["other"]
    inputs_seen = any(point.by_category.get(INPUTS) for point in totals.curve)
    half = totals.half_batch_bytes + not_tensors_bytes
    spread = totals.half_batch_at_most_bytes - totals.half_batch_bytes
    if not inputs_seen or unknown + spread > _UNKNOWN_SHARE * peak_bytes:
        return None
    return half if peak_bytes - half >= _SAVING_SHARE * peak_bytes > 0 else None


def _doubts(tracker: Tracker, ended_by: str) -> list[str]:
    doubts = []
    if tracker.instrument.failure is not None:
        doubts.append(tracker.instrument.failure.sentence())
    if tracker.was_lost:
        doubts.append(torch_compat.WAS_LOST)
    if tracker.compiled:
        doubts.append(_COMPILED if torch_compat.modes_spare_compiled_code() else _UNCOMPILED)
    if tracker.cuda_graphs:
        doubts.append("a CUDA graph exists in this process: what its replays do is not split")
    if tracker.n_unreadable:
        doubts.append(
            "tensors whose storage cannot be read (MKL-DNN layouts and the like) are not counted; "
            f"operators met {fmt_count(tracker.n_unreadable)} of them"
        )
    end_bytes = sum(ledger.totals().end_bytes for ledger in tracker.ledgers.values())
    if tracker.unseen_bytes > _UNSEEN_SHARE * max(end_bytes, 1):
        doubts.append(
            f"{fmt_bytes(tracker.unseen_bytes)} of tensors alive at the end were made "
            "elsewhere (numpy, another thread) and touched by no operator; they are not counted"
        )
    if tracker.cut_short:
        doubts.append("an autograd graph from before was too large to be counted in full")
    if ended_by:
        doubts.append(
            f"ended by {ended_by}: its traceback keeps the variables of the functions that it "
            "went through, so part of what stayed behind goes when the exception is forgotten"
        )
    return doubts
