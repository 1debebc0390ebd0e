"""Whether a data set makes the same items again in each epoch, seen in what the run asks it for."""

from __future__ import annotations

import math
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from perfkit.base import torch_compat
from perfkit.base.checksum import Checksum, checksum
from perfkit.base.instrument import Instrument

# So many items are kept in mind, and of so many it must be seen.
_MOST_ITEMS, _LEAST_ITEMS = 8, 4
# Batches whose time is taken, at least.
_LEAST_BATCHES = 4


class SameItems:
    """Remembers a few items of the first epoch, and compares them with those of later ones.

    It watches a part of each epoch's batches until it knows, and asks the data set for nothing.

    Attributes:
        are_same: as far as was seen; None until then.
        item_s: the least seconds that an item took, the mean of a batch, in epochs after the first.
    """

    def __init__(self, instrument: Instrument) -> None:
        self._instrument = instrument
        self.are_same: bool | None = None
        self.n_compared = self._n_batches = 0
        self.item_s = math.inf
        self._first: dict[int, Checksum] = {}
        self._undo: Callable[[], None] | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of the numbers and texts of an item."""
        return sum(n for _, n, _ in self._first.values()) // max(len(self._first), 1)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what an item's tensors are views of, but for what it shares with others."""
        times = Counter(whole for *_, wholes in self._first.values() for whole in wholes)
        own = (n for (_, n), count in times.items() if count == 1)
        return sum(own) // max(len(self._first), 1)

    def watch(self, iterator: Any, steps: Callable[[], int]) -> None:
        """An epoch has begun; ``steps`` counts those that are over."""
        self.stop()
        if self.are_same is None:
            asked = partial(self._asked, not self._first, steps, steps())
            self._undo = torch_compat.watch_items(iterator, self._instrument.hook(asked))

    def stop(self) -> None:
        """Watch this epoch no more."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _asked(
        self, is_first: bool, steps: Callable[[], int], from_step: int, indices: Any
    ) -> Callable[[Any], None]:
        whole = [(at, one) for at, one in enumerate(indices) if isinstance(one, int)]
        wanted = whole[:_MOST_ITEMS] if is_first else [x for x in whole if x[1] in self._first]
        before = _random_states() if wanted else b""
        began_s = time.perf_counter()

        def end(items: Any) -> None:
            item_s = (time.perf_counter() - began_s) / max(len(items), 1)
            draws = wanted and before != _random_states()
            for at, index in wanted:
                one = checksum(items[at])
                if draws or one is None or self._first.setdefault(index, one)[0] != one[0]:
                    self.are_same = False
            if is_first:
                if len(self._first) >= _MOST_ITEMS or self.are_same is not None:
                    self.stop()
                return
            self.item_s = min(self.item_s, item_s)
            self._n_batches += 1
            self.n_compared += len(wanted)
            enough = self._n_batches >= _LEAST_BATCHES and self.n_compared >= _LEAST_ITEMS
            # what no step is made of is an evaluation
            if self.are_same is None and enough and steps() > from_step:
                self.are_same = True
            if self.are_same is not None:
                self.stop()

        return self._instrument.hook(end)


def _random_states() -> bytes:
    with torch_compat.without_modes():
        of_torch = torch.get_rng_state().numpy().tobytes()
    return pickle.dumps((random.getstate(), np.random.get_state(), of_torch))
