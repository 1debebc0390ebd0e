"""The line on which the time goes is named, whatever the cause, and on a busy machine, too."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import perfkit
from perfkit.advice.findings import Finding

logger = logging.getLogger("perfkit.tests.gates")


def _slow_metric(x: torch.Tensor) -> float:
    return float(sum(torch.histc(x, 64).max() for _ in range(40)))


def test_the_line_that_takes_most_is_named_with_its_samples() -> None:
    """As a histogram of every weight in every step: torch's own operator, no rule knows it."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(400_000)

    def step() -> None:
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        _slow_metric(x)

    found = perfkit.profile(step, repeat=30).diagnosis.findings
    named = [f.line for f in found if f.line is not None]
    assert any("test_hottest_line.py" in line and "histc" in line for line in named)
    (line,) = {f.line for f in found if f.rule in ("hottest-line", "slow-line")} or {None}
    assert line is None or sum(f.line == line for f in found) == 1  # one line is told once


def _count(table: torch.Tensor, labels: torch.Tensor, guesses: torch.Tensor) -> None:
    for label, guess in zip(labels, guesses, strict=True):
        table[label, guess] += 1


def test_a_loop_that_one_call_does_is_told_by_what_it_does() -> None:
    """Whatever its function is called, and once: the loop's cure is its line's."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    table, labels = torch.zeros(64, 64), torch.arange(64)

    def step() -> None:
        scores = model(torch.randn(64, 64))
        scores.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        _count(table, labels, scores.argmax(1))

    found = perfkit.profile(step, repeat=300).diagnosis.findings
    assert "torch.bincount(pairs" in found[0].what_to_do
    assert len([f for f in found if "torch.bincount(pairs" in f.what_to_do]) == 1


class _Ranks:
    def compute(self, scores: torch.Tensor) -> float:
        order = scores.argsort()
        ranks = torch.empty_like(scores)
        ranks[order] = scores
        above = ranks[scores > 0]
        return float(above.sum())


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
def test_a_line_that_is_most_of_the_step_keeps_its_cure() -> None:
    """Two rules told it with the same cure, and each was left out for the other."""
    arrays, model = [np.ones((7, 7, 3), int) for _ in range(400)], torch.nn.Linear(147, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with perfkit.profile(steps=3, warmup=2) as p:
        for _ in range(12):
            x = torch.tensor([one for one in arrays], dtype=torch.float32)  # noqa: C416
            model(x.flatten(1)).square().mean().backward()
            optimizer.step()
    found = p.result.diagnosis.findings
    assert found[0].title == "A tensor is made from a Python list, number by number"
    assert "np.stack" in found[0].what_to_do


def test_a_function_that_takes_much_over_many_lines_is_named() -> None:
    """As the area under a curve, of all that came before, after each batch."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scores, ranks = torch.randn(200_000), _Ranks()

    def step() -> None:
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.compute(scores)

    found = perfkit.profile(step, repeat=30).diagnosis.findings
    (named,) = (f for f in found if f.rule in ("hottest-line", "slow-line"))
    assert "compute()" in named.title or ".argsort()" in (named.line or "")


def test_lines_that_every_loop_has_say_nothing() -> None:
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 256)

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    found = perfkit.profile(step, repeat=40).diagnosis.findings
    assert not any(f.rule == "hottest-line" and ".backward(" in (f.line or "") for f in found)


def _told_of(log: Callable[[torch.Tensor], object], repeat: int) -> list[Finding]:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        y = model(torch.randn(64, 64))
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        log(y)

    return list(perfkit.profile(step, repeat=repeat).diagnosis.findings)


def _collects(y: torch.Tensor) -> None:
    gc.collect()


def test_a_collection_in_each_step_is_told_once_and_taken_out() -> None:
    """In a helper that has no number of the step: nothing there could count to a thousand."""
    found = {f.rule: f for f in _told_of(_collects, 10)}
    assert found["gc-collect"].what_to_do.startswith("# take the call out")
    assert {"gc-pauses", "host-python", "hottest-line"}.isdisjoint(found)


def _logs(y: torch.Tensor) -> None:
    for _ in range(60):
        logger.debug(f"gates {y}")


def test_a_line_with_one_cure_is_told_once() -> None:
    """Many small operators, and Python between them: both of them are the log's."""
    told = [(f.line, f.what_to_do) for f in _told_of(_logs, 10) if f.line]
    assert any('logger.debug("gates %s", y)' in cure for _, cure in told)
    assert len(told) == len(set(told))


def _debug(gates: torch.Tensor) -> None:
    for k, weights in enumerate([gates] * 8):
        logger.debug(f"100% gates {gates} of {k}")
        logger.debug(
            f"weights {weights}",
        )


def test_text_of_tensors_for_a_message_that_nobody_sees_is_handed_over_unmade() -> None:
    """Also where the calls are in several lines; each of these is told."""
    found = {f.rule: f for f in _told_of(_debug, 40)}
    told = found["text-of-tensors"]
    assert told.title.endswith("for a message that is not shown")
    assert 'logger.debug("100%% gates %s of %s", gates, k)  # test_hottest' in told.what_to_do
    assert 'logger.debug("weights %s", weights)  # test_hottest' in told.what_to_do
    assert {"hottest-line", "host-python", "logging-in-step", "tiny-ops"}.isdisjoint(found)


def _prints(y: torch.Tensor) -> None:
    for _ in range(8):
        print(y)


def _keeps(y: torch.Tensor) -> None:
    seen = [str(y) for _ in range(8)]
    assert seen


@pytest.mark.parametrize(("log", "cure"), [(_prints, "log(...)  # not each"), (_keeps, "tolist()")])
def test_tensors_that_are_printed_or_made_a_key_have_cures_of_their_own(
    log: Callable[[torch.Tensor], object], cure: str
) -> None:
    (told,) = (f for f in _told_of(log, 60) if f.rule == "text-of-tensors")
    assert cure in told.what_to_do
    assert "not shown" not in told.title


@pytest.mark.parametrize(
    "log",
    [
        lambda y: [logger.debug("gates %s", y) for _ in range(99)],  # handed over
        lambda y: [f"{y.mean():.3f}" + str(y.mean().item()) for _ in range(99)],  # numbers
        lambda y: str(y[:2, :2]) if torch.rand(()) < 0.02 else "",  # now and then
    ],
)
def test_no_text_of_tensors_is_no_finding(log: Callable[[torch.Tensor], object]) -> None:
    assert "text-of-tensors" not in {f.rule for f in _told_of(log, 40)}
