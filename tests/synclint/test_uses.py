"""The advice fits what becomes of the value, how often it is read, and what waits beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from snippets import compiled, namespace
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perfkit.synclint.cures import _CALLER, _CALLER_DECIDES, _DECIDES, _INDEX, _SAMPLE, _UNUSED
from perfkit.synclint.find import Syncs, find_syncs, syncs_of
from perfkit.synclint.watch import Watch

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# as in test_cures.py
pytestmark = pytest.mark.slow


def _found(code: str, before: str = "", **more: Any) -> Syncs:
    program = compiled(code)
    with Watch() as watch:
        names = namespace(_DEVICE.type) | {"device": _DEVICE} | more
        exec(before, names)
        exec(program, names)
    return Syncs(s for s in syncs_of(watch) if s.file == program.co_filename)


class World:
    def step(self, action: Any) -> None:
        assert not isinstance(action, torch.Tensor)


# --- who gets it ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "    return x.argmax().item()\nworld.step(act(x))",
        "    return x.detach().cpu().numpy()\nworld.step(act(x))",
        "    return x.argmax().item(), x.mean()\nworld.step(act(x)[0])",
        "    return {'loss': loss.item()}\nact(x)",
        "    return float(loss.detach()) > 3\nact(x)",
        "    choice = x.argmax().item()\n    return choice\nworld.step(act(x))",
        "    yield x.argmax().item()\nfor choice in act(x):\n    world.step(choice)",
    ],
)
def test_what_a_function_returns_is_left_to_whoever_calls_it(body: str) -> None:
    """``return action.item()`` was advised as if nobody needed the number."""
    (sync,) = _found(f"def act(x):\n{body}", world=World())
    assert sync.instead.startswith(_CALLER)
    assert ".detach()" in sync.instead


def test_what_a_lambda_reads_is_left_to_whoever_calls_it() -> None:
    (sync,) = _found("act = lambda x: x.argmax().item()\nworld.step(act(x))", world=World())
    assert sync.instead.startswith(_CALLER)


@pytest.mark.parametrize("ask", ["bool(mask.any())", "bool((x > 99).any())"])
def test_an_answer_that_is_returned_is_left_to_whoever_calls_it(ask: str) -> None:
    (sync,) = _found(f"def is_bad():\n    return {ask}\nif is_bad():\n    pass")
    assert sync.instead == _CALLER_DECIDES


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("choice = x.argmax().item()\nworld.step(choice)", "# world.step() takes it on the host"),
        ("size = loss.item()\nkept = math.sqrt(size)", "# math.sqrt() takes it on the host"),
        ("choice = target.max().item()\nbins[choice] += 1", _INDEX),
        ("now = loss.item()\nif now < 3:\n    kept = x\n    more = 1", _DECIDES),
        ("if loss.item() < 3:\n    kept = x\n    more = 1", _DECIDES),
        ("kept = x if loss.item() < 3 else x0", _DECIDES),
        ("while loss.item() < 0:\n    pass", _DECIDES),
        # of the next round
        ("now = 0.0\nwhile now < 3:\n    now = loss.item() + 9", _DECIDES),
        (
            "for i in range(2):\n    if i:\n        world.step(it)\n    it = x.argmax().item()",
            "# world.step() takes it on the host",
        ),
        ("kept = [one for one in 'ab' if loss.item() < 3]", _DECIDES),
        ("kept = (x0 if x.cpu().sum() > 3 and step else x)", _DECIDES),
    ],
)
def test_what_needs_the_number_on_the_host_is_told(code: str, told: str) -> None:
    """``action = q.argmax().item()`` was to stay a tensor although ``env.step`` takes it."""
    more = {"world": World(), "math": math, "bins": [0] * 9, "step": 1}
    first = _found(code, **more)[0]
    assert first.instead.startswith(told), first.instead
    assert "detach()" not in first.instead


@pytest.mark.parametrize(
    "code",
    [
        "now = loss.item()\ntotal = total + now",
        "now = loss.item()\nkept = [now]",
        "at = 0\nnow = loss.item()\nkept = [x][at].sum() + now",
        "now = loss.item()\nif now != now:\n    raise ValueError",
        "now = loss.item()\nkept = x if True else now",
        "for now in [0]:\n    if now:\n        more = now\n    now = loss.item()",
        "if loss.item() != loss.item():\n    raise ValueError",
        "assert loss.item() < 1e9",
    ],
)
def test_what_gets_on_with_a_tensor_is_read_after_the_loop(code: str) -> None:
    first = _found(code)[0]
    assert first.instead.startswith("# keep it on the device, read it once, after the loop")
    assert "= loss.detach()" in first.instead


@pytest.mark.parametrize(
    "code",
    [
        "import torch as th\nkept = th.relu(x.cpu())",
        "import torch.nn.functional as fn\nkept = fn.relu(x.cpu())",
        "from torch import nn as layers\nkept = layers.functional.relu(x.cpu())",
        "from torch.nn.functional import relu\nkept = relu(x.cpu())",
        "from torch import clone as copied\nkept = copied(x.cpu())",
        "def step():\n    from torch.nn import functional as G\n    return G.relu(x.cpu())\nstep()",
    ],
)
def test_a_function_of_torch_takes_a_tensor_by_whatever_name(code: str) -> None:
    """Only ``torch.``, ``F.`` and ``nn.`` were known: ``th.relu()`` "takes it on the host"."""
    (sync,) = _found(code)
    assert "takes it on the host" not in sync.instead
    assert "x.detach()" in sync.instead


@pytest.mark.parametrize(
    ("code", "taker"),
    [
        ("import numpy.linalg as F\nkept = F.norm(x.detach().cpu())", "F.norm"),
        ("import math as m\nsize = loss.item()\nkept = m.sqrt(size)", "m.sqrt"),
        ("from math import sqrt\nsize = loss.item()\nkept = sqrt(size)", "sqrt"),
        ("import numpy as onp\nsize = loss.item()\nkept = onp.sqrt(size)", "onp.sqrt"),
    ],
)
def test_what_needs_it_on_the_host_is_known_by_whatever_name(code: str, taker: str) -> None:
    """A module that somebody calls F was torch's, and the square root of math was not known."""
    (sync,) = _found(code)
    assert f"# {taker}() takes it on the host" in sync.instead


