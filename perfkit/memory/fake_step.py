"""The memory of a training step that is not run: on fake tensors, which have shapes only.

Always on fake *CPU* tensors: a backward pass through fake CUDA tensors terminates the process
where torch was built without CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from perfkit import _torch_compat
from perfkit.errors import UsageError
from perfkit.memory.ledger import Ledger, Totals
from perfkit.memory.survey import Survey
from perfkit.memory.tracker import Tracker

__all__ = ["FakeTraining"]

#: Steps that are run: optimizer state is made in the first, the second has all of it.
_STEPS = 2


class _FakeTracker(Tracker):
    """Counts fake tensors and nothing else.

    Attributes:
        in_batch: the batch is being made: it may lie on a GPU, and is put on the CPU then.
    """

    in_batch = False

    def _survey(self) -> Survey:
        return Survey()

    def _find(self, tensor: Tensor) -> tuple[UntypedStorage, ...]:
        if not _torch_compat.is_fake(tensor):
            return ()
        if tensor.device.type != "cpu":
            if self.in_batch and tensor.device.type == "cuda":
                return ()
            raise UsageError(
                f"will_it_fit: the step made a tensor on {tensor.device}; it is run on fake CPU "
                "tensors, so make what forward and loss make on the device of what they are given"
            )
        inner = _torch_compat.inner_tensors(tensor)
        if inner is None:
            return (tensor.untyped_storage(),)
        return tuple(part.untyped_storage() for part in inner)

    def _book(self, device: torch.device) -> Ledger:
        return Ledger()


class FakeTraining:
    """A fake copy of a model with its optimizer; :meth:`totals` counts two steps of it."""

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        optimizer: Callable[[Any], Optimizer] | Optimizer | None,
        loss: Callable[..., Any] | None,
        precision: str,
        checkpointing: Any,
    ) -> None:
        """Copies nothing yet: each count makes a copy of its own.

        Args:
            model: a module, or a function that makes one (then no real memory is needed).
            optimizer: what makes one from parameters, one to take the settings of, or None.
            loss: called with the output and what follows the input in the batch; None: the
                output itself if it is one number or has a ``.loss``, else its sum.
            precision: ``float32``, ``amp`` or ``bfloat16``.
            checkpointing: which modules recompute their forward in the backward pass.
        """
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._precision = precision
        self._checkpointing = checkpointing

    def totals(self, make_batch: Callable[[], Any]) -> Totals:
        """The book of two steps with batches from ``make_batch``.

        Raises:
            UsageError: the step makes tensors on another device, or depends on values.
        """
        mode = _torch_compat.fake_mode()
        model = self._copy(mode)
        with mode:
            optimizer = self._make_optimizer(model)
            tracker = _FakeTracker()
            tracker.start(
                modules=[model],
                optimizers=[] if optimizer is None else [optimizer],
            )
            try:
                for _ in range(_STEPS):
                    self._step(tracker, mode, model, optimizer, make_batch)
            except RuntimeError as error:
                if type(error).__module__.startswith("torch._subclasses"):
                    raise UsageError(
                        "will_it_fit: the step depends on the values of tensors "
                        f"({type(error).__name__}: {str(error).splitlines()[0]}), and fake "
                        "tensors have none; leave that part out of `loss` or `forward`"
                    ) from error
                raise
            finally:
                tracker.stop()
        (ledger,) = tracker.ledgers.values() or (Ledger(),)
        return ledger.totals()

    def _copy(self, mode: Any) -> nn.Module:
        model: Any
        if isinstance(self._model, nn.Module):
            model = _torch_compat.fake_copy(mode, self._model)
        else:
            with mode:
                model = self._model()
            if not isinstance(model, nn.Module):
                raise UsageError(f"model() gave a {type(model).__name__}; it must make a module")
        cast = torch.bfloat16 if self._precision == "bfloat16" else None
        with mode, torch.no_grad():
            _onto_cpu(model, cast)
        model.train()
        for module in _to_checkpoint(model, self._checkpointing):
            _recompute(module)
        made: nn.Module = model
        return made

    def _make_optimizer(self, model: nn.Module) -> Optimizer | None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        if self._optimizer is None or not parameters:
            return None
        if isinstance(self._optimizer, Optimizer):
            made = type(self._optimizer)(parameters, **self._optimizer.defaults)
        else:
            made = self._optimizer(parameters)
        if not isinstance(made, Optimizer):
            raise UsageError(f"optimizer gave a {type(made).__name__}; give torch.optim.AdamW")
        for group in made.param_groups:
            # on CUDA, torch takes the foreach way unless told otherwise; it needs more memory
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        return made

    def _step(
        self,
        tracker: _FakeTracker,
        mode: Any,
        model: nn.Module,
        optimizer: Optimizer | None,
        make_batch: Callable[[], Any],
    ) -> None:
        model.zero_grad()
        tracker.in_batch = True
        batch = _batch(mode, make_batch)
        tracker.in_batch = False
        if self._precision == "bfloat16":
            batch = tree_map_only(
                Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t, batch
            )
        with self._autocast():
            value = self._value(model, batch)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision == "amp":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return nullcontext()

    def _value(self, model: nn.Module, batch: Any) -> Tensor:
        rest: tuple[Any, ...] = ()
        if isinstance(batch, Mapping):
            output, rest = model(**batch), (batch,)
        elif isinstance(batch, (list, tuple)):
            output, rest = model(batch[0]), tuple(batch[1:])
        else:
            output = model(batch)
        if self._loss is not None:
            value = self._loss(output, *rest)
        else:
            value = getattr(output, "loss", None)
            value = _summed(output) if value is None else value
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UsageError("will_it_fit: the loss is not one number; give loss=…")
        return value


def _batch(mode: Any, make_batch: Callable[[], Any]) -> Any:
    """A batch as fake CPU tensors, also where it is made on a GPU."""

    def moved(tensor: Tensor) -> Tensor:
        fake: Tensor = tensor if _torch_compat.is_fake(tensor) else mode.from_tensor(tensor)
        return torch.empty_like(fake, device="cpu") if fake.device.type == "cuda" else fake

    return tree_map_only(Tensor, moved, make_batch())


def _summed(output: Any) -> Tensor:
    parts = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
    if not parts:
        raise UsageError("will_it_fit: the model gives no tensor to sum up; give loss=…")
    if len(parts) == 1 and parts[0].numel() == 1:
        return parts[0]
    return torch.stack([part.float().sum() for part in parts]).sum()


def _onto_cpu(model: nn.Module, cast: torch.dtype | None) -> None:
    """Fake CPU tensors in place of all others, shared ones staying shared."""
    made: dict[int, Tensor] = {}

    def moved(tensor: Tensor) -> Tensor:
        dtype = cast if cast is not None and tensor.is_floating_point() else tensor.dtype
        if tensor.device.type == "cpu" and dtype == tensor.dtype:
            return tensor
        if id(tensor) not in made:
            new: Tensor = torch.empty_like(tensor, dtype=dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            made[id(tensor)] = new
        return made[id(tensor)]

    for module in model.modules():
        slots: Any
        for slots in (module._parameters, module._buffers):
            for name, tensor in list(slots.items()):
                if tensor is not None:
                    slots[name] = moved(tensor)


def _to_checkpoint(model: nn.Module, which: Any) -> list[nn.Module]:
    if not which:
        return []
    if which is True:
        return _blocks(model)
    wanted = which if isinstance(which, (list, tuple)) else (which,)
    named: dict[str, nn.Module] = dict(model.named_modules())
    found: list[nn.Module] = []
    for item in wanted:
        if isinstance(item, str) and item in named:
            found.append(named[item])
        elif isinstance(item, type) and any(type(m) is item for m in named.values()):
            found.extend(m for m in model.modules() if type(m) is item)
        else:
            raise UsageError(
                f"checkpointing: {item!r} is no module of the model; give a path "
                "('encoder.3'), a class, or True"
            )
    return found


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules with parameters in a ModuleList or Sequential."""
    found = []
    for child in model.children():
        if isinstance(model, (nn.ModuleList, nn.Sequential)) and any(
            True for _ in child.children()
        ):
            found.append(child)
        else:
            found += _blocks(child)
    return found


def _recompute(module: nn.Module) -> None:
    forward = module.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        # fake tensors hold no random numbers: there is no state to bring back
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    module.forward = recomputed
