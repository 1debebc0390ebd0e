"""Lesson 02: steps of a small training, recorded, and how much of the device they use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from perfkit.course.kit.threads import one_thread
from perfkit.course.lessons.lesson_02_read_a_trace.lesson import (
    achievable_tflop_per_s,
    documents,
    pace,
    tokens,
)
from perfkit.trace.ask.flops import flops
from perfkit.trace.read.columns import Trace
from perfkit.trace.record.record import Recorder

_LENGTH, _WIDTH, _PIECES = 16, 64, 16
_STEPS = 4


@dataclass(frozen=True)
class UsedHere:
    """A step of many small operators on this machine.

    Attributes:
        busy: share of one core that is busy.
        flops_share: achieved FLOP/s as a share of what one large product achieves.
    """

    busy: float
    flops_share: float


def used_here(device: str = "cpu") -> UsedHere:
    """Time steps without the profiler; their arithmetic is counted from a recording."""
    per_step = flops(record_steps(device, prepared=True, shapes=True)).per_step
    with one_thread():
        best = achievable_tflop_per_s(device)
        step = _trainer(device)
        batch = next(iter(_batches(prepared=True)))
        ran = pace(lambda: step(*batch))
    return UsedHere(ran.busy, per_step / ran.seconds / 1e12 / best)


def record_steps(device: str = "cpu", *, prepared: bool, shapes: bool = False) -> Trace:
    """Record some steps of a small training.

    Args:
        device: where the network is.
        prepared: whether the texts are taken apart once, before training.
        shapes: record the shapes of operators, from which their arithmetic is counted.
    """
    step = _trainer(device)
    recorder = Recorder(steps=_STEPS, warmup=2, shapes=shapes, lines=False)
    with one_thread(), recorder:
        for words, labels in _batches(prepared=prepared):
            step(words, labels)
            if recorder.is_done:
                break
    return recorder.recording.trace


def _batches(*, prepared: bool) -> Iterable[Any]:
    """Batches of eight texts, tokenised on demand or all beforehand."""
    from torch.utils.data import DataLoader

    texts = documents(64, seed=0)
    samples: Any = _Texts(texts)
    if prepared:
        samples = [samples[i] for i in range(len(texts))]
    return DataLoader(samples, batch_size=8)


class _Texts:
    """A dataset that tokenises a text on each access."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        return torch.tensor(tokens(self._texts[index], _LENGTH)), index % 4


def _trainer(device: str) -> Callable[[Any, Any], None]:
    """The training step of a network with many small operations, as a function of a batch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    size = _WIDTH // _PIECES
    table = nn.Embedding(1000, _WIDTH)
    pieces = nn.ModuleList(nn.Linear(_WIDTH, size) for _ in range(_PIECES))
    head = nn.Linear(_WIDTH, 4)
    model = nn.ModuleList([table, pieces, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(words: Any, labels: Any) -> None:
        words, labels = words.to(device), labels.to(device)
        optimizer.zero_grad()
        x = table(words)
        for _ in range(4):
            x = torch.cat(list(_each(pieces, x)), 2)
        loss = nn.functional.cross_entropy(head(x.mean(1)), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _each(pieces: Any, x: Any) -> Iterator[Any]:
    for piece in pieces:
        yield piece(x).relu()
