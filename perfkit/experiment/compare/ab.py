"""Two configurations of one workload compared: which is faster, by how much, how sure?

::

    print(perfkit.ab(workload, {"num_workers": 0}, {"num_workers": 2}))

A **block** is one fresh process of each arm. Both are alive at once and take turns of a fraction of
a second, A B B A or B A A B at random, while the other pauses between two steps. Taking turns
cancels drift within a block. Fresh processes for every block bring the luck of a process (its
addresses, its core) into the spread of the blocks, and so into the interval. With one pair of
processes throughout, the interval would leave out that pair's luck: with 2 % of luck and 12 blocks
it would report a difference in 78 of 100 comparisons of a workload with itself, fresh processes in
at most 5 (simulated, in ``tests/experiment/test_ab_blocks.py``). The interval over the blocks is
that of :func:`perfkit.measure.paired.ratio_interval`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from perfkit.base.arguments import brief
from perfkit.base.budget import scaled
from perfkit.base.display import Shown
from perfkit.base.errors import StoreError, UsageError
from perfkit.base.machine import Provenance, facts, stamp
from perfkit.base.machine.cpu_contention import ContentionMark
from perfkit.base.plain import fields
from perfkit.base.printable import printable
from perfkit.base.progress import Progress, Say
from perfkit.base.words import fmt_interval, fmt_ratio, plural
from perfkit.experiment.compare._arm import Limits
from perfkit.experiment.compare._blocks import Block, Blocks
from perfkit.experiment.compare._identity import identity
from perfkit.experiment.compare.same import SameResult, same_result
from perfkit.experiment.compare.store import Store
from perfkit.experiment.process._process import prepared_process
from perfkit.experiment.process.result import RunResult, device_of, is_other_work
from perfkit.experiment.process.session import HIGHEST_SEED, count, positive
from perfkit.experiment.settings import Setting, Settings, check_values
from perfkit.experiment.settings._declared import check_names, declared, words
from perfkit.measure.compare import doubts, sentence
from perfkit.measure.paired import FEWEST, Interval, Looks, ratio_interval

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["ABResult", "Block", "ab"]

_MOST_BLOCKS = 200
_PREPARED_WITHIN_S = 15.0
_LONGEST_NAME = 60
_NO_BLOCK = -1
# Two runs of each arm show the workload's own noise; a third makes that surer.
_SAME_RUNS = 3

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ABResult(Shown):
    """The result of :func:`ab`: two arms, measured in turn.

    Attributes:
        names: of the two arms.
        a, b: the value of every setting, for each arm.
        ratio: time of ``a`` ÷ time of ``b`` over the blocks; 2 means that ``b`` takes half the
            time.
        low, high: interval of the ratio at ``confidence``; it includes drift.
        per: the ratio's times are per ``"step"``, or per ``"sample"`` if batches differ in size.
        blocks: the blocks behind the ratio, oldest first.
        runs: every run, oldest first; those of arm ``a`` have ``a``'s values.
        same: whether both gave the same result; None if that was not compared.
        sentence: the answer in words.
        warnings: reasons to doubt it.
        stopped: why measuring ended: ``"interval tight"``, ``"time budget"`` or ``"most blocks"``.
        detectable: the smallest difference that such a comparison detects with 80 % probability, as
            a share: see :attr:`perfkit.measure.paired.Interval.detectable`. None if there are too
            few blocks.
    """

    names: tuple[str, str]
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    ratio: float
    low: float
    high: float
    per: Literal["step", "sample"]
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
        """Whether the interval excludes 1."""
        return not self.low <= 1.0 <= self.high

    def to_dict(self) -> dict[str, Any]:
        """This result as plain JSON types; the runs without their curves."""
        runs = [
            {k: v for k, v in run.to_dict().items() if k not in ("curve", "provenance")}
            for run in self.runs
        ]
        return fields(self, "different", runs=runs)


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
    say: Say | Progress | bool | None = None,
) -> ABResult:
    """Measure how many times faster a workload runs with values ``b`` than with values ``a``.

    Each arm runs in child processes that take turns, so the interval includes drift. It ends when
    the interval is tight (2 % wide, or a tenth of the gain), when the budget is spent, or after
    ``max_blocks``. Ctrl-C propagates, and leaves no process behind.

    Args:
        workload: a generator function that takes the settings and yields once per step; see
            :class:`~perfkit.experiment.process.session.Session`.
        a, b: the settings' values for each arm; a setting that one of them omits has its default
            there.
        settings: further settings that the workload reads, and declarations of your own. Settings
            named in ``a`` and ``b`` need no declaration.
        budget_s: seconds to spend; only the first block may overrun it. Slow starts give fewer
            blocks and a wider interval, or none.
        store: a JSONL file that receives each run; blocks of these two arms that it already holds
            count. See :mod:`perfkit.experiment.compare.store`.
        names: the arms' names; by default the values that differ.
        min_blocks: fewest blocks before a tight interval may end the measurement, at least 2; the
            budget is planned for this many.
        max_blocks: most blocks.
        step_timeout_s, start_timeout_s, warmup, seed: see
            :class:`~perfkit.experiment.process.session.Session`; the seed also sets the order
            within the blocks.
        say: called with each progress line; None for a bar that is gone at the end, False for no
            output.

    Returns:
        An :class:`ABResult`: ``ratio`` with its interval, ``same``, ``sentence``, ``warnings``.

    Raises:
        SettingError: a setting or value is invalid or not available here.
        UsageError: a number or name is invalid.
        StoreError: see :func:`perfkit.sweep`.
        WorkloadError: an arm failed; the subclass says how, with the child's traceback.
        MeasurementError: there was no time to compare.

    Example::

        >>> def workload(settings):
        ...     model = torch.nn.Linear(512, 512)
        ...     data = torch.utils.data.TensorDataset(torch.rand(4096, 512))
        ...     for (x,) in torch.utils.data.DataLoader(data, **settings.loader_kwargs()):
        ...         loss = model(x).square().mean()
        ...         loss.backward()
        ...         yield loss.detach()
        >>> print(perfkit.ab(workload, {"batch_size": 32}, {"batch_size": 256}, budget_s=20))
    """
    known = declared(settings, a, b)
    check_names(workload, settings, a, b)
    values = [check_values(known, arm, facts()) for arm in (a, b)]
    budget = scaled(_check_numbers(budget_s, min_blocks, max_blocks))
    seed = count("seed", seed, HIGHEST_SEED)
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
    progress = Progress(f"{called[0]} | {called[1]}", say)
    kept = None if store is None else _Kept(Store(store, identity(workload)), values, seed)
    # kept for all blocks; its remaining imports would disturb the first one
    try:
        with prepared_process(_PREPARED_WITHIN_S):
            mark = ContentionMark()
            measuring = _Measuring(blocks, budget, kept)
            stopped, found = measuring.until_clear(min_blocks, max_blocks, progress)
            busy = _busy(mark)
    finally:
        blocks.close()
        progress.close()
        if kept is not None:
            kept.close()
    times = measuring.times()
    per: Literal["step", "sample"] = "step" if measuring.work() is None else "sample"
    warnings = [*measuring.warnings, *blocks.warnings, *doubts(*times, found, busy=busy)]
    same, untold = _same(measuring.runs)
    warnings += untold
    return ABResult(
        names=called,
        a=values[0],
        b=values[1],
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        per=per,
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
            device=device_of(measuring.runs),
        ),
    )


def _busy(mark: ContentionMark) -> str:
    """What else the machine did meanwhile, in words; empty if it was quiet.

    The arms run in other processes, whose waiting for a core is not known here; that this process
    did not wait means nothing. So other programs are blamed where the cores were full.
    """
    return replace(mark.until_now(), waited_s=None).sentence()


def _same(runs: Sequence[RunResult]) -> tuple[SameResult | None, list[str]]:
    """Whether both arms learn the same, from the timed runs, or why that is unknown.

    The measurement took minutes: nothing that fails in here may lose it.
    """
    try:
        found = same_result(list(runs[0::2][:_SAME_RUNS]), list(runs[1::2][:_SAME_RUNS]))
    except UsageError:
        return None, []
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return None, [f"could not check whether both learn the same ({what})"]
    return found, []


def _of_runs(runs: Sequence[RunResult]) -> list[str]:
    """Warnings about the runs' settings and too few steps; the blocks show the spread."""
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
        """A block that was measured before; None if one of its runs is missing."""
        first, second = (self._found.get((number, which)) for which in (0, 1))
        if first is None or second is None:
            return None
        part = first[0]
        block = Block(part["a_ms"], part["b_ms"], part["order"])
        return block, (first[1], second[1]), float(part["took_s"])

    def add(self, number: int, block: Block, runs: Sequence[RunResult], took_s: float) -> None:
        """Store a block's ended runs; runs that served all blocks come last, as no block."""
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
        """Release the store for other writers."""
        self.store.close()


