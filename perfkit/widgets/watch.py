"""``perfkit.watch(loader)``: the user's own loop, timed and shown while it runs.

:class:`perfkit.measure.run.WatchedRun` measures; this shows it, as a live plot in a Jupyter kernel
or as a progress line on standard error elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

from perfkit.base.arguments import check_flag, check_text
from perfkit.base.errors import MissingError, UsageError
from perfkit.base.extras import needs
from perfkit.base.machine import _host
from perfkit.base.progress import write
from perfkit.base.words import fmt_ms, plural
from perfkit.measure.run import DEFAULT_HZ, WatchedRun, check_hz
from perfkit.measure.tracker import Named, Observer, Update
from perfkit.measure.verdict import RunSummary
from perfkit.show.progress_line import ProgressLine, facts, progress, status
from perfkit.show.timing import left
from perfkit.widgets._frontend import has_front_end, no_widgets_here

_WITHOUT_A_CORE_HZ = 2.0

_Batch = TypeVar("_Batch")


def watch(
    loader: Iterable[_Batch],
    *,
    total: int | None = None,
    name: str | None = None,
    live: bool | None = None,
    update_hz: float | None = None,
) -> WatchedRun[_Batch]:
    """Watch a training loop: ``for batch in perfkit.watch(loader):``.

    Each step is split into data wait (the loop waits for ``next``) and the rest. In a Jupyter
    kernel a live plot shows both, with memory and throughput; elsewhere there is a progress line.
    When the cell ends, a one-sentence verdict with figures and a picture replaces the plot; it is
    also in ``.summary`` of the returned object, however the loop ended. Loop over the same object
    again for more epochs; within one notebook cell, watching the same loader again continues the
    same run.

    You can pass the watched loader to a trainer (Lightning, Hugging Face, accelerate) that calls
    ``next`` itself. The last step of each epoch is then not timed, because the trainer never asks
    for another batch.

    On CUDA, nothing is synchronised: times are the host's, between batches. Single steps are
    blurred by how far the host runs ahead; the median over many steps converges to the true step
    time.

    Args:
        loader: anything that can be looped over.
        total: steps per epoch; by default ``len(loader)`` if it has a length.
        name: the run's name in plot and report.
        live: True requires the plot, False shows nothing, None shows what is possible here. Of
            several processes (environment variable RANK) only the first prints a line.
        update_hz: plot updates per second, 1 by default and at most 10; the first ten come within
            a second. It is lowered to 2 if torch's threads leave no core free, and further where
            two updates in a row take so long that at this rate they would take more than 0.04 % of
            the loop's time.

    Returns:
        The watched loader: loop over it instead of ``loader``. ``.summary`` has the verdict and
        the figures (times in ms, memory in bytes).

    Raises:
        UsageError: ``loader`` cannot be looped over, a number is invalid, or ``live=True`` is used
            outside a Jupyter kernel.

    Example::

        >>> data = torch.utils.data.TensorDataset(torch.rand(512, 64))
        >>> loader = perfkit.watch(torch.utils.data.DataLoader(data, batch_size=8))
        >>> for (x,) in loader:
        ...     x.square().sum().item()
        >>> loader.summary.sentence
    """
    if update_hz is not None:
        check_hz("update_hz", update_hz)
    check_text("name", name)
    check_flag("live", live)
    in_kernel = has_front_end()
    if live and not in_kernel:
        raise UsageError("live=True needs a Jupyter kernel, and there is none here: leave it out")
    going_on = _CELL.same_run(loader, total, name) if in_kernel else None
    if going_on is not None:
        return going_on
    observer, problem = _observer(in_kernel=in_kernel, live=live)
    run = WatchedRun(
        loader, total=total, name=name, observer=observer, hz=_affordable_hz(update_hz)
    )
    if problem:
        run.note_problem(problem)
    if in_kernel:
        _CELL.remember(run, total, name)
    return run


def verdict_observer(live: bool | None) -> Observer | None:
    """What shows a run of a trainer that prints its own progress: the plot, or only the verdict.

    Raises:
        UsageError: ``live=True`` outside a Jupyter kernel.
    """
    in_kernel = has_front_end()
    if live and not in_kernel:
        raise UsageError("live=True needs a Jupyter kernel, and there is none here: leave it out")
    observer, _ = _observer(in_kernel=in_kernel, live=live)
    return _Verdict() if isinstance(observer, _Line) else observer


def _observer(*, in_kernel: bool, live: bool | None) -> tuple[Observer | None, str]:
    if live is False:
        return None, ""
    if in_kernel:
        try:
            if lacks := no_widgets_here():
                raise MissingError(f"the live plot is not shown here: {lacks}")
            return _Plot(), ""
        except MissingError as error:  # no anywidget, or a checkout without its browser code
            if live:
                raise
            return _Words(str(error)), str(error)
    return (_Line() if os.environ.get("RANK", "0") == "0" else None), ""


def _affordable_hz(wanted: float | None) -> float:
    """The update rate: at most 2 Hz if the browser would compete with torch for a core.

    Measured with two torch threads on two cores: 10 Hz cost 12 % of the step, 2 Hz 1.8 %; with a
    core to spare 10 Hz cost 0.6 %.
    """
    if wanted is None or wanted <= _WITHOUT_A_CORE_HZ:
        return wanted or DEFAULT_HZ
    torch = sys.modules.get("torch")
    threads = int(torch.get_num_threads()) if hasattr(torch, "get_num_threads") else 1  # type: ignore[union-attr]
    return wanted if threads < _host.usable_cpus() else _WITHOUT_A_CORE_HZ


class _Cell:
    """State of the running notebook cell: its watched run, and the pictures to draw.

    Everything is released when the cell ends.
    """

    def __init__(self) -> None:
        self._run: tuple[WatchedRun[Any], int | None, str | None] | None = None
        self._plots: list[_Plot] = []
        self._hooked: Any = None

    def same_run(self, loader: Any, total: int | None, name: str | None) -> WatchedRun[Any] | None:
        """This cell's run over the same loader, if no loop over it is active."""
        if self._run is None:
            return None
        run, its_total, its_name = self._run
        same = run.loader is loader and its_total == total and its_name == name
        return run if same and not run.running and run.epochs else None

    def remember(self, run: WatchedRun[Any], total: int | None, name: str | None) -> None:
        if self._hook():
            self._run = (run, total, name)

    def draw_at_end(self, plot: _Plot) -> bool:
        """Whether there is a cell whose end can be awaited."""
        if not self._hook():
            return False
        if plot not in self._plots:
            self._plots.append(plot)
        return True

    def _hook(self) -> bool:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        if shell is None:
            return False
        if self._hooked is not shell:
            shell.events.register("post_run_cell", self._over)
            self._hooked = shell
        return True

    def _over(self, result: Any) -> None:
        """Called when the cell has ended, also by an exception or an interrupt."""
        if self._run is not None:  # a trainer that counts batches keeps the iterator
            self._run[0].settle()
        shell, self._hooked = self._hooked, None
        plots, self._plots = self._plots, []
        self._run = None
        with contextlib.suppress(ValueError):  # someone has already removed our callback
            shell.events.unregister("post_run_cell", self._over)
        for plot in plots:
            plot.draw()


