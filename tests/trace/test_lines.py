"""Source lines by sampling: which code is the user's, and what counts."""

from __future__ import annotations

import linecache
import multiprocessing.queues
import time
from collections.abc import Callable

import pytest
import torch

from perfkit.base import torch_compat
from perfkit.base.line_sampler import Frame, LineSampler, Look
from perfkit.trace import Recorder
from perfkit.trace.record.lines import (
    Line,
    LineSamples,
    child_lines,
    lines_of,
    samples_of,
    user_line,
    wilson,
)

pytestmark = pytest.mark.serial


def _busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.002)  # THE LINE


def _sampled(work: Callable[[], object]) -> LineSamples:
    sampler = LineSampler()
    sampler.start()
    try:
        work()
    finally:
        looks = sampler.stop().thread
    return lines_of(samples_of(looks))


def test_the_busy_line_is_found() -> None:
    result = _sampled(lambda: _busy(0.6))
    assert result.n_samples > 10
    top = result.by_line()[0]
    assert top.text.endswith("# THE LINE")
    assert top.where == f"test_lines.py:{top.line}"
    assert top.function == "_busy"
    low, high = top.interval
    assert 0.5 < low < top.share <= high
    assert sum(x.share for x in result.lines) == pytest.approx(1)


class _Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)  # LOADING
        return torch.randn(4)


def test_lines_inside_the_loader_are_told_apart() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(steps=20, warmup=1) as recorder:
        for i, x in enumerate(torch.utils.data.DataLoader(_Slow(), batch_size=4)):
            model(x).sum().backward()
            optimizer.step()
            if i > 24:
                break
    lines = recorder.recording.lines
    top = lines.lines[0]
    assert top.in_data_wait
    assert top.text.endswith("# LOADING")


def test_lines_of_workers_and_of_other_processes_are_told_apart() -> None:
    """Of a forked one, what the process runs that it was forked from is not its own."""
    main = Frame("<ipython-input-1-x>", "<module>", 9)
    starts = (
        Frame(multiprocessing.process.__file__, "BaseProcess._bootstrap", 9),
        Frame(multiprocessing.context.__file__, "ForkProcess._Popen", 9),
        main,
    )
    utils = "/x/site-packages/torch/utils/data/_utils/{}.py".format
    worker = (Frame(utils("worker"), "_worker_loop", 9), *starts)
    fetch = (Frame(utils("fetch"), "_MapDatasetFetcher.fetch", 9), *worker)
    item = Frame("<ipython-input-1-x>", "Data.__getitem__", 5)
    library = Frame("/x/site-packages/datasets/arrow.py", "Dataset.__getitem__", 7)
    collate = Frame(utils("collate"), "default_collate", 8)
    waits = Frame(multiprocessing.queues.__file__, "Queue.get", 9)
    rank = Frame("<ipython-input-1-x>", "train", 3)
    stacks = [
        *[(item, *fetch)] * 4, *[(library, *fetch)] * 3, *[(collate, *fetch)] * 2, (waits, *worker),
        (rank, *starts), starts,
    ]  # fmt: skip
    workers, others = child_lines([Look(0.0, stack) for stack in stacks])
    assert [(x.where, x.n_samples) for x in workers.lines] == [
        ("cell [1], line 5", 4),
        ("datasets/arrow.py:7", 3),
        ("collate.py:8", 2),
    ]
    assert workers.n_samples == 10
    assert [(x.where, x.share) for x in others.lines] == [("cell [1], line 3", 1.0)]


def test_cells_are_named_by_their_number() -> None:
    source = "import time\nend = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass\n"
    name = "<ipython-input-7-0123456789ab>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    lines = _sampled(lambda: exec(compile(source, name, "exec"), {})).lines
    del linecache.cache[name]
    assert any(x.where == "cell [7], line 3" for x in lines)


