"""The Lab: flip a setting, watch the step time of a real run change, keep the figures."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from markupsafe import escape

from perfkit._files import write_atomically
from perfkit.errors import PerfkitError, UsageError
from perfkit.experiment.events import (
    FINAL_STATES,
    Event,
    Points,
    RunFinished,
    RunStarted,
    StateChanged,
)
from perfkit.experiment.result import SPEED, RunResult
from perfkit.experiment.session import Session
from perfkit.experiment.settings import Setting, clash
from perfkit.machine import facts
from perfkit.widgets import _lab_rows as rows_
from perfkit.widgets._frontend import answer_on_own_shell, bundle, has_front_end
from perfkit.widgets._history import History, planar
from perfkit.widgets._lab_figure import Curve, columns, png
from perfkit.words import fmt_ms

__all__ = ["Lab"]

_COLUMNS = 5  # seconds, step ms, data wait ms, memory MiB, quiet
# Two messages a second where training and browser share the cores (ten would slow a two-core
# machine by 12 %, two by 1.8 %).
_FLUSH_EVERY_S = 0.5
_LIVE_STEPS = 15  # the state line tells the median of the last few steps

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


class Lab(anywidget.AnyWidget):
    """Toggles beside a live plot of a training run in a process of its own.

    ``workload(settings)`` is a generator function that builds model, loader and optimizer and
    yields once a step. Showing the Lab returns at once; flipping a toggle after the first run
    starts the next one, with the last as a ghost line behind it. Everything that can be clicked
    can be called: :meth:`run`, :meth:`stop`, :meth:`pause`, :meth:`resume`, :meth:`export`.
    Two Labs would disturb each other's figures: while one runs, another refuses to start.

    Args:
        workload: the generator function.
        settings: names from the catalogue, or your own by ``perfkit.setting(name, values)``.
        seconds: how long a run lasts after its warm-up.
        title: what stands above the plot; by default the workload's name, where that says more
            than "workload".

    Raises:
        SettingError: an unknown setting; the message lists those that exist.
        WorkloadNotPortableError: the workload cannot travel to another process.
    """

    _esm = bundle("lab.js")
    _css = bundle("widget.css")

    _closed = True  # until there is something to close: a widget closes itself when dropped

    lab_id = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    file_stem = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    choice = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    rows = traitlets.List().tag(sync=True)
    warning = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)
    # made when somebody asks for the state (a page that opens or is saved), not at each message
    curves = traitlets.Dict().tag(sync=True, to_json=lambda _value, lab: lab._curve_snapshots())

    def __init__(
        self,
        workload: Callable[..., Any],
        settings: Sequence[str | Setting] = (),
        *,
        seconds: float = 12.0,
        title: str | None = None,
    ) -> None:
        this = weakref.ref(self)

        def on_event(event: Event) -> None:
            lab = this()
            if lab is not None:
                lab._take(event)

        self._live: _Curve | None = None
        self._ghost: _Curve | None = None
        self._flushed = 0.0
        self._label = ""
        self._seconds = seconds
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._painter: threading.Thread | None = None
        self._session = Session(workload, settings, seconds=seconds, on_event=on_event)
        # also when the interpreter ends: no process stays behind
        self._close_session = weakref.finalize(self, self._session.close)
        self._closed = False
        name = getattr(workload, "__name__", type(workload).__name__)
        shown = title or ("" if name == "workload" else name)  # which every workload is
        self._values = {one.name: one.default for one in self._session.settings}
        lab_id = uuid.uuid4().hex[:12]
        super().__init__(
            lab_id=lab_id,
            title=shown,
            file_stem="".join(c if c.isalnum() else "-" for c in shown) or "lab",
            controls=_controls(self._session.settings, self._values),
            choice=_choice(self._session.settings, self._values),
            status=_status("ready", "Press Start for run 1.", started=False),
        )
        answer_on_own_shell(self.comm)
        self.on_msg(self._clicked)

    # --- what can be called ----------------------------------------------------------------

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """The runs that ended, in order."""
        return tuple(self._session.runs)

    def run(self, **values: Any) -> RunResult:
        """Run once with these values, the other settings as they stand; wait for the result.

        The same as flipping the toggles by hand. A run that fails is a result too: see its
        ``state``, ``message`` and ``traceback_text``. Ctrl-C stops the run and comes through.

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
        self._await_picture()  # it belongs to what this cell leaves behind
        return next(run for run in self._session.runs if run.run_id == run_id)

    def start(self, **values: Any) -> int:
        """Begin a run with these values and return its number at once.

        Raises:
            SettingError: an unknown setting or an impossible value.
            UsageError: another Lab is running, or this one was closed.
        """
        return self._begin(values)

    def stop(self) -> None:
        """End the run now; what it measured so far stays."""
        self._session.stop()

    def pause(self) -> None:
        """Hold the run between two steps."""
        self._session.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._session.resume()

    def export(self, path: str | Path) -> Path:
        """Write the runs to ``.png`` (picture), ``.json`` (everything) or ``.md`` (table).

        Raises:
            UsageError: another ending, or a place that cannot be written to; before anything is
                drawn.
        """
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise UsageError(f"cannot export to {path!r}: give the name of a file")
        target = Path(path)
        makers: dict[str, Callable[[], bytes]] = {
            ".png": self._png,
            ".json": lambda: self._json().encode(),
            ".md": lambda: rows_.markdown_table(self._named, self.runs).encode(),
        }
        make = makers.get(target.suffix.lower())
        if make is None:
            raise UsageError(f"cannot export to {target.name!r}: use .png, .json or .md")
        if target.exists() and not target.is_file():
            raise UsageError(f"cannot export to {target}: it is there already, and no file")
        # the file appears when it is whole, and where it cannot be, nothing is drawn
        write_atomically(target, lambda part: part.write_bytes(make()))
        return target

    def close(self) -> None:
        """End the run, its processes and the widget. A second call does nothing."""
        global _active
        if self._closed:
            return
        self._closed = True
        if self._worker is not None:
            self._commands.put(None)
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
        return f"Lab({self.title!r}, settings={names})"

    def __str__(self) -> str:
        return f"{self!r}\n{rows_.plain_table(self.runs)}"

    # --- runs --------------------------------------------------------------------------------

    def _begin(self, values: Mapping[str, Any]) -> int:
        global _active
        if self._closed:
            raise UsageError("this Lab is closed: make a new one")
        with _one_at_a_time:
            other = _active() if _active is not None else None
            if other is not None and other is not self and other._busy():
                raise UsageError(
                    f"another Lab ({other._named!r}) is running, and two at once would "
                    "disturb each other's figures: stop it or wait for its end"
                )
            chosen = self._values | dict(values)
            run_id = self._session.start(**chosen)  # stops a run that is still going on
            _active = weakref.ref(self)
        self._choose(chosen)
        return run_id

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
        """A click: handed to the Lab's own thread, so that the kernel is free again at once."""
        actions: dict[str, Callable[[], None]] = {
            "set": lambda: self._flip(content["name"], content["index"]),
            "start": lambda: self._restart(),
            "stop": self.stop,
            "pause": self.pause,
            "resume": self.resume,
            "export": lambda: self._send_file(content["format"]),
        }
        action = actions.get(content.get("type", ""))
        if action is None or self._closed:
            return
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
            # the controls show what is, not what was refused
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
            self._choose(self._values | {name: value})  # nothing ran yet: Start begins run 1
            return
        self._begin({name: value})

    def _restart(self) -> None:
        self._begin({})

    def _send_file(self, kind: str) -> None:
        text = self._json() if kind == "json" else rows_.markdown_table(self._named, self.runs)
        mime = "application/json" if kind == "json" else "text/markdown"
        self.send(
            {"type": "file", "name": f"{self.file_stem}.{kind}", "mime": mime},
            buffers=[text.encode()],
        )

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
                    self._show_state(event.state, event.message)
                case RunFinished():
                    self._run_finished(event.result)
        except Exception as error:
            # under the widget, where the reader looks; the run itself goes on
            self._tell(error)

    def _run_started(self, event: RunStarted) -> None:
        before = self._session.runs[-1].values if self._session.runs else None
        what = rows_.changes(before, event.values) if before is not None else ""
        self._label = (
            f"Run {event.run_id}: {what or rows_.all_values(event.values) or 'no settings'}"
        )
        if self._live is not None and self._live.history.total:
            self._ghost = self._live
        self._live = _Curve(event.run_id)
        self.send({"type": "run", "run": event.run_id})
        self.warning = " · ".join(event.notes)
        self._show_state("starting", "")

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
        parts = [self._label]
        live = self._live
        if live is not None and live.recent and state in ("running", "paused", "warm-up"):
            parts.append(f"{fmt_ms(float(np.median(live.recent)))} a step")
        if message:
            parts.append(message)
        progress = min(1.0, live.seconds / self._seconds) if live is not None else 0.0
        if state in FINAL_STATES:
            progress = 0.0
        self.status = _status(state, " · ".join(parts), started=True, progress=progress)

    def _run_finished(self, result: RunResult) -> None:
        self._flush()
        runs = self.runs if result in self.runs else (*self.runs, result)
        self.rows = rows_.browser_rows(runs)
        words = result.message
        if result.step is not None and not words:
            words = f"{fmt_ms(result.step.median)} a step (median)"
            base = rows_.baseline(runs)
            if base is not None and base is not result:
                speed = self.rows[-1]["ratio"]
                words += f" · against run {base.run_id} {speed['text']}: {speed['detail']}"
        self._show_state(result.state, words)
        self.send_state("curves")  # for a page that is saved now
        self._picture_later(runs)

    def _tell(self, error: BaseException) -> None:
        head = f"error in the kernel: {type(error).__name__}: {error}"
        self.problem = head + "\n" + "".join(traceback.format_exception(error))

    # --- what stays ---------------------------------------------------------------------------

    def _curve_snapshots(self) -> dict[str, Any]:
        return {
            "live": self._live.snapshot() if self._live is not None else None,
            "ghost": self._ghost.snapshot() if self._ghost is not None else None,
        }

    def _png(self) -> bytes:
        kept = [curve for curve in (self._ghost, self._live) if curve is not None]
        return png(self.title, [Curve(f"run {one.run_id}", one.history.rows()) for one in kept])

    def _json(self) -> str:
        base = rows_.baseline(self.runs)

        def speed(base: RunResult | None, run: RunResult) -> dict[str, Any] | None:
            compared = rows_.against(base, run)
            if base is None or compared is None:
                return None
            return {"against_run": base.run_id} | compared._asdict()

        return json.dumps(
            {
                "type": "lab",
                "speed": SPEED,
                "title": self.title,
                "settings": [one.name for one in self._session.settings],
                "runs": [run.to_dict() | {"speed": speed(base, run)} for run in self.runs],
            },
            indent=1,
        )

    def _static_bundle(self, runs: Sequence[RunResult]) -> dict[str, Any]:
        """Picture and table; the living widget hides the HTML of its own Lab."""
        text = f"{self!r}\n{rows_.plain_table(runs)}"
        # a closed Lab has no widget beside it, which would hide this
        marker = "" if self._closed else f'class="pk-static-{self.lab_id}"'
        if not runs:
            hint = escape(
                f"{self._named}: no run yet. A Lab needs a running kernel and a front end."
            )
            return {"text/plain": repr(self), "text/html": f"<p {marker}>{hint}</p>"}
        picture = base64.b64encode(self._png()).decode()
        alt = f"{self._named}: step time, data wait and memory of the last runs; figures below"
        return {
            "text/plain": text,
            "text/html": (
                f'<div {marker}><img alt="{escape(alt)}" src="data:image/png;base64,{picture}">'
                f"<pre>{escape(rows_.plain_table(runs))}</pre></div>"
            ),
        }

    def _picture_later(self, runs: Sequence[RunResult]) -> None:
        """Draw beside the session's thread: the first time, importing matplotlib takes seconds."""
        if not has_front_end():
            return
        before = self._painter

        def paint() -> None:
            if before is not None:
                before.join()
            try:
                self._show_static(runs)
            except Exception as error:
                self._tell(error)

        self._painter = threading.Thread(target=paint, name="perfkit-lab-picture", daemon=True)
        self._painter.start()

    def _await_picture(self) -> None:
        if self._painter is not None and self._painter is not threading.current_thread():
            self._painter.join(30)

    def _show_static(self, runs: Sequence[RunResult]) -> None:
        from IPython.display import update_display

        update_display(self._static_bundle(runs), raw=True, display_id=f"perfkit-{self.lab_id}")

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if not has_front_end():
            display({"text/plain": str(self)}, raw=True)
            return
        if self._closed:
            display(self._static_bundle(self.runs), raw=True)
            return
        bundle_ = self._repr_mimebundle_()
        data, metadata = bundle_ if isinstance(bundle_, tuple) else (bundle_, {})
        display(data, metadata=metadata, raw=True)
        display(self._static_bundle(self.runs), raw=True, display_id=f"perfkit-{self.lab_id}")


def _status(state: str, line: str, *, started: bool, progress: float = 0.0) -> dict[str, Any]:
    busy = state != "ready" and state not in FINAL_STATES
    return {"state": state, "line": line, "started": started, "busy": busy, "progress": progress}


def _offered(settings: Sequence[Setting], name: str, chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    """The control's values; a value from ``run()`` that it lacks takes its place among them."""
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
    """``DataLoader workers (num_workers)``: also the name that code and table have for it."""
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
