"""How much of a region was not in steps like the recorded ones, and where that time was.

A few recorded steps say nothing of an evaluation every tenth step, of rollouts between updates,
or of a data set that is built first. The length of *every* step is known, and lines are sampled
all along: whatever a step took beyond twice a recorded one counts as time elsewhere, with the
lines that ran in it.
"""

from __future__ import annotations

import bisect
import re
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfkit.base.instrument import Failure
from perfkit.base.line_sampler import LineSampler, Samples
from perfkit.base.plain import fields
from perfkit.base.words import fmt_ms, fmt_s, fmt_share, which_steps
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.record.lines import (
    NO_LINES,
    LineSamples,
    Sample,
    child_lines,
    inside,
    line_beyond,
    lines_of,
    samples_of,
)
from perfkit.trace.record.step_log import StepLog

if TYPE_CHECKING:
    from perfkit.base.trend import Trend

# A step like the recorded ones takes at most so many times their median, and at most so many
# times the longest of them.
_MEDIANS, _LONGEST = 2.0, 1.25
# A recorded step that takes so many times their median is no measure for others.
_FAR = 3.0
# What a scheduler does to any step, in seconds.
_SLACK_S = 0.002
# Below these it is not worth a word.
_LEAST_S, _LEAST_SHARE = 0.05, 0.1
# From here on the region is about something else than its steps.
_MOST = 0.5
_MOST_NAMED = 3
_IMPORTS = "<frozen importlib"
_LEAST_SAMPLES = 2
_MOST_ORDINARY = 2000
_NEARLY_ALL = 0.85
# A slow step is one for a reason of its own if so much of it is in lines that, of so many samples,
# ordinary steps never showed, or evaluates.
_OWN, _LEAST_USUAL = 0.25, 20
_MOSTLY = 0.6
_EVALUATES = re.compile(r"eval|valid|\btest|accuracy|predict", re.IGNORECASE)
_PLAYS = re.compile(r"rollout|trajector|(\b|_)envs?\b|\bpolicy\(", re.IGNORECASE)
_LONGEST_SOURCE = 60


@dataclass(frozen=True)
class Stretch:
    """Time of one kind that was not in steps like the recorded ones.

    Attributes:
        when: ``before the first step ended``, ``in every 10th step`` …
        seconds: what it took beyond steps like the recorded ones.
        n_steps, numbers: how many steps it is spread over, and which, from 1; 0 if it is in none.
        place: the innermost line below which most of it ran, or the line most often seen in it;
            empty where too few samples were taken.
        share: how much of the stretch's samples ran below it.
        below: place and source of the call around it that ordinary steps do not make, if another.
        inside: the user's own lines in which most of it is, other than ``place``: place, source and
            share of each, largest first.
        mostly: the function of a library that the line seen most is mostly in; empty where none
            says more.
        imports_s: seconds in which a line of the user's waited for imports (of torch's own parts,
            when an optimizer is made); in no other figure of it.
        is_any: slow steps without a line, an evaluation or a rhythm of their own.
        phases: phase, in words, and share of it, largest first; none where they are not known.
    """

    when: str
    seconds: float
    n_steps: int
    place: str = ""
    source: str = ""
    share: float = 0.0
    below: str = ""
    numbers: tuple[int, ...] = ()
    inside: tuple[tuple[str, str, float], ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    imports_s: float = 0.0
    mostly: str = ""
    is_any: bool = False

    @property
    def evaluates(self) -> bool:
        """Whether its code calls itself an evaluation; a policy that plays is none."""
        return bool(_EVALUATES.search(f"{self.source} {self.below} {self.place}"))

    @property
    def plays(self) -> bool:
        """Whether it is a policy's rollout: its passes are no evaluation, and training needs it."""
        inside = " ".join(source for _, source, _ in self.inside)
        code = f"{self.source} {self.below} {self.place} {inside}"
        return bool(_PLAYS.search(code)) and not self.evaluates

    @property
    def is_set_up(self) -> bool:
        """Whether it is before the first step ended."""
        return self.numbers == (1,)

    def words(self) -> str:
        told = f"{fmt_s(self.seconds)} {self.when}"
        return f"{told}, {self.where()}" if self.place else told

    def where(self) -> str:
        """The lines that ran in it, in words; empty where they are not known."""
        if not self.place:
            return ""
        most = "mostly" if self.share >= _MOSTLY else f"{fmt_share(self.share)} of it"
        source = f": {_shortened(self.source)}" if self.source else ""
        below = f", below {_shortened(self.below)}" if self.below else ""
        return f"{most} at {self.place}{source}{below}"


@dataclass(frozen=True)
class Elsewhere:
    """The region's time that was not in steps like the recorded ones.

    What steps take more that take longer and longer (``growth``) is in no stretch.
    """

    region_s: float
    like_ms: float
    stretches: tuple[Stretch, ...]
    growth: Growth | None = None

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.stretches)

    @property
    def share(self) -> float:
        """All of it, as a share of the region, 0 to 1."""
        return min(self.seconds / self.region_s, 1.0) if self.region_s > 0 else 0.0

    @property
    def is_most(self) -> bool:
        """Whether the region is about something else than its steps."""
        return self.share >= _MOST and self.seconds >= _LEAST_S

    @property
    def is_worth_a_word(self) -> bool:
        return self.share >= _LEAST_SHARE and self.seconds >= _LEAST_S

    def headline(self) -> str:
        """The longest of it, in a few words."""
        longest = self.stretches[0]
        if longest.seconds < _MOSTLY * self.seconds:
            return f"{fmt_share(self.share)} of the time is not in the steps."
        share = fmt_share(min(longest.seconds / self.region_s, 1.0))
        is_it = next(iter(longest.phases), ("evaluation",))[0] == "evaluation"
        what = "evaluation " * (longest.evaluates and is_it)
        return f"{share} of the time is {what}{longest.when.partition(' (')[0]}."

    def sentence(self) -> str:
        """Where the time was, in words; empty where there is little of it."""
        if not self.is_worth_a_word:
            return ""
        told = [s for s in self.stretches if s.seconds >= 0.15 * self.seconds][:_MOST_NAMED]
        without = " without imports" * any(s.imports_s >= _LEAST_S for s in self.stretches)
        part = f"{fmt_share(self.share)} of its {fmt_s(self.region_s)}{without}"
        much, like = ("Most", "") if self.is_most else ("Part", "steps like the recorded ones")
        what = "; ".join(s.words() for s in told)
        return f"{much} of this code's time ({part}) was not in {like or 'its steps'}: {what}."

    def to_dict(self) -> dict[str, Any]:
        return fields(self, "seconds", "share")


