"""Runs of several processes: ``world_size``, by torchrun."""

from __future__ import annotations

import os
import time

import pytest

from perfkit.base.machine import facts
from perfkit.experiment.process import _process
from perfkit.experiment.process.rank import LastStep, Until
from perfkit.experiment.settings import CATALOGUE

pytestmark = pytest.mark.slow

needs_ranks = pytest.mark.skipif(
    CATALOGUE["world_size"].unavailable(2, facts()) is not None,
    reason="two gloo processes, on a CPU or with a GPU each",
)
NAMES = ["world_size", "bucket_cap_mb", "accumulate"]


def trained_together(s):
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = dist.get_rank() if s.world_size > 1 else 0
    model = s.prepare(torch.nn.Linear(4, 1))
    if s.world_size > 1:
        model = DistributedDataParallel(model, **s.ddp_kwargs())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = s.training_step(model, optimizer, lambda out, target: (out - target).mean())
    for part in range(4):
        yield step(torch.full((2, 4), 1.0 + rank + part), torch.zeros(2, 1))
    weight = getattr(model, "module", model).weight.detach().tolist()
    print("RANK", rank, s.world_size, torch.get_num_threads(), weight)


trained_together.__module__ = "__main__"


@needs_ranks
def test_two_processes_train_one_model(session):
    one = session(trained_together, NAMES, seconds=60)
    result = one.run(world_size=2, bucket_cap_mb=1, accumulate=2)
    assert result.state == "done", f"{result.message}\n{result.output}\n{result.traceback_text}"
    assert result.n_steps == 4
    assert result.values["world_size"] == 2
    assert any("rank 0 of 2" in said for said in result.warnings)
    ranks = [line.split(maxsplit=4) for line in result.output.splitlines() if "RANK" in line]
    assert sorted(rank[1:3] for rank in ranks) == [["0", "2"], ["1", "2"]]
    assert ranks[0][4] == ranks[1][4]


def for_ever(s):
    import torch
    from torch import distributed as dist

    while True:
        total = torch.ones(1)
        dist.all_reduce(total)
        yield {"samples": 1, "loss": total}


for_ever.__module__ = "__main__"


@needs_ranks
def test_all_ranks_end_after_the_same_step(session):
    """A rank that went on alone would wait in its all-reduce for ever."""
    result = session(for_ever, NAMES, seconds=0.5).run(world_size=2)
    assert result.state == "done", f"{result.message}\n{result.output}\n{result.traceback_text}"
    assert result.n_steps >= 3
    assert result.loss[0] == 2.0
    assert not result.message


@needs_ranks
def test_a_stop_ends_every_rank(session):
    one = session(for_ever, NAMES, seconds=60)
    one.start(world_size=2)
    while one.state in ("starting", "warm-up"):
        time.sleep(0.01)
    one.stop()
    assert one.wait().state == "stopped"  # the fixture looks for processes that are left


def fails_on_one(s):
    import torch
    from torch import distributed as dist

    rank = dist.get_rank()
    for step in range(100):
        if step == 2 and rank == 1:
            if s.accumulate == 2:
                os.kill(os.getpid(), 9)
            raise ValueError("no <b>luck</b>")
        total = torch.ones(1)
        dist.all_reduce(total)
        yield 1


fails_on_one.__module__ = "__main__"


@needs_ranks
@pytest.mark.parametrize(
    ("accumulate", "state", "words"),
    [
        (1, "failed", "rank 1: ValueError: no <b>luck</b>"),
        (2, "killed", "rank 1: killed (SIGKILL)"),
    ],
)
def test_the_rank_that_failed_first_is_named(session, accumulate, state, words):
    result = session(fails_on_one, NAMES, seconds=60).run(world_size=2, accumulate=accumulate)
    assert result.state == state, f"{result.message}\n{result.output}\n{result.traceback_text}"
    assert result.message.startswith(words)


def waits(s):
    import time

    from torch import distributed as dist

    yield 1
    if dist.get_rank() == 1:
        time.sleep(600)  # here
    dist.barrier()


waits.__module__ = "__main__"


@needs_ranks
def test_a_rank_that_hangs_is_ended(session):
    result = session(waits, NAMES, seconds=60, step_timeout_s=3).run(world_size=2)
    assert result.state == "hung"
    assert "in waits" in result.message


def test_where_nothing_is_prepared_it_says_so(session, monkeypatch):
    monkeypatch.setattr(_process, "can_prepare", lambda: False)
    result = session(trained_together, NAMES, seconds=60).run(world_size=2)
    assert result.state == "failed"
    assert "set world_size=1" in result.message


def test_on_other_systems_it_is_not_offered(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Linux only" in CATALOGUE["world_size"].unavailable(2, facts())
    assert CATALOGUE["world_size"].unavailable(1, facts()) is None


def test_the_last_step_is_shared(tmp_path):
    path = tmp_path / "last"
    path.write_bytes(b"\0" * 8)
    mine, theirs = LastStep(path), LastStep(path)
    steps = Until(iter(range(10)), theirs)
    assert [next(steps), next(steps)] == [0, 1]
    mine.number = 3
    assert list(steps) == [2]
    assert steps.n_done == 3
    assert list(Until(iter([]), theirs)) == []
