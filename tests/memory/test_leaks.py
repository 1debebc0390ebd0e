"""Leaks of each kind are found and their holders named; nothing else is reported."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import json
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from perfkit.base import process_memory
from perfkit.base.errors import UsageError
from perfkit.base.torch_compat import sequence_number_reader
from perfkit.memory import leaks as leaks_
from perfkit.memory.graphs import nodes_of
from perfkit.memory.holders import holder_of
from perfkit.memory.leaks import LeakReport, find_leaks

KEPT: list[Any] = []
N = 16


@pytest.fixture(autouse=True)
def keep_nothing() -> Any:
    global KEPT
    KEPT = []  # the collector knows nothing of the first one: conftest.py froze it
    yield
    KEPT = []


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def _one(report: LeakReport) -> Any:
    assert len(report.leaks) == 1, report.leaks
    assert report.n_steps == N
    return report.leaks[0]


def test_a_kept_loss_keeps_its_graph() -> None:
    model, x = _model(), torch.randn(8, 32)
    losses: list[Tensor] = []

    def step() -> None:
        loss = model(x).pow(2).mean()
        losses.append(loss)

    report = find_leaks(step, steps=N)
    held = [leak for leak in report.leaks if leak.through_graph]
    assert held
    assert all(leak.holder.startswith("losses ") for leak in report.leaks)
    assert held[0].holder.endswith("[…] → graph")
    # the tanh keeps its result, the square its input
    assert held[0].bytes_per_step == pytest.approx((8 * 32 + 8 * 4) * 4)
    assert any("loss = model(x)" in line for line in held[0].lines)


def test_a_kept_output() -> None:
    model, x = _model(), torch.randn(8, 32)

    def step() -> None:
        with torch.no_grad():
            KEPT.append(model(x))

    leak = _one(find_leaks(step, steps=N))
    assert leak.holder == "KEPT (of test_leaks)[…]"
    assert leak.bytes_per_step == 8 * 4 * 4
    assert not leak.through_graph


def test_that_the_search_for_holders_ended_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> None:
        KEPT.append(torch.zeros(300))
        KEPT.append(torch.zeros(40))

    def holder(tensor: Tensor, ignore: object) -> str | None:
        return None if tensor.numel() == 300 else "KEPT"

    monkeypatch.setattr(leaks_, "holder_of", holder)
    # eight large ones that nothing is found to hold, then the small ones
    for most, holders in ((8, [""]), (9, ["", "KEPT"])):
        monkeypatch.setattr(leaks_, "_MOST_CHAINS", most)
        report = find_leaks(step, steps=8)
        assert [leak.holder for leak in report.leaks] == holders
        said = [w for w in report.warnings if "only 8 holders were searched for" in w]
        assert len(said) == (most == 8)


def test_a_list_of_tensors_in_an_object() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.history: dict[str, list[Tensor]] = {"val": []}

        def step(self) -> None:
            self.history["val"].append(torch.zeros(256))

    trainer = Trainer()
    leak = _one(find_leaks(trainer.step, steps=N))
    assert len(trainer.history["val"]) == 3 + N  # as the docstring says
    assert leak.holder.startswith("trainer ")
    assert leak.holder.endswith(".history['val'][…]")
    assert leak.bytes_per_step == 1024


def test_a_closure() -> None:
    callbacks: list[Any] = []

    def step() -> None:
        big = torch.zeros(512)
        callbacks.append(lambda: big.sum())

    leak = _one(find_leaks(step, steps=N))
    assert leak.holder.startswith("callbacks ")
    assert "closure of" in leak.holder
    assert leak.bytes_per_step == 2048


def test_a_hook() -> None:
    model, x = _model(), torch.randn(8, 32)

    def step() -> None:
        seen: list[Tensor] = []
        model[2].register_forward_hook(lambda m, i, o: seen.append(o.detach()))
        with torch.no_grad():
            model(x)

    report = find_leaks(step, steps=N)
    leak = report.leaks[0]
    assert leak.holder.startswith("model ")
    assert "_forward_hooks" in leak.holder
    assert "closure of" in leak.holder


def test_a_cached_property() -> None:
    class Batch:
        @functools.cached_property
        def image(self) -> Tensor:
            return torch.zeros(256)

    batches: list[Batch] = []

    def step() -> None:
        batch = Batch()
        assert batch.image.sum() == 0
        batches.append(batch)

    leak = _one(find_leaks(step, steps=N))
    assert leak.holder.startswith("batches ")
    assert leak.holder.endswith("[…].image")


def test_a_cached_function() -> None:
    @functools.cache
    def position(n: int) -> Tensor:
        return torch.zeros(256)

    numbers = iter(range(1000))
    leak = _one(find_leaks(lambda: position(next(numbers)), steps=N))
    assert "cache of" in leak.holder
    assert "position" in leak.holder


def test_an_exception_with_its_traceback() -> None:
    errors: list[BaseException] = []

    def fail() -> None:
        big = torch.zeros(256)
        raise ValueError(big.shape)

    def step() -> None:
        try:
            fail()
        except ValueError as error:
            errors.append(error)

    leak = _one(find_leaks(step, steps=N))
    assert leak.holder.startswith("errors ")
    assert "traceback" in leak.holder
    assert leak.holder.endswith("frame of fail: big")


def test_a_tensor_that_grows() -> None:
    state = {"seen": torch.zeros(1)}

    def step() -> None:
        state["seen"] = torch.cat([state["seen"], torch.zeros(64)])

    leak = _one(find_leaks(step, steps=N))
    assert leak.holder.startswith("state ")
    assert leak.holder.endswith("['seen']")
    assert leak.bytes_per_step == 256


def test_the_way_to_a_tensor_is_as_you_would_write_it() -> None:
    class Box:
        shared: ClassVar[list[Tensor]] = []

    @functools.cache
    def made(n: int) -> Tensor:
        return torch.zeros(n)

    box = Box()
    box.given = {"a b": {3: [torch.zeros(1)]}}  # type: ignore[attr-defined]
    queue = deque([torch.zeros(1)])
    calls = [functools.partial(torch.add, torch.zeros(1))]
    hooks = [(lambda big: lambda: big)(torch.zeros(1))]
    given = [lambda x=torch.zeros(1): x]  # noqa: B008
    Box.shared = [torch.zeros(1)]
    cell: dict[str, Any] = {"__builtins__": {}, "__name__": "__main__", "_own": [torch.zeros(1)]}
    own = eval("lambda: _own", cell)
    del cell
    # not in the assertions: pytest has names of its own for what is in them
    ways = [
        holder_of(box.given["a b"][3][0]),  # type: ignore[attr-defined]
        holder_of(queue[0]),
        holder_of(calls[0].args[0]),
        holder_of(hooks[0]()),
        holder_of(given[0]()),
        holder_of(made(1)),
        holder_of(Box.shared[0]),
        holder_of(own()[0]),
    ]
    here = test_the_way_to_a_tensor_is_as_you_would_write_it.__name__
    assert ways == [
        f"box (in {here}).given['a b'][3][…]",
        f"queue (in {here})[…]",
        f"calls (in {here})[…] → partial[…]",
        f"hooks (in {here})[…] → closure of {here}.<locals>.<lambda>.<locals>.<lambda>, big",
        f"given (in {here})[…] → defaults of {here}.<locals>.<lambda>[…]",
        f"made (in {here}) → cache of {here}.<locals>.made[1]",
        f"{here}.<locals>.Box.shared[…]",
        "_own[…]",
    ]


def test_what_stays_is_found_beneath_what_comes_and_goes() -> None:
    """All of one line: the bytes alive go up and down, but from ever more steps some stay."""
    recent: deque[Tensor] = deque(maxlen=4)
    kept: list[Tensor] = []
    numbers = itertools.count()

    def step() -> None:
        number = next(numbers)
        keep, large = number % 3 == 0, number // 10 % 2
        made = torch.zeros(512 if keep else 4096 + 4096 * large)
        (kept if keep else recent).append(made)

    report = find_leaks(step, steps=40)
    assert any(leak.holder.startswith("kept ") for leak in report.leaks), report


@pytest.mark.slow
def test_a_clean_loop_of_200_steps_has_none() -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    recent: deque[Tensor] = deque(maxlen=5)
    losses: list[float] = []
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        # the batch's size varies, some tensors outlive their step, none for good
        n = int(torch.randint(1, 9, (1,), generator=generator))
        optimizer.zero_grad()
        loss = model(torch.randn(n, 32)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        recent.append(loss.detach())

    report = find_leaks(step, steps=200)
    assert report.leaks == ()
    assert report.n_steps == 200
    assert report.nodes_per_step == 0
    assert "Nothing grows" in report.to_text()


def _deep_model() -> nn.Module:
    """Enough nodes for the resident memory to show: some hundred a step."""
    layers: list[nn.Module] = []
    for _ in range(40):
        layers += [nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(8, 1))


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_a_sum_of_losses_keeps_every_graph(thawed: None, in_place: bool) -> None:
    """No tensor grows: one of 4 bytes takes the place of the last."""
    model, x = _deep_model(), torch.randn(4, 8)
    total = torch.zeros(())

    def step() -> None:
        nonlocal total
        loss = model(x).mean()
        loss.backward()
        if in_place:
            total += loss
        else:
            total = total + loss

    report = find_leaks(step, steps=8)
    assert report.leaks == ()
    one = _deep_model()(x).mean()
    assert report.nodes_per_step == nodes_of([one])[0] - len(list(model.parameters())) + 1
    assert report.graph_holder.startswith("total")
    assert (report.heap_bytes_per_step or 0) > 100 * report.nodes_per_step
    words = report.to_text()
    assert "Nothing grows" not in words
    assert words.startswith("The autograd graph grows by ")
    assert "no tensor memory does" in " ".join(words.split())
    data = json.loads(json.dumps(report.to_dict()))
    assert data["nodes_per_step"] == report.nodes_per_step


@pytest.mark.slow
def test_a_loss_kept_after_backward_is_more_than_its_four_bytes() -> None:
    model, x = _deep_model(), torch.randn(4, 8)
    losses: list[Tensor] = []
    earlier = model(x).mean()  # a larger graph, which does not grow
    for _ in range(30):
        earlier = earlier + model(x).mean()

    def step() -> None:
        loss = model(x).mean()
        loss.backward()
        losses.append(loss)

    report = find_leaks(step, steps=8)
    assert report.graph_holder.startswith("losses")
    assert report.bytes_per_step == 4
    assert report.nodes_per_step > 100
    assert (report.heap_bytes_per_step or 0) > 10_000
    assert "Tensor memory grows by 4 B a step" in " ".join(report.to_text().split())
    assert "the autograd graph by " in report.to_text()


def test_nodes_are_counted_from_the_first_of_the_counted_steps_on() -> None:
    before = torch.ones(2, requires_grad=True) * 2
    first = sequence_number_reader()()
    after = (before * 3).sum()
    # two products, a sum, and the node that adds up the gradient
    assert (nodes_of([after]), nodes_of([after], first)) == ([4], [2])


def test_what_is_no_tensor_shows_in_the_resident_memory() -> None:
    kept: list[bytearray] = []

    def step() -> None:
        kept.append(bytearray(b"x" * 200_000))

    report = find_leaks(step, steps=16)
    assert report.leaks == ()
    assert report.nodes_per_step == 0
    assert (report.heap_bytes_per_step or 0) == pytest.approx(200_000, rel=0.3)
    assert str(report).startswith("The process grows by ")
    assert "No tensor memory and no autograd graph grows (16 steps), but" in report.to_text()


def test_small_views_on_large_storages_are_listed() -> None:
    corner = torch.zeros(1000, 1000)[:2, :3]
    report = find_leaks(lambda: None, steps=8)
    view = next(v for v in report.views if v.shape == (2, 3))
    assert view.holder.startswith("corner ")
    assert (view.view_bytes, view.storage_bytes) == (24, 4_000_000)
    whole = torch.zeros(1000, 1000)
    part = whole[0]
    again = find_leaks(lambda: None, steps=8)
    assert all(v.shape != tuple(part.shape) for v in again.views)
    assert corner.numel() == 6


def test_small_tensors_alike_are_one_row() -> None:
    """As the losses of ``F.mse_loss``, each a number at the start of a large storage."""
    kept: list[Tensor] = []
    report = find_leaks(lambda: kept.append(torch.zeros(100_000)[0]), steps=8)
    (view,) = (v for v in report.views if v.shape == () and v.storage_bytes == 400_000)
    assert view.holder.startswith("kept (in test_small")
    assert (view.view_bytes, view.n_tensors) == (4, len(kept))
    assert report.to_text().count("scalar") == 1


@pytest.mark.parametrize("held", [True, False])
def test_what_you_hold_yourself_is_in_no_row_however_many_there_are(held: bool) -> None:
    """Eight holders were searched for; large tensors beyond were "held by small views" only."""
    large = [torch.zeros(100_000) for _ in range(12)]
    small = [one[:7] for one in large]
    if not held:
        large.clear()
    views = [view for view in find_leaks(lambda: None, steps=8).views if view.shape == (7,)]
    assert [view.n_tensors for view in views] == ([] if held else [12])
    assert len(small) == 12


def test_nothing_is_held_by_looking() -> None:
    import gc
    import weakref

    refs: list[weakref.ref[Tensor]] = []

    def step() -> None:
        tensor = torch.zeros(256)
        KEPT.append(tensor)
        refs.append(weakref.ref(tensor))

    find_leaks(step, steps=8)
    KEPT.clear()
    gc.collect()
    assert [ref for ref in refs if ref() is not None] == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_the_step_raises_comes_through(kind: type[BaseException]) -> None:
    raised = kind("mine")
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        if len(calls) > 5:
            raise raised

    with pytest.raises(kind) as caught:
        find_leaks(step)
    assert caught.value is raised


@pytest.fixture
def thawed() -> Iterator[int]:
    """As in a process that has frozen nothing; the other tests freeze, to be faster.

    Python 3.12 counts a few hundred objects of its own as frozen.
    """
    gc.unfreeze()
    yield gc.get_freeze_count()
    gc.freeze()


class _Cycle:
    """Holds itself: only the collector ends it."""

    def __init__(self) -> None:
        self.me, self.tensor = self, torch.zeros(1000)


@pytest.mark.slow
def test_what_only_the_collector_ends_is_no_leak(thawed: int) -> None:
    frozen = []

    def step() -> None:
        _Cycle()
        frozen.append(gc.get_freeze_count())

    assert find_leaks(step, steps=16).leaks == ()
    assert frozen[-1] > thawed + 10_000  # what lived before is not looked at again and again
    assert gc.get_freeze_count() <= thawed


def test_what_the_user_has_frozen_stays_frozen() -> None:
    assert gc.get_freeze_count() > 0
    assert find_leaks(lambda: None, steps=8).leaks == ()
    assert gc.get_freeze_count() > 0


def test_what_python_froze_itself_does_not_count_as_yours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests have frozen stays so meanwhile: to look through all of it takes 15 s."""
    calls: list[str] = []
    count = iter([375])  # of Python 3.12.1 at its start
    monkeypatch.setattr(gc, "get_freeze_count", lambda: next(count))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    find_leaks(lambda: None, steps=8)
    assert calls == ["freeze", "unfreeze"]


