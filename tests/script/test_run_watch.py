"""A run watched in this process: what it says adds up, and a forked child knows nothing of it."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from perfkit.base.words import fmt_ms
from perfkit.measure.tracker import Update
from perfkit.script import _torch_watch, run_watch
from perfkit.script.options import Options
from perfkit.script.ranks.heartbeat import Status
from perfkit.script.ranks.joint import joint
from perfkit.script.ranks.record import keep, read_record
from perfkit.script.run_watch import RunWatch
from perfkit.script.whole_run import WholeRun
from tests.left_running import n_optimizer_step_hooks


def _trainer(batches: Any) -> Callable[[int], None]:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(n_steps: int) -> None:
        for _, x in zip(range(n_steps), batches, strict=False):
            loss = net(x).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def _watched(train: Callable[[], None], ended: str = "finished", **more: Any) -> WholeRun:
    watch = RunWatch("train.py", Options(steps=2, warmup=1), **more)
    watch.start()
    try:
        train()
    finally:
        watch.stop()
    return watch.result(ended)


def test_steps_samples_and_parts_are_those_of_the_run() -> None:
    train = _trainer(DataLoader(torch.ones(60, 8), batch_size=5))
    said = _watched(lambda: train(12))
    assert (said.n_steps, said.uses_loader) == (12, True)
    assert said.profile is not None
    assert said.profile.coverage is not None
    assert (said.profile.coverage.first_step, said.profile.coverage.last_step) == (2, 3)
    assert said.steps is not None
    assert said.steps.step is not None
    assert said.steps.step.n == 9  # not the first one, and not two more of the warm-up
    total = sum(part.seconds for part in said.parts)
    assert total == pytest.approx(said.wall_s, rel=0.02)
    (usual,) = [part for part in said.parts if "like the recorded ones" in part.what]
    # not the length of a recorded step: recording makes it longer
    assert usual.what.endswith(f"(mean {fmt_ms(1e3 * usual.seconds / 12)})")


@pytest.mark.parametrize(("asked", "known"), [(False, False), (False, True), (True, False)])
def test_shapes_are_recorded_where_they_tell_how_far_a_step_is_from_the_least_time(
    asked: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_torch_watch, "peaks_in_use", lambda: object() if known else None)
    train = _trainer(DataLoader(torch.ones(60, 8), batch_size=5))
    watch = RunWatch("train.py", Options(steps=2, warmup=1, shapes=asked))
    watch.start()
    train(12)
    watch.stop()
    profile = watch.result("finished").profile
    assert profile is not None
    assert any(dims for dims in profile.trace.input_dims) == (asked or known)


@pytest.mark.parametrize("evaluates", [False, True])
def test_evaluation_within_the_recorded_steps_is_told_because_the_picture_calls_it_forward(
    evaluates: bool,
) -> None:
    """A graph network's report had 43 % evaluation, and 58 % forward in the picture below."""
    net = torch.nn.Linear(200, 200)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(400, 200)

    def train() -> None:
        for _ in range(8):
            net.train()
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            if evaluates:
                net.eval()
                with torch.no_grad():
                    for _ in range(20):
                        net(x)

    profile = _watched(train).profile
    assert profile is not None
    said = [w for w in profile.warnings if w.startswith("evaluation (or a policy that plays) is ")]
    assert len(said) == evaluates
    rules = {f.rule for f in profile.diagnosis.findings}
    assert ("validation-in-step" in rules) == evaluates


def test_a_short_run_has_no_drift() -> None:
    """Six recorded steps near the end of 59 were told as "steps got 71 % slower over the run"."""
    train = _trainer([torch.ones(4, 8)] * 50)

    def slows() -> None:
        for i in range(38):
            time.sleep(0.001 if i < 19 else 0.02)
            train(1)

    said = _watched(slows)  # two steps are recorded
    assert said.steps is not None
    assert said.steps.drift is None


def test_rates_are_of_the_steps_without_the_set_up() -> None:
    """20 steps of 15 ms after 20 s of set-up were told as 15.7 samples/s, at 16 a step."""
    train = _trainer(DataLoader(torch.ones(100, 8), batch_size=5))
    watch = RunWatch("train.py", Options(steps=2, warmup=1))
    watch.start()
    time.sleep(0.3)  # builds its data set
    train(12)
    watch.stop()
    said = watch.result("finished")
    assert said.steps is not None
    assert watch.seen is not None
    spans = watch.seen.recorder.log.times_s
    assert spans[0][1] - spans[0][0] > 0.3
    later_s = sum(end - begin for begin, end in spans[1:])
    assert said.steps.steps_per_s == pytest.approx(11 / later_s)
    assert said.steps.samples_per_s == pytest.approx(55 / later_s)


