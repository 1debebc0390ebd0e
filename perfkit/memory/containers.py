"""Which of Python's containers grow from step to step: metrics appended to a trainer's list."""

from __future__ import annotations

import gc
from typing import Any

from perfkit.memory.holders import holder_of

_KINDS = (list, dict, set)
#: A search for a name looks at all objects for each of its links.
_MOST_NAMES = 3


class ContainerSizes:
    """The lengths of all lists, dicts and sets, taken when it is made."""

    def __init__(self) -> None:
        # by address: of a container that died, another may have it, so a name must be found too
        self._before = {id(c): len(c) for c in gc.get_objects() if type(c) in _KINDS}

    def grown(self, steps: int) -> tuple[tuple[str, float], ...]:
        """Those that gained at least one entry a step: the way to each, and entries a step.

        Only containers that a variable leads to, the fastest growing first, at most three.
        """
        found: list[tuple[int, Any]] = []
        for container in gc.get_objects():
            if type(container) in _KINDS and container is not self._before:
                gained = len(container) - self._before.get(id(container), len(container))
                if gained >= steps:
                    found.append((gained, container))
        found.sort(key=lambda one: -one[0])
        named = []
        for gained, container in found[:_MOST_NAMES]:
            name = holder_of(container, (found, *found, self, vars(self)))
            if name:
                named.append((name, gained / steps))
        return tuple(named)
