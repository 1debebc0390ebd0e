"""Will it fit: against the real step on the CPU, and what each option does to the peak."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perfkit.base.errors import UsageError
from perfkit.base.torch_compat import fake_mode
from perfkit.memory import fake_step
from perfkit.memory import fit as fit_module
from perfkit.memory.account import account
from perfkit.memory.fake_batch import Batches
from perfkit.memory.fit import will_it_fit
from perfkit.memory.ledger import Totals


def _cnn() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Conv2d(c, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        for c in (3, 24, 24)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, dropout=0.0)
    return nn.Sequential(
        nn.Flatten(2), nn.Linear(1024, 48), layer, nn.Flatten(), nn.Linear(144, 10)
    )


def _batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 32, 32), torch.zeros(n, dtype=torch.long)


def test_a_model_that_copies_its_layers_is_counted_once() -> None:
    """As nn.TransformerEncoder does: views of a fake tensor's deep copy have another storage."""

    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def sequences(n: int) -> Tensor:
        return torch.randn(n, 4, 16)

    made, given = (
        will_it_fit(model, sequences, batch=2, optimizer="Adam", gpus_gb=())
        for model in (make, make())
    )
    assert made.peak_bytes == given.peak_bytes
    assert made.at_peak_bytes == given.at_peak_bytes
    assert made.at_peak_bytes["inputs"] == 2 * 4 * 16 * 4


def test_the_line_that_asks_is_blamed_for_nothing() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    found = will_it_fit(model, lambda n: torch.rand(n, 64), batch=8, gpus_gb=())
    assert not [one for one in found.by_line if one.file == __file__]
    assert "will_it_fit" not in found.to_text()


@pytest.mark.slow
def test_a_batch_that_is_made_on_a_gpu_is_predicted_as_one_on_the_cpu() -> None:
    """As on a machine with one: `make_batch` makes it where the training step does."""

    def on_gpu(n: int) -> tuple[Tensor, dict[str, Tensor]]:
        images = torch.randn(n, 3, 32, 32, device="cuda")
        return images, {"labels": torch.zeros(n, dtype=torch.long, device="cuda")}

    def loss(output: Tensor, target: dict[str, Tensor]) -> Tensor:
        return cross_entropy(output, target["labels"])

    def here(n: int) -> tuple[Tensor, dict[str, Tensor]]:
        images, labels = _batch(n)
        return images, {"labels": labels}

    there = will_it_fit(_cnn(), on_gpu, batch=8, loss=loss, gpus_gb=())
    assert there.peak_bytes == will_it_fit(_cnn(), here, batch=8, loss=loss, gpus_gb=()).peak_bytes
    assert there.at_peak_bytes["inputs"] == 8 * 3 * 32 * 32 * 4 + 8 * 8


def test_a_forward_that_makes_tensors_on_a_gpu_is_told() -> None:
    class Positions(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(4, device="cuda").float().cpu()

    with pytest.raises(UsageError, match=r"made a tensor on cuda.* on the device of the inputs"):
        will_it_fit(Positions(), lambda n: torch.zeros(n, 4), optimizer=None, gpus_gb=())


@pytest.mark.parametrize("make", [_cnn, _transformer])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.slow
def test_it_agrees_with_a_real_step(make: Callable[[], nn.Module], kind: str) -> None:
    model = make()
    before = [p.clone() for p in model.parameters()]
    predicted = will_it_fit(model, _batch, batch=8, optimizer=kind, loss=cross_entropy, gpus_gb=())
    # the model was not touched
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    # on CUDA torch takes the foreach way by itself, which the prediction assumes
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        images, labels = _batch(8)
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    del before
    real = account(step, model=model)
    foreign = real.start_bytes - sum(
        t.nbytes for t in (*model.parameters(), *model.buffers())
    )  # other tests' leftovers, and the optimizer's own
    state = sum(
        t.nbytes for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor)
    )
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    foreign -= state + gradients
    assert real.peak_bytes - foreign == pytest.approx(predicted.peak_bytes, rel=0.01)


