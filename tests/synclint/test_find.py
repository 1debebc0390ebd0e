"""`find_syncs`: what a SyncLine says, what counts as being on the device, where a line is found."""

from __future__ import annotations

import importlib
import inspect
import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from snippets import compiled
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.synclint.find import SyncLines, find_syncs


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def lines(syncs: SyncLines) -> list[str]:
    return [sync.code for sync in syncs]


def test_a_sync_tells_file_line_operation_reason_and_what_helps(net: nn.Module) -> None:
    def step() -> None:
        loss = net(torch.randn(4, 3)).sum()
        last = loss.item()
        for _ in range(3):
            last += loss.item()

    once, thrice = perfkit.find_syncs(step)
    assert once.file == thrice.file == __file__
    assert thrice.line == once.line + 2 == step.__code__.co_firstlineno + 4
    assert (once.count, thrice.count) == (1, 3)
    assert once.code == "last = loss.item()"
    assert once.op == "Tensor.item"
    assert once.place == f"test_find.py:{once.line}"
    assert "waits" in once.why
    assert "read it once, after the loop" in once.instead
    assert "detach()" in once.example
    assert thrice.example == "last += loss.detach()"
    assert once.inside == ""


def test_one_entry_a_line_with_its_backward(net: nn.Module) -> None:
    def step() -> None:
        y = net(torch.randn(4, 3))
        z = y[y > 0]
        z.sum().backward()

    (sync,) = find_syncs(step)
    assert sync.code == "z = y[y > 0]"
    assert sync.op == "x[mask], its backward"
    assert sync.count == 2


def test_a_line_that_also_calls_backward_is_advised_what_it_writes_forward() -> None:
    """Of its backward pass alone, the advice was ``y = torch.where(mask, x * 2, x)``."""
    model = nn.Linear(4, 3)
    x, y, mask = torch.randn(8, 4), torch.randint(0, 3, (8,)), torch.arange(8) < 3

    def step() -> None:
        nn.functional.cross_entropy(model(x)[mask], y[mask]).backward()

    (sync,) = find_syncs(step)
    assert "somewhere in this backward pass" in sync.op
    assert "ignore_index" in sync.instead
    assert "x * 2" not in sync.example


def test_backward_of_an_assignment_into_a_view_goes_to_its_line(net: nn.Module) -> None:
    def step() -> None:
        y = net(torch.randn(4, 3))
        z = torch.zeros(4, 2)
        z[:2][y[:2].detach() > 0] = y[:2].reshape(-1)[:2].sum().expand(1)
        z.sum().backward()

    syncs = find_syncs(step)
    assert [s.code.startswith("z[:2][") for s in syncs] == [True]


def test_what_is_not_connected_to_a_model_does_not_count(net: nn.Module) -> None:
    def step() -> None:
        order = torch.randperm(8).tolist()
        host = torch.arange(8.0)
        if host.max() > 3 and order:
            host = host / host.max().item()
        net(torch.randn(4, 3)).sum().backward()

    assert find_syncs(step) == []


def test_the_batch_is_host_data_until_it_is_moved(net: nn.Module) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data, on_device = torch.randn(16, 3), net.to(device)

    def step() -> None:
        batch = data[2:6]
        assert batch.isfinite().all()
        moved = batch.to(device)
        on_device(moved)
        assert batch.isfinite().all()
        assert moved.isfinite().all()

    copied, asked = find_syncs(step)
    assert (copied.code, copied.kind) == ("moved = batch.to(device)", "copy")
    assert (asked.code, asked.kind) == ("assert moved.isfinite().all()", "value")


def test_a_copy_on_the_host_is_read_for_free(net: nn.Module) -> None:
    def step() -> None:
        y = net(torch.randn(4, 3)).detach()
        host = y.to("cpu")
        host.numpy()
        if host[0, 0] > 0:
            host[host > 0].tolist()
        y.sum().item()

    assert lines(find_syncs(step)) == ['host = y.to("cpu")', "y.sum().item()"]


def test_a_name_for_the_device_is_no_copy_to_the_host(net: nn.Module) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def step() -> None:
        y = net(torch.randn(4, 3))
        y.to(device=device)
        y.to(torch.float64)
        y.to(y)
        y.to("cpu", torch.float64)

    assert lines(find_syncs(step)) == ['y.to("cpu", torch.float64)']