def test_by_line_merges_the_libraries_that_a_line_called() -> None:
    def line(library: str, n: int) -> Line:
        return Line("a.py", 3, "a.py:3", "f", "x = y", n, n / 10, False, library)

    merged = LineSamples((line("PIL", 4), line("torch", 3)), 10).by_line()
    assert [(x.n_samples, x.share) for x in merged] == [(7, 0.7)]


def test_a_line_that_runs_a_training_is_known_where_the_training_waits_for_data() -> None:
    user = Frame("/home/me/train.py", "main", 5)
    data = (
        Frame("/x/site-packages/pictures/sets.py", "Pictures.__getitem__", 9),
        Frame(torch.utils.data.dataloader.__file__, "_BaseDataLoaderIter.__next__", 2),
        user,
    )
    loops = [(Frame("/x/site-packages/trainer/loop.py", "Loop.run", n), user) for n in range(1, 5)]
    looks = [Look(0.0, stack) for stack in [data] * 6 + loops]
    told = {(x.in_data_wait, x.is_framework) for x in lines_of(samples_of(looks)).lines}
    assert told == {(True, True), (False, True)}


def test_items_that_are_watched_are_loaded_in_the_wait_for_data_all_the_same() -> None:
    """What watches them stands on the stack, between the loader and its data set."""
    key = user_line((
        Frame("/home/me/data.py", "Data.__getitem__", 5),
        Frame(torch_compat.__file__, "watch_items.<locals>.fetch", 7),
        Frame(torch.utils.data.dataloader.__file__, "_BaseDataLoaderIter.__next__", 2),
        Frame("/home/me/train.py", "main", 5),
    ))  # fmt: skip
    assert key is not None
    assert key.in_data_wait


def test_what_runs_the_users_code_is_no_line_of_it() -> None:
    """A cell under a magic is run by the notebook from a cell: only the inner one counts."""
    stack = (
        Frame("/x/site-packages/torch/nn/functional.py", "relu", 1),
        Frame("<ipython-input-1-x>", "leaf", 2),
        Frame("/x/site-packages/lightning/loops.py", "Loop.run", 2),
        Frame("<ipython-input-1-x>", "cell", 2),
        Frame("/x/site-packages/IPython/core/interactiveshell.py", "Shell.run_cell_magic", 2),
        Frame("<ipython-input-2-x>", "outer", 2),
    )
    key = user_line(stack)
    assert key is not None
    assert [frame.function for frame in key.chain] == ["leaf", "Loop.run", "cell"]
    assert key.called == "torch.nn.functional.relu"


def test_the_librarys_function_below_the_line_is_named_where_it_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``relu`` that mostly formats stacks is anomaly mode; ``backward`` in backward is no news."""
    texts = {3: "x = F.relu(self.fc(x))", 4: "loss.backward()"}
    monkeypatch.setattr(
        "perfkit.trace.record.lines.statement", lambda file, line, **_: texts.get(line, "")
    )
    torch_file = "/x/site-packages/torch/{}.py".format
    relu, backward = (Frame("<ipython-input-1-x>", "f", n) for n in texts)
    formats = (
        Frame(linecache.__file__, "checkcache", 9),
        Frame(torch_file("fx/traceback"), "format_stack", 9),
        Frame(torch_file("nn/functional"), "relu", 9),
        Frame(torch_file("nn/modules/module"), "Module._call_impl", 9),
        relu,
    )
    engine = (
        Frame(torch_file("autograd/graph"), "_engine_run_backward", 9),
        Frame(torch_file("autograd/__init__"), "backward", 9),
        Frame(torch_file("_tensor"), "Tensor.backward", 9),
        backward,
    )
    looks = [Look(0.0, stack) for stack in [formats] * 3 + [formats[1:]] * 6 + [engine] * 4]
    told = {line.line: line for line in lines_of(samples_of(looks)).by_line()}
    assert told[3].mostly == "format_stack (torch/fx/traceback.py)"
    assert told[3].mostly_share == 1.0
    assert told[4].mostly == ""


def test_the_interval_of_a_share() -> None:
    """Against Wilson's by another hand: statsmodels' proportion_confint(k, n, method="wilson")."""
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611252), abs=1e-4)