def elsewhere(log: StepLog, samples: Sequence[Sample], n_slowed: int = 0) -> Elsewhere | None:
    """Reconcile the recorded steps with the whole region; None where no step was recorded.

    Args:
        n_slowed: so many of the first steps were slowed by perfkit; only the first one counts.
    """
    steps_s = log.times_s
    if not log.recorded_ms or not steps_s:
        return None
    like_s = statistics.median(log.recorded_ms) / 1e3
    limit_s = longest_alike_s(log.recorded_ms)
    n_before = max(log.n_until_stop, n_slowed, 1)
    line, grows = growth(steps_s[n_before:], samples)
    limits_s = [limit_s] * len(steps_s)
    if line is not None and grows is not None:
        usual_s = (line.start + line.slope * (i - n_before) for i in range(len(steps_s)))
        limits_s = [limit_s * max(one / like_s, 1.0) for one in usual_s]
    is_slow = [e - b > limit for (b, e), limit in zip(steps_s, limits_s, strict=True)]
    alike = [span for span, slow in zip(steps_s, is_slow, strict=True) if not slow]
    alike = alike[not is_slow[0] :][:_MOST_ORDINARY]  # the first one has the set-up
    usual = inside(alike, samples)

    def stretch(when: str, spans: Sequence[tuple[float, float]], steps: Sequence[int]) -> Stretch:
        """``steps`` are the indices of the steps that the spans are; none where they are none."""
        excess_s = sum(end - begin - (like_s if steps else 0.0) for begin, end in spans)
        taken = inside(spans, samples)
        keys = ((x, () if x.key is None else x.key.below) for x in taken)
        # but for lines that wait for an import
        seen = [x for x, below in keys if not any(f.file.startswith(_IMPORTS) for f in below)]
        imports_s = excess_s * (1.0 - len(seen) / len(taken)) if taken else 0.0
        numbers, own_s = tuple(i + 1 for i in steps), excess_s - imports_s
        found = Stretch(when, own_s, len(steps), numbers=numbers, imports_s=imports_s)
        if len(seen) < _LEAST_SAMPLES:
            return found
        # a slow step is an ordinary one, too: its lines are not what the rest of it went to
        times = len(steps) / len(alike) if alike else 0.0
        line = line_beyond(seen, usual, times)
        return found if line is None else replace(found, **vars(line))

    slow = [i for i, slow in enumerate(is_slow) if slow and (i == 0 or i >= n_slowed)]
    found = []
    if slow and slow[0] == 0:
        found.append(stretch("before the first step ended", [steps_s[0]], [0]))
        slow = slow[1:]
    excess_s = [end - begin - like_s for begin, end in steps_s]
    ordinary = {frame for x in usual if x.key is not None for frame in x.key.chain}
    times_s = [x.at_s for x in samples if len(usual) >= _LEAST_USUAL]

    def is_own(i: int) -> bool:
        first, end = (bisect.bisect(times_s, at_s) for at_s in steps_s[i])
        keys = [x.key for x in samples[first:end]]
        return sum(not (x is None or ordinary.issuperset(x.chain)) for x in keys) > _OWN * len(keys)

    own = [i for i in slow if is_own(i)]
    for some in _by_weight(own, excess_s) + _by_weight(sorted({*slow} - {*own}), excess_s):
        when = which_steps([i + 1 for i in some], len(steps_s))
        one = stretch(when, [steps_s[i] for i in some], some)
        is_any = not {*own} & {*some} and not when.startswith("in every")
        found.append(replace(one, is_any=is_any))
    if log.ended_s - log.since_s > limit_s:
        found.append(stretch("after the last step", [(log.since_s, log.ended_s)], []))
    return Elsewhere(
        region_s=log.region_s - sum(s.imports_s for s in found),
        like_ms=like_s * 1e3,
        stretches=tuple(sorted(found, key=lambda s: -s.seconds)),
        growth=grows,
    )