@pytest.mark.slow
def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    model = _cnn()
    fit = will_it_fit(model, _batch, batch=4, loss=cross_entropy, gpus_gb=(2, 4))
    assert 0 < fit.gpus[0].largest_batch < fit.gpus[1].largest_batch  # type: ignore[operator]
    for gpu in fit.gpus:
        assert gpu.fits
        assert gpu.exact
        n = gpu.largest_batch
        assert n is not None
        for batch, fits in ((n, True), (n + 1, False)):
            again = will_it_fit(model, _batch, batch=batch, loss=cross_entropy, gpus_gb=())
            assert (again.with_margin_bytes <= gpu.gb * 1e9) is fits
    assert fit.per_sample_bytes == pytest.approx(4 * 24 * 1024 * 9, rel=0.2)


def test_nothing_fits_where_the_margin_alone_is_too_much() -> None:
    fit = will_it_fit(_cnn(), _batch, batch=2, gpus_gb=(0.5,))
    assert fit.gpus[0].largest_batch == 0
    assert not fit.gpus[0].fits
    assert "fits on none" in fit.to_text()


def test_a_peak_that_is_no_straight_line_is_bisected() -> None:
    peaks = {1: 10**8}

    def peak(n: int) -> int:
        peaks.setdefault(n, 10**8 if n < 777 else 10**10)
        return peaks[n]

    low, high = fit_module._largest(2 * 10**9, peaks, peak)
    assert low < 777 <= (high or 0)


def test_a_batch_that_costs_nothing_has_no_largest() -> None:
    peaks = {1: 1000}

    def peak(n: int) -> int:
        peaks.setdefault(n, 1000)
        return peaks[n]

    low, high = fit_module._largest(2 * 10**9, peaks, peak)
    assert high is None
    assert low > 1


@pytest.mark.slow
def test_options_lower_the_peak() -> None:
    def peak(**options: Any) -> int:
        fit = will_it_fit(_cnn(), _batch, batch=16, loss=cross_entropy, gpus_gb=(), **options)
        return fit.peak_bytes

    plain = peak()
    assert peak(checkpointing=True) < 0.8 * plain
    assert peak(checkpointing=["0", "1"]) < plain
    assert peak(precision="bfloat16") < 0.6 * plain
    assert peak(precision="amp") < plain
    assert peak(optimizer=None) <= plain


def test_parameters_gradients_and_state_are_exact() -> None:
    model = nn.Linear(1000, 1000)  # its optimizer step is the peak
    nbytes = sum(p.nbytes for p in model.parameters())
    fit = will_it_fit(model, lambda n: torch.randn(n, 1000), batch=1, gpus_gb=())
    assert fit.at_peak_bytes["parameters"] == fit.at_peak_bytes["gradients"] == nbytes
    assert fit.at_peak_bytes["optimizer state"] == 2 * nbytes + 2 * 4
    assert sum(m.nbytes for m in fit.by_module) == fit.peak_bytes
    assert sum(x.nbytes for x in fit.by_line) == fit.peak_bytes


def test_a_model_larger_than_this_machine_is_made_by_a_function() -> None:
    fit = will_it_fit(lambda: nn.Linear(200_000, 100_000), lambda n: torch.randn(n, 200_000))
    assert fit.at_peak_bytes["parameters"] == (200_000 + 1) * 100_000 * 4
    assert not fit.gpus[-1].fits


def test_dicts_outputs_with_a_loss_and_fixed_batches() -> None:
    class Out:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor, scale: float) -> Out:
            return Out((self.layer(x) * scale).sum())

    fit = will_it_fit(Net(), lambda: {"x": torch.randn(4, 8), "scale": 2.0}, optimizer="SGD")
    assert fit.batch is None
    assert fit.per_sample_bytes is None
    assert all(gpu.largest_batch is None for gpu in fit.gpus)
    assert "The batch needs" in fit.to_text()


