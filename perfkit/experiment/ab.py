"""Two settings of one workload against each other: which is faster, by how much, how sure?

::

    print(perfkit.ab(workload, {"num_workers": 0}, {"num_workers": 2}))

A **block** is one fresh process of each arm. Both are alive at once and take turns, A B B A or
B A A B at random, a fraction of a second each, while the other one pauses between two steps.
Turns cancel what drifts within a block. Fresh processes in every block bring the luck of
a process (where its memory lies, which core it gets) into the spread of the blocks, and so into
the interval; a single pair of processes that lives throughout would give an interval that is
sure of the luck of this pair: with 2 % of luck and 12 blocks it would see a difference in 78 of
100 comparisons of a workload with itself, fresh processes in at most 5 (simulated, in
``tests/experiment/test_ab_blocks.py``). The interval over the blocks is that of
:func:`perfkit.timing.paired.ratio_interval`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from perfkit._display import Shown, _report
from perfkit._printable import printable
from perfkit.base.budget import scaled
from perfkit.errors import StoreError, UsageError
from perfkit.experiment._arm import Limits
from perfkit.experiment._blocks import Block, Blocks
from perfkit.experiment._declared import declared, words
from perfkit.experiment._identity import identity
from perfkit.experiment._process import prepared_process
from perfkit.experiment._progress import Progress, Say, left
from perfkit.experiment.result import Ratio, RunResult
from perfkit.experiment.same import SameResult, same_result
from perfkit.experiment.session import positive
from perfkit.experiment.settings import Setting, Settings, check_values
from perfkit.experiment.store import Store
from perfkit.machine import Provenance, facts, stamp
from perfkit.timing.compare import doubts, sentence
from perfkit.timing.paired import FEWEST, Interval, ratio_interval
from perfkit.words import fmt_ratio

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["ABResult", "Block", "ab"]

_MOST_BLOCKS = 200
_LOOK_GROWTH = 1.5
# Batches differ by more than this: they are compared by the time per sample.
_OTHER_WORK = 0.2
_PREPARED_WITHIN_S = 15.0
_LONGEST_NAME = 60
_NO_BLOCK = -1
# Two runs of each arm tell what the workload's own noise is; a third one makes that surer.
_SAME_RUNS = 3

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ABResult(Shown):
    """Two arms, measured in turn.

    Attributes:
        names: of the two arms.
        a, b: the values of every setting of each.
        ratio: time of ``a`` ÷ time of ``b``, per step or per sample: the median over the blocks,
            with its interval at ``confidence``; 2 means that ``b`` takes half the time. Drift is
            in the interval.
        blocks: what the ratio rests on, oldest first.
        runs: every run, oldest first; those of arm ``a`` have ``a``'s values.
        same: whether both gave the same result; None where that was not compared.
        sentence: the answer in words.
        warnings: what makes it doubtful.
        stopped: why it ended: ``"interval tight"``, ``"time budget"`` or ``"most blocks"``.
        detectable: the smallest difference that such a comparison reveals with 80 % probability,
            as a share: see :mod:`perfkit.timing.power`. None where the blocks are too few.
    """

    names: tuple[str, str]
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    ratio: Ratio
    confidence: float
    blocks: tuple[Block, ...]
    runs: tuple[RunResult, ...] = field(repr=False)
    same: SameResult | None
    sentence: str
    warnings: tuple[str, ...]
    stopped: str
    duration_s: float
    provenance: Provenance
    detectable: float | None = None

    @property
    def different(self) -> bool:
        """Whether 1 lies outside the interval."""
        return self.ratio.different

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; the runs without their curves."""
        return {
            "names": list(self.names),
            "a": dict(self.a),
            "b": dict(self.b),
            "ratio": self.ratio.ratio,
            "low": self.ratio.low,
            "high": self.ratio.high if math.isfinite(self.ratio.high) else None,
            "per": self.ratio.per,
            "confidence": self.confidence,
            "different": self.different,
            "blocks": [
                {
                    "a_ms": block.a_ms,
                    "b_ms": block.b_ms,
                    "order": block.order,
                    "fresh": block.fresh,
                }
                for block in self.blocks
            ],
            "runs": [
                {k: v for k, v in run.to_dict().items() if k not in ("curve", "provenance")}
                for run in self.runs
            ],
            "same": None if self.same is None else self.same.to_dict(),
            "sentence": self.sentence,
            "warnings": list(self.warnings),
            "stopped": self.stopped,
            "duration_s": self.duration_s,
            "detectable": self.detectable,
            "provenance": self.provenance.to_dict(),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(_report().mime_bundle(self, "ab"))


def ab(
    workload: Callable[[Settings], Any],
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    settings: Sequence[str | Setting] = (),
    budget_s: float = 60.0,
    store: str | PathLike[str] | None = None,
    names: tuple[str, str] | None = None,
    min_blocks: int = FEWEST,
    max_blocks: int = _MOST_BLOCKS,
    step_timeout_s: float = 60.0,
    start_timeout_s: float = 300.0,
    warmup: int = 3,
    seed: int = 0,
    say: Say | bool | None = None,
) -> ABResult:
    """How many times faster ``b`` is than ``a``, with an interval that holds drift.

    It ends when the interval is tight (2 % wide, or a tenth of the gain), when the budget is
    spent, or after ``max_blocks``. Ctrl-C comes through; nothing of the runs stays.

    Args:
        workload: see :class:`~perfkit.experiment.session.Session`.
        a, b: the values of each arm, by setting; a setting that one of them leaves out has its
            default there.
        settings: further settings that the workload reads, and declarations of your own. What
            ``a`` and ``b`` name is declared by itself.
        budget_s: seconds to spend. It is kept, but for the first block: slow starts give fewer
            blocks and a wider interval, or none.
        store: a JSONL file that takes each run as it comes (and whose blocks of these two arms
            count); see :mod:`perfkit.experiment.store`.
        names: what the arms are called; by default what differs between them.
        min_blocks: fewest blocks, at least 2, before it may end because the interval is tight;
            the budget is shared out for this many.
        step_timeout_s, start_timeout_s, warmup, seed: see ``Session``; the seed also draws the
            order within the blocks.
        say: takes the lines of progress; None for standard error, False for silence.

    Raises:
        SettingError: a setting or value that cannot be or is not available here.
        UsageError: a number or name that makes no sense, or a store that is not this one's.
        WorkloadError: an arm failed; the kind of it that says how, with the child's traceback.
        MeasurementError: there was no time to compare.
    """
    known = declared(settings, a, b)
    values = [check_values(known, arm, facts()) for arm in (a, b)]
    budget = scaled(_check_numbers(budget_s, min_blocks, max_blocks))
    called = _names(names, values[0], values[1])
    blocks = Blocks(
        workload,
        known,
        (values[0], values[1]),
        Limits(step_timeout_s, start_timeout_s, warmup, seed),
        budget_s=budget,
        min_blocks=min_blocks,
        names=called,
    )
    progress = Progress(say)

    def tell(line: str) -> None:
        progress.line(f"{called[0]} | {called[1]}: {line}")

    kept = None if store is None else _Kept(Store(store, identity(workload)), values, seed)
    # kept for all blocks; what it still imports would disturb the first one
    try:
        with prepared_process(_PREPARED_WITHIN_S):
            measuring = _Measuring(blocks, budget, kept)
            stopped, found = measuring.until_clear(min_blocks, max_blocks, tell)
    finally:
        blocks.close()
        progress.close()
        if kept is not None:
            kept.close()
    times = measuring.times()
    per: Literal["step", "sample"] = "step" if measuring.work() is None else "sample"
    warnings = [*measuring.warnings, *blocks.warnings, *doubts(*times, found)]
    same, untold = _same(measuring.runs)
    warnings += untold
    on_gpu = any("CUDA" in run.peak_kind for run in measuring.runs)
    return ABResult(
        names=called,
        a=values[0],
        b=values[1],
        ratio=Ratio(found.ratio, found.low, found.high, per),
        confidence=found.confidence,
        blocks=tuple(measuring.blocks),
        runs=tuple(measuring.runs),
        same=same,
        sentence=sentence(called, found),
        warnings=tuple(dict.fromkeys([*warnings, *_of_runs(measuring.runs)])),
        stopped=stopped,
        duration_s=measuring.duration_s,
        detectable=found.detectable,
        provenance=stamp(
            command=f"perfkit.ab(…, {called[0]} | {called[1]})",
            seed=seed,
            device=None if on_gpu else "cpu",
        ),
    )


def _same(runs: Sequence[RunResult]) -> tuple[SameResult | None, list[str]]:
    """Whether both arms learn the same, from the runs that the times come from; or why not told.

    What was measured took minutes: nothing that goes wrong in here may lose it.
    """
    try:
        found = same_result(list(runs[0::2][:_SAME_RUNS]), list(runs[1::2][:_SAME_RUNS]))
    except UsageError:
        return None, []
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return None, [f"whether both learn the same could not be worked out ({what})"]
    return found, []


def _of_runs(runs: Sequence[RunResult]) -> list[str]:
    """What the runs' settings are warned of, and steps too few; the blocks tell the spread."""
    told = ("no effect", "take turns", "a warm-up of")
    return [w for run in runs[:2] for w in run.warnings if any(words in w for words in told)]


class _Kept:
    """The blocks of two arms in a store."""

    def __init__(self, store: Store, values: Sequence[Mapping[str, Any]], seed: int) -> None:
        self.store = store
        self._part = {"kind": "ab", "arms": [dict(arm) for arm in values], "seed": seed}
        self._found: dict[tuple[int, int], tuple[Mapping[str, Any], RunResult]] = {}
        for line in store.lines:
            if all(line.part.get(name) == value for name, value in self._part.items()):
                self._found[line.part["block"], line.part["which"]] = (line.part, line.run)

    def block(self, number: int) -> tuple[Block, tuple[RunResult, ...], float] | None:
        """A block that was measured before; None where a run of it is missing."""
        first, second = (self._found.get((number, which)) for which in (0, 1))
        if first is None or second is None:
            return None
        part = first[0]
        block = Block(part["a_ms"], part["b_ms"], part["order"])
        return block, (first[1], second[1]), float(part["took_s"])

    def add(self, number: int, block: Block, runs: Sequence[RunResult], took_s: float) -> None:
        """Its runs, where they have ended: those that serve all blocks come last, as no block."""
        for which, run in enumerate(runs):
            part = {
                "block": number,
                "which": which,
                "a_ms": block.a_ms,
                "b_ms": block.b_ms,
                "order": block.order,
                "took_s": round(took_s, 3),
            }
            self.store.append(run, self._part | part)

    def close(self) -> None:
        """Let others write."""
        self.store.close()


class _Measuring:
    """Block after block, until it is clear."""

    def __init__(self, blocks: Blocks, budget_s: float, kept: _Kept | None) -> None:
        self._source, self._budget_s, self._kept = blocks, budget_s, kept
        self._began_s = time.monotonic()
        self._before_s = 0.0
        self.warnings: list[str] = [] if kept is None else [*kept.store.notes]
        self.blocks: list[Block] = []
        self.runs: list[RunResult] = []

    def until_clear(
        self, min_blocks: int, max_blocks: int, tell: Callable[[str], None]
    ) -> tuple[str, Interval]:
        """Measure; says why it ended, and the ratio."""
        next_look = min_blocks
        first_s = time.monotonic()
        while True:
            written = self._next()
            now_s = time.monotonic()
            done, spent_s = len(self.blocks), now_s - self._began_s + self._before_s
            each_s = (now_s - first_s + self._before_s) / done
            found = self.interval()
            rest_s = max(self._budget_s - spent_s, 0.0)
            tell(f"{done} blocks, ratio {fmt_ratio(found.ratio)}, {left(rest_s)}")
            stopped = "" if written else "the store cannot be written"
            if stopped:
                pass
            elif done >= max_blocks:
                stopped = "most blocks"
            elif spent_s + each_s > self._budget_s:
                stopped = "time budget"
            elif done >= next_look:
                next_look = math.ceil(done * _LOOK_GROWTH)
                if found.tight:
                    stopped = "interval tight"
            if stopped:
                return stopped, self._ended()

    def _ended(self) -> Interval:
        """The ratio, with the processes that served all blocks ended, and their runs kept."""
        runs = self._source.end()
        self.runs += runs
        if self._kept is not None and runs:
            try:
                self._kept.add(_NO_BLOCK, self.blocks[-1], runs, 0.0)
            except StoreError as error:
                self.warnings.append(str(error))
        return self.interval()

    def _next(self) -> bool:
        """One more block; whether the store, where there is one, has taken it."""
        number = len(self.blocks)
        before = None if self._kept is None else self._kept.block(number)
        if before is not None:
            block, runs, took_s = before
            self._source.skip()
            self._before_s += took_s
        else:
            began_s = time.monotonic()
            block, runs = self._source.next()
        self.blocks.append(block)
        self.runs += [replace(run, run_id=len(self.runs) + i) for i, run in enumerate(runs, 1)]
        if before is None and self._kept is not None:
            try:
                self._kept.add(number, block, runs, time.monotonic() - began_s)
            except StoreError as error:
                self.warnings.append(f"{error}: it ends here, with what was measured")
                return False
        return True

    @property
    def duration_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def times(self) -> tuple[_Array, _Array]:
        """Blocks × 1, of each arm: ms per step."""
        a = np.array([[block.a_ms] for block in self.blocks])
        b = np.array([[block.b_ms] for block in self.blocks])
        return a, b

    def work(self) -> float | None:
        """Samples in a step of ``b`` ÷ those of ``a`` where batches differ; None where not."""
        a, b = (_samples(self.runs[which::2]) for which in (0, 1))
        if not a or not b or abs(b / a - 1) < _OTHER_WORK:
            return None
        return b / a

    def interval(self) -> Interval:
        """Of the ratio so far, per step or per sample."""
        a, b = self.times()
        each = b / (self.work() or 1.0)
        return ratio_interval(a, each)


def _samples(runs: Sequence[RunResult]) -> float | None:
    known = [run.samples_per_step for run in runs]
    return float(np.median([n for n in known if n])) if known and all(known) else None


def _check_numbers(budget_s: Any, min_blocks: Any, max_blocks: Any) -> float:
    budget = positive("budget_s", budget_s)
    for name, number, least in (("min_blocks", min_blocks, 2), ("max_blocks", max_blocks, 2)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise UsageError(
                f"{name}={number!r:.80} is not valid: it takes a whole number, 2 or more"
            )
    if max_blocks < min_blocks:
        raise UsageError(f"max_blocks={max_blocks} is below min_blocks={min_blocks}")
    return budget


def _names(names: Any, a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, str]:
    """What the arms are called: what differs between them, where nobody said."""
    if names is None:
        differ = [name for name in a if a[name] != b[name] or type(a[name]) is not type(b[name])]
        if not differ:
            return "a", "b"
        first, second = (words({name: arm[name] for name in differ}) for arm in (a, b))
        return printable(first, _LONGEST_NAME), printable(second, _LONGEST_NAME)
    if (
        not isinstance(names, Sequence)
        or isinstance(names, str)
        or len(names) != 2
        or not all(isinstance(name, str) and name for name in names)
        or names[0] == names[1]
    ):
        raise UsageError(f"names={names!r:.80} is not valid: they are two different strings")
    return printable(names[0], _LONGEST_NAME), printable(names[1], _LONGEST_NAME)
