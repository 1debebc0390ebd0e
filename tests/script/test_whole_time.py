"""Steps that grow, evaluation, checkpoints and set-up of a run: each told with phase and line."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.advice.findings import Finding
from perfkit.advice.outside import of_the_program
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.measure.phases import Phases
from perfkit.script.options import Options
from perfkit.script.run_watch import RunWatch
from perfkit.script.whole_run import WholeRun

_STEPS = 48


def _run(loop: Callable[[], object]) -> WholeRun:
    watch = RunWatch("train.py", Options(steps=2, warmup=1))
    watch.start()
    try:
        loop()
    finally:
        watch.stop()
    return watch.result("finished")


def _found(run: WholeRun, rule: str) -> list[Finding]:
    assert run.profile is not None
    return [f for f in run.profile.diagnosis.findings if f.rule == rule]


class _Sleeps(torch.autograd.Function):
    """Goes back through as much as it is told to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


def _train(
    n: int,
    *,
    back_s: Callable[[int], float] = lambda i: 0.0,
    after: Callable[[int], object] = lambda i: None,
    model: torch.nn.Module | None = None,
) -> None:
    net = model or torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(n):
        loss = _Sleeps.apply(net(torch.randn(4, 8)).square().mean(), back_s(i))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(i)


def test_steps_that_grow_come_first_with_phase_and_line() -> None:
    run = _run(lambda: _train(_STEPS, back_s=lambda i: 0.001 * i))
    (found,) = _found(run, "steps-grow")
    assert run.profile is not None
    assert run.profile.diagnosis.findings[0] is found
    assert "in the backward pass, at test_whole_time.py:" in found.title
    assert found.line is not None
    assert "time.sleep(ctx.seconds)" in found.line
    assert "detach()" in found.what_to_do
    assert found.changes  # a gradient that is cut is another gradient
    assert run.sentence.startswith("Steps grow: ")
    total = sum(part.seconds for part in run.parts)
    assert total == pytest.approx(run.wall_s, rel=0.02)
    assert any("because steps grow" in part.what for part in run.parts)


@pytest.mark.parametrize(
    "back_s",
    [
        lambda i: 0.01,  # all alike
        lambda i: 0.03 if i > _STEPS // 4 else 0.005,  # one jump
        lambda i: 0.2 if i % 16 == 15 else 0.005,  # now and then
    ],
)
def test_steps_that_do_not_grow_are_not_said_to(back_s: Callable[[int], float]) -> None:
    run = _run(lambda: _train(_STEPS, back_s=back_s))
    assert not _found(run, "steps-grow")
    assert "Steps grow" not in run.sentence


def test_a_profile_names_the_line_that_grows() -> None:
    def looks_through(i: int) -> None:
        time.sleep(0.001 * i)

    with perfkit.profile(steps=2, warmup=1) as p:
        _train(_STEPS, after=looks_through)
    grown = [f for f in p.result.diagnosis.findings if f.rule == "steps-grow"]
    assert grown
    assert grown[0].line is not None
    assert "time.sleep(0.001 * i)" in grown[0].line
    assert p.result.diagnosis.headline.startswith("Steps grow: ")


def _evaluates(model: torch.nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(4, 8))
            time.sleep(0.05)
    model.train()


def test_an_evaluation_is_told_by_phase_and_line_and_gets_its_own_remedy() -> None:
    model = torch.nn.Linear(8, 2)
    run = _run(lambda: _train(40, model=model, after=lambda i: i % 10 == 9 and _evaluates(model)))
    found = _found(run, "outside-the-steps")
    assert found
    assert found[0].title.endswith(": evaluation")
    assert all("profile" not in f.what_to_do for f in found)