_CELL = _Cell()


class _Plot:
    """The live plot while the cell runs, replaced at its end by verdict, table and picture.

    The picture is drawn once, when the cell ends, because it is unknown which epoch is the last,
    and drawing takes longer than a step. It replaces the plot because a saved notebook shows no
    widgets, and verdict and curve should not appear twice.
    """

    def __init__(self) -> None:
        # here, not at the top, because scripts and servers need no widgets
        with needs("the live plot"):
            from perfkit.widgets.live_plot import LivePlot, Series

        self._make = LivePlot
        self._series = (
            Series("step", "ms", "step", "left"),
            Series("wait", "ms", "data wait", "left"),
            Series("memory", "MiB", "memory", "right"),
        )
        self._plot: Any = None
        self._output: Any = None
        self._shown_in: object = None
        self._summary: RunSummary | None = None

    def begin(self, run: Named) -> None:
        if self._plot is None:
            self._plot = self._make(self._series, title=run.name, total=run.total)
        cell = _cell_number()
        if self._output is None or cell != self._shown_in:
            self._shown_in = cell
            self._show()
        self._plot.set_status("waiting for the first batch" if run.epochs == 1 else "next epoch")

    def _show(self) -> None:
        from IPython.display import DisplayHandle

        self._output = DisplayHandle()
        self._output.display(self._plot)

    def update(self, update: Update) -> None:
        if len(update.numbers):
            columns = update.step_ms, update.wait_ms, update.memory.n_bytes / 2**20
            self._plot.push_run(
                update.numbers, columns, facts(update), lambda: (status(update), progress(update))
            )
        else:
            self._plot.set_status(status(update), progress(update))

    def end(self, summary: RunSummary) -> None:
        self._summary = summary
        self._plot.finish(f"{summary.ended}: the summary comes when the cell ends")
        if not _CELL.draw_at_end(self):
            self.draw()

    def draw(self) -> None:
        """Put what stays in the plot's place; if that fails, the sentence. Does not raise."""
        if self._summary is None:
            return
        try:
            from perfkit.show.run_bundle import bundle

            self._output.update(bundle(self._summary), raw=True)
        except Exception as error:  # a notebook without matplotlib, a broken font …
            self._draw_plainly(self._summary, error)

    def _draw_plainly(self, summary: RunSummary, error: Exception) -> None:
        failed = f"Note: the picture of this run failed: {type(error).__name__}: {error}"
        try:
            text = f"{summary}\n\n{failed}"
        except Exception:  # what spoiled the picture spoils the report in words, too
            text = failed
        with contextlib.suppress(Exception):
            self._output.update({"text/plain": text}, raw=True)