@pytest.mark.slow
def test_nothing_stays_frozen_when_the_step_raises(thawed: int) -> None:
    n_steps = itertools.count()

    def step() -> None:
        if next(n_steps) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_leaks(step, steps=16)
    assert gc.get_freeze_count() <= thawed


def test_bad_arguments_are_said() -> None:
    with pytest.raises(UsageError, match="a whole number from 8"):
        find_leaks(lambda: None, steps=2)
    with pytest.raises(UsageError, match="function without arguments"):
        find_leaks(torch.zeros(3))  # type: ignore[arg-type]


def test_it_is_told_in_words_and_html(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> None:
        KEPT.append(torch.zeros(256))

    sizes = itertools.count(step=3000)
    monkeypatch.setattr(process_memory, "resident_bytes", lambda: next(sizes))
    report = find_leaks(step, steps=N)
    assert (report.graph_holder, report.resident_bytes_per_step) == ("", 1500.0)
    for heap, grown in ((None, 1500.0), (0.0, 1500.0), (7.0, 7.0)):
        one = dataclasses.replace(report, heap_bytes_per_step=heap)
        assert one.process_bytes_per_step == grown
    words, page = report.to_text(), report._repr_html_()
    for said in ("KEPT", "1.00 KiB", "test_leaks.py"):
        assert said in words
        assert said in page
    assert json.loads(json.dumps(report.to_dict()))["leaks"][0]["bytes_per_step"] == 1024
    for n, share in (
        (1, "most of it"),
        (2, "the largest part of it"),
        (3, "the largest part of it"),
    ):
        alike = dataclasses.replace(report, leaks=report.leaks * n)
        assert f"{n}.00 KiB a step, {share} held by KEPT" in " ".join(alike.to_text().split())


def test_numbers_kept_on_a_trainer_are_named() -> None:
    """As Lightning's: Python numbers are no tensors, so no tensor memory grows."""

    class Trainer:
        def __init__(self) -> None:
            self.history: dict[str, list[float]] = {"loss": []}
            self.last: list[float] = [0.0]

    trainer = Trainer()
    model = nn.Linear(4, 1)

    def step() -> None:
        loss = model(torch.ones(2, 4)).sum()
        trainer.history["loss"].append(loss.item())
        trainer.last[0] = loss.item()

    report = find_leaks(step)
    ((name, entries),) = report.containers
    assert name.startswith("trainer")
    assert name.endswith(".history['loss']")
    assert entries == 1.0
    grown = dataclasses.replace(report, heap_bytes_per_step=5000.0)
    assert "history['loss'] gains 1 entry a step" in " ".join(grown.to_text().split())