@pytest.mark.parametrize("with_phases", [True, False])
def test_slow_steps_that_evaluate_are_told_without_those_that_are_held_up(
    with_phases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one in every 300th step "in 558 steps (3, 10, 12 …): evaluation" was said."""
    if not with_phases:
        monkeypatch.setattr(Phases, "are_sure", False)
    n = itertools.count()

    class HeldUp(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            i = next(n) if self.training else 0
            # where ordinary steps are, too: another program had the core
            time.sleep(0.15 if i % 7 in (3, 5) and i > 20 else 0.006)
            return super().forward(x)

    model = HeldUp(8, 2)
    run = _run(lambda: _train(121, model=model, after=lambda i: i % 20 == 19 and _evaluates(model)))
    assert run.profile is not None
    assert run.profile.elsewhere is not None
    own = [one for one in run.profile.elsewhere.stretches if one.numbers[1:] and not one.is_any]
    assert [one.numbers for one in own] == [(21, 41, 61, 81, 101, 121)]
    assert own[0].when.startswith("in every 20th step")
    assert own[0].below.endswith(": after(i)")
    # a busy machine explains the others, and they are no finding there
    busy = CpuContention(10.0, 2, 5.0, waited_s=9.0, others_s=9.0)
    told = of_the_program(run.profile.elsewhere, busy)
    assert told is not None
    assert [one.numbers for one in told.stretches if one.numbers[1:]] == [own[0].numbers]


def test_a_checkpoint_gets_its_own_remedy(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 2)

    def save(i: int) -> None:
        if i % 10 == 9:
            for n in range(300):
                torch.save(model.state_dict(), tmp_path / f"{n}.pt")

    run = _run(lambda: _train(40, model=model, after=save))
    found = _found(run, "outside-the-steps")
    assert found
    assert found[0].line is not None
    assert "torch.save(" in found[0].line
    assert "no data set" in found[0].what_to_do


@pytest.mark.parametrize("drawn_s", [2.0, 0.3])
def test_title_line_and_remedy_after_the_last_step_are_of_one_thing(drawn_s: float) -> None:
    """The figures of samples were "evaluation", with torch.save(state, path) as its remedy."""

    class Plot:
        def savefig(self, path: str) -> None:
            time.sleep(0.05)

    def samples_and_draws() -> None:
        model, plt = torch.nn.Linear(8, 2), Plot()
        _train(12, model=model)
        model.eval()
        with torch.no_grad():
            for _ in range(20):
                model(torch.randn(4, 8))
                time.sleep(0.05)
        until = time.perf_counter() + drawn_s
        while time.perf_counter() < until:
            plt.savefig("figure.png")

    (found, *_) = _found(_run(samples_and_draws), "outside-the-steps")
    assert "torch.save" not in found.what_to_do
    evaluates = found.title.endswith(": evaluation")
    assert evaluates is (drawn_s < 1)


def test_evaluation_with_graphs_is_first_only_where_it_takes_time() -> None:
    def loop(n: int) -> Callable[[], None]:
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])

        def train() -> None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(40):
                time.sleep(0.02)  # a line with a cure
                model(torch.randn(4, 64)).sum().backward()
                optimizer.step()
            model.eval()
            for _ in range(n):
                model(torch.randn(4, 64))

        return train

    found = []
    for n in (4, 4000):
        run = _run(loop(n))
        assert run.profile is not None
        found.append(run.profile.diagnosis.findings)
    few, many = ([f.rule for f in some].index("evaluation-with-grad") for some in found)
    assert (few > 0, many) == (True, 0)
    assert (found[1][0].line or "").endswith(": model(torch.randn(4, 64))")
    assert found[0][few].gain_at_most < 1.15 < found[1][0].gain_at_most
    assert found[1][0].gain_at_most < 2  # its passes stay: only what they keep goes


def test_passes_before_the_first_step_are_nothing_to_keep_in_a_file() -> None:
    class Slow(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(0 if torch.is_grad_enabled() else 8):
                torch.ones(500, 500).mm(torch.ones(500, 500))
            return super().forward(x)

    def looks_first() -> None:
        model = Slow(8, 2)
        with torch.no_grad():
            for _ in range(30):
                model(torch.randn(4, 8))
        _train(12, model=model)

    (found, *_) = _found(_run(looks_first), "outside-the-steps")
    assert "before the first step ended" in found.title
    assert "torch.load" not in found.what_to_do
    assert "over fewer batches" in found.what_to_do


def test_set_up_is_told_with_its_line_and_imports_are_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch imports when an optimizer is made was the first finding of 14 reports of 23."""
    _train(1)  # torch's own imports are over
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "slow_to_import.py").write_text("import time\ntime.sleep(0.6)\n")
    monkeypatch.syspath_prepend(str(library))

    def imports() -> None:
        importlib.import_module("slow_to_import")
        _train(12)

    assert not _found(_run(imports), "outside-the-steps")

    def builds() -> None:
        time.sleep(0.6)
        _train(12)

    (found, *_) = _found(_run(builds), "outside-the-steps")
    assert found.line is not None
    assert "time.sleep(0.6)" in found.line


def test_gradients_of_steps_that_were_not_looked_at_are_not_called_unused() -> None:
    """After the first steps only a few are looked at: a gradient of those between is a new one."""
    both = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)]
    optimizers = [torch.optim.Adam(net.parameters(), fused=True) for net in both]

    def loop() -> None:
        for _ in range(70):
            for net, optimizer in zip(both, optimizers, strict=True):
                optimizer.zero_grad()
                net(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()

    assert not _found(_run(loop), "unused-gradients")
