"""What must wait for the end of a backward pass, waits for it, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from perfkit.base.backward_passes import BackwardPasses
from perfkit.base.instrument import Instrument


@pytest.fixture
def passes() -> Iterator[BackwardPasses]:
    found = BackwardPasses(Instrument("a test"))
    yield found
    found.close()


def _pass(hook: Callable[[], object], *, nested: bool = False) -> None:
    """A backward pass that calls the hook once, in a pass within it if ``nested``."""
    layer = torch.nn.Linear(2, 1)
    layer.weight.register_post_accumulate_grad_hook(lambda _: hook())
    x = torch.rand(3, 2, requires_grad=True)
    y: Any = checkpoint(layer, x, use_reentrant=True) if nested else layer(x)
    y.sum().backward()


def test_outside_of_a_pass_nothing_waits(passes: BackwardPasses) -> None:
    called: list[str] = []
    _pass(lambda: None)
    passes.after(lambda: called.append("now"))
    assert called == ["now"]
    assert not passes.inside


@pytest.mark.parametrize("nested", [False, True])
def test_within_a_pass_it_waits_for_the_outermost_end(passes: BackwardPasses, nested: bool) -> None:
    seen: list[tuple[str, bool]] = []
    ids: list[int] = []

    def hook() -> None:
        passes.after(lambda: ids.append(torch._C._current_graph_task_id()))
        passes.after(lambda: seen.append(("after", passes.inside)))
        seen.append(("hook", passes.inside))

    _pass(hook, nested=nested)
    assert seen == [("hook", True), ("after", False)]
    assert ids == [-1]
    _pass(lambda: None)
    assert len(seen) == 2


def test_it_is_called_where_the_pass_raises_too(passes: BackwardPasses) -> None:
    called: list[bool] = []

    def hook() -> None:
        passes.after(lambda: called.append(passes.inside))
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        _pass(hook)
    assert called == [False]


def test_a_pass_of_another_thread_is_none_of_ours(passes: BackwardPasses) -> None:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: _pass(lambda: seen.append(passes.inside)))
    thread.start()
    thread.join()
    assert seen == [False]


def test_what_waits_is_called_where_the_instrument_fails_meanwhile() -> None:
    instrument = Instrument("a test")
    passes = BackwardPasses(instrument)
    called: list[str] = []

    def hook() -> None:
        passes.after(lambda: called.append("after"))
        instrument.fail(ArithmeticError(), "a test")

    _pass(hook)
    passes.close()
    assert called == ["after"]


def test_what_fails_after_a_pass_is_the_instrument_s_failure() -> None:
    instrument = Instrument("a test")
    passes = BackwardPasses(instrument)
    _pass(lambda: passes.after(lambda: 1 // 0))
    passes.close()
    assert instrument.failure is not None
    assert "ZeroDivisionError" in instrument.failure.sentence()


def test_closed_within_a_pass_it_sees_its_end_and_no_later_one(passes: BackwardPasses) -> None:
    called: list[bool] = []

    def hook() -> None:
        passes.after(lambda: called.append(passes.inside))
        passes.close()

    _pass(hook)
    assert called == [False]
    _pass(lambda: called.append(passes.inside))
    assert called == [False, False]


def test_a_pass_whose_end_was_not_seen_does_not_go_on_for_ever() -> None:
    instrument = Instrument("a test")
    passes = BackwardPasses(instrument)
    passes.depth = 1  # as where `_ended` has failed
    called: list[str] = []
    passes.after(lambda: called.append("at once"))
    _pass(lambda: passes.after(lambda: called.append("after a pass")))
    passes.close()
    assert called == ["at once", "after a pass"]