def longest_alike_s(recorded_ms: Sequence[float]) -> float:
    """How long a step like the recorded ones takes at most."""
    like_s = statistics.median(recorded_ms) / 1e3
    # a recorded step that is far longer than the others holds something else itself
    alike = [ms / 1e3 for ms in recorded_ms if ms <= _FAR * 1e3 * like_s]
    return max(_MEDIANS * like_s, _LONGEST * max(alike)) + _SLACK_S


def _by_weight(slow: Sequence[int], excess_s: Sequence[float]) -> list[list[int]]:
    """The few steps that make up nearly all of the time, and the others apart."""
    total_s = sum(excess_s[i] for i in slow)
    main: list[int] = []
    so_far_s = 0.0
    for i in sorted(slow, key=lambda i: -excess_s[i]):
        # steps as slow as the last one chosen belong to it
        if so_far_s >= _NEARLY_ALL * total_s and excess_s[i] < 0.5 * excess_s[main[-1]]:
            break
        main.append(i)
        so_far_s += excess_s[i]
    others = sorted(set(slow) - set(main))
    return [sorted(group) for group in (main, others) if group]


def _shortened(source: str) -> str:
    return source if len(source) <= _LONGEST_SOURCE else f"{source[:_LONGEST_SOURCE]}…"


# Of fewer steps the thirds show nothing.
_LEAST_STEPS = 24
# The last third takes so many times what the first one takes, at least.
_LEAST_RATIO = 1.25
# Fewer samples of what late steps take more name no line.
_LEAST_MORE = 5


@dataclass(frozen=True)
class Growth:
    """Steps that take longer and longer.

    Attributes:
        first_ms, last_ms: median of the first third, and of the last.
        seconds: what all of them take beyond the first third's median.
        most: the largest share that is gone where no step takes longer than the first one.
        phase: in which phase most of it is, in words; empty where that is not known.
    """

    first_ms: float
    last_ms: float
    seconds: float
    share: float
    most: float
    place: str = ""
    source: str = ""
    line_share: float = 0.0
    phase: str = ""

    def headline(self) -> str:
        return f"Steps grow: {fmt_ms(self.first_ms)} → {fmt_ms(self.last_ms)}."

    def sentence(self) -> str:
        """The same in words, without the full stop."""
        where_it_is = ", ".join(filter(None, (self.phase, f"at {self.place}" * bool(self.place))))
        told = f"Steps grow: {fmt_ms(self.first_ms)} → {fmt_ms(self.last_ms)}"
        return f"{told}, {where_it_is}" if where_it_is else told


