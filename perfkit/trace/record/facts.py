"""What a trace does not say about the run: how its optimizers and torch are set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base import torch_compat
from perfkit.base.collector import CollectorTime
from perfkit.base.compiling import CompileReport, CompileWatch
from perfkit.base.device import in_use
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.machine._host import usable_cpus
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention
from perfkit.base.process_memory import peak_of_memory

if TYPE_CHECKING:  # no loader may be used
    from perfkit.base.machine.dataloader_stats import DataLoaderSampler, DataLoaderStats

# The recorded steps may be too short to show a busy machine; then the whole region decides.
_LEAST_BUSY_S = 0.5
# What a step feels of Python's garbage collections are the few long ones.
_SHORTEST_NS = 100_000


@dataclass(frozen=True)
class OptimizerFacts:
    """How an optimizer is set up: dtypes of parameters, with how many elements if that is known."""

    name: str
    n_tensors: int
    dtypes: tuple[str, ...]
    elements: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What was known about the run while it was recorded; all None or empty for a file.

    Attributes:
        optimizers: in the order in which they first stepped.
        gc_pauses_ms: how long each of Python's garbage collections in the profiled steps took.
        loading: what DataLoader workers and the training thread did with their time.
        compiled: what ``torch.compile`` did in all of the region; None if nothing.
        expandable_segments: whether the segments of the device's allocator could grow.
        memory: the most bytes that the process has held, on its device if it uses one, of how many.
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    n_threads: int | None = None
    n_cores: int | None = None
    gc_pauses_ms: tuple[float, ...] = ()
    loading: DataLoaderStats | None = None
    compiled: CompileReport | None = None
    expandable_segments: bool | None = None
    memory: tuple[int, int] | None = None


class FactsWatch:
    """Looks at what no trace says, until :meth:`close`; each look is between two steps.

    Attributes:
        loaders: looks at the workers of DataLoaders, at each step's end; None where none is used.
        collector: listens to garbage collections; off while perfkit itself is at work.
    """

    def __init__(self) -> None:
        self.contention: CpuContention | None = None
        self._compiled: CompileReport | None = None
        self.loaders: DataLoaderSampler | None = None
        self.collector = CollectorTime(least_ns=_SHORTEST_NS)
        self._gc_pauses_ms: tuple[float, ...] = ()
        self._instrument = Instrument("the look whether a DataLoader is used")
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin, in the thread whose steps are recorded."""
        self._mark = ContentionMark()
        self._compile_watch = CompileWatch()
        guarded = self._instrument.hook
        self._undo = [self.collector.stop]
        self._undo.append(torch_compat.watch_loader_iterators(guarded(self._loader_is_used)))
        self.collector.start()

    def close(self) -> None:
        for call in self._undo:
            call()

    def _loader_is_used(self, is_batch: bool, source: Any) -> None:
        if self.loaders is None:
            from perfkit.base.machine.dataloader_stats import DataLoaderSampler

            self.loaders = DataLoaderSampler()

    @property
    def failure(self) -> Failure | None:
        loaders = None if self.loaders is None else self.loaders.instrument.failure
        return self._instrument.failure or self.collector.instrument.failure or loaders

    def recording_begins(self, *, late: bool) -> None:
        """The steps that follow are recorded."""
        self.collector.start()
        if late:
            self._mark = ContentionMark()

    def recording_pauses(self) -> None:
        """What follows is not recorded, for now."""
        self.collector.stop()

    def recording_ends(self, *, has_steps: bool) -> None:
        """Recording ends: the collector's later runs are of no recorded step."""
        self.close()
        self._gc_pauses_ms = tuple(ns / 1e6 for ns in self.collector.take())
        if has_steps:
            self.contention = self._mark.until_now()
        if self.loaders is not None:
            self.loaders.look(now=True)

    def region_ends(self) -> None:
        found = self._compile_watch.report()
        self._compiled = None if found.is_empty else found
        if self.contention is None or self.contention.wall_s < _LEAST_BUSY_S:
            self.contention = self._mark.until_now()

    def result(self, optimizers: tuple[OptimizerFacts, ...]) -> Facts:
        import torch

        expandable = None if in_use().is_cpu else torch_compat.has_expandable_segments()
        return Facts(
            optimizers=optimizers,
            n_threads=torch.get_num_threads(),
            n_cores=usable_cpus(),
            gc_pauses_ms=self._gc_pauses_ms,
            loading=None if self.loaders is None else self.loaders.result(),
            compiled=self._compiled,
            expandable_segments=expandable,
            memory=peak_of_memory(),
        )


def optimizer_facts(optimizer: Any) -> OptimizerFacts:
    """Read an optimizer's settings; any object with ``param_groups`` will do."""
    groups = [g for g in getattr(optimizer, "param_groups", ()) if isinstance(g, Mapping)]
    tensors = [p for g in groups for p in g.get("params", ())]
    elements: dict[str, int] = {}
    for p in tensors:
        dtype = str(p.dtype).removeprefix("torch.")
        elements[dtype] = elements.get(dtype, 0) + _n_elements(p)
    dtypes = tuple(sorted(elements))
    return OptimizerFacts(
        name=type(optimizer).__name__,
        n_tensors=len(tensors),
        dtypes=dtypes,
        elements=tuple(elements[dtype] for dtype in dtypes),
    )


def _n_elements(parameter: Any) -> int:
    try:
        return int(parameter.numel())
    except (RuntimeError, ValueError):  # one that is to get its shape later
        return 0
