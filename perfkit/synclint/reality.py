"""What a real GPU's host waited for, beside what was predicted.

The run is traced, each operator under a label that stands for a line: in the backward pass for the
line of the forward pass that it belongs to. The profiler records every call of the runtime with its
duration, and one that waited inside a label is a wait of that line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from perfkit.base import torch_compat
from perfkit.base.device import accelerators, here
from perfkit.base.errors import MeasurementError, ProfilerBusyError, TraceError
from perfkit.base.instrument import Instrument
from perfkit.base.machine import stamp
from perfkit.base.source import statement
from perfkit.base.user_code import where
from perfkit.base.words import fmt_ms, plural
from perfkit.synclint.catalogue import CATALOGUE
from perfkit.synclint.find import (
    AS_PREDICTED,
    NOT_PREDICTED,
    NOT_SEEN,
    SyncLine,
    SyncLines,
    find_syncs,
    syncs_of,
)
from perfkit.synclint.sites import Site, spelled
from perfkit.trace.ask.waits import Wait, waits_under
from perfkit.trace.read.columns import Category
from perfkit.trace.record.record import UNFINISHED_MARK, Recorder

if TYPE_CHECKING:
    import torch

# these wait, and no trace says so: empty_cache is a cudaFree, and the gradient of a product waits
# unless an operator is watched, which makes torch take another formula
_UNSEEN = frozenset(
    [CATALOGUE["prod"].op, *(f"torch.{kind.type}.empty_cache" for kind in accelerators())]
)

# what is written of a copy to the device
_COPYING = (".to(", ".cuda(", "device=", "as_tensor(", "tensor(")

_LABEL = "perfkit line "


class Tracer:
    """Context manager in the watched run; afterwards :meth:`waits` says which lines waited.

    Attributes:
        missing: why there is no trace of all of the run; empty where there is one.
        pause: a context in which the watch does not look; the watch sets it.
    """

    def __init__(self, *, late: bool = False) -> None:
        self.missing = "the run had no part that is traced"
        self.pause: Callable[[], AbstractContextManager[None]] = nullcontext
        self._late = late
        self._recorder: Recorder | None = None
        self._numbers: dict[Site | None, int] = {}
        self._count = itertools.count()
        self._instrument = Instrument("the tracer of waits")

    def __enter__(self) -> Self:
        with self._instrument.guard("starting"):
            if not self._late:
                self.begin()
        return self

    def begin(self) -> None:
        """Count from here on; once."""
        if self._recorder is not None:
            return
        # what its events may take in memory ends it sooner than these numbers
        self._recorder = Recorder(steps=10**9, warmup=0, lines=False, max_seconds=3600.0)
        self.missing = ""
        with self.pause():
            try:
                self._recorder.start()
            except ProfilerBusyError as error:
                self.missing = str(error)

    def __exit__(self, *error: object) -> None:
        with self._instrument.guard("ending"):
            if (recorder := self._recorder) is not None:
                if recorder.is_done and not self.missing:
                    self.missing = (
                        "this code runs a torch profiler of its own, and torch runs one at a time"
                        if recorder.gave_way
                        else "the trace took too much memory, and ended before the run did"
                    )
                with self.pause():
                    recorder.stop()
                if recorder.failure is not None:
                    self.missing = recorder.failure.sentence()
        if self._instrument.failure is not None:
            self.missing = self._instrument.failure.sentence()

    def label(self, site: Site | None) -> AbstractContextManager[Any]:
        """Around one operator of this line."""
        if self._recorder is None or self._recorder.is_done:
            return nullcontext()
        number = self._numbers.get(site)
        if number is None:  # two backward threads may ask at once: none gets the other's number
            number = self._numbers.setdefault(site, next(self._count))
        return torch_compat.profiler_label(f"{_LABEL}{number}")

    def waits(self) -> list[tuple[Site | None, Wait]]:
        """The waits in the order in which they happened, each with its line.

        The line is None where the host waited outside of torch's operators. Call it after the
        block; where nothing can be told it is empty, and ``missing`` says why.
        """
        if self._recorder is None or self.missing:
            return []
        try:
            trace = self._recorder.recording.trace
        except (MeasurementError, TraceError, OSError) as error:
            self.missing = str(error)
            return []
        if not trace.is_a(Category.RUNTIME).any():
            self.missing = (
                "the profiler recorded no calls of the CUDA runtime (CUPTI is missing, or this "
                "user may not use it)"
            )
            return []
        # what comes after this mark is the profiler's own
        end = trace.end_ns[trace.named(UNFINISHED_MARK.__eq__)].max(initial=0)
        lines = {f"{_LABEL}{number}": line for line, number in self._numbers.items()}
        return [
            (lines.get(wait.label), wait)
            for wait in waits_under(trace, lambda name: name.startswith(_LABEL))
            if wait.start_ns < end
        ]


def lint(
    run: Callable[[], object], model: torch.nn.Module | None = None, *, late: bool = False
) -> SyncLines:
    """Run it once; on a GPU compare prediction with reality, else only predict.

    With ``late`` the trace starts where the watch starts anew (``SyncWatch.start_anew``); for all
    else see :func:`~perfkit.synclint.find.find_syncs`.
    """
    from perfkit.synclint.watch import SyncWatch

    if here().is_cpu:
        return find_syncs(run, model)
    tracer = Tracer(late=late)
    watch = SyncWatch(model, tracer=tracer)
    with tracer, watch:
        run()
    predicted = syncs_of(watch)
    traced = tracer.waits()
    if watch.saw_gpu and not tracer.missing:
        return _compared(predicted, traced)
    why = tracer.missing if watch.saw_gpu else "this code used no tensor on the GPU"
    predicted.warnings += (f"what the host really waits for was not seen: {why}",)
    return predicted


def _compared(predicted: SyncLines, traced: Sequence[tuple[Site | None, Wait]]) -> SyncLines:
    """Put prediction and reality side by side, line by line."""
    foretold = {sync.at: sync for sync in predicted}
    lines: dict[tuple[str, int], tuple[Site, list[Wait]]] = {}
    for site, wait in traced:
        if site is not None:
            lines.setdefault((site.file, site.line), (site, []))[1].append(wait)
    found = [_happened(*seen, foretold.pop(at, None)) for at, seen in lines.items()]
    for sync in foretold.values():
        found.append(replace(sync, outcome=AS_PREDICTED if sync.op in _UNSEEN else NOT_SEEN))
    warnings = predicted.warnings
    if elsewhere := [wait for site, wait in traced if site is None]:
        calls = ", ".join(sorted({call for wait in elsewhere for call in wait.calls}))
        waited_ms = sum(wait.cost_us for wait in elsewhere) / 1e3
        warnings += (
            f"{plural(len(elsewhere), 'more wait')} ({calls}; {fmt_ms(waited_ms)}) happened "
            "outside of torch's operators: in a library, perhaps, and not on a known line",
        )
    found.sort(key=lambda sync: sync.at)
    return SyncLines(found, provenance=stamp("measured here"), warnings=warnings)


def _happened(site: Site, waits: Sequence[Wait], foretold: SyncLine | None) -> SyncLine:
    waited_ms = sum(wait.cost_us for wait in waits) / 1e3
    if foretold is not None:
        return replace(foretold, count=len(waits), waited_ms=waited_ms, outcome=AS_PREDICTED)
    code = statement(site.file, site.line)
    is_copy = any("HtoD" in wait.copy for wait in waits) or any(word in code for word in _COPYING)
    entry = CATALOGUE["copy_to_device" if is_copy else "other"]
    return SyncLine(
        site.file,
        site.line,
        op=spelled(site) or waits[0].op or waits[0].calls[-1],
        why=entry.why,
        instead=entry.instead,
        count=len(waits),
        code=code,
        place=where(site.file, site.line),
        waited_ms=waited_ms,
        outcome=NOT_PREDICTED,
    )
