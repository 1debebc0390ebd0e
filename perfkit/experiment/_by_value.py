"""Loader workers where processes are spawned: classes of the notebook reach them by value.

``multiprocessing`` pickles a spawned worker's data set with plain pickle, which looks a class
up in ``__main__`` and does not find the notebook there. In the child, and only there, the
pickler is replaced by cloudpickle's with multiprocessing's own reducers.
"""

from __future__ import annotations

import copyreg
from collections import ChainMap
from multiprocessing import reduction
from typing import Any

import cloudpickle


def pickle_notebook_classes() -> None:
    """From now on ``Process.start`` of a spawned process pickles by value what must be."""

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: Any, protocol: int | None = None) -> None:
            super().__init__(file, protocol)
            # torch registers how tensors travel through shared memory here
            extra: Any = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
            own: Any = cloudpickle.Pickler.dispatch_table
            self.dispatch_table = ChainMap(extra, own, copyreg.dispatch_table)

    def dump(obj: Any, file: Any, protocol: int | None = None) -> None:
        ByValue(file, protocol).dump(obj)

    reduction.dump = dump
