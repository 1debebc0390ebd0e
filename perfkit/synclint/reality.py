"""What a real GPU's host waited for, beside what was predicted.

Two witnesses are heard. A trace of the run (:mod:`perfkit.synclint.tracer`) has every call
of the runtime that waited, and for how long. ``torch.cuda.set_sync_debug_mode("warn")`` makes
torch warn at every wait that goes through its own stream synchronisation and blocking copies; the
warning is caught where it is raised, while the user's line is still on the stack. The debug mode
does not see ``torch.cuda.synchronize()``, nor what a library waits for on its own, and what it
sees in the backward pass it tells where that was started, once it is over. So where there is a
trace, it says which lines waited, and the debug mode adds what the trace has no line for.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perfkit.base.device import accelerators, here
from perfkit.base.display import Shown
from perfkit.base.errors import MissingError
from perfkit.base.instrument import Instrument
from perfkit.base.machine import Provenance, stamp
from perfkit.base.statement import statement
from perfkit.base.words import fmt_ms, plural
from perfkit.synclint.catalogue import CATALOGUE, EXPLICIT
from perfkit.synclint.find import Sync, Syncs, syncs_of
from perfkit.synclint.sites import Site, place, site_of, source_line, spelled
from perfkit.synclint.tracer import TracedWait, Tracer
from perfkit.trace.ask.waits import Wait

if TYPE_CHECKING:
    import torch

# these wait, and neither the debug mode nor (empty_cache, which is a cudaFree) a trace says so; the
# gradient of a product waits unless an operator is watched, which makes torch take another formula
_UNSEEN = frozenset(
    [
        CATALOGUE["wait_for_stream"].op,
        CATALOGUE["prod"].op,
        *(f"torch.{kind.type}.{name}" for kind in accelerators() for name in EXPLICIT),
    ]
)

Line = tuple[str, int]


@dataclass(frozen=True)
class SyncCheck(Shown):
    """Prediction and reality of one run on a GPU, line by line.

    Attributes:
        predicted: what the operations said.
        happened: where the host waited.
        agreed: lines on which both say so.
        only_predicted: predicted, and no wait was seen.
        only_happened: a wait was seen that was not predicted.
        elsewhere: waits outside of torch's operators, which belong to no line.
        traced: whether a trace of all of the run was there; else these are the waits that torch's
            debug mode reports.
        warnings: what makes the comparison doubtful.
        provenance: measured on which GPU.
    """

    predicted: Syncs
    happened: Syncs
    agreed: tuple[Sync, ...]
    only_predicted: tuple[Sync, ...]
    only_happened: tuple[Sync, ...]
    elsewhere: tuple[TracedWait, ...]
    traced: bool
    warnings: tuple[str, ...]
    provenance: Provenance

    @property
    def waited_ms(self) -> float | None:
        """Host time in all waits of the run, in ms, elsewhere too; None without a trace."""
        if not self.traced:
            return None
        lines = sum(sync.waited_ms or 0.0 for sync in self.happened)
        return lines + sum(one.wait.cost_us for one in self.elsewhere) / 1e3

    @property
    def sentence(self) -> str:
        """How well the prediction did, in one sentence."""
        n = len(self.happened)
        waits = f"The host waited on {plural(n, 'line') if n else 'no line'}"
        if self.waited_ms is not None and n:
            waits += f" ({fmt_ms(self.waited_ms)} in all, while watched)"
        if not self.only_predicted and not self.only_happened:
            return f"{waits}, all of them as predicted." if n else f"{waits}, as predicted."
        counts = [(len(self.agreed), "as predicted"), (len(self.only_happened), "not predicted")]
        told = ", ".join(f"{count} {how}" for count, how in counts if count)
        missing = len(self.only_predicted)
        more = f"{missing} predicted that did not happen" if missing else ""
        return f"{waits}: {'; '.join(filter(None, (told, more)))}."

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        names = ("agreed", "only_predicted", "only_happened")
        return {
            "sentence": self.sentence,
            "syncs": [sync.to_dict() for sync in self.happened],
            "predicted": [sync.to_dict() for sync in self.predicted],
            **{name: [[s.file, s.line] for s in getattr(self, name)] for name in names},
            "elsewhere": [
                {
                    "calls": list(one.wait.calls),
                    "waited_ms": one.wait.cost_us / 1e3,
                    "after": None if one.after is None else [one.after.file, one.after.line],
                }
                for one in self.elsewhere
            ],
            "traced": self.traced,
            "waited_ms": self.waited_ms,
            "warnings": list(self.warnings),
            "provenance": self.provenance.to_dict(),
        }


def check_syncs(step: Callable[[], object], model: torch.nn.Module | None = None) -> SyncCheck:
    """Run ``step()`` twice on a GPU: to warm up, then to compare prediction with reality.

    Raises:
        MissingError: there is no GPU, or the step does not use it.
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
    raise MissingError(
        "check_syncs: the step used no tensor on the GPU; move the model and the batch there first"
    )


def lint(
    run: Callable[[], object],
    model: torch.nn.Module | None = None,
) -> Syncs | SyncCheck:
    """Run it once; on a GPU compare prediction with reality, else only predict.

    Raises:
        UsageError: within another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``run`` raises, unchanged.
    """
    from perfkit.synclint.watch import Watch

    if here().is_cpu:
        watch = Watch(model)
        with watch:
            run()
        return syncs_of(watch)
    tracer = Tracer()
    watch = Watch(model, tracer=tracer)
    with tracer, reported_waits() as reported, watch:
        watch.also_forget += [reported.clear, tracer.forget]
        run()
    predicted = syncs_of(watch)
    if not watch.saw_gpu:
        return predicted
    backward: dict[Line, Counter[Site]] = {}
    for found, count in watch.found():
        if found.called_at is not None:
            backward.setdefault(_line(found.called_at), Counter())[found.site] += count
    return compare(predicted, reported, tracer, backward)


