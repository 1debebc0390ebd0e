"""What is replaced for a while, and who keeps what when somebody else replaces it meanwhile."""

from __future__ import annotations

import importlib
import itertools
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import perfkit
from perfkit.base import torch_compat as compat
from perfkit.base.stand_in import Calls, Listeners, stand_in
from perfkit.experiment.process._fingerprint import _watch_autocast
from tests.left_running import replaced


class _Theirs:
    def own(self) -> str:
        return "theirs"


class _Heir(_Theirs):
    pass


@pytest.mark.parametrize("kind", [_Theirs, _Heir])
def test_what_was_there_comes_back(kind: Any) -> None:
    before = dict(vars(kind))
    put_back = stand_in(kind, "own", lambda self: "ours")
    assert kind().own() == "ours"
    put_back()
    put_back()
    assert dict(vars(kind)) == before  # what was inherited is inherited again


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("kind", [_Theirs, _Heir])
def test_the_original_comes_back_in_whatever_order_ours_end(
    kind: Any, order: tuple[int, ...]
) -> None:
    """The outer one ended first: its wrapper stayed, and only passed calls on."""
    before = dict(vars(kind))

    def around(original: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda self: f"({original(self)})"

    put_back = [stand_in(kind, "own", around(kind.own)) for _ in range(3)]
    assert kind().own() == "(((theirs)))"
    for one in order:
        put_back[one]()
    assert dict(vars(kind)) == before


def test_one_of_ours_that_goes_on_is_not_passed_over() -> None:
    owner = SimpleNamespace(call=lambda: "theirs")
    theirs = owner.call
    first = stand_in(owner, "call", ours := lambda: "first")
    second = stand_in(owner, "call", lambda: "second")
    second()
    assert owner.call is ours
    third = stand_in(owner, "call", lambda: "third")
    first()
    assert owner.call() == "third"
    third()
    assert owner.call is theirs


@pytest.mark.parametrize("ends", [(0, 1), (1, 0)])
@pytest.mark.parametrize("is_his_between", [False, True])
def test_two_watched_loops_give_all_back_in_whatever_order_they_end(
    ends: tuple[int, int], is_his_between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may replace a function between their begins, and put back what he found: ours."""
    loops: list[Any] = []
    for _ in ends:
        loops.append(iter(perfkit.watch(range(3), live=False)))
        next(loops[-1])
        if is_his_between and len(loops) == 1:
            assert "torch.save" in replaced()
            found = torch.save
            monkeypatch.setattr(torch, "save", lambda *args, found=found: found(*args))
    for n in ends:
        loops[n].close()
    monkeypatch.undo()
    list(perfkit.watch(range(3), live=False))
    assert replaced() == []


def test_listeners_who_left_are_not_told_through_an_old_wrapper() -> None:
    owner = SimpleNamespace(call=lambda: "theirs")
    listeners = Listeners(lambda calls: stand_in(owner, "call", calls.around(owner.call)))
    told: list[str] = []
    stop = listeners.add(lambda: told.append("first"))
    ours = owner.call
    owner.call = lambda: ours() + ", and his"
    stop()
    assert owner.call() == "theirs, and his"
    assert told == []
    stop = listeners.add(lambda: told.append("second"))  # on top of his, which calls ours
    assert owner.call() == "theirs, and his"
    assert told == ["second"]
    stop()


def test_a_watcher_that_cannot_be_installed_is_told_nothing() -> None:
    made: list[Calls] = []

    def install(calls: Calls) -> Any:
        made.append(calls)
        raise LookupError

    listeners = Listeners(install)
    with pytest.raises(LookupError):
        listeners.add(lambda: lambda _: None)
    assert made[0].begin() is None


def test_ctrl_c_while_a_listener_is_added_leaves_none() -> None:
    """Whoever adds it gets no way to stop it."""
    owner = SimpleNamespace(call=lambda: "theirs")
    theirs = owner.call

    def install(calls: Calls) -> Callable[[], None]:
        signal.raise_signal(signal.SIGINT)
        return stand_in(owner, "call", calls.around(owner.call))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Listeners(install).add(lambda: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert owner.call is theirs


def _profile() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass


def _autocast() -> None:
    with torch.autocast("cpu"):
        pass


def _backward() -> None:
    torch.ones((), requires_grad=True).backward()


def _fetch() -> None:
    list(torch.utils.data.DataLoader(torch.arange(2)))


@pytest.mark.parametrize(
    ("watch", "module", "path", "use"),
    [
        (compat.watch_profiler_starts, "torch.autograd.profiler", "_prepare_profiler", _profile),
        (compat.watch_backward, "torch.autograd", "_engine_run_backward", _backward),
        (
            compat.watch_loader_iterators,
            "torch.utils.data.dataloader",
            "_BaseDataLoaderIter.__next__",
            _fetch,
        ),
        (
            compat.watch_storage_resize,
            "torch",
            "UntypedStorage.resize_",
            lambda: torch.ones(3).untyped_storage().resize_(0),
        ),
        (
            compat.watch_swapped_tensors,
            "torch.utils",
            "swap_tensors",
            lambda: torch.utils.swap_tensors(torch.ones(1), torch.ones(2)),
        ),
        (_watch_autocast, "torch", "autocast.__enter__", _autocast),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_whoever_replaced_it_after_us_keeps_his(
    watch: Any, module: str, path: str, use: Callable[[], object]
) -> None:
    """Ours ended, and put the original in the place of his."""
    importlib.import_module("torch._dynamo.eval_frame")
    owner: Any = sys.modules[module]
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    original = vars(owner).get(name)
    seen: list[Any] = []
    his: list[str] = []

    def listener(*facts: Any) -> None:
        seen.append(facts)

    stop = watch(listener)
    ours = getattr(owner, name)
    use()
    assert seen
    seen.clear()

    def theirs(*args: Any, **kwargs: Any) -> Any:
        his.append(name)
        return ours(*args, **kwargs)

    setattr(owner, name, theirs)
    try:
        stop()
        assert vars(owner)[name] is theirs
        use()
        assert his
        assert seen == []
    finally:
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    watch(listener)()
    assert vars(owner).get(name) is original
