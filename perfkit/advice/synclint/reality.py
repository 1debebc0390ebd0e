"""What a real GPU's host waited for, beside what was predicted.

``torch.cuda.set_sync_debug_mode("warn")`` makes torch warn at every wait that goes through its
own stream synchronisation and blocking copies. The warning is caught where it is raised, while
the user's line is still on the stack. It does not see ``torch.cuda.synchronize()``, nor what a
library waits for on its own.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit._display import Shown
from perfkit.advice.synclint.catalogue import CATALOGUE
from perfkit.advice.synclint.find import Sync, Syncs, syncs_of
from perfkit.advice.synclint.sites import Site, place, site_of, source_line, spelled
from perfkit.errors import MissingError
from perfkit.machine import Provenance, stamp

if TYPE_CHECKING:
    import torch

__all__ = ["SyncCheck", "check_syncs", "lint"]

# c10/cuda/CUDAFunctions.cpp, warn_or_error_on_sync (since torch 1.9)
_MESSAGE = "called a synchronizing CUDA operation"
# these wait, and the debug mode says nothing about them
_UNSEEN_BY_DEBUG_MODE = frozenset(CATALOGUE[name].op for name in ("synchronize", "empty_cache"))


@dataclass(frozen=True)
class SyncCheck(Shown):
    """Prediction and reality of one run on a GPU, line by line.

    Attributes:
        predicted: what the operations said.
        happened: where torch reported that the host waited.
        agreed: lines on which both say so.
        only_predicted: predicted, and no wait was reported.
        only_happened: a wait was reported that was not predicted.
        provenance: measured on which GPU.
    """

    predicted: Syncs
    happened: Syncs
    agreed: tuple[Sync, ...]
    only_predicted: tuple[Sync, ...]
    only_happened: tuple[Sync, ...]
    provenance: Provenance

    @property
    def sentence(self) -> str:
        """How well the prediction did, in one sentence."""
        n = len(self.happened)
        waits = f"The host waited on {n} line{'s' * (n != 1)}"
        if not self.only_predicted and not self.only_happened:
            return f"{waits}, all of them as predicted."
        return (
            f"{waits}: {len(self.agreed)} as predicted, {len(self.only_happened)} that were not; "
            f"{len(self.only_predicted)} predicted that did not happen."
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        names = ("agreed", "only_predicted", "only_happened")
        return {
            "sentence": self.sentence,
            "syncs": [sync.to_dict() for sync in self.happened],
            "predicted": [sync.to_dict() for sync in self.predicted],
            **{name: [[s.file, s.line] for s in getattr(self, name)] for name in names},
            "provenance": self.provenance.to_dict(),
        }


def check_syncs(step: Callable[[], object], model: torch.nn.Module | None = None) -> SyncCheck:
    """Run ``step()`` twice on a GPU: to warm up, then to compare prediction with reality.

    Raises:
        MissingError: there is no CUDA device, or the step does not use it.
        UsageError: within another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``step`` raises, unchanged.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingError(
            "check_syncs: there is no CUDA device here; perfkit.find_syncs predicts without one"
        )
    step()  # the first run loads kernels and makes states, once
    result = lint(step, model)
    if isinstance(result, SyncCheck):
        return result
    raise MissingError(
        "check_syncs: the step used no CUDA tensor; move the model and the batch to the GPU first"
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
    import torch

    from perfkit.advice.synclint.watch import Watch

    watch = Watch(model, as_it_is=torch.cuda.is_available())
    waits: Counter[Site] = Counter()
    with ExitStack() as stack:
        if torch.cuda.is_available():
            waits = stack.enter_context(reported_waits())
        stack.enter_context(watch)
        run()
    predicted = syncs_of(watch)
    return compare(predicted, waits) if watch.saw_cuda else predicted


@contextmanager
def reported_waits() -> Iterator[Counter[Site]]:
    """Collect the user lines at which torch reports that the host waited for the GPU."""
    import torch

    found: Counter[Site] = Counter()
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{_MESSAGE}")
        show = warnings.showwarning

        def note(message: Warning | str, *where: Any, **more: Any) -> None:
            if _MESSAGE not in str(message):
                show(message, *where, **more)
                return
            site = site_of(sys._getframe(1))
            if site is not None:
                found[site] += 1

        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def compare(predicted: Syncs, waits: Counter[Site]) -> SyncCheck:
    """Put both side by side, line by line."""
    foretold = {(sync.file, sync.line): sync for sync in predicted}
    counts: Counter[tuple[str, int]] = Counter()
    sites: dict[tuple[str, int], Site] = {}
    for site, count in waits.items():
        counts[site.file, site.line] += count
        sites.setdefault((site.file, site.line), site)
    for key, sync in foretold.items():
        if sync.op in _UNSEEN_BY_DEBUG_MODE:
            counts[key] += sync.count
    here = stamp("measured here")
    happened = Syncs(
        (_happened(key, count, foretold.get(key), sites.get(key)) for key, count in counts.items()),
        provenance=here,
    )
    happened.sort(key=lambda sync: (sync.file, sync.line))
    return SyncCheck(
        predicted=predicted,
        happened=happened,
        agreed=tuple(s for s in happened if (s.file, s.line) in foretold),
        only_predicted=tuple(s for key, s in foretold.items() if key not in counts),
        only_happened=tuple(s for s in happened if (s.file, s.line) not in foretold),
        provenance=here,
    )


def _happened(key: tuple[str, int], count: int, foretold: Sync | None, site: Site | None) -> Sync:
    file, line = key
    code = source_line(file, line)
    op = spelled(site) if site is not None else ""
    entry = CATALOGUE["copy_to_device" if _looks_like_a_copy(code) else "other"]
    return Sync(
        file=file,
        line=line,
        op=foretold.op if foretold else op or entry.op,
        why=foretold.why if foretold else entry.why,
        instead=foretold.instead if foretold else entry.instead,
        count=count,
        code=code,
        place=place(file, line),
        inside=foretold.inside if foretold else "",
    )


def _looks_like_a_copy(code: str) -> bool:
    return any(word in code for word in (".to(", ".cuda(", "device=", "as_tensor(", "tensor("))