def test_what_a_list_is_made_of_decides_nothing() -> None:
    (sync,) = _found("kept = [one for one in [loss.item()]]")
    assert sync.instead.endswith("\nkept = [one for one in [loss.detach()]]")


def test_a_check_that_would_ask_the_tensor_is_not_rewritten_in_its_place() -> None:
    (sync,) = _found("assert loss.item() < 1e9")
    assert "assert" not in sync.instead
    assert not _found(sync.instead)


def test_where_a_value_is_shown_later_that_line_is_named() -> None:
    code = "for i in range(2):\n    now = loss.item()\n    print(now)\n"
    (sync,) = _found(code)
    assert "# line 3 shows it, and so reads it: do that less often" in sync.instead
    assert "now = loss.detach()" in sync.instead
    (rare,) = _found(code.replace("    print(now)", "    if i % 100 == 0:\n        print(now)"))
    assert "# line 4 needs it, and is not in every step: read it there" in rare.instead


def test_a_value_that_nothing_uses_is_not_kept() -> None:
    (sync,) = _found("def step():\n    loss.item()\nstep()")
    assert sync.instead == _UNUSED
    (shown,) = _found("loss.item()")  # of a cell's last line
    assert "loss.detach()" in shown.instead


# --- how often it ran -------------------------------------------------------------------


def _trained(line: str, n_steps: int) -> Syncs:
    w = torch.ones((), requires_grad=True)
    opt = torch.optim.SGD([w], 0.1)
    code = (
        "def train():\n"
        f"    for i in range({n_steps}):\n"
        "        loss = w * w\n"
        "        loss.backward()\n"
        "        opt.step()\n"
        f"{line}"
        "train()"
    )
    return _found(code, w=w, opt=opt)


