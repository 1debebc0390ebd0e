"""The recorded steps against the whole region: where the rest of the time was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfkit.base.line_sampler import Frame
from perfkit.trace.record.elsewhere import Elsewhere
from perfkit.trace.record.elsewhere import elsewhere as elsewhere_in
from perfkit.trace.record.lines import Line, LineSamples, Sample, _Key, around
from perfkit.trace.record.step_log import StepLog

_keys: dict[str, _Key] = {}


def _named(text: str) -> _Key:
    """A sample without a stack, for a line of this text."""
    return _Key(Frame("a.py", "f", len(_keys)), called=text)


def _lines_of(samples: Sequence[Sample]) -> LineSamples:
    """Samples whose key is the line's text."""
    n = len(samples)
    counts: dict[str, int] = {}
    texts = {key: text for text, key in _keys.items()}
    for sample in samples:
        text = texts[sample.key]
        counts[text] = counts.get(text, 0) + 1
    lines = [
        Line("a.py", i, f"a.py:{i}", "f", text, count, count / n, False, "torch")
        for i, (text, count) in enumerate(sorted(counts.items(), key=lambda x: -x[1]))
    ]
    return LineSamples(tuple(lines), n)


@pytest.fixture(autouse=True)
def _lines_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.trace.record.lines.lines_of", _lines_of)


def elsewhere(
    steps: Sequence[tuple[float, float]],
    ended_s: float,
    recorded_ms: Sequence[float],
    samples: Sequence[Sample],
) -> Elsewhere | None:
    """Of a region from 0 on with these steps, of which the first few were recorded."""
    log = StepLog(6, 10.0, late=False)
    for _, end in steps:
        log.ended(end, later=False)
    log.times_s, log.recorded_ms, log.ended_s = [*steps], [*recorded_ms], ended_s
    return elsewhere_in(log, samples)


def _key(*texts: str) -> _Key:
    """A stack of these functions of the user's, outermost first."""
    chain = [Frame("<ipython-input-1-x>", text, line) for line, text in enumerate(texts, 1)]
    return _at(*reversed(chain))


def _at(*chain: Frame) -> _Key:
    """Below the first of these lines, called from the others."""
    return _Key(chain[0], called="torch.x", chain=chain)


def test_what_the_samples_have_in_common_is_the_call() -> None:
    leaves = [_key("train", "evaluate", f"layer_{i % 5}") for i in range(20)]
    samples = [Sample(0.0, key) for key in leaves]
    train = leaves[0].chain[-1]
    found = around(samples)
    assert found is not None
    assert (found.place, found.share) == ("cell [1], line 2", 1.0)
    # where usual samples run below "evaluate" too, it is no news
    usual = [Sample(0.0, _at(train))] * 20
    again = around(samples, usual)
    assert again is not None
    assert again.place == "cell [1], line 2"
    assert around(samples, samples) is None
    assert around(samples[:1] + [Sample(0.0, None)] * 9) is None


def test_of_a_librarys_callers_the_most_frequent_is_named() -> None:
    """It was the last one."""
    line = Frame("/x/site-packages/lib/io.py", "load", 7)
    cell = "<ipython-input-1-x>"
    callers = [Frame(cell, "often", 1)] * 3 + [Frame(cell, "seldom", 5)]
    samples = [Sample(0.0, _at(line, caller)) for caller in callers]
    found = around(samples)
    assert found is not None
    assert found.place == "lib/io.py:7 in load (called from cell [1], line 1 and 1 other line)"


def test_a_comprehension_is_not_told_as_below_its_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perfkit.trace.record.lines.statement", lambda *_: "[f(x) for x in y]")
    outer = _key("train").chain[0]
    inner = outer._replace(function="train.<locals>.<listcomp>")  # on the same line
    samples = [Sample(0.0, _at(inner, outer))] * 20
    other = [Sample(0.0, _key("other"))] * 20
    found = around(samples, other)
    assert found is not None
    assert (found.place, found.below) == ("cell [1], line 1", "")


def test_the_call_of_main_says_nothing_where_all_steps_run_below_it() -> None:
    """Slow steps without a line of their own: named is the line that took most of them."""
    main = _key("main").chain[0]
    lines = [_key("main", text) for text in ("backward", "forward")]
    backward, forward = (_at(k.frame, main) for k in lines)
    for text, key in (("loss.backward()", backward), ("model(x)", forward)):
        _keys[text] = key
    steps = [(0.1 * i, 0.1 * (i + 1)) for i in range(20)] + [(2.0, 4.0)]
    samples = [Sample(0.01 * k, (backward, backward, forward)[k % 3]) for k in range(400)]
    found = elsewhere(steps, 4.0, [100.0] * 6, samples)
    assert found is not None
    (slow,) = found.stretches
    assert slow.numbers == (21,)
    assert slow.source == "loss.backward()"
    assert slow.share == pytest.approx(2 / 3, abs=0.01)


def test_a_slow_step_is_an_ordinary_one_too_whose_lines_are_not_what_is_beyond_it() -> None:
    """An evaluation of less than 70 % of its step: "15 % of it at loss.backward()" was said."""
    main, evaluate = _key("main").chain[0], _key("main", "evaluate").chain[0]
    train = _key("main", "train", "backward").chain[0]
    leaves = [_key(f"layer_{i}").chain[0] for i in range(4)]
    backward = _at(train, main)
    looks = [_at(leaf, evaluate, main) for leaf in leaves]
    for text, key in zip(("loss.backward()", *"abcd"), (backward, *looks), strict=True):
        _keys[text] = key
    steps = [(0.1 * i, 0.1 * (i + 1)) for i in range(20)] + [(2.0, 2.25)]
    samples = [Sample(0.01 * k, backward) for k in range(210)]
    samples += [Sample(2.1 + 0.01 * k, looks[k % 4]) for k in range(15)]
    found = elsewhere(steps, 2.25, [100.0] * 6, samples)
    assert found is not None
    (slow,) = found.stretches
    assert (slow.numbers, slow.place) == ((21,), f"cell [1], line {evaluate.line}")
    assert slow.share == pytest.approx(1.0, abs=0.01)


