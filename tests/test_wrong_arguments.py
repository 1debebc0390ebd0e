"""Every public function refuses a wrong argument with a PerfkitError that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import perfkit

_TENSOR = torch.zeros(2)
_NETWORK = torch.nn.Linear(2, 2)


def _nothing() -> None:
    pass


def _workload(settings: Any) -> Iterator[None]:
    yield


def _batch(n: int) -> torch.Tensor:
    return torch.zeros(n, 2)


def _of(name: str, /, *arguments: Any, told: str = "", **named: Any) -> Any:
    """One call; without ``told`` the message holds the name of the one keyword."""
    word = told or next(iter(named))
    shown = word if told else f"{word}={named[word]!r:.20}"
    return pytest.param(name, arguments, named, word, id=f"{name}-{shown}")


_CALLS = [
    _of("Lab", 3, told="workload"),
    _of("Lab", None, told="workload"),
    _of("Lab", _TENSOR, told="workload"),
    _of("Lab", _workload, 3, told="settings"),
    _of("Lab", _workload, "num_workers", told="settings must be a list"),
    _of("Lab", _workload, ["nope"], told="'nope'"),
    _of("Lab", _workload, seconds=-1),
    _of("Lab", _workload, title=3),
    _of("Timeline", 3, told="Timeline needs a trace"),
    _of("Timeline", None, told="Timeline needs a trace"),
    _of("Timeline", "/no/such.json", told="/no/such.json"),
    _of("Timeline", b"x", told="not a trace"),
    _of("ab", 3, {}, {}, told="workload"),
    _of("ab", _workload, None, {}, told="an arm is a mapping"),
    _of("ab", _workload, {}, [], told="an arm is a mapping"),
    _of("ab", _workload, {"nope": 1}, {}, told="'nope'"),
    _of("ab", _workload, {}, {}, budget_s=-1),
    _of("ab", _workload, {}, {}, budget_s=None),
    _of("ab", _workload, {}, {}, names="ab"),
    _of("ab", _workload, {}, {}, settings=3),
    _of("ab", _workload, {}, {}, min_blocks=-2),
    _of("ab", _workload, {}, {}, max_blocks=0),
    _of("ab", _workload, {}, {}, warmup=-1),
    _of("ab", _workload, {}, {}, seed="x"),
    _of("ab", _workload, {}, {}, say=3),
    _of("ab", _workload, {}, {}, store=3),
    _of("ab", _workload, {}, {}, step_timeout_s=-1),
    _of("account", 3, told="step"),
    _of("account", None, told="step"),
    _of("account", _TENSOR, told="step"),
    _of("account", _nothing, model=3),
    _of("account", _nothing, model=[3]),
    _of("account", _nothing, optimizer=3),
    _of("compare", 3, _nothing, told="a is 3"),
    _of("compare", _nothing, None, told="b is None"),
    _of("compare", _TENSOR, _nothing, told="a is a Tensor"),
    _of("compare", _nothing, _nothing, budget_s=-1),
    _of("compare", _nothing, _nothing, budget_s="2"),
    _of("compare", _nothing, _nothing, names="ab"),
    _of("compare", _nothing, _nothing, names=()),
    _of("compare", _nothing, _nothing, min_blocks=0),
    _of("compare", _nothing, _nothing, max_blocks=None),
    _of("compare", _nothing, _nothing, warmup=-1),
    _of("compare", _nothing, _nothing, seed="x"),
    _of("compare", _nothing, _nothing, clock=3),
    _of("crossings", 3, told="step"),
    _of("crossings", _TENSOR, told="step"),
    _of("find_leaks", 3, told="step"),
    _of("find_leaks", _TENSOR, told="step"),
    _of("find_leaks", _nothing, steps=-3),
    _of("find_leaks", _nothing, steps=10**400),
    _of("find_leaks", _nothing, steps=2.5),
    _of("find_leaks", _nothing, steps=None),
    _of("find_syncs", 3, told="step"),
    _of("find_syncs", _TENSOR, told="step"),
    _of("find_syncs", _nothing, model=3),
    _of("sweep", _workload, {"num_workers": [0]}, executor=3),
    _of("launch", 3, told="workload"),
    _of("launch", _workload, ranks=1),
    _of("launch", _workload, ranks=65),
    _of("launch", _workload, settings=3),
    _of("launch", _workload, backend="mpi"),
    _of("launch", _workload, hang_s=-1),
    _of("launch", _workload, steps=0),
    _of("launch", _workload, warmup=0),
    _of("no_syncs", model=3),
    _of("no_syncs", copies="x"),
    _of("open_trace", 3, told="source"),
    _of("open_trace", None, told="source"),
    _of("open_trace", _TENSOR, told="source"),
    _of("open_trace", "/no/such.json", told="/no/such.json"),
    _of("open_trace", b"", told="not a trace"),
    _of("open_trace", "", told="trace '': "),
    _of("open_trace", "a\0.json", told="null character"),
    _of("open_trace", "x" * 5000, told="xxx…: "),
    _of("cost", "/no/such.json", price_per_hour=1.0, steps=1, told="/no/such.json"),
    _of("cost", -1.0, price_per_hour=1.0, steps=1, told="step"),
    _of("cost", _TENSOR, price_per_hour=1.0, steps=1, told="step"),
    _of("cost", 1.0, price_per_hour="3 EUR", steps=1, told="price_per_hour"),
    _of("cost", 1.0, price_per_hour=1.0, steps=0, told="steps"),
    _of("cost", 1.0, price_per_hour=1.0, steps=1, before=float("nan"), told="before"),
    _of("cost", 1.0, price_per_hour=1.0, steps=1, work_hours=3, told="before"),
    _of("cost", 1.0, price_per_hour=1.0, steps=1, on={"H200": 1.0}, told="on needs"),
    _of("cost", 1.0, price_per_hour=1.0, steps=1, on=["H200"], told="on is"),
    _of("energy", 3, told="step"),
    _of("energy", _nothing, budget_s=-1),
    _of("energy", _nothing, samples_per_step=0),
    _of("waterfall", 3, told="profile"),
    _of("waterfall", None, told="profile"),
    _of("waterfall", _TENSOR, told="profile"),
    _of("waterfall", "/no/such.json", told="/no/such.json"),
    _of("waterfall", "/no/such.json", device=3),
    _of("peaks", 3, told="device is 3"),
    _of("peaks", "nonsense", told="nonsense"),
    _of("peaks", "cpu", folder=3),
    _of("profile", 3, told="step"),
    _of("profile", _TENSOR, told="step"),
    _of("profile", steps=-1),
    _of("profile", warmup=None),
    _of("profile", repeat=2),
    _of("profile", max_seconds=0),
    _of("profile", stacks=b""),
    _of("profile", shapes=_TENSOR),
    _of("profile", memory=float("nan")),
    _of("profile", lines="no"),
    _of("same_result", 3, _nothing, told="a is int"),
    _of("same_result", _nothing, None, told="b is NoneType"),
    _of("same_result", [], [], told="a is list"),
    _of("same_result", lambda: torch.zeros(2, device="meta"), _nothing, told="meta device"),
    _of("same_result", _nothing, _nothing, precision="x"),
    _of("same_result", _nothing, _nothing, seed="x"),
    _of("setting", 3, [1], told="a setting cannot be called 3"),
    _of("setting", "x", [], told="x: no values"),
    _of("setting", "x", None, told="the values of 'x'"),
    _of("setting", "x", "ab", told="the values of 'x'"),
    _of("setting", "x", torch.tensor(1.0), told="the values of 'x'"),
    _of("setting", "x", dict, told="the values of 'x'"),
    _of("setting", "x", [1], default=7, told="x=7"),
    _of("setting", "x", [1], label=3),
    _of("setting", "x", [1], help=3),
    _of("sweep", 3, {"num_workers": [0]}, told="workload"),
    _of("sweep", _workload, {}, told="grid"),
    _of("sweep", _workload, None, told="grid"),
    _of("sweep", _workload, [1], told="grid"),
    _of("sweep", _workload, {"x": []}, told="x: no values"),
    _of("sweep", _workload, {"x": "ab"}, told="the values of 'x'"),
    _of("sweep", _workload, {"x": [1, 2]}, budget_s=-1),
    _of("sweep", _workload, {"x": [1, 2]}, rounds=0),
    _of("sweep", _workload, {"x": [1, 2]}, rounds="x"),
    _of("sweep", _workload, {"x": [1, 2]}, seconds=-1),
    _of("sweep", _workload, {"x": [1, 2]}, base=3),
    _of("sweep", _workload, {"x": [1, 2]}, settings=None),
    _of("tune", 3, ["num_workers"], told="workload"),
    _of("tune", _workload, [], told="nothing to tune"),
    _of("tune", _workload, None, told="settings"),
    _of("tune", _workload, "num_workers", told="settings"),
    _of("tune", _workload, ["nope"], told="'nope'"),
    _of("tune", _workload, ["num_workers"], budget_s=0),
    _of("tune", _workload, ["num_workers"], start=3),
    _of("tune", _workload, ["num_workers"], seconds="x"),
    _of("watch", 3, told="cannot loop over 3"),
    _of("watch", None, told="cannot loop over None"),
    _of("watch", [1], total=-1),
    _of("watch", [1], total="x"),
    _of("watch", [1], live=_TENSOR),
    _of("watch", torch.tensor(1.0), told="cannot loop over"),
    _of("watch", [1], name=3),
    _of("watch", [1], update_hz=-1),
    _of("will_it_fit", 3, _batch, told="model"),
    _of("will_it_fit", None, _batch, told="model"),
    _of("will_it_fit", _NETWORK, 3, told="make_batch"),
    # it ended the whole process, without an exception
    _of("will_it_fit", torch.nn.LazyLinear(2), _batch, told="'weight', of a lazy module"),
    _of("will_it_fit", _NETWORK, _batch, loss=torch.nn.LazyLinear(2)),
    _of("will_it_fit", _NETWORK, _batch, batch=10**400),
    _of("will_it_fit", _NETWORK, _batch, batch=0),
    _of("will_it_fit", _NETWORK, _batch, batch=None),
    _of("will_it_fit", _NETWORK, _batch, optimizer="nope"),
    _of("will_it_fit", _NETWORK, _batch, optimizer=3),
    _of("will_it_fit", _NETWORK, _batch, loss=3),
    _of("will_it_fit", _NETWORK, _batch, precision="x"),
    _of("will_it_fit", _NETWORK, _batch, gpus_gb=3),
    _of("will_it_fit", _NETWORK, _batch, gpus_gb=[-1]),
    _of("will_it_fit", _NETWORK, _batch, gpus_gb=["x"]),
    _of("will_it_fit", _NETWORK, _batch, checkpointing=3),
]


@pytest.mark.parametrize(("name", "arguments", "named", "told"), _CALLS)
def test_a_wrong_argument_is_named(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any], told: str
) -> None:
    call: Callable[..., Any] = getattr(perfkit, name)
    with pytest.raises(perfkit.PerfkitError) as raised:
        _used(call(*arguments, **named))
    message = str(raised.value)
    assert told in message
    assert "\n" not in message


def _used(found: Any) -> None:
    """Enter what is a block: it may look at its arguments only then."""
    if hasattr(found, "__enter__"):
        with found:
            pass


def test_every_public_function_with_arguments_is_here() -> None:
    takes = set(perfkit.__all__) - {
        "PerfkitError",
        "__version__",
        "doctor",  # no arguments
        "load_ipython_extension",
        "unload_ipython_extension",
    }
    assert {call.values[0] for call in _CALLS} == takes