class _Words(_Plot):
    """A line in place of the plot, where there is no widget: below the cell, as the plot is."""

    def __init__(self, why: str) -> None:
        self._name, self._why = "", why
        self._output: Any = None
        self._shown_in: object = None
        self._summary: RunSummary | None = None

    def begin(self, run: Named) -> None:
        from IPython.display import DisplayHandle

        self._name = run.name
        cell = _cell_number()
        if self._output is None or cell != self._shown_in:
            self._shown_in = cell
            self._output = DisplayHandle()
            self._output.display(self._line("no batch yet"), raw=True)

    def update(self, update: Update) -> None:
        self._output.update(self._line(status(update)), raw=True)

    def _line(self, said: str) -> dict[str, str]:
        return {"text/plain": f"{self._name}: {said}\n({self._why})"}

    def end(self, summary: RunSummary) -> None:
        self._summary = summary
        if not _CELL.draw_at_end(self):
            self.draw()


def _cell_number() -> object:
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "execution_count", None)


class _Line:
    """A progress line on standard error, and the verdict when a loop has ended.

    The line leaves its row to what the loop prints; see :mod:`perfkit.show.shared_row`.
    """

    _shares_row = True

    def __init__(self) -> None:
        self._line = ProgressLine("")
        self._name = ""
        self._ended_at = 0, 0  # epochs and steps in the last line

    def begin(self, run: Named) -> None:
        self._line.end()
        self._name = run.name
        self._line = ProgressLine(run.name, shares_row=self._shares_row)

    def update(self, update: Update) -> None:
        self._line.update(update)

    def end(self, summary: RunSummary) -> None:
        self._line.end()
        so_far = summary.n_epochs, summary.n_steps
        if so_far == self._ended_at:
            return  # only a look at a batch: nothing has ended
        self._ended_at = so_far
        epoch = f" {summary.n_epochs} epochs," if summary.n_epochs > 1 else ""
        write(
            f"{self._name}:{epoch} {plural(summary.n_steps, 'step')}, "
            f"{fmt_ms(1e3 * summary.wall_s)}, {summary.ended}{left(summary)}. {summary.sentence}\n"
        )


class _Verdict(_Line):
    """The verdict alone."""

    _shares_row = False

    def update(self, update: Update) -> None:
        """Leave the line to the trainer's own progress bar."""
