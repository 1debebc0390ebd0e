from __future__ import annotations

import threading

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit.experiment.process.loader_wait import LoaderWait
from perfkit.measure.batch import SampleCounter


class Ticking:
    """Every look at the clock takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_every_batch_and_the_start_of_an_iterator_are_waits():
    loader = DataLoader(torch.zeros(6, 2), batch_size=3)
    with LoaderWait(Ticking()) as wait:
        batches = iter(loader)
        assert wait.first_asked_s == 1.0
        assert wait.take() == (1.0, None)
        assert [wait.take() for _ in batches] == [(1.0, 3), (1.0, 3)]
        assert wait.take() == (1.0, None), "the end of the data was waited for, too"


def test_a_loader_inside_a_data_set_is_counted_once():
    class Nested(IterableDataset):
        def __iter__(self):
            yield from DataLoader(torch.zeros(4, 2), batch_size=2)

    with LoaderWait(Ticking()) as wait:
        next(iter(DataLoader(Nested(), batch_size=None)))
        assert wait.take() == (2.0, 2)


def test_other_threads_wait_for_themselves():
    loader = DataLoader(torch.zeros(4))
    with LoaderWait(Ticking()) as wait:
        thread = threading.Thread(target=lambda: list(loader))
        thread.start()
        thread.join()
        assert wait.take() == (0.0, None)


def test_nothing_stays_of_the_watch():
    before = _BaseDataLoaderIter.__next__, DataLoader.__iter__
    with LoaderWait():
        assert before != (_BaseDataLoaderIter.__next__, DataLoader.__iter__)
    assert before == (_BaseDataLoaderIter.__next__, DataLoader.__iter__)


def test_samples_are_counted_as_watch_counts_them():
    """``tuple(zip(*samples))`` of five images was five samples for watch, three for the Lab."""
    data = [(torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4)})] * 10
    loader = DataLoader(data, 5, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))
    with LoaderWait() as wait:
        for batch in loader:
            assert wait.take()[1] == SampleCounter()(batch) == 5
