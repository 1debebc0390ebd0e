"""The objects of a run are met in few of its steps; what counts in any step is met in all."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from perfkit.measure.live import Live
from perfkit.measure.phases import Phases


def test_the_first_steps_and_those_that_double_their_number_are_looked_at() -> None:
    model, shapes = nn.Linear(4, 1), iter(range(1, 100))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    live, phases = Live(lambda: True), Phases()
    phases.live = live
    looks: list[int] = []
    live.start(lambda live: looks.append(live.n_steps))
    phases.start()

    def train(batches: DataLoader[torch.Tensor]) -> None:
        for batch in batches:
            model(batch[:, :4].repeat(next(shapes), 1)).sum().backward()
            optimizer.step()
            phases.take()
            live.step_ended()

    loaders = [DataLoader(torch.ones(20, 4), batch_size=1) for _ in range(2)]
    train(loaders[0])
    model.eval()
    model(torch.ones(1, 4))  # between two steps that are not looked at, and it keeps a graph
    model.train()
    train(loaders[1])
    phases.stop()
    live.stop()
    assert looks == [1, 2, 4, 8, 16, 32, 40]
    (use,) = live.modules.values()
    # 1 to 8, 16, 21 (its loader has started), 32
    assert use.n_trained == len(use.shapes) == 11
    assert use.n_eval_with_grad == 1
    assert [use.ref() for use in live.optimizers.values()] == [optimizer]
    assert [one.n_starts for one in live.loaders.values()] == [1, 1]


def test_a_loader_with_a_list_of_batches_is_met_like_any_other() -> None:
    """A list has no weak reference, and all that was looked at ended there."""
    live, phases = Live(lambda: True), Phases()
    phases.live = live
    live.start(lambda live: None)
    phases.start()
    list(DataLoader(torch.ones(4, 4), batch_sampler=[[0, 1], [2, 3]]))
    phases.stop()
    live.stop()
    assert live.failure is None
    assert [one.n_seen for one in live.loaders.values()] == [2]