class _Measuring:
    """Measures block after block until the answer is clear."""

    def __init__(self, blocks: Blocks, budget_s: float, kept: _Kept | None) -> None:
        self._source, self._budget_s, self._kept = blocks, budget_s, kept
        self._began_s = time.monotonic()
        self._before_s = 0.0
        self.warnings: list[str] = [] if kept is None else [*kept.store.notes]
        self.blocks: list[Block] = []
        self.runs: list[RunResult] = []

    def until_clear(
        self, min_blocks: int, max_blocks: int, progress: Progress
    ) -> tuple[str, Interval]:
        """Measure; return why it ended, and the ratio."""
        looks = Looks(min_blocks)
        first_s = time.monotonic()
        progress.line("first block", left_s=self._budget_s)
        while True:
            written = self._next()
            now_s = time.monotonic()
            done, spent_s = len(self.blocks), now_s - self._began_s + self._before_s
            each_s = (now_s - first_s + self._before_s) / done
            found = self.interval()
            rest_s = max(self._budget_s - spent_s, 0.0)
            ratio = fmt_ratio(found.ratio)
            if found.known:
                ratio += f" {fmt_interval(found.low, found.high)}"
            progress.line(
                f"{plural(done, 'block')}, ratio {ratio}",
                left_s=rest_s,
                interval=(found.low, found.high) if found.known else None,
            )
            stopped = "" if written else "the store cannot be written"
            if stopped:
                pass
            elif done >= max_blocks:
                stopped = "most blocks"
            elif spent_s + each_s > self._budget_s:
                stopped = "time budget"
            elif looks.is_due(done) and found.tight:
                stopped = "interval tight"
            if stopped:
                return stopped, self._ended()

    def _ended(self) -> Interval:
        """End the processes that served all blocks, keep their runs, and return the ratio."""
        runs = self._source.end()
        self.runs += runs
        if self._kept is not None and runs:
            try:
                self._kept.add(_NO_BLOCK, self.blocks[-1], runs, 0.0)
            except StoreError as error:
                self.warnings.append(str(error))
        return self.interval()

    def _next(self) -> bool:
        """Measure one more block; return whether the store, if any, could be written."""
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
        """Seconds since it began."""
        return time.monotonic() - self._began_s

    def times(self) -> tuple[_Array, _Array]:
        """Time per step of each arm in ms, shape blocks × 1."""
        a = np.array([[block.a_ms] for block in self.blocks])
        b = np.array([[block.b_ms] for block in self.blocks])
        return a, b

    def work(self) -> float | None:
        """Samples per step of ``b`` ÷ those of ``a`` if batches differ, else None."""
        a, b = (_samples(self.runs[which::2]) for which in (0, 1))
        if not a or not b or not is_other_work(a, b):
            return None
        return b / a

    def interval(self) -> Interval:
        """The ratio so far, per step or per sample."""
        a, b = self.times()
        each = b / (self.work() or 1.0)
        return ratio_interval(a, each)


def _samples(runs: Sequence[RunResult]) -> float | None:
    known = [run.samples_per_step for run in runs]
    return float(np.median([n for n in known if n])) if known and all(known) else None


def _check_numbers(budget_s: Any, min_blocks: Any, max_blocks: Any) -> float:
    budget = positive("budget_s", budget_s)
    for name, number in (("min_blocks", min_blocks), ("max_blocks", max_blocks)):
        count(name, number, least=2)
    if max_blocks < min_blocks:
        raise UsageError(f"max_blocks={max_blocks} is below min_blocks={min_blocks}")
    return budget


def _names(names: Any, a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, str]:
    """The arms' names; by default the values that differ."""
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
        raise UsageError(f"names={brief(names)} is not valid: it takes two different strings")
    return printable(names[0], _LONGEST_NAME), printable(names[1], _LONGEST_NAME)
