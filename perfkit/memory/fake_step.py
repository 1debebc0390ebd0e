"""The memory of a training step that is not run: on fake tensors, which have shapes only.

Always on fake *CPU* tensors: a backward pass through fake CUDA tensors terminates the process
where torch was built without CUDA.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from perfkit.base import torch_compat
from perfkit.base.errors import UsageError
from perfkit.memory.fake_batch import Batches
from perfkit.memory.ledger import Block, Ledger, Totals
from perfkit.memory.survey import Survey
from perfkit.memory.tracker import Tracker

#: Steps that are run: optimizer state is made in the first, the second has all of it.
_STEPS = 2


_READ = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class Run:
    """Two steps with one batch size.

    Attributes:
        totals: the book, evaluated.
        changes: bytes allocated (positive) and freed (negative), in order.
    """

    totals: Totals
    changes: tuple[int, ...]


class _Book(Ledger):
    """A book that also keeps the sizes in the order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[int] = []

    def add(self, block: Block) -> None:
        self.changes.append(block.nbytes)
        super().add(block)

    def remove(self, block: Block) -> None:
        self.changes.append(-block.nbytes)
        super().remove(block)


class _FakeTracker(Tracker):
    """Counts fake tensors and nothing else; calls ``tell`` at each operator.

    Attributes:
        n_read: values that the optimizer's step asked for. A fake tensor has none: each is
            answered by 1.
    """

    _let_pass = (UsageError,)

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell
        self._outermost = FakeTraining.run.__code__
        self.n_read = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._tell()
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except RuntimeError as error:
            # ASGD and Adafactor read their own step number; what they allocate is the same
            if func is _READ and self._in_step and _is_of_fake_tensors(error):
                self.n_read += 1
                return 1.0 if args[0].is_floating_point() else 1
            raise

    def _survey(self, *, graphs: bool = True) -> Survey:
        return Survey()

    def _find(self, tensor: Tensor) -> tuple[UntypedStorage, ...]:
        if not torch_compat.is_fake(tensor):
            return ()
        if tensor.device.type != "cpu":
            raise UsageError(
                f"will_it_fit: the step made a tensor on {tensor.device}; it is run on fake CPU "
                "tensors, so in forward and loss, make tensors on the device of the inputs"
            )
        inner = torch_compat.inner_tensors(tensor)
        if inner is None:
            return (tensor.untyped_storage(),)
        return tuple(part.untyped_storage() for part in inner)

    def _book(self, device: torch.device) -> Ledger:
        return _Book()


