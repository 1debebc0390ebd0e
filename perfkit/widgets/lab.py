"""The Lab: change a setting, watch the step time of a real run change, and keep the figures."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import queue
import sys
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import traitlets
from markupsafe import escape

from perfkit import show
from perfkit.base.arguments import brief, check_text
from perfkit.base.budget import scaled
from perfkit.base.errors import PerfkitError, SettingError, UsageError
from perfkit.base.files import write_atomically
from perfkit.base.machine import facts
from perfkit.base.scrub import scrub as scrubbed
from perfkit.base.words import fmt_ms
from perfkit.experiment.process.events import (
    FINAL_STATES,
    Event,
    Points,
    RunFinished,
    RunStarted,
    StateChanged,
)
from perfkit.experiment.process.result import SPEED, RunResult
from perfkit.experiment.process.session import Session, positive
from perfkit.experiment.settings import Setting, clash
from perfkit.show._as_markdown import escaped
from perfkit.show._drawn import drawn_image
from perfkit.widgets import _lab_rows as rows_
from perfkit.widgets._cell import Execution, execution
from perfkit.widgets._frontend import answer_on_own_shell, bundle, has_front_end, no_widgets_here
from perfkit.widgets._history import History, planar
from perfkit.widgets._lab_confirm import Confirmation, has_interval
from perfkit.widgets._lab_figure import Curve, columns, png
from perfkit.widgets._stays import staying

if TYPE_CHECKING:
    from perfkit.experiment.compare.ab import ABResult

_COLUMNS = 5  # seconds, step ms, data wait ms, memory MiB, quiet
# Two messages a second where training and browser share the cores (ten would slow a two-core
# machine by 12 %, two by 1.8 %).
_FLUSH_EVERY_S = 0.5
_LIVE_STEPS = 15  # the state line has the median of the last few steps
_CONFIRMING = "confirming"
# what save() and the buttons write
_FILES = ("png", "json", "md")

_one_at_a_time = threading.Lock()
_active: weakref.ref[Lab] | None = None


class _Curve:
    """The live curve of one run."""

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self.history = History(_COLUMNS)
        self.recent: list[float] = []
        self._seconds = 0.0
        self._next_index = 0
        self._waiting: list[np.ndarray[Any, np.dtype[np.float32]]] = []

    def take(self, points: Points) -> None:
        if len(points.index) == 0:
            return
        # steps that were not sent took as long as their neighbours, for all that we know
        steps = np.asarray(points.step_ms, np.float64)
        gaps = np.diff(np.concatenate([[self._next_index - 1], points.index])) - 1
        spans = steps + np.maximum(gaps, 0) * float(np.median(steps))
        seconds = self._seconds + np.cumsum(spans) / 1e3
        self._seconds = float(seconds[-1])
        self._next_index = int(points.index[-1]) + 1
        self.recent = [*self.recent, *steps.tolist()][-_LIVE_STEPS:]
        self._waiting.append(
            columns(seconds, steps, points.wait_ms, points.memory_bytes, points.quiet)
        )

    def waiting(self) -> tuple[int, np.ndarray[Any, np.dtype[np.float32]]] | None:
        """Rows that are to be sent now, and how many went before; they count as sent."""
        if not self._waiting:
            return None
        rows = np.concatenate(self._waiting)
        self._waiting.clear()
        return self.history.append(rows), rows

    @property
    def seconds(self) -> float:
        return self._seconds

    def snapshot(self) -> dict[str, Any]:
        return {"run": self.run_id, **self.history.snapshot()}

    @classmethod
    def of(cls, run: RunResult) -> _Curve:
        """The curve of a run that has ended."""
        curve = cls(run.run_id)
        if len(run.index):
            curve.take(
                Points(run.run_id, run.index, run.step_ms, run.wait_ms, run.memory_bytes, run.quiet)
            )
            curve.waiting()
        return curve


class Lab(anywidget.AnyWidget):
    """A widget to change settings of a training run and watch its step time live.

    ``workload(settings)`` is a generator function that builds model, loader and optimizer and
    yields once per step. It runs in its own process. Displaying the Lab returns at once; changing a
    setting after the first run starts the next one. One run is pinned, at first run 1: its curve is
    the dashed line behind the live one, and settings, speeds and picture refer to it. Use
    :meth:`pin` for another one.

    Two runs one after the other are not a comparison, because the machine may have changed in
    between, so their ratio is marked unconfirmed. :meth:`confirm` alternates the two, in fresh
    processes, and its answer replaces the ratio in the table.

    Everything that you can click you can also call: :meth:`run`, :meth:`stop`, :meth:`pause`,
    :meth:`resume`, :meth:`pin`, :meth:`confirm`, :meth:`save`. Two Labs would disturb each
    other's figures, so a Lab refuses to start while another one is running. If you run the cell of
    a Lab again, the old one stops and the new one takes over.

    Args:
        workload: the generator function.
        settings: names from the catalogue, or your own from ``perfkit.setting(name, values)``.
        seconds: length of a run, in seconds after its first step.
        title: the heading above the plot; by default the workload's name, unless that is
            "workload".
        step_timeout_s: a step that takes longer counts as hung.
        start_timeout_s: the same for everything up to the end of the first step.

    Raises:
        SettingError: a setting is unknown; the message lists the known ones.
        WorkloadNotPortableError: the workload cannot be sent to another process.

    Example, with the workload of :func:`perfkit.ab`::

        >>> lab = perfkit.Lab(workload, ["batch_size", "num_workers"])
        >>> lab
    """

    _esm = bundle("lab.js")
    _css = bundle("widget.css")

    _closed = True  # until there is something to close: widgets close themselves when collected

    lab_id = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    shared_title = traitlets.Unicode().tag(sync=True)  # in files: scrubbed
    file_stem = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    choice = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    rows = traitlets.List().tag(sync=True)
    origin = traitlets.Unicode().tag(sync=True)  # of the figures: machine and time
    warning = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)
    # computed when the state is requested (a page is opened or saved), not at each message
    curves = traitlets.Dict().tag(sync=True, to_json=lambda _value, lab: lab._curve_snapshots())

    def __init__(
        self,
        workload: Callable[..., Any],
        settings: Sequence[str | Setting] = (),
        *,
        seconds: float = 12.0,
        title: str | None = None,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 300.0,
    ) -> None:
        this = weakref.ref(self)

        def on_event(event: Event) -> None:
            lab = this()
            if lab is not None:
                lab._take(event)

        self._live: _Curve | None = None
        self._ghost: _Curve | None = None  # of the pinned run
        self._pinned: int | None = None
        self._answers: dict[tuple[int, int], ABResult] = {}
        self._confirmation: Confirmation | None = None
        self._replaced = False
        self._reopened = False  # by a page that JupyterLab's display updates cannot reach
        self._execution = execution(sys._getframe(1).f_code.co_filename)
        self._flushed = 0.0
        self._label = ""
        self._saying = threading.RLock()  # the run's thread and a click change the status
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._painter: threading.Thread | None = None
        self._newest: rows_.Board | None = None  # of those that were to stay in the notebook
        self._showing = threading.Lock()
        check_text("title", title)
        self._session = Session(
            workload,
            settings,
            seconds=seconds,
            on_event=on_event,
            step_timeout_s=step_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        self._timeouts_s = (step_timeout_s, start_timeout_s)
        self._seconds = scaled(float(seconds))
        # also when the interpreter exits, so that no process is left
        self._close_session = weakref.finalize(self, self._session.close)
        self._closed = False
        _take_over(self._execution)
        name = getattr(workload, "__name__", type(workload).__name__)
        shown = title or ("" if name == "workload" else name)  # which every workload is
        self._values = {one.name: one.default for one in self._session.settings}
        self._values |= _of_loaders(workload, self._session.settings)
        lab_id = uuid.uuid4().hex[:12]
        shared = scrubbed(shown)
        super().__init__(
            lab_id=lab_id,
            title=shown,
            shared_title=shared,
            file_stem="".join(c if c.isalnum() else "-" for c in shared).strip("-") or "lab",
            controls=_controls(self._session.settings, self._values),
            choice=_choice(self._session.settings, self._values),
            status=_status("ready", "Press Start for run 1.", started=False),
        )
        answer_on_own_shell(self.comm)
        self.on_msg(self._clicked)

    # --- public methods --------------------------------------------------------------------

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """The runs that have ended, in order."""
        return tuple(self._session.runs)

    def run(self, **values: Any) -> RunResult:
        """Run once with these values, keeping the other settings, and return the result.

        This equals changing the settings by hand. A failed run is a result too: see its ``state``,
        ``message`` and ``traceback_text``. Ctrl-C stops the run and propagates.

        Raises:
            SettingError: an unknown setting or an impossible value.
            UsageError: another Lab is running, or this one was closed.
        """
        run_id = self._begin(values)
        try:
            self._session.wait()
        except BaseException:
            self._session.stop()
            raise
        self._await_picture()  # it is part of this cell's output
        return next(run for run in self._session.runs if run.run_id == run_id)

    def start(self, **values: Any) -> int:
        """Start a run with these values and return its number at once.

        Raises:
            SettingError: an unknown setting or an impossible value.
            UsageError: another Lab is running, or this one was closed.
        """
        return self._begin(values)

    def stop(self) -> None:
        """Stop the run or comparison now; what a run has measured is kept."""
        self._session.stop()
        confirmation = self._confirmation
        if confirmation is not None:
            confirmation.stop()

    def pause(self) -> None:
        """Pause the run between two steps."""
        self._session.pause()

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self._session.resume()

    def pin(self, run: int) -> None:
        """Make this run the reference for the dashed line, settings, speeds and picture.

        Raises:
            UsageError: there is no such run, or it measured no step.
        """
        if not any(rows_.is_measured(one) and _is(one, run) for one in self.runs):
            raise UsageError(f"run {brief(run, 20)} cannot be pinned: {self._measured_ones()}")
        self._pinned = run
        if self._live is not None:
            self._label = self._label_of(self._live.run_id)
        self._show_ghost()
        self._show_rows()
        if self._confirmation is None and self.status["started"]:
            with self._saying:
                if self._busy():  # a paused run says nothing by itself
                    self._show_state(self.status["state"], "")
                else:
                    last = self.runs[-1]
                    self._show_state(last.state, self._told(last))
        self._picture_later(self._board())

    def confirm(self, run: int | None = None, *, budget_s: float | None = None) -> ABResult:
        """Compare a run with the pinned one, alternating in fresh processes; return the answer.

        The answer replaces the ratio in the table. Ctrl-C stops it and propagates.

        Args:
            run: the number of the run; by default the last one that is not pinned.
            budget_s: seconds to spend; by default an estimate of what the two runs need, from
                30 s to 2 min.

        Raises:
            UsageError: there are no two runs to compare, another Lab is running, or :meth:`stop`
                was called.
            WorkloadError: a run of the comparison failed.
        """
        budget = None if budget_s is None else positive("budget_s", budget_s)
        confirmation = self._begin_confirmation(run, budget)
        try:
            confirmation.wait()
        except BaseException:
            confirmation.stop()
            raise
        self._await_picture()
        if confirmation.error is not None:
            raise confirmation.error
        if confirmation.answer is None:
            raise UsageError("the comparison was stopped before it had an answer")
        return confirmation.answer

    def save(self, path: str | Path, *, scrub: bool = True) -> Path:
        """Write the runs to a ``.png`` (picture), ``.json`` (everything) or ``.md`` (table) file.

        The Lab's buttons make the same files, scrubbed.

        Args:
            path: where to.
            scrub: take out secrets and names of users and hosts, see :mod:`perfkit.base.scrub`.

        Raises:
            UsageError: the ending is unknown, or the file cannot be written.
        """
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise UsageError(f"cannot save as {brief(path)}: give the name of a file")
        target = Path(path)
        kind = target.suffix.lower().removeprefix(".")
        if kind not in _FILES:
            raise UsageError(f"cannot save as {target.name!r}: use .png, .json or .md")
        # the file appears only when complete; if it cannot be written, nothing is drawn
        write_atomically(target, lambda part: part.write_bytes(self._file(kind, scrub=scrub)))
        return target

    def close(self) -> None:
        """Stop the run, its processes and the widget. A second call does nothing."""
        global _active
        if self._closed:
            return
        self._closed = True
        if self._worker is not None:
            self._commands.put(None)
        if self._confirmation is not None:
            self._confirmation.stop()
        self._close_session()
        self._await_picture()
        with _one_at_a_time:
            if _active is not None and _active() is self:
                _active = None
        super().close()

    @property
    def _named(self) -> str:
        return self.title or "Lab"

    def __repr__(self) -> str:
        names = [one.name for one in self._session.settings]
        title = f"{self.title!r}, " if self.title else ""
        return f"Lab({title}settings={names})"

    def __str__(self) -> str:
        return f"{self!r}\n{show.text(rows_.report(self._named, self._board()))}"

    # --- runs --------------------------------------------------------------------------------

    def _begin(self, values: Mapping[str, Any]) -> int:
        global _active
        if self._closed:
            raise UsageError("this Lab is closed: make a new one")
        if self._confirmation is not None:
            self._confirmation.stop()
        with _one_at_a_time:
            self._must_be_alone()
            chosen = self._values | dict(values)
            run_id = self._session.start(**chosen)  # stops a run in progress
            _active = weakref.ref(self)
        self._choose(chosen)
        return run_id

    def _must_be_alone(self) -> None:
        other = _active() if _active is not None else None
        if other is not None and other is not self and other._busy() and not other._replaced:
            raise UsageError(
                f"not started, because another Lab ({other._named!r}) was running, and two at "
                "once would disturb each other's figures: stop it or wait for its end"
            )

    def _board(self, runs: Sequence[RunResult] | None = None) -> rows_.Board:
        return rows_.Board(self.runs if runs is None else runs, self._pinned, dict(self._answers))

    def _measured_ones(self) -> str:
        found = [str(run.run_id) for run in self.runs if rows_.is_measured(run)]
        return f"runs with measured steps are {', '.join(found)}" if found else "no run yet"

    def _begin_confirmation(self, number: int | None, budget_s: float | None) -> Confirmation:
        global _active
        if self._closed:
            raise UsageError("this Lab is closed: make a new one")
        self.stop()
        board = self._board()
        base = board.base
        others = [run for run in board.runs if rows_.is_measured(run) and run is not base]
        if number is not None:
            others = [run for run in others if _is(run, number)]
        if base is None or not others:
            which = "second run" if number is None else f"run {brief(number, 20)}"
            raise UsageError(
                f"nothing to confirm: there is no {which} beside the pinned one; "
                f"{self._measured_ones()}"
            )
        with _one_at_a_time:
            self._must_be_alone()
            _active = weakref.ref(self)
            self._confirmation = confirmation = Confirmation(
                self._session.packed,
                self._session.settings,
                base,
                others[-1],
                budget_s=budget_s,
                timeouts_s=self._timeouts_s,
                say=self._confirming,
                ended=self._confirmed,
            )
        self._confirming(f"about {scaled(confirmation.budget_s):.0f} s")
        confirmation.start()
        return confirmation

    def _confirming(self, line: str, progress: float = 0.0, picture: str = "") -> None:
        now = self._confirmation
        if now is not None and not self._closed:
            words = f"Run {now.other} and run {now.base} alternating · {line}"
            more = {"confirming": now.other, "picture": picture}
            self.status = _status(_CONFIRMING, words, started=True, progress=progress) | more

    def _confirmed_words(self, now: Confirmation) -> str:
        """A difference as the table has it: of that run against the pinned one.

        Empty where there is none: the answer's own sentence says which one would have been seen.
        """
        board = replace(self._board(), pinned=now.base)
        other = next((run for run in board.runs if run.run_id == now.other), None)
        speed = None if other is None else board.speed(other)
        return rows_.verdict(board, other) if other and speed and speed.ratio.different else ""

    def _confirmed(self, now: Confirmation) -> None:
        """Called from the confirmation's thread at its end."""
        self._confirmation = None
        if self._closed:
            return
        try:
            told = "the comparison was stopped before it had an answer"
            if now.answer is not None:
                told = now.answer.sentence
                if has_interval(now.answer):
                    self._answers[now.base, now.other] = now.answer
                    told = self._confirmed_words(now) or told
                else:
                    longer = f"lab.confirm({now.other}, budget_s={2 * now.budget_s:.0f})"
                    told += f" Still unconfirmed: give it more time with {longer}."
            elif now.error is not None:
                told = f"no answer: {now.error}"
                if not isinstance(now.error, PerfkitError):
                    self._tell(now.error)
            self._show_rows()
            state = "stopped" if now.answer is None and now.error is None else "done"
            state = "failed" if now.error is not None else state
            words = f"Run {now.other} against run {now.base} · {told}"
            self.status = _status(state, words, started=True)
            self._picture_later(self._board())
        except Exception as error:
            self._tell(error)

    def _choose(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        controls = _controls(self._session.settings, self._values)
        if controls != self.controls:
            self.controls = controls
        self.choice = _choice(self._session.settings, self._values)

    def _busy(self) -> bool:
        state = self.status["state"]
        return state != "ready" and state not in FINAL_STATES

    # --- from the browser ----------------------------------------------------------------------

    def _clicked(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        """Pass a click to the Lab's own thread, so that the kernel is free at once."""
        actions: dict[str, Callable[[], None]] = {
            "set": lambda: self._flip(content["name"], content["index"]),
            "start": lambda: self._restart(),
            "stop": self.stop,
            "pin": lambda: self.pin(content["run"]),
            "confirm": lambda: self._confirm_later(content["run"]),
            "pause": self.pause,
            "resume": self.resume,
            "export": lambda: self._send_file(content["format"]),
        }
        if content.get("type") == "reopened":
            self._reopened = True
            return
        if content.get("type") == "ping":
            self.send({"type": "heard"})
            return
        action = actions.get(content.get("type", ""))
        if action is None or self._closed:
            return
        self.send({"type": "heard"})  # else the browser reports that the kernel is silent
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="perfkit-lab", daemon=True)
            self._worker.start()
        self._commands.put(action)

    def _work(self) -> None:
        while (action := self._commands.get()) is not None:
            try:
                action()
                continue
            except PerfkitError as error:
                self.warning = str(error)
            except Exception as error:
                self._tell(error)
            # the controls show the actual values, not the refused ones
            with contextlib.suppress(Exception):
                self.send_state("choice")

    def _flip(self, name: str, index: int) -> None:
        one = next(one for one in self.controls if one["name"] == name)
        value = _offered(self._session.settings, name, self._values)[index]
        if one["values"][index]["reason"]:
            self.warning = f"{name} {rows_.words(value)}: {one['values'][index]['reason']}"
            self.send_state("choice")
            return
        if not self.status["started"]:
            self._choose(self._values | {name: value})  # nothing has run yet: Start begins run 1
            return
        self._begin({name: value})

    def _confirm_later(self, run: int) -> None:
        self._begin_confirmation(run, None)

    def _restart(self) -> None:
        self._begin({})

    def _send_file(self, kind: str) -> None:
        """A file to download; ``copy`` is Markdown for the clipboard, a file where that fails."""
        copied, kind = ({"copy": True}, "md") if kind == "copy" else ({}, kind)
        mime = "application/json" if kind == "json" else "text/markdown"
        content = {"type": "file", "name": f"{self.file_stem}.{kind}", "mime": mime} | copied
        self.send(content, buffers=[self._file(kind, scrub=True)])

    # --- from the run: called in the session's thread -------------------------------------------

    def _take(self, event: Event) -> None:
        if self._closed:
            return
        try:
            match event:
                case RunStarted():
                    self._run_started(event)
                case Points():
                    self._points(event)
                case StateChanged():
                    self._flush()
                    if event.state not in FINAL_STATES:  # RunFinished follows with everything
                        self._show_state(event.state, event.message)
                case RunFinished():
                    self._run_finished(event.result)
        except Exception as error:
            # shown under the widget, where the reader looks; the run itself continues
            self._tell(error)

    def _run_started(self, event: RunStarted) -> None:
        self._label = self._label_of(event.run_id, event.values)
        self._live = _Curve(event.run_id)
        self._show_state("starting", "")
        self.send({"type": "run", "run": event.run_id})
        self._show_ghost()
        self.warning = " · ".join(event.notes)

    def _label_of(self, run_id: int, values: Mapping[str, Any] | None = None) -> str:
        """The run, as compared with the pinned one; its settings stand above and in the table."""
        if values is None:
            values = next((run.values for run in self.runs if run.run_id == run_id), self._values)
        base = self._board().base
        if base is None or base.run_id == run_id:
            return f"Run {run_id}"
        what = rows_.changes(base.values, values)
        if not what:
            return f"Run {run_id}: the settings of run {base.run_id}"
        return f"Run {run_id}: {what} (run {base.run_id} is pinned)"

    def _full_label(self) -> str:
        if self._live is None or self._label != f"Run {self._live.run_id}":
            return self._label
        return f"{self._label}: {rows_.all_values(self._values) or 'no settings'}"

    def _show_ghost(self) -> None:
        """Let the browser draw the pinned run behind the live one."""
        base = self._board().base
        live = None if self._live is None else self._live.run_id
        if base is None or base.run_id == live:
            self._ghost = None
            self.send({"type": "ghost", "run": 0})
            return
        if self._ghost is None or self._ghost.run_id != base.run_id:
            self._ghost = _Curve.of(base)
        kept = self._ghost.snapshot()
        data = kept.pop("data")
        self.send({"type": "ghost", **kept}, buffers=[data])

    def _points(self, event: Points) -> None:
        if self._live is None or event.run_id != self._live.run_id:
            return
        self._live.take(event)
        if time.monotonic() - self._flushed >= _FLUSH_EVERY_S:
            self._flush()
            self._show_state(self.status["state"], "")

    def _flush(self) -> None:
        waiting = self._live.waiting() if self._live is not None else None
        if self._live is None or waiting is None:
            return
        first, rows = waiting
        self._flushed = time.monotonic()
        self.send(
            {"type": "points", "run": self._live.run_id, "first": first, "rows": len(rows)},
            buffers=[planar(rows)],
        )

    def _show_state(self, state: str, message: str) -> None:
        with self._saying:
            parts = [self._label]
            live = self._live
            if live is not None and live.recent and state in ("running", "paused", "warm-up"):
                parts.append(f"{fmt_ms(float(np.median(live.recent)))} a step")
            if message:
                parts.append(message)
            progress = min(1.0, live.seconds / self._seconds) if live is not None else 0.0
            if state in FINAL_STATES:
                progress = 0.0
            words = " · ".join(parts)
            # the page has the settings beside it, and an exported picture has not
            alone = words.replace(self._label, self._full_label(), 1)
            self.status = _status(state, words, started=True, progress=progress) | {
                "shared": scrubbed(alone)
            }

    def _run_finished(self, result: RunResult) -> None:
        self._flush()
        board = self._board(self.runs if result in self.runs else (*self.runs, result))
        self._show_rows(board)
        self.send_state("curves")  # in case the page is saved now
        try:
            # the table at once: a reader who sees the end and saves also saves this run
            self._show_static(board, picture=None)
        except Exception as error:
            self._tell(error)
        self._show_state(result.state, self._told(result, board))
        self._picture_later(board)

    def _told(self, run: RunResult, board: rows_.Board | None = None) -> str:
        """How a run ended and how it compares, in one line."""
        if run.step is None or run.state not in ("done", "stopped"):
            return run.message
        verdict = rows_.verdict(board or self._board(), run)
        words = f"{fmt_ms(run.mean_ms)} a step"
        return " · ".join(part for part in (words, verdict, run.message) if part)

    def _show_rows(self, board: rows_.Board | None = None) -> None:
        board = self._board() if board is None else board
        self.rows = rows_.browser_rows(board)
        self.origin = rows_.origin(board)

    def _tell(self, error: BaseException) -> None:
        head = f"error in the kernel: {type(error).__name__}: {error}"
        self.problem = head + "\n" + "".join(traceback.format_exception(error))

    # --- what stays ---------------------------------------------------------------------------

    def _curve_snapshots(self) -> dict[str, Any]:
        return {
            "live": self._live.snapshot() if self._live is not None else None,
            "ghost": self._ghost.snapshot() if self._ghost is not None else None,
        }

    def _file(self, kind: str, *, scrub: bool) -> bytes:
        """What is written for others to read: one of :data:`_FILES`."""
        if kind == "png":
            return self._png(scrubbed(self.title) if scrub else self.title)
        if kind == "md":
            return self._markdown(scrub=scrub).encode()
        content = self._content()
        return json.dumps(scrubbed(content) if scrub else content, indent=1).encode()

    def _png(self, title: str) -> bytes:
        return png(title, self._drawn(), origin=rows_.origin(self._board()))

    def _drawn(self) -> list[Curve]:
        kept = [(curve, "") for curve in (self._live,) if curve is not None]
        if self._ghost is not None:
            kept.insert(0, (self._ghost, ", pinned"))
        return [Curve(f"run {one.run_id}{of}", one.history.rows()) for one, of in kept]

    def _markdown(self, *, scrub: bool) -> str:
        said = rows_.report(self._named, self._board())
        name = scrubbed(self._named) if scrub else self._named
        return f"# {escaped(name)}\n\n{show.markdown(said, scrub=scrub)}"

    def _content(self) -> dict[str, Any]:
        board = self._board()

        def speed(run: RunResult) -> dict[str, Any] | None:
            found = board.speed(run)
            if board.base is None or found is None:
                return None
            more = {"kind": found.kind, "n_blocks": found.n_blocks}
            return {"against_run": board.base.run_id} | more | found.ratio._asdict()

        return {
            "type": "lab",
            "speed": SPEED,
            "title": self.title,
            "settings": [one.name for one in self._session.settings],
            "pinned": None if board.base is None else board.base.run_id,
            "runs": [run.to_dict() | {"speed": speed(run)} for run in board.runs],
            "confirmed": [answer.to_dict() for answer in board.answers.values()],
        }

    def _static_bundle(
        self, board: rows_.Board | None = None, picture: bytes | None = None
    ) -> dict[str, Any]:
        """Table and picture; the live widget hides the HTML of its own Lab."""
        board = self._board() if board is None else board
        said = rows_.report(self._named, board)
        if not board.runs:
            hint = escape(f"{said.sentence} A Lab needs a running kernel and a front end.")
            return {"text/plain": repr(self), "text/html": self._staying(f"<p>{hint}</p>")}
        alt = f"{self._named}: step time, data wait and memory of the last run and the pinned one"
        image = "" if picture is None else drawn_image(picture, f"{alt}; figures above")
        report = show.mime_bundle(said)["text/html"]
        return {
            "text/plain": f"{self!r}\n{show.text(said)}",
            "text/html": self._staying(f"{report}{image}"),
        }

    def _staying(self, html: str) -> str:
        # a closed Lab has no widget that would hide this
        return html if self._closed else staying(f"pk-static-{self.lab_id}", html)

    def _picture_later(self, board: rows_.Board) -> None:
        """Draw in another thread: the first time, importing matplotlib takes seconds."""
        if not has_front_end():
            return
        before, curves = self._painter, self._drawn()  # not those of the next run
        with self._showing:
            self._newest = board

        def paint() -> None:
            if before is not None:
                before.join()
            try:
                # another run ended meanwhile: its table is there, and its own picture follows
                if board is self._newest:
                    picture = png(self.title, curves, origin=rows_.origin(board))
                    self._show_static(board, picture=picture)
            except Exception as error:
                self._tell(error)

        self._painter = threading.Thread(target=paint, name="perfkit-lab-picture", daemon=True)
        self._painter.start()

    def _await_picture(self) -> None:
        if self._painter is not None and self._painter is not threading.current_thread():
            self._painter.join(30)

    def _show_static(self, board: rows_.Board, *, picture: bytes | None) -> None:
        """Show the table, and a picture only beside the newest one."""
        if not has_front_end():
            return
        from IPython.display import update_display

        bundle_ = self._static_bundle(board, picture)
        with self._showing:
            if picture is None:
                self._newest = board
            elif board is not self._newest:
                return
            update_display(bundle_, raw=True, display_id=f"perfkit-{self.lab_id}")
            if self._reopened:
                self.send({"type": "static", "bundle": bundle_})

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if not has_front_end():
            display({"text/plain": str(self)}, raw=True)
            return
        static = self._static_bundle(picture=self._png(self.title) if self.runs else None)
        if self._closed:
            display(static, raw=True)
            return
        if lacks := no_widgets_here():
            text = f"A Lab is not shown here: {lacks}. lab.run(…) and lab.confirm() work without."
            display({"text/plain": text}, raw=True)
            display(static, raw=True, display_id=f"perfkit-{self.lab_id}")
            return
        bundle_ = self._repr_mimebundle_()
        data, metadata = bundle_ if isinstance(bundle_, tuple) else (bundle_, {})
        display(data, metadata=metadata, raw=True)
        display(static, raw=True, display_id=f"perfkit-{self.lab_id}")


def _take_over(now: Execution | None) -> None:
    """If a cell is run again, stop the run of its old Lab."""
    with _one_at_a_time:
        old = _active() if _active is not None else None
    before = None if old is None else old._execution
    if old is None or now is None or before is None or not old._busy():
        return
    if before.cell == now.cell and before.number != now.number:
        old._replaced = True
        old.stop()


def _of_loaders(workload: Any, settings: Sequence[Setting]) -> dict[str, Any]:
    """Values of the user's own DataLoaders, which run 1 starts from.

    Those that the workload can name, in its module or its closure; where they disagree, none.
    """
    module = sys.modules.get("torch.utils.data")
    if module is None:
        return {}
    names = dict(getattr(workload, "__globals__", {}))
    with contextlib.suppress(TypeError, ValueError):
        names |= inspect.getclosurevars(workload).nonlocals
    loaders = [one for one in names.values() if isinstance(one, module.DataLoader)]
    found = {}
    for setting in settings:
        values = {getattr(one, setting.name, None) for one in loaders}
        with contextlib.suppress(SettingError):
            if len(values) == 1 and None not in values:
                value = setting.check(values.pop())
                if setting.unavailable(value, facts()) is None:
                    found[setting.name] = value
    return found


def _is(run: RunResult, number: object) -> bool:
    return isinstance(number, int) and run.run_id == number


def _status(state: str, line: str, *, started: bool, progress: float = 0.0) -> dict[str, Any]:
    busy = state != "ready" and state not in FINAL_STATES
    said = {"line": line, "shared": scrubbed(line)}  # what the page shows, and what its PNG does
    return {"state": state, "started": started, "busy": busy, "progress": progress} | said


def _offered(settings: Sequence[Setting], name: str, chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    """The control's values, including one from ``run()`` that it did not offer."""
    one = next(one for one in settings if one.name == name)
    value = chosen[name]
    if _index(one.values, value) is not None:
        return one.values
    more = (*one.values, value)
    return tuple(sorted(more)) if one.control == "slider" else more


def _index(values: Sequence[Any], value: Any) -> int | None:
    for i, known in enumerate(values):
        if known == value and isinstance(known, bool) == isinstance(value, bool):
            return i
    return None


def _choice(settings: Sequence[Setting], chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {
        one.name: _index(_offered(settings, one.name, chosen), chosen[one.name]) for one in settings
    }


def _label(one: Setting) -> str:
    """``DataLoader workers (num_workers)``: includes the name used in code and table."""
    label = one.label[:1].upper() + one.label[1:]
    same = one.label.lower().replace(" ", "_") == one.name.lower()
    return label if same or one.name in one.label else f"{label} ({one.name})"


def _controls(settings: Sequence[Setting], chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What ``js/src/controls.js`` shows."""
    machine = facts()
    return [
        {
            "name": one.name,
            "label": _label(one),
            "control": one.control,
            "help": one.about(),
            "values": [
                {
                    "label": rows_.words(value),
                    "reason": one.unavailable(value, machine)
                    or clash(settings, {**chosen, one.name: value}),
                }
                for value in _offered(settings, one.name, chosen)
            ],
        }
        for one in settings
    ]
