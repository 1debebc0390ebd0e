"""What torch.compile did is told from torch's own log; backend "eager" needs no compiler."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from perfkit.base import compiling
from perfkit.base.errors import UsageError
from perfkit.base.torch_compat import Break, Compilation, compile_log
from perfkit.course.kit import compiled
from perfkit.course.kit.compiled import break_even_steps, watch_compile


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _compile(function: Any) -> Any:
    return torch.compile(function, backend="eager")


def test_a_first_call_compiles_and_the_next_does_not() -> None:
    run = _compile(lambda x: (x * 2).sin())
    first = watch_compile(lambda: run(torch.ones(3)))
    assert first.n_graphs == 1
    assert first.breaks == ()
    assert first.recompilations == ()
    assert first.compile_s > 0
    assert first.complete
    again = watch_compile(lambda: run(torch.ones(3)))
    assert (again.n_graphs, again.compile_s) == (0, 0)


def test_another_size_is_told_with_the_check_that_failed() -> None:
    run = _compile(lambda x: x.sin())
    run(torch.ones(4))
    found = watch_compile(lambda: run(torch.ones(5)))
    assert found.n_graphs == 1
    ((place, why),) = [(one.place, one.why) for one in found.recompilations]
    assert place.startswith("test_compiled.py:")
    assert "expected 4, actual 5" in why
    assert not why[:1].isdigit()
    # compiled for all sizes now
    assert watch_compile(lambda: run(torch.ones(6))).n_graphs == 0


def test_a_line_that_ends_a_graph_is_named() -> None:
    def careless(x: Any) -> Any:
        y = x.sin()
        if y.sum().item() > 0:
            y = y + 1
        return y.cos()

    line = careless.__code__.co_firstlineno + 2
    run = _compile(careless)
    found = watch_compile(lambda: run(torch.ones(3)))
    assert found.n_graphs == 2
    (only,) = found.breaks
    assert only.place == f"test_compiled.py:{line}"
    assert "item" in only.reason
    assert only.count == 1
    assert "\n" not in only.reason


def test_that_dynamic_false_asked_for_a_graph_of_each_number_is_known() -> None:
    run = torch.compile(lambda x, n: x[:n] * 2, backend="eager", dynamic=False)
    found = watch_compile(lambda: [run(torch.ones(30), n) for n in range(2, 14)])
    assert found.given_up
    assert all(one.is_static for one in (*found.recompilations, *found.given_up))


def test_what_torch_gives_up_is_told_apart_with_its_place() -> None:
    class Counts(torch.nn.Module):
        n = 0

        def forward(self, x: Any) -> Any:
            self.n += 1
            return x * self.n

    run = _compile(Counts())
    found = watch_compile(lambda: [run(torch.ones(3)) for _ in range(12)])
    assert found.n_graphs == 8
    assert len(found.recompilations) == 7
    (only,) = found.given_up
    # an attempt that is given up has no place in torch's log: that of the code is told
    assert only.place == found.recompilations[0].place
    assert only.place.startswith("test_compiled.py:")
    assert "n == 7" in only.why
    assert f"then given up: {only.place} now runs uncompiled" in " ".join(str(found).split())
    assert not only.is_static  # torch's own choice, not dynamic=False
    # and from now on nothing happens at all
    assert watch_compile(lambda: run(torch.ones(3))).is_empty


def test_code_that_compiles_nothing_has_an_empty_report() -> None:
    found = watch_compile(lambda: torch.ones(3).sin())
    assert found == compiled.CompileReport(0, (), (), 0.0)
    assert str(found) == "Nothing was compiled."


def test_a_report_reads_as_a_sentence_and_what_it_found() -> None:
    found = compiled.CompileReport(
        3,
        (compiled.GraphBreak("train.py:12", "Tensor.item()", 2),),
        (compiled.Recompilation("train.py:9", "size mismatch: expected 4, actual 5"),),
        1.5,
        complete=False,
    )
    said = " ".join(str(found).split())
    assert "3 graphs compiled in 1.50 s; 1 line ends a graph; compiled again 1 time." in said
    assert "train.py:12 2 Tensor.item()" in said
    assert "expected 4, actual 5" in said
    assert "there were more" in said


def test_without_dynamo_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert compile_log() == ([], [], 0)


def test_while_dynamo_is_imported_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a daemon thread, say, when the program ends: it was told as a bug of perfkit's."""
    half = types.ModuleType("torch._dynamo.utils")
    half.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, half.__name__, half)
    assert compile_log() == ([], [], 0)


def test_what_the_step_raises_is_raised() -> None:
    def broken() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        watch_compile(broken)
    with pytest.raises(UsageError, match="step is 3"):
        watch_compile(3)  # type: ignore[arg-type]


def test_time_that_overlaps_counts_once() -> None:
    def at(start_us: int, end_us: int) -> Compilation:
        return Compilation("0/0", "train.py", 1, "", start_us, end_us)

    # the second inside the first, the third after a pause
    spans = [at(0, 4_000_000), at(1_000_000, 2_000_000), at(6_000_000, 6_500_000)]
    assert compiling._wall_s(spans) == 4.5
    assert compiling._wall_s([]) == 0


def test_a_log_that_was_too_short_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    old = [Compilation("0/0", "train.py", 1, "", n, n + 1) for n in range(64)]
    new = [Compilation("0/0", "train.py", 1, "0/0: x == 3", n, n + 1) for n in range(100, 164)]
    no_breaks: list[Break] = []
    logs = iter([(old, no_breaks, 64), (new, no_breaks, 140)])
    monkeypatch.setattr(compiling, "compile_log", lambda: next(logs))
    found = watch_compile(lambda: None)
    assert not found.complete
    assert found.n_graphs == 76
    assert {one.why for one in found.recompilations} == {"x == 3"}


@pytest.mark.parametrize(
    ("compile_s", "before_ms", "after_ms", "steps"),
    [(40, 10, 8, 20_000), (1, 3, 2.7, 3_334), (0, 3, 2, 0), (5, 3, 3, None), (5, 3, 4, None)],
)
def test_the_step_from_which_on_it_pays(
    compile_s: float, before_ms: float, after_ms: float, steps: int | None
) -> None:
    assert break_even_steps(compile_s, before_ms, after_ms) == steps


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="before_ms is a time"):
        break_even_steps(1, value, 1)
