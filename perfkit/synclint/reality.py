"""What a real GPU's host waited for, beside what was predicted.

A trace of the run (:mod:`perfkit.synclint.tracer`) has every call of the runtime that waited, and
for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfkit.base.device import accelerators, here
from perfkit.base.display import Shown
from perfkit.base.errors import MissingError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.statement import statement
from perfkit.base.words import fmt_ms, plural
from perfkit.synclint.catalogue import CATALOGUE
from perfkit.synclint.find import SyncLine, SyncLines, find_syncs, syncs_of
from perfkit.synclint.sites import Site, place, spelled
from perfkit.synclint.tracer import Tracer
from perfkit.trace.ask.waits import Wait

if TYPE_CHECKING:
    import torch

# these wait, and no trace says so: empty_cache is a cudaFree, and the gradient of a product waits
# unless an operator is watched, which makes torch take another formula
_UNSEEN = frozenset(
    [CATALOGUE["prod"].op, *(f"torch.{kind.type}.empty_cache" for kind in accelerators())]
)

# what is written of a copy to the device
_COPYING = (".to(", ".cuda(", "device=", "as_tensor(", "tensor(")


@dataclass(frozen=True)
class SyncCheck(Shown):
    """Prediction and reality of one run on a GPU, line by line.

    Attributes:
        predicted: what the operations said.
        happened: where the host waited.
        elsewhere: waits outside of torch's operators, which belong to no line.
        warnings: what makes the comparison doubtful.
        provenance: measured on which GPU.
    """

    predicted: SyncLines
    happened: SyncLines
    elsewhere: tuple[Wait, ...]
    warnings: tuple[str, ...]
    provenance: Provenance

    @property
    def agreed(self) -> tuple[SyncLine, ...]:
        """Lines on which both say so."""
        return tuple(s for s in self.happened if s.at in {p.at for p in self.predicted})

    @property
    def only_predicted(self) -> tuple[SyncLine, ...]:
        """Predicted, and no wait was seen."""
        return tuple(s for s in self.predicted if s.at not in {h.at for h in self.happened})

    @property
    def only_happened(self) -> tuple[SyncLine, ...]:
        """A wait was seen that was not predicted."""
        return tuple(s for s in self.happened if s.at not in {p.at for p in self.predicted})

    @property
    def waited_ms(self) -> float:
        """Host time in all waits of the run, in ms, elsewhere too."""
        lines = sum(sync.waited_ms or 0.0 for sync in self.happened)
        return lines + sum(wait.cost_us for wait in self.elsewhere) / 1e3

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        n = len(self.happened)
        waits = f"The host waited on {plural(n, 'line') if n else 'no line'}"
        if n:
            waits += f" ({fmt_ms(self.waited_ms)} in all, while watched)"
        counts = [
            (len(self.agreed), "as predicted"),
            (len(self.only_happened), "not predicted"),
            (len(self.only_predicted), "predicted that did not happen"),
        ]
        told = ", ".join(f"{count} {how}" for count, how in counts if count)
        return f"{waits}: {told}." if told else f"{waits}, as predicted."

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        names = ("agreed", "only_predicted", "only_happened")
        return {
            "sentence": self.sentence,
            "syncs": [sync.to_dict() for sync in self.happened],
            "predicted": [sync.to_dict() for sync in self.predicted],
            **{name: [list(s.at) for s in getattr(self, name)] for name in names},
            "elsewhere": [
                {"calls": list(wait.calls), "waited_ms": wait.cost_us / 1e3}
                for wait in self.elsewhere
            ],
            "waited_ms": self.waited_ms,
            "warnings": list(self.warnings),
            "provenance": self.provenance.to_dict(),
        }


def check_syncs(step: Callable[[], object], model: torch.nn.Module | None = None) -> SyncCheck:
    """Run ``step()`` twice on a GPU: to warm up, then to compare prediction with reality.

    Raises:
        MissingError: there is no GPU, the step does not use it, or there is no trace of it.
        UsageError: within another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``step`` raises, unchanged.
    """
    if here().is_cpu:
        raise MissingError(
            "check_syncs: there is no GPU here; perfkit.find_syncs predicts without one"
        )
    step()  # the first run loads kernels and makes states, once
    result = lint(step, model)
    if isinstance(result, SyncCheck):
        return result
    raise MissingError(f"check_syncs: {result.warnings[-1]}")


def lint(
    run: Callable[[], object], model: torch.nn.Module | None = None, *, late: bool = False
) -> SyncLines | SyncCheck:
    """Run it once; on a GPU compare prediction with reality, else only predict.

    Args:
        run: what to watch.
        model: see :func:`~perfkit.synclint.find.find_syncs`.
        late: the trace starts where the watch starts anew (``SyncWatch.start_anew``).

    Raises:
        UsageError: within another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``run`` raises, unchanged.
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


def _compared(predicted: SyncLines, traced: Sequence[tuple[Site | None, Wait]]) -> SyncCheck:
    """Put prediction and reality side by side, line by line."""
    foretold = {sync.at: sync for sync in predicted}
    lines: dict[tuple[str, int], tuple[Site, list[Wait]]] = {}
    for site, wait in traced:
        if site is not None:
            lines.setdefault((site.file, site.line), (site, []))[1].append(wait)
    happened = [_happened(*seen, foretold.get(at)) for at, seen in lines.items()]
    happened += [sync for at, sync in foretold.items() if at not in lines and sync.op in _UNSEEN]
    elsewhere = tuple(wait for site, wait in traced if site is None)
    measured = stamp("measured here")
    return SyncCheck(
        predicted=predicted,
        happened=SyncLines(sorted(happened, key=lambda sync: sync.at), provenance=measured),
        elsewhere=elsewhere,
        warnings=(*predicted.warnings, *_told_of(elsewhere)),
        provenance=measured,
    )


def _told_of(elsewhere: Sequence[Wait]) -> Iterator[str]:
    """Waits that belong to no line, in one sentence."""
    if elsewhere:
        n = len(elsewhere)
        calls = ", ".join(sorted({call for wait in elsewhere for call in wait.calls}))
        waited_ms = sum(wait.cost_us for wait in elsewhere) / 1e3
        yield (
            f"{n} more wait{'s' * (n != 1)} ({calls}; {fmt_ms(waited_ms)}) happened outside of "
            "torch's operators: in a library, perhaps, and not on a known line"
        )


def _happened(site: Site, waits: Sequence[Wait], foretold: SyncLine | None) -> SyncLine:
    waited_ms = sum(wait.cost_us for wait in waits) / 1e3
    if foretold is not None:
        return replace(foretold, count=len(waits), waited_ms=waited_ms)
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
        place=place(site.file, site.line),
        waited_ms=waited_ms,
    )
