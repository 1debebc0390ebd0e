"""Memory that grows along a run: by how much, in which process, and what keeps it."""

from __future__ import annotations

import collections
import itertools
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit.advice.findings import Finding
from perfkit.advice.line_kinds import GROWS
from perfkit.advice.state.memory import memory_grows, workers_grow
from perfkit.base.process_memory import give_back
from perfkit.measure.memory_looks import MemoryLook
from perfkit.script.options import Options
from perfkit.script.run_watch import RunWatch
from perfkit.script.whole_run import WholeRun

_STEPS = 70
_RULES = {
    "graphs-kept",
    "views-kept",
    "tensors-kept",
    "objects-kept",
    "figures-kept",
    "workers-grow",
    "memory-grows",
}

# In a process of many tests, looks at all objects take too long, and other files have such lines.
pytestmark = pytest.mark.serial


def _run(loop: Callable[[], object]) -> WholeRun:
    give_back()  # what other tests have freed hides what grows
    watch = RunWatch("train.py", Options(steps=2, warmup=1))
    watch.start()
    try:
        loop()
    finally:
        watch.stop()
    return watch.result("finished")


def _found(run: WholeRun) -> dict[str, Finding]:
    assert run.profile is not None
    return {f.rule: f for f in run.profile.diagnosis.findings if f.rule in _RULES}


def _mib(n: float = 2.0) -> torch.Tensor:
    return torch.ones(round(n * 2**18))


def _train(
    after: Callable[[torch.Tensor], object] = bool, model: nn.Module | None = None
) -> nn.Module:
    model = model or nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(_STEPS):
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(loss)
    return model


def _graphs(keep: bool) -> None:
    losses: list[torch.Tensor] = []

    def note(loss: torch.Tensor) -> None:
        kept = (_mib().requires_grad_() * 2).exp().sum()
        losses.append(kept if keep else kept.detach())

    _train(note)


def _sum_of_losses(keep: bool) -> None:
    model = nn.Linear(2**10, 2)
    labels = torch.zeros(2**9, dtype=torch.long)
    total: Any = 0.0

    def note(loss: torch.Tensor) -> None:
        nonlocal total
        batch = torch.ones(2**9, 2**10)
        if keep:
            total = total + nn.functional.cross_entropy(model(batch), labels)
        else:
            total += nn.functional.cross_entropy(model(batch), labels).item()

    _train(note)