@contextmanager
def reported_waits() -> Iterator[Counter[Site]]:
    """Collect the user lines at which torch reports that the host waited for the GPU.

    On a device for which torch has no such mode nothing is reported.
    """
    found: Counter[Site] = Counter()
    gpu = here()
    if not gpu.has_sync_debug:
        yield found
        return
    said = gpu.sync_message
    mode = gpu.sync_debug()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{said}")
        # said when the mode is switched on, by us
        warnings.filterwarnings("ignore", message=".*Synchronization debug mode is a prototype")
        show = warnings.showwarning

        instrument = Instrument("the listener to torch's reports of waits")

        def note(message: Warning | str, *where: Any, **more: Any) -> None:
            if said not in str(message):
                show(message, *where, **more)
                return
            with instrument.guard("noting a wait"):
                site = site_of(sys._getframe(1))
                if site is not None:
                    found[site] += 1

        warnings.showwarning = note
        gpu.set_sync_debug("warn")
        try:
            yield found
        finally:
            gpu.set_sync_debug(mode)


def compare(
    predicted: Syncs,
    reported: Counter[Site],
    tracer: Tracer,
    backward: Mapping[Line, Counter[Site]] = MappingProxyType({}),
) -> SyncCheck:
    """Put prediction and reality side by side, line by line.

    Args:
        predicted: of the same run.
        reported: by torch's debug mode.
        tracer: after its block.
        backward: for lines that started a backward pass, how often which line of the forward pass
            was predicted to wait in it.
    """
    traced = tracer.waits()
    lines: dict[Line, _Seen] = {}
    for one in traced:
        if one.site is not None:
            lines.setdefault(_line(one.site), _Seen(one.site)).add(one.wait)
    explained = {_line(one.called_at) for one in traced if one.called_at is not None}
    by_line: dict[Line, Counter[Site]] = {}
    for site, count in reported.items():
        by_line.setdefault(_line(site), Counter())[site] += count
    for line, sites in by_line.items():
        if line in lines or line in explained:
            continue
        # the debug mode knows a wait of the backward pass by where that was started; which lines
        # of the forward pass it was for can only be told where as many were predicted
        predicted_for = backward.get(line, Counter())
        if predicted_for.total() == sites.total():
            sites = predicted_for
        for site, count in sites.items():
            lines.setdefault(_line(site), _Seen(site)).count += count
    foretold = {(sync.file, sync.line): sync for sync in predicted}
    for line, sync in foretold.items():
        if line not in lines and sync.op in _UNSEEN:
            lines[line] = _Seen(None, sync.count)
    here = stamp("measured here")
    happened = Syncs(
        (_happened(line, lines[line], foretold.get(line)) for line in sorted(lines)),
        provenance=here,
    )
    elsewhere = tuple(one for one in traced if one.site is None)
    return SyncCheck(
        predicted=predicted,
        happened=happened,
        agreed=tuple(s for s in happened if (s.file, s.line) in foretold),
        only_predicted=tuple(s for line, s in foretold.items() if line not in lines),
        only_happened=tuple(s for s in happened if (s.file, s.line) not in foretold),
        elsewhere=elsewhere,
        traced=tracer.complete,
        warnings=(*predicted.warnings, *tracer.warnings, *_told_of(elsewhere)),
        provenance=here,
    )


def _line(site: Site) -> Line:
    return site.file, site.line


class _Seen:
    """What was seen of one line."""

    def __init__(self, site: Site | None, count: int = 0) -> None:
        self.site = site
        self.count = count
        self.waited_us: float | None = None
        self.op = ""
        self.to_device = False

    def add(self, wait: Wait) -> None:
        self.count += 1
        self.waited_us = (self.waited_us or 0.0) + wait.cost_us
        self.op = self.op or wait.op or wait.calls[-1]
        self.to_device |= "HtoD" in wait.copy


def _told_of(elsewhere: Sequence[TracedWait]) -> Iterator[str]:
    """Waits that belong to no line, in one sentence."""
    if not elsewhere:
        return
    n = len(elsewhere)
    calls = ", ".join(sorted({call for one in elsewhere for call in one.wait.calls}))
    waited_ms = sum(one.wait.cost_us for one in elsewhere) / 1e3
    after = next((one.after for one in elsewhere if one.after is not None), None)
    where = f", the first of them after {place(after.file, after.line)}" if after else ""
    yield (
        f"{n} more wait{'s' * (n != 1)} ({calls}; {fmt_ms(waited_ms)}) happened outside of torch's "
        f"operators{where}: in a library, perhaps, and not on a known line"
    )


def _happened(line: Line, seen: _Seen, foretold: Sync | None) -> Sync:
    waited_ms = None if seen.waited_us is None else seen.waited_us / 1e3
    if foretold is not None:
        return replace(foretold, count=seen.count, waited_ms=waited_ms)
    file, number = line
    code = source_line(file, number)
    op = spelled(seen.site) if seen.site is not None else ""
    name = "copy_to_device" if seen.to_device or _looks_like_a_copy(code) else "other"
    entry = CATALOGUE[name]
    return Sync(
        file=file,
        line=number,
        op=op or seen.op or entry.op,
        why=entry.why,
        instead=entry.instead,
        count=seen.count,
        code=statement(file, number),
        place=place(file, number),
        waited_ms=waited_ms,
    )


def _looks_like_a_copy(code: str) -> bool:
    return any(word in code for word in (".to(", ".cuda(", "device=", "as_tensor(", "tensor("))
