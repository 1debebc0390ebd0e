"""One training step that follows the settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfkit.base.device import here
from perfkit.base.errors import SettingError

if TYPE_CHECKING:
    import torch

    from perfkit.experiment.settings._given import Settings

# Steps before a capture: in these cuBLAS, cuDNN and the allocator create what they need.
_STEPS_BEFORE_CAPTURE = 3


class TrainingStep:
    """``step(inputs, targets)``: to the device, forward, loss, backward, update.

    With ``accumulate=k`` a call handles one of k parts of a batch: its loss is weighted 1/k, and
    every k-th call updates the model; until then a DistributedDataParallel model does not exchange
    gradients. With ``cuda_graphs`` the fourth call captures the GPU's work in a step, and later
    calls replay it.

    Args:
        settings: it uses precision, accumulate, set_to_none, uint8, non_blocking, channels_last and
            cuda_graphs.
        model: as returned by :meth:`~perfkit.experiment.settings.Settings.prepare`.
        loss: ``loss(outputs, targets)``, a mean over the batch.
    """

    def __init__(
        self,
        settings: Settings,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Any, Any], torch.Tensor],
    ) -> None:
        self._settings = settings
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._parts = int(settings.get("accumulate", 1))
        self._scaler = settings.grad_scaler()
        self._zero = settings.zero_grad_kwargs()
        self._n_calls = 0
        self._graph = _Graphed(self) if settings.get("cuda_graphs") else None

    def __call__(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Train on one batch; return its loss, detached, on the device (reading it waits)."""
        inputs, targets = self._settings.to_device((inputs, targets))
        if self._graph is not None:
            return self._graph.step(inputs, targets)
        self._n_calls += 1
        last = self._n_calls % self._parts == 0
        with self._alone(last):
            loss = self._forward(inputs, targets)
            self._scaler.scale(loss / self._parts).backward()  # type: ignore[no-untyped-call]
        if last:
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad(**self._zero)
        return loss.detach()

    def _forward(self, inputs: Any, targets: Any) -> torch.Tensor:
        import torch

        if isinstance(inputs, torch.Tensor):
            inputs = self._settings.to_float(inputs)
        with self._settings.autocast():
            return self._loss(self._model(inputs), targets)

    def _alone(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        no_sync = getattr(self._model, "no_sync", None)
        return contextlib.nullcontext() if last or no_sync is None else no_sync()


class _Graphed:
    """A step that is captured once and replayed."""

    def __init__(self, step: TrainingStep) -> None:
        self._step = step
        self._n_before = 0
        gpu = here()
        if not gpu.has_graphs:
            raise SettingError(
                f"cuda_graphs: {gpu.label} has no graphs to capture a step into; switch it off"
            )
        self._graph = gpu.graphed_step()
        self._is_captured = False
        self._inputs: Any = None
        self._targets: Any = None
        self._captured_loss: Any = None
        for group in step._optimizer.param_groups:
            if "capturable" in group:  # Adam's step counter is then on the GPU
                group["capturable"] = True

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One step; returns a copy of the loss, because the graph overwrites its own."""
        if not self._is_captured and self._n_before < _STEPS_BEFORE_CAPTURE:
            self._n_before += 1
            loss: torch.Tensor = self._graph.warm_up(lambda: self._whole(inputs, targets))
            return loss.detach()
        if not self._is_captured:
            self._capture(inputs, targets)
        self._take(inputs, targets)
        self._graph.replay()
        copy: torch.Tensor = self._captured_loss.detach().clone()
        return copy

    def _capture(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._inputs, self._targets = inputs.clone(), targets.clone()
        # gradients created inside the graph are in its own memory pool
        self._step._optimizer.zero_grad(set_to_none=True)
        self._captured_loss = self._graph.capture(lambda: self._whole(self._inputs, self._targets))
        self._is_captured = True

    def _take(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        if inputs.shape != self._inputs.shape or targets.shape != self._targets.shape:
            raise SettingError(
                f"cuda_graphs: the graph was captured with a batch of {tuple(self._inputs.shape)}, "
                f"and now comes {tuple(inputs.shape)}; use drop_last=True, or switch it off"
            )
        self._inputs.copy_(inputs, non_blocking=True)
        self._targets.copy_(targets, non_blocking=True)

    def _whole(self, inputs: Any, targets: Any) -> torch.Tensor:
        step = self._step
        step._optimizer.zero_grad(**step._zero)
        loss = step._forward(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        step._optimizer.step()
        return loss
