"""Which combination of settings is fastest? Every point of a grid, in interleaved rounds.

::

    found = perfkit.sweep(workload, {"num_workers": [0, 1, 2], "uint8": [False, True]})
    print(found)
    found.knee("num_workers")

A **round** runs every point once, each in a fresh process, in random order: drift over minutes
affects all points alike, and two points are compared by their ratio within each round. A large grid
is halved: after each round the slower half is dropped, until few points are left. A failed run is a
result. With a store, every run is on disk before the next begins, and a second call resumes where
the first was cut off.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perfkit.base.arguments import brief
from perfkit.base.budget import scaled
from perfkit.base.display import Shown
from perfkit.base.errors import StoreError, UsageError
from perfkit.base.machine import Provenance, facts, stamp
from perfkit.base.plain import fields
from perfkit.base.progress import Progress, Say
from perfkit.base.scratch import scratch_folder
from perfkit.base.words import fmt_ms, plural
from perfkit.experiment.compare._elsewhere import Round, RoundRuns, overlaps, rounds_on
from perfkit.experiment.compare._grid import Grid, Skipped, grid_of, key
from perfkit.experiment.compare._identity import identity
from perfkit.experiment.compare.knee import Knee, knee_of
from perfkit.experiment.compare.store import Store
from perfkit.experiment.process._process import prepared_process
from perfkit.experiment.process.result import RunResult, device_of, is_other_work
from perfkit.experiment.process.session import HIGHEST_SEED, Session, count, positive
from perfkit.experiment.settings import Setting, Settings
from perfkit.experiment.settings._declared import check_names, words
from perfkit.measure.paired import Interval, Looks, ratio_interval

if TYPE_CHECKING:
    from os import PathLike

# Grids up to this size run whole in each round; larger ones are halved down to this size.
_FULL_UP_TO = 12
_HALVED_TO = 4
# Fewer rounds give no interval; more are not needed to resolve a few per cent.
_FEWEST_ROUNDS = 2
_MOST_ROUNDS = 20
_FIRST_LOOK = 4
# An executor gets all rounds at once.
_MOST_ASKED_FOR = 10_000
# A point is clearly slower when its whole interval is beyond this.
_WORSE = 1.02
_ALPHA = 0.05
# Length of one run: long enough for some steps, short enough for about this many rounds.
_ROUNDS_AIMED_AT = 6
_SHORTEST_RUN_S, _LONGEST_RUN_S = 0.3, 10.0
_START_GUESS_S = 0.3
_MARGIN = 0.05
_PREPARED_WITHIN_S = 15.0


@dataclass(frozen=True)
class Point:
    """One combination of values.

    Attributes:
        values: values of the settings that the grid varies.
        runs: its runs by round; a failed run is its last.
        dropped: why it was left out of later rounds; empty if it was not.
    """

    values: Mapping[str, Any]
    runs: Mapping[int, RunResult] = field(repr=False)
    dropped: str = ""

    @property
    def state(self) -> str:
        """``"measured"``, ``"not reached"``, or how its run failed, such as ``"out of memory"``."""
        if not self.runs:
            return "not reached"
        bad = [run for run in self.runs.values() if not run.ok]
        return bad[0].state if bad else "measured"

    @property
    def message(self) -> str:
        """What went wrong, in one line; empty if nothing did."""
        return next((run.message for run in self.runs.values() if not run.ok), "")

    def times(self, per: Literal["step", "sample"]) -> dict[int, float]:
        """Round → ms per step or per sample."""
        found = {}
        for number, run in self.runs.items():
            each = 1.0 if per == "step" else run.samples_per_step
            if run.ok and run.mean_ms and each:
                found[number] = run.mean_ms / each
        return found


@dataclass(frozen=True)
class Sweep(Shown):
    """The result of :func:`sweep`.

    Attributes:
        grid: the values of each setting that was varied.
        points: in the grid's order.
        skipped: points that cannot run here or duplicate another one, with the reason.
        per: whether times are per ``"step"`` or, if batches differ, per ``"sample"``.
        confidence: of each interval, chosen so that all together have 0.95 (Bonferroni).
        n_resumed: runs that the store already held.
        stopped: why it ended: ``"clear"``, ``"time budget"``, ``"most rounds"``, ``"every round
            asked for"``, ``"nothing left to run"`` or ``"the store cannot be written"``.
        warnings: reasons to doubt the answer, and repairs of the store.
    """

    grid: Mapping[str, tuple[Any, ...]]
    points: tuple[Point, ...]
    skipped: tuple[Skipped, ...]
    per: Literal["step", "sample"]
    confidence: float
    n_resumed: int
    stopped: str
    duration_s: float
    warnings: tuple[str, ...]
    provenance: Provenance

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """All runs, round by round."""
        rounds = sorted({number for point in self.points for number in point.runs})
        return tuple(p.runs[number] for number in rounds for p in self.points if number in p.runs)

    @property
    def best(self) -> Point | None:
        """The fastest of the points that ran in most rounds; None if none was measured."""
        return _best(self.points, self.per)

    @property
    def sentence(self) -> str:
        """The answer in words."""
        best = self.best
        n = len(self.points)
        if best is None:
            return f"None of {plural(n, 'point')} was measured."
        time_ms = float(np.median(list(best.times(self.per).values())))
        took = f"{fmt_ms(time_ms)} per {self.per}"
        lead = f"The fastest of {plural(n, 'point')} is {words(best.values)}: {took}"
        alike = [
            point
            for point in self.points
            if point is not best and not point.dropped and self._alike(point)
        ]
        unknown = sum(self.ratio(point) is None for point in self.points if point is not best)
        untold = f" {unknown} of {n} could not be measured." if unknown else ""
        early = sum(self._alike(point) for point in self.points if point.dropped)
        if early:  # by a few rounds, which show no interval
            were = "was" if early == 1 else "were"
            untold += f" {early} of {n} {were} left out in a slower half, before that was shown."
        if not alike:
            others = "each other one that ran" if unknown else "every other one"
            others = "each one that stayed" if early else others
            slower = "" if n - unknown - early == 1 else f"; {others} is distinguishably slower"
            return f"{lead}{slower}.{untold}"
        names = "; ".join(words(point.values) for point in alike[:3])
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        return f"{lead}; not distinguishably slower: {names}{more}.{untold}"

    def _alike(self, point: Point) -> bool:
        found = self.ratio(point)
        return found is not None and found.low <= 1

    def ratio(self, point: Point, to: Point | None = None) -> Interval | None:
        """Time of a point ÷ time of another (default: the best), over the rounds that both ran in.

        None if one of them was not measured.
        """
        other = self.best if to is None else to
        return None if other is None else _ratio(point, other, self.per, self.confidence)

    def knee(self, name: str, *, margin: float = _MARGIN) -> Knee:
        """The value of a setting above which more does not help; see :class:`Knee`.

        The other settings stay as they are in the best point.

        Raises:
            UsageError: the grid does not vary it, its values are not numbers, or none of them was
                measured.
        """
        if not isinstance(name, str) or name not in self.grid:
            raise UsageError(
                f"the grid does not vary {brief(name, 60)}; it varies: {', '.join(self.grid)}"
            )
        if not all(isinstance(v, int | float) for v in self.grid[name]):
            raise UsageError(f"the values of {name!r} are not numbers, so they have no knee")
        best = self.best
        if best is None:
            raise UsageError("no point was measured: there is no knee")
        line = [
            (point.values[name], ratio)
            for point in self.points
            if all(point.values[n] == best.values[n] for n in self.grid if n != name)
            and (ratio := self.ratio(point)) is not None
        ]
        line.sort(key=lambda pair: pair[0])
        return knee_of(name, line, best.values[name], margin)

    def table(self) -> list[dict[str, Any]]:
        """One row of plain values per point.

        Keys: each setting's name, ``state``, ``time_ms`` (per step or sample: of the best the
        median over its rounds, of another one that times its ratio, as a point that left early has
        not seen the rounds that were slow for all), ``ratio``, ``ratio_low``, ``ratio_high`` (its
        time ÷ the best's, over the rounds of both), ``samples_per_s`` (likewise), ``wait_share``,
        ``peak_bytes``, ``faults_per_step``, ``rounds``, ``message``.
        """
        rows = []
        for point in self.points:
            times = list(point.times(self.per).values())
            ratio = self.ratio(point) if times else None
            good = [run for run in point.runs.values() if run.ok]
            like, scale = (point, 1.0) if ratio is None else (self.best or point, ratio.ratio)
            rate = _median([run.samples_per_s for run in like.runs.values() if run.ok])
            known = list(like.times(self.per).values())
            rows.append(
                dict(point.values)
                | {
                    "state": point.state,
                    "time_ms": float(np.median(known)) * scale if times else None,
                    "ratio": ratio.ratio if ratio else None,
                    "ratio_low": ratio.low if ratio else None,
                    "ratio_high": _finite(ratio.high) if ratio else None,
                    "samples_per_s": None if rate is None else rate / scale,
                    "wait_share": _median([run.wait_share for run in good]),
                    "peak_bytes": max((run.peak_bytes or 0 for run in good), default=0) or None,
                    "faults_per_step": _median([run.faults_per_step for run in good]),
                    "rounds": len(times),
                    "message": point.message or point.dropped,
                }
            )
        rows += [
            dict(one.values)
            | {"state": "skipped", "rounds": 0, "message": one.reason}
            | dict.fromkeys(
                ("time_ms", "ratio", "ratio_low", "ratio_high", "samples_per_s", "wait_share")
            )
            | {"peak_bytes": None, "faults_per_step": None}
            for one in self.skipped
        ]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """This result as plain JSON types; the store has the runs with their curves."""
        best = None if self.best is None else self.best.values
        return fields(self, "sentence", without=("points",), best=best, table=self.table())


def sweep(
    workload: Callable[[Settings], Any],
    grid: Mapping[str, Sequence[Any]],
    *,
    settings: Sequence[str | Setting] = (),
    base: Mapping[str, Any] | None = None,
    budget_s: float = 120.0,
    store: str | PathLike[str] | None = None,
    seconds: float | None = None,
    rounds: int | None = None,
    step_timeout_s: float = 60.0,
    start_timeout_s: float = 300.0,
    warmup: int = 3,
    seed: int = 0,
    executor: Executor | None = None,
    say: Say | Progress | bool | None = None,
) -> Sweep:
    """Run every combination of the grid's values, in rounds, and report the fastest.

    It ends when the answer is clear (every other point is distinguishably slower, or equal within
    2 %), when the budget is spent, or after 20 rounds. A small grid gets two rounds even if that
    takes longer. Ctrl-C propagates; the store keeps what was measured.

    Args:
        workload: a generator function that takes the settings and yields once per step; see
            :class:`~perfkit.experiment.process.session.Session`.
        grid: the values of each setting to vary. Points that cannot run here are skipped, with the
            reason.
        settings: further settings that the workload reads.
        base: values of those settings, if not their defaults.
        budget_s: seconds to spend; runs already in the store count with the time they took.
        store: a JSONL file that receives each run; a second call with the same workload and grid
            makes only the missing runs.
        seconds: length of one run; by default derived from the budget.
        rounds: run exactly this many rounds, at most 10,000.
        step_timeout_s, start_timeout_s, warmup, seed: see
            :class:`~perfkit.experiment.process.session.Session`; the seed also sets the order
            within the rounds.
        executor: runs whole rounds on its workers, at the same time where it has several: a
            ``concurrent.futures.ProcessPoolExecutor``, or that of a cluster's client. The points of
            a round run on one machine, and only they are compared. It makes ``rounds`` rounds (by
            default 4) of all points, whatever they show. Rounds on one machine slow each other.
            After Ctrl-C a process pool stops its rounds, and it ends with a process that is killed.
        say: called with each progress line; None for a bar that is gone at the end, False for no
            output.

    Returns:
        A :class:`Sweep`: ``best``, ``points``, ``ratio``, ``knee``, ``table``, ``sentence``.

    Raises:
        SettingError: a value is invalid, or no point of the grid can run here.
        UsageError: a number is invalid.
        StoreError: the store is in use, damaged, cannot be opened, or belongs to another workload
            or machine. (If it cannot be written later, the sweep ends and returns what was
            measured, with a warning.)

    Example, with the workload of :func:`perfkit.ab`::

        >>> found = perfkit.sweep(workload, {"batch_size": [32, 128, 512]}, budget_s=30)
        >>> print(found)
        >>> found.best.values
    """
    asked_s = positive("budget_s", budget_s)
    if rounds is not None:
        rounds = count("rounds", rounds, _MOST_ASKED_FOR, least=1)
    if executor is not None and not isinstance(executor, Executor):
        raise UsageError(
            f"executor={brief(executor, 60)} is not a concurrent.futures.Executor: give a "
            "ProcessPoolExecutor, or client.get_executor() of dask.distributed"
        )
    seed = count("seed", seed, HIGHEST_SEED)
    points = grid_of(grid, settings, {} if base is None else base, facts())
    check_names(workload, settings, grid, base or {})
    # the session scales it
    length_s = _run_s(asked_s, len(points.points)) if seconds is None else seconds
    progress = Progress("", say)
    with Session(
        workload,
        points.settings,
        seconds=length_s,
        step_timeout_s=step_timeout_s,
        start_timeout_s=start_timeout_s,
        warmup=warmup,
        seed=seed,
    ) as session:
        opened = None if store is None else Store(store, identity(workload))
        try:
            going = _Sweeping(session, points, opened, scaled(asked_s), rounds, seed, progress)
            if executor is not None:
                options = {
                    "seconds": length_s, "step_timeout_s": step_timeout_s,
                    "start_timeout_s": start_timeout_s, "warmup": warmup, "seed": seed,
                }  # fmt: skip
                with scratch_folder() as folder:
                    return going.result(going.on_workers(executor, options, folder))
            with prepared_process(_PREPARED_WITHIN_S):
                stopped = going.until_clear()
                return going.result(stopped)
        finally:
            progress.close()
            if opened is not None:
                opened.close()


class _Sweeping:
    """Runs round after round until the answer is clear."""

    def __init__(
        self,
        session: Session,
        grid: Grid,
        store: Store | None,
        budget_s: float,
        rounds: int | None,
        seed: int,
        progress: Progress,
    ) -> None:
        self._session, self._grid, self._store = session, grid, store
        self._budget_s, self._rounds, self._seed = budget_s, rounds, seed
        self._progress = progress
        self._began_s = time.monotonic()
        self._spent_before_s = 0.0
        self._runs: list[dict[int, RunResult]] = [{} for _ in grid.points]
        self._dropped = [""] * len(grid.points)
        self._took_s: list[float] = []
        self._n_resumed = 0
        self._n_runs = 0
        self._warnings: list[str] = list(store.notes) if store is not None else []
        self._grid_values = {
            one.name: one.values for one in grid.settings if one.name in grid.names
        }
        # runs of another grid were not interleaved with this one's
        self._part = {
            "kind": "sweep",
            "seed": seed,
            "grid": {name: list(values) for name, values in self._grid_values.items()},
        }
        self._known = self._from_store()

    def _from_store(self) -> dict[tuple[str, int], tuple[RunResult, float]]:
        found = {}
        for line in self._store.lines if self._store is not None else ():
            part = line.part
            if all(part.get(name) == value for name, value in self._part.items()):
                took_s = float(part.get("took_s", 0.0))
                found[key(line.run.values), int(part["round"])] = (line.run, took_s)
        return found

    # --- the loop ---------------------------------------------------------------------------

    def until_clear(self) -> str:
        """Measure; return why it ended."""
        number, looks = 0, Looks(_FIRST_LOOK)
        while True:
            alive = self._alive()
            if not alive:
                return "nothing left to run"
            for index in np.random.default_rng([self._seed, number]).permutation(len(alive)):
                which = alive[int(index)]
                try:
                    if not self._run(which, number):
                        return "time budget"
                except StoreError as error:
                    self._warnings.append(f"{error}: the sweep ends here, with what was measured")
                    return "the store cannot be written"
            number += 1
            if self._rounds is not None:
                if number >= self._rounds:
                    return "every round asked for"
                continue
            if number >= _MOST_ROUNDS:
                return "most rounds"
            self._halve(number)
            if looks.is_due(number) and self._clear():
                return "clear"

    def on_workers(self, executor: Executor, options: Mapping[str, Any], folder: Path) -> str:
        """Make the rounds that the store lacks on the executor's workers; return why it ended.

        They look whether the folder is still there.
        """
        wanted = []
        for number in range(self._rounds or _FIRST_LOOK):
            order = np.random.default_rng([self._seed, number]).permutation(len(self._runs))
            points = [(int(i), self._grid.points[int(i)]) for i in order]
            if all((key(values), number) in self._known for _, values in points):
                for which, _ in points:
                    self._run(which, number)
                continue
            packed = self._session.packed
            known = self._session.settings
            wanted.append(Round(number, packed, known, tuple(points), options, os.getpid(), folder))
        made: list[RoundRuns] = []
        for one in rounds_on(executor, wanted, self._warnings.append):
            made.append(one)
            for which, run, took_s in one.runs:
                try:
                    self._take(which, one.number, run, took_s)
                except StoreError as error:
                    self._warnings.append(f"{error}: what ran after it is not in the store")
                    self._store = None
            self._progress.line(
                f"{len(made)} of {len(wanted)} rounds", share=len(made) / len(wanted)
            )
        machines = {(one.host, one.machine) for one in made}
        if len(machines) > 1:
            kinds = "; ".join(sorted({kind for _, kind in machines}))
            self._warnings.append(
                f"rounds ran on {len(machines)} machines ({kinds}): ratios are within rounds, each "
                "on one of them, but times in ms are over all"
            )
        if beside := overlaps(made):
            self._warnings.append(
                f"{plural(beside, 'round')} ran alongside another on the same machine, and they "
                "slowed each other: give the executor one worker per machine"
            )
        return "every round asked for"

    def _alive(self) -> list[int]:
        return [
            i
            for i, runs in enumerate(self._runs)
            if not self._dropped[i] and all(run.ok for run in runs.values())
        ]

    def _run(self, which: int, number: int) -> bool:
        """Run a point, or take its run from the store; return False if the budget is spent."""
        values = self._grid.points[which]
        known = self._known.get((key(values), number))
        if known is not None:
            run, took_s = known
            self._n_resumed += 1
            self._spent_before_s += took_s
        else:
            if self._over(number):
                return False
            self._tell(which, number)
            began_s = time.monotonic()
            run = self._session.run(**values)
            took_s = time.monotonic() - began_s
        self._take(which, number, run, took_s, is_new=known is None)
        return True

    def _take(
        self, which: int, number: int, run: RunResult, took_s: float, *, is_new: bool = True
    ) -> None:
        """A point has run; it is stored where it was not taken from there."""
        self._n_runs += 1
        self._took_s.append(took_s)
        self._runs[which][number] = run
        if is_new and self._store is not None:
            part = {
                "round": number,
                "point": self._grid.varied(self._grid.points[which]),
                "took_s": round(took_s, 3),
            }
            self._store.append(run, self._part | part)

    @property
    def _spent_s(self) -> float:
        return self._spent_before_s + time.monotonic() - self._began_s

    def _over(self, number: int) -> bool:
        """Whether the next run exceeds the budget and is not required anyway."""
        if self._rounds is not None or not self._took_s:
            return False
        if number < _FEWEST_ROUNDS and len(self._grid.points) <= _FULL_UP_TO:
            return False
        return self._spent_s + float(np.median(self._took_s)) > self._budget_s

    def _tell(self, which: int, number: int) -> None:
        said = words(self._grid.varied(self._grid.points[which]))
        alive = len(self._alive())
        if not self._took_s:
            self._progress.line(f"round 1, run 1 of {alive}: {said}")
            return
        each_s = float(np.median(self._took_s))
        fewest = self._rounds or _FEWEST_ROUNDS
        there = sum(number in runs for runs in self._runs)
        least_s = (max(fewest - number, 1) * alive - there) * each_s
        rest_s = least_s if self._rounds else max(self._budget_s - self._spent_s, least_s)
        self._progress.line(
            f"round {number + 1}, run {there + 1} of {alive}: {said}", left_s=rest_s
        )

    # --- which points stay, and whether it is clear
    # ---------------------------------------------------

    def _halve(self, number: int) -> None:
        if len(self._grid.points) <= _FULL_UP_TO:
            return
        points, per = self._points(), self._per()
        measured = [i for i in self._alive() if points[i].times(per)]
        if len(measured) <= _HALVED_TO:
            return
        measured.sort(key=lambda i: float(np.median(list(points[i].times(per).values()))))
        stay = max(math.ceil(len(measured) / 2), _HALVED_TO)
        for i in measured[stay:]:
            self._dropped[i] = f"in the slower half after round {number}"

    def _clear(self) -> bool:
        points, per = self._points(), self._per()
        best = _best(points, per)
        if best is None:
            return False
        for i in self._alive():
            if points[i] is best:
                continue
            found = _ratio(points[i], best, per, self._confidence())
            if found is None or not (found.tight or found.low > _WORSE):
                return False
        return True

    def _points(self) -> tuple[Point, ...]:
        return tuple(
            Point(self._grid.varied(values), dict(runs), dropped)
            for values, runs, dropped in zip(
                self._grid.points, self._runs, self._dropped, strict=True
            )
        )

    def _per(self) -> Literal["step", "sample"]:
        good = [run for runs in self._runs for run in runs.values() if run.ok]
        samples = [run.samples_per_step for run in good]
        if not samples or not all(samples):
            return "step"
        known = [n for n in samples if n]
        return "sample" if is_other_work(*known) else "step"

    def _confidence(self) -> float:
        return 1 - _ALPHA / max(len(self._grid.points) - 1, 1)

    def result(self, stopped: str) -> Sweep:
        """The whole result."""
        failed = [p for p in self._points() if p.state not in ("measured", "not reached")]
        warnings = [*self._warnings]
        warnings += [f"{words(p.values)}: {p.state}: {p.message}" for p in failed]
        missed = [p for p in self._points() if p.state == "not reached"]
        if missed:
            warnings.append(f"{plural(len(missed), 'point')} not reached: raise budget_s")
        runs = [run for runs in self._runs for run in runs.values()]
        return Sweep(
            grid=self._grid_values,
            points=self._points(),
            skipped=self._grid.skipped,
            per=self._per(),
            confidence=self._confidence(),
            n_resumed=self._n_resumed,
            stopped=stopped,
            duration_s=time.monotonic() - self._began_s,
            warnings=tuple(dict.fromkeys(warnings)),
            provenance=stamp(
                command=f"perfkit.sweep(…, {', '.join(self._grid.names)})",
                seed=self._seed,
                device=device_of(runs),
            ),
        )


def _run_s(budget_s: float, n_points: int) -> float:
    each_s = budget_s / (min(n_points, 2 * _FULL_UP_TO) * _ROUNDS_AIMED_AT) - _START_GUESS_S
    return min(max(each_s, _SHORTEST_RUN_S), _LONGEST_RUN_S)


def _best(points: Sequence[Point], per: Literal["step", "sample"]) -> Point | None:
    """The point with the smallest median time, among those that no round dropped."""
    measured = [p for p in points if p.state == "measured" and p.times(per)]
    stayed = [p for p in measured if not p.dropped] or measured
    return min(stayed, key=lambda p: float(np.median(list(p.times(per).values()))), default=None)


def _ratio(
    point: Point, other: Point, per: Literal["step", "sample"], confidence: float
) -> Interval | None:
    if point is other or point.values == other.values:
        return Interval(1.0, 1.0, 1.0, confidence) if point.times(per) else None
    mine, its = point.times(per), other.times(per)
    both = sorted(set(mine) & set(its))
    if not both:
        return None
    return ratio_interval([mine[n] for n in both], [its[n] for n in both], confidence=confidence)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
