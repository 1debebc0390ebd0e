"""The steps of a program that starts its ranks itself, with ``torch.multiprocessing.spawn``.

The first of them is watched as a script is; its report takes the place of the program's own, which
has no steps.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.base.scratch import new_folder
from perfkit.base.when_imported import when_imported

_Watch = Callable[[Callable[[], object], Path], object]
_MODULE = "torch.multiprocessing.spawn"


@dataclass(frozen=True)
class _First:
    """What each rank runs in place of the program's function."""

    function: Callable[..., Any]
    watch: _Watch
    told: Path

    def __call__(self, rank: int, *args: Any) -> None:
        __tracebackhide__ = True
        if rank:
            self.function(rank, *args)
            return
        self.watch(lambda: self.function(rank, *args), self.told)


class FirstSpawned:
    """From :meth:`start` to :meth:`stop` the first rank that is spawned is watched.

    Args:
        watch: called there with what to run, and which file to make where steps were explained; it
            travels by pickle.
    """

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        self._folder: Path | None = None
        self._wait_no_more: Callable[[], None] = lambda: None
        self._start_processes: Callable[..., Any] | None = None

    @property
    def told(self) -> bool:
        """Whether its steps have been explained."""
        return self._folder is not None and (self._folder / "told").exists()

    def start(self) -> None:
        """Begin; torch need not be imported yet."""
        self._wait_no_more = when_imported(_MODULE, self._imported)

    def stop(self) -> None:
        """Put back what was replaced; :attr:`told` is asked before."""
        self._wait_no_more()
        if self._start_processes is not None:
            sys.modules[_MODULE].start_processes = self._start_processes  # type: ignore[attr-defined]
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _imported(self) -> None:
        module: Any = sys.modules[_MODULE]
        self._start_processes = module.start_processes
        module.start_processes = self._start

    def _start(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        assert self._start_processes is not None
        self._folder = self._folder or new_folder()
        return self._start_processes(
            _First(fn, self._watch, self._folder / "told"), *args, **options
        )