class FakeTraining:
    """A fake copy of a model with its optimizer; :meth:`run` counts two steps of it.

    Attributes:
        batches: the batches, of any size.
        reads_values: the optimizer's step asked for values, which were taken to be 1.
        groups_joined: the parameter groups of the optimizer are predicted as one.
        sparse_gradients: a gradient was sparse; its size depends on the values of the batch.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        optimizer: Callable[[Any], Optimizer] | Optimizer | None,
        loss: Callable[..., Any] | None,
        precision: str,
        checkpointing: Any,
        make_batch: Callable[..., Any],
        batch: int,
        *,
        takes_size: bool,
    ) -> None:
        """Makes one fake copy of the model and asks for two batches at the most.

        Args:
            model: a module, or a function that makes one (then no real memory is needed).
            optimizer: what makes one from parameters, one to take the settings of, or None.
            loss: called with the output and what follows the input in the batch; None: the
                output itself if it is one number or has a ``.loss``, else its sum.
            precision: ``float32``, ``amp`` or ``bfloat16``.
            checkpointing: which modules recompute their forward in the backward pass.
            make_batch: gives a batch.
            batch: the number of samples to ask for.
            takes_size: ``make_batch`` takes the number of samples.
        """
        self._optimizer = optimizer
        if isinstance(loss, nn.Module):
            _check_sizes("loss", loss)
        self._loss = loss
        self._precision = precision
        self._mode = torch_compat.fake_mode()
        self._fakes: dict[int, Tensor] = {}
        self._model = self._copy(model, checkpointing)
        with self._mode:  # so that a batch too large for this machine is not made
            self.batches = Batches(self._mode, make_batch, batch, takes_size=takes_size)
        self.reads_values = False
        self.groups_joined = False
        self.sparse_gradients = False

    def run(self, n: int, tell: Callable[[], None]) -> Run:
        """Two steps with a batch of ``n`` samples; ``tell`` is called many times meanwhile.

        Raises:
            UsageError: the step makes tensors on another device, or depends on values.
        """
        model = self._model
        model.zero_grad()
        with self._mode:
            optimizer = self._make_optimizer(model)
            tracker = _FakeTracker(tell)
            tracker.start(modules=[model], optimizers=[] if optimizer is None else [optimizer])
            try:
                for _ in range(_STEPS):
                    self._step(tracker, optimizer, n)
            except RuntimeError as error:
                if _is_of_fake_tensors(error):
                    raise UsageError(
                        "will_it_fit: the step depends on the values of tensors "
                        f"({type(error).__name__}: {str(error).splitlines()[0]}), and fake "
                        "tensors have none; leave that part out of `loss` or `forward`"
                    ) from error
                raise
            finally:
                tracker.stop()
        if tracker.instrument.failure is not None:
            raise RuntimeError(tracker.instrument.failure.sentence())
        self.reads_values |= tracker.n_read > 0
        (ledger,) = tracker.ledgers.values() or (_Book(),)
        assert isinstance(ledger, _Book)
        return Run(ledger.totals(), tuple(ledger.changes))

    def _copy(self, given: Any, checkpointing: Any) -> nn.Module:
        mode = self._mode
        if isinstance(given, nn.Module):
            _check_sizes("model", given)
            model = torch_compat.fake_copy(mode, given)
        else:
            with mode, warnings.catch_warnings():
                # what nn.TransformerEncoder does with its layers is no fault of the user's
                warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
                model = given()
            if not isinstance(model, nn.Module):
                raise UsageError(f"model() gave a {type(model).__name__}; it must make a module")
            _check_sizes("model", model)
        cast = torch.bfloat16 if self._precision == "bfloat16" else None
        with mode, torch.no_grad():
            _onto_cpu(model, cast)
        model.train()
        if isinstance(given, nn.Module):
            pairs = zip(given.parameters(), model.parameters(), strict=True)
            self._fakes = {id(real): fake for real, fake in pairs}
        for module in _to_checkpoint(model, checkpointing):
            _recompute(module)
        made: nn.Module = model
        return made

    def _make_optimizer(self, model: nn.Module) -> Optimizer | None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        if self._optimizer is None or not parameters:
            return None
        if isinstance(self._optimizer, Optimizer):
            made = self._another(self._optimizer, parameters)
        else:
            made = self._optimizer(parameters)
        if not isinstance(made, Optimizer):
            raise UsageError(f"optimizer gave a {type(made).__name__}; give torch.optim.AdamW")
        if _needs_closure(made):
            raise UsageError(
                f"will_it_fit: {type(made).__name__} decides by the loss how often it runs the "
                "model and what it keeps, so its step cannot be predicted; give optimizer=None, "
                "and add what it keeps (LBFGS: up to 2 · history_size times the parameters)"
            )
        for group in made.param_groups:
            # on CUDA, torch takes the foreach way unless told otherwise; it needs more memory
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        return made

    def _another(self, given: Optimizer, parameters: Sequence[Tensor]) -> Optimizer:
        """An optimizer of the same class, groups and settings, for the fake parameters."""
        mine = [[self._fakes.get(id(p)) for p in group["params"]] for group in given.param_groups]
        known = all(fake is not None for group in mine for fake in group)
        self.groups_joined = not known and len(given.param_groups) > 1
        left_out = {"params", "param_names"}
        groups = [
            {"params": fakes, **{k: v for k, v in group.items() if k not in left_out}}
            for fakes, group in zip(mine, given.param_groups, strict=True)
        ]
        if not known:  # of a model that is made by a function, for example
            groups = [{**groups[0], "params": parameters}]
        kind: Any = type(given)
        # `defaults` holds settings that __init__ does not take (AdamW's decoupled_weight_decay)
        accepted = inspect.signature(kind.__init__).parameters
        settings = {k: v for k, v in given.defaults.items() if k in accepted}
        try:
            made: Optimizer = kind(groups, **settings)
        except TypeError as error:
            raise UsageError(
                f"optimizer: another {kind.__name__} cannot be made from its settings ({error}); "
                "give a function that makes one from parameters"
            ) from error
        return made

    def _step(self, tracker: _FakeTracker, optimizer: Optimizer | None, n: int) -> None:
        model = self._model
        model.zero_grad()
        batch = self.batches.of(n)
        if self._precision == "bfloat16":
            batch = tree_map_only(
                Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t, batch
            )
        with self._autocast():
            value = self._value(model, batch)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        self.sparse_gradients |= any(grad.layout is not torch.strided for grad in grads)
        del grads
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


def _is_of_fake_tensors(error: RuntimeError) -> bool:
    return type(error).__module__.startswith("torch._subclasses")


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _summed(output: Any) -> Tensor:
    parts = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
    if not parts:
        raise UsageError("will_it_fit: the model gives no tensor to sum up; give loss=…")
    if len(parts) == 1 and parts[0].numel() == 1:
        return parts[0]
    return torch.stack([part.float().sum() for part in parts]).sum()


def _check_sizes(what: str, module: nn.Module) -> None:
    """Refuse lazy modules: with fake tensors, to fill one in ends the process (torch 2.13)."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise UsageError(
                f"{what} has no size yet for {name!r}, of a lazy module: run one batch through it "
                "first"
            )


def _onto_cpu(model: nn.Module, cast: torch.dtype | None) -> None:
    """Fake CPU tensors in place of all others, shared ones staying shared."""
    made: dict[int, Tensor] = {}

    def moved(tensor: Tensor) -> Tensor:
        dtype = cast if cast is not None and tensor.is_floating_point() else tensor.dtype
        if tensor.device.type == "cpu" and dtype == tensor.dtype and not _is_torn(tensor):
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


def _is_torn(tensor: Tensor) -> bool:
    """Whether its views have another storage than itself, and would be counted beside it.

    So it is after ``copy.deepcopy`` of a fake tensor, as nn.TransformerEncoder copies its layers.
    """
    if not torch_compat.is_fake(tensor) or tensor.layout != torch.strided:
        return False
    return tensor.detach().untyped_storage() is not tensor.untyped_storage()


def _to_checkpoint(model: nn.Module, which: Any) -> list[nn.Module]:
    if not which:
        return []
    if which is True:
        blocks = _blocks(model)
        if not blocks:
            raise UsageError(
                "checkpointing=True means the blocks in a ModuleList or Sequential, modules with "
                "modules of their own, and this model has none; give a path ('encoder.3') or a "
                "class"
            )
        return blocks
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
                f"checkpointing: {item!r} is not a module of the model; give a path "
                "('encoder.3'), a class, or True"
            )
    return found


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules with modules of their own in a ModuleList or Sequential."""
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