@pytest.mark.parametrize(
    "line",
    [
        "    print(loss.item())\n",
        "        if i == 0:\n            print(loss.item())\n",
        "        if i == 0:\n            last = loss.item()\n",
        "        if i == 0:\n            kept = torch.ones(3).to(device)\n",
    ],
)
def test_a_line_that_ran_once_in_many_steps_is_left_alone(line: str) -> None:
    """It was told ``if step % 100 == 0``, as if it ran in each of them."""
    (sync,) = _trained(line, 3)
    assert sync.count == 1
    assert (
        sync.instead == "# it ran once, not in each step: if it stays that rare, leave it as it is"
    )


def test_a_line_that_ran_a_few_times_in_many_steps_is_left_alone() -> None:
    line = "        if i in (3, 7):\n            print(loss.item())\n"
    (sync,) = _trained(line, 20)
    assert sync.instead == "# 2 times in 20 steps: if it stays that rare, leave it as it is"
    (sync,) = _trained(line, 19)
    assert sync.instead.startswith("if step % 100 == 0:")


@pytest.mark.parametrize(
    ("line", "n_steps"),
    [
        ("        print(loss.item())\n", 4),
        # two steps do not tell what is rare, and one is all that find_syncs is given
        ("    print(loss.item())\n", 2),
        ("    print(loss.item())\n", 1),
    ],
)
def test_a_line_in_each_step_is_advised_as_one(line: str, n_steps: int) -> None:
    (sync,) = _trained(line, n_steps)
    assert sync.instead.startswith("if step % 100 == 0:")


def test_of_several_optimizers_the_one_that_steps_least_counts() -> None:
    w = torch.ones((), requires_grad=True)
    often, seldom = (torch.optim.SGD([w], 0.1) for _ in range(2))
    code = (
        "for _ in range(4):\n    (w * w).backward()\n    often.step()\n"
        "seldom.step()\nkept = [(lambda: w.detach().cpu())() for _ in 'a']"
    )
    (sync,) = _found(code, w=w, often=often, seldom=seldom)
    assert "rare" not in sync.instead


# --- what is beside it ------------------------------------------------------------------


def test_two_constants_have_two_names() -> None:
    """Both were ``constant``, so that the second one was meant by both."""
    code = (
        "y = x * torch.tensor([2.0], device=device) + torch.tensor([3.0], device=device)"
        " - torch.tensor([2.0], device=device)"
    )
    (sync,) = _found(code)
    assert sync.count == 3
    *_, first, second, _, line = sync.instead.splitlines()
    assert first == "constant = torch.tensor([2.0], device=device)"
    assert second == "constant_2 = torch.tensor([3.0], device=device)"
    assert line == "y = x * constant + constant_2 - constant"


def test_two_lists_of_positions_have_two_names() -> None:
    (sync,) = _found("y = x[[0, 1]] + x[[2, 3]]")
    assert sync.instead.endswith("y = x[positions] + x[positions_2]")


@pytest.mark.parametrize(
    "line",
    [
        "a, b = one.to(device), two.to(device)",
        "a, b = (one.to(device),\n    two.to(device))",
        "net(\n    one.to(device), two.to(device))",
    ],
)
def test_two_copies_of_one_statement_are_both_rewritten(line: str) -> None:
    """Over several lines, each line's advice left the other copy as it was."""
    found = _found(line, one=torch.ones(4), two=torch.ones(4), net=lambda *_: None)
    assert sum(sync.count for sync in found) == 2
    for sync in found:
        assert "one.to(device, non_blocking=True)" in sync.instead
        assert "two.to(device, non_blocking=True)" in sync.instead


def test_of_two_copies_it_is_said_which_a_loader_may_have_pinned() -> None:
    (sync,) = _found("a, b = one.to(device), (one * 2).to(device)", one=torch.ones(4))
    given, computed, *_ = sync.instead.splitlines()
    assert given.startswith("# one: from pinned memory only")
    assert computed.startswith("# (one * 2): computed on the host")
    for data, short in (("n", "n, device=device)"), ("numbers", "numbers, device=…")):
        code = f"a, b = one.to(device), torch.tensor({data}, device=device)"
        (sync,) = _found(code, one=torch.ones(4), **{data: [1.0]})
        assert f"\n# torch.tensor({short}: data of each step" in sync.instead


