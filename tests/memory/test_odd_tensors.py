"""Tensors that are not a plain piece of memory: counted rightly, or left out; never a crash."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from wrapper_tensors import Pair

import perfkit
from perfkit.memory.account import Accountant, account

KIB = 1024


def test_resize_in_place_counts_with_the_new_size() -> None:
    kept = []

    def work() -> None:
        t = torch.zeros(256)
        t.resize_(1024)
        kept.append(t)

    result = account(work)
    assert result.left_behind_bytes == 4 * KIB
    # the allocator has both at once for a moment, inside the operator
    assert result.peak_bytes - result.start_bytes == 4 * KIB


def test_resize_of_a_storage_is_noticed_at_once() -> None:
    t = torch.zeros(1024)

    def work() -> None:
        t.untyped_storage().resize_(0)
        torch.zeros(512)

    result = account(work)
    assert result.left_behind_bytes == -4 * KIB
    # the new tensor came after the old memory had gone
    assert result.peak_bytes == result.start_bytes
    assert "resize_" not in vars(torch.UntypedStorage)
    again = account(lambda: t.untyped_storage().resize_(4 * KIB))
    assert again.left_behind_bytes == 4 * KIB


def test_out_variants_and_set_follow_the_storage() -> None:
    target = torch.empty(0)
    result = account(lambda: torch.add(torch.ones(256), 1, out=target))
    assert result.left_behind_bytes == KIB
    other = torch.zeros(2048)
    shared = account(lambda: target.set_(other))
    assert shared.left_behind_bytes == -KIB


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors_count_indices_and_values() -> None:
    kept: list[Tensor] = []
    dense = torch.eye(64)
    coo = account(lambda: kept.append(dense.to_sparse()))
    # 2 × 64 int64 indices, 64 float32 values
    assert coo.left_behind_bytes == 2 * 64 * 8 + 64 * 4
    csr = account(lambda: kept.append(dense.to_sparse_csr()))
    # its column indices are a view of the 2 × 64 that were made on the way, and keep them alive
    assert csr.left_behind_bytes == 65 * 8 + 2 * 64 * 8 + 64 * 4


def test_sparse_gradients_are_gradients() -> None:
    table = nn.Embedding(100, 16, sparse=True)
    ids = torch.tensor([3, 5, 3])
    result = account(lambda: table(ids).sum().backward())
    gained = result.at_end_bytes["gradients"] - result.at_start_bytes["gradients"]
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    values = 3 * 16 * 4
    assert gained >= values
    table.weight.grad = None


def test_sparse_tensors_end_neither_an_account_nor_a_search_for_leaks() -> None:
    """What they are asked for must not be ``.nbytes``, which raises."""
    kept = torch.eye(64).to_sparse()
    target = torch.eye(64).to_sparse()
    table = nn.Embedding(100, 16, sparse=True)
    ids = torch.tensor([3, 5, 3])

    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    def step() -> None:
        Doubles()(kept)
        target.copy_(kept)
        table(ids).sum().backward()

    for _ in range(2):  # the second begins with a sparse gradient
        assert not [one for one in account(step).warnings if "failed" in one]
    assert perfkit.find_leaks(step, steps=8).views == ()
    assert kept.is_sparse


def test_meta_and_fake_tensors_hold_no_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kept: list[Tensor] = []

    def work() -> None:
        kept.append(torch.zeros(10**9, device="meta") + 1)
        with FakeTensorMode():
            kept.append(torch.zeros(10**9) + 1)

    result = account(work)
    assert result.left_behind_bytes == 0
    assert result.peak_bytes == result.start_bytes
    sparse = torch.eye(4).to_sparse()  # looking at it runs operators, which the mode would refuse
    with FakeTensorMode():
        inside = account(lambda: kept.append(torch.zeros(10**9) * 2))
    assert inside.left_behind_bytes == 0
    assert sparse.is_sparse


def test_opaque_layouts_are_reported_as_not_counted() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no MKL-DNN")
    dense = torch.randn(8, 8)
    result = account(lambda: dense.to_mkldnn().to_dense())
    assert any("MKL-DNN" in warning for warning in result.warnings)


def test_wrapper_subclasses_count_their_inner_tensors() -> None:
    kept: list[Any] = []
    pair = Pair(torch.zeros(256), torch.zeros(256))
    result = account(lambda: kept.append(torch.add(pair, 1)))
    assert result.left_behind_bytes == 2 * KIB


def test_plain_subclasses_count_once() -> None:
    class Named(Tensor):
        pass

    kept: list[Tensor] = []
    result = account(lambda: kept.append(torch.zeros(256).as_subclass(Named) + 1))
    assert isinstance(kept[0], Named)
    assert result.left_behind_bytes == KIB


def test_jagged_tensors_count_their_values() -> None:
    kept: list[Tensor] = []

    def work() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the nested API is a prototype, and says so
            parts = [torch.ones(100), torch.ones(156)]
            kept.append(torch.nested.nested_tensor(parts, layout=torch.jagged))

    result = account(work)
    assert result.left_behind_bytes >= KIB


def test_batches_from_workers_are_inputs() -> None:
    loader = DataLoader(
        TensorDataset(torch.randn(16, 64), torch.randn(16, 1)), batch_size=8, num_workers=1
    )
    model = nn.Linear(64, 1)
    with Accountant() as accountant:
        for x, y in loader:
            (model(x) - y).square().sum().backward()
            model.zero_grad()
        del x, y
    result = accountant.result
    assert result.at_peak_bytes["inputs"] - result.at_start_bytes["inputs"] >= 8 * 64 * 4
    assert result.at_end_bytes["inputs"] == result.at_start_bytes["inputs"]


def test_modules_half_built_and_lazy_do_not_disturb() -> None:
    half = nn.Module.__new__(nn.Module)
    lazy = nn.LazyLinear(4)
    result = account(lambda: lazy(torch.randn(2, 8)))
    parameters = result.at_end_bytes["parameters"] - result.at_start_bytes["parameters"]
    assert parameters == (8 * 4 + 4) * 4
    del half


def test_functional_transforms_are_counted() -> None:
    kept: list[Any] = []
    weight, batch = torch.randn(16), torch.randn(8, 16)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (w * x).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    result = account(lambda: kept.append(per_sample(weight, batch)))
    assert result.left_behind_bytes == 8 * 16 * 4


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_a_model_that_torch_jit_traces_is_traced_as_without() -> None:
    """There a size is a tensor: comparing one was traced, too, and torch refused the graph."""
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.rand(4, 8)

    def kinds() -> list[str]:
        return [node.kind() for node in torch.jit.trace(model, x).inlined_graph.nodes()]

    plain, counted = kinds(), []
    result = account(lambda: counted.append(kinds()))
    assert counted == [plain]
    assert not result.warnings


def test_parameters_may_be_swapped_as_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to swap tensors with weak references: ours raised out of ``Module.to``."""
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    model = nn.Linear(16, 16)

    def work() -> None:
        model.double()
        model(torch.ones(2, 16, dtype=torch.float64)).sum().backward()

    result = account(work, model=model)
    n_bytes = 8 * (16 * 16 + 16)
    assert result.at_end_bytes["parameters"] == n_bytes
    assert result.at_end_bytes["gradients"] == n_bytes
    assert not result.warnings