def test_without_a_data_loader_no_data_wait_is_said() -> None:
    train = _trainer([torch.ones(4, 8)] * 12)
    updates: list[Update] = []
    said = _watched(lambda: train(12), on_update=updates.append)
    assert not said.uses_loader
    assert (updates[0].done, updates[0].total, updates[0].elapsed_s) == (1, None, 0)
    assert "DataLoader" not in said.sentence
    assert "wait_share" not in said.to_dict()["steps"]


def test_updates_know_the_length_of_an_epoch() -> None:
    updates: list[Update] = []
    train = _trainer(DataLoader(torch.ones(60, 8), batch_size=5))
    _watched(lambda: train(12), on_update=updates.append)
    assert (updates[0].done, updates[0].total, updates[0].epoch) == (1, 12, 1)
    assert updates[0].elapsed_s == 0  # from the end of the first step, which holds the set-up


def test_a_display_that_fails_is_told_and_called_no_more() -> None:
    calls: list[Update] = []

    def show(update: Update) -> None:
        calls.append(update)
        raise OSError("no terminal")

    train = _trainer([torch.ones(4, 8)] * 12)
    said = _watched(lambda: train(12), on_update=show)
    assert len(calls) == 1
    assert any("the live display failed" in warning for warning in said.warnings)
    assert said.n_steps == 12


def test_the_steps_of_an_optimizer_that_takes_over_count() -> None:
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    watch = RunWatch("train.py", Options())
    watch.start()
    try:
        for layer, optimizer in zip(layers, optimizers, strict=True):
            for batch in DataLoader(torch.zeros(120, 2), batch_size=4):  # type: ignore[arg-type]
                layer(batch).sum().backward()
                optimizer.step()
    finally:
        watch.stop()
    assert watch.seen is not None
    # the 20 after which it takes over are one
    assert watch.seen.meter.n == 41


def test_a_single_step_is_no_plural() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)

    def train() -> None:
        time.sleep(0.1)  # a part that takes next to nothing has no row
        optimizer.step()

    (part,) = (p for p in _watched(train).parts if "median" in p.what)
    assert part.what.startswith("1 step (median")


def test_several_backward_passes_for_a_step_of_an_optimizer_are_one_step() -> None:
    net = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(240, 8), batch_size=5)

    def train() -> None:
        for i, x in enumerate(loader, 1):
            net(x).square().sum().backward()
            if i % 8 == 0:
                optimizer.step()

    watch = RunWatch("train.py", Options(steps=2, warmup=1))
    watch.start()
    train()
    watch.stop()
    said = watch.result("finished")
    assert said.n_steps == 6
    assert watch.seen is not None
    assert watch.seen.run.samples == 48 * 5


def test_why_there_is_no_step_comes_first() -> None:
    assert "no torch optimizer stepped" in _watched(lambda: None).sentence
    failed = _watched(lambda: None, "raised TypeError").sentence
    assert failed.startswith("train.py raised TypeError before its first step")
    train = _trainer([torch.ones(4, 8)] * 12)
    assert "with --warmup 1" in _watched(lambda: train(1)).sentence


def test_a_profiler_of_the_program_is_left_alone() -> None:
    train = _trainer([torch.ones(4, 8)] * 12)

    def profiled() -> None:
        with torch.profiler.profile() as profile:
            train(8)
        assert any(event.key == "aten::mm" for event in profile.key_averages())

    said = _watched(profiled)
    assert said.n_steps == 8
    assert "runs a torch profiler of its own" in said.sentence


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_knows_nothing_of_it() -> None:
    train = _trainer([torch.ones(4, 8)] * 12)
    before = DataLoader.__iter__
    found: list[int] = []

    def forks() -> None:
        train(2)  # the profiler is recording
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, of any thread
            child = os.fork()
        if child == 0:
            clean = n_optimizer_step_hooks() == 0
            clean = clean and DataLoader.__iter__ == before
            os._exit(0 if clean else 1)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        train(6)

    said = _watched(forks)
    assert found == [0]
    assert said.n_steps == 8
    assert said.profile is not None


