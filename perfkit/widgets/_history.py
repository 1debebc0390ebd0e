"""A bounded curve kept in the kernel, for a widget to restore after a page reload."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_WAITING = 1000  # rows; two updates of the most points
CAPACITY = 4000  # rows kept; about twice the pixels of a wide plot, 80 KB for five columns


class History:
    """Rows of float32, the newest in full, older ones folded.

    Folding turns four neighbouring rows into two, the lowest and the highest of each column, so
    that a slow step never disappears from the picture. ``js/src/points.js`` does the same in the
    browser; keep the two in step. Thread-safe.
    """

    def __init__(self, width: int) -> None:
        self._rows = np.empty((CAPACITY, width), np.float32)
        self._n = 0
        self._waiting: list[tuple[int, bytes]] = []
        self._n_waiting = 0
        self._lock = threading.Lock()
        self.total = 0  # rows ever seen, folded ones included
        self.folded = False

    def append(self, rows: NDArray[Any]) -> int:
        """Add rows of shape (k, width); return how many there were before."""
        with self._lock:
            self._take_in()
            first = self.total
            self.total += len(rows)
            self._append(rows)
            return first

    def append_later(self, k: int, columns: bytes) -> int:
        """:meth:`append` for the columns of a message (see :func:`planar`): notes them, no more.

        They are taken in when somebody asks for rows, and by :meth:`take_in_many`.
        """
        with self._lock:
            first = self.total
            self.total += k
            self._waiting.append((k, columns))
            self._n_waiting += k
            return first

    def take_in_many(self) -> None:
        """Take in what waits, if it is much."""
        if self._n_waiting >= _MOST_WAITING:
            with self._lock:
                self._take_in()

    def _take_in(self) -> None:
        waiting, self._waiting, self._n_waiting = self._waiting, [], 0
        for k, columns in waiting:
            self._append(np.frombuffer(columns, np.float32).reshape(-1, k).T)

    def _append(self, rows: NDArray[Any]) -> None:
        start = 0
        while start < len(rows):
            if self._n == CAPACITY:
                self._fold()
            k = min(len(rows) - start, CAPACITY - self._n)
            self._rows[self._n : self._n + k] = rows[start : start + k]
            self._n += k
            start += k

    def _fold(self) -> None:
        half = CAPACITY // 8 * 4  # the older half, in whole groups of four
        groups = self._rows[:half].reshape(half // 4, 4, -1)
        # fmin and fmax ignore NaN ("not measured") unless there is nothing else
        low, high = np.fmin.reduce(groups, axis=1), np.fmax.reduce(groups, axis=1)
        low[:, 0], high[:, 0] = groups[:, 0, 0], groups[:, 2, 0]
        folded = np.stack([low, high], axis=1).reshape(half // 2, -1)
        newer = self._rows[half : self._n].copy()
        self._rows[: half // 2] = folded
        self._rows[half // 2 : half // 2 + len(newer)] = newer
        self._n = half // 2 + len(newer)
        self.folded = True

    def rows(self) -> NDArray[np.float32]:
        """A copy of the kept rows, shape (n, width)."""
        with self._lock:
            self._take_in()
            return self._rows[: self._n].copy()

    def snapshot(self) -> dict[str, Any]:
        """What the browser restores from: counts, and the columns in sequence."""
        with self._lock:
            self._take_in()
            rows = self._rows[: self._n]
            return {
                "total": self.total,
                "rows": self._n,
                "folded": self.folded,
                "data": np.ascontiguousarray(rows.T).tobytes(),
            }


def planar(rows: NDArray[Any]) -> bytes:
    """(k, width) numbers as the float32 columns of one message."""
    return rows.astype(np.float32, copy=False).tobytes("F")
