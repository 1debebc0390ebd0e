"""Source lines by sampling: which code is the user's, and what counts."""

from __future__ import annotations

import linecache
import sys
import threading
import time

import pytest
import torch

from perfkit.base.stack import levels_of
from perfkit.trace import Recorder
from perfkit.trace.record.lines import NO_LINES, Line, LineSamples, Sampler, _look

pytestmark = pytest.mark.serial


def _busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.002)  # THE LINE


def test_the_busy_line_is_found() -> None:
    sampler = Sampler(threading.get_ident())
    sampler.start()
    try:
        sampler.resume(forget=True)
        _busy(0.6)
    finally:
        sampler.close()
    result = sampler.result()
    assert result.n_samples > 10
    top = result.by_line()[0]
    assert top.text.endswith("# THE LINE")
    assert top.where == f"test_lines.py:{top.line}"
    assert top.function == "_busy"
    assert top.share > 0.5
    assert sum(x.share for x in result.lines) == pytest.approx(1)


def test_nothing_is_sampled_before_or_after() -> None:
    sampler = Sampler(threading.get_ident())
    sampler.start()
    time.sleep(0.05)
    sampler.resume(forget=True)
    sampler.pause()
    time.sleep(0.05)
    sampler.close()
    assert sampler.result().n_samples <= 1


def test_forgotten_samples_return_where_nothing_better_was_seen() -> None:
    sampler = Sampler(threading.get_ident())
    sampler.start()
    sampler.resume(forget=True)
    _busy(0.1)
    sampler.resume(forget=True)
    sampler.close()
    before, after = sampler.result(with_forgotten=True), sampler.result()
    assert before.n_samples > after.n_samples


def test_the_deadline_is_called_once() -> None:
    called: list[float] = []
    sampler = Sampler(threading.get_ident(), on_deadline=lambda: called.append(time.monotonic()))
    sampler.start()
    begun = time.monotonic()
    sampler.set_deadline(begun + 0.1)
    time.sleep(0.4)
    sampler.close()
    assert len(called) == 1
    assert called[0] - begun >= 0.1


def test_growing_memory_is_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 150, 5_000, 5_999] + [6_001] * 50)
    monkeypatch.setattr("perfkit.trace.record.lines.resident_bytes", lambda: next(sizes))
    monkeypatch.setattr("perfkit.trace.record.lines.peak_resident_bytes", lambda: 5_000)
    called = threading.Event()
    sampler = Sampler(threading.get_ident(), on_deadline=called.set, memory_limit_bytes=1_000)
    sampler.start()
    sampler.allow_memory()
    sampler.set_deadline(time.monotonic() + 60)
    assert called.wait(5)
    assert len(list(sizes)) == 49  # at the first that is above
    sampler.close()


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
    assert lines.warnings == ()


def test_cells_are_named_by_their_number() -> None:
    source = "import time\nend = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass\n"
    name = "<ipython-input-7-0123456789ab>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    sampler = Sampler(threading.get_ident())
    sampler.start()
    sampler.resume(forget=True)
    exec(compile(source, name, "exec"), {})
    sampler.close()
    del linecache.cache[name]
    assert any(x.where == "cell [7], line 3" for x in sampler.result().lines)


def test_few_samples_carry_a_warning_and_none_carry_none() -> None:
    assert NO_LINES.warnings == ()
    sampler = Sampler(threading.get_ident())
    sampler.start()
    sampler.resume(forget=True)
    _busy(0.05)
    sampler.close()
    assert any("rough" in w for w in sampler.result().warnings)


def test_by_line_merges_the_libraries_that_a_line_called() -> None:
    def line(library: str, n: int) -> Line:
        return Line("a.py", 3, "a.py:3", "f", "x = y", n, n / 10, False, library)

    merged = LineSamples((line("PIL", 4), line("torch", 3)), 10).by_line()
    assert [(x.n_samples, x.share) for x in merged] == [(7, 0.7)]


def test_a_loop_that_holds_the_lock_is_seen_and_the_switch_interval_is_put_back() -> None:
    before = sys.getswitchinterval()
    sampler = Sampler(threading.get_ident())
    sampler.start()
    sampler.resume(forget=True)
    assert sys.getswitchinterval() < before
    end_s = time.perf_counter() + 1.0
    while time.perf_counter() < end_s:
        total = 0
        for i in range(60_000):
            total += i  # holds the lock for some ms …
        time.sleep(0.0001)  # … and here it is released
    sampler.pause()
    assert sys.getswitchinterval() == before
    sampler.close()
    assert sys.getswitchinterval() == before
    seen = [x.text for x in sampler.result().by_line()]
    assert any("total" in text or "range" in text for text in seen)


def test_what_runs_the_users_code_is_no_line_of_it() -> None:
    """A cell under a magic is run by the notebook from a cell: only the inner one counts."""

    def source(name: str, called: str) -> str:
        return f"def {name}(inside):\n    return {called}\n"

    spaces: list[dict[str, object]] = []
    for file, name in (
        ("<ipython-input-1-x>", "leaf"),
        ("/x/site-packages/lightning/loops.py", "run"),
        ("<ipython-input-1-x>", "cell"),
        ("/x/site-packages/IPython/core/interactiveshell.py", "run_cell_magic"),
        ("<ipython-input-2-x>", "outer"),
    ):
        space: dict[str, object] = {"look": lambda: _look(levels_of(sys._getframe(1)))}
        called = "look()" if name == "leaf" else "inside[0](inside[1:])"
        exec(compile(source(name, called), file, "exec"), space)
        spaces.append(space)
    names = ("leaf", "run", "cell", "run_cell_magic", "outer")
    functions = [space[name] for space, name in zip(spaces, names, strict=True)]
    key = functions[-1](functions[-2::-1])  # type: ignore[operator]
    assert key is not None
    assert [code.co_name for code, _ in key.chain] == ["leaf", "run", "cell"]
