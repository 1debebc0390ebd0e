"""What perfkit asks of a device, and the null device's answers.

A :class:`Device` is one kind of device, such as all CUDA devices of this process; its methods take
an index. A new kind of device is a subclass, named in :mod:`perfkit.base.device`; a program can add
one of its own with :func:`perfkit.base.device.register`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class ProfilerNames:
    """What torch's profiler calls things on a device.

    Attributes:
        activity: name of the device in ``torch.profiler.ProfilerActivity``.
        type_numbers: its numbers in ``c10::DeviceType``, as in a trace's memory events.
        runtime_categories: categories of the host's calls to the device.
        sync_categories: categories of waits on the device's side.
        waits: regular expression of the calls in which the host waits; empty if none is known.
        copies: of those that copy.
        blocking_copies: of the copies that return only when the copy is done, whatever the memory.
        allocations: names of the calls that take memory from the device or give it back.
        needed_by: regular expression of operators and labels that need such a device.
    """

    activity: str
    type_numbers: tuple[int, ...]
    runtime_categories: tuple[str, ...] = ()
    sync_categories: tuple[str, ...] = ()
    waits: str = ""
    copies: str = ""
    blocking_copies: str = ""
    allocations: tuple[str, ...] = ()
    needed_by: str = ""


class GraphedStep(Protocol):
    """A step that is captured once and replayed."""

    def warm_up(self, step: Callable[[], Any]) -> Any:
        """Run ``step()`` on a stream of its own, as runs before a capture must; its result."""

    def capture(self, step: Callable[[], Any]) -> Any:
        """Capture ``step()``; returns its result, which every replay overwrites."""

    def replay(self) -> None:
        """Run what was captured."""


class Device:
    """The null device, and the base of the others: there is nothing to wait for or to count.

    A method that needs torch imports it itself; :meth:`is_initialised` must not.

    Attributes:
        type: torch's name of the device type, e.g. ``"cuda"``.
        label: its name in words, e.g. ``"CUDA"``.
        profiler: what the profiler calls things there; None without device activity.
        alloc_call, free_call: the calls with which the allocator takes memory from the device and
            gives it back, for messages.
        has_graphs: whether a step can be captured and replayed (:meth:`graphed_step`).
        has_tf32: whether float32 products and convolutions can be told to use TF32.
        has_float64: whether it computes in float64.
        keeps_history: whether the allocator can record its history.
        out_of_memory: regular expression of what the message of an out-of-memory error names if it
            is the device's.
        out_of_memory_index: one whose groups are the device's index in such a message.
    """

    type: str = "cpu"
    label: str = "CPU"
    profiler: ProfilerNames | None = None
    alloc_call: str = "allocation"
    free_call: str = "free"
    has_graphs: bool = False
    has_tf32: bool = False
    has_float64: bool = True
    keeps_history: bool = False
    out_of_memory: str = ""
    out_of_memory_index: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    # --- presence -----------------------------------------------------------------------------

    @property
    def is_cpu(self) -> bool:
        """Whether this is the null device."""
        return self.type == "cpu"

    def is_available(self) -> bool:
        """Whether this machine has one that torch can use. Imports torch."""
        return True

    def is_initialised(self) -> bool:
        """Whether this process uses it already. Neither imports torch nor initialises anything."""
        return True

    def devices(self) -> Sequence[int]:
        """Indices of those that this process uses; initialises nothing."""
        return ()

    def count(self) -> int:
        """How many torch sees."""
        return 0

    def current(self) -> int:
        """Index of torch's current device; may initialise it."""
        return 0

    # --- names --------------------------------------------------------------------------------

    def place(self, index: int = 0) -> str:
        """As torch writes it: ``"cpu"``, ``"cuda:0"``."""
        return self.type if self.is_cpu else f"{self.type}:{index}"

    def name(self, index: int) -> str:
        """What the vendor calls it, e.g. ``"NVIDIA H200"``; its :meth:`place` if unknown."""
        return self.place(index)

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor is on a device of this type; False for the null device."""
        return not self.is_cpu and bool(tensor.device.type == self.type)

    # --- time ---------------------------------------------------------------------------------

    def synchronize(self, index: int) -> None:
        """Wait until it has done everything queued so far.

        Raises:
            RuntimeError: something queued earlier failed.
        """

    def event(self) -> Any:
        """A new event: ``record(stream)``, ``synchronize()``, ``elapsed_time(later)`` in ms."""
        raise NotImplementedError(f"{self.label} has no events")

    def stream(self, index: int) -> Any:
        """The current stream, on which events are recorded."""
        raise NotImplementedError(f"{self.label} has no streams")

    def is_capturing(self) -> bool:
        """Whether a graph is being captured, so that waiting is forbidden. Initialises nothing."""
        return False

    # --- memory, in bytes ---------------------------------------------------------------------

    def allocated(self, index: int) -> int:
        """What tensors hold."""
        return 0

    def peak_allocated(self, index: int) -> int:
        """The most that tensors held since the last reset."""
        return 0

    def stats(self, index: int) -> Mapping[str, int]:
        """The allocator's counters under the names of ``torch.cuda.memory_stats``; empty if none.

        Those used: ``allocated_bytes.all.current`` and ``.peak``, the same of ``reserved_bytes``,
        ``num_alloc_retries``, ``num_ooms``, ``num_device_alloc``, ``num_device_free``.
        """
        return {}

    def reset_peaks(self, index: int) -> None:
        """Set the peaks back to what is allocated and reserved now."""

    def total_bytes(self, index: int) -> int | None:
        """Memory of the device; None if it does not say."""
        return None

    def compute_capability(self, index: int) -> tuple[int, int] | None:
        """NVIDIA's version of what a GPU can do, e.g. ``(9, 0)``; None elsewhere."""
        return None

    def utilisation(self, index: int) -> float | None:
        """Share of the recent past in which it was busy, in percent; None if it does not say."""
        return None

    def uuid(self, index: int) -> str | None:
        """What its driver calls the device, whatever torch's index: ``"GPU-…"``; None elsewhere."""
        return None

    # --- what else torch offers ---------------------------------------------------------------

    def graph_type(self) -> Any:
        """The class of torch's captured graphs there; None if there is none."""
        return None

    def graphed_step(self) -> GraphedStep:
        """Where ``has_graphs``: an empty graph to capture a step into."""
        raise NotImplementedError(f"{self.label} has no graphs")

    def waiting_functions(self) -> tuple[Any, tuple[str, ...]] | None:
        """The module with the functions that wait for the device, and their names.

        They are there in every build of torch, for code that is looked at without a device.
        """
        return None

    def waitable_types(self) -> tuple[Any, ...]:
        """The classes of torch whose ``synchronize()`` waits for the device."""
        return ()

    def tf32_allowed(self) -> tuple[bool, bool]:
        """Whether float32 matrix products, and convolutions, may use TF32."""
        return False, False