def test_tensors_made_on_a_device_are_on_it(net: nn.Module) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def step() -> None:
        y = net(torch.randn(4, 3))
        torch.zeros(3, device=device).tolist()
        torch.ones(3, device=y.device).tolist()
        torch.zeros(3, device="cpu").tolist()
        host = torch.zeros(3)
        torch.ones(3, device=host.device).tolist()

    assert lines(find_syncs(step)) == [
        "torch.zeros(3, device=device).tolist()",
        "torch.ones(3, device=y.device).tolist()",
    ]


def test_only_the_given_model_counts(net: nn.Module) -> None:
    other = nn.Linear(3, 2)

    def step() -> None:
        net(torch.randn(4, 3)).sum().item()
        other(torch.randn(4, 3)).sum().item()

    assert lines(find_syncs(step, net)) == ["net(torch.randn(4, 3)).sum().item()"]
    assert len(find_syncs(step)) == 2


def test_parameters_without_a_module_are_found_by_their_gradient() -> None:
    w = torch.randn(3, requires_grad=True)

    def step() -> None:
        loss = (w * torch.randn(3)).sum()
        float(loss.detach())
        loss.backward()

    assert lines(find_syncs(step)) == ["float(loss.detach())"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RAdam", "Rprop"])
@pytest.mark.parametrize("foreach", [False, True])
def test_optimizers_do_not_count(net: nn.Module, name: str, foreach: bool) -> None:
    optimizer = getattr(torch.optim, name)(net.parameters(), foreach=foreach)

    def step() -> None:
        net(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert find_syncs(step) == []
    assert find_syncs(step) == []


def test_an_optimizer_whose_counter_is_on_the_device_does_count(net: nn.Module) -> None:
    # torch/optim/asgd.py makes its step with device=p.device and reads it with .item()
    optimizer = torch.optim.ASGD(net.parameters(), foreach=False)

    def step() -> None:
        net(torch.randn(4, 3)).sum().backward()
        optimizer.step()

    (sync,) = find_syncs(step)
    assert sync.code == "optimizer.step()"
    assert "torch/optim/" in sync.inside


def test_a_data_loader_does_not_count(net: nn.Module) -> None:
    loader = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=4, shuffle=True)

    def step() -> None:
        for (x,) in loader:
            net(x).sum().backward()

    assert find_syncs(step) == []


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "read",
    [
        lambda y: print(y),
        lambda y: f"{y.sum():.2f}",
        lambda y: f"{y!r}",
        lambda y: "%.1f" % y.sum().detach(),  # noqa: UP031
        lambda y: str(y),
        lambda y: logging.getLogger("x").error("loss %s", y),
        lambda y: np.asarray(y.detach()),
        lambda y: np.mean(y.detach().numpy()),
        lambda y: complex(y.sum().detach()),
        lambda y: [1, 2, 3, 4][y.sum(1).argmin()],
        lambda y: sorted(y.sum(1)),
        lambda y: 1.0 in y,
        lambda y: bool((y > 0).any() and y is not None),
        lambda y: torch.is_nonzero(y.sum()),
        lambda y: y.nonzero(as_tuple=True),
        lambda y: len((y > 0).nonzero()),
        lambda y: torch.argwhere(y),
        lambda y: torch.unique_consecutive(y),
        lambda y: y.unique(dim=0, return_counts=True),
        lambda y: y.narrow(0, y.argmax() // 8, 1),
        lambda y: y.split(y.argmax() // 8 + 1),
        lambda y: torch.full((2,), y.sum().detach()),
        lambda y: torch.linalg.svd(y),
        lambda y: y.relu().to_sparse_csr(),
    ],
)
def test_every_way_to_read_a_value(net: nn.Module, read, capsys) -> None:
    with_value = find_syncs(lambda: read(net(torch.randn(4, 3))))
    assert len(with_value) == 1
    # the same on the host: the model has run, but not on this
    assert find_syncs(lambda: (net(torch.randn(4, 3)), read(torch.randn(4, 2)))) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda y: y.shape[0] + y.numel() + len(y) + y.dim(),
        lambda y: y.masked_fill(y > 0, 0.0),
        lambda y: torch.where(y > 0, y, 0.0),
        lambda y: y.topk(2).indices,
        lambda y: y.sort().values.index_select(0, torch.tensor([1, 0])),
        lambda y: torch.zeros(4, 2).scatter(1, y.argmax(1, keepdim=True), 1.0),
        lambda y: y[torch.tensor([0, 2])],
        lambda y: F.dropout(y, 0.5),
        lambda y: torch.multinomial(y.softmax(1), 1),
        lambda y: list(y),
        lambda y: random.choice(y),
        lambda y: torch.tensor_split(y, 2),
        lambda y: y.clone().masked_scatter_(y > 0, torch.rand(8)),
        lambda y: torch.searchsorted(y.sort().values, y),
        lambda y: torch.linalg.vector_norm(y),
        lambda y: y.quantile(0.5),
        lambda y: torch.isin(y, torch.tensor([1.0])),
        lambda y: y.detach().to("cpu", non_blocking=True),
        lambda y: repr(y.shape) + str(y.dtype) + str(y.device),
    ],
)
def test_what_never_waits(net: nn.Module, use) -> None:
    assert find_syncs(lambda: use(net(torch.randn(4, 3)))) == []


