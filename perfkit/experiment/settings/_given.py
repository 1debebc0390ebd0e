"""The argument of a workload: the values of its settings, and helpers that apply them."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfkit.base.device import here
from perfkit.base.errors import SettingError
from perfkit.experiment.settings import _affinity
from perfkit.experiment.settings.catalogue import CATALOGUE

if TYPE_CHECKING:
    import torch

    from perfkit.experiment.settings._step import TrainingStep


class _UnknownSettingError(SettingError, KeyError, AttributeError):
    """Unknown name: also a type that ``in``, ``.get()`` and ``hasattr`` expect."""

    def __str__(self) -> str:
        return str(self.args[0])


class Settings(Mapping[str, Any]):
    """The argument of a workload: the value of each declared setting.

    ``settings["num_workers"]`` and ``settings.num_workers`` return a value; the helpers turn values
    into arguments. A helper covers only declared settings, so it does not collide with arguments
    that the workload passes itself. A whole workload::

        def workload(s):
            model = s.prepare(Net())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **s.optimizer_kwargs())
            step = s.training_step(model, optimizer, torch.nn.functional.cross_entropy)
            loader = DataLoader(data, **s.loader_kwargs(batch_size=32, shuffle=True))
            while True:
                for images, labels in loader:
                    yield step(images, labels)
    """

    __slots__ = ("_device", "_values")

    _values: dict[str, Any]
    _device: torch.device | None

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        object.__setattr__(self, "_values", {**(values or {}), **more})
        object.__setattr__(self, "_device", None)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise _unknown(name, self._values) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and IPython probe for these
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise SettingError(f"settings.{name} = … : settings are fixed for the whole run")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._values})

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Settings, (self._values,)

    # --- where, and in which layout ---------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The accelerator that torch can use here, such as ``cuda``, else ``cpu``."""
        import torch

        found = self._device
        if found is None:  # asked once: every batch is sent there
            found = torch.device(here().type)
            object.__setattr__(self, "_device", found)
        return found

    @property
    def memory_format(self) -> torch.memory_format:
        """For image batches: ``images.to(s.device, memory_format=s.memory_format)``."""
        import torch

        return torch.channels_last if self.get("channels_last") else torch.contiguous_format

    # --- data -------------------------------------------------------------------------------

    def loader_kwargs(self, **own: Any) -> dict[str, Any]:
        """Arguments for ``torch.utils.data.DataLoader``, from the declared settings.

        ``own`` are your loader's, such as ``batch_size=32, shuffle=True``: they hold where no
        setting of that name is declared. Without them and without the setting ``batch_size`` a
        batch is one sample, as torch has it.

        Arguments without effect when there are no workers are left out, because torch refuses
        them. With
        ``cuda_graphs`` on, ``drop_last`` keeps the batch's size fixed; with ``affinity="apart"``,
        ``worker_init_fn`` puts the workers on their own cores (on one, if ``num_workers`` is not
        declared), then calls yours.
        """
        names = ["batch_size", "num_workers", "pin_memory"]
        of_workers = ["prefetch_factor", "persistent_workers", "in_order"]
        only_with_workers = [*of_workers, "timeout", "multiprocessing_context"]
        workers = self.get("num_workers", own.get("num_workers"))
        if workers != 0:
            names += of_workers
        found = {k: v for k, v in own.items() if workers != 0 or k not in only_with_workers}
        found |= {name: self[name] for name in names if name in self}
        if self.get("cuda_graphs"):
            found["drop_last"] = True
        if self.get("affinity") == "apart" and workers != 0:
            _, cores = _affinity.split(self, _affinity.allowed())
            found["worker_init_fn"] = _affinity.PinWorker(cores, own.get("worker_init_fn"))
        return found

    def as_sent(self, image: torch.Tensor) -> torch.Tensor:
        """A dataset's uint8 image of any shape: unchanged, or as float32 if ``uint8`` is off.

        :meth:`to_float` converts the rest to float32 on the device. Both divide by 255.
        """
        return image if self.get("uint8") else _as_float(image)

    def to_device(self, value: Any) -> Any:
        """``value`` with all its tensors on the device, also those in tuples, lists and mappings.

        4-D tensors get the memory format. With ``non_blocking`` on, the host does not wait for
        copies from pinned memory.
        """
        import torch

        if isinstance(value, torch.Tensor):
            asynchronous = bool(self.get("non_blocking"))
            if value.dim() == 4 and self.get("channels_last"):
                return value.to(
                    self.device, non_blocking=asynchronous, memory_format=torch.channels_last
                )
            return value.to(self.device, non_blocking=asynchronous)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.to_device, value))
        if isinstance(value, tuple | list):
            return type(value)(map(self.to_device, value))
        if isinstance(value, Mapping):
            return {key: self.to_device(item) for key, item in value.items()}
        return value

    def to_float(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 images as float32 from 0 to 1; anything else unchanged."""
        return _as_float(images)

    # --- model and optimizer ----------------------------------------------------------------

    def prepare(self, model: torch.nn.Module, *, blocks: Any = None) -> torch.nn.Module:
        """The model on the device: channels-last, checkpointed, compiled as the settings say.

        Create the optimizer afterwards: the parameters have moved.

        Args:
            blocks: the modules to recompute in the backward pass if ``checkpointing`` is on. By
                default about √n segments of an ``nn.Sequential`` of n modules, else the model's
                direct children that have parameters; ``()`` for a model that calls
                :meth:`checkpointed` itself.
        """
        import torch

        model = model.to(self.device)
        if self.get("channels_last"):
            # .to() has no overload for the format alone in torch's stubs
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.get("checkpointing"):
            _checkpoint(model, blocks)
        mode = self.get("compile")
        if mode:
            options = {} if mode is True else {"mode": mode}
            compiled: torch.nn.Module = torch.compile(model, **options)  # type: ignore[assignment]
            return compiled
        return model

    def checkpointed(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``, without keeping its activations if ``checkpointing`` is on."""
        if not self.get("checkpointing"):
            return function(*args)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(function, *args, use_reentrant=False)

    def optimizer_kwargs(self) -> dict[str, Any]:
        """Arguments for an optimizer: ``fused=True`` or ``foreach=…`` if declared, else nothing.

        It never passes ``fused=False``: that would also switch off torch's own choice of the
        foreach implementation, and some optimizers do not accept it.
        """
        if self.get("fused"):
            return {"fused": True}
        foreach = self.get("foreach", "auto")
        return {} if foreach == "auto" else {"foreach": foreach}

    def zero_grad_kwargs(self) -> dict[str, Any]:
        """Arguments for ``optimizer.zero_grad()``."""
        return {"set_to_none": self["set_to_none"]} if "set_to_none" in self else {}

    def ddp_kwargs(self) -> dict[str, Any]:
        """Arguments for ``DistributedDataParallel``."""
        return {"bucket_cap_mb": self["bucket_cap_mb"]} if "bucket_cap_mb" in self else {}

    # --- the step ---------------------------------------------------------------------------

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context for forward and loss: autocast to bf16 or fp16, or nothing for fp32 and tf32."""
        import torch

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.get("precision", "fp32"))
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def grad_scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler that is active for fp16 and does nothing otherwise."""
        import torch

        return torch.amp.GradScaler(self.device.type, enabled=self.get("precision") == "fp16")

    def training_step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Any, Any], torch.Tensor],
    ) -> TrainingStep:
        """A function ``step(inputs, targets)`` that trains on one batch according to the settings.

        See :class:`~perfkit.experiment.settings._step.TrainingStep`; it returns the loss, detached.
        """
        from perfkit.experiment.settings._step import TrainingStep

        return TrainingStep(self, model, optimizer, loss)


