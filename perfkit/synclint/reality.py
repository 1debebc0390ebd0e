"""What a real GPU's host waited for, beside what was predicted.

A trace of the run (:mod:`perfkit.synclint.tracer`) has every call of the runtime that waited, and
for how long. Without one, torch's debug mode, ``torch.cuda.set_sync_debug_mode("warn")``, warns at
every wait of torch's own stream synchronisations and blocking copies; the warning is caught while
the user's line is on the stack. What waits in the backward pass it tells where that was started.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfkit.base.device import accelerators, here
from perfkit.base.display import Shown
from perfkit.base.errors import MissingError
from perfkit.base.instrument import Instrument
from perfkit.base.machine import Provenance, stamp
from perfkit.base.statement import statement
from perfkit.base.words import fmt_ms, plural
from perfkit.synclint.catalogue import CATALOGUE, EXPLICIT
from perfkit.synclint.find import SyncLine, SyncLines, find_syncs, syncs_of
from perfkit.synclint.sites import Site, place, site_of, spelled
from perfkit.synclint.tracer import TracedWait, Tracer
from perfkit.trace.ask.waits import Wait

if TYPE_CHECKING:
    import torch

    from perfkit.synclint.watch import SyncWatch

# these wait, and neither the debug mode nor (empty_cache, which is a cudaFree) a trace says so; the
# gradient of a product waits unless an operator is watched, which makes torch take another formula
_UNSEEN = frozenset(
    [
        CATALOGUE["wait_for_stream"].op,
        CATALOGUE["prod"].op,
        *(f"torch.{kind.type}.{name}" for kind in accelerators() for name in EXPLICIT),
    ]
)

# what is written of a copy to the device
_COPYING = (".to(", ".cuda(", "device=", "as_tensor(", "tensor(")

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

    predicted: SyncLines
    happened: SyncLines
    agreed: tuple[SyncLine, ...]
    only_predicted: tuple[SyncLine, ...]
    only_happened: tuple[SyncLine, ...]
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
        """The result in one sentence."""
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


def lint(run: Callable[[], object], model: torch.nn.Module | None = None) -> SyncLines | SyncCheck:
    """Run it once; on a GPU compare prediction with reality, else only predict.

    Raises:
        UsageError: within another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``run`` raises, unchanged.
    """
    from perfkit.synclint.watch import SyncWatch

    if here().is_cpu:
        return find_syncs(run, model)
    tracer = Tracer()
    watch = SyncWatch(model, tracer=tracer)
    with tracer, reported_waits() as reported, watch:
        watch.also_forget += [reported.clear, tracer.forget]
        run()
    return _compared(watch, reported, tracer) if watch.saw_gpu else syncs_of(watch)


@contextmanager
def reported_waits() -> Iterator[Counter[Site]]:
    """Collect the user lines at which torch reports that the host waited for the GPU.

    On a device for which torch has no such mode nothing is reported.
    """
    reported: Counter[Site] = Counter()
    gpu = here()
    if not gpu.has_sync_debug:
        yield reported
        return
    message_text = gpu.sync_message
    mode = gpu.sync_debug()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{message_text}")
        # shown when the mode is switched on, by us
        warnings.filterwarnings("ignore", message=".*Synchronization debug mode is a prototype")
        show = warnings.showwarning

        instrument = Instrument("the listener to torch's reports of waits")

        def note(message: Warning | str, *where: Any, **more: Any) -> None:
            if message_text not in str(message):
                show(message, *where, **more)
                return
            with instrument.guard("noting a wait"):
                site = site_of(sys._getframe(1))
                if site is not None:
                    reported[site] += 1

        warnings.showwarning = note
        gpu.set_sync_debug("warn")
        try:
            yield reported
        finally:
            gpu.set_sync_debug(mode)


def _compared(watch: SyncWatch, reported: Counter[Site], tracer: Tracer) -> SyncCheck:
    """Put prediction and reality side by side, line by line."""
    predicted, traced = syncs_of(watch), tracer.waits()
    lines: dict[Line, _Seen] = {}
    for one in traced:
        if one.site is not None:
            lines.setdefault(_line(one.site), _Seen(one.site)).add(one.wait)
    explained = {*lines, *(_line(one.called_at) for one in traced if one.called_at is not None)}
    # the debug mode knows a wait of the backward pass by where that was started; which lines of
    # the forward pass it was for can only be told where as many were predicted
    backward: dict[Line, Counter[Site]] = {}
    for noted, count in watch.noted_waits():
        if noted.called_at is not None:
            backward.setdefault(_line(noted.called_at), Counter())[noted.site] += count
    by_line: dict[Line, Counter[Site]] = {}
    for site, count in reported.items():
        by_line.setdefault(_line(site), Counter())[site] += count
    for line in by_line.keys() - explained:
        sites, all_here = backward.get(line, Counter()), by_line[line]
        for site, count in (sites if sites.total() == all_here.total() else all_here).items():
            lines.setdefault(_line(site), _Seen(site)).count += count
    foretold = {(sync.file, sync.line): sync for sync in predicted}
    for line, sync in foretold.items():
        if line not in lines and sync.op in _UNSEEN:
            lines[line] = _Seen(None, sync.count)
    measured = stamp("measured here")
    happened = SyncLines(
        (_happened(line, lines[line], foretold.get(line)) for line in sorted(lines)),
        provenance=measured,
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
        provenance=measured,
    )


def _line(site: Site) -> Line:
    return site.file, site.line


class _Seen:
    """The waits seen on one line."""

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


def _happened(line: Line, seen: _Seen, foretold: SyncLine | None) -> SyncLine:
    waited_ms = None if seen.waited_us is None else seen.waited_us / 1e3
    if foretold is not None:
        return replace(foretold, count=seen.count, waited_ms=waited_ms)
    code = statement(*line)
    op = spelled(seen.site) if seen.site is not None else ""
    is_copy = seen.to_device or any(word in code for word in _COPYING)
    entry = CATALOGUE["copy_to_device" if is_copy else "other"]
    return SyncLine(
        *line,
        op=op or seen.op or entry.op,
        why=entry.why,
        instead=entry.instead,
        count=seen.count,
        code=code,
        place=place(*line),
        waited_ms=waited_ms,
    )
