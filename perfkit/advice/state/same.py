"""What steps make anew although it is the same each time, or make twice; asked last: it traces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, fact
from perfkit.advice.state import state_of_now
from perfkit.base import source
from perfkit.base.made_again import MadeAgain, Same, Twice
from perfkit.measure.live import Live
from perfkit.trace.record.lines import wilson

_LEAST_LOOKS, _LEAST_SAMPLES, _MOST_NAMES = 3, 5, 3


@state_of_now
def made_again(live: Live) -> Iterator[Finding]:
    """Functions whose variables had equal values in several steps; modules that ran twice."""
    again: MadeAgain = live.kept.setdefault("again", MadeAgain())
    if not again.steps:
        live.undo.append(again.stop)
    if not live.in_evaluation and again.step_ended(live.n_steps):
        live.traces_until = live.n_steps + 1
    if len(again.steps) < _LEAST_LOOKS or any(use.equal_batches for use in live.loaders.values()):
        return
    steps = f"in steps {', '.join(map(str, again.steps))}"
    for one in again.same(_LEAST_LOOKS):
        function, names = one.code.co_name, one.names
        what = f"what {function}() returns" if "return" in names else ", ".join(names[:_MOST_NAMES])
        yield fact(
            "made-again",
            f"The same in each step, and made anew: {what}",
            (f"{steps} all its numbers were equal, and those that {function}() makes it of",),
            _once(one),
            acts_on=("forward", "other"),
            where=partial(_of_statements, one=one),
        )
    for two in again.twice:
        places = dict.fromkeys(two.places)
        shown = [source.shown_line(*place) for place in places]
        yield fact(
            "called-twice",
            f"{two.name} runs {len(two.places)} times a step on the same input, with equal results",
            (f"{steps}, at {' and at '.join(shown)}",),
            source.one_call(list(places)),
            line=shown[-1],
            acts_on=("forward", "backward"),
            where=partial(_of_calls, two=two),
        )


def _once(one: Same) -> str:
    if "return" not in one.names:
        places = [(one.code.co_filename, line) for line in one.lines]
        if one.in_module:
            return source.kept_in_self(places, one.names[-1])
        made = "\n".join(source.whole_statement(*place) for place in places[:_MOST_NAMES])
        return f"# once, before the loop over the steps:\n{made}"
    if not one.by_numbers:
        return source.call_before_the_loop(one.called_at, one.code.co_name)
    given = ", ".join(one.code.co_varnames[: one.code.co_argcount])
    head = f"def {one.code.co_name}({given}):"
    return f"@functools.cache  # once for each of what it is given\n{head}"


def _of_statements(case: Case, one: Same) -> tuple[float, str | None]:
    """The most that these lines take by their samples, and the one with most."""
    file = one.code.co_filename
    lines = [x for x in case.lines.by_line() if x.file == file and one.has(x.line)]
    n = sum(x.n_samples for x in lines)
    most = wilson(n, case.lines.n_samples)[1] * (n >= _LEAST_SAMPLES)
    return most, source.shown_line(file, lines[0].line) if lines else None


def _of_calls(case: Case, two: Twice) -> tuple[float, None]:
    """The most that all calls but the first take, with their part of the backward pass."""
    later, part = two.later
    n = sum(count for frames, _, count in case.lines.stacks if later & {x.place for x in frames})
    most = wilson(n, case.lines.n_samples)[1] * (n >= _LEAST_SAMPLES)
    of_backward = case.shares["backward"] * two.is_trained * (1 - 1 / len(two.places))
    return most * part + of_backward, None