def test_what_the_program_does_in_watched_steps_is_not_said_to_be_perfkits() -> None:
    train = _trainer([torch.ones(4, 8)] * 12)
    watch = RunWatch("train.py", Options(steps=2, warmup=1, memory=True, synclint=True))
    watch.start()
    try:
        train(2)
        time.sleep(0.4)  # as an evaluation between two steps
        train(10)
    finally:
        watch.stop()
    said = watch.result("finished")
    (part,) = [part for part in said.parts if "slower with" in part.what]
    assert part.what.endswith("in steps 2 to 5 (slower with --memory and --synclint)")
    assert " of it at test_run_watch.py:" in part.where
    assert said.memory is not None
    assert said.memory.n_steps == 2
    assert said.syncs is not None
    assert said.syncs.seen.startswith("Seen: steps 3 and 4 of the run.")


@pytest.mark.parametrize("imports", [False, True])
def test_a_loop_in_another_thread_is_told_of(
    imports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No remedy was given; "did not import torch"; the account began in a thread it cannot end."""

    def in_a_thread(function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    def imported(_: str, function: Callable[[], None]) -> Callable[[], None]:
        in_a_thread(function)
        return lambda: None

    if imports:
        monkeypatch.setattr(run_watch, "when_imported", imported)
    train = _trainer([torch.ones(4, 8)] * 12)
    watch = RunWatch("train.py", Options(steps=2, warmup=1, memory=True, synclint=True))
    watch.start()
    in_a_thread(lambda: train(4))
    watch.stop()
    said = watch.result("finished")
    assert said.sentence.startswith("No step was seen in the main thread of train.py")
    assert said.memory is None
    assert said.syncs is None
    nothing = "--memory and --synclint found nothing to look at in 0 steps: it begins with the"
    assert [w.startswith(nothing) for w in said.warnings] == [True] * (not imports)
    assert said.parts[-1].what == (
        "the program" if imports else "the program, without a step in its main thread"
    )


def test_what_is_looked_for_in_the_first_steps_ends_outside_of_a_backward_pass() -> None:
    """The second model computes again as its pass goes back, just after a step has ended."""
    x = torch.ones(4, 8)
    first, second = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    watch = RunWatch("train.py", Options(steps=1, warmup=1, memory=True, synclint=True))
    watch.start()
    modes = []
    try:
        for _ in range(8):
            other = checkpoint(second, x, use_reentrant=False).sum()
            first(x).sum().backward()
            optimizers[0].step()
            other.backward()
            optimizers[1].step()
            modes.append(torch._C._len_torch_dispatch_stack())
    finally:
        watch.stop()
    assert modes[-1] == 0
    said = watch.result("finished")
    assert said.memory is not None
    assert said.syncs is not None


@pytest.mark.parametrize("memory", [False, True])
def test_a_rank_that_hangs_as_it_is_recorded_leaves_its_steps_and_phases(
    memory: bool, tmp_path: Path
) -> None:
    """Its row was empty, and the report on all ranks knew nothing of it but its last step."""
    train = _trainer([torch.ones(4, 8)] * 12)
    watch = RunWatch("train.py", Options(steps=4, warmup=1, memory=memory, memory_steps=9))
    watch.start()
    train(3)
    assert watch.seen is not None
    time.sleep(0.05)  # where it hangs
    try:
        stops = threading.Thread(target=watch.stop, kwargs={"hangs": True})
        stops.start()
        stops.join()
        ended = "was ended by SIGTERM in a call that did not return to Python"
        said = watch.result(ended, rank=1)
        keep(tmp_path, 1, said, watch.seen, trace=False)
    finally:  # what a process that ends leaves
        watch.seen.stop(None)
    assert said.sentence == (
        f"train.py {ended}, in step 4: only the thread that hangs can end a recording, so it is "
        "lost."
    )
    assert (
        any(w.startswith("--memory: only the thread that hangs") for w in said.warnings) == memory
    )
    (tmp_path / "status1.json").write_text(
        json.dumps(asdict(Status(1, os.getpid(), time.time(), n_steps=3, ended=ended)))
    )
    (rank,) = joint(tmp_path, [1], 2).ranks
    left = read_record(tmp_path, 1)
    assert left is not None
    # a mean step, without the hang
    assert list(rank.phase_ms.values()) == pytest.approx(np.mean(left.phase_ms, axis=0), abs=1e-3)
    assert rank.n_steps == 3
    assert rank.memory_bytes
