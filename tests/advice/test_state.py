"""What the run's own objects show: each kind with its place, and not of a healthy twin."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import random
import re
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import perfkit
from perfkit.advice.findings import Finding
from perfkit.base.stand_in import Calls, stand_in
from perfkit.course.kit.collectives import group_of_one
from perfkit.show import brief


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def _train(batches: Iterator[Any], model: nn.Module, after: Callable[[], object] = list) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches:
        x = batch[0] if isinstance(batch, tuple | list) else batch
        nn.functional.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


def _random(n: int = 40) -> Iterator[torch.Tensor]:
    return (torch.randn(4, 8) for _ in range(n))


def _found(loop: Callable[[], object]) -> dict[str, Finding]:
    with perfkit.profile(lines=False) as p:
        loop()
    found = p.result.diagnosis.findings
    of_state = [f for f in found if f.is_state]
    assert list(found[: len(of_state)]) == of_state  # a fact comes first
    return {f.rule: f for f in of_state}


class _Records(Dataset[Any]):
    def __init__(self, n: int, *, as_tensor: bool) -> None:
        rows = [{"name": f"row {i}", "x": [float(i)] * 8} for i in range(n)]
        self.rows: Any = torch.tensor([r["x"] for r in rows]) if as_tensor else rows

    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: int) -> torch.Tensor:
        row = self.rows[i]
        return row.clone() if isinstance(row, torch.Tensor) else torch.tensor(row["x"])


class _Stream(IterableDataset[Any]):
    def __init__(self, *, shards: bool) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self._sharded() if self.shards else self._all(range(400))

    def _all(self, numbers: range) -> Iterator[torch.Tensor]:
        return (torch.full((8,), float(i)) for i in numbers)

    def _sharded(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        return self._all(range(info.id, 400, info.num_workers))


class _Unsharded(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.full((8,), float(i)) for i in range(400))


class _Table(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = torch.randn(2048, 8), torch.zeros(2048)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


class _ByBatch(_Table):
    def __getitems__(self, rows: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self.x[i], self.y[i]) for i in rows]


class _OpenFile(Dataset[Any]):
    def __init__(self, *, opens: bool) -> None:
        self.file = Path(__file__).open("rb") if opens else None  # noqa: SIM115

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((8,), float(i))


def _from(dataset: Any, *, epochs: int = 1, **options: Any) -> Iterator[Any]:
    loader = DataLoader(dataset, **{"batch_size": 8, **options})
    for _ in range(epochs):
        yield from loader


def _padded(length: int) -> Iterator[torch.Tensor]:
    rows = [torch.randint(1, 50, (40 + i % 4,)) for i in range(160)]

    def collate(some: list[torch.Tensor]) -> torch.Tensor:
        longest = length or max(map(len, some))
        out = torch.zeros(len(some), longest, dtype=torch.long)
        for i, row in enumerate(some):
            out[i, : len(row)] = row
        return out

    return (ids.float()[:, :8] for ids in DataLoader(rows, batch_size=8, collate_fn=collate))


def _with_anomaly(on: bool) -> None:
    with torch.autograd.set_detect_anomaly(on):
        _train(_random(), _model())


def _with_hooks(removes: bool) -> None:
    model = _model()
    handles: list[Any] = []

    def hook_again() -> None:
        if removes and handles:
            handles.pop().remove()
        handles.append(model[0].register_forward_hook(lambda *_: None))

    _train(_random(), model, hook_again)


def _with_evaluation(guarded: bool) -> None:
    model = _model()

    def evaluate() -> None:
        model.eval()
        with torch.set_grad_enabled(not guarded):
            model(torch.randn(4, 8))
        model.train()

    _train(_random(), model, evaluate)


def _with_groups(split: bool) -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)], nn.Linear(8, 2))
    parameters = list(model.parameters())
    groups = [{"params": [p]} for p in parameters] if split else parameters
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    for x in _random(20):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _with_ema(by_name: bool) -> None:
    model = _model()
    teacher = copy.deepcopy(model)
    kept = {name: value.clone() for name, value in model.state_dict().items()}

    def update() -> None:
        if by_name:
            for name, value in model.state_dict().items():
                kept[name] = 0.9 * kept[name] + 0.1 * value
        else:
            torch._foreach_lerp_(list(teacher.parameters()), list(model.parameters()), 0.1)

    def without_grad() -> None:
        with torch.no_grad():
            update()

    _train(_random(), model, without_grad)


@pytest.mark.parametrize("large", [False, True])
def test_weights_taken_by_name_shorten_a_step_by_what_they_take(large: bool) -> None:
    """As DQN's tutorial updates its target; what else the step does is none of it."""
    model, target = (nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)]) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    numbers = np.random.default_rng(0).random(10 if large else 3_000_000)
    with perfkit.profile() as p:
        for _ in range(12):
            np.sort(numbers)
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            old, new = target.state_dict(), model.state_dict()
            for name in old:
                old[name] = 0.9 * old[name] + 0.1 * new[name]
            target.load_state_dict(old)
    first, *_ = p.result.diagnosis.findings
    assert (first.rule == "weights-copied") is large
    assert large or "np.sort(numbers)" in (first.line or "")


