"""What a real GPU's host waited for, beside what was predicted.

A trace of the run (:mod:`perfkit.synclint.tracer`) has every call of the runtime that waited, and
for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfkit.base.device import accelerators, here
from perfkit.base.errors import MissingError
from perfkit.base.machine import stamp
from perfkit.base.statement import statement
from perfkit.base.words import fmt_ms
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


def check_syncs(step: Callable[[], object], model: torch.nn.Module | None = None) -> SyncLines:
    """Run ``step()`` twice on a GPU: to warm up, then to compare prediction with reality.

    Returns:
        Predicted lines and others that waited, each with its ``outcome``.

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
    if not result.is_measured:
        raise MissingError(f"check_syncs: {result.warnings[-1]}")
    return result


def lint(
    run: Callable[[], object], model: torch.nn.Module | None = None, *, late: bool = False
) -> SyncLines:
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
    return SyncLines(
        sorted(found, key=lambda sync: sync.at),
        provenance=stamp("measured here"),
        warnings=(*predicted.warnings, *_told_of([wait for site, wait in traced if site is None])),
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
        place=place(site.file, site.line),
        waited_ms=waited_ms,
        outcome=NOT_PREDICTED,
    )