def growth(
    steps_s: Sequence[tuple[float, float]], samples: Sequence[Sample]
) -> tuple[Trend | None, Growth | None]:
    """Whether steps take longer and longer, beyond noise, and along which line.

    One jump, or a few slow steps, are no growth. No step may have been slowed by perfkit.
    """
    n = len(steps_s)
    if n < _LEAST_STEPS:
        return None, None
    from perfkit.base.trend import trend

    lengths = [end - begin for begin, end in steps_s]
    rises = trend(lengths)
    if rises is None or not rises.clear:
        return rises, None
    early, late = steps_s[: n // 3], steps_s[n * 2 // 3 :]
    first, last = (statistics.median(end - begin for begin, end in one) for one in (early, late))
    more = sum(max(rises.start + rises.slope * i - first, 0.0) for i in range(n))
    if last < _LEAST_RATIO * first or more < _LEAST_S:
        return rises, None
    seen, usual = inside(late, samples), inside(early, samples)
    times = len(late) / len(early)
    whole = sum(lengths)
    share = min(more / whole, 1.0)
    begins = min(statistics.median(lengths[: max(n // 20, 3)]), max(rises.start, 0.0))
    found = Growth(1e3 * first, 1e3 * last, more, share, max(share, 1.0 - n * begins / whole))
    line = line_beyond(seen, usual, times)
    if line is None or len(seen) - times * len(usual) < _LEAST_MORE:
        return rises, found
    return rises, replace(found, place=line.place, source=line.source, line_share=line.share)


class RegionLines:
    """Samples the lines of a thread until :meth:`close`; then it tells what ran when.

    Attributes:
        samples: of the thread, up to the last :meth:`take` or :meth:`close`.
        of_workers, of_processes: lines of the DataLoader's workers, and of other processes that the
            region starts; likewise.
    """

    def __init__(self, log: StepLog) -> None:
        self.of_workers = self.of_processes = NO_LINES
        self._log = log
        self._taken = Samples()
        self._failure: Failure | None = None
        self._sampler: LineSampler | None = None
        self.samples: tuple[Sample, ...] = ()

    def start(self) -> None:
        """Begin, in the thread whose lines are to be sampled."""
        self._sampler = LineSampler(threading.get_ident())
        self._sampler.start()

    @property
    def failure(self) -> Failure | None:
        return self._failure if self._sampler is None else self._sampler.failure

    def close(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        before, found = self._taken, sampler.stop()
        self._failure = sampler.failure
        self._taken = Samples(before.thread + found.thread, before.children + found.children)
        self.samples = samples_of(self._taken.thread)
        self.of_workers, self.of_processes = child_lines(self._taken.children)

    def take(self) -> None:
        """Tell what was seen so far, in the sampled thread, and go on."""
        if self._sampler is not None and self._sampler.failure is None:
            self.close()
            self.start()

    def within(self, spans: Sequence[tuple[float, float]]) -> LineSamples:
        """What ran in these spans, which are in order of time."""
        return lines_of(inside(spans, self.samples))

    def between(self, begin_s: float, end_s: float) -> str:
        """The line most often seen from ``begin_s`` to ``end_s``, in words; empty if too few."""
        top = self.within([(begin_s, end_s)]).by_line()[:1]
        if not top or top[0].n_samples < _LEAST_SAMPLES:
            return ""
        source = f": {top[0].source}" if top[0].source else ""
        return f"{fmt_share(top[0].share)} of it at {top[0].place}{source}"

    @property
    def of_steps(self) -> LineSamples:
        """Of all steps like the recorded ones, or the usual ones; without steps of the region."""
        log = self._log
        later = log.times_s[1:]
        if not (log.recorded_ms or (log.late and later)):
            return self.within([(log.began_s, log.ended_s)])
        alike_ms = log.recorded_ms or [statistics.median((e - b) * 1e3 for b, e in later)]
        limit_s = longest_alike_s(alike_ms)
        return self.within([(b, e) for b, e in later if e - b <= limit_s])


def in_trace_time(
    lines: LineSamples, trace: Trace, marks: Sequence[tuple[float, str]]
) -> LineSamples:
    """Samples by the trace's clock: in it and in ``marks`` is when each mark was opened."""
    shifts = []
    for at_s, name in marks:
        rows = trace.is_a(Category.ANNOTATION) & trace.named(lambda n, name=name: n == name)
        if rows.sum() == 1:
            shifts.append(float(trace.start_ns[rows][0]) - at_s * 1e9)
    if not shifts:
        return replace(lines, taken=())
    shift = statistics.median(shifts)
    return replace(lines, taken=tuple((round(at + shift), index) for at, index in lines.taken))