def test_the_line_named_is_the_one_that_is_most_beyond_an_ordinary_step() -> None:
    """They have no call in common, and each takes less than the step that they come with."""
    lengths = [0.1] * 30
    lengths[20] = 0.35
    at, steps, samples = 0.0, [], []
    keys = {text: _keys.setdefault(text, _named(text)) for text in ("train_step()", *"pqrs")}
    for length in lengths:
        steps.append((at, at + length))
        n = round(length / 0.01)
        texts = ["train_step()"] * 10 + ["p"] * 10 + ["q", "r", "s"] * 5
        samples += [Sample(at + (k + 0.5) * 0.01, keys[texts[k]]) for k in range(n)]
        at += length
    found = elsewhere(steps, at, [100.0] * 6, samples)
    assert found is not None
    (slow,) = found.stretches
    assert (slow.numbers, slow.source) == ((21,), "p")
    assert slow.share == pytest.approx(0.4, abs=0.02)  # 10 of 25: the other ten are the step's


def _of(lengths: Sequence[float], texts: dict[int, str], after: float = 0.0) -> Elsewhere:
    """Steps of these lengths in s; 6 after the second are recorded, of 0.1 s."""
    at, steps, samples = 0.0, [], []
    for index, length in enumerate((*lengths, after)):
        if index < len(lengths):
            steps.append((at, at + length))
        n = int(length / 0.05)
        text = texts.get(index, "train_step()")
        key = _keys.setdefault(text, _named(text))
        samples += [Sample(at + (k + 0.5) * 0.05, key) for k in range(n)]
        at += length
    found = elsewhere(steps, at, [100.0] * 6, samples)
    assert found is not None
    return found


def test_steps_alike_leave_nothing_to_say() -> None:
    found = _of([0.12] + [0.1] * 30, {})
    assert found.stretches == ()
    assert found.sentence() == ""
    assert not found.is_most


def test_an_evaluation_every_tenth_step_is_named_with_its_line() -> None:
    lengths = [2.1 if i % 10 == 9 else 0.1 for i in range(40)]
    found = _of(lengths, dict.fromkeys(range(9, 40, 10), "evaluate(model)"))
    assert found.is_most
    said = found.sentence()
    assert said.startswith("Most of this code's time (67 % of its 12.0 s) was not in its steps: ")
    assert "8.00 s in every 10th step (steps 10, 20 … 40)" in said
    told = found.stretches[0].words()
    assert "8.00 s in every 10th step (steps 10, 20 … 40)" in told
    assert "mostly at a.py:0: evaluate(model)" in told


def test_rollouts_between_updates_are_periodic_too() -> None:
    lengths = [5.0 if i % 32 == 0 else 0.1 for i in range(128)]
    texts = dict.fromkeys(range(0, 128, 32), "env.step(action)")
    found = _of(lengths, texts)
    assert [s.when.split(" (")[0] for s in found.stretches] == [
        "in every 32nd step",
        "before the first step ended",
    ]
    assert all("env.step(action)" in s.words() for s in found.stretches)


def test_what_comes_after_the_last_step_counts() -> None:
    found = _of([0.1] * 10, {10: "torch.save(model, path)"}, after=9.0)
    assert found.stretches[0].when == "after the last step"
    assert found.share == pytest.approx(0.9)
    assert "torch.save(model, path)" in found.stretches[0].words()


def test_single_slow_steps_are_numbered() -> None:
    lengths = [0.1] * 20
    lengths[6] = lengths[11] = 3.0
    assert "in steps 7 and 12" in _of(lengths, {}).sentence()


def test_later_steps_that_are_all_longer_are_counted() -> None:
    lengths = [0.1] * 8 + [0.3, 0.31] * 20
    lengths[15] = 0.1
    assert "of the 48 steps" in _of(lengths, {}).sentence()


def test_a_few_slow_steps_are_worth_no_headline() -> None:
    lengths = [0.1] * 20
    lengths[6] = 0.5
    found = _of(lengths, {})
    assert not found.is_most
    assert found.sentence().startswith("Part of this code's time")


def test_an_evaluation_in_a_recorded_step_is_no_measure_for_later_ones() -> None:
    lengths = [0.1] * 30
    lengths[4] = lengths[14] = lengths[24] = 3.0
    samples = [Sample(0.0, None)]
    ends, at = [], 0.0
    for length in lengths:
        ends.append((at, at + length))
        at += length
    found = elsewhere(ends, at, [1e3 * x for x in lengths[2:8]], samples)
    assert found is not None
    assert [s.numbers for s in found.stretches] == [(5, 15, 25)]
    # nothing lies between these
    assert "in every 10th step (steps 5, 15 and 25)" in found.stretches[0].words()


def test_nothing_recorded_says_nothing() -> None:
    assert elsewhere([(0.0, 1.0)], 2.0, [], []) is None


def test_small_hiccups_do_not_blur_the_period() -> None:
    lengths = [2.0 if i % 10 == 9 else 0.1 for i in range(40)]
    lengths[3] = lengths[24] = 0.3
    found = _of(lengths, dict.fromkeys(range(9, 40, 10), "evaluate(model)"))
    assert [s.when for s in found.stretches] == [
        "in every 10th step (steps 10, 20 … 40)",
        "in steps 4 and 25",
    ]
