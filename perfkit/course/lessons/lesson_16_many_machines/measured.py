"""Lesson 16: a link in two numbers and what they predict, and a Trainer beside the same by hand."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: The Llama 3 Herd of Models (2024), 3.3.4: unexpected interruptions, days, GPUs
_LLAMA = (419, 54, 16_384)

#: Names of today's options of ``lightning.pytorch.Trainer``.
OPTIONS = ("accumulate_grad_batches", "precision", "devices", "num_nodes", "strategy")
#: Names of 2019, which the source uses.
GONE = ("gpus", "amp_level", "distributed_backend", "nb_gpu_nodes")


@dataclass(frozen=True)
class Line:
    """A link in two numbers.

    Attributes:
        alpha_s: seconds that a message takes however short it is.
        beta: bytes a second.
    """

    alpha_s: float
    beta: float


#: What is assumed of links, for predictions; orders of magnitude, of data sheets.
NETWORKS: Mapping[str, Line] = {
    "NVLink, 450 GB/s": Line(3e-6, 450e9),
    "InfiniBand, 400 Gb/s": Line(1e-5, 50e9),
    "Ethernet, 10 Gb/s": Line(5e-5, 1.25e9),
}


def failures_a_day(gpus: int) -> float:
    """What the failures of one large, published run come to on so many GPUs: predicted."""
    n, days, all_gpus = _LLAMA
    return n / days * gpus / all_gpus


def predicted_s(ranks: int, size_bytes: float, link: Line) -> float:
    """Seconds of an all-reduce round a ring: 2 (n - 1) messages of 1/n of the bytes."""
    return 2 * (ranks - 1) * (link.alpha_s + size_bytes / ranks / link.beta)


# ---- a Trainer beside the same by hand ---------------------------------------------------


def has_trainer() -> bool:
    """Whether Lightning is installed."""
    return importlib.util.find_spec("lightning") is not None


def trainer_names() -> dict[str, bool] | None:
    """Which options, of today and of 2019, Lightning's Trainer has; None without Lightning."""
    if not has_trainer():
        return None
    from lightning.pytorch import Trainer

    known = inspect.signature(Trainer.__init__).parameters
    return {name: name in known for name in (*OPTIONS, *GONE)}


def trained_by_trainer(
    model: nn.Module,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    lr: float,
    **options: Any,
) -> nn.Module | None:
    """Train a model with SGD for one epoch by Lightning's Trainer; None without Lightning.

    Args:
        model: is trained in place, by ``mse_loss``.
        batches: inputs and targets.
        lr: learning rate.
        options: of the Trainer.
    """
    if not has_trainer():
        return None
    import logging
    import warnings

    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=lr)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        rows: Any = list(batches)  # torch takes any sequence; its stub asks for a Dataset
        trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=None))
    return model
