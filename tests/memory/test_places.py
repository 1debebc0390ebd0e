"""By module, by line, and the curve: each adds up to the peak, and names what made it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from perfkit.base.errors import UsageError
from perfkit.memory import ledger as ledger_module
from perfkit.memory.account import Accountant, MemoryAccount, account
from perfkit.memory.paths import module_paths


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 1024)
        self.narrow = nn.Linear(1024, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.wide(x).sin()
        y: Tensor = self.narrow(hidden)
        return y


def _training(net: nn.Module) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    optimizer = torch.optim.Adam(net.parameters())
    batch = torch.randn(256, 8)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        net(batch).sum().backward()
        optimizer.step()

    return optimizer, step


def _adds_up(result: MemoryAccount) -> None:
    assert sum(m.nbytes for m in result.by_module) == result.peak_bytes
    assert sum(x.nbytes for x in result.by_line) == result.peak_bytes
    for name, nbytes in result.at_peak_bytes.items():
        assert sum(m.by_category[name] for m in result.by_module) == nbytes
        assert sum(x.by_category[name] for x in result.by_line) == nbytes
    curve = result.curve
    assert curve.total_bytes[curve.peak] == result.peak_bytes == max(curve.total_bytes)
    assert curve.total_bytes[0] == result.start_bytes
    assert curve.total_bytes[-1] == result.end_bytes
    for i, total in enumerate(curve.total_bytes):
        assert sum(part[i] for part in curve.by_category.values()) == total
    assert list(curve.index) == sorted(curve.index)


def test_modules_have_their_activations_gradients_and_state() -> None:
    net = _Net()
    _, step = _training(net)
    step()
    result = account(step, model=net)
    _adds_up(result)
    modules = {m.path: m.by_category for m in result.by_module}
    wide = sum(p.nbytes for p in net.wide.parameters())
    mine = modules["_Net.wide"]
    assert mine["parameters"] == mine["gradients"] == wide
    assert mine["optimizer state"] == 2 * wide + 2 * 4
    assert mine["activations"] == 256 * 1024 * 4


def test_the_line_is_the_innermost_of_the_users() -> None:
    net = _Net()
    _, step = _training(net)
    result = account(step)
    _adds_up(result)
    lines = {x.text: x for x in result.by_line}
    hidden = lines["hidden = self.wide(x).sin()"]
    assert hidden.by_category["activations"] == 256 * 1024 * 4
    assert hidden.where == f"test_places.py:{hidden.line}"
    assert hidden.function == "_Net.forward"
    # what the backward of sin makes, and the gradient that it got
    backward = lines["net(batch).sum().backward()"]
    assert backward.by_category["temporary"] >= 2 * 256 * 1024 * 4


def test_what_has_no_line_says_why() -> None:
    old = torch.zeros(1000)
    result = account(lambda: old + 1)
    before = next(x for x in result.by_line if x.where == "(there before)")
    assert before.nbytes >= 4000
    assert (before.file, before.line, before.text) == ("", 0, "")
    _adds_up(result)


def test_users_names_lead_the_paths() -> None:
    net = _Net()
    with Accountant(names={"student": net}) as accountant:
        net(torch.randn(4, 8))
    assert any(m.path == "student.wide" for m in accountant.result.by_module)


def test_paths_name_the_whole_before_its_parts() -> None:
    inner = nn.Linear(2, 2)
    first, second = nn.Sequential(inner), nn.Sequential(nn.ReLU())
    paths = {id(m): path for m, path in module_paths([inner, first, second], {})}
    assert paths[id(inner)] == "Sequential.0"
    assert paths[id(second)] == "Sequential#2"


def test_a_module_made_in_the_region_is_named() -> None:
    kept: list[nn.Module] = []

    def build() -> None:
        net = _Net()
        net(torch.randn(4, 8)).sum().backward()
        kept.append(net)

    result = account(build)
    _adds_up(result)
    assert any(m.path.endswith("_Net.wide") and m.by_category["parameters"]
               for m in result.by_module)  # fmt: skip


def test_the_curve_is_bounded_and_never_loses_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "FOLD_AT", 500)

    def work() -> None:
        for i in range(3000):
            torch.zeros(10 if i != 1234 else 77_777)

    result = account(work)
    _adds_up(result)
    assert len(result.curve.index) <= ledger_module.MAX_POINTS + 2
    assert result.curve.n_events == 6000
    assert result.peak_bytes - result.start_bytes == 77_777 * 4


def test_phases_of_the_curve_follow_the_step() -> None:
    net = _Net()
    _, step = _training(net)
    step()
    seen = [p for p in account(step).curve.phase if p != "before"]
    order = list(dict.fromkeys(seen))
    assert order == ["forward", "backward", "optimizer"]


def test_lines_of_a_watched_function() -> None:
    kept: list[Tensor] = []

    def helper() -> Tensor:
        return torch.zeros(1000)

    def work() -> None:
        kept.append(helper())
        big = torch.zeros(5000)
        del big
        torch.zeros(10)

    with Accountant(watch=[work]) as accountant:
        work()
    result = accountant.result
    lines = {x.text: x for x in result.function_lines}
    assert list(lines) == ["kept.append(helper())", "big = torch.zeros(5000)", "torch.zeros(10)"]
    first, big, last = lines.values()
    assert (first.made_bytes, first.at_end_bytes, first.n_made) == (4000, 4000, 1)
    assert (big.at_peak_bytes, big.at_end_bytes) == (20_000, 0)
    assert big.highest_bytes == result.peak_bytes
    assert last.at_peak_bytes == 0
    # and the line itself is the innermost one
    assert any(x.text == "return torch.zeros(1000)" for x in result.by_line)


def test_a_module_can_be_watched_and_what_has_no_lines_cannot() -> None:
    net = _Net()
    with Accountant(watch=[net]) as accountant:
        net(torch.randn(4, 8))
    assert len(accountant.result.function_lines) == 2
    with pytest.raises(UsageError, match="no lines to watch"):
        Accountant(watch=[len])


def test_it_can_be_written_as_json() -> None:
    net = _Net()
    _, step = _training(net)
    data = json.loads(json.dumps(account(step).to_dict()))
    device = data["devices"][0]
    assert sum(m["nbytes"] for m in device["by_module"]) == data["peak_bytes"]
    assert device["curve"]["total_bytes"][device["curve"]["peak"]] == data["peak_bytes"]
