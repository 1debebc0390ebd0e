"""Sends notebook classes by value to spawned loader workers.

``multiprocessing`` pickles a spawned worker's data set with plain pickle, which looks classes up in
``__main__`` and does not find the notebook there. In the child, and only there, cloudpickle with
multiprocessing's own reducers replaces the pickler.
"""

from __future__ import annotations

import copyreg
from collections import ChainMap
from multiprocessing import reduction
from typing import Any

import cloudpickle


def pickle_notebook_classes() -> None:
    """From now on, ``Process.start`` of a spawned process pickles notebook classes by value."""

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: Any, protocol: int | None = None) -> None:
            super().__init__(file, protocol)
            # torch registers its shared-memory reducers for tensors here
            extra: Any = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
            own: Any = cloudpickle.Pickler.dispatch_table
            self.dispatch_table = ChainMap(extra, own, copyreg.dispatch_table)

    def dump(obj: Any, file: Any, protocol: int | None = None) -> None:
        ByValue(file, protocol).dump(obj)

    reduction.dump = dump
