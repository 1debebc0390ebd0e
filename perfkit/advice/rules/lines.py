"""What the line samples tell: which line the time is at, and what such a line does."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.line_kinds import (
    BACKWARD,
    BY_LIBRARY,
    ENVIRONMENT,
    LOGGING,
    OPENS,
    OTHER,
    PASSES,
    PENALTY,
    TEXT,
    LineKind,
    beside_the_model,
    kind_of,
    text_lines,
)
from perfkit.advice.rules import rule
from perfkit.base.in_one_call import ON_GRADIENTS
from perfkit.base.source import (
    Loop,
    handed_over,
    loops_around,
    names_of,
    rounds_differ,
    shown_line,
    statement,
    whole_statement,
)
from perfkit.base.words import fmt_count, fmt_share, plural
from perfkit.trace.ask.passes import passes_of_a_graph
from perfkit.trace.record.lines import Line, LineSamples, wilson

# A line with less of the time is one among several; a wait for data of less is no matter.
_LEAST_SHARE, _LEAST_WAIT = 0.35, 0.2
_LEAST_SAMPLES = 8
_LEAST_OF_A_FUNCTION = 0.2
# What is of one kind needs fewer, and a smaller share to be felt.
_LEAST_OF_A_KIND, _LEAST_KIND = 5, 0.1
# Lines that every training loop has, and that say nothing by themselves.
_USUAL = re.compile(rf"{PASSES}|\.zero_grad\(|^(async )?for\b.*:$|^with\b.*:$")

# A line that calls the model, whether torch's layers or a package's.
_COMPUTES = re.compile(r"torch/nn/modules|^forward \((?!torch/)")

_OF_A_FUNCTION = (
    "# is its result needed each time? If it is only looked at: every 50th time, or once\n"
    "# an epoch; if it goes through all that came before, keep a running result"
)


@rule
def hottest_line(case: Case) -> Iterator[Finding]:
    """No busy machine changes it: the samples are of one clock, and fall where time goes."""
    top = _hottest(case.lines)
    if top is not None:
        yield _at_this_line(case, top, "of the steps' time")
    else:
        yield from _in_a_function(case)
    waits = case.shares["data wait"] >= _LEAST_WAIT
    works = _hottest(case.worker_lines) if waits else None
    if works is not None:
        yield _at_this_line(case, works, "of the loader workers' time")


def _hottest(lines: LineSamples) -> Line | None:
    """The line with most samples, but for what each loop has: that a model computes is its use."""
    told = (
        x
        for x in lines.by_line()
        if OPENS.fits(x.source)
        or not (_USUAL.search(x.source) or x.function == "forward" or _COMPUTES.search(x.mostly))
    )
    top = max(told, key=lambda x: x.n_samples, default=None)
    is_hot = top is not None and top.n_samples >= _LEAST_SAMPLES and top.share >= _LEAST_SHARE
    return top if is_hot else None


def _in_a_function(case: Case) -> Iterator[Finding]:
    """The function with most samples, where none of its lines has many: no model, and no loop."""
    of: dict[tuple[str, str], list[Line]] = {}
    for line in case.lines.by_line():
        of.setdefault((line.file, line.function), []).append(line)
    for (_, name), lines in sorted(of.items(), key=lambda one: -sum(x.share for x in one[1])):
        n, share = sum(x.n_samples for x in lines), sum(x.share for x in lines)
        if n < _LEAST_SAMPLES or share < _LEAST_OF_A_FUNCTION:
            return
        is_usual = any(
            x.is_framework or _USUAL.search(x.source) or ENVIRONMENT.fits(x.source) for x in lines
        )
        if is_usual or re.match("forward$|<", name) or _COMPUTES.search(lines[0].mostly):
            continue
        if 3 * sum(x.n_samples for x in lines if "torch.nn.modules" in x.library_function) > n:
            continue  # the model, by another name
        kinds = ((kind_of(x, trains=case.trains), x) for x in lines)
        known = (one for one in kinds if one[0] in BY_LIBRARY)
        kind, line = next(known, (None, lines[0]))
        yield found(
            "hottest-line",
            f"{fmt_share(share)} of the steps' time is in {name}()"
            + (f", much of it {kind.words}" if kind else ""),
            [f"{n} samples on {plural(len(lines), 'line')} of it"],
            kind.what_to_do if kind else "" if line.in_data_wait else _OF_A_FUNCTION,
            cures=("host", "compute", "data"),
            share=share,
            line=line.shown,
        )
        return


def _rule_of(kind: LineKind) -> str:
    return "slow-line" if kind.rule == "host-python" else kind.rule


def _at_this_line(case: Case, top: Line, of_what: str) -> Finding:
    kind = kind_of(top, trains=case.trains)
    low, high = top.interval
    inside = f", mostly in {top.mostly}" if top.mostly else ""
    return found(
        _rule_of(kind) if kind.title else "hottest-line",
        kind.title or f"{fmt_share(top.share)} {of_what} is at this line{inside}",
        [
            f"{fmt_share(top.share)} {of_what} [{fmt_share(low)}, {fmt_share(high)}], by "
            f"{top.n_samples} samples{inside}"
        ],
        kind.what_to_do if kind not in (OTHER, BACKWARD) else "",
        cures=("host", "compute", "data"),
        share=top.share,
        line=top.shown,
    )


@rule
def of_a_kind(case: Case) -> Iterator[Finding]:
    """Lines in forward that are no model; of those and of loading, lines of a kind with a cure."""
    seen = {(x.file, x.line) for x in case.lines_in(case.in_forward).by_line()}
    # of all steps: the recorded ones have few samples
    inside = [x for x in case.lines.by_line() if (x.file, x.line) in seen]
    of: dict[LineKind, list[Line]] = {}
    for line in inside:
        kind = None if line.in_data_wait else beside_the_model(line, trains=case.trains)
        if kind is not None:
            of.setdefault(kind, []).append(line)
    for line in (x for x in case.lines.by_line() if x.in_data_wait):
        kind = kind_of(line, trains=case.trains)
        if kind.title:
            of.setdefault(kind, []).append(line)
    for kind, lines in of.items():
        n, is_data = sum(x.n_samples for x in lines), lines[0].in_data_wait
        if is_data:
            share = min(sum(x.share for x in lines), case.lost_to("data wait"))
        else:
            has_backward = (kind.title and kind.words != ON_GRADIENTS) or kind is PENALTY
            also = {"backward": has_backward, "other": kind.rule == "slow-line"}
            passes = ["forward", *(one for one, is_too in also.items() if is_too)]
            part = n / sum(x.n_samples for x in inside)
            share = sum(case.shares[one] for one in passes) * part
        if n < _LEAST_OF_A_KIND or (kind.title and share < _LEAST_KIND):
            continue
        yield found(
            _rule_of(kind) if kind.title else "beside-the-model",
            kind.title or f"Part of what counts as forward is {kind.words}",
            [f"{n} line samples fall on such lines: about {fmt_share(share)} of each step"],
            kind.what_to_do,
            cures=("data" if is_data else "compute",),
            share=share,
            line=lines[0].shown,
        )


# Of so many lines the code is told.
_MOST_PLACES = 3
_IN_TORCH = re.compile(rf"{PASSES}|\.zero_grad\(")
_LOG_CALL = re.compile(r"([\w.]+)\.(debug|info|warning|error|critical)\(")
_HAND_OVER = (
    "# of values that are handed over, text is made only where it is shown; or take it out:\n"
)
_HANDED_OVER = 'logger.debug("gates %s", gates)  # not: logger.debug(f"gates {gates}")'


@rule
def text_of_tensors(case: Case) -> Iterator[Finding]:
    """Tensors are formatted, which waits for them and issues dozens of operators on each."""
    of: dict[str, list[Line]] = {}
    for line in text_lines(case.lines):
        of.setdefault(_for_what(line), []).append(line)
    for for_what, lines in of.items():
        code, logs = _HANDED_OVER, LOGGING.what_to_do
        if converted := {
            handed_over(x.file, x.line): x
            for x in lines[:_MOST_PLACES]
            if handed_over(x.file, x.line)
        }:
            where = len(lines) > 1
            code = "\n".join(f"{to}{f'  # {x.where}' * where}" for to, x in converted.items())
        # passes let the sampler in more often than Python does: what text takes of all but these
        passes = sum(x.n_samples for x in case.lines.by_line() if _IN_TORCH.search(x.source))
        most = wilson(sum(x.n_samples for x in lines), case.lines.n_samples - passes)[1]
        share = most * (1.0 - case.shares["backward"] - case.shares["optimizer"])
        yield found(
            "text-of-tensors",
            f"Text is made of tensors in the steps{for_what}",
            [f"{fmt_share(x.share)} of the steps' time is at {x.shown}" for x in lines],
            {_SHOWN: logs, _OTHERS: logs, "": TEXT.what_to_do}.get(for_what, _HAND_OVER + code),
            cures=("compute", "host"),
            share=share,
            line=lines[0].shown,
        )


_HIDDEN, _LOGGED = ", for a message that is not shown", ", for a log"
_SHOWN, _OTHERS = ", and printed", ", for a message"


def _for_what(line: Line) -> str:
    text = line.source if line.is_inside else whole_statement(line.file, line.line)
    call = _LOG_CALL.match(text)
    if call is None or line.is_inside:
        shown = re.search(r"\bp?print\(", text)
        return _SHOWN if shown else _OTHERS if LOGGING.fits(line.source, text) else ""
    logger = names_of(line.file).get(call[1])
    if logger is logging:
        logger = logging.getLogger()
    if isinstance(logger, (logging.Logger, logging.LoggerAdapter)):
        return _SHOWN if logger.isEnabledFor(getattr(logging, call[2].upper())) else _HIDDEN
    return _LOGGED if logger is None else _OTHERS


# A loss with a few derivatives has fewer backward passes through its graph.
_MANY_PASSES = 8
_PASS = re.compile(r"\.backward\(|\bgrad\(")
_KEPT = re.compile(r"(?:\.backward|\bgrad)\(.*\b(?:create|retain)_graph\s*=(?!\s*False)")
_BEGINS_AT = re.compile(r"(\w+)\[([^\]]*)\](\.sum\(\))?(?:\.backward\(|\s*,\s*([\w.]+))")
_BATCHED = (
    "# in place of the loop one pass for all its rows; first what they begin at, as one vector:\n"
    "each = {each}\n"
    "rows = torch.autograd.grad(\n"
    "    each, {x}, torch.eye(len(each)).to(each), {kept}=True, is_grads_batched=True\n"
    ")[0].unbind()\n"
    "# or of a function of one sample: torch.func.vmap(torch.func.jacrev(f))({x})"
)


@rule
def backward_by_row(case: Case) -> Iterator[Finding]:
    """A loop runs the same graph backward for one output after the other."""
    n = passes_of_a_graph(case.trace, case.steps)
    if n < _MANY_PASSES:
        return
    of, of_steps, n_passes = Counter[tuple[Loop, tuple[str, int], str]](), set[Loop](), 0
    for frames, waits, count in case.lines.stacks:
        source = statement(*frames[0].place, longest=1_000)
        around = [(one, frame.place) for frame in frames for one in loops_around(*frame.place)]
        n_passes += count * bool(_PASS.search(source))
        if _KEPT.search(source):
            of.update({(*one, source): count for one in around[:1]})
        elif waits or re.search(PASSES, source):
            of_steps |= {loop for loop, _ in around}
    known = (
        (key, count)
        for key, count in of.most_common()
        if key[0] not in of_steps and rounds_differ(key[0], statement(*key[1], longest=1_000))
    )
    (_, place, source), count = next(known, ((None, None, ""), 0))
    share = n_passes / case.lines.n_samples
    if place is None or count < _LEAST_SAMPLES or share < _LEAST_OF_A_FUNCTION:
        return
    begins = _BEGINS_AT.search(source)
    y, index, is_sum, x = begins.groups("") if begins else ("y", ":, i", ".sum()", "x")
    each = f"torch.stack([{y}[{index}]{is_sum} for i in range(n)])"
    if is_sum and re.fullmatch(r":, *\w+", index):
        each = f"{y}.sum(0)"
    kept = "create_graph" if "create_graph" in source else "retain_graph"
    yield found(
        "backward-by-row",
        f"One graph is run backward {fmt_count(round(n))} times a step, in a loop",
        [
            f"{count} of {case.lines.n_samples} samples are in passes of this loop; all passes "
            f"take {fmt_share(share)} of the steps' time"
        ],
        _BATCHED.format(each=each, x=x or "x", kept=kept),
        cures=("compute", "launch", "host"),
        share=share,
        speedup=n,
        line=shown_line(*place),
    )