def test_an_optimizers_class_and_settings_are_taken() -> None:
    model = nn.Linear(100, 100)
    own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit = will_it_fit(model, lambda n: torch.randn(n, 100), optimizer=own, batch=1, gpus_gb=())
    state = fit.at_peak_bytes["optimizer state"]
    assert state == sum(p.nbytes for p in model.parameters())
    assert not own.state


class _Valued(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y[y > 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "float8"}, "precision"),
        ({"batch": 0}, "batch is 0"),
        ({"optimizer": "Nadamm"}, "torch.optim has no"),
        ({"optimizer": lambda p: 3}, "optimizer gave a int"),
        ({"checkpointing": "nowhere"}, "not a module of the model"),
        ({"checkpointing": True}, "this model has none"),
        ({"loss": lambda out, *rest: out}, "not one number"),
        ({"model": _Valued()}, "depends on the values"),
        ({"model": lambda: 3}, "must make a module"),
        ({"make_batch": lambda n: torch.randn(n, 4, device="meta")}, "on meta"),
        ({"make_batch": 3}, "function of the batch size"),
        ({"gpus_gb": [24, -1]}, "gpus_gb is .* with -1 in it"),
        ({"gpus_gb": [0]}, "with 0 in it"),
        ({"gpus_gb": [float("inf")]}, "with inf in it"),
        ({"gpus_gb": 24}, "gpus_gb is 24; give a list of memory sizes"),
    ],
)
def test_what_cannot_be_predicted_is_said(options: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {
        "model": nn.Linear(4, 4),
        "make_batch": lambda n: torch.randn(n, 4),
        **options,
    }
    with pytest.raises(UsageError, match=says):
        will_it_fit(**given)


def test_it_is_told_and_labelled_as_predicted() -> None:
    fit = will_it_fit(_cnn(), _batch, batch=4, loss=cross_entropy, gpus_gb=(2, 16))
    words, page = fit.to_text(), fit._repr_html_().replace("\xa0", " ")
    for said in (
        "predicted",
        "margin",
        "16 GB",
        f"{fit.gpus[0].largest_batch:,}",
    ):
        assert said in words
        assert said in page
    assert "Peak against the batch, and the sizes of GPUs: a batch of 4:" in page
    assert fit.provenance.kind == "predicted"
    assert all(len(line) <= 100 for line in words.splitlines())
    data = json.loads(json.dumps(fit.to_dict()))
    assert data["gpus"][0]["largest_batch"] == fit.gpus[0].largest_batch


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
)


class _Bag(nn.Module):
    """Its gradient is sparse, as SparseAdam wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(500, 16, mode="sum", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.words((x[:, 0, :2].abs() * 100).long().flatten(1) % 500)
        return found


def _owned(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Parameters, gradients and state, each storage once."""
    tensors = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    for state in optimizer.state.values():
        tensors += [t for t in state.values() if isinstance(t, Tensor)]
    return sum(t.nbytes for t in tensors if t.layout is torch.strided)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_of_torch_is_taken_as_an_object(kind: str) -> None:
    """Predicted against the peak of the real step, for an optimizer that exists already."""
    model: nn.Module = _Bag() if kind == "SparseAdam" else _cnn()
    parameters = [p for p in model.parameters() if kind != "Muon" or p.dim() == 2]
    maker = getattr(torch.optim, kind)
    accepts = inspect.signature(maker.__init__).parameters
    # on CUDA torch takes the foreach way by itself, which the prediction assumes
    optimizer = maker(parameters, **({"foreach": True} if "foreach" in accepts else {}))

    def predict() -> fit_module.Fit:
        return will_it_fit(model, _batch, batch=8, optimizer=optimizer, gpus_gb=())

    if kind == "LBFGS":
        with pytest.raises(UsageError, match="decides by the loss how often"):
            predict()
        return
    predicted = predict()
    assert not optimizer.state or kind == "Adagrad"  # which makes it at once

    def step() -> None:
        model.zero_grad()
        model(_batch(8)[0]).sum().backward()
        optimizer.step()

    step()
    real = account(step, model=model)
    foreign = real.start_bytes - _owned(model, optimizer) - sum(b.nbytes for b in model.buffers())
    if kind == "SparseAdam":
        # its own state: the account also counts what earlier tests still hold
        state = [t for kept in optimizer.state.values() for t in kept.values()]
        own = sum(t.nbytes for t in state if isinstance(t, Tensor))
        assert predicted.at_peak_bytes["optimizer state"] == own
        assert any("gradient is sparse" in warning for warning in predicted.warnings)
        return
    assert predicted.peak_bytes == pytest.approx(real.peak_bytes - foreign, rel=0.01)


