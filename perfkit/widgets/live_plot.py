"""A live plot of a loop that runs in the kernel, cheap to update and to show."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import anywidget
import numpy as np
import traitlets
from numpy.typing import ArrayLike

from perfkit.base.errors import UsageError
from perfkit.widgets._frontend import answer_on_own_shell, bundle, send_in_turn
from perfkit.widgets._history import History

_MAX_SERIES = 5  # the number of distinguishable colours and dashes


@dataclass(frozen=True)
class Series:
    """One curve: name, unit and axis of its values."""

    name: str
    unit: str
    label: str
    axis: Literal["left", "right"] = "left"


class LivePlot(anywidget.AnyWidget):
    """Curves that grow while a loop runs.

    ``push`` sends one small binary message and keeps a bounded copy, from which the plot is
    restored after a page reload. Call it at most ten times a second, or twice if no core is free,
    because the browser draws on the same machine. Outside a kernel nothing is sent and nothing
    fails.

    Raises:
        UsageError: there are no series, more than five, or two of the same name.
    """

    _esm = bundle("live_plot.js")
    _css = bundle("widget.css")

    series = traitlets.List().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    x_label = traitlets.Unicode("step").tag(sync=True)
    # the words of the last facts are made when the state is requested, too
    status = traitlets.Dict().tag(sync=True, to_json=lambda _value, plot: plot._told())
    problem = traitlets.Unicode().tag(sync=True)
    # computed when the state is requested (a page is opened or saved), not at each push
    history = traitlets.Dict().tag(sync=True, to_json=lambda _value, plot: plot._kept.snapshot())

    def __init__(
        self,
        series: Sequence[Series],
        *,
        title: str,
        x_label: str = "step",
        total: int | None = None,
    ) -> None:
        names = [one.name for one in series]
        if not 1 <= len(names) <= _MAX_SERIES or len(set(names)) != len(names):
            raise UsageError(
                f"LivePlot takes 1 to {_MAX_SERIES} series with different names, got {names}"
            )
        self._kept = History(1 + len(names))
        self._n_series = len(names)
        self._total = total
        self._words_later: Callable[[], tuple[str, float | None]] | None = None
        self._unsent: Exception | None = None
        super().__init__(
            series=[asdict(one) for one in series],
            title=title,
            x_label=x_label,
            status={"text": "waiting for the first point", "progress": None, "state": "waiting"},
        )
        answer_on_own_shell(self.comm)

    def __repr__(self) -> str:
        return f"LivePlot({self.title!r}, {[one['name'] for one in self.series]})"

    def push(
        self, x: ArrayLike, values: ArrayLike, status: tuple[str, float | None] | None = None
    ) -> None:
        """Add points: ``x`` (k,) and ``values`` (k, number of series); NaN means "not measured".

        Args:
            status: the line and the progress of :meth:`set_status`, in the same message.

        Raises:
            UsageError: the shapes do not match the series.
        """
        xs = np.atleast_1d(np.asarray(x, np.float32))
        ys = np.asarray(values, np.float32)
        width = self._n_series
        if xs.ndim != 1 or ys.shape != (len(xs), width):
            raise UsageError(
                f"push expects x of shape (k,) and values of shape (k, {width}), "
                f"got {xs.shape} and {ys.shape}"
            )
        self.push_columns(xs.tolist(), ys.T.tolist(), status)

    def push_columns(
        self,
        x: Sequence[float],
        columns: Iterable[Sequence[float] | float],
        status: tuple[str, float | None] | None = None,
    ) -> None:
        """:meth:`push` of what fits: a column for each series, or one number for all points.

        Without numpy, which takes longer for few points where other work has gone before.
        """
        first = self._push(x, columns, {} if status is None else {"status": self._words(*status)})
        if first < 0:
            return
        if status is not None:
            # In place, so that no trait has changed: the message tells this page, and one that is
            # opened later gets the dict.
            self.status.update(self._words(*status))
            self._words_later = None
        elif self.status["state"] == "waiting":
            self.set_status("", self._share(x[-1]))

    def push_run(
        self,
        x: Sequence[float],
        columns: Iterable[Sequence[float] | float],
        facts: Sequence[float | str | None],
        words: Callable[[], tuple[str, float | None]],
    ) -> None:
        """:meth:`push_columns` of a run, whose status the page words: ``js/src/run_line.js``.

        Args:
            x, columns: as there.
            facts: what the page needs for it.
            words: line and progress of :meth:`set_status`, called when the state is asked for.
        """
        if self._push(x, columns, {"facts": facts}) >= 0:
            self._words_later = words
            # in place, as above; no line that follows is the same, so it is sent
            self.status.update(text="", state="running")

    def _push(
        self, x: Sequence[float], columns: Iterable[Sequence[float] | float], more: dict[str, Any]
    ) -> int:
        """Send and keep them; how many were there before, or -1 where there are no points.

        Raises:
            Exception: the last message could not be sent.
        """
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            raise unsent
        k = len(x)
        if k == 0:
            return -1
        values = array("f", x)
        for column in columns:
            values.extend([column] * k if isinstance(column, float) else column)
        data = values.tobytes()
        first = self._kept.append_later(k, data)
        message = {"type": "points", "first": first, "rows": k, **more}
        if not send_in_turn(self.comm, message, [data], self._sent):
            self.send(message, buffers=[data])
            self._kept.take_in_many()
        return first

    def _sent(self, error: Exception | None) -> None:
        self._unsent = error
        self._kept.take_in_many()

    def _told(self) -> dict[str, Any]:
        """The status now, in words."""
        later, self._words_later = self._words_later, None
        if later is not None:
            self.status.update(self._words(*later()))
        told: dict[str, Any] = self.status
        return told

    def set_status(self, text: str, progress: float | None = None) -> None:
        """Set the line beside the title, and the progress bar (0 to 1; None hides it)."""
        self._show(text, progress, "running")

    def finish(self, text: str) -> None:
        """End the plot: show the final text, and send the whole curve in case the page is saved."""
        self._show(text, None, "done")
        self.send_state("history")

    def fail(self, text: str) -> None:
        """Show a Python error under the plot, where the reader looks."""
        self.problem = text

    def _show(self, text: str, progress: float | None, state: str) -> None:
        self._words_later = None
        self.status = self._words(text, progress, state)

    @staticmethod
    def _words(text: str, progress: float | None, state: str = "running") -> dict[str, Any]:
        if progress is not None:
            progress = min(1.0, max(0.0, progress)) if math.isfinite(progress) else None
        return {"text": text, "progress": progress, "state": state}

    def _share(self, x: float) -> float | None:
        return x / self._total if self._total else None