def test_the_line_is_the_users_and_the_library_is_named(net: nn.Module) -> None:
    def step() -> None:
        loss = net(torch.randn(4, 3)).sum()
        torch.distributions.Normal(loss, 1.0)

    (sync,) = find_syncs(step)
    assert sync.code == "torch.distributions.Normal(loss, 1.0)"
    assert sync.inside.startswith("torch/distributions/")  # not where it is installed
    assert "validate_args=False" in sync.instead


def test_sampling_from_a_normal_waits_even_unchecked(net: nn.Module) -> None:
    def step() -> None:
        y = net(torch.randn(4, 3))
        torch.distributions.Normal(y, torch.ones_like(y), validate_args=False).sample()

    (sync,) = find_syncs(step)
    assert sync.op == "torch.normal with a tensor for std"


def test_sparse_gradients_wait_in_their_optimizer() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))

    def step() -> None:
        table(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()

    (sync,) = find_syncs(step)
    assert sync.code == "optimizer.step()"
    assert sync.op == "to_sparse, coalesce"


def test_hooks_and_custom_backwards_are_user_code(net: nn.Module) -> None:
    def look(grad: torch.Tensor) -> None:
        grad.tolist()

    def step() -> None:
        y = net(torch.randn(4, 3))
        y.register_hook(look)
        y.sum().backward()

    assert lines(find_syncs(step)) == ["grad.tolist()"]


def test_without_a_model_it_says_that_nothing_counted() -> None:
    syncs = find_syncs(lambda: torch.ones(3).tolist())
    assert syncs == []
    assert "pass model=" in syncs.warnings[0]


def test_explicit_waits_count_without_a_gpu(net: nn.Module) -> None:
    def step() -> None:
        net(torch.randn(4, 3))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    before = torch.cuda.synchronize, torch.cuda.empty_cache
    syncs = find_syncs(step)
    assert [s.op for s in syncs] == ["torch.cuda.synchronize", "torch.cuda.empty_cache"]
    assert (torch.cuda.synchronize, torch.cuda.empty_cache) == before


def test_explicit_waits_for_another_device_have_its_name(net: nn.Module) -> None:
    """Code for a Mac or an Intel GPU is looked at where there is neither."""

    def step() -> None:
        net(torch.randn(4, 3))
        torch.mps.synchronize()
        torch.xpu.empty_cache()

    assert [s.op for s in find_syncs(step)] == ["torch.mps.synchronize", "torch.xpu.empty_cache"]


def test_grad_scaler_waits_once_a_step(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(net(torch.randn(4, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    syncs = find_syncs(step)
    assert lines(syncs)[0] == "scaler.step(optimizer)"
    assert syncs[0].op == "GradScaler.step"
    assert syncs[0].count == 1


def test_asking_for_the_scale_is_not_the_step(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(net(torch.randn(4, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.get_scale()

    ops = {sync.code: (sync.op, sync.count) for sync in find_syncs(step)}
    assert ops["scaler.step(optimizer)"] == ("GradScaler.step", 1)
    assert ops["scaler.get_scale()"] == ("GradScaler.get_scale", 1)


def test_one_hot_waits_once(net: nn.Module) -> None:
    def step() -> None:
        best = net(torch.randn(4, 3)).argmax(1)
        F.one_hot(best)
        F.one_hot(best, 2)

    (sync,) = find_syncs(step)
    assert (sync.code, sync.count) == ("F.one_hot(best)", 1)
    assert sync.op == "one_hot without num_classes"


@pytest.mark.parametrize(
    ("line", "op"),
    [
        ("torch.tensor([1.0, 2.0], device=device)", "torch.tensor(…)"),
        ("torch.tensor(3.0, device=y.device)", "torch.tensor(…)"),
        ("torch.as_tensor(values, device=y.device)", "torch.as_tensor(…)"),
        ("y.new_tensor([1.0, 2.0])", "y.new_tensor(…)"),
        ("torch.arange(4.0).to(y.device)", "a copy to the device"),
        ("torch.from_numpy(values).to(device)", "a copy to the device"),
        ("y[[0, 2]]", "a list or an array as an index"),
        ("y[positions]", "a list or an array as an index"),
        ("y[:, [1, 0]]", "a list or an array as an index"),
        ("y.detach().__setitem__([0, 2], 0.0)", "a list or an array as an index"),
        ("torch.zeros(2).type_as(y)", "a copy to the device"),
        ("y[torch.randperm(4)]", "an index tensor on the host"),
        ("y[torch.randperm(8)[:4] // 2]", "an index tensor on the host"),
        ("y.detach()[torch.arange(2), torch.randint(2, (2,))]", "an index tensor on the host"),
        (
            "y.detach().__setitem__(torch.arange(2), y[2:].detach().clone())",
            "an index tensor on the host",
        ),
    ],
)
def test_a_copy_to_the_device_waits_and_is_of_its_own_kind(
    net: nn.Module, line: str, op: str
) -> None:
    names = {
        "device": torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        "values": np.ones(2, np.float32),
        "positions": np.array([0, 2]),
        "torch": torch,
    }
    code = compiled(line)
    x = torch.randn(4, 3)

    def step() -> None:
        y = net(x)
        exec(code, {**names, "y": y})

    (sync,) = find_syncs(step)
    assert sync.kind == "copy"
    assert sync.op == op
    assert "waits for the copy" in sync.why
    assert "for a copy to it" in SyncLines([sync]).to_text()


@pytest.mark.parametrize(
    "line",
    [
        "x.to(device, non_blocking=True)",
        "x.to(device, torch.float32, True)",
        "y.to(device)",
        "torch.tensor([1.0])",
        'torch.tensor([1.0], device="cpu")',
        "torch.tensor([1.0], device=x.device)",
        "torch.zeros(3, device=device)",
        "y[0:2]",
        "y[1, 0]",
        "x[[0, 2]]",
        "y[torch.arange(2, device=y.device)]",
        "y[torch.arange(2, device=device)]",
        "y[torch.arange(2, device=device) + torch.ones(2, dtype=int, device=device)]",
        "x[torch.randperm(4)]",
        "y.to(torch.float64)",
        # a model's counter: it is where the model is
        "state.to(device)",
    ],
)
def test_what_is_no_waiting_copy_to_the_device(net: nn.Module, line: str) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    state = nn.Parameter(torch.zeros(()), requires_grad=False)
    code = compiled(line)

    def step() -> None:
        y = net(torch.randn(4, 3))
        names = {"x": torch.randn(4, 3), "y": y, "torch": torch, "device": device, "state": state}
        exec(code, names)

    assert find_syncs(step) == []


def test_where_a_factory_makes_positions_is_known_or_nothing_is_said(net: nn.Module) -> None:
    x = torch.randn(4, 3)

    def step() -> None:
        y = net(x)
        with torch.device("cpu"):  # as `with torch.device(device)` reads without a GPU
            positions = torch.randperm(4)
        y[positions]

    def no_device_in_mind() -> None:
        net(torch.randn(4, 3))[torch.randperm(4)]

    assert find_syncs(step) == []
    assert find_syncs(no_device_in_mind) == []
    with torch.device("cpu"):
        assert find_syncs(lambda: net(x)[torch.randperm(4)]) == []
    assert [s.kind for s in find_syncs(lambda: net(x)[torch.randperm(4)])] == ["copy"]


@pytest.mark.parametrize("n_features", [0, 3])
def test_a_model_that_makes_its_buffers_on_the_host_and_moves_does_not_hide_positions(
    n_features: int,
) -> None:
    """A buffer from a factory was taken for one that is used where it was made."""

    class Atoms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            # its running averages are made by factories, too
            self.norm = nn.BatchNorm1d(n_features) if n_features else nn.Identity()
            self.register_buffer("atoms", torch.linspace(0.0, 1.0, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.linear(x)) * self.atoms

    device = torch.device("cpu")  # what a script falls back to
    x = torch.randn(4, 3).to(device)

    def step(moves: bool = True) -> None:
        model = Atoms().to(device) if moves else Atoms()
        model(x)[torch.arange(2), torch.zeros(2, dtype=int, device=x.device)]

    assert [s.op for s in find_syncs(step)] == ["an index tensor on the host"]
    assert find_syncs(lambda: step(moves=False)) == []  # no device in mind


LIBRARY = """
class Trainer:
    def fit(self, model, x):
        loss = model(x).sum()
        self.log(loss)
        return loss

    def log(self, loss):
        return loss.item()

def normalized(x):
    if x.isnan().any():
        raise ValueError
    return x
"""


def test_a_library_that_passes_the_name_of_its_device_does_not_ask_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Keras: its device is the text "cpu" where there is no GPU, and "cuda" where there is."""
    package = tmp_path / "site-packages" / "devices"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "DEVICE = 'cpu'\n"
        "def converted(x):\n    return x.to(DEVICE)\n"
        "def kept(x):\n    return x.to('cpu')\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    devices = importlib.import_module("devices")
    model = nn.Linear(3, 2)

    def step() -> None:
        y = devices.converted(model(torch.randn(4, 3)))
        devices.kept(y.detach())
        y.sum().backward()

    assert {sync.code for sync in find_syncs(step)} == {"return x.to('cpu')"}


def _installed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library of its own for each test: what is imported once stays imported."""
    package = folder / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(package.parent))
    return importlib.import_module(name)


def test_below_a_trainer_the_librarys_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has one line, and two places of the library wait below it."""
    trainers = _installed("trainers", tmp_path, monkeypatch)

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Head()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(x)
            y.tolist()
            return y

    class Head(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = trainers.normalized(super().forward(x))
            return y

    model = Mine()
    trainer = trainers.Trainer()

    def step() -> None:
        for _ in range(2):
            trainer.fit(model, torch.randn(4, 3))

    syncs = {sync.code: sync for sync in find_syncs(step)}
    assert set(syncs) == {"return loss.item()", "if x.isnan().any():", "y.tolist()"}
    logged = syncs["return loss.item()"]
    assert logged.place == "trainers/__init__.py:9"
    assert logged.below.startswith("test_find.py:")
    assert logged.instead.startswith("look for an option of what you call")
    assert logged.example == ""
    assert logged.count == 2
    assert syncs["y.tolist()"].below == ""  # the user's own line says it all
    # the user's line is on the first screen
    assert f"trainers/__init__.py:9, called from {logged.below}: Tensor.item (2 times" in str(
        logged
    )


def test_of_a_librarys_many_callers_the_most_frequent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the first one."""
    checkers = _installed("checkers", tmp_path, monkeypatch)

    class Checked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = checkers.normalized(super().forward(x))
            return y

    model = nn.Sequential(Checked(3, 3), Checked(3, 3))

    def step() -> None:
        y = model(torch.randn(4, 3))
        checkers.normalized(y)

    (sync,) = find_syncs(step)
    assert sync.count == 3
    within = Checked.forward.__code__.co_firstlineno + 1
    assert sync.below == f"test_find.py:{within} and 1 other line"
    assert f"called from {sync.below}" in str(SyncLines([sync]))


def test_of_a_librarys_lines_that_ask_the_most_frequent_is_named(net: nn.Module) -> None:
    """It was the first one: where the distribution was made."""
    distribution = torch.distributions.Distribution
    code, first = inspect.getsourcelines(distribution._validate_sample)

    def step() -> None:
        y = net(torch.randn(4, 3))
        [one.log_prob(y) for one in [torch.distributions.Normal(y, 1.0)] for _ in range(5)]

    (sync,) = find_syncs(step)
    named, _, others = sync.inside.partition(" and ")
    file, _, line = named.partition(":")
    assert file == "torch/distributions/distribution.py"
    assert first <= int(line) < first + len(code)
    assert others == "2 other lines"  # those of its two parameters


def test_what_a_library_asks_for_is_not_said_of_the_lines_own_waits(net: nn.Module) -> None:
    """The advice for all of them was to call the optimizer less often."""
    optimizer = torch.optim.ASGD(net.parameters(), foreach=False)

    def step() -> object:
        net(torch.randn(4, 3)).sum().backward()
        return optimizer.step(), net.weight.nonzero(as_tuple=True)

    (sync,) = find_syncs(step)
    library, own = sync.instead.split("; ")
    assert library == "call what asks for it less often, or look for an option of it"
    assert own == "use the mask itself, not where it is true"
    assert "torch.where(mask" in sync.example


def test_the_step_trains_as_without(net: nn.Module) -> None:
    twin = nn.Linear(3, 2)
    twin.load_state_dict(net.state_dict())
    x = torch.randn(4, 3)

    def train(model: nn.Module) -> None:
        optimizer = torch.optim.Adam(model.parameters())
        y = model(x)
        y[y > 0].sum().backward()
        y.detach().cpu().mul_(0)
        optimizer.step()

    find_syncs(lambda: train(net))
    train(twin)
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_the_list_is_a_list_with_json(net: nn.Module) -> None:
    import json

    syncs = find_syncs(lambda: net(torch.randn(4, 3)).sum().item())
    assert isinstance(syncs, list)
    data = json.loads(json.dumps(syncs.to_dict()))
    assert data["syncs"][0]["line"] == syncs[0].line
    assert data["provenance"]["kind"] == "predicted"


def test_other_threads_are_left_alone(net: nn.Module) -> None:
    done = []

    def elsewhere() -> None:
        done.append(net(torch.randn(4, 3)).sum().item())

    def step() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert find_syncs(step) == []
    assert done


@pytest.mark.parametrize(
    "make",
    [lambda: torch.FloatTensor(4, 3).fill_(1.0), lambda: torch.Tensor(6, 3).zero_()[:4]],
)
def test_what_a_class_of_tensors_makes_is_on_the_host_until_it_is_copied(
    net: nn.Module, make: Callable[[], torch.Tensor]
) -> None:
    device = torch.device("cpu")  # what a script falls back to
    data = make()
    (sync,) = find_syncs(lambda: net(make().to(device)) + net(data.to(device)))
    assert (sync.op, sync.count) == ("a copy to the device", 2)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[range(2)],
        lambda x: x[range(2), x[:2].argmax(1)],
        lambda x: x[(0, 1), (1, 0)],
        lambda x: x[:, [[0, 1], [1, 0]]],
    ],
)
def test_positions_of_a_range_or_a_tuple_are_copied_like_those_of_a_list(
    net: nn.Module, read: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(4, 3)
    (sync,) = find_syncs(lambda: read(net(x)))
    assert sync.op == "a list or an array as an index"
    assert find_syncs(lambda: (net(x)[0, 1], net(x)[(0, 1)], net(x)[0:2, ...])) == []


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_sizes_of_packed_sequences_are_on_the_host(make: Any) -> None:
    """Of sequences that were packed before, each call was to wait twice for their number."""
    rnn = make(3, 4)
    x = pack_sequence([torch.randn(5, 3), torch.randn(3, 3)])
    assert find_syncs(lambda: rnn(x)) == []


def test_a_lazy_module_gets_its_parameters_as_it_is_looked_at() -> None:
    def step() -> None:
        nn.LazyLinear(2)(torch.ones(3, 4)).sum().item()

    found = find_syncs(step)
    assert [sync.op for sync in found] == ["Tensor.item"]
    assert not found.warnings