def test_groups_of_an_optimizer_of_this_model_are_kept() -> None:
    """Weight decay in groups, as most recipes have it, and a group that is not trained."""
    model = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 300))
    own = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "momentum": 0.9},
            {"params": model[1].parameters(), "momentum": 0.0},
        ],
        lr=0.1,
    )
    fit = will_it_fit(model, lambda n: torch.randn(n, 100), optimizer=own, batch=1, gpus_gb=())
    assert fit.at_peak_bytes["optimizer state"] == sum(p.nbytes for p in model[0].parameters())
    assert not fit.warnings

    def again() -> nn.Module:
        return nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 300))

    other = will_it_fit(again, lambda n: torch.randn(n, 100), optimizer=own, batch=1, gpus_gb=())
    assert "groups are predicted as one" in other.to_text()


def test_an_optimizer_that_cannot_be_made_again_is_told() -> None:
    class Own(torch.optim.SGD):
        def __init__(self, params: Any, inner: object) -> None:
            super().__init__(params, lr=0.1)

    model = nn.Linear(4, 4)
    own = Own(model.parameters(), object())
    with pytest.raises(UsageError, match="another Own cannot be made"):
        will_it_fit(model, lambda n: torch.randn(n, 4), optimizer=own)


def test_values_that_an_optimizer_reads_are_told() -> None:
    fit = will_it_fit(_cnn(), _batch, batch=4, optimizer="ASGD", gpus_gb=())
    assert any("1 was taken" in warning for warning in fit.warnings)


@pytest.mark.slow
def test_no_batch_larger_than_the_one_asked_for_is_made() -> None:
    """`make_batch` may read a data set, which has an end."""
    images, labels = _batch(20)
    asked = []

    def make_batch(n: int) -> tuple[Tensor, Tensor]:
        asked.append(n)
        return images[:n], labels[:n]

    fit = will_it_fit(_cnn(), make_batch, batch=16, loss=cross_entropy, gpus_gb=(2, 16, 80))
    assert max(asked) == 16
    assert fit.n_evaluations == 3
    free = will_it_fit(_cnn(), _batch, batch=16, loss=cross_entropy, gpus_gb=(2, 16, 80))
    # not the data set but the batch: a view of it is copied to the GPU as it is shown
    assert fit.peak_bytes == free.peak_bytes
    assert [gpu.largest_batch for gpu in fit.gpus] == [gpu.largest_batch for gpu in free.gpus]


def test_a_data_set_smaller_than_the_batch_is_told() -> None:
    images, labels = _batch(20)
    fit = will_it_fit(
        _cnn(), lambda n: (images[:n], labels[:n]), batch=32, loss=cross_entropy, gpus_gb=(16,)
    )
    assert fit.gpus[0].largest_batch is None
    assert any("data set smaller than the batch" in warning for warning in fit.warnings)