def nearest(name: str, known: Any) -> str:
    """The name that is written like this one; empty where none is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), "")


def near(name: str, known: Any) -> str:
    """``; did you mean 'fused'?``, or a list of the names."""
    if alike := nearest(name, known):
        return f"; did you mean {alike!r}?"
    names = ", ".join(known)
    return f"; there are: {names}" if names else "; none are declared"


def _unknown(name: Any, values: Mapping[str, Any]) -> _UnknownSettingError:
    if name in CATALOGUE:
        return _UnknownSettingError(
            f"the setting {name!r} is not declared here: add it to settings=[…]"
        )
    return _UnknownSettingError(f"no setting is called {name!r}{near(str(name), values)}")


def _as_float(images: torch.Tensor) -> torch.Tensor:
    import torch

    return images.float() / 255 if images.dtype == torch.uint8 else images


def _checkpoint(model: torch.nn.Module, blocks: Any) -> None:
    """Recompute the blocks in the backward pass instead of keeping their activations."""
    from torch import nn

    if blocks is None and isinstance(model, nn.Sequential):
        _in_segments(model)
        return
    if blocks is None:
        blocks = [one for one in model.children() if next(one.parameters(), None) is not None]
    for block in blocks:
        _recomputed(block)


def _in_segments(model: torch.nn.Sequential) -> None:
    from torch.utils.checkpoint import checkpoint_sequential

    # √n segments minimise the kept ends plus the inside of one segment
    segments = max(1, math.isqrt(len(model)))

    def forward(x: Any) -> Any:
        return checkpoint_sequential(  # type: ignore[no-untyped-call]
            list(model), segments, x, use_reentrant=False
        )

    model.forward = forward  # type: ignore[method-assign]


def _recomputed(block: torch.nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint

    inner = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, **kwargs)

    block.forward = forward