def test_each_tensor_that_is_made_has_its_own_rewrite() -> None:
    """``torch.tensor(n)`` matched the constant beside it, and nothing was said of it."""
    (sync,) = _found(
        "y = x * torch.tensor([2.0], device=device) * torch.tensor(n, device=device)", n=[1.0]
    )
    assert sync.count == 2
    constant, line = sync.instead.partition("# once, before the loop:")[2].split("# in the loop:")
    assert constant.strip() == "constant = torch.tensor([2.0], device=device)"
    assert line.strip() == (
        "y = x * constant * torch.tensor(n).pin_memory().to(device, non_blocking=True)"
    )


# --- data sets --------------------------------------------------------------------------


class _Fetching(Dataset[Any]):
    def __init__(self, fetch: Callable[[torch.Tensor], Any]) -> None:
        self.fetch = fetch
        self.data = torch.randn(4, 3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return self.fetch(self.data[i])


def _fetched(fetch: Callable[[torch.Tensor], Any]) -> Syncs:
    torch.manual_seed(0)
    net = nn.Linear(3, 2).to(_DEVICE)
    loader = DataLoader(_Fetching(fetch), batch_size=2)

    def step() -> None:
        for x in loader:
            net(x.to(_DEVICE)).sum().backward()

    return Syncs(s for s in find_syncs(step) if "net(" not in s.code)


def test_a_copy_in_a_data_set_that_does_nothing_else_goes() -> None:
    """``x = x.to(device)`` was rewritten to ``x = x``."""

    def fetch(x: torch.Tensor) -> torch.Tensor:
        x = x.to(_DEVICE)
        return x

    (sync,) = _fetched(fetch)
    assert sync.instead == f"{_SAMPLE}\n# then the line does nothing: leave it out"


def test_two_copies_in_a_data_set_go_as_one() -> None:
    def fetch(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x, y = x.to(_DEVICE), y.to(_DEVICE)
        return x + y

    (sync,) = _fetched(fetch)
    assert sync.instead.endswith("# then the line does nothing: leave it out")


def test_what_a_data_set_makes_on_the_device_is_made_on_the_host() -> None:
    """``torch.tensor(label, device=…)`` was told to be made once, before the loop."""

    def fetch(x: torch.Tensor) -> torch.Tensor:
        label = torch.tensor([len(x), 1.0, 2.0], device=_DEVICE)
        return label

    (sync,) = _fetched(fetch)
    assert sync.instead == f"{_SAMPLE}\nlabel = torch.tensor([len(x), 1.0, 2.0])"


@pytest.mark.parametrize("read", [lambda y: y.norm().item(), lambda y: float(y[0]), len])
def test_what_a_data_set_reads_from_the_device_is_left_on_the_host(read: Any) -> None:
    """It was told to keep the value on the device, and read it once, after the loop."""

    def fetch(x: torch.Tensor) -> torch.Tensor:
        y = x.to(_DEVICE, non_blocking=True)
        return y / read(y)

    assert [sync.instead for sync in _fetched(fetch)] == [_SAMPLE] * (read is not len)


def test_a_helper_that_also_reads_in_the_loop_is_judged_by_that() -> None:
    def mean(x: torch.Tensor) -> float:
        value = x.mean().item()
        return value + 0

    net = nn.Linear(3, 2).to(_DEVICE)
    loader = DataLoader(_Fetching(lambda x: x + mean(x.to(_DEVICE, non_blocking=True))))

    def step() -> None:
        for x in loader:
            mean(net(x.to(_DEVICE, non_blocking=True)))

    sync = next(s for s in find_syncs(step) if "value =" in s.code)
    assert "value = x.mean().detach()" in sync.instead