def test_two_models_called_as_often_from_places_not_known_raise_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As below a trainer whose stack is deep; a place and none were compared."""
    models = [nn.Linear(4, 4) for _ in range(2)]

    def place(*_: Any) -> Any:
        called = sys._getframe(1).f_locals.get("module")
        return ("train.py", 3) if called is models[1] else None

    monkeypatch.setattr("perfkit.measure.live.user_place", place)
    optimizer = torch.optim.SGD([p for one in models for p in one.parameters()], lr=0.01)
    with perfkit.profile() as p:
        for _ in range(8):
            sum(one(torch.randn(1, 4)).sum() for _ in range(9) for one in models).backward()
            optimizer.step()
    assert any(f.rule == "single-rows" for f in p.result.diagnosis.findings)


def _saving(how: str) -> None:
    """A checkpoint in each step or every tenth one, or results in each step."""
    model = nn.Sequential(nn.Linear(8, 2), nn.Linear(1000, 4000)) if how != "results" else _model()
    n, results = 0, torch.randn(4_000_000)

    def save() -> None:
        nonlocal n
        n += 1
        if how == "results":
            torch.save(results, io.BytesIO())
        elif how == "each" or n % 10 == 0:
            torch.save({"model": model.state_dict(), "step": n}, io.BytesIO())

    _train(_random(), model[:1] if how != "results" else model, save)


def _with_table(used: int) -> None:
    table, head = nn.Embedding(20_000, 64), nn.Linear(64, 2)
    model = nn.Sequential(table, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(6):
        model(torch.randint(0, 20_000, (used,))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class _Shop(nn.Module):
    """Two tables, of which a step sees few rows of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = nn.Embedding(8, 64)
        self.product = nn.Embedding(20_000, 64, padding_idx=0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.shelf(ids % 8) + self.product(ids)


def _sell() -> None:
    model = _Shop()
    weights = [p for p in model.parameters() if p.ndim > 1]
    optimizer = torch.optim.RAdam(
        weights,
        lr=1e-3,  # as in the paper
        foreach=False,
    )
    for _ in range(8):
        model(torch.randint(0, 20_000, (64,))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _collect_in_one_step() -> Callable[[], object]:
    n = iter(range(1_000))
    return lambda: [gc.collect() for _ in range(30 if next(n) == 20 else 0)]


class _Augment:
    def __init__(self, generator: Any) -> None:
        self.generator = generator


class _Augmented(Dataset[Any]):
    def __init__(self, generator: Any) -> None:
        self.steps = [_Augment(None), _Augment(generator)]

    def __len__(self) -> int:
        return 160

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(0.003)
        return torch.randn(8)


@pytest.mark.parametrize(
    ("generator", "made"),
    [
        (np.random.default_rng(0), "np.random.default_rng(info.seed)"),
        (np.random.RandomState(0), "np.random.RandomState(info.seed % 2**32)"),
        (random.Random(0), "random.Random(info.seed)"),
        (torch.Generator(), "torch.Generator().manual_seed(info.seed)"),
        (None, ""),
    ],
)
def test_advice_to_take_workers_says_that_they_copy_the_data_sets_generator(
    generator: Any, made: str
) -> None:
    loader = DataLoader(_Augmented(generator), batch_size=8)
    with perfkit.profile(lines=False) as p:
        _train(iter(loader), _model())
    found = {f.rule: f.what_to_do for f in p.result.diagnosis.findings}
    remark = f"info.dataset.steps[1].generator = {made}" if made else ""
    assert remark in found.pop("dataloader-no-workers")
    assert ("worker_init_fn" in str(p.result)) is bool(made)
    assert "info.dataset" not in str(found)


# What no checksum is made of.
_UNKNOWN: dict[str, Any] = {
    "sparse": torch.eye(3).to_sparse(),
    "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    "objects": np.array([object()]),
    "meta": torch.ones(3, device="meta"),
    "unknown": object(),
}


class _Made(Dataset[Any]):
    """Items that take long to make: from the same text, kept, or with random numbers."""

    def __init__(self, how: str = "") -> None:
        self.how, self.kept = how, dict[int, Any]()
        self.table = torch.arange(48.0).repeat_interleave(8).view(48, 8)
        self.generator = np.random.default_rng(0) if how == "own generator" else None

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> Any:
        if self.how == "kept" and i in self.kept:
            return self.kept[i]
        if self.how == "quick":
            end = time.perf_counter() + 6e-5
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(0.001)
        x = torch.full((8,), float(i))
        if self.how == "augmented":
            x *= random.random()
        if self.how == "views":
            x = x.repeat(10_000, 1)[0]
        if self.how == "views of one":
            x = self.table[i]
        if self.how == "drawn":  # equal all the same
            x += 0 * np.random.random()
        if self.generator is not None and self.generator.random() < 0.001:
            x += 1
        self.kept[i] = {"x": x, "name": f"row {i}"}
        if self.how in _UNKNOWN:
            self.kept[i]["name"] = _UNKNOWN[self.how]
        return self.kept[i]


def _made(how: str = "", *, epochs: int = 4) -> None:
    """An epoch has 6 batches; what is only evaluated is made by another loader than the steps'."""
    model = _model()
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True}
    options["collate_fn"] = lambda items: {"x": torch.stack([one["x"] for one in items])}
    train = DataLoader(_Made("augmented" if how == "evaluated" else how), **options)
    checks = DataLoader(_Made(), **options) if how == "evaluated" else ()
    for _ in range(epochs):
        _train((batch["x"] for batch in train), model)
        with torch.no_grad():
            for batch in checks:
                model.eval()(batch["x"])
        model.train()


class _Boxes(Dataset[Any]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: torch.full((8,), float(i)) for name in "abcdefghijklmnop"}


def _with_boxes(joined: bool) -> None:
    def collate(rows: list[dict[str, torch.Tensor]]) -> Any:
        return {n: torch.stack([r[n] for r in rows]) for n in rows[0]} if joined else rows

    loader = DataLoader(_Boxes(), batch_size=8, num_workers=1, collate_fn=collate)
    first = (batch["a"] if joined else torch.stack([r["a"] for r in batch]) for batch in loader)
    _train(first, _model())


def _with_autocast(on: bool) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in _random(8):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _with_sizes(sizes: range) -> None:
    torch.backends.cudnn.benchmark = True
    try:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        _train(
            (torch.randn(2, 1, 16, 8 + n) for n in sizes for _ in range(40 // len(sizes))), model
        )
    finally:
        torch.backends.cudnn.benchmark = False


def _accumulating(*, forward_too: bool) -> None:
    with group_of_one():
        model = nn.parallel.DistributedDataParallel(_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for n, x in enumerate(_random()):
            with model.no_sync() if n % 2 and forward_too else contextlib.nullcontext():
                loss = model(x).sum()
            with model.no_sync() if n % 2 else contextlib.nullcontext():
                loss.backward()
            if not n % 2:
                optimizer.step()
                optimizer.zero_grad()


def _deterministic(fills: bool) -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fills
    try:
        _train(_random(), _model())
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


def _generated(how: str) -> None:
    """All words so far in each call, only the new one, or texts sorted by their lengths."""
    model = nn.Embedding(50, 4).eval()
    words = torch.randint(50, (2, 4))
    with torch.no_grad():
        for n in range(40):
            picked = model(words[:, -1:] if how == "cached" else words).mean(-1)[:, -1:]
            if how == "sorted":
                words = torch.randint(50, (2, 5 + n))
            else:
                words = torch.cat([words, (picked > 0).long() + n], 1)


_CLASSES = 4_000


class _Words(nn.Module):
    """Guesses words: of all positions, of the chosen ones alone, or for a second loss, too."""

    def __init__(self, scores_of: str) -> None:
        super().__init__()
        self.scores_of = scores_of
        self.embed, self.out = nn.Embedding(_CLASSES, 16), nn.Linear(16, _CLASSES)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        if self.scores_of == "chosen":
            hidden, labels = hidden[labels != -100], labels[labels != -100]
        scores = self.out(hidden)
        loss = nn.functional.cross_entropy(scores.view(-1, _CLASSES), labels.flatten())
        return loss + scores.square().mean() if self.scores_of == "a second loss" else loss


def _descend(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()


def _guess(scores_of: str, ignored: float = 0.8) -> None:
    model = _Words(scores_of)

    def loss() -> Any:
        words = torch.randint(_CLASSES, (8, 16))
        return model(words, words.masked_fill(torch.rand(words.shape) < ignored, -100))

    _descend(model, loss)


class _Picks(nn.Module):
    """Rows of a table, by one-hot rows in several ways, some of which need them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.item, self.head = nn.Linear(_CLASSES, 16), nn.Linear(16, _CLASSES)
        self.table = nn.Parameter(torch.randn(_CLASSES, 16))
        self.embed, self.rnn = nn.Embedding(_CLASSES, 16), nn.GRU(_CLASSES, 16)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        rows = nn.functional.one_hot(index, _CLASSES).float()
        if self.how == "layer":
            return self.item(rows)
        if self.how == "scatter":
            return torch.zeros(len(index), _CLASSES).scatter_(1, index[:, None], 1) @ self.table
        if self.how == "loss":
            return self.head(self.embed(index)).softmax(-1) - rows
        if self.how == "sums":
            return rows.t() @ self.embed(index)
        if self.how == "learned":  # straight through: the product makes the rows' gradient
            soft = self.head(self.embed(index)).softmax(-1)
            return self.item(rows + soft - soft.detach())
        if self.how == "several":
            return self.item(rows + rows.roll(1, dims=-1))
        if self.how == "rnn":
            return self.rnn(rows)[0]
        return self.embed(index)


def _pick(how: str) -> None:
    model = _Picks(how)
    _descend(model, lambda: model(torch.randint(_CLASSES, (256,))).square().mean())


def _shuffled() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(400_000, 8)), 8, shuffle=True)


_CASES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "anomaly-mode": (lambda: _with_anomaly(True), lambda: _with_anomaly(False)),
    "hooks-multiply": (lambda: _with_hooks(False), lambda: _with_hooks(True)),
    "evaluation-with-grad": (lambda: _with_evaluation(False), lambda: _with_evaluation(True)),
    "optimizer-groups": (lambda: _with_groups(True), lambda: _with_groups(False)),
    "weights-copied": (lambda: _with_ema(True), lambda: _with_ema(False)),
    "saves-often": (
        lambda: _saving("each"),
        lambda: (_saving("now and then"), _saving("results"), _with_ema(True)),
    ),
    "dense-embedding": (lambda: _with_table(64), lambda: _with_table(40_000)),
    "ignored-targets": (lambda: _guess("all"), lambda: _guess("chosen")),
    "gc-collect": (
        lambda: _train(_random(), _model(), gc.collect),
        lambda: _train(_random(), _model(), _collect_in_one_step()),  # as often, but not always
    ),
    "padding": (
        lambda: _train(_padded(200), _model()),
        lambda: _train((x for x in _padded(0)), _model()),
    ),
    "row-by-row": (
        lambda: _train(_from(_Table(), batch_size=64), _model()),
        lambda: _train(_from(_ByBatch(), batch_size=64), _model()),
    ),
    "items-made-anew": (
        _made,
        lambda: _made(epochs=1),
    ),
    "iterable-not-sharded": (
        lambda: _train(_from(_Unsharded(), num_workers=2), _model()),
        lambda: _train(_from(_Stream(shards=True), num_workers=2), _model()),
    ),
    "python-objects-in-workers": (
        lambda: _train(_from(_Records(30_000, as_tensor=False), num_workers=1), _model()),
        lambda: _train(_from(_Records(30_000, as_tensor=True), num_workers=1), _model()),
    ),
    "open-file-in-workers": (
        lambda: _train(_from(_OpenFile(opens=True), num_workers=1), _model()),
        lambda: _train(_from(_OpenFile(opens=False), num_workers=1), _model()),
    ),
    "cudnn-benchmark-shapes": (
        lambda: _with_sizes(range(40)),
        lambda: _with_sizes(range(2)),
    ),
    "no-sync-too-late": (
        lambda: _accumulating(forward_too=False),
        lambda: _accumulating(forward_too=True),
    ),
    "empty-cache": (
        lambda: _train(_random(), _model(), torch.cuda.empty_cache),
        lambda: _train(_random(), _model()),
    ),
    "deterministic-fill": (lambda: _deterministic(True), lambda: _deterministic(False)),
    "no-kv-cache": (
        lambda: _generated("whole"),
        lambda: (_generated("cached"), _generated("sorted")),
    ),
    "many-tensors": (lambda: _with_boxes(False), lambda: _with_boxes(True)),
    "emulated-format": (lambda: _with_autocast(True), lambda: _with_autocast(False)),
    "epoch-for-each-batch": (
        lambda: _train((next(iter(one)) for one in [_shuffled()] * 24), _model()),
        lambda: _train(  # an evaluation in each step goes through all of its batches
            itertools.islice(_shuffled(), 24), _model(), partial(list, DataLoader(range(24), 8))
        ),
    ),
    "workers-restarted": (
        lambda: _train(
            _from(_Records(256, as_tensor=True), epochs=4, batch_size=64, num_workers=1), _model()
        ),
        lambda: _train(
            _from(
                _Records(256, as_tensor=True),
                epochs=4,
                batch_size=64,
                num_workers=1,
                persistent_workers=True,
            ),
            _model(),
        ),
    ),
}


@pytest.mark.parametrize("rule", _CASES)
def test_a_fact_is_found_and_not_of_its_healthy_twin(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.advice.state.calls.cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr("torch.backends.cudnn.is_acceptable", lambda tensor: True)
    monkeypatch.setattr("perfkit.advice.state.data.memory_bytes", lambda: 2**26)  # a small machine
    slow, healthy = _CASES[rule]
    found = _found(slow)
    assert rule in found
    assert found[rule].title
    assert found[rule].what_to_do
    assert found[rule].line is None or "test_state.py" in found[rule].line
    assert rule not in _found(healthy)


def test_a_table_is_named_by_its_own_line_and_what_its_remedy_changes_at_first_sight() -> None:
    with perfkit.profile(lines=False) as prof:
        _sell()
    found = {f.rule: f for f in prof.result.diagnosis.findings}["dense-embedding"]
    own = "self.product = nn.Embedding(20000, 64, padding_idx=0, sparse=True)"
    assert (found.line or "").endswith("self.product = nn.Embedding(20_000, 64, padding_idx=0)")
    assert found.what_to_do.startswith(f"{own}\nrare = torch.optim.SparseAdam(model.product.")
    assert "weight decay" in found.changes
    assert re.search(
        r"of an embedding, and updates\s.*changes the training", brief(prof.result), re.S
    )


def test_a_table_is_no_matter_where_the_rest_of_the_model_takes_the_time() -> None:
    """Its bound was all of the backward pass and of the update."""

    def train() -> None:
        model = nn.ModuleList([nn.Embedding(20_000, 64), *(nn.Linear(64, 64) for _ in range(9))])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(6):
            y = model[0](torch.randint(0, 800, (40_000,)))
            for layer in model[1:]:
                y = layer(y)
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert "dense-embedding" not in _found(train)


class _Letters(Dataset[Any]):
    """Words of up to 30 letters, given in several ways, in rows of 64."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        n = 10 + i % 21
        x, y = torch.zeros(64, dtype=torch.long), torch.full((64,), -1)
        at = slice(64 - n, 64) if self.how == "left" else slice(n)
        x[at], y[at] = torch.arange(1, n + 1), torch.arange(n)
        return (
            {"ids": x, "y": y, "n": n} if self.how == "dict" else x if self.how == "one" else (x, y)
        )


def _by_list(rows: list[Any]) -> Any:
    x, y = zip(*rows, strict=True)
    return torch.stack(x), torch.stack(y), ["a text"] * len(x)


@pytest.mark.parametrize("how", ["pair", "one", "dict", "left", "collated"])
def test_padding_is_told_where_it_is_made_with_code_that_cuts_it(how: str) -> None:
    data, collate = _Letters(how), _by_list if how == "collated" else None
    part: Any = {"one": (), "dict": ("ids",)}.get(how, (0,))

    def first(batch: Any) -> torch.Tensor:
        return batch[part[0]] if part else batch

    loader = DataLoader(data, batch_size=8, collate_fn=collate)
    found = _found(
        lambda: _train((first(x)[:, :8].float() for _ in range(5) for x in loader), _model())
    )["padding"]
    made = "def _by_list(rows" if how == "collated" else "def __getitem__(self, i: int) -> Any:"
    assert made in (found.line or "")
    names: dict[str, Any] = {"torch": torch, "_by_list": _by_list}
    exec(found.what_to_do.partition("\nloader =")[0], names)
    (whole,) = DataLoader(data, batch_size=64, collate_fn=collate)
    (batch,) = DataLoader(data, batch_size=64, collate_fn=names["cut"])
    kept = slice(34, 64) if how == "left" else slice(30)
    assert torch.equal(first(batch), first(whole)[:, kept])
    if how == "dict":
        assert torch.equal(batch["y"], whole["y"][:, kept])
        assert torch.equal(batch["n"], whole["n"])
    elif how != "one":
        assert torch.equal(batch[1], whole[1][:, kept])
        assert list(batch[2:]) == list(whole[2:])


def test_a_trainer_that_makes_the_loader_gets_the_function_that_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.trainer", types.ModuleType("trainer"))
    loader = DataLoader(_Letters("one"), batch_size=8)
    found = _found(lambda: _train((x[:, :8].float() for _ in range(5) for x in loader), _model()))[
        "padding"
    ]
    assert found.what_to_do.splitlines()[4] == "trainer = Trainer(..., data_collator=cut)"


class _Names(Dataset[Any]):
    def __init__(self, n: int) -> None:
        self.names = [f"name {i}" for i in range(n)]

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((8,), float(len(self.names[i])))


@pytest.mark.parametrize("n_workers", [1, 2])
def test_what_workers_copy_is_told_by_its_size(
    n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of short names, which a program may have by tens of thousands, is a few MiB."""
    monkeypatch.setattr("perfkit.advice.state.data.memory_bytes", lambda: 2**28)
    few, many = (
        _found(lambda n=n: _train(_from(_Names(n), num_workers=n_workers), _model()))
        for n in (50_000, 300_000)
    )
    assert "python-objects-in-workers" not in few
    assert ("python-objects-in-workers" in many) is (n_workers == 2)
    if n_workers == 2:
        found = many["python-objects-in-workers"]
        assert re.search(r"^2 workers copy .*: about 3\d(\.\d)? MiB$", found.title)
        assert "self.names = np.array(self.names)" in found.what_to_do


@pytest.mark.parametrize(
    ("how", "cure"),
    [("layer", "self.item = nn.Embedding(4000, 16)"), ("scatter", "y = weight[index]")],
)
def test_one_hot_rows_that_pick_rows(how: str, cure: str) -> None:
    found = _found(lambda: _pick(how))["one-hot-product"]
    assert cure in found.what_to_do
    assert found.gain_at_most > 1.15


@pytest.mark.parametrize("how", ["loss", "sums", "learned", "several", "rnn"])
def test_one_hot_rows_that_are_needed(how: str) -> None:
    assert "one-hot-product" not in _found(lambda: _pick(how))


def _neighbours(filled: float) -> None:
    """A layer on a graph, whose adjacency is a dense matrix."""
    adjacency = (torch.rand(1500, 1500) < filled).float()
    model, x = nn.Linear(32, 32), torch.randn(1500, 32)
    _descend(model, lambda: (adjacency @ model(x)).relu().square().mean())


def test_a_product_of_zeros_is_for_a_sparse_matrix() -> None:
    found = _found(lambda: _neighbours(0.003))["sparse-product"]
    assert "but for 0.3" in found.title
    assert "adjacency.to_sparse()" in found.what_to_do
    assert found.gain_at_most > 1.15
    assert "sparse-product" not in _found(lambda: _neighbours(0.1))


@pytest.mark.parametrize(("scores_of", "ignored"), [("all", 0.1), ("a second loss", 0.8)])
def test_scores_that_are_needed(scores_of: str, ignored: float) -> None:
    assert "ignored-targets" not in _found(lambda: _guess(scores_of, ignored))


def test_what_it_costs_is_the_products_own_part() -> None:
    """Of a step that does much else, little can be gained: then it is not told."""
    model, much = _Picks("layer"), nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)])
    x = torch.randn(512, 2048)

    def loss() -> Any:
        return model(torch.randint(_CLASSES, (4,))).square().mean() + much(x).mean()

    assert "one-hot-product" not in _found(lambda: _descend(model, loss))


@pytest.mark.parametrize(
    ("line", "makes"),
    [
        ('"""Pictures in half the memory, in bfloat16."""', False),
        ("model.to(device, torch.bfloat16)", True),
        ("model = model.half()", True),
        ('dtype = getattr(torch, "float16")', True),
    ],
)
def test_the_line_that_makes_a_model_half(
    line: str, makes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A description of the program was named for it."""

    def first(pattern: str) -> str | None:
        return line if re.search(pattern, line) else None

    monkeypatch.setattr("perfkit.advice.state.calls.first_line_with", first)
    monkeypatch.setattr("perfkit.advice.state.calls.cpu_flags", lambda: frozenset({"avx2"}))
    model = nn.Linear(8, 8).bfloat16()
    x = torch.randn(8, 8, dtype=torch.bfloat16)
    found = _found(lambda: _descend(model, lambda: model(x).sum()))
    assert found["emulated-format"].line == (line if makes else None)


@pytest.mark.parametrize("flags", [{"avx512f"}, {"avx512f", "avx512_bf16"}, set()])
def test_a_cpu_that_computes_in_the_format_emulates_nothing(
    flags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.advice.state.calls.cpu_flags", lambda: frozenset(flags))
    assert "emulated-format" not in _found(lambda: _with_autocast(True))


def test_weights_that_go_to_a_file_are_no_average() -> None:
    def loop() -> None:
        put_back = stand_in(torch, "save", Calls().around(torch.save))  # somebody else listens
        _saving("each")
        put_back()

    found = _found(loop)
    assert "weights-copied" not in found
    saved = found["saves-often"]
    assert saved.line is not None and "torch.save(" in saved.line  # noqa: PT018
    assert "step % 500" in saved.what_to_do


@pytest.mark.parametrize(
    "how", ["kept", "augmented", "drawn", "own generator", "evaluated", *_UNKNOWN]
)
def test_items_that_are_kept_random_or_evaluated_are_not_to_be_kept(how: str) -> None:
    with perfkit.profile(lines=False) as p:
        _made(how)
    assert "items-made-anew" not in {f.rule for f in p.result.diagnosis.findings}
    assert "switched off" not in str(p.result.warnings)


def test_a_line_that_makes_items_slow_comes_before_the_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"x": range(48)})

    def get(self: _Made, i: int) -> dict[str, torch.Tensor]:
        x = [frame.iloc[i]["x"] for _ in range(40)][0]  # noqa: RUF015
        return {"x": torch.full((8,), float(x))}

    monkeypatch.setattr(_Made, "__getitem__", get)
    with perfkit.profile() as p:
        _made()
    rules = [f.rule for f in p.result.diagnosis.findings]
    assert rules.index("slow-line") < rules.index("items-made-anew")


@pytest.mark.parametrize(("how", "told"), [("views", True), ("views of one", False), ("", False)])
def test_an_item_that_is_a_small_part_of_what_was_made_for_it(how: str, told: bool) -> None:
    found = _found(lambda: _made(how))
    assert ("items-of-views" in found, "items-made-anew" in found) == (told, not told)


def test_items_that_take_less_than_a_tenth_of_a_millisecond_add_up() -> None:
    assert "items-made-anew" in _found(lambda: _made("quick"))


def test_items_are_compared_without_asking_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what does not fit in memory is to be kept in a file; nothing stays at the iterator."""
    asked: list[int] = []
    get = _Made.__getitem__
    monkeypatch.setattr(_Made, "__getitem__", lambda self, i: (asked.append(i), get(self, i))[1])
    monkeypatch.setattr("perfkit.advice.state.data.memory_bytes", lambda: 4096)
    loader = DataLoader(_Made(), batch_size=8, shuffle=True)
    iterators = []

    def loop() -> None:
        for _ in range(4):
            iterators.append(iter(loader))
            _train((batch["x"] for batch in iterators[-1]), _model())

    random.seed(3)
    drawn = random.getstate()
    found = _found(loop)["items-made-anew"]
    assert random.getstate() == drawn
    assert len(asked) == 4 * 48
    assert all("fetch" not in vars(one._dataset_fetcher) for one in iterators)
    assert all(one._dataset_fetcher.collate_fn is loader.collate_fn for one in iterators)
    assert "open_memmap" in found.what_to_do
    assert any("48 items of" in said for said in found.evidence)

    def a_part() -> None:
        _train((batch["x"] for batch in loader), _model())
        iterators.append(iter(loader))
        _train((next(iterators[-1])["x"] for _ in range(3)), _model())
        assert "fetch" in vars(iterators[-1]._dataset_fetcher)  # what it looks for may yet come

    assert "items-made-anew" not in _found(a_part)
    assert "fetch" not in vars(iterators[-1]._dataset_fetcher)


def test_a_sharded_stream_behind_methods_of_its_own_is_no_finding() -> None:
    """``get_worker_info`` may be asked in what ``__iter__`` calls, or in the data set it wraps."""

    class Wrapped(IterableDataset[Any]):
        def __init__(self) -> None:
            self.inner = _Stream(shards=True)

        def __iter__(self) -> Iterator[Any]:
            yield from self.inner

    found = _found(lambda: _train(_from(Wrapped(), num_workers=2), _model()))
    assert "iterable-not-sharded" not in found


def test_unsharded_workers_are_seen_to_hand_out_the_same_batch() -> None:
    found = _found(lambda: _train(_from(_Unsharded(), num_workers=2), _model()))
    assert any("were the same" in said for said in found["iterable-not-sharded"].evidence)
    assert found["iterable-not-sharded"].changes  # an epoch has fewer steps then


def test_nothing_stands_out_in_a_healthy_loop() -> None:
    assert not _found(lambda: _train(_random(), _model()))


def test_a_rule_that_raises_is_not_felt_by_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfkit.advice import state
    from perfkit.advice.state import model  # noqa: F401

    def raises(live: object) -> Iterator[Finding]:
        raise RuntimeError("a rule's own fault")

    monkeypatch.setitem(state._KNOWN, "perfkit.advice.state.model", [raises])
    with perfkit.profile(lines=False) as p:
        _with_anomaly(True)
    assert "anomaly-mode" in {f.rule for f in p.result.diagnosis.findings}
    assert any("a rule's own fault" in one for one in p.result.warnings)


def test_a_frozen_part_of_the_step_is_no_validation() -> None:
    """As a backbone whose features a head is trained on."""
    backbone = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    backbone.requires_grad_(False)
    head = nn.Linear(256, 4)

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(30):
            with torch.no_grad():
                features = backbone(torch.randn(256, 256))
            yield features

    with perfkit.profile() as p:
        _train(batches(), head)
    rules = {f.rule for f in p.result.diagnosis.findings}
    assert "validation-in-step" not in rules


@pytest.mark.parametrize(("detached", "fused"), [(False, False), (True, False), (True, True)])
def test_gradients_that_no_step_uses(detached: bool, fused: bool) -> None:
    """The critic's loss went back through the painter, and its gradients were cleared."""
    painter, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    of_painter = torch.optim.Adam(painter.parameters(), fused=fused)
    of_critic = torch.optim.Adam(critic.parameters(), fused=fused)

    def loop() -> None:
        for _ in range(12):
            critic.requires_grad_(True)
            with torch.set_grad_enabled(not detached):
                fake = painter(torch.randn(16, 4))
            of_critic.zero_grad()
            critic(fake).mean().backward()
            of_critic.step()
            critic.requires_grad_(not detached)
            of_painter.zero_grad()
            critic(painter(torch.randn(16, 4))).mean().backward()
            of_painter.step()

    found = _found(loop).get("unused-gradients")
    assert (found is None) is detached
    if found is not None:
        assert re.search(r": critic\((fake|painter.*)\)\.mean\(\)\.backward\(\)$", found.line or "")
        assert "for group in of_painter.param_groups" in found.what_to_do
        assert "critic(fake).mean().backward(inputs=mine)" in found.what_to_do


def test_gradients_of_what_is_updated_alone_are_all_used() -> None:
    """As advised: no other network's are made."""
    painter, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    both = [torch.optim.Adam(one.parameters()) for one in (critic, painter)]

    def loop() -> None:
        for _, optimizer in itertools.product(range(12), both):
            optimizer.zero_grad()
            mine = [p for group in optimizer.param_groups for p in group["params"]]
            critic(painter(torch.randn(16, 4))).mean().backward(inputs=mine)
            optimizer.step()

    assert "unused-gradients" not in _found(loop)


def _policy_gradient(model: Callable[[torch.Tensor], torch.Tensor], optimizer: Any) -> None:
    for _ in range(12):
        state, told = torch.randn(1, 8), []
        for _ in range(10):
            told.append(model(state).log_softmax(-1)[0, 0])
            state = state + 0.1
        torch.stack(told).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_rows_that_go_through_the_model_one_by_one() -> None:
    """None needs another one, so the pass before the loss can be one for all."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = _found(lambda: _policy_gradient(model, optimizer))["single-rows"]
    assert "10 times for one backward pass" in found.title
    assert (found.line or "").endswith("told.append(model(state).log_softmax(-1)[0, 0])")
    assert "torch.stack(rows)" in found.what_to_do


def test_rows_that_need_the_one_before_are_no_rows_for_one_pass() -> None:
    of_row, of_state = nn.Linear(8, 8), nn.Linear(8, 8)
    both = [*of_row.parameters(), *of_state.parameters()]
    optimizer = torch.optim.SGD(both, lr=0.01)

    def loop() -> None:
        for _ in range(12):
            state = torch.zeros(1, 8)
            for _ in range(10):
                state = (of_row(torch.randn(1, 8)) + of_state(state)).tanh()
            state.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert "single-rows" not in _found(loop)


def test_optimizers_that_share_a_backward_pass_use_their_gradients() -> None:
    model = _model()
    both = [torch.optim.SGD(layer.parameters(), 0.1) for layer in (model[0], model[2])]

    def loop() -> None:
        for x in _random(12):
            model(x).sum().backward()
            for optimizer in both:
                optimizer.step()
            for optimizer in both:
                optimizer.zero_grad()

    assert "unused-gradients" not in _found(loop)
