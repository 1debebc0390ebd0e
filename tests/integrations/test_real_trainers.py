"""The callbacks in the trainers that they are for; each test skips where its library is missing.

`pip install --group integrations` brings them. Tiny random models, nothing is downloaded.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from tests.left_running import n_optimizer_step_hooks

pytestmark = [
    pytest.mark.slow,
    # of the libraries, about workers, versions and folders
    pytest.mark.filterwarnings("ignore"),
]


class Data(torch.utils.data.Dataset[Any]):
    def __init__(self, n: int, sleep_s: float = 0.0) -> None:
        self.n, self.sleep_s = n, sleep_s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sleep_s)
        return {"x": torch.full((8,), float(index)), "labels": torch.zeros(1)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.calls = [0, 0]  # evaluated, trained
        self.sleep_s = 0.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.calls[self.training] += 1
        if not self.training:
            time.sleep(self.sleep_s)
        return {"loss": self.net(x).square().mean(), "logits": x}


@pytest.fixture(autouse=True)
def no_hook_stays() -> Any:
    before = n_optimizer_step_hooks()
    yield
    assert n_optimizer_step_hooks() == before
    assert not torch_module._global_forward_pre_hooks


def seconds(summary: Any) -> dict[str, float]:
    return {one.name: one.seconds for one in summary.phases}


# --- Lightning --------------------------------------------------------------------------------


def _lightning() -> Any:
    return pytest.importorskip("lightning.pytorch")


def _module(optimizers: int = 1) -> Any:
    L = _lightning()  # noqa: N806 - as everybody writes it

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.automatic_optimization = optimizers == 1

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(**batch)["loss"]
            if self.automatic_optimization:
                return loss
            for one in self.optimizers():
                one.zero_grad()
                self.manual_backward(loss, retain_graph=True)
                one.step()
            return None

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val", self.model(**batch)["loss"])

        def configure_optimizers(self) -> Any:
            made = [torch.optim.AdamW(self.model.parameters()) for _ in range(optimizers)]
            return made[0] if optimizers == 1 else made

    return Module()


def _fit(folder: Path, watch: Any, module: Any, val: Any = None, **options: Any) -> Any:
    L = _lightning()  # noqa: N806
    checkpoint = options.pop("ckpt_path", None)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=[watch, *options.pop("callbacks", [])],
        **{"max_epochs": 2, "enable_checkpointing": False, **options},
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Data(24, 0.001), batch_size=4)
    trainer.fit(module, loader, val, ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (2, 6), (4, 4)])
def test_lightning_accumulation(tmp_path: Path, accumulate: int, steps: int) -> None:
    _lightning()
    from perfkit.integrations import LightningWatch

    watch = LightningWatch(live=False)
    trainer = _fit(tmp_path, watch, _module(), accumulate_grad_batches=accumulate)
    assert trainer.global_step == watch.summary.n_steps == steps
    assert watch.summary.ended == "finished"
    assert watch.summary.n_epochs == 2
    assert seconds(watch.summary)["data_wait"] > 2 * 24 * 0.001
    assert watch.summary.warnings == () or "failed" not in " ".join(watch.summary.warnings)


def test_lightning_validation_checkpoint_and_resume(tmp_path: Path) -> None:
    L = _lightning()  # noqa: N806
    from perfkit.integrations import LightningWatch

    watch, module = LightningWatch(live=False), _module()
    module.model.sleep_s = 0.02
    val = torch.utils.data.DataLoader(Data(12, 0.001), batch_size=4)
    keep = L.callbacks.ModelCheckpoint(dirpath=tmp_path, save_last=True)
    _fit(tmp_path, watch, module, val, callbacks=[keep], enable_checkpointing=True)
    found = seconds(watch.summary)
    assert watch.summary.n_steps == 12
    # two validations of 3 batches; the sanity check before training is not in it
    assert found["evaluation"] >= 2 * (3 * 0.02 + 12 * 0.001)
    assert found["checkpoint"] > 0
    resumed = LightningWatch(live=False)
    trainer = _fit(
        tmp_path, resumed, _module(), max_epochs=3, ckpt_path=str(tmp_path / "last.ckpt")
    )
    assert trainer.global_step == 18
    assert resumed.summary.n_steps == 6


def test_lightning_two_optimizers_and_bfloat16(tmp_path: Path) -> None:
    _lightning()
    from perfkit.integrations import LightningWatch

    watch = LightningWatch(live=False)
    trainer = _fit(tmp_path, watch, _module(optimizers=2), precision="bf16-mixed")
    assert trainer.global_step == 24
    assert watch.summary.n_steps == 12


def test_lightning_early_stop_and_exception(tmp_path: Path) -> None:
    L = _lightning()  # noqa: N806
    from perfkit.integrations import LightningWatch

    class Stop(L.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step >= 5

    watch = LightningWatch(live=False)
    _fit(tmp_path, watch, _module(), callbacks=[Stop()])
    assert watch.summary.n_steps == 5
    assert watch.summary.ended == "was stopped after 5 steps"

    class Raise(L.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _fit(tmp_path, watch, _module(), callbacks=[Raise()])
    assert watch.summary.ended == "raised ZeroDivisionError"


def test_lightning_profile(tmp_path: Path) -> None:
    _lightning()
    from perfkit.integrations import LightningWatch

    watch = LightningWatch(live=False, profile=True)
    _fit(tmp_path, watch, _module(), max_epochs=4)
    assert watch.profile.n_steps >= 1


# --- Hugging Face -----------------------------------------------------------------------------


def _train(folder: Path, watch: Any, model: Any, *, resume: bool = False, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    extra = options.pop("callbacks", [])
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=4, remove_unused_columns=False, logging_steps=3,
        **{"num_train_epochs": 2, "save_strategy": "no", **options},
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Data(24, 0.001), eval_dataset=Data(12, 0.001),
        callbacks=[watch, *extra],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (3, 4)])
def test_hugging_face_accumulation(tmp_path: Path, accumulate: int, steps: int) -> None:
    pytest.importorskip("transformers")
    from perfkit.integrations import TrainerWatch

    watch, logged = TrainerWatch(live=False, log=lambda m: logged.append(m)), []
    trainer = _train(tmp_path, watch, Model(), gradient_accumulation_steps=accumulate)
    assert trainer.state.global_step == watch.summary.n_steps == steps
    assert watch.summary.ended == "finished"
    assert seconds(watch.summary)["data_wait"] > 2 * 24 * 0.001
    assert logged[-1]["step"] == steps


def test_hugging_face_evaluation_checkpoint_and_resume(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from perfkit.integrations import TrainerWatch

    watch, model = TrainerWatch(live=False), Model()
    model.sleep_s = 0.02
    _train(
        tmp_path, watch, model, eval_strategy="steps", eval_steps=4, save_strategy="steps",
        save_steps=4, bf16=True, per_device_eval_batch_size=4,
    )  # fmt: skip
    found = seconds(watch.summary)
    assert watch.summary.n_steps == 12
    assert found["evaluation"] >= 3 * (3 * 0.02 + 12 * 0.001)
    assert found["checkpoint"] > 0
    assert watch.summary.step is not None
    # the rest of a step is not what three evaluations took
    resumed = TrainerWatch(live=False)
    trainer = _train(tmp_path, resumed, Model(), resume=True, num_train_epochs=3)
    assert trainer.state.global_step == 18
    assert resumed.summary.n_steps == 6


def test_hugging_face_early_stop_and_exception(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from perfkit.integrations import TrainerWatch

    class Stop(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step >= 5

    watch = TrainerWatch(live=False)
    _train(tmp_path, watch, Model(), callbacks=[Stop()])
    assert watch.summary.n_steps == 5
    assert watch.summary.ended == "was stopped after 5 steps"

    class Raise(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _train(tmp_path, watch, Model(), callbacks=[Raise()])
    assert watch.run.is_running  # the trainer told nobody
    watch.run.end("ended early")
    assert watch.summary.n_steps == 1


# --- accelerate -------------------------------------------------------------------------------


def test_accelerate_accumulation_evaluation_and_checkpoint(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from perfkit.integrations import AccelerateWatch

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(Data(24, 0.001), batch_size=4)
    val = torch.utils.data.DataLoader(Data(12), batch_size=4)
    model, optimizer, loader, val = accelerator.prepare(model, optimizer, loader, val)
    model.sleep_s = 0.02
    with AccelerateWatch(accelerator, live=False) as watch:
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for batch in val:
                    model(**batch)
            model.train()
            accelerator.save_state(str(tmp_path / "state"))
    found = seconds(watch.summary)
    assert watch.summary.n_steps == 6
    assert found["evaluation"] >= 2 * 3 * 0.02
    assert found["checkpoint"] > 0
    assert found["forward"] > 0
    assert found["backward"] > 0