class _OwnNorm(nn.Module):
    running: torch.Tensor

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.keep, self.out = keep, nn.Linear(8, 2)
        self.register_buffer("running", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = (_mib().requires_grad_() * 2).exp().mean()
        self.running = 0.9 * self.running + (variance if self.keep else variance.detach())
        return self.out(x)  # type: ignore[no-any-return]


def _in_a_buffer(keep: bool) -> None:
    _train(model=_OwnNorm(keep))


class _Carries(nn.Module):
    """A state that each step hands on to the next, as of a recurrent layer."""

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.keep, self.out = keep, nn.Linear(8, 2)
        self.state = (torch.zeros(()),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (state,) = self.state
        more = (_mib().requires_grad_() * 2).exp().mean()
        self.state = ((state if self.keep else state.detach()) * 0.9 + more,)
        return self.out(x)  # type: ignore[no-any-return]


def _in_a_state(keep: bool) -> None:
    _train(model=_Carries(keep))


def _tensors(keep: bool) -> None:
    outputs: list[dict[str, torch.Tensor]] = []
    _train(lambda loss: outputs.append({"logits": _mib() if keep else _mib().sum()}))


def _objects(keep: bool) -> None:
    history: list[Any] = []
    _train(lambda loss: history.append(bytearray(b"x") * (2**21 if keep else 8)))


def _chain(keep: bool) -> None:
    """What no list or dict holds."""
    last: Any = None

    def note(loss: torch.Tensor) -> None:
        nonlocal last
        last = (last if keep else None, bytearray(b"x") * 2**21)

    _train(note)


def _lists_of_lists(keep: bool) -> None:
    """None of the lists explains most of it."""
    of_class: dict[int, list[Any]] = collections.defaultdict(list)

    def note(loss: torch.Tensor) -> None:
        for label in range(8):
            of_class[label].append(np.ones(2**15 if keep else 1))

    _train(note)


def _evaluation(keep: bool) -> None:
    model = _train().eval()
    outputs = []
    with torch.no_grad():
        batch = torch.ones(2**20, 8)
        for _ in range(40):
            logits = model(batch)
            outputs.append(logits if keep else logits.sum())


def _cycle(keep: bool) -> None:
    loader = DataLoader([_mib(0.5) for _ in range(4)] * 100, batch_size=4)
    batches = itertools.cycle(loader) if keep else iter(loader)
    _train(lambda loss: next(batches))


def _figures(keep: bool) -> None:
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["figure.max_open_warning"] = 0
    from matplotlib import pyplot as plt

    def draw(loss: torch.Tensor) -> None:
        fig = plt.figure()
        fig.kept = bytearray(b"x") * 2**21  # type: ignore[attr-defined]
        if not keep:
            plt.close(fig)

    plt.close("all")
    _train(draw)


def _views(keep: bool) -> None:
    hardest = []

    def note(loss: torch.Tensor) -> None:
        batch = _mib().view(64, -1)
        hardest.append((loss.item(), batch[3] if keep else batch[3].clone()))

    _train(note)


def _growing_tensor(keep: bool) -> None:
    model = _train().eval()
    logits = torch.ones(0, 2)
    with torch.no_grad():
        batch = torch.ones(2**20, 8)
        for _ in range(40):
            part = model(batch)
            if keep:
                logits = torch.cat([logits, part])


def _growing_array(keep: bool) -> None:
    rows = np.ones((0, 2**18))

    def note(loss: torch.Tensor) -> None:
        nonlocal rows
        if keep:
            rows = np.concatenate([rows, np.ones((1, 2**18))])

    _train(note)


class _Cached(Dataset[Any]):
    def __init__(self, keep: bool) -> None:
        self.keep, self.cache = keep, {}  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return 8 * _STEPS

    def __getitem__(self, i: int) -> torch.Tensor:
        row = _mib(0.125)
        if self.keep:
            self.cache[i] = row
        return row[:8].clone()


def _workers(keep: bool) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(_Cached(keep), batch_size=8, num_workers=1)
    for batch in loader:
        model(batch).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "rule", "line"),
    [
        (_graphs, "graphs-kept", "losses.append("),
        (_sum_of_losses, "graphs-kept", "total = total + nn.functional.cross_entropy("),
        (_in_a_buffer, "graphs-kept", "self.running = 0.9"),
        (_tensors, "tensors-kept", "outputs.append("),
        (_objects, "objects-kept", "history.append("),
        (_chain, "memory-grows", "last = (last if keep"),
        (_lists_of_lists, "memory-grows", "of_class[label].append("),
        (_evaluation, "tensors-kept", "outputs.append("),
        (_growing_tensor, "tensors-kept", "logits = torch.cat("),
        (_growing_array, "memory-grows", "rows = np.concatenate("),
        (_workers, "workers-grow", "self.cache[i] = row"),
        (_views, "views-kept", "hardest.append("),
        (_cycle, "tensors-kept", "batches = itertools.cyc"),
        (_figures, "figures-kept", "fig = plt.fig"),
    ],
)
def test_what_keeps_memory_is_named_and_not_of_its_healthy_twin(
    loop: Callable[[bool], None], rule: str, line: str
) -> None:
    found = _found(_run(lambda: loop(True)))
    assert set(found) == {rule}
    assert "MiB" in found[rule].title
    assert found[rule].what_to_do
    assert "concatenate" not in line or found[rule].what_to_do == GROWS.what_to_do
    if line:
        assert f": {line}" in (found[rule].line or "")
    assert not _found(_run(lambda: loop(False)))