def test_a_list_of_samples_is_tried_until_the_data_set_ends() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1000, 10)

        def forward(self, samples: list[Tensor]) -> Tensor:
            return self.layer(torch.stack(samples)).sum()

    data = [torch.randn(1000) for _ in range(40)]
    fit = will_it_fit(
        Net(), lambda n: ([data[i] for i in range(n)],), batch=8, gpus_gb=(1.5,), optimizer="SGD"
    )
    assert 8 <= (fit.gpus[0].largest_batch or 0) <= 40
    assert not fit.gpus[0].exact
    assert any("IndexError" in warning for warning in fit.warnings)


def test_a_tensor_that_is_input_and_target_is_one_in_a_batch_of_any_size() -> None:
    def make_batch(n: int) -> dict[str, Any]:
        x = torch.ones(n, 3)
        return {"x": x, "target": x, "other": torch.ones(n, 3), "n": n, "k": 7}

    batches = Batches(fake_mode(), make_batch, 8, takes_size=True)
    assert batches.grows_evenly
    for n in (1, 8, 20):
        batch = batches.of(n)
        assert batch["x"] is batch["target"]
        assert batch["x"] is not batch["other"]
        assert (*batch["x"].shape, *batch["other"].shape) == (n, 3, n, 3)
        assert (batch["n"], batch["k"]) == (n, 7)
    fixed = Batches(fake_mode(), lambda n: (torch.ones(4), n), 8, takes_size=True)
    assert fixed.why_not == "make_batch(8) and make_batch(4) give tensors of the same size"
    assert not fixed.may_grow


def test_a_data_set_of_one_sample() -> None:
    only = torch.ones(1, 4)

    def make_batch(n: int) -> Tensor:
        if n > len(only):
            raise IndexError("no more")
        return only[:n]

    fit = will_it_fit(nn.Linear(4, 4), make_batch, batch=1, gpus_gb=(16,))
    assert (fit.gpus[0].fits, fit.gpus[0].largest_batch) == (True, None)
    (said,) = fit.warnings
    assert said.startswith("make_batch(2) raised IndexError: ")


def test_blocks_are_the_outermost_modules_with_modules_in_a_list() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    by_itself = nn.TransformerEncoderLayer(4, 1)
    model = nn.ModuleDict({"list": nn.ModuleList([block, nn.Linear(4, 4)]), "one": by_itself})
    assert fake_step._blocks(model) == [block]


@pytest.mark.parametrize(
    ("between", "end", "largest", "exact"),
    [
        ((40, 41), None, 40, True),
        ((40, 43), None, 40, False),
        ((40, 41), 42, 40, True),
        ((40, 41), 41, 40, False),  # the data set ends there: a larger batch was not refused
        ((0, 1), None, 0, True),
        ((0, 5), None, 0, False),
    ],
)
def test_what_is_exact(
    between: tuple[int, int], end: int | None, largest: int, exact: bool
) -> None:
    sizes: Any = SimpleNamespace(
        may_grow=True, end=end, largest=lambda limit: between, peak=lambda n: n
    )
    found = fit_module._on(16, Totals(0, 0, 0, {}, {}, {}), sizes)
    assert (found.largest_batch, found.exact) == (largest, exact)


def test_the_model_is_made_once() -> None:
    made = []

    def model() -> nn.Module:
        made.append(1)
        return _cnn()

    will_it_fit(model, _batch, batch=4, loss=cross_entropy)
    assert len(made) == 1


def test_the_margin_is_what_its_reason_says() -> None:
    fit = will_it_fit(_cnn(), _batch, batch=4, gpus_gb=())
    assert fit.with_margin_bytes == pytest.approx(1.05 * fit.peak_bytes + 1e9, abs=1)
    assert fit.margin_reason.startswith("margin: 1 GB ")
    assert " 5 % of the peak " in fit.margin_reason


def test_a_short_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    will_it_fit(nn.Linear(4, 4), lambda n: torch.rand(n, 4), batch=8, gpus_gb=())
    assert capsys.readouterr().err == ""