def test_a_state_that_is_handed_on_is_cut_from_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What helps a sum of losses was told, which such a program, unlike this file, has not."""
    monkeypatch.setattr("perfkit.advice.state.memory.only_line_with", lambda pattern: None)
    found = _found(_run(lambda: _in_a_state(True)))["graphs-kept"]
    assert found.line is None
    assert "state = state.detach()" in found.what_to_do
    assert "graphs-kept" not in _found(_run(lambda: _in_a_state(False)))


def test_steps_are_traced_a_few_times_at_most_and_count_as_usual_ones() -> None:
    last: Any = None
    traced = []

    def note(loss: torch.Tensor) -> None:
        nonlocal last
        last = last, bytearray(b"x") * 2**21
        if tracemalloc.is_tracing():
            traced.append(1)
            time.sleep(0.3)

    run = _run(lambda: _train(note))
    assert 2 <= len(traced) <= 5
    assert not tracemalloc.is_tracing()
    assert run.steps is not None
    assert run.profile is not None
    assert run.profile.elsewhere is not None
    told = {n for one in run.profile.elsewhere.stretches for n in one.numbers}
    # another program may make one of them long
    assert len(told & set(range(_STEPS - 6, _STEPS))) <= 1
    assert (run.steps.curve.step_ms >= 300).sum() <= 1


def test_what_the_program_traces_itself_stays_its_own() -> None:
    tracemalloc.start()
    try:
        found = _found(_run(lambda: _chain(True)))
        assert tracemalloc.get_traceback_limit() == 1
        assert tracemalloc.is_tracing()
        assert found["memory-grows"].line is None
    finally:
        tracemalloc.stop()


def test_growth_is_told_of_the_process_with_its_workers() -> None:
    run = _run(lambda: _workers(True))
    assert run.grown is not None
    assert run.n_workers == 1
    assert 2**19 < run.grown.per_step < 2**22
    words = " ".join(run.to_text().split())
    assert "memory of this process and its 1 worker grew from" in words
    healthy = _run(lambda: _workers(False))
    assert healthy.grown is None
    assert "grew from" not in healthy.to_text()


class _Remembers:
    def __init__(self) -> None:
        self.seen = {}  # type: ignore[var-annotated]

    def __call__(self, i: int) -> torch.Tensor:
        self.seen[i] = _mib()
        return self.seen[i]


class _HeldCache(_Cached):
    """What it holds has the cache."""

    def __init__(self, keep: bool) -> None:
        self.keep, self.steps = keep, [_Remembers()]
        self.random = np.random.default_rng(0)  # of Cython: without source

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.steps[0](i)[:8].clone()


_DECODED: dict[int, torch.Tensor] = {}


def _decoded(i: int) -> torch.Tensor:
    if i not in _DECODED:
        _DECODED[i] = _mib()
    return _DECODED[i]


class _GlobalCache(_Cached):
    def __getitem__(self, i: int) -> torch.Tensor:
        return _decoded(i)[:8].clone()


class _Bounded(_Cached):
    def __getitem__(self, i: int) -> torch.Tensor:
        if len(self.cache) < 16:
            self.cache[i] = _mib()
        return self.cache.get(i, _mib())


class _Preallocated(_Cached):
    def __getitem__(self, i: int) -> torch.Tensor:
        self.cache = torch.zeros(8)
        self.cache[i % 8] = i
        return self.cache


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (_Cached, "self.cache[i] = row"),
        (_HeldCache, "self.seen[i] = _mib()"),
        (_GlobalCache, "_DECODED[i] = _mib()"),
        (_Bounded, ""),
        (_Preallocated, ""),
    ],
)
def test_a_worker_whose_heap_finds_its_size_keeps_nothing(kind: type[_Cached], line: str) -> None:
    looks = [MemoryLook(2**k, 2**28, worker_bytes=(2**28 + 2 ** (20 + k),)) for k in range(8)]
    dataset = kind(True)
    dataset[0]
    loader = DataLoader(dataset, num_workers=1)
    use = SimpleNamespace(n_workers=1, ref=lambda: loader)
    live: Any = SimpleNamespace(memory=looks, kept={}, loaders={0: use})
    found = list(workers_grow(live))
    assert len(found) == bool(line)
    for one in found:
        assert line in (one.line or "")


def test_a_profiler_of_the_program_explains_what_grows() -> None:
    def profiled() -> None:
        kept = []
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            _train(lambda loss: kept.append(_mib()))

    run = _run(profiled)
    assert "own-profiler" in {f.rule for f in run.findings}
    assert not {f.rule for f in run.findings} & _RULES


def _buffer_that_is_full() -> None:
    kept: list[torch.Tensor] = []
    # grows at all looks but the last one
    _train(lambda loss: kept.append(_mib()) if len(kept) < 32 else None)


def _history_with_a_bound() -> None:
    past = collections.deque(maxlen=1000)  # type: ignore[var-annotated]
    _train(lambda loss: past.append(_mib()))


def _ring() -> None:
    """Made for all of its entries at the start, as replay memories are."""
    past, steps = [None] * 1_000_000, itertools.count()

    def note(loss: torch.Tensor) -> None:
        at = next(steps) * 20_000 % len(past)
        past[at : at + 20_000] = [(k, 0.5 * k) for k in range(20_000)]  # type: ignore[list-item]

    _train(note)


def _ring_of_pages() -> None:
    past, steps = np.zeros((_STEPS, 2**20), np.float32), itertools.count()
    _train(lambda loss: past[next(steps)].fill(1.0))


def _history_that_is_cut() -> None:
    past: list[torch.Tensor] = []

    def note(loss: torch.Tensor) -> None:
        past.append(_mib())
        if len(past) > 1000:
            del past[0]

    _train(note)


def _episodes() -> None:
    """What is kept without gradients is what training goes on with."""
    model, episode = nn.Linear(8, 2).eval(), []
    with torch.no_grad():
        batch = torch.ones(2**20, 8)
        for _ in range(40):
            episode.append(model(batch))
    _train()
    del episode


def _in_each_step() -> None:
    """What runs without gradients in step after step is a teacher, not an evaluation."""
    teacher, steps = nn.Linear(8, 2).eval(), []
    batch = torch.ones(2**18, 8)

    def note(loss: torch.Tensor) -> None:
        steps.append(1)
        outputs = []
        with torch.no_grad():
            for _ in range(32 if len(steps) < 8 else 0):
                outputs.append(teacher(batch))

    _train(note)


def _text() -> None:
    """Beside a cache a word comes at a time."""
    model, cache = nn.Embedding(8, 2).eval(), []
    with torch.no_grad():
        for _ in range(40):
            model(torch.ones(4, 1, dtype=torch.long))
            cache.append(_mib(8))


@pytest.mark.parametrize(
    "loop",
    [
        _ring,
        _ring_of_pages,
        _history_that_is_cut,
        _buffer_that_is_full,
        _history_with_a_bound,
        _episodes,
        _in_each_step,
        _text,
    ],
)
def test_what_is_to_be_kept_is_no_finding(loop: Callable[[], None]) -> None:
    run = _run(loop)
    assert not {f.rule for f in run.findings} & _RULES


@pytest.mark.parametrize("mib_a_step", [0.5, 8.0])
def test_freed_memory_that_stays_with_malloc_is_told_where_it_is_much(mib_a_step: float) -> None:
    looks = [MemoryLook(2**k, 2**28, 2**27, round(mib_a_step * 2**k * 2**20)) for k in range(7)]
    live: Any = SimpleNamespace(memory=looks, n_profiled=0, kept={})
    found = list(memory_grows(live))
    assert len(found) == (mib_a_step > 1)
    for one in found:
        assert "freed and stays with malloc grows by 8.00 MiB" in one.title


def test_find_leaks_says_what_it_did_not_look_at() -> None:
    said = perfkit.find_leaks(lambda: None, steps=8).to_text()
    assert "Not looked at: worker processes" in said
